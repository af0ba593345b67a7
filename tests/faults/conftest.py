"""A toy corpus, and runs on it that end as they should or are disturbed."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.checkpoint.reading import CheckpointReader
from tests.distributed.ranks import run_ranks
from tests.endtoend.corpus import make_corpus
from tests.faults import cases

STEPS = 12
OPTIONS = {
    "steps": STEPS,
    "eval_interval": 4,
    "eval_samples": 8,
    "global_batch_size": 8,
    "micro_batch_size": 2,
    "log_interval": 1,
}


@dataclass(frozen=True)
class Runs:
    """Starts runs of two processes with one configuration."""

    config: Path

    def train(self, output: Path, faults: str = "", overrides: Sequence[str] = (), *, size: int = 2) -> None:
        """A start: raises AssertionError where a rank ends with another code than 0."""
        settings = (f"train.output={output}", "checkpoint.save_interval=4", *overrides)
        run_ranks(size, cases.train, str(self.config), faults, *settings)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    return Runs(make_corpus(tmp_path_factory.mktemp("corpus"), **OPTIONS).config)


@pytest.fixture(scope="session")
def undisturbed(runs, tmp_path_factory):
    """The parameters that every disturbed run must end with, by name their hash."""
    output = tmp_path_factory.mktemp("undisturbed") / "run"
    runs.train(output)
    return hashes(output)


def newest(output: Path) -> CheckpointReader:
    return CheckpointReader(scan_checkpoints(output / "checkpoints", hashes=True).newest)


def hashes(output: Path) -> dict[str, str]:
    assert newest(output).step == STEPS
    return newest(output).parameter_hashes()


def records(output: Path, kind: str) -> list[dict]:
    found = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [record for record in found if record["kind"] == kind]
