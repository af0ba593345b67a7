"""Signals as a wish, heard even where Python's handlers are not."""

import os
import signal
import threading
import time

import pytest

from megatron_glm.training.control import signals as module
from megatron_glm.training.control.signals import STOP_SIGNALS, StopSignals


def until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_is_a_wish_that_ends_nothing(number):
    codes = []
    with StopSignals(stop_at_once=codes.append) as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert until(lambda: signals.received)
        assert signals.received == number.name
    assert codes == []


def test_signals_within_five_seconds_are_one_and_a_later_one_stops_at_once(monkeypatch, capsys):
    codes, now = [], [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with StopSignals(stop_at_once=codes.append) as signals:
        signals._take(signal.SIGINT)
        now[0] += 4.9
        signals._take(signal.SIGTERM)
        assert (signals.received, codes) == ("SIGINT", [])
        now[0] += 0.2
        signals._take(signal.SIGTERM)
    assert codes == [143]
    assert "stopped at once by SIGTERM" in capsys.readouterr().err


def test_it_is_heard_while_the_main_thread_runs_nothing():
    """As in a collective whose other side hangs: the main thread would run the handler only after the call."""
    heard, gate = [], threading.Lock()

    def other_thread():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        os.kill(os.getpid(), signal.SIGUSR1)
        heard.append(until(lambda: signals.received))
        gate.release()

    with StopSignals() as signals:
        gate.acquire()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            helper = threading.Thread(target=other_thread)
            helper.start()
            gate.acquire()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        helper.join()
    assert heard == ["SIGUSR1"]


def test_the_handlers_of_before_come_back():
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    threads = threading.active_count()
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in STOP_SIGNALS} == before
    assert threading.active_count() == threads
    assert signal.set_wakeup_fd(-1) == -1


def test_other_signals_that_have_a_handler_are_no_wish():
    old = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGUSR2)
            time.sleep(0.1)
            assert signals.received is None
    finally:
        signal.signal(signal.SIGUSR2, old)
