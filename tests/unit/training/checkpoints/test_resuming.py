"""Which checkpoint a run goes on from, and what would make it another run."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from megatron_glm.checkpoint.format import KINDS, Fragment
from megatron_glm.checkpoint.writing import save_checkpoint
from megatron_glm.config.loading import config_from_tree
from megatron_glm.errors import CheckpointError, TokenizerError
from megatron_glm.parallel.ranks import SingleProcess
from megatron_glm.training.checkpoints.resuming import Start, check_continues, check_same_model, choose_start


def config(heads=2, seed=7, **data):
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": heads},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "a"}], **data},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 9, "global_batch_size": 8, "micro_batch_size": 2, "seed": seed},
        }
    )


SAVED = config().model_dump(mode="json")
CHECKPOINT = SimpleNamespace(path=Path("step_00000009"), state={"tokenizer_hash": "abc", "config": SAVED})


def test_the_same_run_goes_on():
    check_continues(CHECKPOINT, config(), tokenizer_hash="abc")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 8}, r"train\.seed 7, not 8"),
        # The shapes of all weights are the same with four heads as with two.
        ({"heads": 4}, r"model\.num_attention_heads 2, not 4"),
    ],
)
def test_what_would_silently_be_another_run_is_refused(changes, message):
    with pytest.raises(CheckpointError, match=message):
        check_continues(CHECKPOINT, config(**changes), tokenizer_hash="abc")


def test_another_tokenizer_is_refused():
    with pytest.raises(TokenizerError, match="trained with the tokenizer abc"):
        check_continues(CHECKPOINT, config(), tokenizer_hash="abd")


def test_weights_alone_may_have_another_seed_but_are_no_other_model():
    check_same_model(CHECKPOINT, config(seed=8), tokenizer_hash="abc")
    with pytest.raises(CheckpointError, match=r"num_attention_heads 2, not 4"):
        check_same_model(CHECKPOINT, config(heads=4), tokenizer_hash="abc")
    with pytest.raises(TokenizerError, match="trained with the tokenizer abc"):
        check_same_model(CHECKPOINT, config(), tokenizer_hash="abd")


@pytest.fixture
def directory(tmp_path):
    """The checkpoints of steps 10, 20 and 30 of a run."""
    for step in (10, 20, 30):
        save(tmp_path / "checkpoints", step)
    return tmp_path / "checkpoints"


def save(directory, step):
    fragments = [Fragment("w", kind, 0, torch.full((3,), float(step))) for kind in KINDS]
    arguments = {"run_id": "r", "state": {}, "shapes": {"w": (3,)}, "ranks": SingleProcess()}
    return save_checkpoint(directory, step=step, fragments=fragments, **arguments)


def damage(path):
    part = path / "rank_00000_000.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)


@pytest.mark.parametrize("resume", ["auto", "must"])
def test_the_newest_is_taken(directory, resume):
    start = choose_start(resume, directory)
    assert start == Start(directory / "step_00000030", (f"from {directory}/step_00000030",))


def test_nothing_there_is_a_start_from_scratch_or_an_error(tmp_path):
    assert choose_start("auto", tmp_path) == choose_start("never", tmp_path) == Start(None, ("from scratch",))
    with pytest.raises(CheckpointError, match=r"'must', but .* holds no whole checkpoint; to train from scratch"):
        choose_start("must", tmp_path)
    with pytest.raises(CheckpointError, match=r"'.*/absent' is no directory; allowed: auto, must, never"):
        choose_start(str(tmp_path / "absent"), tmp_path)


def test_a_damaged_one_is_named_and_passed_over_or_an_error_where_strict(directory):
    damage(directory / "step_00000030")
    start = choose_start("auto", directory)
    assert start.path == directory / "step_00000020"
    assert re.match(r"passed over .*step_00000030: .*rank_00000_000\.safetensors was changed", start.notes[0])
    with pytest.raises(CheckpointError, match=r"step_00000030: .* was changed.*strict passes over none"):
        choose_start("auto", directory, strict=True)
    assert choose_start(str(directory / "step_00000020"), Path("elsewhere"), strict=True).path


def test_where_all_are_damaged_nothing_begins_from_scratch_unasked(directory):
    for path in directory.iterdir():
        damage(path)
    with pytest.raises(CheckpointError, match=r"'auto', but .* no whole checkpoint \(passed over .*scratch: move them"):
        choose_start("auto", directory)


def test_one_that_is_named_is_verified_and_never_another_taken(directory):
    chosen = directory / "step_00000030"
    assert choose_start(str(chosen), Path("elsewhere")).path == chosen
    damage(chosen)
    with pytest.raises(CheckpointError, match="was changed"):
        choose_start(str(chosen), Path("elsewhere"))


def test_a_run_does_not_go_back_behind_its_own_newer_checkpoints(directory):
    # The start after the next crash would go on from step 30, which is of a past that was given up.
    with pytest.raises(CheckpointError, match=r"holds step 30, newer than step 20 of '.*step_00000020', and the next"):
        choose_start(str(directory / "step_00000020"), directory)
    assert choose_start(str(directory / "step_00000030"), directory).path == directory / "step_00000030"
    assert choose_start(str(directory / "step_00000020"), directory.parent / "other").path


def test_a_command_that_forks_a_run_is_not_given_again_once_the_fork_has_checkpoints(directory, tmp_path):
    # It would begin again where it forked, and lose what it has done since.
    save(tmp_path / "fork", 40)
    for path in (directory, directory / "step_00000030"):
        with pytest.raises(CheckpointError, match="fork holds step 40, newer than step 30"):
            choose_start(str(path), tmp_path / "fork")
    assert choose_start("auto", tmp_path / "fork").path == tmp_path / "fork" / "step_00000040"
