"""Rows between processes: they arrive as they were, whole or not at all, and leave nothing."""

import gc
import os
import socket

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_glm.data.flat_row import FlatRow
from megatron_glm.data.step_transport import Kind, receive, send_rows, send_text

NAMES = tuple(FlatRow.__dataclass_fields__)
NARROW = {"key_start", "key_end", "query_start", "query_end", "token"}
TABLES = {"segments", "spans"}


@pytest.fixture
def pair():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        yield one, other


def row_of(seed, lengths):
    random = np.random.default_rng(seed)
    arrays = {}
    for name, length in zip(NAMES, lengths, strict=True):
        dtype = np.int32 if name in NARROW else np.int64
        shape = (length, 3) if name in TABLES else length
        arrays[name] = random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype=dtype)
    return FlatRow(**arrays)


rows = st.lists(
    st.builds(row_of, st.integers(0, 2**32), st.lists(st.integers(0, 70), min_size=len(NAMES), max_size=len(NAMES))),
    max_size=4,
)


@settings(max_examples=50, deadline=None)
@given(rows=rows, first_sample=st.integers(0, 2**62))
def test_rows_arrive_as_they_were_sent(rows, first_sample):
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        send_rows(one, first_sample, rows)
        message = receive(other)
    assert (message.kind, message.first_sample) == (Kind.STEP, first_sample)
    received = message.rows()
    assert len(received) == len(rows)
    for sent, row in zip(rows, received, strict=True):
        for name in NAMES:
            expected, found = getattr(sent, name), getattr(row, name)
            assert (expected.dtype, expected.shape) == (found.dtype, found.shape)
            assert np.array_equal(expected, found)
            assert found.flags.writeable  # or torch warns when it takes them


def test_a_text_arrives_as_it_was_sent(pair):
    text = "文 " * 300_000  # longer than any message of a socket
    send_text(pair[0], Kind.FAILURE, 5, text)
    message = receive(pair[1])
    assert (message.kind, message.first_sample, message.text()) == (Kind.FAILURE, 5, text)


def test_an_ended_sender_is_none_and_what_it_sent_before_arrives(pair):
    send_text(pair[0], Kind.FAILURE, 5, "last words")
    pair[0].close()
    assert receive(pair[1]).text() == "last words"
    assert receive(pair[1]) is None


def test_no_descriptor_stays_behind(pair):
    gc.collect()  # of the tests before
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        send_rows(pair[0], 0, [row_of(1, [5] * len(NAMES))])
        received = receive(pair[1]).rows()
        assert len(received) == 1
    del received
    assert len(os.listdir("/proc/self/fd")) == before
