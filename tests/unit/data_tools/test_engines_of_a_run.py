"""A run with a fast tokenizer, or with sentences, writes the ids of a plain one."""

import json

import pytest

from data_tools import tokenizing
from data_tools.engine_proof import Comparison, Difference
from data_tools.preprocess import Request, main, preprocess
from megatron_glm.data.indexed import IndexedFile
from megatron_glm.data.manifest import SPLITS, read_manifest
from megatron_glm.errors import DataError
from megatron_glm.tokenizer import published


@pytest.fixture(scope="module")
def bpe_directory(tmp_path_factory):
    """A byte-level BPE of two merges."""
    directory = tmp_path_factory.mktemp("bpe")
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    signs = [*map(chr, printable), *(chr(256 + i) for i in range(256 - len(printable)))]
    pieces = [*signs, "th", "Ġth", "<|endoftext|>"]
    (directory / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
    (directory / "merges.txt").write_text("#version: 0.2\nt h\nĠ th\n")
    published.gpt2(directory / "vocab.json", directory / "merges.txt").save(directory / "tokenizer")
    return directory / "tokenizer"


@pytest.fixture
def run(tmp_path, prose, bpe_directory):
    """Preprocess prose into `tmp_path/<name>`."""
    path = prose(tmp_path / "a.txt", 80)

    def run(name, **options):
        given = {"held_out": 0.1, "workers": 1, "unit_bytes": 4000, "shard_tokens": 1500} | options
        preprocess(Request([str(path)], str(bpe_directory), tmp_path / name, **given))
        return tmp_path / name

    return run


def files(directory, *suffixes):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.suffix in suffixes or path.name in suffixes
    }


def test_a_fast_tokenizer_gives_the_same_shards_and_is_named_in_the_manifest(run):
    pytest.importorskip("gigatoken")
    plain, fast = run("plain", fast=False), run("fast", workers=2)
    assert files(plain, ".bin", ".idx", ".origins") == files(fast, ".bin", ".idx", ".origins")
    before, after = read_manifest(plain), read_manifest(fast)
    assert "gigatoken" in after.versions
    assert after.model_copy(update={"versions": before.versions}) == before


def test_a_fast_tokenizer_that_is_wrong_is_told_and_not_used(run, monkeypatch, capsys):
    pytest.importorskip("gigatoken")
    wrong = Comparison(True, Difference(text=3, token=5, expected=7, found=9))
    monkeypatch.setattr(tokenizing, "compare_engines", lambda reference, fast, texts: wrong)
    plain, fallen_back = run("plain", fast=False), run("fast")
    assert files(plain, ".bin", "manifest.json") == files(fallen_back, ".bin", "manifest.json")
    assert "warning: gigatoken" in (error := capsys.readouterr().err)
    assert "is wrong on document 3" in error


def test_a_run_is_not_continued_by_another_tokenizer_engine(run, monkeypatch):
    pytest.importorskip("gigatoken")

    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("data_tools.preprocess._check_inputs", fail)
        with pytest.raises(DataError, match="No space left"):
            run("data")
    with pytest.raises(DataError, match=r"gigatoken: the version is None, it was .*--restart"):
        run("data", fast=False)
    run("data")


@pytest.mark.parametrize("workers", [1, 2])
def test_sentences_are_stored_without_a_change_of_the_ids(run, workers):
    pytest.importorskip("nupunkt")
    plain, cut = run("plain", fast=False), run("sentences", sentences=True, workers=workers)
    assert files(plain, ".bin", ".origins") == files(cut, ".bin", ".origins")
    manifest = read_manifest(cut)
    assert manifest.options.sentences
    assert "nupunkt" in manifest.versions
    pairs = [IndexedFile(cut / split / shard.name) for split in SPLITS for shard in manifest.split(split).shards]
    assert sum(pair.num_sequences for pair in pairs) > 1.5 * sum(pair.num_documents for pair in pairs)
    for pair in pairs:
        pair.check(manifest.tokenizer.vocab_size, manifest.tokenizer.special["eos"])


def test_the_command_takes_both_options(tmp_path, run, prose, bpe_directory):
    pytest.importorskip("nupunkt")
    arguments = ["--input", str(prose(tmp_path / "b.txt", 9)), "--tokenizer", str(bpe_directory), "--workers", "1"]
    assert main([*arguments, "--output", str(tmp_path / "data"), "--sentences", "--no-fast"]) == 0
    assert read_manifest(tmp_path / "data").options.sentences
