"""Checkpoints by processes that only share a disk and a gloo group.

The test starts this file as a program: it imports torch once and forks the ranks, which play the
scenarios one after another and write down what they saw.
"""

import errno
import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from megatron_glm.checkpoint.discovery import find_checkpoint
from megatron_glm.checkpoint.format import KINDS, Fragment
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.writing import save_checkpoint
from megatron_glm.errors import CheckpointError
from megatron_glm.files import Files
from megatron_glm.parallel.ranks import DistributedRanks

pytestmark = pytest.mark.distributed

REPOSITORY = Path(__file__).resolve().parents[2]
LENGTH = 1001


class FullFrom(Files):
    """A disk that has room for `writes` writes."""

    def __init__(self, writes: int):
        self._left = writes

    def write(self, stream, data):
        if self._left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._left -= 1
        super().write(stream, data)


class Dies(Files):
    """The process is killed when it flushes its first file."""

    def sync(self, stream):
        os._exit(9)


def values(step: int, kind: str) -> torch.Tensor:
    return torch.arange(LENGTH, dtype=torch.float32) + 10_000 * step + 1_000_000 * KINDS.index(kind)


def save(directory: Path, step: int, ranks: DistributedRanks, files: Files | None = None) -> str:
    """Save this rank's half; what came of it, in words."""
    cuts = [0, LENGTH // 3, LENGTH]
    mine = slice(cuts[ranks.rank], cuts[ranks.rank + 1])
    fragments = (Fragment("w", kind, mine.start, values(step, kind)[mine]) for kind in KINDS)
    arguments = {"run_id": "run", "step": step, "shapes": {"w": (7, 143)}, "state": {"step": step}, "ranks": ranks}
    try:
        return save_checkpoint(directory, fragments=fragments, files=files, **arguments).name
    except CheckpointError as error:
        return f"CheckpointError: {error}"
    except RuntimeError:
        return "the group is broken"


def play(rank: int, directory: Path) -> None:
    """All scenarios, seen by one rank."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{directory / 'meeting'}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=20),
    )
    ranks = DistributedRanks()
    runs = directory / "runs"
    seen = {"gathered": ranks.gather({"rank": ranks.rank, "text": "ä" * 5000 * rank})}
    ranks.barrier()
    seen["saved"] = save(runs, 1, ranks)
    start = time.monotonic()
    seen["full disk of rank 1"] = save(runs, 2, ranks, FullFrom(0) if rank == 1 else None)
    seen["full disk of rank 0, manifest"] = save(runs, 2, ranks, FullFrom(4) if rank == 0 else None)
    seen["seconds"] = time.monotonic() - start
    seen["found"] = find_checkpoint(runs).name
    seen["left"] = sorted(path.name for path in runs.iterdir())
    ranks.barrier()
    seen["saved again"] = save(runs, 2, ranks)
    if rank == 1:
        (directory / "1.json").write_text(json.dumps(seen))
    start = time.monotonic()
    seen["rank 1 dies"] = save(runs, 3, ranks, Dies() if rank == 1 else None)
    seen["seconds after death"] = time.monotonic() - start
    (directory / "0.json").write_text(json.dumps(seen))


def main(directory: Path) -> None:
    children = []
    for rank in range(2):
        child = os.fork()
        if not child:
            play(rank, directory)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """The directory of the scenarios, and what ranks 0 and 1 saw."""
    directory = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, __file__, str(directory)], env=environment, check=True, timeout=120)
    return directory, *(json.loads((directory / f"{rank}.json").read_text()) for rank in range(2))


def test_every_rank_hears_every_rank_in_order(played):
    _, first, second = played
    assert first["gathered"] == second["gathered"] == [{"rank": 0, "text": ""}, {"rank": 1, "text": "ä" * 5000}]


def test_each_rank_writes_its_own_part_and_any_range_is_read_across_them(played):
    directory, first, second = played
    assert first["saved"] == second["saved"] == "step_00000001"
    reader = CheckpointReader(directory / "runs" / "step_00000001")
    assert len(list(reader.path.glob("rank_0000[01]_000.safetensors"))) == 2
    for kind in KINDS:
        assert torch.equal(reader.read("w", kind), values(1, kind))
        assert torch.equal(reader.read("w", kind, 300, 400), values(1, kind)[300:400])


@pytest.mark.parametrize(
    ("scenario", "culprit"),
    [("full disk of rank 1", "rank 1: rank_00001_000"), ("full disk of rank 0, manifest", "rank 0: manifest.json")],
)
def test_a_full_disk_of_one_rank_fails_the_save_on_both_at_once(played, scenario, culprit):
    _, first, second = played
    assert first[scenario] == second[scenario]
    assert culprit in first[scenario]
    assert "No space left on device" in first[scenario]
    assert max(first["seconds"], second["seconds"]) < 10


def test_a_failed_save_leaves_the_older_checkpoint_and_nothing_else(played):
    _, first, second = played
    assert first["found"] == second["found"] == "step_00000001"
    assert first["left"] == second["left"] == ["step_00000001"]
    assert first["saved again"] == second["saved again"] == "step_00000002"


def test_a_rank_that_dies_in_a_save_stops_the_other_and_costs_no_checkpoint(played):
    directory, first, _ = played
    assert first["rank 1 dies"] == "the group is broken"
    assert first["seconds after death"] < 25
    assert CheckpointReader(find_checkpoint(directory / "runs")).step == 2


if __name__ == "__main__":
    main(Path(sys.argv[1]))
