"""What changes in the course of a run goes on after a stop as if there had been none."""

import json

import pytest

from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.checkpoint.reading import CheckpointReader
from tests.distributed.ranks import run_ranks
from tests.endtoend import pretraining_cases as cases
from tests.endtoend.corpus import make_corpus

pytestmark = pytest.mark.distributed

RAMP = "train.batch_ramp={start: 4, increment: 2, samples: 32}"
SIZES = [4, 4, 4, 4, 6, 6, 6, 8, 8]  # two stages of 16 samples
SCALE = "train.loss_scale={initial_power: 18, window: 2}"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), steps=9)


def train(corpus, output, *overrides):
    run_ranks(
        2,
        cases.train_in_fp16,
        str(corpus.config),
        *(f"train.output={output}", "schedule.decay_steps=9", "train.log_interval=1", "train.eval_interval=100"),
        *("train.micro_batch_size=1", RAMP, SCALE, "train.embedding_gradient={factor: 0.5, hold_samples: 20}"),
        *overrides,
    )


def records(output, kind):
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [record for record in lines if record["kind"] == kind]


def newest(output):
    return CheckpointReader(scan_checkpoints(output / "checkpoints").newest)


def test_a_stop_within_a_ramp_and_between_overflows_leaves_no_trace(corpus, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(corpus, whole)
    train(corpus, stopped, "train.steps=6")
    train(corpus, stopped, "data.workers=1")
    assert [record["global_batch_size"] for record in records(whole, "train")] == SIZES
    assert [record["samples"] for record in records(whole, "train")] == [sum(SIZES[: n + 1]) for n in range(9)]
    assert records(whole, "skip")
    for kind in ("train", "skip"):
        ours, theirs = ([_lasting(record) for record in records(run, kind)] for run in (whole, stopped))
        assert ours == theirs
    assert newest(whole).parameter_hashes() == newest(stopped).parameter_hashes()
    state = newest(whole).state
    assert state["progress"] == newest(stopped).state["progress"]
    assert state["progress"]["skipped"] == len(records(whole, "skip"))
    assert state["loss_scale"] == newest(stopped).state["loss_scale"]


def _lasting(record):
    return {key: value for key, value in record.items() if "second" not in key and key != "data_wait"}
