"""A whole run and its checkpoints: what is kept, what a resume may change, and a run that begins with given weights."""

import json
import re
import shutil

import pytest
import torch

from megatron_glm.checkpoint.discovery import published, scan_checkpoints
from megatron_glm.checkpoint.format import KINDS
from megatron_glm.checkpoint.original import write_original
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.cli import main
from megatron_glm.training.control.stopping import read_end
from tests.distributed.ranks import run_ranks
from tests.endtoend import pretraining_cases as cases
from tests.endtoend.corpus import make_corpus

pytestmark = pytest.mark.distributed

SCHEDULE = ("schedule.decay_steps=12", "schedule.warmup_steps=2")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def run(corpus):
    """12 steps of two processes with a checkpoint of every second one; the last two are kept, and every sixth step."""
    output = corpus.root / "run"
    options = ("checkpoint.save_interval=2", "checkpoint.keep_last=2", "checkpoint.keep_every=6", *SCHEDULE)
    run_ranks(2, cases.train, str(corpus.config), f"train.output={output}", "train.steps=12", *options)
    return output


def train(corpus, output, *overrides, processes=1):
    """The message with which a run ends; 'no error' if it trains to its end."""
    options = (f"train.output={output}", "train.steps=14", *SCHEDULE, *overrides)
    return run_ranks(processes, cases.train_until_failure, str(corpus.config), *options)[0]


def copy_of(run, directory):
    return shutil.copytree(run, directory / "run")


def records(run, kind):
    return [r for r in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if r["kind"] == kind]


def test_the_last_ones_and_every_nth_are_kept(run):
    assert sorted(published(run / "checkpoints")) == [6, 10, 12]
    saves = records(run, "save")
    assert [record["step"] for record in saves] == [2, 4, 6, 8, 10, 12]
    removed = [path.rsplit("/", 1)[1] for record in saves for path in record["removed"]]
    assert removed == ["step_00000002", "step_00000004", "step_00000008"]
    assert all(record["stall_seconds"] > 0 and record["seconds"] > 0 for record in saves)
    assert main(["verify-checkpoint", str(run)]) == 0


def test_what_was_loaded_is_reported(corpus, run, tmp_path):
    output = copy_of(run, tmp_path)
    assert train(corpus, output, "parallel.zero_stage=3", processes=2) == "no error"
    start, changes, loaded = records(output, "start")[-1]["notes"]
    assert start == f"from {output}/checkpoints/step_00000012"
    assert "parallel.zero_stage 2 → 3" in changes
    shapes = CheckpointReader(output / "checkpoints" / "step_00000012").shapes
    weights = sum(torch.Size(shape).numel() for shape in shapes.values())
    assert loaded == (
        f"loaded {len(shapes)} parameters with {weights:,} weights ({12 * weights / 1000:.3g} kB with moments) and both"
        " moments of step 12, saved by data 2 × pipeline 1 × tensor 1, ZeRO 2; their hashes on 2 ranks are those of the"
        " source"
    )


def test_another_optimizer_is_refused_until_it_is_allowed_and_then_holds(corpus, run, tmp_path):
    output = copy_of(run, tmp_path)
    wanted = ("optimizer.learning_rate=1e-3", "optimizer.weight_decay=0.5")
    assert re.search(
        r"CheckpointError: .*step_00000012: saved by a run with other settings: optimizer\.learning_rate 0\.003 →"
        r" 0\.001; optimizer\.weight_decay 0\.1 → 0\.5; set them back, or allow them with"
        r" checkpoint\.allow_changes=\[optimizer\.learning_rate,optimizer\.weight_decay\]$",
        train(corpus, output, *wanted),
    )
    assert scan_checkpoints(output / "checkpoints").newest.name == "step_00000012"
    assert train(corpus, output, *wanted, "checkpoint.allow_changes=[optimizer]") == "no error"
    assert records(output, "train")[-1]["learning_rate"] == pytest.approx(0.1 * 1e-3)
    # What was allowed once is now the run's own.
    assert train(corpus, output, *wanted, "train.steps=15") == "no error"


