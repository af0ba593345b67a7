"""The value under a key of a JSON line: the same, whichever library finds it."""

import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_tools import json_text
from data_tools.documents import DocumentReader
from data_tools.inputs import open_inputs, whole
from data_tools.json_text import value_reader

pytest.importorskip("simdjson")

LONG = "long enough for simdjson, " * 30
NUMBERS = [0, -0.0, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40, 1e308, 5e-324, 0.1]
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
# Pairs and no dictionary: a key may come twice.
PAIRS = st.lists(
    st.tuples(st.sampled_from(["text", "te", "", "a.b", "text\0"]) | st.text(max_size=3), VALUES), max_size=4
)
ODD_LINES = [
    b'{"text": "a", "text": "b"}',
    b'{"te\\u0078t": "a", "text": "b"}',
    b'{"te\\u0078t": "a"}',
    b'\xef\xbb\xbf{"text": "a"}',
    b' {"text": "a"}',
    b'{"text": "a"} x',
    b'{"text": "a"}\0',
    b'{"text": "a"}\r\n',
    b'{"text": "a\0b"}',
    b'{"text": "a\tb"}',
    b'{"text": "a\\u0000b"}',
    b'{"text": "\\ud83d\\ude00"}',
    b'{"text": "\\ud83d"}',
    b'{"text": "\\ude00\\ud83d"}',
    b'{"text": "a", "url": "\\ud83d"}',
    b'{"text": "\xed\xa0\x80"}',
    b'{"text": "\xff"}',
    b'{"text": "a", "url": "\xc0\x80"}',
    b'{"text": "\\x"}',
    b'{"text": "a", "n": NaN}',
    b'{"text": "a", "n": 01}',
    b'{"text": "a", "n": 1.}',
    b'{"text": "a", "n": 1e400}',
    b'{"text": "a", "n": 123456789012345678901234567890}',
    b'{"text": 5}',
    b'{"text": null}',
    b'{"text": ["a"]}',
    b'{"text": {"text": "a"}}',
    b'{"b": {"text": "a"}}',
    b'{"text": "a",}',
    b'["text"]',
    b'"text"',
    b"{}",
    b"{",
    b'{"b": ' + b"[" * 1500 + b"]" * 1500 + b', "text": "a"}',
]


@pytest.fixture(scope="module")
def readers():
    """With simdjson and without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_text, "find_spec", lambda name: None)
        plain = value_reader("text")
    return value_reader("text"), plain


@pytest.fixture
def all_by_simdjson(monkeypatch):
    monkeypatch.setattr(json_text, "_SHORTEST", 0)


def assert_alike(readers, line):
    with_simdjson, plain = (_outcome(read, line) for read in readers)
    assert type(with_simdjson) is type(plain)
    assert with_simdjson == plain


def _outcome(read, line):
    try:
        return read(line)
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        return type(error)


def test_a_long_line_is_read_by_simdjson_alone(monkeypatch):
    read = value_reader("text")
    monkeypatch.setattr(json_text.orjson, "loads", None)
    assert read(json.dumps({"text": LONG + "é"}).encode()) == LONG + "é"


def test_a_very_long_line_is_left_to_orjson_for_its_memory(monkeypatch):
    read = value_reader("text")
    monkeypatch.setattr(json_text, "_LONGEST", 2000)
    monkeypatch.setattr(json_text.orjson, "loads", lambda line: {"text": "by orjson"})
    assert read(json.dumps({"text": "a" * 2000}).encode()) == "by orjson"


@pytest.mark.usefixtures("all_by_simdjson")
@pytest.mark.parametrize("line", ODD_LINES, ids=lambda line: repr(line[:30]))
def test_an_odd_line_has_the_value_or_the_error_of_orjson(readers, line):
    assert_alike(readers, line)


@given(pairs=PAIRS)
def test_any_record_has_the_value_of_orjson(readers, pairs):
    fields = [json.dumps(name) + ": " + json.dumps(value, ensure_ascii=False) for name, value in pairs]
    line = "{" + ", ".join([*fields, f'"pad": "{LONG}"']) + "}"
    assert_alike(readers, line.encode(errors="surrogatepass"))


@settings(max_examples=500)
@given(data=st.data())
def test_a_damaged_line_has_the_value_or_the_error_of_orjson(readers, data):
    line = bytearray(json.dumps({"id": 12, "text": "naïve \U0001f600\n" + LONG}, ensure_ascii=False).encode())
    for place in data.draw(st.lists(st.integers(0, len(line) - 1), min_size=1, max_size=3)):
        line[place] = data.draw(st.sampled_from(b'"\\{}[]:,eE.-+0123456789u\0\t\n\xff\xc3\xed') | st.integers(0, 255))
    assert_alike(readers, bytes(line))


def test_a_reader_goes_on_behind_a_line_that_has_no_text(tmp_path):
    lines = [{"text": LONG}, {"url": LONG}, {"text": [LONG]}, {"text": LONG + "!"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (file,) = open_inputs([str(tmp_path / "a.jsonl")], line_documents=False)
    refused = []
    texts = [text for text, _ in DocumentReader(whole(file), "text", refused.append)]
    assert texts == [LONG, LONG + "!"]
    assert [each.reason for each in refused] == ["no text key", "text is no string"]
