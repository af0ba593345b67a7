"""`glm doctor`: is this machine, or this job, fit to train?"""

from __future__ import annotations

import argparse
import contextlib
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from megatron_glm.command import EXIT_USER_ERROR
from megatron_glm.errors import ConfigError
from megatron_glm.training.launchers import told_once

if TYPE_CHECKING:
    from megatron_glm.doctor.finding import Finding

_TIMEOUT = timedelta(minutes=2)  # a link that does not answer by then is the finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", help="YAML file of a run: its layout, batch, data and disk are checked too")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--local_rank", type=int, default=None, help=argparse.SUPPRESS)  # given by the launcher
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings that replace the file's")


def run(args: argparse.Namespace) -> int:
    with told_once() as variables:
        if args.overrides and not args.config:
            raise ConfigError(f"{args.overrides[0]!r} is for a configuration; name that file with --config")
        leads, size = variables.get("RANK", "0") == "0", int(variables.get("WORLD_SIZE", "1"))
        findings, missing = _packages()
        if missing:  # nothing below can be imported
            if leads:
                _print(findings, args, processes=size)
            return EXIT_USER_ERROR
        with contextlib.redirect_stdout(sys.stderr):  # DeepSpeed logs to stdout, which may be to hold JSON
            import deepspeed  # noqa: F401
        return _examine(args, findings)


def _packages() -> tuple[list[Finding], bool]:
    from megatron_glm.doctor.finding import findings_of
    from megatron_glm.doctor.packages import REQUIREMENTS, check_packages, installed

    missing = any(installed(text.partition(">")[0]) is None for text in REQUIREMENTS)
    return list(findings_of("packages", check_packages)), missing


def _examine(args: argparse.Namespace, findings: list[Finding]) -> int:
    from megatron_glm.config.loading import load_config
    from megatron_glm.doctor.examination import examine
    from megatron_glm.training.processes import distributed_processes

    config = load_config(args.config, args.overrides) if args.config else None
    with distributed_processes(threads=config and config.train.threads, timeout=_TIMEOUT) as ranks:
        findings = examine(config, ranks, findings)
        if ranks.rank == 0:
            _print(findings, args, processes=ranks.size)
        ranks.barrier()  # a launcher ends all processes when one fails
    return EXIT_USER_ERROR if any(finding.status == "fail" for finding in findings) else 0


def _print(findings: list[Finding], args: argparse.Namespace, *, processes: int) -> None:
    from rich.console import Console

    from megatron_glm.doctor.report import as_json, as_lines, show_table

    console = Console()
    if args.json:
        print(as_json(findings, processes=processes), flush=True)
    elif console.is_terminal:
        show_table(findings, console)
    else:
        print(as_lines(findings), flush=True)
