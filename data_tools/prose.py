"""English sentences out of docstrings.

A docstring mixes prose with what a language model should not learn here: doctests, literal blocks,
signatures, tables of parameters, markup. `paragraphs` walks its lines once, drops those parts and
joins wrapped lines; `clean` removes inline markup and keeps the sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

_MIN_WORDS = 4
_MIN_LETTERS = 0.78  # share of letters, spaces and commas in a sentence; formulas and lists of names have less
_MAX_CODE_WORDS = 0.2  # share of words that are code rather than language

# Sections, by title, that are tables; what they say is about names and types.
_FIELD_SECTIONS = re.compile(
    r"(other |call |optional |required |keyword |type |class |instance |input |output )?"
    r"(parameters?|params?|args?|arguments?|keywords?|kwargs|inputs?|outputs?|shapes?|fields|members|signature|usage)"
    r"|(class |instance )?(attributes?|methods|properties)|returns?|yields?|receives|raises?|throws|warns|exceptions?"
    r"|except|side effects|see also|references?|bibliography",
    re.IGNORECASE,
)
_PROSE_DIRECTIVES = frozenset({"note", "warning", "tip", "hint", "important", "caution", "attention", "topic"})

_UNDERLINE = re.compile(r"([=\-~^*#\"'+`:.])\1{2,}$")
_DIRECTIVE = re.compile(r"\.\.\s+([\w:-]+)::\s*(.*)$")
_FIELD = re.compile(r"[:@](?:[a-z]+)(?:\s+[^:]*)?:(?=\s|$)|@\w+\b")
_SECTION = re.compile(r"(?:[#*]+\s*)?\**([A-Z][\w ]{2,24}?)\**\s*:\**(\s.*)?$")
_ITEM = re.compile(
    r"(?:[-*]\s+)?[*`'\"]*[\w.\[\]]+[*`'\"]*(?:,\s*[*`'\"]*[\w.]+[*`'\"]*)*(?:\s*\([^)]*\)+\s*(?::|--|—|-\s)|\s+:(?:\s|$)|\s*:\s*`)"
)
_BULLET = re.compile(r"(?:[-*+•]|\(?(?:\d{1,2}|[a-z])[.)])\s+")
_DOCTEST = (">>>", "... ", "$ ", "% ", "In [", "Out[", "# ", "#!")

_MARKUP = (
    (re.compile(r"\[`?~?([^\]`]*)`?\]\([^)\s]*\)"), r"\1"),  # [text](address)
    (re.compile(r"\[`~?([^\]`]*)`\]"), r"\1"),  # [`Class`]
    (re.compile(r"\s*\[[#*\w, -]{1,12}\]_+"), ""),  # [1]_ a citation
    (re.compile(r":[\w:.+-]+:`[!~]?([^`<]*?)\s*(?:<[^`>]*>)?`"), r"\1"),  # :class:`~name`
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}"), r"\1"),  # `text <address>`_
    (re.compile(r"``([^`]*)``"), r"\1"),
    (re.compile(r"`([^`]*)`_{0,2}"), r"\1"),
    (re.compile(r"(?<![\w*])\*\*([^*]+)\*\*(?!\w)"), r"\1"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?!\w)"), r"\1"),
    (re.compile(r"(?<!\w)\|([\w .-]+)\|(?!\w)"), r"\1"),
    (re.compile(r"(?<=\w)_{1,2}(?=[\s.,;:)]|$)"), ""),  # reference_
    (re.compile(r"</?(?:i|b|em|tt|code|p|br|strong|Tip|a)\b[^>]*>"), ""),
    (re.compile(r"::$"), ":"),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<=\w) (?=[.,;:!?](?:\s|$))"), ""),  # left by a citation or a link
)

_SENTENCE_GAP = re.compile(r"((?:(?<!\.)\.|[?!])[\"')\]]*)\s+(?=[\"'(\[]*[A-Z])")
_SENTENCE = re.compile(r"[\"'(\[]*[A-Z].*[.?!][\"')\]]*$", re.DOTALL)
_NOT_PROSE = re.compile(r"[={}\\<>|`~^@]|::|->|https?:|www\.|\bTODO\b|\bFIXME\b|\$|%[sd(]|_{2}")
_CODE_WORD = re.compile(r".*(?:[_()\[\]/]|\w\.\w|\d|[a-z][A-Z]|^[^\w\s\"'(]).*")
_FINAL_MARKS = "\"').,;:!?]"
_OPENING_MARKS = "\"'(["


def paragraphs(docstring: str) -> Iterator[str]:
    """The paragraphs of a docstring that may be prose, wrapped lines joined, markup still inside."""
    walker = _Walker()
    for line, following in pairwise([*docstring.expandtabs().splitlines(), ""]):
        walker.line(line.rstrip(), following.strip())
    walker.end_paragraph()
    yield from walker.paragraphs


class _Walker:
    """Reads a docstring line by line; what is skipped is either deeper than a line or reaches to the next blank one."""

    def __init__(self):
        self.paragraphs: list[str] = []
        self._buffer: list[str] = []
        self._indent = 0  # of the paragraph in the buffer
        self._skip_deeper_than: int | None = None
        self._skip_to_blank = False
        self._skip_section = False
        self._fenced = False

    def line(self, line: str, following: str) -> None:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith(("```", "~~~")):
            self.end_paragraph()
            self._fenced = not self._fenced and not (len(text) > 3 and text.endswith("```"))
        elif self._fenced:
            return
        elif not text:
            self.end_paragraph()
            self._skip_to_blank = False
        elif _UNDERLINE.match(text):
            self.end_paragraph()
        elif _UNDERLINE.match(following) and len(text) < 80:
            self.end_paragraph()
            self._skip_section = bool(_FIELD_SECTIONS.fullmatch(text.rstrip(":")))
            self._skip_deeper_than, self._skip_to_blank = None, False
        elif not self._skipped(indent):
            self._read(text, indent)

    def _skipped(self, indent: int) -> bool:
        if self._skip_deeper_than is not None and indent <= self._skip_deeper_than:
            self._skip_deeper_than = None
        return self._skip_section or self._skip_to_blank or self._skip_deeper_than is not None

    def _read(self, text: str, indent: int) -> None:
        if text.startswith(_DOCTEST) or text == "...":
            self.end_paragraph()
            self._skip_to_blank = True
        elif text.startswith(".."):
            self._read_directive(text, indent)
        elif _FIELD.match(text) or _ITEM.match(text):
            self.end_paragraph()
            self._skip_deeper_than = indent
        elif (section := _SECTION.match(text)) and _FIELD_SECTIONS.fullmatch(section[1]):
            self.end_paragraph()
            self._skip_deeper_than, self._skip_to_blank = indent, bool(section[2])
        else:
            self._read_prose(text, indent)

    def _read_directive(self, text: str, indent: int) -> None:
        self.end_paragraph()
        directive = _DIRECTIVE.match(text)
        if directive and directive[1].lower() in _PROSE_DIRECTIVES:
            if directive[2]:
                self._buffer, self._indent = [directive[2]], indent + 3
        else:  # a comment, a target, a figure, code, a formula
            self._skip_deeper_than = indent

    def _read_prose(self, text: str, indent: int) -> None:
        if bullet := _BULLET.match(text):
            self.end_paragraph()
            indent += bullet.end()
            text = text[bullet.end() :]
        elif self._buffer and indent != self._indent:
            # A definition list, or the first line of a docstring that hangs: never one sentence.
            self.end_paragraph()
        if not self._buffer:
            self._indent = indent
        self._buffer.append(text)
        if text.endswith("::"):
            self.end_paragraph()
            self._skip_deeper_than = indent - (bullet.end() if bullet else 0)

    def end_paragraph(self) -> None:
        if self._buffer:
            self.paragraphs.append(" ".join(self._buffer))
            self._buffer = []


def clean(paragraph: str) -> str:
    """The longest run of full sentences in a paragraph, without inline markup; empty if there is none."""
    for pattern, replacement in _MARKUP:
        paragraph = pattern.sub(replacement, paragraph)
    run: list[str] = []
    longest: list[str] = []
    for sentence in sentences(paragraph.strip()):
        run = [*run, sentence] if is_sentence(sentence) and _is_language(sentence) else []
        longest = max(longest, run, key=len)
    return " ".join(longest)


def sentences(text: str) -> list[str]:
    """Split a line of text after each full stop, question or exclamation mark that a capital letter follows."""
    return _SENTENCE_GAP.sub(r"\1\n", text).split("\n")


def is_sentence(text: str) -> bool:
    """A full sentence starts with a capital letter, ends in . ? or !, and has at least four words."""
    return bool(_SENTENCE.match(text)) and len(text.split()) >= _MIN_WORDS


def sentence_share(text: str) -> float:
    """The share of the UTF-8 bytes of `text` that lie in full sentences."""
    total = len(text.encode())
    full = sum(len(part.encode()) for line in text.split("\n") for part in sentences(line) if is_sentence(part))
    return full / total if total else 0.0


def _is_language(sentence: str) -> bool:
    if _NOT_PROSE.search(sentence):
        return False
    letters = sum(character.isalpha() or character in " ,'" for character in sentence)
    words = [word.rstrip(_FINAL_MARKS).lstrip(_OPENING_MARKS) for word in sentence.split()]
    code = sum(bool(_CODE_WORD.match(word)) for word in words)
    return letters >= _MIN_LETTERS * len(sentence) and code <= _MAX_CODE_WORDS * len(words)
