"""One flipped bit on one rank stops a run, before anything of it is saved."""

import pytest
import torch

from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.training.engines.zero_engine import ZeroEngine
from tests.distributed.ranks import run_ranks
from tests.endtoend import pretraining_cases as cases
from tests.endtoend.corpus import make_corpus

pytestmark = pytest.mark.distributed

FAULTY_STEP = 3


def train_with_a_faulty_memory(bit, config, *overrides):
    """The message of the run's end, when a bit of rank 1 is flipped after the update of the faulty step."""
    update, made = ZeroEngine.update, []

    def faulty(engine, learning_rate):
        norm = update(engine, learning_rate)
        made.append(learning_rate)
        if len(made) == FAULTY_STEP and torch.distributed.get_rank() == 1:
            copy = next(copy for copy in engine.copies() if copy.parameter.endswith("final_layernorm.bias"))
            copy.values.detach().view(torch.int32)[0] ^= 1 << bit
        return norm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ZeroEngine, "update", faulty)
        return cases.train_until_failure(config, *overrides)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize(
    ("interval", "told_at"),
    [("train.replica_check_interval=2", 4), ("checkpoint.save_interval=5", 5)],
    ids=["on the interval", "before a save"],
)
def test_a_flipped_bit_stops_the_run_with_one_line(corpus, tmp_path, interval, told_at):
    overrides = f"train.output={tmp_path}", "train.steps=8", "train.eval_interval=100", interval
    messages = run_ranks(2, train_with_a_faulty_memory, 0, str(corpus.config), *overrides, "parallel.zero_stage=0")
    (message,) = set(messages)
    assert message.startswith(f"ReplicaError: step {told_at}: parameter transformer.final_layernorm.bias (weight) is")
    assert "not the same on rank 0 as on rank 1;" in message
    assert "\n" not in message
    assert scan_checkpoints(tmp_path / "checkpoints").newest is None


def test_a_loss_that_one_rank_s_memory_has_spoilt_is_not_called_divergence(corpus, tmp_path):
    settings = ("train.steps=9", "train.eval_interval=100", "train.nonfinite_patience=2", "parallel.zero_stage=2")
    messages = run_ranks(2, train_with_a_faulty_memory, 30, str(corpus.config), f"train.output={tmp_path}", *settings)
    (message,) = set(messages)
    assert message.startswith(
        "ReplicaError: step 5: parameter transformer.final_layernorm.bias (weight) is not the same"
    )
