"""Tasks are gathered as they end, however many there are."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from data_tools.workers import prepare_environment, run_all


def gather(tasks, tick=lambda: None):
    with ThreadPoolExecutor(1) as executor:
        yield from run_all(executor, tasks, lambda: None, tick)


def test_every_task_comes_back_once_with_its_result():
    tasks = [(pow, base, 2) for base in range(300)]
    assert sorted(gather(tasks)) == [(task, task[1] ** 2) for task in tasks]


def test_gathering_is_no_quadratic_work():
    # Ten thousand input files are twenty thousand tasks. To wait for all anew after each would take 13 s here.
    start = time.process_time()
    assert sum(1 for _ in gather([(abs, 1)] * 8000)) == 8000
    assert time.process_time() - start < 5


def test_the_first_failure_ends_the_others():
    with pytest.raises(ZeroDivisionError):
        list(gather([(divmod, 1, 0), *[(time.sleep, 0.05)] * 1000]))


def test_progress_is_shown_while_a_task_is_long():
    ticks = []
    list(gather([(time.sleep, 1.2)], lambda: ticks.append(1)))
    assert ticks


def test_workers_inherit_what_the_user_has_not_set(monkeypatch):
    monkeypatch.setattr(os, "environ", {"OPENBLAS_NUM_THREADS": "3"})
    prepare_environment()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"
    assert "glibc.malloc.hugetlb=1" in os.environ["GLIBC_TUNABLES"].split(":")
