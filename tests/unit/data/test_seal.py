"""A sealed file is JSON as before, and every change of it is noticed."""

import json

from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.data.seal import sealed, unsealed

OBJECTS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), min_size=1, max_size=4)


@given(content=OBJECTS, indent=st.sampled_from([None, 1]))
def test_a_sealed_object_is_the_object_and_one_key_more(content, indent):
    text = sealed(json.dumps(content, indent=indent).encode())
    plain, fits = unsealed(text)
    assert fits
    assert json.loads(plain) == content
    assert set(json.loads(text)) == {*content, "sha256"}


@given(content=OBJECTS, data=st.data())
def test_every_changed_bit_and_every_cut_is_noticed(content, data):
    text = sealed(json.dumps(content).encode())
    place = data.draw(st.integers(0, len(text) - 1))
    changed = bytearray(text)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    assert not unsealed(bytes(changed))[1]
    assert not unsealed(text[:place])[1]
    assert not unsealed(text[:place] + b" " + text[place:])[1]


def test_what_was_never_sealed_does_not_fit():
    assert unsealed(b'{"a": 1}') == (b'{"a": 1}', False)
