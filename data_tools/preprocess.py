"""Turn text into token shards: corpora → `manifest.json`, `train/*.bin|.idx`, `held_out/*.bin|.idx`.

    python -m data_tools.preprocess --input wiki.jsonl.zst books.txt --tokenizer tok --output data/wiki

The inputs are cut into units between documents, worker processes tokenize the units, and the output
appears as a whole or not at all. It is the same, byte for byte, for any number of workers.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_glm.command import run_command
from megatron_glm.errors import DataError

if TYPE_CHECKING:
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


@dataclass
class _Done:
    """What the workers have brought back so far."""

    results: dict[Unit, UnitResult] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)


def preprocess(request: Request) -> tuple[Manifest, Amount]:
    """Write the data directory `request.output`; returns its manifest and how much was read.

    Raises:
        DataError: an input or the output cannot be used, a worker died, or no document is left.
        TokenizerError: the tokenizer cannot be loaded.
    """
    from data_tools.inputs import open_inputs
    from megatron_glm.files import atomic_directory
    from megatron_glm.tokenizer.loading import load_tokenizer

    inputs = open_inputs(request.inputs, line_documents=request.line_documents)
    tokenizer = load_tokenizer(request.tokenizer)
    try:
        with atomic_directory(request.output) as directory:
            return _write(request, inputs, tokenizer, directory)
    except FileExistsError as error:
        raise DataError(f"--output: '{request.output}' exists already; remove it or name another directory") from error
    except BlockingIOError as error:
        raise DataError(
            f"--output: another process is writing '{request.output}'; wait for it or name another directory"
        ) from error
    except OSError as error:
        raise DataError(f"{error.filename or request.output}: {error.strerror}") from error


def _write(
    request: Request, inputs: Sequence[InputFile], tokenizer: Tokenizer, directory: Path
) -> tuple[Manifest, Amount]:
    """Fill the directory before it is published."""
    from data_tools.publish import describe_inputs, place_shards, write_manifest
    from data_tools.units import Amount, Job, plan_units
    from megatron_glm.data.manifest import Options

    scratch = directory / "units"
    scratch.mkdir()
    job = Job(
        directory=scratch,
        tokenizer=request.tokenizer,
        tokenizer_hash=tokenizer.content_hash,
        text_key=request.text_key,
        held_out=request.held_out,
        shard_tokens=request.shard_tokens,
    )
    units = plan_units(inputs, request.unit_bytes)
    done = _run_units(inputs, units, job, request.workers)
    records = describe_inputs(inputs, done.hashes, done.results)
    _check_inputs(records)
    splits = place_shards(job, units, done.results, directory)
    if splits.train.documents == 0:
        raise DataError(
            f"--held-out: {request.held_out} leaves none of {splits.held_out.documents} documents to train on; "
            "give more text or a smaller share"
        )
    shutil.rmtree(scratch)
    options = Options(
        held_out=request.held_out,
        text_key=request.text_key,
        line_documents=request.line_documents,
        shard_tokens=request.shard_tokens,
    )
    manifest = write_manifest(directory, tokenizer, splits, records, options)
    return manifest, sum((result.amount for result in done.results.values()), Amount())


def _run_units(inputs: Sequence[InputFile], units: Sequence[Unit], job: Job, workers: int | None) -> _Done:
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
    with ProgressDisplay(sum(file.bytes for file in inputs)) as display:

        def show() -> None:
            running = (amount_so_far(unit, job) for unit in by_size if unit not in done.results)
            finished = (result.amount for result in done.results.values())
            display.update(sum((*finished, *running), Amount()))

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


def _summarize(manifest: Manifest, amount: Amount, seconds: float, output: Path) -> None:
    from data_tools.progress import rates

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
        f"tokens     {tokens:,} as {manifest.dtype} ({amount.text_bytes / tokens:.2f} bytes/token) "
        f"in {len(train.shards)} + {len(held_out.shards)} shards"
    )
    print(f"speed      {rates(amount, seconds)}  {seconds:.1f} s")
    print(f"written to {output}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data_tools.preprocess", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="FILE",
        help=".txt (documents parted by blank lines), .jsonl, .jsonl.gz or .jsonl.zst",
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
    )
    with interrupted_by_termination():
        manifest, amount = preprocess(request)
    _summarize(manifest, amount, time.monotonic() - start, args.output)


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(_parser(), _run, argv)


if __name__ == "__main__":
    sys.exit(main())
