"""`glm doctor` for launchers: `deepspeed --module megatron_glm.doctor`, `torchrun -m megatron_glm.doctor`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from megatron_glm.command import run_command
from megatron_glm.doctor.command import add_arguments, run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="megatron_glm.doctor", description="Check a job's machines before it runs.")
    add_arguments(parser)
    return run_command(parser, run, argv)


if __name__ == "__main__":
    sys.exit(main())
