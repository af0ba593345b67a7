"""Text in, filled text out."""

import pytest
import torch

from megatron_glm.errors import UserError
from megatron_glm.generation.sampling import Sampling
from megatron_glm.generation.text import fill


def test_every_blank_is_filled_and_the_rest_is_kept(model, tokenizer):
    filled = fill(model, tokenizer, "the [MASK] sat on [sMASK] and slept", max_tokens=3)
    first, second = filled.pieces
    assert filled.text == f"the {first} sat on {second} and slept"
    assert [filled.text[start:stop].strip() for start, stop in filled.spans] == [first, second]


def test_a_closing_document_mask_continues_the_text(model, tokenizer):
    filled = fill(model, tokenizer, "the cat sat [gMASK]", max_tokens=5)
    assert filled.text == f"the cat sat {filled.pieces[0]}"


def test_no_special_token_is_ever_written(model, tokenizer):
    filled = fill(
        model, tokenizer, "[MASK] the [MASK] cat [MASK]", sampling=Sampling(temperature=50.0, seed=1), max_tokens=40
    )
    assert sum(len(piece.split()) for piece in filled.pieces) > 20
    special = [tokenizer.piece(id) for id in tokenizer.special.by_role().values()]
    assert not any(piece.lower() in filled.text.lower() for piece in [*special, "[UNK]", "[SEP]"])


def test_padded_rows_cannot_be_written(model, tokenizer):
    assert model.word_embeddings.num_embeddings > model.num_ids == tokenizer.vocab_size
    # A padded row that outscores every token makes no difference.
    with torch.no_grad():
        before = fill(model, tokenizer, "the [MASK]", max_tokens=4)
        padded = model.word_embeddings.weight[model.num_ids :]
        saved = padded.clone()
        padded.fill_(100.0)
        after = fill(model, tokenizer, "the [MASK]", max_tokens=4)
        padded.copy_(saved)
    assert before == after


def test_equal_seeds_give_equal_texts(model, tokenizer):
    one, other = (
        fill(model, tokenizer, "the [MASK] on [gMASK]", sampling=Sampling(5.0, top_p=0.9, seed=3), max_tokens=9)
        for _ in range(2)
    )
    assert one == other


@pytest.mark.parametrize("max_tokens", [0, -1, 48])
def test_refuses_more_tokens_than_block_positions(model, tokenizer, max_tokens):
    with pytest.raises(UserError, match=f"max_tokens: {max_tokens} is not allowed; from 1 to 47"):
        fill(model, tokenizer, "the [MASK]", max_tokens=max_tokens)


def test_uses_every_position_the_model_has(model, tokenizer):
    text = "the " * 46 + "[gMASK]"  # with [CLS] 48 tokens
    assert len(fill(model, tokenizer, text, max_tokens=47).pieces) == 1


def test_refuses_a_text_longer_than_the_positions(model, tokenizer):
    with pytest.raises(UserError, match="has 52 tokens with its closing ones, the model reads 48"):
        fill(model, tokenizer, "the " * 49 + "[MASK]")
