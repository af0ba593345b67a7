"""The same command under every launcher: the same processes, and so the same losses to the last bit."""

import json
import os
import shutil
import socket
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from megatron_glm.training.launchers import free_port
from tests.distributed.ranks import run_ranks
from tests.endtoend import pretraining_cases as cases
from tests.endtoend.corpus import make_corpus

REPOSITORY = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PRETRAIN = REPOSITORY / "pretrain_glm.py"
PATH = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
SECONDS_TO_END = 240  # on a machine where other tests run

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def environment():
    """That of a shell from which nothing is running yet."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MASTER_", "SLURM_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        variables.pop(name, None)
    search = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'kernels'}"
    # The launcher would take a GPU for each process; what is tested here is how the processes meet.
    return variables | {"PATH": PATH, "PYTHONPATH": search, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu",
                        "CUDA_VISIBLE_DEVICES": ""}  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), steps=2, eval_interval=2, eval_samples=2)


@pytest.fixture(scope="module")
def expected(corpus):
    """The losses of two processes that no launcher started."""
    output = corpus.root / "expected"
    run_ranks(2, cases.train, str(corpus.config), f"train.output={output}")
    return losses(output)


def losses(output):
    records = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [(r["kind"], r["step"], r["loss"]) for r in records if r["kind"] in ("train", "validation")]


@pytest.fixture
def port():
    return str(free_port())


def finish(commands, environment, code=0):
    """Run these commands at the same time, each to its end; the output of all."""
    started = [
        subprocess.Popen(
            [str(part) for part in command],
            env=environment,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for command in commands
    ]
    try:
        outputs = [process.communicate(timeout=SECONDS_TO_END)[0] for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.wait()
    assert [process.returncode for process in started] == [code] * len(started), "\n".join(outputs)
    return "\n".join(outputs)


@pytest.fixture
def mpiexec():
    pytest.importorskip("mpi4py")
    found = shutil.which("mpiexec", path=PATH)
    if found is None:
        pytest.skip("no mpiexec: pip install mpich")
    return found


def test_torchrun(corpus, expected, environment, tmp_path):
    run = [PRETRAIN, "--config", corpus.config, f"train.output={tmp_path}"]
    finish([[BIN / "torchrun", "--standalone", "--nproc-per-node", 2, *run]], environment)
    assert losses(tmp_path) == expected


def test_the_script_for_one_node(corpus, expected, environment, tmp_path, port):
    script = ["bash", REPOSITORY / "launch_scripts" / "one_node.sh", corpus.config, f"train.output={tmp_path}"]
    finish([script], environment | {"PROCESSES": "2", "MASTER_PORT": port})
    assert losses(tmp_path) == expected


def test_two_nodes_of_a_hostfile(corpus, expected, environment, tmp_path, port):
    """Both on this machine, each started by hand, with a process of local rank 0."""
    (tmp_path / "hostfile").write_text("node0 slots=1\nnode1 slots=1\n")
    script = ["bash", REPOSITORY / "launch_scripts" / "hostfile.sh", corpus.config, f"train.output={tmp_path}"]
    variables = {"HOSTFILE": str(tmp_path / "hostfile"), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    nodes = [["env", f"NODE_RANK={node}", *script] for node in (0, 1)]
    finish(nodes, environment | variables)
    assert losses(tmp_path) == expected


def test_mpiexec(corpus, expected, environment, tmp_path, port, mpiexec):
    run = [PRETRAIN, "--config", corpus.config, f"train.output={tmp_path}"]
    finish([[mpiexec, "-n", 2, sys.executable, *run]], environment | {"MASTER_PORT": port})
    assert losses(tmp_path) == expected


@pytest.mark.slow
def test_the_mpi_launcher_of_deepspeed(corpus, expected, environment, tmp_path, port, mpiexec):
    (tmp_path / "hostfile").write_text("127.0.0.1 slots=2\n")
    options = ["--hostfile", tmp_path / "hostfile", "--launcher", "mpich", "--force_multi", "--no_ssh_check"]
    place = ["--master_addr", "127.0.0.1", "--master_port", port]
    run = [PRETRAIN, "--config", corpus.config, f"train.output={tmp_path}"]
    finish([[BIN / "deepspeed", *options, *place, *run]], environment)
    assert losses(tmp_path) == expected


def test_a_port_that_another_job_uses_is_one_clear_line(corpus, environment, tmp_path):
    with closing(socket.socket()) as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = str(other.getsockname()[1])
        alone = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        run = [sys.executable, PRETRAIN, "--config", corpus.config, f"train.output={tmp_path}"]
        output = finish([run], environment | alone, code=2)
    (line,) = [line for line in output.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: rank 0: the processes do not meet at 127.0.0.1:{port} (")
    assert line.endswith("another job uses this port; choose another, with --master_port or MASTER_PORT")
    assert "Traceback" not in output


def test_the_doctor_of_a_job(corpus, environment, tmp_path, port):
    """Its findings are told by one process, and a fault is the launcher's exit code."""
    launcher = [BIN / "deepspeed", "--num_accelerators", 2, "--master_port", port, "--module", "megatron_glm.doctor"]
    config = ["--config", corpus.config, f"train.output={tmp_path}", "train.global_batch_size=7"]
    output = finish([[*launcher, *config]], environment, code=2)
    (fault,) = [line for line in output.splitlines() if line.startswith("fail ")]
    assert "train.global_batch_size: 7 is not micro_batch_size × accumulation × data parallel" in fault
    assert output.count("ranks 0-1 on ") == 1
    assert list(tmp_path.iterdir()) == []
