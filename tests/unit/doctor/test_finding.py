"""Findings of many ranks become one line each, and a check that breaks off does not end the others."""

import pytest

from megatron_glm.doctor.finding import Finding, findings_of, merged, ranks_text
from megatron_glm.errors import ConfigError


def test_what_is_well_everywhere_is_told_once():
    one = Finding("disk", "ok", "3 GB free")
    assert merged([[one], [Finding("disk", "ok", "2 GB free")]]) == [one]


def test_the_worst_is_told_with_its_ranks():
    well, ill = Finding("disk", "ok", "3 GB"), Finding("disk", "fail", "1 kB", "make room")
    assert merged([[well], [ill], [well], [ill]]) == [Finding("disk", "fail", "ranks 1, 3: 1 kB", "make room")]


def test_a_fault_of_all_ranks_needs_no_list():
    ill = Finding("disk", "fail", "1 kB", "make room")
    assert merged([[ill], [ill]]) == [ill]


def test_checks_keep_their_order_and_none_is_lost():
    by_rank = [[Finding("a", "ok", ""), Finding("c", "ok", "")], [Finding("a", "ok", ""), Finding("b", "warn", "x")]]
    assert [f.check for f in merged(by_rank)] == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([0, 1, 2, 5], "ranks 0-2, 5"), ([0, 2, 3], "ranks 0, 2-3")]
)
def test_neighbouring_ranks_are_a_range(ranks, text):
    assert ranks_text(ranks) == text


@pytest.mark.parametrize(
    ("error", "value"), [(ConfigError("a: 1\nis bad"), "a: 1 is bad"), (OSError("gone"), "OSError: gone")]
)
def test_a_check_that_breaks_off_is_a_finding(error, value):
    def check():
        yield Finding("first", "ok", "")
        raise error

    first, second = findings_of("name", check)
    assert (first.check, second.check, second.status, second.value) == ("first", "name", "fail", value)
