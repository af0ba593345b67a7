"""Where sentences end: English, Chinese, and text that mixes them.

English is decided by nupunkt, a Punkt model that comes with the package: a full stop is told from that of an
abbreviation by what stands around it. Chinese is decided by its marks. The breaks of lines and paragraphs add
theirs. Nothing is downloaded, and the time is linear in the text, whatever the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from megatron_glm.errors import DataError
from megatron_glm.extras import install_command
from megatron_glm.tokenizer.base import Tokenizer

if TYPE_CHECKING:
    from nupunkt import PunktSentenceTokenizer

_BLOCK = 1 << 16  # characters that nupunkt gets at a time
_LONGEST_WORD = 500  # characters; nupunkt takes quadratic time in a row of marks without white space
_LONG_WORD = re.compile(rf"(?<!\S)\S{{{_LONGEST_WORD},}}")
_GAP = re.compile(r"\w\s")

_HAN = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_CLOSING = "”’」』）】〕〉》"
_CHINESE_END = re.compile(
    rf"(?:[。！？｡][。！？｡!?…]*|(?<=[{_HAN}{_CLOSING}])[!?…]+|(?<=[{_HAN}])\.(?=[{_HAN}]))"
    rf"(?P<closing>[{_CLOSING}\"\)\]]*)"
)
_GOES_ON = frozenset("，、；：,;:。！？｡…")  # after a closing quote: “你去吗？”，他问
_LINE_BREAKS = re.compile(r"\n\s*")
_WORD = re.compile(r"[^\W_]")
_ENUMERATOR = re.compile(r"\s*[(（]?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,5})[.)）]\s*")
_LONGEST_ENUMERATOR = 12  # characters, white space included


@dataclass(frozen=True)
class Encoded:
    """The ids of documents, and their sentences; none of them is empty, and those of a document tile its ids."""

    ids: np.ndarray  # int32 [n], of all documents one after another
    lengths: np.ndarray  # int64 [k], tokens of each document
    sentence_lengths: np.ndarray  # int64 [m], tokens of each sentence
    sentences: np.ndarray  # int64 [k], sentences of each document


def encode_sentences(tokenizer: Tokenizer, texts: Sequence[str]) -> Encoded:
    """The ids of whole documents, cut where sentences end.

    No token is split: one that reaches into the next sentence belongs to the one in which it begins. A line break
    belongs to the sentence before it. A sentence without a token of its own joins the next.

    Raises:
        DataError: nupunkt is not installed.
    """
    ids, lengths, offsets = tokenizer.encode_with_offsets(texts)
    sentence_lengths, first = [np.empty(0, np.int64)], 0
    for text, length in zip(texts, lengths.tolist(), strict=True):
        cuts = _token_cuts(text, *offsets[first : first + length].T)
        sentence_lengths.append(np.diff(cuts, prepend=0))
        first += length
    sentences = np.array([len(each) for each in sentence_lengths[1:]], np.int64)
    return Encoded(ids, lengths, np.concatenate(sentence_lengths), sentences)


def sentence_ends(text: str) -> np.ndarray:
    """Where the sentences of a text end, ascending, the last with the text: int64 [s], in characters.

    A sentence holds the closing quotes and brackets and the line breaks behind its mark, but not the spaces. Marks
    without a word belong to the sentence before, "1." and "(b)" to the one they number.

    Raises:
        DataError: nupunkt is not installed.
    """
    ends = {*_english_ends(text), *_chinese_ends(text), *_line_ends(text), len(text)}
    kept: list[int] = []
    start, seen, has_word = 0, 0, False
    for end in sorted(ends - {0}):
        has_word = has_word or _WORD.search(text, seen, end) is not None
        seen = end
        if not has_word:
            kept[-1:] = [end] if kept else []
        elif end - start <= _LONGEST_ENUMERATOR and end < len(text) and _ENUMERATOR.fullmatch(text, start, end):
            continue
        else:
            kept.append(end)
        start, has_word = end, False
    return np.array(kept or ([len(text)] if text else []), np.int64)


@cache
def load_splitter() -> PunktSentenceTokenizer:
    """The English model, once a process.

    Raises:
        DataError: nupunkt is not installed.
    """
    try:
        from nupunkt import load_default_model
    except ImportError as error:
        raise DataError(
            "--sentences: English sentences are found by nupunkt, which is not installed; "
            f"{install_command('sentences')}"
        ) from error
    return load_default_model()


def _token_cuts(text: str, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The tokens before the end of each sentence, from the offsets of the tokens [n]: int64 [s], ascending to n."""
    stops = sentence_ends(text)
    words_stop = np.array([_without_space(text, stop) for stop in stops.tolist()], np.int64)
    # A token is of the sentence in whose words it begins; one of white space, if the sentence holds all of it.
    begun = starts.searchsorted(words_stop)
    of_space = np.minimum(starts.searchsorted(stops), ends.searchsorted(stops, side="right"))
    cuts = np.append(np.maximum(begun, of_space)[:-1], len(starts))
    return np.unique(cuts[cuts > 0])


def _without_space(text: str, stop: int) -> int:
    """Where the white space before a place begins."""
    while stop and text[stop - 1].isspace():
        stop -= 1
    return stop


def _english_ends(text: str) -> Iterator[int]:
    splitter = load_splitter()
    for start, stop in _blocks(text):
        block = _LONG_WORD.sub(_defused, text[start:stop])
        spans = list(splitter.span_tokenize(block))
        for _, end in spans[:-1]:  # the last one ends with the block
            yield start + end


def _blocks(text: str) -> Iterator[tuple[int, int]]:
    """Stretches of a text, cut behind a word where no sentence can end: starts and stops."""
    start = 0
    while len(text) - start > _BLOCK:
        gaps = _GAP.finditer(text, start + _BLOCK // 2, start + _BLOCK)
        stop = max((gap.end() for gap in gaps), default=start + _BLOCK)
        yield start, stop
        start = stop
    yield start, len(text)


def _defused(word: re.Match[str]) -> str:
    """A word of the same length without marks but at its end."""
    return "x" * (len(word[0]) - _LONGEST_WORD // 10) + word[0][-_LONGEST_WORD // 10 :]


def _chinese_ends(text: str) -> Iterator[int]:
    line = quotes = seen = 0  # straight quotes since the line began
    for found in _CHINESE_END.finditer(text):
        end = found.start("closing")
        if (new_line := text.rfind("\n", seen, end)) >= line:
            line, quotes, seen = new_line, 0, new_line
        quotes += text.count('"', seen, end)
        seen = end
        for sign in found["closing"]:
            quotes += sign == '"'
            if sign == '"' and quotes % 2:  # it opens the next sentence
                break
            end += 1
        seen = found.end()
        of_title = any(sign in "》〉" for sign in found["closing"])
        if not of_title and text[end : end + 1] not in _GOES_ON:
            yield end


def _line_ends(text: str) -> Iterator[int]:
    for breaks in _LINE_BREAKS.finditer(text):
        # A line that goes on in lower case was broken for its length.
        if breaks[0].count("\n") > 1 or not text[breaks.end() : breaks.end() + 1].islower():
            yield breaks.start() + breaks[0].rindex("\n") + 1