@pytest.mark.parametrize("steps", [12, 10])
def test_a_run_that_has_made_its_last_step_says_that_nothing_is_left(corpus, run, tmp_path, steps):
    output = copy_of(run, tmp_path)
    assert train(corpus, output, f"train.steps={steps}") == "no error"
    told = f"nothing is left to do: step 12 is made, train.steps is {steps}; a larger one goes on"
    assert records(output, "start")[-1]["notes"][-1] == told
    assert (read_end(output).finished, read_end(output).step) == (True, 12)


def test_a_damaged_checkpoint_ends_a_strict_start(corpus, run, tmp_path):
    output = copy_of(run, tmp_path)
    (output / "checkpoints" / "step_00000012" / "state.json").unlink()
    message = train(corpus, output, "checkpoint.strict=true")
    assert re.search(r"step_00000012: .*state\.json is missing; checkpoint\.strict passes over none", message)


def assert_almost(found, wanted):
    """After a step whose learning rate is lost in rounding, but for weights that are zero."""
    assert (found - wanted).abs().max() < 1e-20


def test_a_machine_that_cannot_read_what_the_others_can_says_so_itself(corpus, run, tmp_path):
    options = (f"train.output={copy_of(run, tmp_path)}", "train.steps=14", *SCHEDULE)
    ends = run_ranks(2, cases.train_where_rank_1_reads_no_checkpoint, str(corpus.config), *options)
    assert ends[0] == "the other side has gone"
    assert re.fullmatch(r"RankError: rank 1: .*: 'transformer.final_layernorm.bias' cannot be read \(4\)", ends[1])


def test_a_new_run_begins_with_the_weights_of_a_checkpoint(corpus, run, tmp_path):
    first = tmp_path / "new"
    options = (f"checkpoint.init_from={run}", "optimizer.learning_rate=1e-30", "train.seed=77")
    assert train(corpus, first, "train.steps=1", *options, processes=2) == "no error"
    before = CheckpointReader(run / "checkpoints" / "step_00000012")
    after = CheckpointReader(first / "checkpoints" / "step_00000001")
    assert after.run_id != before.run_id
    for name in before.shapes:
        assert_almost(after.read(name, "weight"), before.read(name, "weight"))
    notes = records(first, "start")[0]["notes"]
    assert notes[:2] == ["from scratch", f"with the weights of {run}/checkpoints/step_00000012"]
    assert "no moments, the optimizer is new" in notes[2]
    # The next start of the new run goes on from its own checkpoint.
    assert train(corpus, first, "train.steps=2", *options) == "no error"
    assert records(first, "start")[-1]["notes"][0] == f"from {first}/checkpoints/step_00000001"


def test_a_new_run_begins_with_the_weights_of_the_original_code(corpus, run, tmp_path):
    saved = CheckpointReader(run / "checkpoints" / "step_00000012")
    weights = {name: saved.read(name, "weight").view(shape).half() for name, shape in saved.shapes.items()}
    write_original(tmp_path / "original", weights, iteration=7, tensor_parallel=2)
    options = ("train.steps=1", f"checkpoint.init_from={tmp_path}/original", "optimizer.learning_rate=1e-30")
    layout = ("parallel.tensor=2", "parallel.zero_stage=1")
    assert train(corpus, tmp_path / "new", *options, *layout, processes=2) == "no error"
    after = CheckpointReader(tmp_path / "new" / "checkpoints" / "step_00000001")
    for name, weight in weights.items():
        assert_almost(after.read(name, "weight"), weight.float().flatten())
    assert all(after.read("word_embeddings.weight", kind).any() for kind in KINDS)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("checkpoint.init_from=/nowhere",), "CheckpointError: /nowhere: no whole checkpoint there"),
        (("model.num_attention_heads=4",), "with model.num_attention_heads 2, not 4"),
        (("model.hidden_size=64",), "parameter .*: the checkpoint has shape .*, the model shape"),
    ],
)
def test_weights_of_another_model_are_refused(corpus, run, tmp_path, overrides, message):
    result = train(corpus, tmp_path / "new", f"checkpoint.init_from={run}", *overrides)
    assert re.search(message, result), result
