"""Documents of one size are told apart by their content, wherever they lie."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.data.fingerprint import pairs_fingerprint, source_fingerprints
from megatron_glm.data.indexed_writer import IndexedWriter
from megatron_glm.data.pair_format import bin_path, idx_path
from megatron_glm.errors import DataError

DOCUMENTS = [[1, 2, 3], [4], [5, 6], [7, 8]]


def fingerprint(**source):
    (found,) = source_fingerprints(
        config_from_tree(
            {
                "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2},
                "tokenizer": {"path": "-"},
                "data": {"sources": [source]},
                "optimizer": {"learning_rate": 1e-3},
                "train": {"output": "-", "steps": 1, "global_batch_size": 1, "micro_batch_size": 1},
            }
        )
    )
    return found


def write_pair(prefix, ids, documents):
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        for part in np.array_split(ids, documents):
            writer.add_document(part)
    return prefix


def changed(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_a_directory_is_known_by_its_training_documents_wherever_it_lies(tmp_path, write_corpus):
    write_corpus(tmp_path / "a", DOCUMENTS, [[9]])
    write_corpus(tmp_path / "other documents", [*DOCUMENTS[:3], [8, 7]], [[9]])
    write_corpus(tmp_path / "other bounds", [[1, 2], [3, 4], *DOCUMENTS[2:]], [[9]])
    write_corpus(tmp_path / "other held out", DOCUMENTS, [[8]])
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    ours = fingerprint(path=str(tmp_path / "a"))
    assert ours == fingerprint(path=str(tmp_path / "copy")) == fingerprint(path=str(tmp_path / "other held out"))
    assert ours != fingerprint(path=str(tmp_path / "other documents"))
    assert ours != fingerprint(path=str(tmp_path / "other bounds"))


@pytest.mark.parametrize("place", [0, -1, 40_000])
@pytest.mark.parametrize("kind", [bin_path, idx_path])
def test_pairs_of_megatron_are_known_by_their_content(tmp_path, kind, place):
    prefix = write_pair(tmp_path / "pair", np.arange(40_000), 9_000)
    before = fingerprint(prefixes=[str(prefix)])
    assert before == fingerprint(prefixes=[str(tmp_path / "p*r")])
    changed(kind(prefix), place)
    assert fingerprint(prefixes=[str(prefix)]) != before


def test_the_order_of_pairs_counts(tmp_path):
    a, b = (write_pair(tmp_path / name, np.full(10, id), 2) for id, name in enumerate("ab"))
    assert pairs_fingerprint([a, b]) != pairs_fingerprint([b, a])


def test_of_huge_pairs_a_bounded_number_of_bytes_is_read(tmp_path, monkeypatch):
    prefixes = []
    for number in range(3):
        prefixes.append(tmp_path / f"{number}")
        for path in (bin_path(prefixes[-1]), idx_path(prefixes[-1])):
            with open(path, "wb") as stream:
                stream.truncate(1 << 40)
    read = SimpleNamespace(bytes=0)

    def count(descriptor, size, start):
        read.bytes += size
        return bytes(size)

    monkeypatch.setattr("os.pread", count)
    pairs_fingerprint(prefixes)
    assert 4096 * 4000 < read.bytes <= 4096 * 4096


def test_a_pair_that_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"data\.sources\[0\].*x\.idx: No such file"):
        fingerprint(prefixes=[str(tmp_path / "x")])
