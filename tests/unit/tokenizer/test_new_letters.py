"""Which texts have letters that the two libraries read in different ways: the same by their bytes and one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.tokenizer.new_letters import _NEW_LETTERS, has_no_new_letters

NEW = [character for first, last in _NEW_LETTERS for character in range(first, last + 1)]
NEAR = [code + shift for first, last in _NEW_LETTERS for code, shift in ((first, -1), (last, 1))]


def has_none_one_by_one(text):
    return set(map(ord, text)).isdisjoint(NEW)


@given(st.text(st.sampled_from([*map(chr, NEW[:60]), *map(chr, NEAR), *"aé漢한กऀ😀🤖"])))
def test_the_look_at_the_bytes_finds_what_a_look_at_each_character_finds(text):
    assert has_no_new_letters(text.encode()) == has_none_one_by_one(text)


@given(st.text())
def test_any_text_is_judged_like_one_by_one(text):
    assert has_no_new_letters(text.encode()) == has_none_one_by_one(text)


@pytest.mark.parametrize("around", ["", "a", "😀", "ꟍ", "é"])
def test_every_new_letter_is_found_and_no_neighbour(around):
    assert len(NEW) == 4657
    for code in NEW:
        assert not has_no_new_letters(f"{around}{chr(code)}{around}".encode())
    for code in set(NEAR) - set(NEW):
        assert has_no_new_letters(f"{around}{chr(code)}{around}".encode())
