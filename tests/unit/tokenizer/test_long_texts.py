"""A text in parts has the ids of the whole, whatever stands at the cuts, and its size in memory is that of a part."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools.train_tokenizer import train
from megatron_glm.tokenizer import long_texts, published
from megatron_glm.tokenizer.fast import accelerated
from megatron_glm.tokenizer.huggingface import HuggingFaceTokenizer
from megatron_glm.tokenizer.model_proto import normalizer_name
from megatron_glm.tokenizer.sentencepiece_model import SentencePieceTokenizer
from megatron_glm.tokenizer.special import ROLE_PIECES

SPACES = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\xa0", "\u3000", "\u2028", "\x00", "\x1c", "\x85"]
JOINED = ["\u200b", "\u200d", "\ufeff", "\u0301", "\u0308\u0301", "\u0345", "\ufe0f", "\u037a", "\ufe70", "\u2581", "İ"]
WORDS = ["the", "don't", "'s", "naïve", "中文", "中。", "，我", "3.14", "Σ", "각", "🏽", *ROLE_PIECES.values()]
TEXT = st.lists(st.sampled_from(SPACES + JOINED + WORDS) | st.text(max_size=4), max_size=12).map("".join)
CONTEXTS = ["a{0} b{0}", "{0} {0}\n{0}", "x {0}。{0} 中{0}\u0301 {0}"]
NAMES = ["bert", "gpt2", "roberta", "chinese"]


@pytest.fixture(scope="session", params=NAMES)
def published_tokenizer(request, shared):
    if request.param == "bert":
        return published.bert_uncased(shared("vocab/bert-base-uncased-vocab.txt"))
    if request.param == "chinese":
        return published.chinese(shared("vocab/cog-pretrain.model"))
    files = (shared(f"vocab/{request.param}-{name}") for name in ("vocab.json", "merges.txt"))
    return getattr(published, request.param)(*files)


@pytest.fixture(scope="session")
def of_merges():
    """A SentencePiece model of the other kind."""
    return train(["the model fills blanks, and reads the text on both sides of a blank"] * 5, 320, model_type="bpe")


@pytest.fixture(
    scope="session",
    params=["sentencepiece_tokenizer", "of_merges", "bpe_tokenizer", "bpe_without_prefix_space", "wordpiece_tokenizer"],
)
def any_tokenizer(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def bpe_without_prefix_space(bpe_tokenizer):
    return HuggingFaceTokenizer("bpe", bpe_tokenizer.model, bpe_tokenizer.special, prefix_space=False)


@pytest.fixture
def tiny_parts(monkeypatch):
    """Cuts wherever one is safe."""
    monkeypatch.setattr(long_texts, "PART_CHARACTERS", 1)


def whole(tokenizer, texts):
    ids = tokenizer._encode(texts, continued=False)
    offsets = [offsets for _, offsets in tokenizer._encode_with_offsets(texts, continued=False)]
    return np.concatenate(ids).tolist(), [len(each) for each in ids], np.concatenate(offsets).tolist()


def in_parts(tokenizer, texts):
    ids, lengths = tokenizer.encode_flat(texts)
    with_offsets = tokenizer.encode_with_offsets(texts)
    assert np.array_equal(ids, with_offsets[0])
    assert np.array_equal(lengths, with_offsets[1])
    assert np.array_equal(ids, np.concatenate([tokenizer.encode(text) for text in texts]))
    return ids.tolist(), lengths.tolist(), with_offsets[2].tolist()


@settings(max_examples=150)
@given(texts=st.lists(TEXT, min_size=1, max_size=3))
@pytest.mark.usefixtures("tiny_parts")
def test_a_text_in_parts_has_the_ids_and_offsets_of_the_whole(any_tokenizer, texts):
    assert in_parts(any_tokenizer, texts) == whole(any_tokenizer, texts)


@pytest.mark.golden
@settings(max_examples=300)
@given(texts=st.lists(TEXT, min_size=1, max_size=3))
@pytest.mark.usefixtures("tiny_parts")
def test_so_it_is_with_the_published_vocabularies(published_tokenizer, texts):
    assert in_parts(published_tokenizer, texts) == whole(published_tokenizer, texts)


@pytest.mark.golden
@pytest.mark.usefixtures("tiny_parts")
@pytest.mark.parametrize("step", [211, pytest.param(1, marks=pytest.mark.slow)])
def test_any_character_may_stand_at_a_cut(published_tokenizer, step):
    characters = [chr(code) for code in range(0, 0x110000, step) if code >> 11 != 0x1B]
    for context in CONTEXTS:
        texts = [context.format(character) for character in characters]
        parts = published_tokenizer.encode_batch(texts)
        for text, found, expected in zip(
            texts, parts, published_tokenizer._encode(texts, continued=False), strict=True
        ):
            assert np.array_equal(found, expected), text


@pytest.mark.golden
def test_long_prose_is_cut_and_has_the_same_ids(published_tokenizer):
    draw = np.random.default_rng(0)
    words = [
        "river",
        "don't",
        "中文字",
        "，",
        "12.5",
        "x" * 30,
        "naïve",
        "\n",
        "e\u0301",
        " ",
        "。",
        "[MASK]",
        "END.",
        "the",
    ]
    text = " ".join(words[k] for k in draw.integers(0, len(words), 100_000))
    assert len(list(long_texts.parts(text, published_tokenizer._safe_cut))) > 2
    assert np.array_equal(published_tokenizer.encode(text), published_tokenizer._encode([text], continued=False)[0])


@given(text=TEXT, characters=st.integers(1, 9))
def test_parts_are_the_text_and_none_but_the_last_is_short(text, characters):
    parts = list(long_texts.parts(text, long_texts.BEFORE_SPACE, characters))
    assert "".join(parts) == text
    assert all(len(part) >= characters for part in parts[:-1])


@pytest.mark.usefixtures("tiny_parts")
def test_a_fast_tokenizer_cuts_what_it_leaves_to_its_reference(wordpiece_tokenizer):
    pytest.importorskip("nanotoken")
    fast = accelerated(wordpiece_tokenizer)
    texts = ["the model fills blanks", "中文 and more"]
    assert in_parts(fast, texts) == whole(wordpiece_tokenizer, texts)


@pytest.mark.parametrize("change", [{"pre_tokenizer": {"type": "Whitespace"}}, {"normalizer": {"type": "NFKC"}}])
def test_where_nothing_is_known_of_the_cuts_a_text_stays_whole(bpe_tokenizer, change, monkeypatch):
    model = json.dumps(json.loads(bpe_tokenizer.model) | change).encode()
    other = HuggingFaceTokenizer("bpe", model, bpe_tokenizer.special, prefix_space=True)
    assert other._safe_cut is None
    expected = other.encode("the thing and the other")
    monkeypatch.setattr(long_texts, "PART_CHARACTERS", 1)
    assert np.array_equal(other.encode("the thing and the other"), expected)


def test_a_sentencepiece_model_is_cut_only_if_no_piece_and_no_rule_reaches_over_a_space(sentencepiece_tokenizer):
    model = sentencepiece_tokenizer._model
    added = [ROLE_PIECES[role] for role, id in sentencepiece_tokenizer.special.by_role().items() if id is not None]

    def with_message(message):
        return SentencePieceTokenizer.with_special(model + message, added)

    assert with_message(b"")._safe_cut is long_texts.BEFORE_ONE_SPACE
    piece = "of▁the".encode()
    assert with_message(b"\x0a" + bytes([len(piece) + 2, 0x0A, len(piece)]) + piece)._safe_cut is None
    assert with_message(b"\x1a\x0e\x0a\x0cuser_defined")._safe_cut is None


def test_the_rules_of_a_sentencepiece_model_are_read(sentencepiece_tokenizer, shared):
    assert normalizer_name(sentencepiece_tokenizer._model) == "identity"
    assert normalizer_name(shared("vocab/cog-pretrain.model").read_bytes()) == "nmt_nfkc"
    assert normalizer_name(b"") is None


def test_memory_does_not_grow_with_the_text(bpe_tokenizer, tmp_path):
    bpe_tokenizer.save(tmp_path)
    program = (
        "import resource, sys\n"
        "from megatron_glm.tokenizer.loading import load_tokenizer\n"
        "tokenizer = load_tokenizer(sys.argv[1])\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "tokenizer.encode('the thing ' * 50_000)\n"
        "before, (ids, lengths) = peak(), tokenizer.encode_flat(['the thing ' * 400_000])\n"
        "print(len(ids), peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    tokens, grown = map(int, done.stdout.split())
    assert tokens == 6 * 400_000 + 1
    assert grown < 150  # MB; at once the library takes 300 and more
