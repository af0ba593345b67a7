"""Turn text into token shards: corpora → `manifest.json`, `train/*.bin|.idx`, `held_out/*.bin|.idx`.

    python -m data_tools.preprocess --input wiki.jsonl.zst books.txt --tokenizer tok --output data/wiki

The inputs are cut into units between documents, worker processes tokenize the units, and the output
appears as a whole or not at all. It is the same, byte for byte, for any number of workers. A run that
was interrupted is continued by the same command.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.preprocess_options import DEFAULT_SHARD_TOKENS, make_parser, options_of
from megatron_glm.command import run_command
from megatron_glm.errors import DataError

if TYPE_CHECKING:
    from data_tools.estimate import Estimate
    from data_tools.fast_tokenizers import Compare
    from data_tools.inputs import InputFile
    from data_tools.outcome import Outcome
    from data_tools.tokenizing import UnitResult
    from data_tools.units import Job, Unit
    from megatron_glm.data.manifest import DedupePolicy, Input, MalformedPolicy, Manifest, Options
    from megatron_glm.tokenizer.base import Tokenizer


@dataclass(frozen=True)
class Request:
    """What to preprocess.

    Args:
        held_out: share of the documents, 0 <= held_out < 1.
        workers: processes; default: one for each core.
        min_tokens: of a document that is kept, without eos.
        fast: use a fast back end of the tokenizer where there is one that gives the same ids.
        unit_bytes: input bytes of one unit of work; default: from the size of the inputs.
        sort_records: documents whose hashes a process holds in memory at a time; default: see `Job`.
        restart: do not continue an interrupted run, begin anew.
    """

    inputs: Sequence[str]
    tokenizer: str
    output: Path
    held_out: float = 0.01
    workers: int | None = None
    text_key: str = "text"
    line_documents: bool = False
    shard_tokens: int = DEFAULT_SHARD_TOKENS
    sentences: bool = False
    min_tokens: int = 0
    malformed: MalformedPolicy = "fail"
    dedupe: DedupePolicy = "none"
    fast: bool = True
    unit_bytes: int | None = None
    sort_records: int | None = None
    restart: bool = False

    @property
    def options(self) -> Options:
        """What of it decides the output and stands in its manifest."""
        from megatron_glm.data.manifest import Options

        return Options(**{name: getattr(self, name) for name in Options.model_fields})


def preprocess(request: Request) -> Outcome:
    """Write the data directory `request.output`.

    After an interruption the finished units stay in a hidden directory beside the output, and the next call
    verifies them and does the others.

    Raises:
        ResumableError: a worker died, or an interrupted run cannot be continued by this request.
        DataError: an input or the output cannot be used, or no document is left.
        TokenizerError: the tokenizer cannot be loaded.
    """
    from data_tools.workers import begin_workers, count_workers

    begin_workers(count_workers(request.workers))  # at first: what follows takes as long to import

    from data_tools.estimate import check_disk, may_fill_disk
    from data_tools.inputs import open_inputs
    from data_tools.publish import check_output
    from data_tools.resume import is_kept, removed_units
    from megatron_glm.files import atomic_directory
    from megatron_glm.tokenizer.fast import accelerated
    from megatron_glm.tokenizer.loading import load_tokenizer

    check_output(request.output)
    inputs = open_inputs(request.inputs, line_documents=request.line_documents)
    tokenizer = load_tokenizer(request.tokenizer)
    if may_fill_disk(inputs, request.output):
        quick = accelerated(tokenizer) if request.fast else None  # an estimate needs no proof
        check_disk(_estimate(request, inputs, quick or tokenizer), request.output)
    try:
        with atomic_directory(request.output, keeps=is_kept) as directory:
            written = _write(request, inputs, tokenizer, directory)
        shutil.rmtree(removed_units(request.output), ignore_errors=True)  # all is published: a rest does no harm
        return written
    except FileExistsError as error:
        shutil.rmtree(removed_units(request.output), ignore_errors=True)  # left if it was killed at its very end
        raise DataError(f"--output: '{request.output}' exists already; remove it or name another directory") from error
    except BlockingIOError as error:
        raise DataError(
            f"--output: another process is writing '{request.output}'; wait for it or name another directory"
        ) from error
    except OSError as error:
        raise DataError(
            f"{error.filename or request.output}: {error.strerror}; what is finished is kept, "
            "continue with the same command"
        ) from error


def dry_run(request: Request) -> Iterator[str]:
    """What `preprocess` will come to, in lines, from a sample of the inputs; nothing is written.

    Raises:
        DataError: an input cannot be read, or the output will not fit its disk.
        TokenizerError: the tokenizer cannot be loaded.
    """
    from data_tools.estimate import check_disk, report
    from data_tools.inputs import open_inputs
    from data_tools.publish import check_output
    from data_tools.workers import count_workers
    from megatron_glm.data.pair_format import dtype_for
    from megatron_glm.tokenizer.fast import accelerated
    from megatron_glm.tokenizer.loading import load_tokenizer

    check_output(request.output)
    inputs = open_inputs(request.inputs, line_documents=request.line_documents)
    tokenizer = load_tokenizer(request.tokenizer)
    if _proven_engine(request, inputs, tokenizer):
        tokenizer = accelerated(tokenizer) or tokenizer
    expected = _estimate(request, inputs, tokenizer)
    dtype = dtype_for(tokenizer.vocab_size).name
    yield from report(expected, request.output, dtype, count_workers(request.workers), request.dedupe)
    check_disk(expected, request.output)


def _proven_engine(
    request: Request,
    inputs: Sequence[InputFile],
    tokenizer: Tokenizer,
    *,
    compare: Compare | None = None,
    shares: int = 1,
) -> str | None:
    """The package of the tokenizer's fast engine, if it has one that gives the same ids for documents of the inputs."""
    from data_tools.fast_tokenizers import choose, sample_texts
    from megatron_glm.tokenizer.fast import fast_library

    # With sentences: no engine tells where in the text its tokens are.
    if not request.fast or request.sentences or fast_library(tokenizer) is None:
        return None
    choice = choose(tokenizer, sample_texts(inputs, request.text_key), compare=compare, shares=shares)
    if choice.note:
        print(f"warning: {choice.note}", file=sys.stderr)
    return choice.engine if choice.use else None


