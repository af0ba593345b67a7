"""Pretrain GLM: `deepspeed pretrain_glm.py --config configs/glm_large.yaml train.steps=100`."""

from __future__ import annotations

import argparse
import os
import sys
import time

from megatron_glm.command import EXIT_USER_ERROR, run_command
from megatron_glm.errors import RankError, UserError

# The launcher ends all processes when it sees one fail: rank 0 needs a moment to say why.
_GRACE_SECONDS = 3.0


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="pretrain_glm.py",
        description="Pretrain GLM on the shards that data_tools.preprocess wrote.",
        epilog="Start it with `deepspeed` for several processes; alone it runs one process.",
    )
    parser.add_argument("--config", required=True, help="YAML file, for example configs/glm_large.yaml")
    parser.add_argument(
        "--resume",
        metavar="auto|must|never|PATH",
        help="where to start from; default: checkpoint.resume of the configuration (auto: the newest checkpoint)",
    )
    parser.add_argument("--local_rank", type=int, default=None, help=argparse.SUPPRESS)  # given by the launcher
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings that replace the file's")
    return parser


def run(args: argparse.Namespace) -> None:
    try:
        _pretrain(args)
    except UserError as error:
        if os.environ.get("RANK", "0") == "0" or isinstance(error, RankError):
            raise
        time.sleep(_GRACE_SECONDS)
        sys.exit(EXIT_USER_ERROR)


def _pretrain(args: argparse.Namespace) -> None:
    from megatron_glm.config.loading import load_config

    overrides = list(args.overrides)
    if args.resume is not None:
        overrides.append(f"checkpoint.resume={args.resume}")
    config = load_config(args.config, overrides)

    from megatron_glm.training.pretraining import pretrain

    pretrain(config)


def main() -> int:
    return run_command(build_parser(), run)


if __name__ == "__main__":
    sys.exit(main())
