"""A run uses a fast tokenizer only if it is right on the run's own documents."""

import json
import re
import sys

import numpy as np
import pytest

from data_tools import fast_tokenizers
from data_tools.engine_proof import compare_engines
from data_tools.fast_tokenizers import choose, sample_texts
from data_tools.inputs import open_inputs
from megatron_glm.tokenizer import published
from megatron_glm.tokenizer.engines import Gigatoken
from megatron_glm.tokenizer.fast import accelerated
from megatron_glm.tokenizer.loading import load_tokenizer

pytest.importorskip("gigatoken")

TEXTS = [f"the old stone of the river, {number}" for number in range(600)]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bpe")
    signs = published_signs()
    (directory / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate([*signs, "<|endoftext|>"])}))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    return published.gpt2(directory / "vocab.json", directory / "merges.txt")


def published_signs():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [*map(chr, printable), *(chr(256 + i) for i in range(256 - len(printable)))]


def in_shares(tokenizer):
    """As the workers of a run compare."""
    return lambda shares: [compare_engines(tokenizer, accelerated(tokenizer), share) for share in shares]


def test_an_engine_that_is_right_is_used(bpe):
    expected = fast_tokenizers.Choice(use=True, engine="gigatoken", note=None)
    assert choose(bpe, TEXTS) == choose(bpe, TEXTS, compare=in_shares(bpe), shares=7) == expected


def test_every_text_is_compared_in_one_share(bpe):
    compared = []
    choose(bpe, TEXTS, compare=lambda shares: compared.extend(shares) or [], shares=7)
    assert len(compared) == 7
    assert [text for share in compared for text in share] == TEXTS


def test_shares_have_about_as_many_characters_each(bpe):
    compared = []
    texts = ["a" * 900, "b" * 100, *(["c" * 10] * 100)]
    choose(bpe, texts, compare=lambda shares: compared.extend(shares) or [], shares=2)
    assert [sum(map(len, share)) for share in compared] == [1000, 1000]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ids: ids + (np.arange(len(ids)) == 4), r"4 is \d+, by [^,]+ \d+;"),
        (lambda ids: ids[:-1], r"\d+ is none, by [^,]+ \d+;"),
        (lambda ids: np.append(ids, 7), r"\d+ is 7, by [^,]+ none;"),
    ],
)
@pytest.mark.parametrize("shares", [1, 4])
def test_one_wrong_id_in_one_document_is_found_and_told(bpe, monkeypatch, change, says, shares):
    right = Gigatoken.encode

    def wrong(self, texts):
        rows = zip(texts, right(self, texts), strict=True)
        return [change(ids).astype(np.int32) if text.endswith(", 411") else ids for text, ids in rows]

    monkeypatch.setattr(Gigatoken, "encode", wrong)
    choice = choose(bpe, TEXTS, compare=in_shares(bpe) if shares > 1 else None, shares=shares)
    assert (choice.use, choice.engine) == (False, None)
    assert "\n" not in choice.note
    assert re.match(rf"gigatoken [\d.]+ is wrong on document 411 of a sample of 600: token {says}", choice.note)
    assert "going on with the slower reference" in choice.note


def test_an_engine_that_refuses_a_document_is_used_as_the_reference_encodes_it(bpe, monkeypatch):
    right = Gigatoken.encode

    def refuses(self, texts):
        if any(text.endswith(", 411") for text in texts):
            raise ValueError("cannot")
        return right(self, texts)

    monkeypatch.setattr(Gigatoken, "encode", refuses)
    assert choose(bpe, TEXTS).use


def test_a_library_that_is_not_installed_is_recommended(bpe, monkeypatch):
    monkeypatch.setattr(fast_tokenizers, "find_spec", lambda library: None)
    choice = choose(bpe, TEXTS)
    assert not choice.use
    assert "gigatoken is not installed" in choice.note
    assert "pip install -c constraints.txt -e '.[fast]'" in choice.note


def test_a_library_that_cannot_be_imported_is_told(bpe, monkeypatch):
    monkeypatch.setitem(sys.modules, "gigatoken.gigatoken_rs", None)
    choice = choose(bpe, TEXTS)
    assert not choice.use
    assert "cannot load this tokenizer" in choice.note


def test_nothing_is_said_where_no_library_helps(tokenizer_directory, bpe):
    tokenizer = load_tokenizer(tokenizer_directory)
    assert tokenizer.kind == "sentencepiece"
    assert choose(tokenizer, TEXTS) == choose(bpe, []) == fast_tokenizers.Choice(use=False)


def test_of_a_huge_document_a_part_is_in_the_sample(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "é" * 5000}) + "\n")
    assert sample_texts(open_inputs([str(path)], line_documents=False), "text", limit_bytes=600) == ["é" * 600]


def test_large_documents_make_a_sample_no_larger_than_was_asked(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "é" * 40_000}) + "\n" for _ in range(300)))
    texts = sample_texts(open_inputs([str(path)], line_documents=False), "text", limit_bytes=64_000)
    assert 32_000 <= sum(map(len, texts)) <= 64_000


def test_a_sample_is_spread_over_the_inputs(tmp_path):
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for path in paths:
        lines = [json.dumps({"text": f"{path.stem} {number}"}) for number in range(1000)]
        path.write_text("\n".join([*lines[:500], "broken", *lines[500:]]) + "\n")
    inputs = open_inputs(list(map(str, paths)), line_documents=False)
    texts = sample_texts(inputs, "text", limit_bytes=600)
    assert 500 < sum(map(len, texts)) < 700
    assert {text[0] for text in texts} == set("abc")
    assert len(sample_texts(inputs, "text")) == 3000
