"""verify names what is wrong: quickly by size and structure, fully by every hash and id."""

import json

import numpy as np
import pytest

from data_tools.preprocess import Request, preprocess
from data_tools.verify import main
from megatron_glm.data.indexed_writer import IndexedWriter
from megatron_glm.data.pair_format import bin_path, idx_path
from megatron_glm.data.seal import sealed
from megatron_glm.files import sha256_of


@pytest.fixture
def directory(tmp_path, prose, tokenizer_directory):
    path = prose(tmp_path / "a.txt", 40)
    request = Request([str(path)], str(tokenizer_directory), tmp_path / "data", 0.2, workers=1, shard_tokens=400)
    preprocess(request)
    return tmp_path / "data"


def verify(directory, *flags, capsys):
    code = main([str(directory), *flags])
    output = capsys.readouterr()
    return code, output.out + output.err


@pytest.mark.parametrize("flags", [[], ["--full"]])
def test_whole_data_pass(directory, flags, capsys):
    code, output = verify(directory, *flags, capsys=capsys)
    assert code == 0
    assert "as the manifest says" in output


@pytest.mark.parametrize("damage", [lambda content: content[:-2], lambda content: content + b"\0\0"])
def test_a_file_of_another_size_is_named(directory, damage, capsys):
    path = directory / "train" / "00001.bin"
    path.write_bytes(damage(path.read_bytes()))
    code, output = verify(directory, capsys=capsys)
    assert code == 2
    assert f"{path}: bytes: {path.stat().st_size}, the manifest says" in output
    assert "1 of its" in output


def test_every_damaged_shard_is_named(directory, capsys):
    (directory / "train" / "00000.bin").unlink()
    idx = directory / "train" / "00002.idx"
    idx.write_bytes(b"TNTIDX\0\0\0" + idx.read_bytes()[9:])
    code, output = verify(directory, capsys=capsys)
    assert code == 2
    assert "00000.bin: No such file" in output
    assert "00002.idx: not an index of Megatron" in output
    assert "2 of its" in output


def test_a_changed_id_is_found_by_the_hash(directory, capsys):
    path = directory / "train" / "00001.bin"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    assert verify(directory, capsys=capsys)[0] == 0
    code, output = verify(directory, "--full", capsys=capsys)
    assert code == 2
    assert f"{path}: SHA-256 is" in output


@pytest.mark.parametrize(
    ("tokens", "message"),
    [([5, 60_000], "token 1 is id 60000, ids must be 0 …"), ([5, 6], "document 0 does not end with eos")],
)
def test_ids_and_ends_that_were_wrong_from_the_start_are_found(directory, tokens, message, capsys):
    path = directory / "manifest.json"
    manifest = _content(directory)
    shards = manifest["splits"]["train"]["shards"]
    prefix = directory / "train" / shards[0]["name"]
    if "eos" not in message:
        tokens = [*tokens, manifest["tokenizer"]["special"]["eos"]]
    bin_path(prefix).unlink()
    documents = shards[0]["documents"]
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        for _ in range(documents):
            writer.add_document(np.array(tokens))
    manifest["splits"]["train"]["tokens"] += len(tokens) * documents - shards[0]["tokens"]
    shards[0] |= {
        "tokens": len(tokens) * documents,
        "bin_bytes": bin_path(prefix).stat().st_size,
        "idx_bytes": idx_path(prefix).stat().st_size,
        "bin_sha256": sha256_of(bin_path(prefix)),
        "idx_sha256": sha256_of(idx_path(prefix)),
    }
    path.write_bytes(sealed(json.dumps(manifest).encode()))
    assert verify(directory, capsys=capsys)[0] == 0
    code, output = verify(directory, "--full", capsys=capsys)
    assert code == 2
    assert message in output


def test_a_directory_without_manifest_is_one_error(tmp_path, capsys):
    code, output = verify(tmp_path, capsys=capsys)
    assert code == 2
    assert output.startswith("error: no shards in")


def test_the_tokenizer_of_the_data_passes_and_another_is_named(directory, tokenizer_directory, tmp_path, capsys):
    assert verify(directory, "--tokenizer", str(tokenizer_directory), capsys=capsys)[0] == 0
    description = json.loads((tokenizer_directory / "glm_tokenizer.json").read_text())
    special = description["special"]
    special["eos"], special["cls"] = special["cls"], special["eos"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.model").write_bytes((tokenizer_directory / "tokenizer.model").read_bytes())
    (tmp_path / "other" / "glm_tokenizer.json").write_text(json.dumps(description))
    code, output = verify(directory, "--tokenizer", str(tmp_path / "other"), capsys=capsys)
    assert code == 2
    assert "the data were written with" in output


def test_a_library_that_cuts_text_otherwise_is_found_by_the_probes(directory, tokenizer_directory, capsys):
    manifest = _content(directory)
    manifest["tokenizer"]["probes"][1]["ids"].append(7)
    (directory / "manifest.json").write_bytes(sealed(json.dumps(manifest).encode()))
    code, output = verify(directory, "--tokenizer", str(tokenizer_directory), capsys=capsys)
    assert code == 2
    assert "for 'The quick brown fox" in output
    assert "install the libraries that wrote them (megatron_glm " in output


def test_a_manifest_that_was_changed_is_named(directory, capsys):
    path = directory / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"Hello, world!"', b'"hello, world!"'))
    code, output = verify(directory, capsys=capsys)
    assert code == 2
    assert "manifest.json: its content is not what its own hash" in output


def _content(directory):
    content = json.loads((directory / "manifest.json").read_text())
    del content["sha256"]
    return content