def _estimate(request: Request, inputs: Sequence[InputFile], tokenizer: Tokenizer) -> Estimate:
    from data_tools.estimate import estimate
    from data_tools.units import plan_units

    return estimate(inputs, tokenizer, request.options, units=len(plan_units(inputs, request.unit_bytes)))


def _write(request: Request, inputs: Sequence[InputFile], tokenizer: Tokenizer, directory: Path) -> Outcome:
    """Fill the directory before it is published."""
    from data_tools.outcome import Outcome
    from data_tools.phases import find_all_duplicates, prove_by_workers, tokenize_all
    from data_tools.publish import describe_inputs, library_versions, take_back_shards
    from data_tools.resume import open_units, record_run, refusals_keep_units, removed_units
    from data_tools.tokenizing import UnitResult
    from data_tools.units import Amount, plan_units, read_result
    from data_tools.workers import count_workers, worker_pool

    with refusals_keep_units(directory):
        units = plan_units(inputs, request.unit_bytes)
        workers = min(count_workers(request.workers), len(units))
    with worker_pool(workers) as pool:
        with refusals_keep_units(directory):
            compare = partial(prove_by_workers, pool, request.tokenizer, tokenizer.content_hash)
            engine = _proven_engine(request, inputs, tokenizer, compare=compare, shares=workers)
        versions = library_versions(*([engine] if engine else []), *(["nupunkt"] if request.sentences else []))
        run = record_run(inputs, units, tokenizer, request.options, versions)
        scratch = open_units(directory, request.output, run, restart=request.restart)
        job = _job(request, tokenizer, scratch, fast=engine is not None)
        earlier = {unit: result for unit in units if (result := read_result(unit, job, UnitResult)) is not None}
        if earlier:
            done_before = f"{len(earlier)} of {len(units)} units are finished"
            print(f"continuing: {done_before} and will be verified", file=sys.stderr)
        take_back_shards(job, units, earlier, directory)
        if request.dedupe == "exact":
            find_all_duplicates(pool, units, job)
        results = tokenize_all(pool, units, earlier, job)
    records = describe_inputs(inputs, units, results)
    _check_inputs(records)
    manifest = _place(request, tokenizer, versions, records, job, units, results, directory)
    scratch.rename(removed_units(request.output))
    new = (result.amount for unit, result in results.items() if unit not in earlier)
    return Outcome(
        manifest,
        text_bytes=sum(result.amount.text_bytes for result in results.values()),
        new=sum(new, Amount()),
    )


