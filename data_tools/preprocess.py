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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_glm.command import run_command
from megatron_glm.errors import DataError

if TYPE_CHECKING:
    from data_tools.estimate import Estimate
    from data_tools.inputs import InputFile
    from data_tools.units import Amount, Job, Unit, UnitResult
    from megatron_glm.data.manifest import Input, Manifest
    from megatron_glm.tokenizer.base import Tokenizer

_DEFAULT_SHARD_TOKENS = 1 << 28


@dataclass(frozen=True)
class Request:
    """What to preprocess.

    Args:
        held_out: share of the documents, 0 <= held_out < 1.
        workers: processes; default: one for each core.
        unit_bytes: input bytes of one unit of work; default: from the size of the inputs.
        restart: do not continue an interrupted run, begin anew.
    """

    inputs: Sequence[str]
    tokenizer: str
    output: Path
    held_out: float = 0.01
    workers: int | None = None
    text_key: str = "text"
    line_documents: bool = False
    shard_tokens: int = _DEFAULT_SHARD_TOKENS
    unit_bytes: int | None = None
    restart: bool = False


@dataclass(frozen=True)
class Outcome:
    """What a run has given.

    Args:
        text_bytes: UTF-8 text of all documents.
        new: what this start has done, without the units that an earlier one had finished.
    """

    manifest: Manifest
    text_bytes: int
    new: Amount


@dataclass
class _Done:
    """What the workers have brought back so far."""

    results: dict[Unit, UnitResult] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)


def preprocess(request: Request) -> Outcome:
    """Write the data directory `request.output`.

    After an interruption the finished units stay in a hidden directory beside the output, and the next call
    verifies them and does the others.

    Raises:
        ResumableError: a worker died, or an interrupted run cannot be continued by this request.
        DataError: an input or the output cannot be used, or no document is left.
        TokenizerError: the tokenizer cannot be loaded.
    """
    from data_tools.estimate import check_disk, may_fill_disk
    from data_tools.inputs import open_inputs
    from data_tools.resume import is_kept, removed_units
    from megatron_glm.files import atomic_directory
    from megatron_glm.tokenizer.loading import load_tokenizer

    inputs = open_inputs(request.inputs, line_documents=request.line_documents)
    tokenizer = load_tokenizer(request.tokenizer)
    if may_fill_disk(inputs, request.output):
        check_disk(_estimate(request, inputs, tokenizer), request.output)
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
    from data_tools.workers import available_cores
    from megatron_glm.data.indexed import dtype_for
    from megatron_glm.tokenizer.loading import load_tokenizer

    inputs = open_inputs(request.inputs, line_documents=request.line_documents)
    tokenizer = load_tokenizer(request.tokenizer)
    expected = _estimate(request, inputs, tokenizer)
    dtype = dtype_for(tokenizer.vocab_size).name
    yield from report(expected, request.output, dtype, request.workers or available_cores())
    check_disk(expected, request.output)


def _estimate(request: Request, inputs: Sequence[InputFile], tokenizer: Tokenizer) -> Estimate:
    from data_tools.estimate import estimate
    from data_tools.units import plan_units

    return estimate(
        inputs,
        tokenizer,
        text_key=request.text_key,
        held_out=request.held_out,
        shard_tokens=request.shard_tokens,
        units=len(plan_units(inputs, request.unit_bytes)),
    )


def _write(request: Request, inputs: Sequence[InputFile], tokenizer: Tokenizer, directory: Path) -> Outcome:
    """Fill the directory before it is published."""
    from data_tools.publish import describe_inputs, place_shards, take_back_shards, write_manifest
    from data_tools.resume import open_units, record_run, removed_units
    from data_tools.units import Amount, Job, plan_units, read_result
    from megatron_glm.data.manifest import Options

    options = Options(
        held_out=request.held_out,
        text_key=request.text_key,
        line_documents=request.line_documents,
        shard_tokens=request.shard_tokens,
    )
    units = plan_units(inputs, request.unit_bytes)
    run = record_run(inputs, units, tokenizer, options)
    scratch = open_units(directory, request.output, run, restart=request.restart)
    job = Job(
        directory=scratch,
        tokenizer=request.tokenizer,
        tokenizer_hash=tokenizer.content_hash,
        text_key=request.text_key,
        held_out=request.held_out,
        shard_tokens=request.shard_tokens,
        attempt=secrets.token_hex(4),
    )
    earlier = {unit: result for unit in units if (result := read_result(unit, job)) is not None}
    if earlier:
        print(f"continuing: {len(earlier)} of {len(units)} units are finished and will be verified", file=sys.stderr)
    take_back_shards(job, units, earlier, directory)
    done = _run_units(inputs, units, earlier, job, request.workers)
    records = describe_inputs(inputs, done.hashes, done.results)
    _check_inputs(records)
    splits = place_shards(job, units, done.results, directory)
    if splits.train.documents == 0:
        raise DataError(
            f"--held-out: {request.held_out} leaves none of {splits.held_out.documents} documents to train on; "
            "give more text or a smaller share"
        )
    manifest = write_manifest(directory, tokenizer, splits, records, options)
    scratch.rename(removed_units(request.output))
    new = (result.amount for unit, result in done.results.items() if unit not in earlier)
    return Outcome(
        manifest,
        text_bytes=sum(result.amount.text_bytes for result in done.results.values()),
        new=sum(new, Amount()),
    )


