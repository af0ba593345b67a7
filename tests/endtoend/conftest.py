"""A tiny tokenizer, a tiny GLM and a checkpoint of it."""

import io
import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import sentencepiece
import torch

from megatron_glm.checkpoint.format import KINDS, Fragment
from megatron_glm.checkpoint.writing import save_checkpoint
from megatron_glm.config.loading import config_from_tree
from megatron_glm.model.glm import GLM
from megatron_glm.parallel.ranks import SingleProcess
from megatron_glm.tokenizer.sentencepiece_model import SentencePieceTokenizer
from megatron_glm.tokenizer.special import ROLE_PIECES
from tests.endtoend.toy_demo import ToyDemo

SENTENCES = [
    f"the {a} {b} sat on the {c}." for a in ("old", "red", "big") for b in ("cat", "dog") for c in ("mat", "hat")
]


@pytest.fixture(scope="session")
def tokenizer():
    """SentencePiece with byte fallback, a few hundred pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_writer=model,
        vocab_size=300,
        model_type="unigram",
        byte_fallback=True,
        hard_vocab_limit=False,
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        minloglevel=2,
    )
    return SentencePieceTokenizer.with_special(model.getvalue(), list(ROLE_PIECES.values()))


@dataclass
class Saved:
    """A checkpoint and what is in it."""

    path: Path
    model: GLM


@pytest.fixture(scope="session")
def save_model():
    """Writes a checkpoint as the trainer does: (directory, model, tokenizer, **changes of the objective) -> path."""

    def save(directory, model, tokenizer, **objective):
        config = config_from_tree(
            {
                "model": model.config.model_dump(),
                "tokenizer": {"path": "tokenizers/tiny"},
                "data": {"sources": [{"path": "corpora/tiny"}]},
                "objective": objective,
                "optimizer": {"learning_rate": 1e-3},
                "train": {"output": "runs/tiny", "steps": 7, "global_batch_size": 2, "micro_batch_size": 2},
            }
        )
        tokenizer.save(directory / "tokenizer")
        return save_checkpoint(
            directory / "checkpoints",
            run_id="run",
            step=7,
            fragments=[
                Fragment(name, kind, 0, parameter.detach().flatten().clone())
                for name, parameter in model.named_parameters()
                for kind in KINDS
            ],
            shapes={name: tuple(parameter.shape) for name, parameter in model.named_parameters()},
            state={
                "progress": {"step": 7, "samples": 14, "tokens": 1234},
                "config": config.model_dump(mode="json"),
                "tokenizer_hash": tokenizer.content_hash,
                "num_ids": tokenizer.vocab_size,
                "validation": {"losses": {"token": 3.25}},
                "versions": {"torch": torch.__version__},
            },
            ranks=SingleProcess(),
            attachments={f"tokenizer/{path.name}": path.read_bytes() for path in (directory / "tokenizer").iterdir()},
        )

    return save


@pytest.fixture(scope="session")
def tiny_model():
    """A GLM whose every parameter is random and large enough that a wrong formula shows."""

    def build(num_ids, **sizes):
        config = config_from_tree(
            {
                "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "max_positions": 40} | sizes,
                "tokenizer": {"path": "-"},
                "data": {"sources": [{"path": "-"}]},
                "optimizer": {"learning_rate": 1},
                "train": {"output": "-", "steps": 1, "global_batch_size": 1, "micro_batch_size": 1},
            }
        ).model
        model = GLM(config, num_ids=num_ids, seed=3).eval()
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.empty_like(parameter).normal_(0, 0.15, generator=generator))
        return model

    return build


@pytest.fixture(scope="session")
def saved(tmp_path_factory, tokenizer, tiny_model, save_model):
    """A checkpoint of a random GLM."""
    model = tiny_model(tokenizer.vocab_size)
    return Saved(save_model(tmp_path_factory.mktemp("run"), model, tokenizer, token=0.5, document=0.5), model)


@pytest.fixture(scope="session")
def toy_demo(tmp_path_factory):
    """A demo that has run, the same one in all processes of this test run."""
    base = tmp_path_factory.getbasetemp()
    return ToyDemo.made_once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "toy_demo")


@pytest.fixture(scope="session")
def transformers(tmp_path_factory):
    """The library, offline, its cache of remote code in a temporary place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield pytest.importorskip("transformers")
