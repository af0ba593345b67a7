"""The command that trains a tokenizer: exact size, exact text, equal bytes for equal inputs, clear refusals."""

import json
import subprocess
import sys

import pytest

from data_tools import train_tokenizer
from megatron_glm.tokenizer.loading import load_tokenizer

LINES = [
    "Rivers carry stones slowly to the sea, and grind them into sand on the way.",
    "The mountain was old; its water was clear, and nobody walked there in winter.",
    "Why does a tokenizer need a vocabulary? It trades the length of a text for the size of a table.",
] * 3


def run(*arguments):
    return train_tokenizer.main([str(argument) for argument in arguments])


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": line}) + "\n" for line in LINES))
    return path


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_the_size_is_the_total_and_text_comes_back_exactly(corpus, tmp_path, model_type):
    assert run("--input", corpus, "--vocab-size", 320, "--model-type", model_type, "--output", tmp_path / "t") == 0
    tokenizer = load_tokenizer(tmp_path / "t")
    assert tokenizer.vocab_size == 320
    assert tokenizer.special.block_mask is None
    for text in ("a\n\n  b\t c \r\n", " lead", "☃ 你好 <unk> [MASK]", *LINES):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_equal_inputs_give_equal_files(corpus, tmp_path):
    for name in ("one", "two"):
        assert run("--input", corpus, "--vocab-size", 320, "--output", tmp_path / name) == 0
    files = [path.name for path in (tmp_path / "one").iterdir()]
    assert sorted(files) == ["glm_tokenizer.json", "tokenizer.model"]
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in files)


def test_plain_text_and_other_keys_are_read_too(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n".join(LINES))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"content": line}) + "\n" for line in LINES))
    inputs = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    arguments = ["--text-key", "content", "--vocab-size", 320, "--block-mask", "--output", tmp_path / "t"]
    assert run("--input", *inputs, *arguments) == 0
    assert load_tokenizer(tmp_path / "t").special.block_mask == 319


def test_a_sample_is_the_same_for_any_order_of_files(tmp_path):
    from data_tools.inputs import open_inputs

    for name in ("a", "b"):
        lines = (json.dumps({"text": f"{name} {i}"}) + "\n" for i in range(400))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    files = open_inputs([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")], line_documents=False)
    chosen = [list(train_tokenizer.documents(order, "text", 0.25)) for order in (files, files[::-1])]
    assert sorted(chosen[0]) == sorted(chosen[1])
    assert 120 < len(chosen[0]) < 280  # 200 expected, standard deviation 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocab-size", "100"], "--vocab-size: 100 is too small, at least 300"),
        (["--vocab-size", "5000"], "--vocab-size: 5000, but this text allows at most"),
        (["--vocab-size", "320", "--sample-megabytes", "0"], "--sample-megabytes: 0 must be above 0"),
        (["--vocab-size", "320", "--text-key", "body"], "no key 'body'"),
    ],
)
def test_a_wrong_setting_is_one_line_and_leaves_nothing(corpus, tmp_path, capfd, arguments, message):
    assert run("--input", corpus, *arguments, "--output", tmp_path / "t") == 2
    assert f"error: {message}" in (error := capfd.readouterr().err) or message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [corpus]


def test_the_bound_it_names_is_accepted(corpus, tmp_path, capfd):
    run("--input", corpus, "--vocab-size", 5000, "--output", tmp_path / "t")
    bound = capfd.readouterr().err.split()[-1]
    assert run("--input", corpus, "--vocab-size", bound, "--output", tmp_path / "t") == 0
    assert load_tokenizer(tmp_path / "t").vocab_size == int(bound)


def test_text_too_small_for_any_size_is_told_so(tmp_path, capfd):
    (tmp_path / "x.jsonl").write_text('{"text": "ab ab ba"}\n')
    assert run("--input", tmp_path / "x.jsonl", "--vocab-size", 320, "--output", tmp_path / "t") == 2
    assert "ids at most, and 300 are the least; give more text" in capfd.readouterr().err


def test_broken_input_names_file_and_line(tmp_path, capfd):
    (tmp_path / "x.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    assert run("--input", tmp_path / "x.jsonl", "--vocab-size", 320, "--output", tmp_path / "t") == 2
    assert "x.jsonl:2: broken JSON" in capfd.readouterr().err


def test_text_without_letters_is_refused(tmp_path, capfd):
    (tmp_path / "x.jsonl").write_text('{"text": "  \\n "}\n')
    assert run("--input", tmp_path / "x.jsonl", "--vocab-size", 320, "--output", tmp_path / "t") == 2
    assert "there is no text" in capfd.readouterr().err


def test_an_output_that_exists_is_not_touched(corpus, tmp_path, capfd):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "mine").write_text("keep")
    assert run("--input", corpus, "--vocab-size", 320, "--output", tmp_path / "t") == 2
    assert "exists already; remove it or choose another name" in capfd.readouterr().err
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["mine"]


@pytest.mark.parametrize("name", ["train_tokenizer", "import_tokenizer", "sample_corpus"])
def test_the_commands_start_without_heavy_imports(name):
    program = (
        f"import sys, data_tools.{name}; "
        "print([m for m in ('torch', 'numpy', 'pydantic', 'tokenizers', 'sentencepiece') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
