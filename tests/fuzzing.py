"""How the fuzz tests run: how many examples, from which seed, and within which time and memory.

`FUZZ_SEED=7 python -m pytest -m "" tests/unit -k fuzz` looks elsewhere; equal seeds give equal examples, so what
one run has found the next one finds again.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings

SEED = int(os.environ.get("FUZZ_SEED", "6"))
SHORT, LONG = 60, 2000
CPU_SECONDS = 20  # of one example: a machine's other work does not count, a loop without end does
MEMORY = 1 << 31  # bytes that an example may ask for beyond what the process has

# Decorates a test that takes `examples`: few of them in `make test`, all in `make test-all`.
fuzz_test = pytest.mark.parametrize("examples", [SHORT, pytest.param(LONG, marks=pytest.mark.slow)])


def fuzz(examples: int) -> Callable[[Callable], Callable]:
    """Decorates a property: so many examples, the same ones each time."""

    def decorate(test: Callable) -> Callable:
        chosen = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            print_blob=True,
            phases=(Phase.explicit, Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        return seed(SEED)(chosen(test))

    return decorate


@contextmanager
def bounded() -> Iterator[None]:
    """The block ends within CPU_SECONDS of this process's time and MEMORY bytes, or fails."""

    def too_long(number: int, frame: object) -> None:
        raise AssertionError(f"not done after {CPU_SECONDS} seconds of CPU time")

    before = signal.signal(signal.SIGPROF, too_long)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limits[1]))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, limits)


@contextmanager
def replaced(directory: Path, contents: Mapping[str, bytes]) -> Iterator[Path]:
    """Files of a directory have other contents in the block; a copy of all for each example would be dearer."""
    before = {name: (directory / name).read_bytes() for name in contents}
    try:
        for name, content in contents.items():
            (directory / name).write_bytes(content)
        yield directory
    finally:
        for name, content in before.items():
            (directory / name).write_bytes(content)
