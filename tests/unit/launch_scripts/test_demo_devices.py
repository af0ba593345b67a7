"""On which GPUs the demo trains."""

import pytest

from launch_scripts.demo.__main__ import _devices


@pytest.mark.parametrize(
    ("visible", "gpus", "options"),
    [
        (None, 0, ["--num_accelerators", "2"]),
        (None, 1, ["--num_accelerators", "1"]),
        (None, 8, ["--num_accelerators", "2"]),
        ("", 0, ["--num_accelerators", "2"]),
        ("5", 1, ["--include", "localhost:5"]),
        ("5,6,7", 3, ["--include", "localhost:5,6"]),
    ],
)
def test_they_are_those_that_the_user_lets_it_see(monkeypatch, visible, gpus, options):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _devices(gpus) == options
