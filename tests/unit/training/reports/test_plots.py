"""A run's metrics become a picture."""

import math

import pytest

from megatron_glm.training.reports.metrics import MetricsLog
from megatron_glm.training.reports.plots import plot_metrics


def write_run(path, steps=200, events=()):
    """A run like a real one: two objectives, a validation every 50 steps, one value that was not finite."""
    metrics = MetricsLog(path, start_step=0)
    for step in range(5, steps + 1, 5):
        token, document = 5 + 4 * math.exp(-step / 40), 5.5 + 3.5 * math.exp(-step / 60)
        norm = math.nan if step == 100 else 1 + 3 / step
        metrics.write(
            {"kind": "train", "step": step, "loss": token, "losses": {"token": token, "document": document}}
            | {"learning_rate": 1e-3 * min(1, step / 40), "gradient_norm": norm}
        )
        if step % 50 == 0:
            losses = {"token": token + 0.1, "document": document + 0.2}
            metrics.write({"kind": "validation", "step": step, "loss": token, "losses": losses})
    for event in events:
        metrics.write(event)
    metrics.close()


def test_a_run_is_drawn(tmp_path):
    write_run(tmp_path / "m.jsonl")
    plot_metrics(tmp_path / "m.jsonl", tmp_path / "loss.png")
    content = (tmp_path / "loss.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 20_000


@pytest.mark.parametrize("kind", ["not_finite", "spike", "rewind"])
def test_what_went_wrong_is_marked(tmp_path, kind):
    pictures = []
    for number, events in enumerate(([], [{"kind": kind, "step": 60}, {"kind": kind, "step": 90}])):
        write_run(tmp_path / f"{number}.jsonl", events=events)
        plot_metrics(tmp_path / f"{number}.jsonl", tmp_path / f"{number}.png")
        pictures.append((tmp_path / f"{number}.png").read_bytes())
    assert pictures[0] != pictures[1]


def test_a_run_of_one_record_is_drawn_and_one_of_none_is_not(tmp_path):
    write_run(tmp_path / "m.jsonl", steps=5)
    plot_metrics(tmp_path / "m.jsonl", tmp_path / "loss.png")
    assert (tmp_path / "loss.png").exists()
    write_run(tmp_path / "none.jsonl", steps=0)
    plot_metrics(tmp_path / "none.jsonl", tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
