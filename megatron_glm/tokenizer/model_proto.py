"""What a SentencePiece model says of itself and its library does not tell.

A model is a protobuf message. Of its fields two are read here: normalizer_spec, and in it name.
"""

from __future__ import annotations

from collections.abc import Iterator

_NORMALIZER_SPEC, _NAME = 3, 1


def normalizer_name(model: bytes) -> str | None:
    """The rules by which a model normalizes text, as "nmt_nfkc"; None if it does not name them.

    Args:
        model: bytes that the library has read as a model.

    Source: sentencepiece_model.proto and the encoding of protobuf.
    """
    name = None
    for field, spec in _fields(model):
        if field == _NORMALIZER_SPEC:
            names = [value for inner, value in _fields(spec) if inner == _NAME]
            name = names[-1].decode() if names else name  # of a field that stands twice the last counts
    return name


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of the fields that have a length; the others are numbers."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        match tag & 7:
            case 0:  # a number of any size
                _, place = _varint(message, place)
            case 1:  # one of eight bytes
                place += 8
            case 5:  # of four
                place += 4
            case _:  # bytes, behind their number
                length, place = _varint(message, place)
                yield tag >> 3, message[place : place + length]
                place += length


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and the place behind it."""
    number = shift = 0
    while True:
        byte = message[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return number, place
