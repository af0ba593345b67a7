"""What all tests share: where the golden results and vocabularies lie."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.slicing import SlicePlugin

# Before anything imports triton, which reads it then. Tests on a GPU set it to 0.
os.environ.setdefault("TRITON_INTERPRET", "1")

# A busy machine is no failure: how long an example may take is not what the tests are about.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared():
    """A file of the golden data: `GLM_SHARED`, else `../shared`; the test is skipped where it is absent."""
    root = Path(os.environ.get("GLM_SHARED") or REPOSITORY.parent / "shared")

    def find(relative: str) -> Path:
        path = root / relative
        if not path.exists():
            pytest.skip(f"no golden data at {path} (set GLM_SHARED)")
        return path

    return find


@pytest.fixture(scope="session")
def compiled_programs(tmp_path_factory):
    """Where torch.compile keeps what it has compiled in this session, which takes seconds each."""
    return tmp_path_factory.mktemp("torchinductor")


def pytest_addoption(parser):
    parser.addoption("--slice", metavar="HASH", help="of the slow tests one slice only: which one, this hash tells")
    parser.addoption("--slice-minutes", type=float, help="start no test of the slice after so many")


def pytest_configure(config):
    if commit := config.getoption("slice"):
        config.pluginmanager.register(SlicePlugin(commit, config.getoption("slice_minutes")))


def pytest_terminal_summary(terminalreporter):
    """Say how many comparisons with golden data ran: a green run that skipped them all proves less."""

    def golden(outcome: str) -> int:
        reports = terminalreporter.stats.get(outcome, [])
        return sum("golden" in getattr(report, "keywords", {}) for report in reports)

    ran = golden("passed") + golden("failed")
    terminalreporter.write_line(f"golden tests: {ran} ran, {golden('skipped')} skipped")
