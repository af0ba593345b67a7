"""`glm`: one command whose parts are loaded when they are named.

`glm --help` has to answer at once, so the table below is all that it reads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from megatron_glm import __version__
from megatron_glm.command import run_command

# name: module with add_arguments(parser) and run(args), one line for the help
COMMANDS = {
    "show-sample": ("megatron_glm.data.show_sample", "print one training sample so that a person can read it"),
    "inspect-checkpoint": ("megatron_glm.checkpoint.inspecting", "tell what a checkpoint is: when, how far, how good"),
    "verify-checkpoint": ("megatron_glm.checkpoint.verifying", "read a checkpoint and see that it is what was saved"),
    "export": ("megatron_glm.release.export", "make a release from a checkpoint, and verify it"),
    "doctor": ("megatron_glm.doctor.command", "check whether this machine, or a job on it, is fit to train"),
    "generate": ("megatron_glm.generation.generate", "fill the blanks of a text with a released model"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run `glm` with these arguments (default: those of the process); returns the exit code."""
    args = _parser().parse_args(argv)
    module = import_module(COMMANDS[args.command][0])
    parser = argparse.ArgumentParser(prog=f"glm {args.command}", description=_sentence(COMMANDS[args.command][1]))
    module.add_arguments(parser)
    return run_command(parser, module.run, args.arguments)


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS)) + 2
    lines = [f"  {name:<{width}}{summary}" for name, (_, summary) in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="glm",
        description="GLM: look at samples and checkpoints, check a machine, release a model, fill blanks with it.",
        epilog="\n".join(["commands:", *lines, "", "`glm COMMAND --help` explains one of them."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"megatron_glm {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="what to do, see below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its options")
    return parser


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


if __name__ == "__main__":
    sys.exit(main())
