"""What a save costs a process: the copy that training waits for, and the work of the thread behind it.

    python -m benchmarks.checkpoint_save --megabytes 300 --json FILE

In CPU seconds a gigabyte of what one process saves, which other load on the machine does not change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.origin import origin
from megatron_glm.command import run_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--megabytes", type=int, default=300, help="of weights and moments; default: 300")
    parser.add_argument("--json", type=Path, help="file to write the figures to")


def measure(megabytes: int) -> dict[str, float]:
    """CPU seconds a gigabyte, by what is done."""
    import torch
    from safetensors.torch import save as serialise

    from megatron_glm.checkpoint.fingerprint import fingerprint
    from megatron_glm.checkpoint.format import KINDS, Fragment
    from megatron_glm.checkpoint.snapshot import Snapshot

    torch.set_num_threads(1)
    length = megabytes * 10**6 // 4 // len(KINDS)
    fragments = [Fragment("w", kind, 0, torch.randn(length)) for kind in KINDS]
    snapshot = Snapshot()

    def seconds(work: Callable[[], object]) -> float:
        started = time.process_time()
        work()
        return round((time.process_time() - started) / (megabytes / 1000), 3)

    tensors = {fragment.kind: fragment.values for fragment in fragments}
    data = serialise(tensors)
    return {
        "first copy": seconds(lambda: snapshot.take(fragments)),
        "copy": seconds(lambda: snapshot.take(fragments)),
        "fingerprints": seconds(lambda: [fingerprint(fragment) for fragment in fragments]),
        "safetensors": seconds(lambda: serialise(tensors)),
        "sha256": seconds(lambda: hashlib.sha256(data)),
    }


def run(args: argparse.Namespace) -> None:
    found = {
        **origin("benchmarks.checkpoint_save", sys.argv[1:], ("torch", "safetensors")),
        "megabytes": args.megabytes,
        "cpu_seconds_per_gigabyte": measure(args.megabytes),
    }
    text = json.dumps(found, indent=1) + "\n"
    if args.json:
        args.json.write_text(text, encoding="utf-8")
    print(text, end="")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint_save", description=__doc__.splitlines()[0])
    add_arguments(parser)
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
