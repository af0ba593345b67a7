"""Many shards read like one file, and what does not fit its manifest is refused when it is opened."""

import json
from itertools import chain

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megatron_glm.data import pair_set
from megatron_glm.data.seal import sealed
from megatron_glm.data.shards import ShardSet
from megatron_glm.errors import DataError

EOS = 50_001
DOCUMENTS = [[1, 2, 3], [4], [], [5, 6], [7], [8, 9, 10, 11], [12]]


@pytest.fixture
def directory(tmp_path, write_corpus):
    return write_corpus(tmp_path / "corpus", DOCUMENTS, [[20, 21]])


def test_many_shards_read_like_one_file(directory):
    shards = ShardSet(directory, "train")
    documents = [[*document, EOS] for document in DOCUMENTS]
    starts = np.cumsum([0, *map(len, documents)]).tolist()
    flat = list(chain.from_iterable(documents))
    assert (shards.num_documents, shards.num_tokens) == (len(documents), len(flat))
    assert [shards.document_start(k) for k in range(len(documents) + 1)] == starts
    for start in range(len(flat) + 1):
        for stop in range(start, len(flat) + 1):
            assert shards.tokens(start, stop).tolist() == flat[start:stop]
    assert shards.tokens(0, len(flat)).dtype == shards.tokens(2, 2).dtype == np.int32
    assert shards.ends_with_eos


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(0, 3), max_size=12))
def test_the_holder_of_a_token_is_found_whatever_shards_and_documents_are_empty(
    tmp_path_factory, write_corpus, lengths
):
    directory = tmp_path_factory.mktemp("corpus") / "data"
    shards = ShardSet(write_corpus(directory, [[1] * length for length in lengths], append_eos=False), "train")
    holders = [k for k, length in enumerate(lengths) for _ in range(length)]
    assert [shards.find_document(token) for token in range(shards.num_tokens)] == holders


def test_a_split_without_documents_can_be_opened(tmp_path, write_corpus):
    shards = ShardSet(write_corpus(tmp_path / "corpus", DOCUMENTS), "held_out")
    assert (shards.num_documents, shards.num_tokens) == (0, 0)
    assert shards.document_start(0) == 0
    assert shards.tokens(0, 0).tolist() == []


def test_only_a_bounded_number_of_pairs_stays_open(directory):
    shards = ShardSet(directory, "train", open_pairs=2)
    before = shards.tokens(0, 3)
    assert shards.tokens(0, shards.num_tokens).tolist()[:3] == before.tolist()
    assert shards._file.cache_info().currsize == 2


@pytest.mark.parametrize(("descriptors", "pairs"), [(1024, 192), (-1, 192), (10**6, 192), (256, 48), (64, 1)])
def test_what_may_be_open_leaves_descriptors_for_the_rest_of_the_process(descriptors, pairs):
    assert pair_set.pairs_within(descriptors) == pairs


def test_opening_a_set_opens_no_pair(directory, monkeypatch):
    monkeypatch.setattr(pair_set, "IndexedFile", None)
    assert ShardSet(directory, "train").num_documents == len(DOCUMENTS)


def test_places_outside_the_split_are_refused(directory):
    shards = ShardSet(directory, "train")
    for call in (lambda: shards.document_start(8), lambda: shards.find_document(-1), lambda: shards.tokens(0, 99)):
        with pytest.raises(IndexError):
            call()


def test_a_directory_without_shards_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match=r"no shards in .*corpora.*run python -m data_tools.preprocess first"):
        ShardSet(tmp_path / "corpora", "train")


@pytest.mark.parametrize("name", ["00001.bin", "00002.idx"])
def test_a_missing_or_cut_shard_is_named(directory, name):
    path = directory / "train" / name
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match=f"{name}: {len(content) - 1} bytes, the manifest says {len(content)}"):
        ShardSet(directory, "train")
    path.unlink()
    with pytest.raises(DataError, match=f"{name}: No such file"):
        ShardSet(directory, "train")


def test_a_shard_of_other_counts_is_refused_when_it_is_read(directory):
    train = directory / "train"
    for kind in ("bin", "idx"):  # the same sizes on disk, other documents
        (train / f"00000.{kind}").rename(train / "swap")
        (train / f"00001.{kind}").rename(train / f"00000.{kind}")
        (train / "swap").rename(train / f"00001.{kind}")
    _edit(directory, lambda manifest: manifest["splits"]["train"]["shards"][0].update(bin_bytes=20))
    _edit(directory, lambda manifest: manifest["splits"]["train"]["shards"][1].update(bin_bytes=14))
    with pytest.raises(DataError, match="expected 3 and 7; copy"):
        ShardSet(directory, "train").tokens(0, 1)


def test_an_id_outside_the_vocabulary_is_named_when_it_is_read(directory, monkeypatch):
    path = directory / "train" / "00001.bin"
    ids = np.fromfile(path, np.uint16)
    ids[2] = 60_000
    ids.tofile(path)
    shards = ShardSet(directory, "train")
    before = int(shards.shard_tokens[1]) + 2
    assert shards.tokens(0, before).size == before
    with pytest.raises(DataError, match=r"00001\.bin: token 2 is id 60000, ids must be 0 … 50007; copy"):
        shards.tokens(0, before + 1)
    monkeypatch.setattr(pair_set.IndexedFile, "tokens", lambda file, start, stop: np.array([3, -1], np.int32))
    with pytest.raises(DataError, match=r"00000\.bin: token 1 is id -1"):
        shards.tokens(0, 2)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda m: m.update(format_version=1), "format_version is 1, this program reads 3; write the data again"),
        (lambda m: m.update(surprise=1), "surprise: Extra inputs"),
        (lambda m: m.pop("append_eos"), "append_eos: Field required"),
        (lambda m: m["splits"]["train"]["shards"].pop(), "the split says 7 and 19"),
        (lambda m: m["splits"]["train"]["shards"][0].update(name="../x"), "shards.0.name"),
        (lambda m: m["splits"]["train"]["shards"][1].update(name="00000"), "shard '00000' is listed twice"),
        (lambda m: m["inputs"][0].update(documents_in=9), "9 documents in, but 8 out and 0 dropped"),
        (lambda m: m["inputs"][0].update(documents_in=9, documents_out=9), "gave 9 documents, the splits hold 8"),
    ],
)
def test_a_manifest_that_contradicts_its_format_or_itself_is_refused(directory, edit, message):
    _edit(directory, edit)
    with pytest.raises(DataError, match=message):
        ShardSet(directory, "train")


def test_a_broken_manifest_is_refused(directory):
    (directory / "manifest.json").write_text('{"format_version": 3,')
    with pytest.raises(DataError, match=r"manifest\.json: Invalid JSON"):
        ShardSet(directory, "train")


@given(data=st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bit_of_a_manifest_changes_unnoticed(directory, data):
    path = directory / "manifest.json"
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(changed)
    try:
        with pytest.raises(DataError, match=r"manifest\.json: .*(copy|write) the d(irectory|ata) again"):
            ShardSet(directory, "train")
    finally:
        path.write_bytes(whole)


def test_a_manifest_that_was_edited_says_so(directory):
    path = directory / "manifest.json"
    path.write_text(path.read_text().replace('"text_key": "text"', '"text_key": "body"'))
    with pytest.raises(DataError, match=r"manifest\.json: its content is not what its own hash .* was made of; copy"):
        ShardSet(directory, "train")


def _edit(directory, edit):
    path = directory / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    edit(manifest)
    path.write_bytes(sealed(json.dumps(manifest).encode()))
