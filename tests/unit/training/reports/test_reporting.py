"""Numbers and times as people read them."""

import math

import pytest

from megatron_glm.training.reports.reporting import EVENT_LINES, short_number, short_time, step_line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00k"),
        (41_234, "41.2k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (1_234_567, "1.23M"),
        (9.995e9, "10.0G"),
        (2e12, "2.00T"),
    ],
)
def test_numbers_have_three_digits(value, text):
    assert short_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0m 00s"), (59.6, "1m 00s"), (200, "3m 20s"), (7500, "2h 05m"), (86_400 * 32 + 3700, "32d 01h")],
)
def test_times_have_two_units(seconds, text):
    assert short_time(seconds) == text


def test_a_step_is_one_line_with_every_figure():
    record = {
        "step": 1200,
        "samples": 1_230_000,
        "tokens": 689_000_000,
        "loss": 2.3141,
        "losses": {"token": 1.92, "document": 2.71},
        "learning_rate": 1.5e-4,
        "gradient_norm": 0.834,
        "tokens_per_second": 41_200,
        "data_wait": 0.003,
    }
    assert step_line(record, steps=200_000, eta_seconds=2_770_000) == (
        "step 1200/200000  samples 1.23M  tokens 689M  loss 2.314 (token 1.920, document 2.710)  lr 1.50e-04"
        "  grad 0.83  41.2k tok/s  data 0.3%  eta 32d 01h"
    )


def test_events_are_told_in_one_line_each():
    position = {"step": 7, "samples": 56, "tokens": 400}
    events = {
        "stop": ({"reason": "SIGTERM to rank 1 on node1"}, "stopping at step 7: SIGTERM to rank 1 on node1"),
        "override": (
            {"learning_rate": 1e-4, "floor": None},
            "overrides from step 8 on: learning_rate 0.0001",
        ),
        "warning": ({"text": "a line"}, "warning: a line"),
        "not_finite": (
            {
                "loss": math.nan,
                "gradient_norm": None,
                "in_a_row": 2,
                "ranges": [[40, 42], [44, 48]],
                "documents": "culprits/step_00000007.jsonl",
            },
            "step 7 left out: loss nan, 2 in a row; samples 40 to 41, 44 to 47, their documents in"
            " culprits/step_00000007.jsonl",
        ),
        "spike": (
            {
                "loss": 7.25,
                "expected": 2.5,
                "deviations": 31.04,
                "policy": "warn",
                "ranges": [[40, 48]],
                "documents": None,
            },
            "step 7 warning: loss 7.250, expected 2.500, 31.0 typical deviations; samples 40 to 47",
        ),
        "rewind": (
            {"from_step": 12, "path": "run/checkpoints/step_00000007", "ranges": [[40, 48]]},
            "step 12 → 7: back to run/checkpoints/step_00000007, and without samples 40 to 47",
        ),
        "straggler": (
            {
                "rank": 5,
                "host": "node3",
                "busy_seconds_per_step": 1.9,
                "median_busy_seconds_per_step": 1.0,
            },
            "warning: rank 5 on node3 is slow: 1.9 s a step outside collectives, the median rank 1 s",
        ),
    }
    for kind, (what, line) in events.items():
        assert EVENT_LINES[kind]({"kind": kind, **position, **what}) == line
    nothing = EVENT_LINES["override"]({"step": 7, "learning_rate": None, "floor": None})
    assert nothing == "overrides from step 8 on: none, back to the configuration"
