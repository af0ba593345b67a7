"""Small checkpoints, and many ranks in one process."""

import threading
from pathlib import Path

import pytest
import torch

from megatron_glm.checkpoint.format import KINDS, Fragment
from megatron_glm.checkpoint.writing import save_checkpoint
from megatron_glm.files import Files
from megatron_glm.parallel.ranks import SingleProcess

SHAPES = {"a.weight": (5, 3), "b.bias": (7,), "scalar": (), "empty": (0, 4)}


class NoSync(Files):
    """For tests of content: waiting for the disk tells them nothing."""

    def sync(self, stream):
        stream.flush()

    def sync_directory(self, path: Path) -> None:
        pass


class Thread:
    """One of several ranks that are threads of one process."""

    def __init__(self, rank: int, size: int, board: list, meeting: threading.Barrier):
        self.rank, self.size, self._board, self._meeting = rank, size, board, meeting

    def gather(self, value):
        self._board[self.rank] = value
        self._meeting.wait()
        values = list(self._board)
        self._meeting.wait()
        return values

    def barrier(self):
        self.gather(None)


def run_threads(size: int, work):
    """`work(ranks)` on each of `size` ranks; their results, or the exceptions they raised, by rank."""
    board, meeting, results = [None] * size, threading.Barrier(size, timeout=10), [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(Thread(rank, size, board, meeting))
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def make_values(seed: int, shapes=SHAPES):
    """Flat fp32 values of every kind of every parameter."""
    generator = torch.Generator().manual_seed(seed)
    return {
        (name, kind): torch.randn(torch.Size(shape).numel(), generator=generator)
        for name, shape in shapes.items()
        for kind in KINDS
    }


def whole_fragments(values):
    return [Fragment(name, kind, 0, tensor) for (name, kind), tensor in values.items()]


class Checkpoints:
    """What the tests of this directory share."""

    shapes = SHAPES
    NoSync = NoSync
    run_threads = staticmethod(run_threads)
    make_values = staticmethod(make_values)
    whole_fragments = staticmethod(whole_fragments)

    @staticmethod
    def save(directory: Path, step: int, seed: int | None = None, **changes) -> Path:
        """Save a small checkpoint whose values come from `seed` (default: the step)."""
        values = make_values(step if seed is None else seed)
        arguments = {
            "run_id": "run",
            "step": step,
            "fragments": whole_fragments(values),
            "shapes": SHAPES,
            "state": {"samples": 8 * step, "seed": step if seed is None else seed},
            "ranks": SingleProcess(),
            "attachments": {"tokenizer/tokenizer.model": b"pieces"},
            "files": NoSync(),
        }
        return save_checkpoint(directory, **(arguments | changes))

    @staticmethod
    def holds(reader, seed: int) -> bool:
        """Whether every value is the one that `save` wrote for `seed`."""
        return reader.state["seed"] == seed and all(
            torch.equal(reader.read(name, kind), tensor) for (name, kind), tensor in make_values(seed).items()
        )


@pytest.fixture(scope="session")
def checkpoints():
    return Checkpoints
