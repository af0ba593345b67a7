"""Which kills are drawn; the run they disturb is that of tests/faults."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks import random_kills
from benchmarks.random_kills import Kill, draw_kills
from megatron_glm.training.fault_points import Fault, read_faults


@given(kills=st.integers(1, 40), seed=st.integers(0, 1000))
def test_every_part_of_the_run_has_one_kill_in_a_phase_that_comes_there(kills, seed):
    found = draw_kills(kills, 15 * kills, seed)
    assert [(kill.step - 1) // 15 for kill in found] == list(range(kills))
    assert all(kill.step % random_kills._SAVE_INTERVAL == 0 for kill in found if kill.phase == "save")
    assert all(kill.step % random_kills._EVAL_INTERVAL == 0 for kill in found if kill.phase == "evaluation")
    assert found == draw_kills(kills, 15 * kills, seed)


def test_all_phases_come():
    assert {kill.phase for kill in draw_kills(100, 1500, 0)} == set(random_kills._PHASES)


def test_a_kill_is_a_fault_of_the_variable_and_counts_the_steps_before_it():
    kill = Kill("save", rank=1, step=20)
    assert read_faults({"GLM_FAULT": kill.fault(), "RANK": "1"}) == [Fault("save", "kill", rank=1, step=20)]
    assert (kill.completed, Kill("forward", rank=0, step=20).completed) == (20, 19)
