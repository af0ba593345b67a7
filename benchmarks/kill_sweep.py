"""Random kills of preprocess and of loader workers; what comes out must be that of an undisturbed run, every time.

    python -m benchmarks.kill_sweep --kills 100 --json FILE

Half of the kills hit preprocess. Each is aimed at a phase, drawn uniformly, and comes at a uniformly drawn moment of
its usual duration; which phase it has hit is told from the disk. Killed are the master, a worker, or all processes at
once; under MPI the launcher too. The same command then starts again, by the local pool or under MPI, and may be killed
again; at last it ends undisturbed, and its output is compared. The other half: benchmarks/loader_kills.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path

from benchmarks.origin import origin
from benchmarks.process_tree import is_alive, tree
from benchmarks.recombined_text import write_corpus
from benchmarks.run_state import PHASES, RunState

_REPOSITORY = Path(__file__).resolve().parent.parent
_PACKAGES = ("numpy", "torch", "sentencepiece", "mpi4py", "mpich")
_FILES = 8
_LOOK_SECONDS = 0.0002
_SECONDS_TO_END = 60  # after a kill: of a worker's death its master learns at once, and ends
_KILLED_AGAIN = 0.5  # the share of the starts after a kill that are killed too


@dataclass(frozen=True)
class Kill:
    """One kill of preprocess: what it was aimed at, what it has hit, and the end of the command."""

    engine: str
    victim: str
    aimed_at: str
    hit: str
    seconds_after_start: float
    seconds_to_end: float
    exit_code: int


@dataclass
class Sweep:
    """The command under test, and what has happened to it; `messages` is the stderr of the last start."""

    arguments: list[str]
    output: Path
    messages: Path
    engines: dict[str, list[str]]
    draw: random.Random
    durations: dict[str, float] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)
    compared: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="half of preprocess, half of loader workers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--megabytes", type=float, default=24, help="of text to preprocess")
    parser.add_argument("--text", type=Path, help="JSON lines to recombine (default: data_tools.sample_corpus)")
    parser.add_argument("--quick", action="store_true", help="six kills of a small run")
    parser.add_argument("--json", type=Path, help="write all kills here")
    args = parser.parse_args(argv)
    if args.quick:
        args.kills, args.megabytes = 6, 4
    report = origin("benchmarks.kill_sweep", sys.argv[1:] if argv is None else argv, _PACKAGES)
    with tempfile.TemporaryDirectory() as scratch:
        sweep = _prepare(args, Path(scratch))
        loader = _kill_loader_workers(args.kills // 2, args.seed, Path(scratch) / "loader")
        _measure(sweep)
        while len(sweep.kills) < args.kills - len(loader["kills"]):
            _kill_until_done(sweep)
        report["preprocess"] = {
            "seed": args.seed,
            "seconds of each phase": {phase: round(time, 4) for phase, time in sweep.durations.items()},
            "kills by phase": dict(Counter(kill.hit for kill in sweep.kills)),
            "outputs compared, all identical": sweep.compared,
            "kills": [asdict(kill) for kill in sweep.kills],
        }
        report["loader"] = loader
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


def _prepare(args: argparse.Namespace, scratch: Path) -> Sweep:
    """A corpus with duplicates and broken lines, and a tokenizer of its own."""
    text, tokenizer = args.text or scratch / "text.jsonl", scratch / "tokenizer"
    if args.text is None:
        _run([sys.executable, "-m", "data_tools.sample_corpus", "--output", str(text)])
    corpus = write_corpus(text, scratch / "corpus", text_bytes=int(args.megabytes * 10**6), files=_FILES)
    with open(corpus.files[-1], "ab") as stream:
        stream.write(Path(corpus.files[0]).read_bytes() + b'{"text": "cut off\n')
    train = ["-m", "data_tools.train_tokenizer", "--input", corpus.files[0], "--vocab-size", "1000"]
    _run([sys.executable, *train, "--output", str(tokenizer)])
    options = ["--held-out", "0.05", "--shard-tokens", "50000", "--dedupe", "exact", "--malformed", "quarantine"]
    output = scratch / "out" / "data"
    places = ["--tokenizer", str(tokenizer), "--output", str(output)]
    module = ["-m", "data_tools.preprocess"]
    engines = {"pool": [sys.executable, *module]}
    if mpiexec := shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"):
        engines["mpi"] = [mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", *module]
    return Sweep(
        ["--input", *corpus.files, *places, *options], output, scratch / "messages", engines, random.Random(args.seed)
    )


def _measure(sweep: Sweep) -> None:
    """An undisturbed run: what it writes, and how long each phase takes."""
    state, process = _start(sweep, "pool")
    seen: dict[str, list[float]] = {}
    while process.poll() is None:
        seen.setdefault(state.phase(), []).append(time.monotonic())
        time.sleep(_LOOK_SECONDS)
    _check_end(sweep, process, "the undisturbed run")
    sweep.durations = {phase: times[-1] - times[0] for phase, times in seen.items()}
    # A resumed run reads through at most all that the undisturbed one has made.
    sweep.durations["verifying"] = sweep.durations.get("hashing", 0)
    sweep.expected = _hashes(sweep.output)
    shutil.rmtree(sweep.output.parent)


def _kill_until_done(sweep: Sweep) -> None:
    """Start and kill, once or several times; then let the command end, and compare."""
    while not sweep.output.exists():
        _start_and_kill(sweep)
        if sweep.draw.random() > _KILLED_AGAIN:
            break
    engine = sweep.draw.choice(sorted(sweep.engines))
    published = sweep.output.exists()  # the last one was killed when only cleaning was left, or was not hit
    _, process = _start(sweep, engine)
    _check_end(sweep, process, f"the start after {len(sweep.kills)} kills", code=2 if published else 0)
    if _hashes(sweep.output) != sweep.expected:
        raise SystemExit(f"error: another output after kill {len(sweep.kills)}: {sweep.kills[-1]}")
    if left := [path.name for path in sweep.output.parent.iterdir() if path != sweep.output]:
        raise SystemExit(f"error: {left} stay behind after kill {len(sweep.kills)}: {sweep.kills[-1]}")
    sweep.compared += 1
    shutil.rmtree(sweep.output.parent)


def _start_and_kill(sweep: Sweep) -> None:
    """One start, and its kill; none if it ends before."""
    engine = sweep.draw.choice(sorted(sweep.engines))
    aims = set(PHASES) - {"cleaning"}  # kills that come too late fall there
    if not _is_resumable(sweep.output):
        aims.remove("verifying")
    aimed_at = sweep.draw.choice(sorted(aims))
    delay = sweep.draw.uniform(0, sweep.durations.get(aimed_at, 0))
    victim = sweep.draw.choice(["master", "worker", "all", *(["launcher"] if engine == "mpi" else [])])
    state, process = _start(sweep, engine)
    start = time.monotonic()
    _wait(lambda: process.poll() is not None or PHASES.index(state.phase()) >= PHASES.index(aimed_at))
    with suppress(subprocess.TimeoutExpired):
        process.wait(delay)
    if engine == "pool":
        process.send_signal(signal.SIGSTOP)  # the master: a phase of a millisecond would pass while we look for others
    processes = tree(process.pid)
    victim, victims = _choose(victim, engine, processes, sweep.draw)
    hit, moment = state.phase(), time.monotonic()
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if engine == "pool":
        process.send_signal(signal.SIGCONT)
    try:
        code = process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired as error:
        raise SystemExit(f"error: {engine} does not end when its {victim} is killed in {hit}") from error
    _wait(lambda: not any(map(is_alive, processes)) or time.monotonic() - moment > _SECONDS_TO_END)
    if left := [pid for pid in processes if is_alive(pid)]:
        raise SystemExit(f"error: {left} live on after the {victim} of {engine} was killed in {hit}")
    if code == 0:
        return  # it had done all before the kill came
    ended = round(time.monotonic() - moment, 3)
    sweep.kills.append(Kill(engine, victim, aimed_at, hit, round(moment - start, 3), ended, code))
    print(f"kill {len(sweep.kills)}: {engine}, {victim}, aimed at {aimed_at}, hit {hit}, {ended:.2f} s", flush=True)


def _choose(victim: str, engine: str, processes: Sequence[int], draw: random.Random) -> tuple[str, Sequence[int]]:
    """Who is killed, and its processes. Where there is no worker, as while shards are placed, the master dies."""
    programs = [pid for pid in processes if "data_tools.preprocess" in _command(pid)]
    masters = [pid for pid in programs if engine == "pool" or _variable(pid, "PMI_RANK") == "0"][:1]
    workers = [pid for pid in processes if pid not in masters and _is_worker(pid, engine)]
    if victim == "worker" and workers:
        return victim, [draw.choice(workers)]
    if victim == "launcher":
        return victim, processes[:1]
    return ("all", processes) if victim == "all" or not masters else ("master", masters)


def _is_worker(pid: int, engine: str) -> bool:
    if engine == "mpi":
        return "mpi4py" in _command(pid) and _variable(pid, "PMI_RANK") != "0"
    return "forkserver" in _command(pid) and "forkserver" in _command(_parent(pid))


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ")
    except OSError:
        return ""


def _variable(pid: int, name: str) -> str | None:
    try:
        lines = Path(f"/proc/{pid}/environ").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return None
    return next((line.partition("=")[2] for line in lines if line.startswith(f"{name}=")), None)


def _start(sweep: Sweep, engine: str) -> tuple[RunState, subprocess.Popen[bytes]]:
    state = RunState(sweep.output)
    options = ["--workers", "2"] if engine == "pool" else []
    command = [*sweep.engines[engine], *sweep.arguments, *options]
    with open(sweep.messages, "wb") as messages:
        process = subprocess.Popen(
            command, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=messages
        )
    return state, process


def _check_end(sweep: Sweep, process: subprocess.Popen[bytes], what: str, code: int = 0) -> None:
    if (found := process.wait()) != code:
        raise SystemExit(f"error: {what} ended with {found}: {sweep.messages.read_text(encoding='utf-8')}")


def _is_resumable(output: Path) -> bool:
    return any(output.parent.glob(f".{output.name}.tmp/units/0*"))


def _wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(_LOOK_SECONDS)


def _hashes(output: Path) -> dict[str, str]:
    files = sorted(path for path in output.rglob("*") if path.is_file())
    return {str(path.relative_to(output)): sha256(path.read_bytes()).hexdigest() for path in files}


def _kill_loader_workers(kills: int, seed: int, directory: Path) -> dict[str, object]:
    from benchmarks.loader_kills import loader_kills

    report = loader_kills(directory, kills=kills, seed=seed)
    if not report.equal:
        raise SystemExit("error: a loader whose workers were killed has given other samples")
    print(f"loader: {len(report.kills)} kills in {report.steps} steps, all equal", flush=True)
    return asdict(report)


def _environment() -> dict[str, str]:
    path = os.pathsep.join(map(str, [_REPOSITORY, _REPOSITORY / "kernels"]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command[1:3])}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
