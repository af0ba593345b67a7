"""The same findings as lines, as a table and as JSON."""

import io
import json

from rich.console import Console

from megatron_glm.doctor.finding import Finding
from megatron_glm.doctor.report import as_json, as_lines, show_table

FINDINGS = [Finding("torch", "ok", "2.13.0"), Finding("disk", "fail", "1 kB [free]", "make room")]


def test_a_line_a_check():
    assert as_lines(FINDINGS).splitlines() == [
        "ok    torch  2.13.0",
        "fail  disk   1 kB [free] -> make room",
        "1 ok, 0 warn, 1 fail",
    ]


def test_a_table_says_the_same():
    file = io.StringIO()
    show_table(FINDINGS, Console(file=file, width=100))
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert lines[0] == ["check", "found", "to", "do"]
    assert lines[2] == ["fail", "disk", "1", "kB", "[free]", "make", "room"]
    assert lines[-1] == ["1", "ok,", "0", "warn,", "1", "fail"]


def test_json_holds_all_of_it():
    found = json.loads(as_json(FINDINGS, processes=2))
    assert found["processes"] == 2
    assert [Finding(**check) for check in found["checks"]] == FINDINGS
