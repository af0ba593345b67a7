"""A large corpus of whole files: which ones, how often, the same for a seed."""

import json
from collections import Counter

import pytest

from benchmarks.whole_documents import collect, write_repeated

TEXTS = {f"below/{name}.py": f"# {name}\n" + f"{name} = 'é'\n" * 20 for name in ("one", "two", "three", "four")}


@pytest.fixture
def source(tmp_path):
    (tmp_path / "files" / "below").mkdir(parents=True)
    others = {
        "again.md": TEXTS["below/one.py"],
        "special.txt": "<|endoftext|> " * 30,
        "short.txt": "a",
        "space.txt": " a" * 300,
        "data.bin": "b" * 500,
        "new.txt": "\ua7ce" * 300,  # a letter since Unicode 17
    }
    for name, text in (TEXTS | others).items():
        (tmp_path / "files" / name).write_text(text, encoding="utf-8")
    (tmp_path / "files" / "latin.txt").write_bytes(b"caf\xe9 " * 100)
    collect([tmp_path / "files"], tmp_path / "source.jsonl", without=["<|endoftext|>"])
    return tmp_path / "source.jsonl"


def texts_of(*paths):
    return [json.loads(line)["text"] for path in paths for line in path.read_bytes().splitlines()]


def test_every_text_file_is_collected_once(source):
    assert sorted(texts_of(source)) == sorted(TEXTS.values())


def test_documents_are_repeated_whole_and_as_often_as_each_other(tmp_path, source):
    corpus = write_repeated(source, tmp_path / "corpus", text_bytes=20_000, files=3)
    files = sorted((tmp_path / "corpus").iterdir())
    texts = texts_of(*files)
    assert corpus.files == tuple(map(str, files))
    assert (corpus.documents, corpus.text_bytes) == (len(texts), sum(len(text.encode()) for text in texts))
    assert (corpus.pieces, corpus.piece_bytes) == (4, sum(len(text.encode()) for text in TEXTS.values()))
    assert 20_000 <= corpus.text_bytes < 20_000 + max(map(len, TEXTS.values())) * 2
    counts = Counter(texts)
    assert set(counts) == set(TEXTS.values())
    assert max(counts.values()) - min(counts.values()) <= 1
    rounds = [texts[first : first + 4] for first in range(0, 40, 4)]
    assert len({tuple(each) for each in rounds}) > 3


def test_equal_seeds_give_equal_files_and_others_others(tmp_path, source):
    def content(name, seed):
        write_repeated(source, tmp_path / name, text_bytes=20_000, files=2, seed=seed)
        return texts_of(*sorted((tmp_path / name).iterdir()))

    assert content("a", 1) == content("b", 1) != content("c", 2)
