"""Small tokenizers of every kind, made in the test run: no vocabulary file is needed."""

import json

import pytest

from data_tools.train_tokenizer import train
from megatron_glm.tokenizer import published

LINES = [
    "The tokenizer keeps every space, and every newline too.",
    "A model that fills blanks reads the text on both sides of each blank.",
    "What does a sentence end with? A full stop; a question mark: or this!",
    "Spans are drawn at random, and the model writes them one after another.",
] * 5


def _byte_signs():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [*map(chr, printable), *(chr(256 + i) for i in range(256 - len(printable)))]


@pytest.fixture(scope="session")
def sentencepiece_tokenizer():
    return train(LINES, 330, block_mask=True)


@pytest.fixture(scope="session")
def bpe_files(tmp_path_factory):
    """vocab.json and merges.txt of a byte-level BPE with two merges."""
    directory = tmp_path_factory.mktemp("bpe")
    pieces = [*_byte_signs(), "th", "Ġth", "<|endoftext|>"]
    (directory / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
    (directory / "merges.txt").write_text("#version: 0.2\nt h\nĠ th\n")
    return directory / "vocab.json", directory / "merges.txt"


@pytest.fixture(scope="session")
def bert_file(tmp_path_factory):
    """vocab.txt of a small WordPiece."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789[]<|>.,?!/。"]
    pieces += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"]
    path = tmp_path_factory.mktemp("bert") / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n")
    return path


@pytest.fixture(scope="session")
def bpe_tokenizer(bpe_files):
    return published.gpt2(*bpe_files, block_mask=True)


@pytest.fixture(scope="session")
def wordpiece_tokenizer(bert_file):
    return published.bert_uncased(bert_file)


@pytest.fixture(params=["sentencepiece", "bpe", "wordpiece"])
def tokenizer(request):
    """Each kind in turn."""
    return request.getfixturevalue(f"{request.param}_tokenizer")
