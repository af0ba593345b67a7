"""A run from shards to checkpoints, with two processes: what it learns, and how it goes on after a stop."""

import json
import re
import shutil

import pytest

from data_tools import train_tokenizer
from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.config.loading import load_config
from megatron_glm.locking import exclusive
from megatron_glm.tokenizer.loading import load_tokenizer
from tests.distributed.ranks import run_ranks
from tests.endtoend import pretraining_cases as cases
from tests.endtoend.corpus import make_corpus, run, write_text

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def whole_run(corpus):
    """40 steps without a stop: ZeRO-2, two processes, dropout on."""
    output = corpus.root / "whole"
    run_ranks(2, cases.train, str(corpus.config), f"train.output={output}")
    return output


@pytest.fixture(scope="module")
def half_run(corpus):
    """The same run stopped after 20 steps; its schedule is that of 40."""
    output = corpus.root / "half"
    run_ranks(2, cases.train, str(corpus.config), *first_half(output))
    return output


@pytest.fixture(scope="module")
def zero_1_run(corpus):
    """The whole run under ZeRO-1, with its checkpoint of step 20."""
    output = corpus.root / "zero1"
    run_ranks(2, cases.train, str(corpus.config), f"train.output={output}", "parallel.zero_stage=1")
    return output


def first_half(output):
    return f"train.output={output}", "train.steps=20", "schedule.decay_steps=40"


def copy_of(run, directory):
    return shutil.copytree(run, directory / "run")


def records(run, kind):
    return [r for r in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if r["kind"] == kind]


def final(run):
    return CheckpointReader(scan_checkpoints(run / "checkpoints").newest)


def test_it_learns_every_objective(whole_run):
    first, last = records(whole_run, "train")[0], records(whole_run, "train")[-1]
    validation = records(whole_run, "validation")
    assert [record["step"] for record in validation] == [20, 40]
    entropy = records(whole_run, "start")[0]["unigram_entropy"]
    for objective in ("token", "sentence", "document"):
        assert last["losses"][objective] < first["losses"][objective] - 1.0
        assert validation[-1]["losses"][objective] < validation[0]["losses"][objective]
        assert 0 < entropy[objective] < 6.0
    assert (whole_run / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("workers", [0, 2])
def test_twenty_steps_a_resume_and_twenty_more_are_forty_bit_for_bit(corpus, whole_run, half_run, tmp_path, workers):
    run = copy_of(half_run, tmp_path)
    overrides = (f"train.output={run}", "schedule.decay_steps=40", f"data.workers={workers}")
    run_ranks(2, cases.train, str(corpus.config), *overrides)
    assert final(run).step == 40
    assert final(run).parameter_hashes() == final(whole_run).parameter_hashes()
    assert final(run).run_id == final(half_run).run_id

    def curve(run):
        return [(r["step"], r["loss"], r["gradient_norm"], r["tokens"]) for r in records(run, "train")]

    assert curve(run) == curve(whole_run)


def test_another_dropout_seed_is_another_run(corpus, whole_run, half_run, tmp_path):
    # The control of the test above: its hashes do see the dropout masks.
    run = copy_of(half_run, tmp_path)
    overrides = (f"train.output={run}", "schedule.decay_steps=40")
    run_ranks(2, cases.train_with_dropout_seed, 999, str(corpus.config), *overrides)
    assert final(run).parameter_hashes().items().isdisjoint(final(whole_run).parameter_hashes().items())


@pytest.mark.parametrize(("processes", "stage"), [(2, 3), (1, 3), (1, 0)])
def test_a_run_saved_under_zero_1_goes_on_under_another_layout(corpus, zero_1_run, tmp_path, processes, stage):
    saved = zero_1_run / "checkpoints" / "step_00000020"
    run = tmp_path / "run"
    overrides = (f"train.output={run}", f"parallel.zero_stage={stage}", f"checkpoint.resume={saved}")
    run_ranks(processes, cases.train, str(corpus.config), *overrides)
    expected = {r["step"]: r["loss"] for r in records(zero_1_run, "train") if r["step"] > 20}
    found = {r["step"]: r["loss"] for r in records(run, "train")}
    assert found.keys() == expected.keys()
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-5)


