"""Random kills of one training run, which must end with the parameters of an undisturbed one, bit for bit.

    python -m benchmarks.random_kills [--kills 20] [--steps 300] [--seed 0] [--json FILE]

Two processes, ZeRO 2, each with a data worker, on text that is collected here first. In each of as many equal parts of
the run as there are kills, a phase, a step and a rank are drawn, and the rank, or its data worker, is killed there by
SIGKILL (megatron_glm/training/fault_points.py). The other rank is left to find out by itself; then the run is started
again with the same command. Processes are forked from one that has imported torch, so the seconds of a start are
without that.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.origin import origin
from megatron_glm.checkpoint.discovery import find_checkpoint
from megatron_glm.training.launchers import free_port
from megatron_glm.training.reports.metrics import read_metrics

_PHASES = ("data", "worker", "forward", "backward", "optimizer", "save", "evaluation")
_SAVE_INTERVAL = 5
_EVAL_INTERVAL = 6
_RANKS = 2
_LOOK_SECONDS = 0.05
_SECONDS_WITHOUT_STEP = 300.0
_SETTINGS = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "max_positions": 64},
    "objective": {"token": 0.4, "sentence": 0.2, "document": 0.4},
    "optimizer": {"learning_rate": 3e-3},
    "schedule": {"warmup_steps": 20},
    "parallel": {"zero_stage": 2},
    "checkpoint": {"save_interval": _SAVE_INTERVAL},
}


@dataclass
class Kill:
    """One kill, and what became of it.

    Attributes:
        step: in which, or after which a save or an evaluation, it comes.
        seconds: after the beginning of the disturbed run.
        detection_seconds: until the other rank has ended; None where nothing ends, as a worker is replaced.
        lost_steps: that the next start makes again.
        recovery_seconds: from the next start until it has made them again and one more, or has ended.
    """

    phase: str
    rank: int
    step: int
    seconds: float | None = None
    detection_seconds: float | None = None
    lost_steps: int = 0
    recovery_seconds: float | None = None

    @property
    def completed(self) -> int:
        """Steps that were made before it."""
        return self.step if self.phase in ("save", "evaluation") else self.step - 1

    def fault(self) -> str:
        return f"{self.phase}:rank={self.rank}:step={self.step}:kill"


def draw_kills(kills: int, steps: int, seed: int) -> list[Kill]:
    """One in each of `kills` equal parts of the run, anywhere in it."""
    drawn, length, found = random.Random(seed), steps // kills, []
    for part in range(kills):
        phase, rank = drawn.choice(_PHASES), drawn.randrange(_RANKS)
        interval = {"save": _SAVE_INTERVAL, "evaluation": _EVAL_INTERVAL}.get(phase, 1)
        at = [step for step in range(part * length + 1, (part + 1) * length + 1) if step % interval == 0]
        found.append(Kill(phase, rank, drawn.choice(at)))
    return found


class Run:
    """A run that is started as often as it takes."""

    def __init__(self, config: Path, output: Path, steps: int):
        self.output = output
        self._arguments = (str(config), f"train.output={output}", f"train.steps={steps}")
        self._log = output.with_suffix(".log")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch", "deepspeed", "megatron_glm.training.pretraining"])
        self._began = time.time()

    def start(self, kills: Sequence[Kill], recovering: Kill | None) -> None:
        """Start all ranks, with the kills of this start, and wait for their ends."""
        self._log.write_text("")
        faults, port = ",".join(kill.fault() for kill in kills), free_port()
        place = (_RANKS, port, str(self._log), faults)
        processes = [
            self._context.Process(target=_rank, args=(rank, *place, *self._arguments)) for rank in range(_RANKS)
        ]
        started = moved = time.time()
        step = self._step()
        for process in processes:
            process.start()
        while any(process.is_alive() for process in processes):
            if self._step() != step:
                step, moved = self._step(), time.time()
            if time.time() - moved > _SECONDS_WITHOUT_STEP:
                for process in processes:
                    process.kill()
                raise SystemExit(f"no step in {_SECONDS_WITHOUT_STEP:g} s:\n{self._log.read_text()}")
            if recovering and recovering.recovery_seconds is None and self._step() > recovering.completed:
                recovering.recovery_seconds = time.time() - started
            time.sleep(_LOOK_SECONDS)
        ended, codes = time.time(), [process.exitcode for process in processes]
        if recovering and recovering.recovery_seconds is None:
            recovering.recovery_seconds = ended - started
        self._note(kills, ended, codes)

    def _note(self, kills: Sequence[Kill], ended: float, codes: list[int]) -> None:
        times = re.findall(r"GLM_FAULT: kill in (\w+), rank (\d+), step (\d+), ([\d.]+)", self._log.read_text())
        if [(kill.phase, kill.rank, kill.step) for kill in kills] != [(p, int(r), int(s)) for p, r, s, _ in times]:
            raise SystemExit(f"expected {kills}, ended with {codes}:\n{self._log.read_text()}")
        for kill, (*_, when) in zip(kills, times, strict=True):
            kill.seconds = float(when) - self._began
        fatal = [kill for kill in kills if kill.phase != "worker"]
        if bool(fatal) == (codes == [0] * _RANKS):
            raise SystemExit(f"{kills} ended with {codes}:\n{self._log.read_text()}")
        for kill in fatal:
            newest = find_checkpoint(self.output / "checkpoints")
            kill.lost_steps = kill.completed - (int(newest.name.removeprefix("step_")) if newest else 0)
            kill.detection_seconds = ended - self._began - kill.seconds

    def _step(self) -> int:
        file = self.output / "metrics.jsonl"
        return max((record["step"] for record in read_metrics(file)), default=0) if file.exists() else 0


def _rank(rank: int, size: int, port: int, log: str, faults: str, config: str, *overrides: str) -> None:
    """One process of a start."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "GLM_FAULT": faults}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    from megatron_glm.config.loading import load_config
    from megatron_glm.training.pretraining import pretrain

    pretrain(load_config(config, overrides))


