"""JSON has one meaning or none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.json_reading import DEEPEST, json_object, parse_json, string, whole_number

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(value=VALUES, indent=st.sampled_from([None, 1]), ascii_only=st.booleans())
def test_what_was_written_is_read(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert parse_json(text) == parse_json(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1, "b": 2, "a": 3}', 'the key "a" is repeated'),
        (b'{"x": {"a": 1, "a": 1}}', 'the key "a" is repeated'),
        (b"[NaN]", "NaN is no number of JSON"),
        (b"[-Infinity]", "-Infinity is no number of JSON"),
        (b"1e999", "1e999 is too large"),
        (b"9" * 5000, "4300 digits"),
        (b'"\\ud800"', "surrogates not allowed"),
        (b'{"\\udc00": 1}', "surrogates not allowed"),
        (b'\xff"a"', "invalid start byte"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"{}x", "Extra data"),
        (b"", "Expecting value"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), "nested more than 100 levels"),
        (b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1), "nested more than 100 levels"),
    ],
)
def test_what_has_no_meaning_or_two_is_a_value_error(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_what_is_just_allowed_is_read():
    assert parse_json('"\\ud83d\\ude00"') == "\U0001f600"  # a pair of surrogates is a character
    value = parse_json(b"[" * DEEPEST + b"]" * DEEPEST)
    assert json.dumps(value).count("[") == DEEPEST


@pytest.mark.parametrize("value", [True, -1, 2**63, 1.0, "1", None, [1]])
def test_a_size_is_a_whole_number(value):
    with pytest.raises(ValueError, match="expected a whole number"):
        whole_number(value)


def test_other_types_are_told_and_cut():
    assert whole_number(2**63 - 1) == 2**63 - 1
    with pytest.raises(ValueError, match=r"expected a string, got \[1\]"):
        string([1])
    with pytest.raises(ValueError, match="expected an object, got") as error:
        json_object(json.dumps(["x" * 5000]))
    assert len(str(error.value)) < 150
