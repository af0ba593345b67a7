"""Pretrain GLM: `deepspeed pretrain_glm.py --config configs/glm_large.yaml train.steps=100`."""

from __future__ import annotations

import argparse
import sys

from megatron_glm.command import run_command
from megatron_glm.training.launchers import told_once


def build_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="pretrain_glm.py",
        description="Pretrain GLM on the shards that data_tools.preprocess wrote.",
        epilog="Start it with `deepspeed`, torchrun, mpiexec or srun for several processes; alone it runs one.",
    )
    parser.add_argument("--config", required=True, help="YAML file, for example configs/glm_large.yaml")
    parser.add_argument(
        "--resume",
        metavar="auto|must|never|PATH",
        help="where to start from; default: checkpoint.resume of the configuration (auto: the newest checkpoint)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="end where the newest checkpoint is damaged, instead of starting from the one before (checkpoint.strict)",
    )
    parser.add_argument("--local_rank", type=int, default=None, help=argparse.SUPPRESS)  # given by the launcher
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings that replace the file's")
    return parser


def run(args: argparse.Namespace) -> None:
    with told_once():
        _pretrain(args)


def _pretrain(args: argparse.Namespace) -> None:
    from megatron_glm.config.loading import load_config

    overrides = list(args.overrides)
    if args.resume is not None:
        overrides.append(f"checkpoint.resume={args.resume}")
    if args.strict:
        overrides.append("checkpoint.strict=true")
    config = load_config(args.config, overrides)

    from megatron_glm.training.pretraining import pretrain

    pretrain(config)


def main() -> int:
    return run_command(build_parser(), run)


if __name__ == "__main__":
    sys.exit(main())
