"""The script for a GPU ends in eight minutes, whatever its parts do."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_limits_of_its_parts_add_up_to_what_the_documentation_says():
    script = (REPOSITORY / "benchmarks/gpu_check.sh").read_text(encoding="utf-8")
    found = re.findall(r"(?:^part tests |\b[a-z_]+:)(\d+)\b", script, re.MULTILINE)
    limits = [int(seconds) for seconds in found]
    assert len(limits) == 4
    assert f"{sum(limits)} seconds in all" in (REPOSITORY / "docs/kernels.md").read_text(encoding="utf-8")
    assert sum(limits) <= 8 * 60 - 30  # for what begins and ends it
