"""What may change between the parts of a run, and what would make it another run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.errors import CheckpointError, TokenizerError
from megatron_glm.training.resuming import changed_settings, check_continues


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
    assert changed_settings(SAVED, config()) == ()


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


def test_every_other_change_is_told():
    now = config(window=64, sources=[{"path": "b", "weight": 2.0}])
    assert changed_settings(SAVED, now) == (
        "changed: data.sources [{'path': 'a', 'weight': 1.0}] → [{'path': 'b', 'weight': 2.0}], data.window 512 → 64",
    )


def test_where_a_run_writes_and_how_it_starts_is_no_change():
    moved = {**SAVED, "train": {**SAVED["train"], "output": "elsewhere"}, "checkpoint": {"save_interval": None}}
    assert changed_settings(moved, config()) == ()