def disturb(run: Run, kills: Sequence[Kill]) -> int:
    """Start a run until all kills have come and it has ended well; how often it was started."""
    waiting, starts, last = list(kills), 0, None
    while True:
        now = []
        while waiting and (not now or now[-1].phase == "worker"):
            now.append(waiting.pop(0))
        run.start(now, last)
        starts += 1
        print(f"start {starts}: {', '.join(kill.fault() for kill in now) or 'to the end'}", flush=True)
        fatal = [kill for kill in now if kill.phase != "worker"]
        last = fatal[0] if fatal else None
        if not fatal and not waiting:
            return starts


def prepare(place: Path) -> Path:
    """Text, tokenizer, shards and a configuration; returns the configuration's path."""
    text, tokenizer, data = place / "text.jsonl", place / "tokenizer", place / "data"
    for module, *arguments in (
        ("sample_corpus", "--output", text, "--min-megabytes", 0.3, "--packages", "numpy"),
        ("train_tokenizer", "--input", text, "--vocab-size", 600, "--output", tokenizer),
        ("preprocess", "--input", text, "--tokenizer", tokenizer, "--output", data, "--held-out", 0.1, "--workers", 1),
    ):
        command = [sys.executable, "-m", f"data_tools.{module}", *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    train = {
        "output": str(place / "run"),
        "steps": 1,
        "global_batch_size": 8,
        "micro_batch_size": 2,
        "log_interval": 1,
        "eval_interval": _EVAL_INTERVAL,
        "eval_samples": 4,
        "threads": 1,
    }
    data_settings = {"sources": [{"path": str(data)}], "window": 48, "workers": 1}
    tree = {**_SETTINGS, "tokenizer": {"path": str(tokenizer)}, "data": data_settings, "train": train}
    config = place / "config.yaml"
    config.write_text(json.dumps(tree), encoding="utf-8")  # JSON is YAML too
    return config


def parameter_hashes(output: Path) -> dict[str, str]:
    """Of the newest checkpoint of a run."""
    from megatron_glm.checkpoint.reading import CheckpointReader

    return CheckpointReader(find_checkpoint(output / "checkpoints")).parameter_hashes()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where the figures are written")
    args = parser.parse_args(argv)
    about = origin("benchmarks.random_kills", sys.argv[1:] if argv is None else argv, ("torch", "deepspeed"))
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        config = prepare(place)
        undisturbed = Run(config, place / "undisturbed", args.steps)
        undisturbed.start([], None)
        kills = draw_kills(args.kills, args.steps, args.seed)
        disturbed = Run(config, place / "disturbed", args.steps)
        starts = disturb(disturbed, kills)
        equal = parameter_hashes(disturbed.output) == parameter_hashes(undisturbed.output)
    report = {
        **about,
        "steps": args.steps,
        "starts": starts,
        "parameters equal, bit for bit": equal,
        "kills": [asdict(kill) for kill in kills],
    }
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{len(kills)} kills, {starts} starts, parameters {'equal bit for bit' if equal else 'DIFFER'}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
