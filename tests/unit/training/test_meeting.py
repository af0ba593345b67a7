"""Processes that wait for each other: what they say meanwhile, and when they give up."""

import threading
import time

import pytest

from megatron_glm.errors import RankError, is_of_machine
from megatron_glm.training.meeting import meeting

SECOND = {"RANK": "8", "WORLD_SIZE": "16", "LOCAL_RANK": "0", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


class Launcher:
    """One that ends when the test says so."""

    gone = False

    def has_ended(self):
        return self.gone


def test_the_first_process_of_a_machine_says_once_where_it_waits(capsys):
    with meeting(SECOND, silent_seconds=0.02):
        time.sleep(0.3)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: rank 8 on ")
    assert "has waited 0.02 s at node1:29500 for all 16 processes; machines that do not say this are missing" in line


@pytest.mark.parametrize(("local_rank", "silent_seconds"), [("1", 0.02), ("0", 30.0)])
def test_the_others_are_silent_and_so_is_a_meeting_that_does_not_take_long(capsys, local_rank, silent_seconds):
    with meeting(SECOND | {"LOCAL_RANK": local_rank}, silent_seconds=silent_seconds):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_a_process_whose_launcher_ends_does_not_wait_for_the_others(capsys):
    launcher, ended, codes = Launcher(), threading.Event(), []

    def end(code):
        codes.append(code)
        ended.set()

    with meeting(SECOND, silent_seconds=0.02, watch=launcher, end=end):
        launcher.gone = True
        assert ended.wait(10)
    assert codes == [4]
    assert capsys.readouterr().err.endswith(": its launcher has ended before all processes had met\n")


@pytest.mark.parametrize(
    ("reason", "advice", "of_machine"),
    [
        ("Connection refused\nstack", "see that node1 is the host of rank 0 and that all machines reach each ", True),
        ("gloo/device.cc:84] ifa != nullptr. Unable to find address for: eth7", "GLOO_SOCKET_IFNAME names no ", False),
        ("SO_ERROR: Connection refused, remote=[127.0.1.1]:147$1", "a machine listens where only it can reach ", True),
        ("EADDRINUSE, message: address already in use", "another job uses this port; choose another, with ", False),
    ],
)
def test_a_meeting_that_fails_is_one_line_that_says_where_and_what_to_do(reason, advice, of_machine):
    with pytest.raises(RankError) as raised, meeting(SECOND):
        raise RuntimeError(reason)
    line = str(raised.value)
    assert line.startswith("rank 8: the processes do not meet at node1:29500 (")
    assert advice in line
    assert "stack" not in line
    assert is_of_machine(raised.value) is of_machine


def test_on_one_machine_an_address_of_its_own_is_right():
    with (
        pytest.raises(RankError, match=r"see that 127\.0\.0\.1 is the host"),
        meeting(SECOND | {"MASTER_ADDR": "127.0.0.1"}),
    ):
        raise RuntimeError("SO_ERROR: Connection refused, remote=[127.0.0.1]:147$1")
