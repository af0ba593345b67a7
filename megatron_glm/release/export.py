"""`glm export`: make a release from a checkpoint, and verify it."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

from megatron_glm.errors import UserError
from megatron_glm.extras import install_command

DTYPES = ("fp32", "bf16", "fp16")
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        required=True,
        type=Path,
        metavar="DIR",
        help="a checkpoint (step_…), a directory of such or the output of a run; the newest whole one is taken",
    )
    parser.add_argument(
        "--output", required=True, type=Path, metavar="DIR", help="the release; must not exist or be empty"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="of the weights (default: fp32)")
    parser.add_argument(
        "--max-shard-size", default="5GB", metavar="SIZE", help="weights beyond it are split into files (default: 5GB)"
    )
    parser.add_argument(
        "--no-verify",
        action="store_true",
        help="do not load the release with transformers and compare its logits",
    )


def run(args: argparse.Namespace) -> None:
    max_shard_bytes = _bytes(args.max_shard_size)
    if not args.no_verify and find_spec("transformers") is None:
        raise UserError(
            "the release is verified with transformers, which is not installed; "
            f"run {install_command('release')}, or give --no-verify"
        )
    from megatron_glm.release.publishing import publish_release

    publish_release(
        args.checkpoint,
        args.output,
        dtype=args.dtype,
        max_shard_bytes=max_shard_bytes,
        verify=not args.no_verify,
        say=print,
    )


def _bytes(size: str) -> int:
    number, unit = size[:-2], size[-2:].upper()
    if unit not in _UNITS or not number.isdecimal() or not int(number):
        raise UserError(f"--max-shard-size: {size!r} is not a size; write it as 500MB or 5GB")
    return int(number) * _UNITS[unit]
