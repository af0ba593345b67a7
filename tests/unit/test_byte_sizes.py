"""Numbers of bytes as people read them."""

import pytest

from megatron_glm.byte_sizes import size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (999.6, "1 kB"),
        (1_330_000, "1.33 MB"),
        (20_880_000_000, "20.9 GB"),
        (158e12, "158 TB"),
    ],
)
def test_a_size_has_three_digits_and_the_unit_that_fits(size, text):
    assert size_text(size) == text
