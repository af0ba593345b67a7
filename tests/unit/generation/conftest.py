"""A word tokenizer and a random GLM, small enough to decode in milliseconds."""

import pytest
import torch

from megatron_glm.config.schema import Model
from megatron_glm.model.glm import GLM
from megatron_glm.tokenizer.published import bert_uncased

WORDS = "the a cat dog sat lay on under mat hat red old and then it slept all day . , !"


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    vocab = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]) + "\n")
    return bert_uncased(vocab)


@pytest.fixture(scope="session")
def model(tokenizer):
    """Every parameter random, so that a token's place and surroundings decide what follows it."""
    config = Model(num_layers=2, hidden_size=32, num_attention_heads=4, max_positions=48)
    model = GLM(config, num_ids=tokenizer.vocab_size, seed=1).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.3, generator=generator))
    return model
