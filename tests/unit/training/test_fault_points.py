"""Faults on purpose: what the variable says, where they strike, and that a run without them has none."""

import os
import signal
from types import SimpleNamespace

import pytest
import torch

from megatron_glm.data.file_array import ReadOnlyFile
from megatron_glm.errors import ConfigError, DataError, is_of_machine
from megatron_glm.training import fault_points
from megatron_glm.training.fault_points import Fault, FaultPoints, PlantedError, read_faults
from megatron_glm.training.progress import Progress


class Engine:
    """What faults are planted into."""

    def __init__(self):
        self.module = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.module.parameters())

    def fragments(self):
        yield from "abc"

    def update(self, learning_rate):
        self.optimizer.step()
        return learning_rate


class Loader:
    processes = (123,)

    def _next(self):
        return "step"


def read(text, rank=0, restarts=0):
    return read_faults({"GLM_FAULT": text, "RANK": str(rank), "GLM_RESTARTS": str(restarts)})


def test_the_variable_names_place_time_and_kind():
    assert read("backward:rank=1:step=7:kill", rank=1) == [Fault("backward", "kill", rank=1, step=7)]
    slow, signalled = read("data:slow:seconds=0.5,save:step=2:start=0:signal=SIGUSR1")
    assert (slow.phase, slow.seconds) == ("data", 0.5)
    assert signalled.signal is signal.SIGUSR1


def test_a_fault_is_of_one_rank_and_of_one_start():
    text = "data:rank=1:start=2:kill"
    assert read(text, rank=1, restarts=2)
    assert not read(text, rank=0, restarts=2)
    assert not read(text, rank=1, restarts=1)
    assert read_faults({}) == []


@pytest.mark.parametrize(
    "text",
    [
        *("nowhere:kill", "data", "data:step=x:kill", "data:kill:hang", "data:signal=SIGNONE", "data:when=2:kill"),
        *("data:flip", "optimizer:unreadable"),
    ],
)
def test_a_fault_that_is_none_is_one_clear_line(text):
    with pytest.raises(ConfigError, match=r"^GLM_FAULT: .* is no fault; expected PHASE:rank=R:step=S:KIND"):
        read(text)


def plant(faults, *, engine, loader, progress):
    points = FaultPoints(faults, progress=progress)
    points.plant_in_engine(engine)
    points.plant_in_loader(loader)
    return points


def strike(phase, act, *, step=3, progress=2, kind="raise", training=True):
    """Whether an act of the engine or loader sets it off."""
    engine, loader = Engine(), Loader()
    engine.module.train(training)
    plant([Fault(phase, kind, step=step)], engine=engine, loader=loader, progress=Progress(step=progress))
    try:
        act(engine, loader)
    except PlantedError:
        return True
    return False


ACTS = {
    "data": lambda engine, loader: loader._next(),
    "forward": lambda engine, loader: engine.module(torch.ones(2)),
    "backward": lambda engine, loader: engine.module(torch.ones(2)).sum().backward(),
    "optimizer": lambda engine, loader: engine.optimizer.step(),
}


@pytest.mark.parametrize("phase", ACTS)
def test_a_fault_of_a_step_strikes_in_its_phase_and_step(phase):
    assert strike(phase, ACTS[phase])
    assert not strike(phase, ACTS[phase], progress=1)
    assert not strike(phase, ACTS[phase], progress=3)


def test_one_bit_is_flipped_after_the_update_of_its_step():
    engine, progress = Engine(), Progress(step=1)
    plant([Fault("optimizer", "flip", step=3)], engine=engine, loader=Loader(), progress=progress)
    before, flipped = engine.module.weight.detach().clone(), []
    for progress.step in (1, 2, 3):
        assert engine.update(0.5) == 0.5
        bits = engine.module.weight.detach().view(torch.int32) ^ before.view(torch.int32)
        flipped.append(sum(int(word).bit_count() for word in bits.flatten()))
    assert flipped == [0, 1, 1]


def test_one_read_of_a_file_is_one_of_a_disk_that_fails(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    file, loader, progress = ReadOnlyFile(tmp_path / "a"), Loader(), Progress(step=1)
    plant([Fault("data", "unreadable", step=3)], engine=Engine(), loader=loader, progress=progress)
    loader._next()
    assert file.read(0, 7) == b"content"
    progress.step = 2
    loader._next()
    with pytest.raises(DataError, match="Input/output error") as failure:
        file.read(0, 7)
    assert is_of_machine(failure.value)
    assert file.read(0, 7) == b"content"


def test_it_strikes_once():
    engine, loader = Engine(), Loader()
    plant([Fault("data", "raise", step=3)], engine=engine, loader=loader, progress=Progress(step=2))
    with pytest.raises(PlantedError):
        loader._next()
    assert loader._next() == "step"


def test_a_run_that_goes_back_and_opens_its_data_anew_has_those_that_did_not_strike_yet():
    faults = [Fault("data", "raise", step=3), Fault("data", "raise", step=5)]
    progress, loader = Progress(step=2), Loader()
    points = plant(faults, engine=Engine(), loader=loader, progress=progress)
    with pytest.raises(PlantedError):
        loader._next()
    progress.step, loader = 1, Loader()
    points.plant_in_loader(loader)
    for progress.step in (1, 2, 3):
        assert loader._next() == "step"
    progress.step = 4
    with pytest.raises(PlantedError):
        loader._next()


def test_a_forward_pass_of_an_evaluation_is_one_of_its_own():
    assert strike("evaluation", ACTS["forward"], step=2, training=False)
    assert not strike("evaluation", ACTS["forward"], step=2, training=True)
    assert not strike("forward", ACTS["forward"], training=False)


def test_a_save_is_hit_when_something_is_written_and_something_is_not():
    seen = []
    assert strike("save", lambda engine, loader: seen.extend(_noted(engine.fragments(), seen)), step=2)
    assert seen == ["a"]


def _noted(fragments, seen):
    for fragment in fragments:
        seen.append(fragment)
    return []


def test_a_slow_rank_is_slow_from_then_on(monkeypatch):
    slept = []
    monkeypatch.setattr(fault_points.time, "sleep", slept.append)
    engine, progress, loader = Engine(), Progress(), Loader()
    plant([Fault("forward", "slow", step=2, seconds=0.5)], engine=engine, loader=loader, progress=progress)
    for progress.step in range(4):
        engine.module(torch.ones(2))
    assert slept == [0.5, 0.5, 0.5]


@pytest.mark.parametrize(("kind", "number"), [("kill", signal.SIGKILL), ("hang", signal.SIGSTOP)])
def test_a_fault_of_a_worker_is_done_to_it_and_told(monkeypatch, capsys, kind, number):
    done = []
    monkeypatch.setattr(os, "kill", lambda *args: done.append(args))
    strike("worker", ACTS["data"], kind=kind)
    assert done == [(123, number)]
    assert capsys.readouterr().out.startswith(f"GLM_FAULT: {kind} in worker, rank 0, step 3, ")


def test_a_worker_that_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match=r"needs data\.workers of at least 1"):
        plant([Fault("worker", "kill")], engine=Engine(), loader=SimpleNamespace(), progress=Progress())


def test_a_run_without_the_variable_has_no_code_of_ours_in_its_way():
    engine, loader = Engine(), Loader()
    plant(read_faults({}), engine=engine, loader=loader, progress=Progress())
    assert set(vars(engine)) == {"module", "optimizer"}
    assert vars(loader) == {}
    assert "forward" not in vars(engine.module)
