"""Numbers and times as people read them."""

import pytest

from megatron_glm.training.reporting import short_number, short_time, step_line


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
