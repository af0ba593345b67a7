"""Fast engines: the ids of the reference on every text, whatever the library does."""

import json
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_glm.tokenizer import engines, published
from megatron_glm.tokenizer.fast import FastTokenizer, accelerated, fast_library
from megatron_glm.tokenizer.huggingface import HuggingFaceTokenizer, _byte_signs
from megatron_glm.tokenizer.special import ROLE_PIECES

pytest.importorskip("gigatoken")
pytest.importorskip("nanotoken")

SPELLED = [*ROLE_PIECES.values(), "<s>", "</s>", "<mask>", "<pad>", "[PAD]", "[UNK]", "[SEP]", "[unused1]"]
SPACES = [" ", "  ", "\n", "\n\n", "\t", "\r\n", "\r", "\0", "\x0b", "\x0c", "\x85", "\xa0", "\u2028", "\u3000"]
JOINED = [
    "\u200b",
    "\u200d",
    "\ufeff",
    "\u0301",
    "\u0345",
    "\ufe0f",
    "👩\u200d🚀",
    "İ",
    "Σ",
    "ß",
    "각",
    "中文",
    "ﬁ",
    "🏽",
]
WORDS = ["the", "that's", "I'LL", "naïve", "3.14", "1234567890", "x" * 100, "y" * 101, "-" * 33, "…", "”"]
PIECES = st.sampled_from(SPELLED + SPACES + JOINED + WORDS)
TEXT = st.lists(PIECES | st.text(max_size=8) | st.binary(max_size=8).map(lambda raw: raw.decode(errors="replace")))
TEXTS = st.lists(TEXT.map("".join), max_size=6)
# Text that differs in nothing but the class of one character: letter, digit, space or other.
CLASSES = "a1!"
CONTEXTS = ["a{0}b", "1{0}2 {0}'s", "!{0}\n {0}", " {0}{0}\u0301"]


@pytest.fixture(scope="session")
def bpe_without_prefix_space(bpe_tokenizer):
    return HuggingFaceTokenizer("bpe", bpe_tokenizer.model, bpe_tokenizer.special, prefix_space=False)


@pytest.fixture(scope="session")
def class_probe(bpe_files, tmp_path_factory):
    """A BPE that merges a, 1 and ! with the first byte of what follows, if that is of the same class."""
    first_bytes = sorted({chr(code).encode()[0] for code in range(0x80, 0x110000, 32) if code >> 11 != 0x1B})
    signs = _byte_signs()
    merges = [(sign, signs[byte]) for sign in CLASSES for byte in first_bytes]
    pieces = [*signs, *map("".join, merges), "<|endoftext|>"]
    directory = tmp_path_factory.mktemp("probe")
    (directory / "vocab.json").write_text(json.dumps({piece: id for id, piece in enumerate(pieces)}))
    (directory / "merges.txt").write_text("\n".join(map(" ".join, merges)))
    gpt2 = published.gpt2(directory / "vocab.json", directory / "merges.txt")
    reference = HuggingFaceTokenizer("bpe", gpt2.model, gpt2.special, prefix_space=False)
    return reference, accelerated(reference)


@pytest.fixture(scope="session", params=["bpe_tokenizer", "bpe_without_prefix_space", "wordpiece_tokenizer"])
def pair(request):
    """A small tokenizer of each form, and the fast one."""
    reference = request.getfixturevalue(request.param)
    return reference, accelerated(reference)


@pytest.fixture(scope="session", params=["bert", "gpt2", "roberta"])
def published_pair(request, shared):
    """The published vocabularies, and the fast tokenizers."""
    if request.param == "bert":
        reference = published.bert_uncased(shared("vocab/bert-base-uncased-vocab.txt"))
    else:
        files = (shared(f"vocab/{request.param}-{name}") for name in ("vocab.json", "merges.txt"))
        reference = getattr(published, request.param)(*files)
    return reference, accelerated(reference)


class Planted:
    """An engine that refuses texts with one word, and misreads another."""

    def __init__(self, engine, error=ValueError):
        self._engine, self._error, self.calls = engine, error, 0

    def can_read(self, text):
        return "unreadablé" not in text

    def encode(self, texts):
        self.calls += 1
        if any("refused" in text for text in texts):
            raise self._error("refused")
        return self._engine.encode([text.replace("unreadablé", "misread") for text in texts])


