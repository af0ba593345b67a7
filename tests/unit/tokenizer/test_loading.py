"""A tokenizer directory: the same after a round trip, and one clear line when it is damaged."""

import hashlib
import json
import shutil

import numpy as np
import pytest

from megatron_glm.errors import TokenizerError
from megatron_glm.tokenizer.description import DESCRIPTION_FILE, MODEL_FILES
from megatron_glm.tokenizer.loading import load_tokenizer

TEXT = "The tokenizer keeps  every space.\n\nAnd [MASK] is text."


@pytest.fixture
def directory(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def change(directory, **entries):
    path = directory / DESCRIPTION_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_a_saved_tokenizer_is_the_same_when_loaded(tokenizer, directory):
    loaded = load_tokenizer(str(directory))
    assert loaded.kind == tokenizer.kind
    assert loaded.special == tokenizer.special
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.content_hash == tokenizer.content_hash
    assert loaded.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
    assert np.array_equal(loaded.sentence_ends(), tokenizer.sentence_ends())


def test_saving_again_gives_the_same_bytes(directory, tmp_path):
    load_tokenizer(directory).save(tmp_path / "copy")
    assert {path.name for path in directory.iterdir()} == {path.name for path in (tmp_path / "copy").iterdir()}
    assert all(path.read_bytes() == (tmp_path / "copy" / path.name).read_bytes() for path in directory.iterdir())


def test_the_hash_does_not_depend_on_the_place(directory, tmp_path):
    shutil.move(directory, tmp_path / "elsewhere")
    moved = load_tokenizer(tmp_path / "elsewhere")
    moved.save(directory)
    assert load_tokenizer(directory).content_hash == moved.content_hash


def test_the_hash_tells_tokenizers_apart(sentencepiece_tokenizer, bpe_tokenizer, wordpiece_tokenizer):
    assert len({t.content_hash for t in (sentencepiece_tokenizer, bpe_tokenizer, wordpiece_tokenizer)}) == 3


def test_a_missing_directory_is_named(tmp_path):
    with pytest.raises(TokenizerError, match=r"no tokenizer directory '.*nowhere'.*train_tokenizer"):
        load_tokenizer(tmp_path / "nowhere")


def test_a_missing_description_is_named(tmp_path):
    with pytest.raises(TokenizerError, match=f"{DESCRIPTION_FILE}': No such file"):
        load_tokenizer(tmp_path)


def test_a_missing_model_is_named(tokenizer, directory):
    (directory / MODEL_FILES[tokenizer.kind]).unlink()
    with pytest.raises(TokenizerError, match=f"{MODEL_FILES[tokenizer.kind]}': No such file"):
        load_tokenizer(directory)


def test_a_changed_model_is_refused(tokenizer, directory):
    path = directory / MODEL_FILES[tokenizer.kind]
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(TokenizerError, match="was changed: its SHA-256"):
        load_tokenizer(directory)


@pytest.mark.parametrize("content", [b'{"kind": ', b"[]", b"\xff\xfe", b"[" * 100_000])
def test_a_broken_description_is_named(directory, content):
    (directory / DESCRIPTION_FILE).write_bytes(content)
    with pytest.raises(TokenizerError, match=f"{DESCRIPTION_FILE}': broken"):
        load_tokenizer(directory)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"format_version": 2}, "format_version is 2, this program reads 1"),
        ({"kind": "words"}, "kind is 'words', known are sentencepiece, wordpiece, bpe"),
        ({"vocab_size": "8000"}, "vocab_size: expected int, got '8000'"),
        ({"vocab_size": 7}, "vocab_size is 7, but the pieces are"),
        ({"special": {}}, r"special\.cls: missing"),
        ({"special": {"bos": {"piece": "<s>", "id": 1}}}, r"special\.bos: no such role"),
        ({"options": {}}, r"options\.\w+: expected .*, got None"),
    ],
)
def test_a_wrong_entry_is_named(directory, entries, message):
    change(directory, **entries)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(directory)


def test_duplicate_special_ids_are_refused(tokenizer, directory):
    special = json.loads((directory / DESCRIPTION_FILE).read_text())["special"]
    special["document_mask"]["id"] = tokenizer.special.end_of_piece
    change(directory, special=special)
    with pytest.raises(TokenizerError, match=r"tokenizer '.*': special tokens .* share the id"):
        load_tokenizer(directory)


def test_a_special_id_without_a_number_is_refused(directory):
    special = json.loads((directory / DESCRIPTION_FILE).read_text())["special"]
    special["mask"]["id"] = "4"
    change(directory, special=special)
    with pytest.raises(TokenizerError, match=r"special\.mask: expected"):
        load_tokenizer(directory)


def test_a_special_token_is_never_an_ordinary_piece(sentencepiece_tokenizer, tmp_path):
    sentencepiece_tokenizer.save(tmp_path)
    special = json.loads((tmp_path / DESCRIPTION_FILE).read_text())["special"]
    special["mask"]["id"] = 17
    change(tmp_path, special=special)
    with pytest.raises(TokenizerError, match="'mask': id 17 is an ordinary piece"):
        load_tokenizer(tmp_path)


def test_a_file_that_is_no_model_is_refused(tokenizer, directory):
    (directory / MODEL_FILES[tokenizer.kind]).write_bytes(b"not a model")
    change(directory, sha256=hashlib.sha256(b"not a model").hexdigest())
    with pytest.raises(TokenizerError, match=r"tokenizer '.*': not a "):
        load_tokenizer(directory)
