"""The closing lines of a demo say what the metrics file says."""

import json

import pytest

from launch_scripts.demo.summary import Paths, gain_nats, summary


@pytest.fixture
def paths(tmp_path):
    paths = Paths(tmp_path)
    paths.run.mkdir()

    def step(number, tokens, rate, token):
        losses = {"token": token, "document": token + 1}
        return {"kind": "train", "step": number, "tokens": tokens, "tokens_per_second": rate, "losses": losses}

    records = [
        {"kind": "start", "step": 0, "unigram_entropy": {"token": 5.0, "document": 6.5}},
        step(10, 1000, 100.0, 9.0),
        {"kind": "validation", "step": 10, "losses": {"token": 8.5, "document": 9.5}},
        step(20, 3000, 400.0, 4.0),
        {"kind": "validation", "step": 20, "losses": {"token": 3.75, "document": 5.0}},
    ]
    paths.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    paths.generations.write_text(json.dumps([{"prompt": "a [MASK] c", "text": "a b c\n"}]))
    return paths


def test_first_last_and_validation_losses_stand_beside_the_entropy(paths):
    lines = summary(paths).splitlines()
    assert lines[2].split() == ["token", "9.000", "4.000", "3.750", "5.000"]
    assert lines[3].split() == ["document", "10.000", "5.000", "5.000", "6.500"]


def test_throughput_is_tokens_over_time_not_a_mean_of_rates(paths):
    # 1,000 tokens in 10 s and 2,000 in 5 s
    assert "3.00k in 20 steps, 200 tok/s" in summary(paths)


def test_the_gain_is_that_of_the_last_validation(paths):
    assert gain_nats(paths) == pytest.approx(1.25)
    assert "1.25 nats below" in summary(paths)


def test_places_and_generations_are_named(paths):
    text = summary(paths)
    for path in (paths.release, paths.metrics, paths.plot):
        assert str(path) in text
    assert text.endswith("  a [MASK] c\n  → a b c")
