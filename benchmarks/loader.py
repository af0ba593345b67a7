"""Steps a second of the loader: in line, from a thread, from worker processes.

    python -m benchmarks.loader [--steps 40] [--json FILE]

A replica's share of GLM-large's step: windows of 512, 1024 samples over 8 replicas, so 128 a step, in micro-batches
of 16. `taken at once` is the rate when the consumer does nothing else. `wait` is how long a consumer waits for a
step when it computes for --busy seconds between two, as a training step does; in line that is all the work of the
data, and its share of such a step is what a run would lose. The consumer sleeps, so it keeps no core from the
loader, as a GPU does not. `slowdown` is how much longer Python code of the consumer takes while steps are prepared,
on a machine with cores to spare: a thread shares the interpreter with the code that starts the GPU's kernels, a
process does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.origin import origin
from benchmarks.process_tree import proportional_bytes
from benchmarks.synthetic_run import with_data, write_run
from megatron_glm.config.schema import Config
from megatron_glm.data.batch import collate
from megatron_glm.data.dataset import SampleDataset
from megatron_glm.data.loader import Loader, StepLoader
from megatron_glm.data.process_loader import ProcessLoader
from megatron_glm.tokenizer.loading import load_tokenizer

GLOBAL_BATCH, MICRO_BATCH, REPLICAS = 1024, 16, 8
WAYS = {
    "in line": {"prefetch": 0},
    "a thread": {"prefetch": 2},
    "1 worker": {"workers": 1, "prefetch": 2},
    "2 workers": {"workers": 2, "prefetch": 4},
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="of each measurement")
    parser.add_argument("--tokens", type=int, default=4_000_000, help="of the corpus")
    parser.add_argument("--busy", type=float, default=0.2, help="seconds of a consumer's step")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args(argv)
    rows = []
    print(
        f"{'way':12} {'first step':>12} {'taken at once':>16} {'wait':>10} {'slowdown':>10} {'memory of a worker':>20}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        sizes = {"global_batch_size": GLOBAL_BATCH, "micro_batch_size": MICRO_BATCH}
        config = write_run(Path(scratch), tokens=args.tokens, mean=160, **sizes)
        for way, settings in WAYS.items():
            row = {"way": way, **measure(with_data(config, **settings), args.steps, args.busy)}
            rows.append(row)
            print(
                f"{way:12} {row['first step, s']:10.2f} s {row['taken at once, steps/s']:10.1f} /s "
                f"{1000 * row['wait, s']:10.1f} ms {row['slowdown']:8.2f}x {row['memory of a worker, MB']:13.0f} MB"
            )
    if args.json:
        source = origin("benchmarks.loader", sys.argv[1:] if argv is None else argv, ["numpy", "torch", "tokenizers"])
        figures = {"samples a step": GLOBAL_BATCH // REPLICAS, "busy, s": args.busy, "results": rows}
        args.json.write_text(json.dumps({**source, **figures}, indent=2) + "\n", encoding="utf-8")


def measure(config: Config, steps: int, busy: float) -> dict[str, float]:
    """The figures of one way: seconds, steps a second, megabytes."""
    started = time.perf_counter()
    with open_loader(config) as loader:
        next(loader)
        first = time.perf_counter() - started
        started = time.perf_counter()
        for _ in range(steps):
            next(loader)
        rate = steps / (time.perf_counter() - started)
        waits = []
        for _ in range(steps):
            time.sleep(busy)
            before = loader.wait_seconds
            next(loader)
            waits.append(loader.wait_seconds - before)
        alone = median(timed(python_work) for _ in range(steps))
        beside = []
        for _ in range(steps):
            next(loader)
            beside.append(timed(python_work))
        memory = max(map(proportional_bytes, loader.processes)) if config.data.workers else 0
    return {
        "first step, s": round(first, 3),
        "taken at once, steps/s": round(rate, 2),
        "wait, s": round(median(waits), 5),
        "slowdown": round(median(beside) / alone, 2),
        "memory of a worker, MB": round(memory / 1e6, 1),
    }


def python_work() -> None:
    """Some 30 ms of Python code."""
    sum(i * i for i in range(400_000))


def timed(function: Callable[[], None]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def open_loader(config: Config) -> Loader:
    """The loader that a run with this configuration has, for the first of its replicas."""
    tokenizer = load_tokenizer(config.tokenizer.path)
    options, place = {"pad_id": tokenizer.special.eos}, {"consumed_samples": 0, "dp_rank": 0, "dp_size": REPLICAS}
    if config.data.workers:
        return ProcessLoader(config, options, **place)
    return StepLoader(
        SampleDataset.open(config, tokenizer),
        partial(collate, **options),
        global_batch_size=GLOBAL_BATCH,
        micro_batch_size=MICRO_BATCH,
        prefetch=config.data.prefetch,
        **place,
    )


if __name__ == "__main__":
    main()
