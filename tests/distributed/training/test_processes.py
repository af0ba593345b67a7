"""How the processes of a run meet, and what they say if they do not."""

import socket
from contextlib import closing

import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.training import processes_cases as cases

pytestmark = pytest.mark.distributed


@pytest.fixture
def port():
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_stays_alone_says_where_it_waited(rank, port):
    (message,) = run_ranks(1, cases.alone_of_two, rank, port)
    assert message.startswith(f"rank {rank}: the processes do not meet at 127.0.0.1:{port} (")
    assert message.endswith("all machines reach each other (docs/launching.md)")
    assert "\n" not in message
