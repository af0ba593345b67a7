"""The metrics file shows every step once, through crashes and resumes."""

import json

from megatron_glm.training.reports.metrics import MetricsLog, read_metrics


def log(path, steps, start_step=0):
    metrics = MetricsLog(path, start_step=start_step)
    for step in steps:
        metrics.write({"kind": "train", "step": step, "loss": step / 4})
    return metrics


def steps(path):
    return [record["step"] for record in read_metrics(path)]


def test_a_record_is_a_line_that_others_see_at_once(tmp_path):
    metrics = log(tmp_path / "m.jsonl", [1])
    assert (tmp_path / "m.jsonl").read_text() == '{"kind": "train", "step": 1, "loss": 0.25}\n'
    metrics.close()


def test_a_resumed_run_drops_what_it_will_make_again(tmp_path):
    path = tmp_path / "m.jsonl"
    log(path, [10, 20, 30]).close()
    log(path, [30, 40], start_step=20).close()
    assert steps(path) == [10, 20, 30, 40]
    log(path, [10]).close()  # from scratch
    assert steps(path) == [10]


def test_a_line_cut_by_a_crash_is_passed_over_and_removed_by_a_resume(tmp_path):
    path = tmp_path / "m.jsonl"
    log(path, [10, 20]).close()
    with open(path, "ab") as stream:
        stream.write(b'{"kind": "train", "st\xc3')
    assert steps(path) == [10, 20]
    log(path, [30], start_step=20).close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [10, 20, 30]


def test_records_behind_a_step_to_which_the_run_goes_back_are_dropped(tmp_path):
    metrics = log(tmp_path / "m.jsonl", [10, 20, 30])
    metrics.rewind(20)
    metrics.write({"step": 25})
    metrics.close()
    assert steps(metrics.path) == [10, 20, 25]


def test_what_is_not_finite_is_null(tmp_path):
    metrics = MetricsLog(tmp_path / "m.jsonl", start_step=0)
    metrics.write({"step": 1, "loss": float("nan"), "losses": {"token": float("inf"), "document": 2.0}})
    metrics.close()
    assert list(read_metrics(metrics.path)) == [{"step": 1, "loss": None, "losses": {"token": None, "document": 2.0}}]
