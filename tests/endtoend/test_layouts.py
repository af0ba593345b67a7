"""One run under many layouts: the losses are those of one process, and each goes on where another has stopped."""

import json

import pytest

from tests.distributed.ranks import run_ranks
from tests.endtoend import pretraining_cases as cases
from tests.endtoend.corpus import make_corpus

pytestmark = pytest.mark.distributed

STEPS = 6
LAYOUTS = {
    "tensor and sequence": (2, ["parallel.tensor=2", "parallel.sequence=true", "parallel.zero_stage=2"]),
    "pipeline": (2, ["parallel.pipeline=2", "parallel.zero_stage=1", "data.workers=1"]),
    "all": (
        4,
        ["parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=2", "parallel.zero_stage=0"],
    ),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def train(corpus, name, processes, *overrides, steps=STEPS):
    output = corpus.root / name
    run_ranks(
        processes,
        cases.train,
        str(corpus.config),
        f"train.output={output}",
        f"train.steps={steps}",
        f"schedule.decay_steps={STEPS}",
        *("schedule.warmup_steps=2", "train.log_interval=1", "train.eval_interval=3", "checkpoint.save_interval=3"),
        *overrides,
        timeout=300.0,
    )
    return output


def losses(output):
    """Of every step and validation, by kind and step: the loss, and those of the objectives."""
    records = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return {
        (record["kind"], record["step"], name): value
        for record in records
        if record["kind"] in ("train", "validation")
        for name, value in {"loss": record["loss"], **record["losses"]}.items()
    }


@pytest.fixture(scope="module")
def one_process(corpus):
    return losses(train(corpus, "one", 1, "parallel.zero_stage=0"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_training_and_validation_losses_are_those_of_one_process(corpus, one_process, name):
    processes, overrides = LAYOUTS[name]
    assert losses(train(corpus, name, processes, *overrides)) == pytest.approx(one_process, rel=1e-5)


def test_rows_are_such_that_three_tensor_ranks_can_divide_their_tokens(corpus):
    three = ["model.num_attention_heads=3", "model.hidden_size=24", "model.vocab_size=384", "train.eval_samples=2"]
    one = losses(train(corpus, "one of three heads", 1, *three, steps=1))
    options = ["parallel.tensor=3", "parallel.sequence=true", "data.workers=1"]
    assert losses(train(corpus, "three", 3, *three, *options, steps=1)) == pytest.approx(one, rel=1e-5)


def test_a_run_goes_on_under_one_layout_after_another(corpus, one_process):
    for steps, name in [(2, "tensor and sequence"), (4, "all"), (STEPS, "pipeline")]:
        processes, overrides = LAYOUTS[name]
        output = train(corpus, "moved", processes, *overrides, steps=steps)
    moved = losses(output)
    for step in range(1, STEPS + 1):
        assert moved["train", step, "loss"] == pytest.approx(one_process["train", step, "loss"], rel=1e-5)


def test_stages_are_measured_at_the_start_and_kept_by_a_resume(corpus):
    options = ["model.num_layers=5", "parallel.pipeline=2", "parallel.zero_stage=0"]
    for steps in (2, 4):
        output = train(corpus, "measured", 2, *options, steps=steps)
    records = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    first, second = (record["stages"] for record in records if record["kind"] == "start")
    assert first == second
    assert [layer for start, stop in first for layer in range(start, stop)] == list(range(5))
