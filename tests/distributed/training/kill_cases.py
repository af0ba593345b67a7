"""Saves of real engines that are killed at a file operation, in forks of the ranks.

A fork has the engine's values but none of torch's threads, so the forks of the ranks talk through a socket.

    python -m tests.distributed.training.kill_cases FILE    the figures of 40 kills of each engine, as JSON
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.origin import origin
from megatron_glm.checkpoint.discovery import published, scan_checkpoints
from megatron_glm.checkpoint.manifest import verify_checkpoint
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.config import schema
from megatron_glm.config.schema import Config
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import DistributedRanks
from megatron_glm.training.checkpoints import saving
from megatron_glm.training.engines.load_proof import prove_loaded
from megatron_glm.training.progress import Progress
from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases, layouts
from tests.unit.checkpoint.file_faults import NEVER, WatchedFiles

POINTS = 40
LAYOUTS: dict[str, dict[str, int]] = {"ZeroEngine": {"stage": 2}, "PipelineEngine": {"stage": 1, "pipeline": 2}}


class SocketRanks:
    """Two ranks that talk through a socket; the death of one is an error of the other."""

    size = 2

    def __init__(self, rank: int, path: Path):
        self.rank = rank
        connection = (self._accept if rank == 0 else self._connect)(path)
        # Two streams: one for both would drop what it has read ahead when it writes.
        self._incoming, self._outgoing = connection.makefile("r"), connection.makefile("w")

    def gather(self, value: Any) -> list[Any]:
        self._outgoing.write(json.dumps(value) + "\n")
        self._outgoing.flush()
        if not (line := self._incoming.readline()):
            raise RuntimeError("the other rank has died")
        values = [json.loads(json.dumps(value)), json.loads(line)]
        return values if self.rank == 0 else values[::-1]

    def barrier(self) -> None:
        self.gather(None)

    @staticmethod
    def _accept(path: Path) -> socket.socket:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            listener.settimeout(20)
            return listener.accept()[0]

    @staticmethod
    def _connect(path: Path) -> socket.socket:
        deadline = time.monotonic() + 20
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(str(path))
                return connection
            except OSError:  # the other one is not there yet
                connection.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.002)


def killed_at(k: int) -> WatchedFiles:
    """The process is killed before operation k, or in the middle of it, if it is a write."""

    def before(files, number, name, arguments):
        if number == k:
            if name == "write":
                stream, data = arguments
                stream.write(data[: len(data) // 2])
                stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    return WatchedFiles(before)


def save_in_a_fork(directory: Path, engine: cases.Engine, rank: int, k: int, talk: Path) -> tuple[int, int]:
    """Save step 2 in the background as a run does, in a fork that is killed at operation k: how it ended, its log."""
    log = directory.with_name(f"log{rank}")
    child = os.fork()
    if not child:
        code = 1
        try:
            files = killed_at(k)
            saver = _saver(directory, engine, rank, talk, files)
            with saver:
                saver.save(Progress(step=2))
            log.write_text(str(len(files.log)))
            code = 0
        except (RuntimeError, ConnectionError):  # the other rank has died
            code = 3
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, int(log.read_text()) if code == 0 else 0


def _saver(directory: Path, engine: cases.Engine, rank: int, talk: Path, files: WatchedFiles) -> saving.Saver:
    ranks, writers = (SocketRanks(rank, talk.with_suffix(suffix)) for suffix in (".main", ".writers"))
    saving._group_of_writers = lambda ranks: writers  # torch's groups have not survived the fork
    return saving.Saver(
        schema.Checkpoint(keep_last=2),
        engine,
        directory=directory,
        run_id="test",
        state=lambda progress: {"progress": asdict(progress)},
        attachments={"tokenizer/model": b"pieces"},
        ranks=ranks,
        report=lambda record: None,
        files=files,
    )


def kill_and_load(points: int, home: str, settings: Config, engine: cases.Engine, groups: Groups) -> dict[str, Any]:
    """Kill so many saves of step 2 at random operations of random ranks, and load what each has left."""
    ranks, talks = DistributedRanks(), iter(range(10**6))
    root = Path(home) / type(engine).__name__
    template, reference, directory = root / "template", root / "reference", root / "run"
    for step in (0, 1, 2):
        cases.one_step(settings, engine, groups, step)
        place = reference if step == 2 else template
        saver = saving.Saver(
            schema.Checkpoint(background=False),
            engine,
            directory=place,
            run_id="test",
            state=lambda progress: {"progress": asdict(progress)},
            attachments={},
            ranks=ranks,
            report=lambda record: None,
        )
        saver.save(Progress(step=step))
    hashes = {
        step: CheckpointReader(place / f"step_{step:08}").parameter_hashes()
        for step, place in ((1, template), (2, reference))
    }

    def attempt(k: int, victim: int) -> tuple[list[tuple[int, int]], int]:
        if ranks.rank == 0:
            shutil.rmtree(directory, ignore_errors=True)
            shutil.copytree(template, directory)
        engine.load(CheckpointReader(reference / "step_00000002"), step=2)
        ranks.barrier()
        mine = k if ranks.rank == victim else NEVER
        ends = ranks.gather(save_in_a_fork(directory, engine, ranks.rank, mine, root / f"{next(talks)}"))
        scan = scan_checkpoints(directory, hashes=True)
        assert scan.newest is not None
        assert scan.rejected == ()
        for path in published(directory).values():
            verify_checkpoint(path)
        checkpoint = CheckpointReader(scan.newest)
        engine.load(checkpoint, step=checkpoint.step)
        prove_loaded(engine, checkpoint, step=checkpoint.step, groups=groups, ranks=ranks)
        assert checkpoint.parameter_hashes() == hashes[checkpoint.step]
        return ends, checkpoint.step

    ends, step = attempt(NEVER, 0)
    assert [code for code, _ in ends] == [0, 0], ends
    assert step == 2
    lengths = [length for _, length in ends]
    draw = random.Random(11)
    found: Counter[str] = Counter()
    for _ in range(points):
        victim = draw.choice([0, 0, 0, 1])  # rank 0 has most of the operations
        ends, step = attempt(draw.randrange(lengths[victim]), victim)
        assert ends[victim][0] == -signal.SIGKILL
        assert ends[1 - victim][0] in (0, 3)
        found[f"rank {victim} killed, step {step} loaded"] += 1
    return {
        "operations": lengths,
        "kills": points,
        "whole": sum(found.values()),
        "outcomes": dict(sorted(found.items())),
    }


def results(points: int, home: str, engines: tuple[str, ...] = tuple(LAYOUTS)) -> dict[str, dict[str, Any]]:
    """What came of the kills, by engine."""
    configs = [cases.config(micro=2, **LAYOUTS[name]) for name in engines]
    found = run_ranks(2, layouts.in_turn, partial(kill_and_load, points, home), configs, timeout=500)[0]
    return dict(zip(engines, found, strict=True))


if __name__ == "__main__":
    told = origin("tests.distributed.training.kill_cases", sys.argv[1:], ("torch", "deepspeed", "safetensors"))
    with tempfile.TemporaryDirectory() as place:
        told["engines"] = results(POINTS, place)
    Path(sys.argv[1]).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
