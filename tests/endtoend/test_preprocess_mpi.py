"""Preprocessing under MPI: the bytes of one process, one line for a mistake, and an end after every kind of kill."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'kernels'}", "OMP_NUM_THREADS": "1"}
# The one of the environment the tests run in, before another MPI of the machine.
MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
PREPROCESS = ["-m", "data_tools.preprocess"]
UNDER_MPI = [sys.executable, "-m", "mpi4py.futures", *PREPROCESS]
SECONDS_TO_END = 20  # on a machine where other tests run

pytest.importorskip("mpi4py")
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec: pip install mpich"),
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Six files, so six units of work, of about a megabyte each."""
    directory, draw = tmp_path_factory.mktemp("corpus"), random.Random(5)
    words = ["the", "old", "red", "cat", "sat", "on", "a", "big", "mat", "river", "stone", "water", "walked"]
    for name in "abcdef":
        documents = (" ".join(draw.choices(words, k=draw.randint(5, 500))) for _ in range(800))
        (directory / f"{name}.txt").write_text("\n\n".join(documents), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def arguments(corpus, tmp_path_factory, tokenizer):
    """Of the command, all but the output; to find duplicates is a phase of its own, with an executor of its own."""
    directory = tmp_path_factory.mktemp("tokenizer") / "tokenizer"
    tokenizer.save(directory)
    return ["--input", f"{corpus}/*.txt", "--tokenizer", str(directory), "--held-out", "0.1", "--dedupe", "exact"]


@pytest.fixture(scope="module")
def expected(arguments, tmp_path_factory):
    """Every file that a single process writes."""
    output = tmp_path_factory.mktemp("expected") / "data"
    run([sys.executable, *PREPROCESS, *arguments, "--output", str(output), "--workers", "1"])
    return tree(output)


def run(command, code=0, **options):
    """Run to the end; the lines of its stderr."""
    options = {"env": ENVIRONMENT, "stdin": subprocess.DEVNULL, "timeout": 120} | options
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr.splitlines()


def tree(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def left_of(output):
    return sorted(path.name for path in output.parent.iterdir() if path != output)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_any_number_of_ranks_writes_the_bytes_of_one_process(tmp_path, arguments, expected, ranks):
    run([MPIEXEC, "-n", str(ranks), *UNDER_MPI, *arguments, "--output", str(tmp_path / "data")])
    assert tree(tmp_path / "data") == expected
    assert left_of(tmp_path / "data") == []


def test_a_pool_writes_the_bytes_of_one_process(tmp_path, arguments, expected):
    run([sys.executable, *PREPROCESS, *arguments, "--output", str(tmp_path / "data"), "--workers", "2"])
    assert tree(tmp_path / "data") == expected


def test_one_rank_is_a_run_without_mpi(tmp_path, arguments, expected):
    command = [MPIEXEC, "-n", "1", *UNDER_MPI, *arguments, "--output", str(tmp_path / "data"), "--workers", "1"]
    run(command)
    assert tree(tmp_path / "data") == expected


def test_ranks_that_would_all_be_masters_are_refused_with_the_right_command(tmp_path, arguments):
    command = [sys.executable, *PREPROCESS, *arguments, "--output", str(tmp_path / "data")]
    lines = run([MPIEXEC, "-n", "3", *command], code=2)
    assert lines == [
        "error: 3 processes were started, and each would write the whole output; "
        "start them by: mpiexec -n 3 python -m mpi4py.futures -m data_tools.preprocess …"
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_number_of_workers_that_is_not_that_of_the_ranks_is_refused(tmp_path, arguments):
    command = [MPIEXEC, "-n", "3", *UNDER_MPI, *arguments, "--output", str(tmp_path / "data"), "--workers", "4"]
    (line,) = run(command, code=2)
    assert line.startswith("error: --workers: 4, but mpiexec has started 2 and the master")


def test_a_bad_input_is_told_in_one_line_and_all_ranks_end(tmp_path, arguments):
    (tmp_path / "bad.txt").write_bytes(b"one\n\nt\xffo\n")
    command = [*UNDER_MPI, *arguments, "--input", str(tmp_path / "bad.txt"), "--output", str(tmp_path / "out" / "data")]
    (line,) = run([MPIEXEC, "-n", "3", *command], code=2)
    assert line.startswith("error: ")
    assert "bad.txt:" in line
    assert list((tmp_path / "out").iterdir()) == []


def test_a_worker_that_cannot_see_an_input_says_on_which_machine(tmp_path, arguments):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "a.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    command = [*UNDER_MPI, *arguments, "--input", "a.txt", "--output", str(tmp_path / "data")]
    places = [["-wdir", str(tmp_path / name), "-n", "1", *command] for name in ("here", "there")]
    (line,) = run([MPIEXEC, *places[0], ":", *places[1]], code=2)
    assert "a.txt" in line
    assert f"No such file or directory on {socket.gethostname()}" in line


@pytest.mark.parametrize(
    ("victim", "number", "continued_by"),
    [
        ("worker", signal.SIGKILL, "pool"),
        ("master", signal.SIGKILL, "ranks"),
        ("mpiexec", signal.SIGKILL, "pool"),
        ("mpiexec", signal.SIGTERM, "ranks"),
        ("mpiexec", signal.SIGINT, "pool"),
    ],
)
def test_a_kill_ends_all_processes_and_the_same_command_continues(
    tmp_path, arguments, expected, victim, number, continued_by
):
    output = tmp_path / "data"
    command = [MPIEXEC, "-n", "3", *UNDER_MPI, *arguments, "--output", str(output)]
    process = subprocess.Popen(
        command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: any((tmp_path / ".data.tmp" / "units").glob("0*")), seconds=60)
    processes = {process.pid: "mpiexec"} | ranks_below(process.pid)
    assert sorted(processes.values()) == ["master", "mpiexec", "worker", "worker"]
    os.kill(next(pid for pid, role in processes.items() if role == victim), number)
    assert process.wait(timeout=SECONDS_TO_END) != 0
    wait_for(lambda: not any(map(is_alive, processes)), seconds=SECONDS_TO_END)
    assert not output.exists()
    if continued_by == "pool":
        command = [sys.executable, *PREPROCESS, *arguments, "--output", str(output), "--workers", "2"]
    run(command)
    assert tree(output) == expected
    assert left_of(output) == []


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def ranks_below(ancestor):
    """The processes that mpiexec has started, by their number: master or worker."""
    parents, roles = {}, {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal():
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    for pid in parents:
        above = pid
        while above in parents and above != ancestor:
            above = parents[above]
        with suppress(OSError):
            variables = (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
            rank = next((line for line in variables if line.startswith(b"PMI_RANK=")), None)
            if above == ancestor and rank:
                roles[pid] = "master" if rank == b"PMI_RANK=0" else "worker"
    return roles


def is_alive(pid):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
