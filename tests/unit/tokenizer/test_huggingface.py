"""Traps of tokenizer.json files that others wrote."""

import json
import threading
from types import SimpleNamespace

import tokenizers

from megatron_glm.tokenizer import huggingface
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


def test_it_is_loaded_in_memory_that_encoding_does_not_use(bpe_tokenizer, monkeypatch):
    """glibc's memory is of a thread, and the holes that loading leaves in it cost encoding a quarter of its speed."""
    loaders = []

    def load(model):
        loaders.append(threading.current_thread())
        return tokenizers.Tokenizer.from_buffer(model)

    library = SimpleNamespace(Tokenizer=SimpleNamespace(from_buffer=load))
    monkeypatch.setattr(huggingface, "tokenizers", library)
    tokenizer = HuggingFaceTokenizer("bpe", bpe_tokenizer.model, bpe_tokenizer.special, prefix_space=True)
    (loader,) = loaders
    assert loader is not threading.current_thread()
    assert not loader.is_alive()
    assert tokenizer.encode("th th").tolist() == bpe_tokenizer.encode("th th").tolist()
