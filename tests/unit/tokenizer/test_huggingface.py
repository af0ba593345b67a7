"""Traps of tokenizer.json files that others wrote."""

import json

from megatron_glm.tokenizer.huggingface import HuggingFaceTokenizer


def test_truncation_and_padding_baked_into_a_file_are_off(bpe_tokenizer):
    definition = json.loads(bpe_tokenizer._model)
    definition["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    definition["padding"] = {
        "strategy": {"Fixed": 16},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    tokenizer = HuggingFaceTokenizer("bpe", json.dumps(definition).encode(), bpe_tokenizer.special, prefix_space=True)
    for text in ("a", "many words are kept, however many there are"):
        assert tokenizer.encode(text).tolist() == bpe_tokenizer.encode(text).tolist()


def test_the_first_word_is_the_same_piece_as_elsewhere(bpe_tokenizer):
    first, second = bpe_tokenizer.encode("th th").tolist()
    assert first == second
    assert bpe_tokenizer.piece(first) == "Ġth"


def test_wordpiece_is_lower_cased_and_without_accents(wordpiece_tokenizer):
    assert wordpiece_tokenizer.decode(wordpiece_tokenizer.encode("Café")) == "cafe"