def assert_same(reference, fast, texts):
    expected, found = reference.encode_flat(texts), fast.encode_flat(texts)
    assert found[0].dtype == np.int32
    assert found[1].dtype == np.int64
    assert np.array_equal(expected[1], found[1]), _first_difference(reference, fast, texts)
    assert np.array_equal(expected[0], found[0]), _first_difference(reference, fast, texts)


def _first_difference(reference, fast, texts):
    pairs = zip(texts, reference.encode_batch(texts), fast.encode_batch(texts), strict=True)
    return next((text, *map(np.ndarray.tolist, ids)) for text, *ids in pairs if ids[0].tolist() != ids[1].tolist())


@settings(deadline=None)  # the first call imports awkward
@given(texts=TEXTS)
def test_a_fast_tokenizer_gives_the_ids_of_its_reference(pair, texts):
    assert_same(*pair, texts)
    assert [ids.tolist() for ids in pair[1].encode_batch(texts)] == [pair[0].encode(text).tolist() for text in texts]


@pytest.mark.golden
@settings(max_examples=200, deadline=None)
@given(texts=TEXTS)
def test_a_fast_tokenizer_of_a_published_vocabulary_gives_the_ids_of_its_reference(published_pair, texts):
    assert_same(*published_pair, texts)


@pytest.mark.golden
def test_long_words_and_long_documents_are_no_exception(published_pair):
    draw = np.random.default_rng(0)
    letters = "".join(map(chr, draw.integers(97, 123, 50_000)))
    chinese = "".join(map(chr, draw.integers(0x4E00, 0x9FFF, 30_000)))
    prose = " ".join(letters[start:stop] for start, stop in pairwise(np.cumsum(draw.integers(1, 12, 6_000)).tolist()))
    runs = [sign * length for sign in " \n-0aé\u0301" for length in (15, 16, 17, 64, 99, 100, 101, 20_000)]
    assert_same(*published_pair, [letters, chinese, prose * 10, *runs])


@pytest.mark.golden
def test_characters_of_every_plane_are_read_alike(published_pair):
    characters = _characters(step=97)
    for context in CONTEXTS:
        assert_same(*published_pair, [context.format(character) for character in characters])


@pytest.mark.slow
@pytest.mark.golden
def test_every_character_is_read_alike(published_pair):
    context = " ".join(CONTEXTS)
    for characters in _characters(step=1, at_a_time=20_000):
        assert_same(*published_pair, [context.format(character) for character in characters])


def test_letters_and_digits_newer_than_the_reference_go_to_the_reference(class_probe):
    reference, fast = class_probe
    new = [character for character in _characters(step=1) if not fast._engine.can_read(character)]
    assert len(new) == 4657
    around = {chr(ord(character) + shift) for character in new for shift in (-1, 1)}
    assert_same(reference, fast, [sign + character for sign in CLASSES for character in {*new, *around}])
    # Should this fail, one of the libraries has changed to another version of Unicode.
    of_engine = [[ids[0] for ids in fast._engine.encode([sign + character for character in new])] for sign in CLASSES]
    of_reference = [_firsts(*reference.encode_flat([sign + character for character in new])) for sign in CLASSES]
    assert (np.array(of_engine) != of_reference).any(axis=0).all()


@pytest.mark.parametrize("step", [31, pytest.param(1, marks=pytest.mark.slow)])
def test_letters_digits_and_spaces_are_the_same_characters(class_probe, step):
    for characters in _characters(step, at_a_time=20_000):
        assert_same(*class_probe, [sign + character for sign in CLASSES for character in characters])


def test_a_fast_tokenizer_is_the_same_tokenizer(pair):
    reference, fast = pair
    assert fast.content_hash == reference.content_hash
    assert fast.special == reference.special
    assert fast.sentence_ends().tolist() == reference.sentence_ends().tolist()
    assert fast.never_generated().tolist() == reference.never_generated().tolist()
    text = "a [MASK] that[gMASK]"
    assert fast.encode_with_special(text).tolist() == reference.encode_with_special(text).tolist()
    assert fast.decode(fast.encode("a th.")) == reference.decode(reference.encode("a th."))
    for ours, theirs in zip(
        fast.encode_with_offsets(["a th. é"]), reference.encode_with_offsets(["a th. é"]), strict=True
    ):
        assert ours.tolist() == theirs.tolist()


