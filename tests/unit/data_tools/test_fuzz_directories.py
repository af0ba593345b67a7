"""Damaged data directories: whatever was changed is noticed by verify, and nothing that is read is silently wrong."""

import json
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_tools import inspect, verify
from data_tools.preprocess import Request, preprocess
from megatron_glm.data.manifest import MANIFEST, SPLITS, read_manifest
from megatron_glm.data.seal import sealed
from megatron_glm.data.shards import ShardSet
from megatron_glm.errors import DataError
from tests.damage import damaged, damaged_tree, to_json
from tests.fuzzing import bounded, fuzz, fuzz_test, replaced


@pytest.fixture(scope="module")
def whole(tmp_path_factory, prose, tokenizer_directory):
    root = tmp_path_factory.mktemp("corpus")
    text = prose(root / "a.txt", 12)
    text.write_bytes(text.read_bytes() + b"\n\nbroken \xff\n")
    request = Request(
        [str(text)],
        str(tokenizer_directory),
        root / "data",
        held_out=0.3,
        workers=1,
        shard_tokens=300,
        sentences=True,
        malformed="quarantine",
    )
    preprocess(request)
    return root / "data"


def command_ends_well(main, capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    told = capsys.readouterr()
    assert code in (0, 2)
    assert told.err.count("\n") <= 1
    assert "\x1b" not in told.err
    return code


def read_all(directory):
    for split in SPLITS:
        shards = ShardSet(directory, split)
        starts = [shards.document_start(k) for k in range(shards.num_documents + 1)]
        for start, stop in pairwise(starts):
            ids = shards.tokens(start, stop)
            assert len(ids) == stop - start >= 0
            assert ((ids >= 0) & (ids < shards.manifest["tokenizer"]["vocab_size"])).all()
            shards.sequence_ends(start, stop)
        if shards.num_tokens:
            assert 0 <= shards.find_document(shards.num_tokens - 1) < shards.num_documents


@fuzz_test
def test_verify_notices_every_change_of_every_file_by_fuzz(whole, capsys, examples):
    files = {str(path.relative_to(whole)): path.read_bytes() for path in sorted(whole.rglob("*")) if path.is_file()}
    kinds = {name.rpartition(".")[2]: name for name in files}  # one of each
    assert kinds.keys() == {"json", "jsonl", "bin", "idx", "origins"}

    @fuzz(examples)
    @given(st.sampled_from(sorted(kinds.values())).flatmap(lambda name: st.tuples(st.just(name), damaged(files[name]))))
    def holds(damage):
        name, content = damage
        with replaced(whole, {name: content}) as path, bounded():
            assert command_ends_well(verify.main, capsys, path, "--full") == (0 if content == files[name] else 2)
            try:
                read_all(path)
            except DataError:
                assert content != files[name]

    holds()


@fuzz_test
def test_no_byte_of_a_manifest_changes_unnoticed_by_fuzz(whole, tmp_path, examples):
    original = (whole / MANIFEST).read_bytes()

    @fuzz(examples)
    @given(content=damaged(original))
    def holds(content):
        (tmp_path / MANIFEST).write_bytes(content)
        with bounded():
            try:
                read_manifest(tmp_path)
                assert content == original
            except DataError:
                assert content != original

    holds()


@fuzz_test
def test_a_manifest_that_is_sealed_anew_is_refused_or_true_by_fuzz(whole, capsys, tokenizer_directory, examples):
    tree = json.loads((whole / MANIFEST).read_bytes())
    tree.pop("sha256")

    @fuzz(examples)
    @given(tree=damaged_tree(tree))
    def holds(tree):
        with replaced(whole, {MANIFEST: sealed(to_json(tree, indent=1))}) as path, bounded():
            for flags in ([], ["--full"], ["--tokenizer", tokenizer_directory]):
                command_ends_well(verify.main, capsys, path, *flags)
            command_ends_well(inspect.main, capsys, path, "--document", 1, "--tokenizer", tokenizer_directory)
            with suppress(DataError):
                read_all(path)

    holds()


def sealed_anew(whole, change):
    """A manifest with a change, for `replaced`."""
    tree = json.loads((whole / MANIFEST).read_bytes())
    tree.pop("sha256")
    change(tree)
    return {MANIFEST: sealed(to_json(tree, indent=1))}


@pytest.mark.parametrize("place", ["documents", "tokens"])
@pytest.mark.parametrize("size", [2**61, 10**30])
def test_counts_that_nobody_has_are_refused(whole, place, size):
    def grow(tree):
        split = tree["splits"]["train"]
        for holder in (split, split["shards"][0]):
            holder[place] += size

    with replaced(whole, sealed_anew(whole, grow)) as path, pytest.raises(DataError, match="less than or equal to"):
        read_manifest(path)


def test_a_manifest_without_the_eos_that_it_promises_is_one_line(whole, capsys):
    with replaced(whole, sealed_anew(whole, lambda tree: tree["tokenizer"]["special"].pop("eos"))) as path:
        assert verify.main([str(path), "--full"]) == 2
    assert "the manifest's tokenizer has none" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../0", "/etc/0", "a", "", "0/1", "0\n", "00000"])
def test_a_shard_is_named_by_digits_alone_and_once(whole, name):
    def rename(tree):
        tree["splits"]["train"]["shards"][1]["name"] = name

    with replaced(whole, sealed_anew(whole, rename)) as path, pytest.raises(DataError, match=r"pattern|listed twice"):
        read_manifest(path)


def test_places_whose_differences_overflow_are_found(whole):
    shard = next((whole / "train").glob("*.origins"))
    content = np.array([0, 2**63 - 1, -2, 5], "<i8").tobytes()
    content += shard.read_bytes()[len(content) :]
    with replaced(shard.parent, {shard.name: content}), pytest.raises(DataError, match="place -2 does not come after"):
        verify._check_places(shard)
