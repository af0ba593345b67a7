"""A large corpus from a small one: its size, its documents, the same for a seed."""

import json

import numpy as np
import pytest

from benchmarks.bare_tokenizer import batches
from benchmarks.recombined_text import write_corpus

PARAGRAPHS = [f'Paragraph {number} says "{"word " * (number % 17)}" — é.' for number in range(200)]


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "text.jsonl"
    rows = [json.dumps({"text": "\n".join(PARAGRAPHS[i : i + 10])}) for i in range(0, len(PARAGRAPHS), 10)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_the_facts_are_those_of_the_files(tmp_path, source):
    corpus = write_corpus(source, tmp_path / "corpus", text_bytes=300_000, files=3, median_bytes=1000)
    files = sorted((tmp_path / "corpus").iterdir())
    texts = [json.loads(line)["text"] for file in files for line in file.read_bytes().splitlines()]
    sizes = np.array([len(text.encode("utf-8")) for text in texts])
    assert corpus.files == tuple(map(str, files))
    assert (corpus.documents, corpus.text_bytes) == (len(texts), sizes.sum())
    assert 300_000 <= corpus.text_bytes < 350_000
    assert corpus.file_bytes == sum(file.stat().st_size for file in files)
    assert all(sum((sizes >= low) & (sizes < 2 * low)) == count for low, count in corpus.lengths.items())
    assert sum(corpus.lengths.values()) == len(texts)
    assert 700 < np.median(sizes) < 1600
    assert {line for text in texts for line in text.split("\n")} <= set(PARAGRAPHS)


def test_equal_seeds_give_equal_files_and_others_others(tmp_path, source):
    def content(name, seed):
        corpus = write_corpus(source, tmp_path / name, text_bytes=20_000, files=2, seed=seed)
        return [(tmp_path / name / path.rsplit("/")[-1]).read_bytes() for path in corpus.files]

    assert content("a", 1) == content("b", 1)
    assert content("a2", 1) != content("c", 2)


def test_batches_of_a_tokenizer_hold_every_text_once(tmp_path, source):
    corpus = write_corpus(source, tmp_path / "corpus", text_bytes=3_000_000, files=2, median_bytes=50)
    paths = sorted((tmp_path / "corpus").iterdir())
    found = list(batches(paths))
    assert sum(len(texts) for texts, _ in found) == corpus.documents
    assert sum(size for _, size in found) == corpus.text_bytes
    assert all(len(texts) <= 4096 for texts, _ in found)
    assert len(found) > 2


def test_no_paragraph_spells_a_special_token(tmp_path):
    source = tmp_path / "source.jsonl"
    text = "plain words here\nends with <|endoftext|> or so\nthe [MASK] token\na </s> too"
    source.write_text(json.dumps({"text": text}))
    corpus = write_corpus(source, tmp_path / "corpus", text_bytes=2_000, files=1, median_bytes=100)
    assert corpus.pieces == 1