def _place(
    request: Request,
    tokenizer: Tokenizer,
    versions: dict[str, str],
    records: tuple[Input, ...],
    job: Job,
    units: Sequence[Unit],
    results: Mapping[Unit, UnitResult],
    directory: Path,
) -> Manifest:
    """Move what the units have made to its place."""
    from data_tools.publish import place_shards, write_manifest, write_quarantine

    splits = place_shards(job, units, results, directory)
    if splits.train.documents == 0:
        raise DataError(
            f"--held-out: {request.held_out} leaves none of {splits.held_out.documents} documents to train on; "
            "give more text or a smaller share"
        )
    return write_manifest(
        directory,
        tokenizer,
        splits=splits,
        inputs=records,
        quarantine=write_quarantine(job, units, results, directory),
        options=request.options,
        versions=versions,
    )


def _job(request: Request, tokenizer: Tokenizer, scratch: Path, *, fast: bool) -> Job:
    from data_tools.units import Job

    limits = {} if request.sort_records is None else {"sort_records": request.sort_records}
    return Job(
        directory=scratch,
        tokenizer=request.tokenizer,
        tokenizer_hash=tokenizer.content_hash,
        text_key=request.text_key,
        held_out=request.held_out,
        shard_tokens=request.shard_tokens,
        attempt=secrets.token_hex(4),
        malformed=request.malformed,
        min_tokens=request.min_tokens,
        dedupe=request.dedupe,
        sentences=request.sentences,
        fast=fast,
        **limits,
    )


def _check_inputs(records: Sequence[Input]) -> None:
    for record in records:
        if record.documents_in == 0:
            raise DataError(f"--input: '{record.path}' holds no document, only blank lines; leave it out")
    if not any(record.documents_out for record in records):
        reasons = sum((Counter(record.dropped) for record in records), Counter())
        raise DataError(
            f"--input: all {reasons.total()} documents are dropped "
            f"({', '.join(f'{number} {reason}' for reason, number in reasons.items())}); give more text"
        )


def _run(args: argparse.Namespace) -> None:
    from data_tools.mpi import check_launch
    from data_tools.summary import summary, warnings
    from data_tools.workers import interrupted_by_termination, prepare_environment

    check_launch("data_tools.preprocess")
    prepare_environment()
    start = time.monotonic()
    request = Request(**options_of(args))
    if args.dry_run:
        for line in dry_run(request):
            print(line)
        return
    try:
        with interrupted_by_termination():
            outcome = preprocess(request)
    except KeyboardInterrupt:
        print("what is finished is kept, continue with the same command", file=sys.stderr)
        raise
    for line in warnings(outcome.manifest):
        print(f"warning: {line}", file=sys.stderr)
    for line in summary(outcome, time.monotonic() - start, args.output):
        print(line)


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(make_parser(__doc__.splitlines()[0]), _run, argv)


if __name__ == "__main__":
    sys.exit(main())
