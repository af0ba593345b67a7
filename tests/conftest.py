"""What all tests share: where the golden results and vocabularies lie."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.slicing import slice_of

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


def pytest_addoption(parser):
    parser.addoption("--slice", metavar="HASH", help="of the slow tests one slice only: which one, this hash tells")


@pytest.hookimpl(trylast=True)  # -m and -k have made their choice
def pytest_collection_modifyitems(config, items):
    if commit := config.getoption("slice"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        left_out = set(slow) - set(slice_of(slow, commit))
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter):
    """Say how many comparisons with golden data ran: a green run that skipped them all proves less."""

    def golden(outcome: str) -> int:
        reports = terminalreporter.stats.get(outcome, [])
        return sum("golden" in getattr(report, "keywords", {}) for report in reports)

    ran = golden("passed") + golden("failed")
    terminalreporter.write_line(f"golden tests: {ran} ran, {golden('skipped')} skipped")
