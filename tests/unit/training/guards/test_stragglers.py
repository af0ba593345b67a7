"""The rank that the others wait for is found by where the time goes."""

import time

import pytest
import torch
import torch.distributed as dist

from megatron_glm.training.engines import exact_loss
from megatron_glm.training.engines.exact_loss import Counts
from megatron_glm.training.guards.stragglers import BusyClock, compare, here


def told(*busy, looks=40):
    return [[seconds, looks, f"node{rank // 2}"] for rank, seconds in enumerate(busy)]


def test_the_slowest_rank_is_named_with_its_machine():
    found = compare(told(1.0, 1.1, 1.0, 2.0), steps=10, factor=1.5)
    assert found == {
        "rank": 3,
        "host": "node1",
        "busy_seconds_per_step": pytest.approx(0.2),
        "median_busy_seconds_per_step": pytest.approx(0.1),
    }


def test_of_two_ranks_the_slow_one_is_measured_by_the_fast_one():
    assert compare(told(1.0, 1.6), steps=1, factor=1.5)["rank"] == 1


@pytest.mark.parametrize("busy", [(1.0, 1.4, 1.2), (5.0,), (1.0, 1.0)])
def test_ranks_that_are_about_as_fast_are_not_reported(busy):
    assert compare(told(*busy), steps=1, factor=1.5) is None


def test_an_interval_that_is_too_short_to_tell_is_not_judged():
    assert compare(told(0.1, 0.5, looks=19), steps=1, factor=1.5) is None


def test_what_is_no_part_of_a_step_does_not_count():
    with BusyClock() as clock:
        with clock.paused():
            time.sleep(0.3)
        assert clock.take() == (pytest.approx(0.0, abs=0.11), pytest.approx(0, abs=2))  # a look at either end
        time.sleep(0.3)
        assert clock.take()[0] > 0.1


def test_waiting_in_a_collective_is_not_busy(monkeypatch):
    collective = compile("def wait(sleep):\n    sleep(0.5)\n", dist.distributed_c10d.__file__, "exec")
    names = {}
    exec(collective, names)
    with BusyClock() as clock:
        names["wait"](time.sleep)
        waited, looks = clock.take()
        time.sleep(0.5)
        busy, _ = clock.take()
    assert looks >= 3
    assert waited < 0.2
    assert busy > 0.3
    assert here(clock)[:2] == [0.0, 0]


def test_waiting_for_the_result_of_a_collective_of_gpus_is_not_busy(monkeypatch):
    # It is no part of the collective itself, which has returned: torch's files are not on the stack.
    monkeypatch.setattr(exact_loss.dist, "all_reduce", lambda total, group: time.sleep(0.5))
    with BusyClock() as clock:
        Counts().over_replicas(torch.device("cpu"), None)
        waited, looks = clock.take()
    assert looks >= 3
    assert waited < 0.2
