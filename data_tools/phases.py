"""The phases of a run, each over all units by the same worker processes: duplicates, tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import chain, islice
from typing import Any

from data_tools.dedupe import HashResult, find_duplicates, hash_job, hash_unit, num_buckets
from data_tools.engine_proof import Comparison
from data_tools.progress import ProgressDisplay
from data_tools.tokenizing import UnitResult, prove_engine, run_unit
from data_tools.units import STOP_FILE, Amount, Job, Unit, amount_so_far, read_result
from data_tools.workers import run_all

_LOOKED_AT = 1024  # units whose progress is asked for at a time, more than there are workers
_Task = tuple[Any, ...]


def prove_by_workers(
    pool: Executor, tokenizer: str, tokenizer_hash: str, shares: Sequence[Sequence[str]]
) -> list[Comparison]:
    """Compare the fast tokenizer with its reference, each worker on a share of the texts: then it has loaded both.

    Raises:
        ResumableError: a worker died, or the tokenizer was changed.
    """
    tasks = [(prove_engine, tokenizer, tokenizer_hash, share) for share in shares]
    # Each comes back as it was given, whichever is first; to compare the texts would cost more.
    found = {id(task): comparison for task, comparison in run_all(pool, tasks, lambda: None, lambda: None)}
    return [found[id(task)] for task in tasks]


def find_all_duplicates(pool: Executor, units: Sequence[Unit], job: Job) -> None:
    """Hash the documents of all units and write which are duplicates; units hashed earlier are verified.

    Raises:
        ResumableError: a worker died, or an input has changed.
        DataError: an input is wrong.
    """
    hashing, results = hash_job(job), {}
    hashing.directory.mkdir(exist_ok=True)
    left = [unit for unit in units if read_result(unit, hashing, HashResult) is None]
    tasks = [(hash_unit, unit, hashing) for unit in _largest_first(units)]
    for (_, unit, _), result in _run_phase("hashing", pool, tasks, left, results, hashing):
        results[unit] = result
    runs = [(unit, results[unit].runs) for unit in units]
    buckets = num_buckets(list(results.values()), job.sort_records)
    merges = [(find_duplicates, bucket, buckets, job, runs) for bucket in range(buckets)]
    for _ in _run_phase("sorting", pool, merges, [], {}, job):
        pass


def tokenize_all(
    pool: Executor, units: Sequence[Unit], earlier: Mapping[Unit, UnitResult], job: Job
) -> dict[Unit, UnitResult]:
    """Tokenize the units, and verify the `earlier` ones.

    Raises:
        ResumableError: a worker died, or an input has changed.
        DataError: an input is wrong.
    """
    results: dict[Unit, UnitResult] = {}
    left = [unit for unit in units if unit not in earlier]  # verifying is too quick to be shown
    tasks = [(run_unit, unit, job) for unit in _largest_first(units)]
    for (_, unit, _), result in _run_phase("tokenizing", pool, tasks, left, results, job):
        results[unit] = result
    return results


def _largest_first(units: Sequence[Unit]) -> list[Unit]:
    # A long one that starts last would leave the others idle.
    return sorted(units, key=lambda unit: -unit.part.bytes)


def _run_phase(
    phase: str,
    pool: Executor,
    tasks: Sequence[_Task],
    left: Sequence[Unit],
    results: Mapping[Unit, HashResult | UnitResult],
    job: Job,
) -> Iterator[tuple[_Task, Any]]:
    """Run tasks and show how far the units `left` are; `results` is what the caller has gathered of them."""
    order = _largest_first(left)
    with ProgressDisplay(sum(unit.part.bytes for unit in left), phase=phase) as display:

        def show() -> None:
            amounts = [results[unit].amount for unit in left if unit in results]
            # Tasks begin in their order; of the thousands that many small files make, few have begun.
            begun = islice((unit for unit in order if unit not in results), _LOOKED_AT)
            display.update(sum(chain(amounts, (amount_so_far(unit, job) for unit in begun)), Amount()))

        yield from run_all(pool, tasks, (job.directory / STOP_FILE).touch, show)
        show()
