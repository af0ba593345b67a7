"""Going back: to which checkpoint, without which samples, and what is told of it."""

import os
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from megatron_glm.checkpoint.discovery import Rejected, Scan
from megatron_glm.errors import CheckpointError
from megatron_glm.parallel.ranks import SingleProcess
from megatron_glm.training.checkpoints import rewinding
from megatron_glm.training.checkpoints.rewind_file import RewindRecord, kept_rewind
from megatron_glm.training.guards.divergence import RewindWished
from megatron_glm.training.progress import Progress
from tests.unit.checkpoint.file_faults import DEAD, NEVER, dies_at, full_at

WISH = RewindWished(end=70, samples=20)


class Run:
    """A rewinder of a run that stands at step 7, and what it has done."""

    def __init__(self, directory, patch, *, scan, run_id="run", files=None):
        self.records, self.done, self.progress = [], [], Progress(step=7, samples=70, skip_samples=((0, 3),))
        state = {"mishaps": "judged", "steering": "rates", "validation": None}
        saved = Progress(step=4, samples=40, skip_samples=((5, 9),))
        patch.setattr(rewinding, "scan_checkpoints", scan)
        held, self.opened = {"progress": asdict(saved), **state}, []

        def opened(path, verify):
            self.opened.append(path)
            return SimpleNamespace(run_id=run_id, state=held)

        patch.setattr(rewinding, "CheckpointReader", opened)
        patch.setattr(rewinding, "take_up", lambda checkpoint, engine, **of: saved)
        self.rewind = rewinding.Rewinder(
            "engine",
            SimpleNamespace(go_back=self.done.append, rewinds=1),
            SimpleNamespace(go_back=lambda state, first_step: self.done.append((state, first_step))),
            output=directory,
            directory=directory,
            run_id="run",
            groups=None,
            ranks=SingleProcess(),
            progress=self.progress,
            forget=lambda step, validation: self.done.append(("forgotten after", step)),
            record=self.records.append,
            files=files,
        )


def finding(directory, *rejected, newest=True):
    path = directory / "step_00000004" if newest else None
    return lambda where, hashes: Scan(path, tuple(Rejected(directory / name, "is cut") for name in rejected))


def test_it_stands_where_the_checkpoint_does_without_the_samples_since(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, scan=finding(tmp_path))
    assert run.rewind(WISH)
    assert (run.progress.step, run.progress.samples) == (4, 40)
    assert run.progress.skip_samples == ((0, 3), (5, 9), (50, 70))
    assert run.done == ["judged", ("rates", 4), ("forgotten after", 4)]
    (record,) = run.records
    assert (record["kind"], record["step"], record["from_step"], record["ranges"]) == ("rewind", 4, 7, [[50, 70]])


def test_a_rank_opens_its_checkpoint_once(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, scan=finding(tmp_path))
    assert run.rewind(WISH)
    assert run.opened == [tmp_path / "step_00000004"]


def test_only_samples_behind_the_checkpoint_are_left_out(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, scan=finding(tmp_path))
    assert run.rewind(RewindWished(end=70, samples=1000))
    assert run.progress.skip_samples[-1] == (40, 70)


def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, scan=finding(tmp_path, "step_00000006"))
    assert run.rewind(WISH)
    warning, rewind = run.records
    # Of the step that it goes back to: records of later ones are dropped.
    assert (warning["kind"], warning["step"]) == ("warning", 4)
    assert warning["text"] == f"passed over {tmp_path / 'step_00000006'}: is cut"
    assert rewind["kind"] == "rewind"


@pytest.mark.parametrize("other", [{"newest": False}, {"run_id": "another"}])
def test_without_a_checkpoint_of_the_run_nothing_changes_and_that_is_told(tmp_path, monkeypatch, other):
    run_id = other.pop("run_id", "run")
    run = Run(tmp_path, monkeypatch, scan=finding(tmp_path, "step_00000006", **other), run_id=run_id)
    assert not run.rewind(WISH)
    assert (run.progress.step, run.done) == (7, [])
    damaged, nothing = (record["text"] for record in run.records)
    assert damaged.startswith("passed over ")
    assert nothing.startswith(f"no checkpoint of this run in {tmp_path} to go back to")


def test_where_the_checkpoints_cannot_be_read_all_ranks_are_told(tmp_path, monkeypatch):
    def gone(where, hashes):
        raise OSError(116, "Stale file handle", str(where))

    run = Run(tmp_path, monkeypatch, scan=gone)
    with pytest.raises(CheckpointError, match=r"step 7: no way back: rank 0: .*: Stale file handle"):
        run.rewind(WISH)


DECIDED = RewindRecord(run_id="run", step=4, rewinds=2, skip_samples=[[0, 3], [5, 9], [50, 70]])


def test_what_it_decides_is_kept_before_anything_changes_until_a_checkpoint_holds_it(tmp_path, monkeypatch):
    run, seen, take_up = Run(tmp_path, monkeypatch, scan=finding(tmp_path)), [], rewinding.take_up

    def watched(checkpoint, engine, **of):
        seen.append(kept_rewind(tmp_path, run_id="run", step=4))
        return take_up(checkpoint, engine, **of)

    monkeypatch.setattr(rewinding, "take_up", watched)
    run.rewind(WISH)
    assert seen == [DECIDED]
    run.rewind.saved()
    assert kept_rewind(tmp_path, run_id="run", step=4) is None
    assert list(tmp_path.iterdir()) == []
    run.rewind.saved()  # of every checkpoint


def test_killed_at_any_operation_the_next_start_knows_the_rewind_or_nothing_of_it(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, scan=finding(tmp_path), files=(watched := dies_at(NEVER)))
    run.rewind(WISH)
    run.rewind.saved()
    names = [name for name, *_ in watched.log]
    assert names == ["open", "write", "sync", "rename", "sync_directory", "unlink"]
    for k in range(len(names)):
        output = tmp_path / str(k)
        output.mkdir()
        child = os.fork()
        if child == 0:
            doomed = Run(output, monkeypatch, scan=finding(output), files=dies_at(k))
            doomed.rewind(WISH)
            doomed.rewind.saved()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == DEAD
        assert kept_rewind(output, run_id="run", step=4) == (DECIDED if k > names.index("rename") else None)


def test_without_room_for_it_nothing_changes_and_all_ranks_are_told(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, scan=finding(tmp_path), files=full_at(1))
    with pytest.raises(CheckpointError, match="step 7: no way back: rank 0: No space left on device"):
        run.rewind(WISH)
    assert (run.progress.step, run.done, list(tmp_path.iterdir())) == (7, [], [])
