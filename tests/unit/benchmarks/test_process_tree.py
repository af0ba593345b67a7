"""A process and all it has started are seen, and the memory they hold."""

import subprocess
import sys

from benchmarks.process_tree import PeakMemory, is_alive, proportional_bytes, tree

_MEGABYTE = 10**6
# A parent that starts a child; each holds 40 MB and says so.
CHILD = "held = b'x' * 40_000_000; print(flush=True); input()"
PARENT = f"""
import subprocess, sys
held = b'x' * 40_000_000
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}])
child.wait()
"""


def test_a_tree_is_seen_measured_and_gone_with_its_last_process():
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with PeakMemory(process.pid) as peak:
        process.stdout.readline()
        members = tree(process.pid)
        held = proportional_bytes(process.pid)
        process.communicate(b"\n")
    assert members[0] == process.pid
    assert len(members) == 2
    assert 80 * _MEGABYTE < held < 140 * _MEGABYTE
    assert peak.bytes < 140 * _MEGABYTE
    assert not any(map(is_alive, members))


def test_the_peak_is_that_of_the_time_between():
    process = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with PeakMemory(process.pid) as peak:
        process.stdout.readline()
        while not peak.bytes:
            pass
        process.communicate(b"\n")
    assert peak.bytes > 80 * _MEGABYTE
