"""The definitions of tokenizer.json that `published` writes: what the ids depend on besides vocabulary and merges.

What is known of these, as where a text may be cut or which fast library has the same ids, is known of no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# What else a tokenizer.json may say of the model would need a test of its own.
BYTE_LEVEL_BPE = {
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "model": {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    },
}
BERT_WORDPIECE = {
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    },
}


def has_form(definition: Mapping[str, Any], form: Mapping[str, Any]) -> bool:
    """Whether a tokenizer.json is of a form, whatever its pieces are."""
    model = {key: value for key, value in definition["model"].items() if key not in ("vocab", "merges")}
    found = {"normalizer": definition["normalizer"], "pre_tokenizer": definition["pre_tokenizer"], "model": model}
    # Other added tokens are parsed in text by the reference, and are ids of the vocabulary besides.
    return found == form and all(token["special"] for token in definition["added_tokens"])
