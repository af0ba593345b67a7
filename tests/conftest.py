"""What all tests share: where the golden results and vocabularies lie."""

import os
from pathlib import Path

import pytest

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


def pytest_terminal_summary(terminalreporter):
    """Say how many comparisons with golden data ran: a green run that skipped them all proves less."""

    def golden(outcome: str) -> int:
        reports = terminalreporter.stats.get(outcome, [])
        return sum("golden" in getattr(report, "keywords", {}) for report in reports)

    ran = golden("passed") + golden("failed")
    terminalreporter.write_line(f"golden tests: {ran} ran, {golden('skipped')} skipped")
