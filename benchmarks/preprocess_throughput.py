"""Whole-process throughput of data_tools.preprocess beside bare tokenizers and peers, and its memory.

    python -m benchmarks.preprocess_throughput --vocab gpt2-vocab.json --merges gpt2-merges.txt --json FILE

The corpus is made of the text files below some directories, whole and repeated (benchmarks/whole_documents.py), or of
real prose, recombined (benchmarks/recombined_text.py). Every arm is a fresh process; the arms take turns, and each
figure is the median of its rounds. MB are 10**6 bytes of UTF-8 text: without JSON and before tokenizing.
An arm's clock runs from the start of its process to its end, so imports, JSON, checks, checksums and writing are
inside; that of a bare tokenizer runs while it tokenizes, on one core, or with as many threads of its own as we have
processes. Slow arms run on the beginning of the corpus.
Memory is measured in runs of its own, whose times do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.origin import origin
from benchmarks.process_tree import PeakMemory
from benchmarks.recombined_text import Corpus, write_corpus
from benchmarks.whole_documents import collect, write_repeated

_REPOSITORY = Path(__file__).resolve().parent.parent
_MEGABYTE = 10**6
_FILES = 8
_SHORT_BYTES = 100  # the median of a short document
_PACKAGES = (
    "gigatoken",
    "tokenizers",
    "numpy",
    "orjson",
    "pysimdjson",
    "xxhash",
    "datatrove",
    "megatron-core",
    "torch",
)
_TARGETS = (  # ours, the bare tokenizer, whether that had one core alone, the least share of all cores' bare rate
    ("ours, fast", "bare gigatoken", True, 0.5),
    ("ours", "bare tokenizers", True, 0.85),
    ("ours", "bare tokenizers, threads", False, 0.85),
)


@dataclass(frozen=True)
class Bench:
    """What all arms share; `slow` is the corpus of the slow ones, `library_file` a tokenizer.json for the others."""

    tokenizer: Path
    library_file: Path
    whole: Corpus
    slow: Corpus
    scratch: Path
    processes: int


@dataclass(frozen=True)
class Result:
    """Of one arm in one round; tokens with an eos for each document."""

    seconds: float
    text_bytes: int
    tokens: int


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", required=True, type=Path, help="vocab.json of GPT-2")
    parser.add_argument("--merges", required=True, type=Path, help="merges.txt of GPT-2")
    parser.add_argument("--text", type=Path, help="JSON lines to recombine (default: data_tools.sample_corpus)")
    parser.add_argument("--documents", nargs="+", type=Path, metavar="DIR", help="real text files instead, whole")
    parser.add_argument("--no-memory", action="store_true", help="leave out the runs that measure memory")
    parser.add_argument("--megabytes", type=float, default=2048, help="of the corpus")
    parser.add_argument("--slow-megabytes", type=float, default=256, help="of it for the slow arms")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--scratch", type=Path, help="where 5 GB fit (default: the system's temporary directory)")
    parser.add_argument("--quick", action="store_true", help="a run of seconds, which measures nothing")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    args = parser.parse_args(argv)
    if args.quick:
        args.megabytes, args.slow_megabytes, args.rounds = 2, 1, 1
    report = origin("benchmarks.preprocess_throughput", sys.argv[1:] if argv is None else argv, _PACKAGES)
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        bench = _prepare(args, Path(scratch))
        text = "whole files, repeated" if args.documents else "paragraphs of prose, recombined"
        report |= {"text": text, "corpus": _facts(bench.whole), "slow corpus": _facts(bench.slow)}
        rows = _measure(bench, args.arms, args.rounds)
        report |= {"arms": rows, "ratios": _ratios(rows, bench.processes)}
        if not args.no_memory:
            report["memory"] = list(_memory(bench, args))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _prepare(args: argparse.Namespace, scratch: Path) -> Bench:
    tokenizer = scratch / "tokenizer"
    files = ["--vocab", str(args.vocab), "--merges", str(args.merges)]
    _run("data_tools.import_tokenizer", "--kind", "gpt2", *files, "--output", str(tokenizer))
    # Ours puts a space before the first word; the libraries do so by an option of the file, and give the same ids.
    library_file = json.loads((tokenizer / "tokenizer.json").read_bytes())
    library_file["pre_tokenizer"]["add_prefix_space"] = True
    (scratch / "library.json").write_text(json.dumps(library_file), encoding="utf-8")
    write = _writer(args, scratch, [token["content"] for token in library_file["added_tokens"]])
    whole, slow = (
        write(scratch / name, text_bytes=int(megabytes * _MEGABYTE), files=_FILES)
        for name, megabytes in (("whole", args.megabytes), ("slow", args.slow_megabytes))
    )
    return Bench(tokenizer, scratch / "library.json", whole, slow, scratch, args.processes)


def _writer(args: argparse.Namespace, scratch: Path, special: Sequence[str]) -> Callable[..., Corpus]:
    """What writes a corpus of the text that was asked for."""
    if args.documents:
        collect(args.documents, scratch / "documents.jsonl", without=special)
        return partial(write_repeated, scratch / "documents.jsonl")
    return partial(write_corpus, _prose(args, scratch))


def _prose(args: argparse.Namespace, scratch: Path) -> Path:
    """The paragraphs that corpora are recombined of."""
    if args.text is None:
        args.text = scratch / "text.jsonl"
        _run("data_tools.sample_corpus", "--output", str(args.text))
    return args.text


def _measure(bench: Bench, arms: Sequence[str], rounds: int) -> dict[str, dict[str, object]]:
    """Every arm once a round; each round begins with another."""
    results: dict[str, list[Result]] = {arm: [] for arm in arms}
    for number in range(rounds):
        first = number % len(arms)
        for arm in [*arms[first:], *arms[:first]]:
            os.sync()  # no arm waits for what another has written
            results[arm].append(ARMS[arm](bench))
            _say(f"round {number + 1}: {arm:18} {_rate(results[arm][-1]):8.2f} MB/s")
    for corpus in (bench.whole, bench.slow):
        counts = {arm: r[0].tokens for arm, r in results.items() if r[0].text_bytes == corpus.text_bytes}
        if len(set(counts.values())) > 1:
            raise SystemExit(f"error: the arms do not agree on the tokens of one corpus: {counts}")
    return {
        arm: {
            "MB/s": statistics.median(map(_rate, runs)),
            "MB/s of each round": [round(_rate(run), 3) for run in runs],
            "seconds of each round": [round(run.seconds, 3) for run in runs],
            "text bytes": runs[0].text_bytes,
            "tokens": runs[0].tokens,
        }
        for arm, runs in results.items()
    }


def _ratios(rows: dict[str, dict[str, object]], processes: int) -> list[dict[str, object]]:
    ratios = []
    for arm, bare, alone, target in _TARGETS:
        if arm in rows and bare in rows:
            times, what = (processes, f"{arm} / ({processes} × {bare})") if alone else (1, f"{arm} / {bare}")
            ratio = rows[arm]["MB/s"] / (times * rows[bare]["MB/s"])
            ratios.append({"what": what, "ratio": round(ratio, 3), "target": target, "met": ratio >= target})
            _say(f"{what}: {ratio:.3f}, target {target}")
    return ratios


def _memory(bench: Bench, args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """The peak of all our processes for the corpus, for a quarter of it, and for as many bytes in short documents."""
    quarter, prose = int(args.megabytes * _MEGABYTE / 4), _prose(args, bench.scratch)
    sizes = {"quarter": {}, "short documents": {"median_bytes": _SHORT_BYTES}}
    corpora = {"whole": bench.whole}
    for name, options in sizes.items():
        corpora[name] = write_corpus(prose, bench.scratch / name, text_bytes=quarter, files=_FILES, **options)
    for name, corpus in corpora.items():
        with _output(bench) as output:
            process = subprocess.Popen(_ours(bench, corpus, output), env=_environment(), **_QUIET)
            with PeakMemory(process.pid) as peak:
                code = process.wait()
        if code:
            raise SystemExit(f"error: preprocess ended with {code}")
        _say(f"peak memory, {name}: {peak.bytes / 1e6:.0f} MB for {corpus.documents:,} documents")
        row = {"corpus": name, "documents": corpus.documents, "text bytes": corpus.text_bytes}
        yield row | {"peak PSS, bytes": peak.bytes}


# --- the arms -------------------------------------------------------------------------------------


def _ours_fast(bench: Bench) -> Result:
    return _run_ours(bench, bench.whole)


def _ours_plain(bench: Bench) -> Result:
    return _run_ours(bench, bench.slow, "--no-fast")


def _run_ours(bench: Bench, corpus: Corpus, *options: str) -> Result:
    with _output(bench) as output:
        seconds = _timed([*_ours(bench, corpus, output), *options])
        splits = json.loads((output / "manifest.json").read_bytes())["splits"].values()
        return Result(seconds, corpus.text_bytes, sum(split["tokens"] for split in splits))


def _bare(engine: str, choose: Callable[[Bench], Corpus], *, alone: bool = True) -> Callable[[Bench], Result]:
    def run(bench: Bench) -> Result:
        threads = ["--threads", str(1 if alone else bench.processes)]
        arguments = [engine, str(bench.library_file), *choose(bench).files, *threads]
        figures = json.loads(_run("benchmarks.bare_tokenizer", *arguments))
        return Result(figures["seconds"], figures["text_bytes"], figures["tokens"] + figures["documents"])

    return run


def _peer(name: str) -> Callable[[Bench], Result]:
    def run(bench: Bench) -> Result:
        with _output(bench) as output:
            inputs = str(Path(bench.slow.files[0]).parent)
            options = ["--processes", str(bench.processes)]
            command = _command(
                "benchmarks.preprocess_peers", name, str(bench.library_file), inputs, str(output), *options
            )
            seconds = _timed(command)
            tokens = sum(path.stat().st_size for path in output.glob("*.bin")) // 2  # uint16
            return Result(seconds, bench.slow.text_bytes, tokens)

    return run


ARMS: dict[str, Callable[[Bench], Result]] = {
    "bare gigatoken": _bare("gigatoken", lambda bench: bench.whole),
    "ours, fast": _ours_fast,
    "bare tokenizers": _bare("tokenizers", lambda bench: bench.slow),
    "bare tokenizers, threads": _bare("tokenizers", lambda bench: bench.slow, alone=False),
    "ours": _ours_plain,
    "datatrove": _peer("datatrove"),
    "megatron-core": _peer("megatron-core"),
}

# --- processes ------------------------------------------------------------------------------------

_QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def _ours(bench: Bench, corpus: Corpus, output: Path) -> list[str]:
    options = ["--tokenizer", str(bench.tokenizer), "--output", str(output), "--workers", str(bench.processes)]
    return _command("data_tools.preprocess", "--input", *corpus.files, *options)


def _command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def _environment() -> dict[str, str]:
    path = os.pathsep.join(map(str, [_REPOSITORY, _REPOSITORY / "kernels"]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def _run(module: str, *arguments: str) -> str:
    """Run a module to its end; its output."""
    done = subprocess.run(_command(module, *arguments), env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {module}: {done.stderr.strip()}")
    return done.stdout


def _timed(command: Sequence[str]) -> float:
    """Seconds from the start of a process to its end."""
    start = time.perf_counter()
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command[:4])}: {done.stderr.strip()}")
    return seconds


@contextmanager
def _output(bench: Bench) -> Iterator[Path]:
    """A place for an output, which is removed."""
    output = bench.scratch / "output"
    try:
        yield output
    finally:
        shutil.rmtree(output, ignore_errors=True)


def _rate(result: Result) -> float:
    return result.text_bytes / result.seconds / _MEGABYTE


def _facts(corpus: Corpus) -> dict[str, object]:
    return {name: value for name, value in asdict(corpus).items() if name != "files"}


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