def _run_units(
    inputs: Sequence[InputFile],
    units: Sequence[Unit],
    earlier: Mapping[Unit, UnitResult],
    job: Job,
    workers: int | None,
) -> _Done:
    """Do the units, and verify the `earlier` ones."""
    from data_tools.progress import ProgressDisplay
    from data_tools.units import STOP_FILE, Amount, amount_so_far, run_unit
    from data_tools.workers import available_cores, make_executor, run_all
    from megatron_glm.files import sha256_of

    done = _Done()
    # The largest first: a long one that starts last would leave the others idle.
    by_size = sorted(units, key=lambda unit: unit.part.start - unit.part.stop)
    tasks = [
        *((sha256_of, path) for path in dict.fromkeys(file.path for file in inputs)),
        *((run_unit, unit, job) for unit in by_size),
    ]
    executor = make_executor(min(workers or available_cores(), len(units)))
    left = [unit for unit in by_size if unit not in earlier]  # verifying is too quick to be shown
    with ProgressDisplay(sum(unit.part.stop - unit.part.start for unit in left)) as display:

        def show() -> None:
            amounts = (done.results[u].amount if u in done.results else amount_so_far(u, job) for u in left)
            display.update(sum(amounts, Amount()))

        for (function, subject, *_), result in run_all(executor, tasks, (job.directory / STOP_FILE).touch, show):
            if function is run_unit:
                done.results[subject] = result
            else:
                done.hashes[subject] = result
        show()
    return done


def _check_inputs(records: Sequence[Input]) -> None:
    for record in records:
        if record.documents_in == 0:
            raise DataError(f"--input: '{record.path}' holds no document, only blank lines; leave it out")
    if not any(record.documents_out for record in records):
        raise DataError(f"--input: all {sum(r.documents_in for r in records)} documents are empty")


def _summarize(outcome: Outcome, seconds: float, output: Path) -> None:
    from data_tools.progress import rates

    manifest = outcome.manifest
    train, held_out = manifest.splits.train, manifest.splits.held_out
    reasons: dict[str, int] = {}
    for record in manifest.inputs:
        for reason, number in record.dropped.items():
            reasons[reason] = reasons.get(reason, 0) + number
        if record.documents_out == 0:
            print(f"warning: '{record.path}' gave no document, all of its are empty", file=sys.stderr)
    if manifest.options.held_out > 0 and held_out.documents == 0:
        print(
            f"warning: no document was held out (share {manifest.options.held_out} of {train.documents}), "
            "so this data cannot be used for evaluation",
            file=sys.stderr,
        )
    dropped = ", ".join(f"{number:,} {reason}" for reason, number in reasons.items()) or "0"
    read = sum(record.documents_in for record in manifest.inputs)
    tokens = train.tokens + held_out.tokens
    print(f"documents  {read:,} read, {train.documents:,} train, {held_out.documents:,} held out, dropped: {dropped}")
    print(
        f"tokens     {tokens:,} as {manifest.dtype} ({outcome.text_bytes / tokens:.2f} bytes/token) "
        f"in {len(train.shards)} + {len(held_out.shards)} shards"
    )
    print(f"speed      {rates(outcome.new, seconds)}  {seconds:.1f} s")
    print(f"written to {output}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data_tools.preprocess", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="FILE",
        help=".txt (documents parted by blank lines), .jsonl, .jsonl.gz or .jsonl.zst; or patterns of such, in quotes",
    )
    parser.add_argument("--tokenizer", required=True, metavar="DIR", help="tokenizer directory")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="data directory to write")
    parser.add_argument("--held-out", type=share, default=0.01, metavar="P", help="share held out (default 0.01)")
    parser.add_argument("--workers", type=count, metavar="N", help="processes (default: one for each core)")
    parser.add_argument("--text-key", default="text", metavar="KEY", help="JSON key of the text (default text)")
    parser.add_argument("--line-documents", action="store_true", help="every line of a .txt file is a document")
    parser.add_argument(
        "--shard-tokens", type=count, default=_DEFAULT_SHARD_TOKENS, metavar="N", help="tokens of a shard, at most"
    )
    parser.add_argument("--restart", action="store_true", help="begin anew instead of continuing an interrupted run")
    parser.add_argument(
        "--dry-run", action="store_true", help="say from a sample what comes out, how large and when; write nothing"
    )
    return parser


def share(text: str) -> float:
    """A share of the documents, 0 <= share < 1, as argparse reads it."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share, 0 <= P < 1")
    return value


def count(text: str) -> int:
    """A count of 1 or more, as argparse reads it."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a count of 1 or more")
    return value


def _run(args: argparse.Namespace) -> None:
    from data_tools.workers import interrupted_by_termination

    start = time.monotonic()
    request = Request(
        inputs=args.input,
        tokenizer=args.tokenizer,
        output=args.output,
        held_out=args.held_out,
        workers=args.workers,
        text_key=args.text_key,
        line_documents=args.line_documents,
        shard_tokens=args.shard_tokens,
        restart=args.restart,
    )
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
    _summarize(outcome, time.monotonic() - start, args.output)


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(_parser(), _run, argv)


if __name__ == "__main__":
    sys.exit(main())