def test_a_damaged_checkpoint_is_named_and_passed_over(corpus, whole_run, tmp_path):
    run = copy_of(whole_run, tmp_path)
    part = next((run / "checkpoints" / "step_00000040").glob("rank_*.safetensors"))
    data = bytearray(part.read_bytes())
    data[-5] ^= 1
    part.write_bytes(data)
    run_ranks(1, cases.train, str(corpus.config), f"train.output={run}")
    passed_over, origin, loaded = records(run, "start")[-1]["notes"]
    assert passed_over.startswith(f"passed over {run}/checkpoints/step_00000040")
    assert part.name in passed_over
    assert origin == f"from {run}/checkpoints/step_00000020"
    assert "both moments of step 20" in loaded
    assert final(run).step == 40


def test_a_release_can_be_made_from_the_checkpoint_alone(whole_run, corpus, tmp_path):
    for name, data in final(whole_run).attachments().items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    original = load_tokenizer(corpus.root / "tokenizer")
    assert load_tokenizer(tmp_path / "tokenizer").content_hash == original.content_hash


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.global_batch_size=7",), "train.global_batch_size: 7 is not micro_batch_size"),
        (("checkpoint.resume=must",), "checkpoint.resume: 'must', but .* holds no whole checkpoint"),
        (("checkpoint.resume=/nowhere",), "checkpoint.resume: '/nowhere' is no directory"),
        (("data.sources=[{path: /nowhere}]",), r"data.sources\[0\].path: no shards in '/nowhere'"),
        (("tokenizer.path=/nowhere",), "/nowhere"),
        (("parallel.zero_stage=0", "train.precision=bf16"), "parallel.zero_stage: 0 with train.precision bf16"),
        (
            ("deepspeed.zero_optimization={reduce_scater: 1}",),
            "ConfigError: deepspeed: DeepSpeed refuses .*reduce_scater",
        ),
        (("deepspeed.zero_optimization=3",), "ConfigError: deepspeed: DeepSpeed refuses this section"),
        (("train.output=/proc/none",), "train.output: '/proc/none' cannot be written"),
        (("optimizer.learning_rate=1e30", "train.steps=8"), "DivergedError: step .* on samples"),
    ],
)
def test_what_cannot_be_run_is_one_clear_line_on_every_rank(corpus, tmp_path, overrides, message):
    output = tmp_path / "run"
    results = run_ranks(2, cases.train_until_failure, str(corpus.config), f"train.output={output}", *overrides)
    for result in results:
        assert result != "no error"
        assert "\n" not in result
    assert_matches(results[0], message)
    assert not list(output.glob("checkpoints/step_*"))


def test_a_machine_with_another_configuration_is_named_by_all_ranks(corpus, tmp_path):
    case, output = cases.train_with_another_setting_on_rank_1, f"train.output={tmp_path / 'run'}"
    (message,) = set(run_ranks(2, case, "train.seed=7", str(corpus.config), output))
    assert message.startswith("ConfigError: rank 1 was given another configuration than rank 0: train.seed 1234 → 7;")
    assert not (tmp_path / "run").exists()


def test_another_tokenizer_than_the_data_s_is_refused(corpus, tmp_path):
    text = write_text(tmp_path / "other.txt", documents=50, seed=1)
    run(train_tokenizer.main, "--input", text, "--vocab-size", 300, "--output", tmp_path / "tokenizer")
    overrides = (f"train.output={tmp_path / 'run'}", f"tokenizer.path={tmp_path / 'tokenizer'}")
    result = run_ranks(1, cases.train_until_failure, str(corpus.config), *overrides)[0]
    assert_matches(result, r"TokenizerError: data.sources\[0\].path: .* was written with the tokenizer")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("train.seed=4",), "trained with train.seed 1234, not 4"),
        (("model.hidden_size=64",), "parameter .*: the checkpoint has shape .*, the model shape"),
        (("checkpoint.resume=never",), "'never', but .* holds checkpoints"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(corpus, half_run, tmp_path, overrides, message):
    run = copy_of(half_run, tmp_path)
    result = run_ranks(1, cases.train_until_failure, str(corpus.config), f"train.output={run}", *overrides)[0]
    assert_matches(result, message)
    assert final(run).step == 20


def assert_matches(text, pattern):
    assert re.search(pattern, text), f"{text!r} does not match {pattern!r}"


def test_the_resolved_configuration_lies_beside_the_metrics(whole_run):
    assert load_config(whole_run / "config.yaml").train.steps == 40


def test_a_second_run_in_the_same_output_is_refused(corpus, tmp_path):
    output = tmp_path / "run"
    output.mkdir()
    with exclusive(output / ".lock"):
        result = run_ranks(1, cases.train_until_failure, str(corpus.config), f"train.output={output}")[0]
    assert_matches(result, "train.output: another run is writing to '.*/run'; wait for it or choose another")
    assert not (output / "config.yaml").exists()
