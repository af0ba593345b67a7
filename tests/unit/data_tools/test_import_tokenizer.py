"""The command that takes over a published vocabulary."""

import json

import pytest

from data_tools import import_tokenizer
from megatron_glm.tokenizer.loading import load_tokenizer


def run(*arguments):
    return import_tokenizer.main([str(argument) for argument in arguments])


@pytest.fixture
def bert_vocab(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]) + "\n")
    return path


def test_a_word_piece_vocabulary_becomes_a_directory(bert_vocab, tmp_path, capfd):
    assert run("--kind", "bert", "--vocab", bert_vocab, "--block-mask", "--output", tmp_path / "t") == 0
    tokenizer = load_tokenizer(tmp_path / "t")
    assert (tokenizer.kind, tokenizer.vocab_size) == ("wordpiece", 12)
    assert tokenizer.encode("A b").tolist() == [5, 6]
    assert "wordpiece, 12 ids, hash " + tokenizer.content_hash[:12] in capfd.readouterr().out


@pytest.mark.golden
@pytest.mark.parametrize(
    ("kind", "vocab", "merges", "ids"),
    [
        ("bert", "vocab/bert-base-uncased-vocab.txt", None, 30526),
        ("gpt2", "vocab/gpt2-vocab.json", "vocab/gpt2-merges.txt", 50265),
        ("roberta", "vocab/roberta-vocab.json", "vocab/roberta-merges.txt", 50269),
        ("chinese", "vocab/cog-pretrain.model", None, 50010),
    ],
)
def test_every_published_vocabulary_can_be_imported(shared, tmp_path, kind, vocab, merges, ids):
    merges_arguments = ["--merges", shared(merges)] if merges else []
    assert run("--kind", kind, "--vocab", shared(vocab), *merges_arguments, "--output", tmp_path / "t") == 0
    assert load_tokenizer(tmp_path / "t").vocab_size == ids


def test_merges_are_asked_for_where_they_are_needed_only(bert_vocab, tmp_path, capfd):
    assert run("--kind", "gpt2", "--vocab", bert_vocab, "--output", tmp_path / "t") == 2
    assert "error: --merges: needed with --kind gpt2" in capfd.readouterr().err
    assert run("--kind", "bert", "--vocab", bert_vocab, "--merges", bert_vocab, "--output", tmp_path / "t") == 2
    assert "error: --merges: not used with --kind bert" in capfd.readouterr().err


def test_a_wrong_vocabulary_leaves_nothing(tmp_path, capfd):
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0}))
    assert run("--kind", "bert", "--vocab", tmp_path / "vocab.json", "--output", tmp_path / "t") == 2
    assert "is --kind right?" in capfd.readouterr().err
    assert not (tmp_path / "t").exists()