def test_no_texts_have_no_tokens(pair):
    for tokenizer in pair:
        ids, lengths = tokenizer.encode_flat([])
        assert (ids.dtype, ids.shape, lengths.dtype, lengths.shape) == (np.int32, (0,), np.int64, (0,))
        assert tokenizer.encode_batch([]) == []


@settings(deadline=None)
@given(texts=st.lists(st.sampled_from(["refused", "unreadablé", "refused unreadablé", "", "that", "the other"])))
def test_what_an_engine_refuses_or_cannot_read_gets_the_ids_of_the_reference(pair, texts):
    reference, fast = pair
    assert_same(reference, FastTokenizer(reference, Planted(fast._engine)), texts)


def test_few_calls_find_a_refused_text(pair):
    reference, fast = pair
    planted = FastTokenizer(reference, Planted(fast._engine))
    assert_same(reference, planted, [*["that"] * 1000, "refused", *["the"] * 1000])
    assert planted._engine.calls < 2 * np.log2(2001) + 3


def test_a_panic_is_a_refusal_and_an_interruption_is_not(pair):
    reference, fast = pair
    panic = type("PanicException", (BaseException,), {})
    assert_same(reference, FastTokenizer(reference, Planted(fast._engine, panic)), ["that", "refused"])
    with pytest.raises(KeyboardInterrupt):
        FastTokenizer(reference, Planted(fast._engine, KeyboardInterrupt)).encode_flat(["that", "refused"])


def test_the_cache_of_gigatoken_is_dropped_when_the_process_has_grown(bpe_tokenizer, monkeypatch):
    sizes = iter(range(0, 10**12, engines._LARGEST_GROWTH // 2))
    monkeypatch.setattr(engines, "_resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(engines, "_CHECK_EVERY", 9)
    fast = accelerated(bpe_tokenizer)
    models = []
    for _ in range(12):
        assert_same(bpe_tokenizer, fast, ["that th"])
        models.append(fast._engine._model)
    assert len(set(map(id, models))) == 3  # each second text is a check, each third check finds it grown


def test_memory_is_told_in_bytes():
    block = np.ones(1 << 24)
    before = engines._resident_bytes()
    del block
    assert before - engines._resident_bytes() > 1 << 26


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
        ("normalizer", {"type": "NFC"}),
    ],
)
def test_a_definition_of_another_form_has_no_fast_tokenizer(bpe_tokenizer, key, value):
    model = json.dumps(json.loads(bpe_tokenizer.model) | {key: value}).encode()
    assert_has_none(HuggingFaceTokenizer("bpe", model, bpe_tokenizer.special, prefix_space=True))


def test_added_tokens_that_the_reference_finds_in_text_leave_no_fast_tokenizer(bpe_tokenizer):
    definition = json.loads(bpe_tokenizer.model)
    definition["added_tokens"][-1]["special"] = False
    model = json.dumps(definition).encode()
    assert_has_none(HuggingFaceTokenizer("bpe", model, bpe_tokenizer.special, prefix_space=True))


def assert_has_none(tokenizer):
    assert fast_library(tokenizer) is None
    assert accelerated(tokenizer) is None


def test_each_kind_has_its_library(bpe_tokenizer, wordpiece_tokenizer, sentencepiece_tokenizer):
    assert fast_library(bpe_tokenizer) == "gigatoken"
    assert fast_library(wordpiece_tokenizer) == "nanotoken"
    assert_has_none(sentencepiece_tokenizer)


@pytest.mark.parametrize(("kind", "module"), [("bpe", "gigatoken.gigatoken_rs"), ("wordpiece", "nanotoken")])
def test_without_its_library_there_is_no_fast_tokenizer(kind, module, request, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    assert accelerated(request.getfixturevalue(f"{kind}_tokenizer")) is None


def _firsts(ids, lengths):
    return ids[np.cumsum(lengths) - lengths]


def _characters(step, at_a_time=None):
    characters = [chr(code) for code in range(0, 0x110000, step) if not 0xD800 <= code < 0xE000]
    if at_a_time is None:
        return characters
    return [characters[first : first + at_a_time] for first in range(0, len(characters), at_a_time)]
