"""Runs over hosts of their own, each with its name and network: every launcher, a pulled cable, a broken ssh."""

import re
import shutil
import signal
import sys

import pytest

from megatron_glm.training.control.stopping import read_end
from tests.endtoend import hosts, ssh_servers
from tests.endtoend.corpus import make_corpus
from tests.endtoend.undisturbed import has_made, losses, undisturbed_losses

PRETRAIN = hosts.REPOSITORY / "pretrain_glm.py"
SCRIPT = hosts.REPOSITORY / "launch_scripts" / "hostfile.sh"
STEPS = 10
SECONDS_TO_END = 240  # on a machine where other tests run
QUICK_SSH = "-o ServerAliveInterval=2 -o ServerAliveCountMax=2"

_LACKS = hosts.lacks() or ssh_servers.lacks()
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.skipif(bool(_LACKS), reason=_LACKS)]
needs_pdsh = pytest.mark.skipif(shutil.which("pdsh") is None, reason="no pdsh: apt-get install pdsh")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), steps=STEPS, eval_interval=STEPS, eval_samples=2)


@pytest.fixture(scope="module")
def expected(corpus):
    return undisturbed_losses(corpus)


@pytest.fixture
def network(tmp_path):
    with hosts.network(["node1", "node2"], tmp_path / "hosts") as one:
        ssh_servers.serve_ssh(one, tmp_path / "ssh")
        (tmp_path / "hostfile").write_text("".join(f"{name} slots=1\n" for name in one.hosts))
        yield one


@pytest.fixture
def environment(tmp_path):
    """Also of the processes behind ssh, by the file that DeepSpeed's launcher reads."""

    def make(**variables):
        home = tmp_path / "home"
        home.mkdir()
        (home / ".deepspeed_env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        place = {"HOME": str(home), "HOSTFILE": str(tmp_path / "hostfile"), "PDSH_SSH_ARGS_APPEND": QUICK_SSH}
        return hosts.clean_environment() | place | variables

    return make


@pytest.fixture
def run(corpus, tmp_path):
    """The arguments of a run."""
    return [corpus.config, f"train.output={tmp_path / 'run'}", "checkpoint.save_interval=2"]


def has_said(log, text):
    return lambda: text in log.read_text()


@needs_pdsh
def test_the_script_for_a_hostfile_starts_all_hosts_by_ssh(network, environment, run, expected, tmp_path):
    network.hosts["node1"].run("bash", SCRIPT, *run, environment=environment())
    assert losses(tmp_path / "run") == expected


def test_torchrun_with_a_rendezvous(network, environment, run, expected, tmp_path):
    command = ["torchrun", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400",
               "--rdzv-id=1", PRETRAIN, "--config", *run]  # fmt: skip
    variables = environment()
    other = network.hosts["node2"].start(command, environment=variables)
    network.hosts["node1"].run(*command, environment=variables)
    assert other.wait(SECONDS_TO_END) == 0
    assert losses(tmp_path / "run") == expected


@pytest.mark.parametrize(
    "launcher",
    [
        ["mpiexec", "-hosts", "node1,node2", "-n", "2", "-ppn", "1", "-genv", "MASTER_ADDR", "node1", sys.executable],
        ["deepspeed", "--launcher", "mpich", "--master_addr", "node1", "--hostfile"],
    ],
    ids=lambda launcher: launcher[0],
)
def test_an_mpi(network, environment, run, expected, tmp_path, launcher):
    pytest.importorskip("mpi4py")
    hostfile = [tmp_path / "hostfile"] if launcher[-1] == "--hostfile" else []
    network.hosts["node1"].run(*launcher, *hostfile, PRETRAIN, "--config", *run, environment=environment())
    assert losses(tmp_path / "run") == expected


@needs_pdsh
def test_a_pulled_cable_ends_both_sides_by_the_watchdog_and_the_run_goes_on(
    network, environment, run, expected, tmp_path
):
    """Nobody tells either side: the ranks end by their watchdogs, ssh since its own questions are not answered."""
    log = tmp_path / "log"
    variables = environment(GLM_FAULT="forward:rank=0:step=6:slow:seconds=0.5")
    command = ["bash", SCRIPT, *run, "train.watchdog_seconds=10"]
    started = network.hosts["node1"].start(command, environment=variables, log=log)
    hosts.until(has_made(tmp_path / "run", 5), log.read_text, SECONDS_TO_END)
    network.cut(network.hosts["node2"])
    for lost in ("node2: ssh exited with exit code 255", "node1: ssh exited with exit code 3"):
        hosts.until(has_said(log, lost), log.read_text, SECONDS_TO_END)
    network.mend(network.hosts["node2"])
    assert started.wait(SECONDS_TO_END) == 0, log.read_text()
    text = log.read_text()
    assert "error: rank 0 on node1: no progress for 10 s, in step " in text
    assert re.search("the launcher ended with 255; start 2 in 5 s, from .*step_0000000[2-8]; 1 of 5 without", text)
    assert sorted(path.name for path in (tmp_path / "run" / "stacks").iterdir()) == ["rank_0.txt", "rank_1.txt"]
    assert losses(tmp_path / "run") == expected


@needs_pdsh
def test_a_restart_waits_for_the_step_in_which_ssh_broke(network, environment, run, expected, tmp_path):
    """The ranks still have the output and the port then, and nothing on the supervisor's machine tells of them."""
    log = tmp_path / "log"
    variables = environment(GLM_FAULT="optimizer:rank=0:step=6:slow:seconds=15")
    started = network.hosts["node1"].start(["bash", SCRIPT, *run], environment=variables, log=log)
    hosts.until(has_said(log, "slow in optimizer"), log.read_text, SECONDS_TO_END)
    (tmp_path / "home" / ".deepspeed_env").write_text("")  # the next start is not slow
    network.hosts["node1"].run("pkill", "-KILL", "-x", "ssh")
    assert started.wait(SECONDS_TO_END) == 0, log.read_text()
    assert re.search(
        r"supervise: waiting 300 s \(--grace\) at most for the end of process \d+ on node1", log.read_text()
    )
    assert "error:" not in log.read_text()
    assert losses(tmp_path / "run") == expected


@needs_pdsh
def test_a_supervisor_that_is_told_to_stop_reaches_all_hosts(network, environment, run, tmp_path):
    log = tmp_path / "log"
    variables = environment(GLM_FAULT="forward:rank=0:step=6:slow:seconds=1")
    node = network.hosts["node1"]
    started = node.start(["bash", SCRIPT, *run], environment=variables, log=log)
    hosts.until(has_made(tmp_path / "run", 5), log.read_text, SECONDS_TO_END)
    node.run("pkill", f"-{signal.SIGTERM:d}", "--full", "launch_scripts.supervise")
    assert started.wait(SECONDS_TO_END) == 0, log.read_text()
    end = read_end(tmp_path / "run")
    assert (end.finished, end.reason) == (False, f"the file {tmp_path / 'run' / 'stop'}")
    for host in network.hosts.values():
        assert host.run("pgrep", "--full", "pretrain_glm", code=None) == ""


@needs_pdsh
def test_the_doctor_names_the_hosts(network, environment, corpus, tmp_path):
    doctor = ["deepspeed", "--hostfile", tmp_path / "hostfile", "--module", "megatron_glm.doctor"]
    config = ["--config", corpus.config, f"train.output={tmp_path / 'run'}"]
    told = network.hosts["node1"].run(*doctor, *config, environment=environment())
    assert "hosts          rank 0 on node1; rank 1 on node2" in told
    assert re.search(r"group data     1 × 2 ranks, [\d.]+ GB/s", told)
    assert ", 0 fail" in told


@needs_pdsh
def test_an_interface_that_is_not_there_is_a_line_and_a_mistake(network, environment, run):
    variables = environment(GLOO_SOCKET_IFNAME="eth7")
    told = network.hosts["node1"].run("bash", SCRIPT, *run, environment=variables, code=2)
    errors = re.findall(r"node\d: error: (.*)", told)
    assert errors
    assert all("GLOO_SOCKET_IFNAME names no network interface of this machine" in error for error in errors)


def test_a_host_that_calls_itself_127_0_1_1_is_told_of_the_interface(network, environment, run, tmp_path):
    """As Debian writes /etc/hosts: the names of the others are right, a machine's own is not."""
    for host in network.hosts.values():
        others = "".join(f"{one.address} {one.name}\n" for one in network.hosts.values() if one is not host)
        host.lies_over(hosts.NAMES, f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n{others}")
    address, log = network.hosts["node1"].address, tmp_path / "log"
    place = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": address, "MASTER_PORT": "29500"}
    command = [sys.executable, PRETRAIN, "--config", *run]
    variables = environment() | place
    both = [
        host.start(command, environment=variables | {"RANK": str(rank)}, log=log)
        for rank, host in enumerate(network.hosts.values())
    ]
    # Whichever tries to reach the other: that one would wait on for half an hour.
    hosts.until(lambda: any(one.poll() is not None for one in both), log.read_text, SECONDS_TO_END)
    assert sorted((one.poll() for one in both), key=str) == [4, None]
    (error,) = [line for line in log.read_text().splitlines() if line.startswith("error: ")]
    assert "remote=[127.0.1.1]" in error
    assert "set GLOO_SOCKET_IFNAME to the interface by which all reach each other" in error


@pytest.fixture
def preprocess(corpus, tmp_path):
    """The arguments of a preprocessing of six units, all but the output."""
    text = (corpus.root / "text.txt").read_text()
    for name in "abcdef":
        (tmp_path / f"{name}.txt").write_text("\n\n".join([text] * 20))
    (tmp_path / "hosts.txt").write_text("node1\nnode2\n")
    return ["--input", f"{tmp_path}/?.txt", "--tokenizer", corpus.root / "tokenizer", "--held-out", "0.1", "--output"]


def test_preprocessing_over_hosts_writes_the_bytes_of_one_process_and_outlives_a_host(
    network, environment, preprocess, tmp_path
):
    pytest.importorskip("mpi4py")
    node, variables = network.hosts["node1"], environment()
    command = [sys.executable, "-m", "data_tools.preprocess", *preprocess]
    node.run(*command, tmp_path / "one", "--workers", "1", environment=variables)
    over_hosts = ["mpiexec", "-f", tmp_path / "hosts.txt", "-n", "3", sys.executable, "-m", "mpi4py.futures"]
    node.run(*over_hosts, *command[1:], tmp_path / "two", environment=variables)
    assert tree(tmp_path / "two") == tree(tmp_path / "one")

    killed = tmp_path / "killed"
    started = node.start([*over_hosts, *command[1:], killed], environment=variables)
    hosts.until(lambda: any((tmp_path / ".killed.tmp" / "units").glob("0*")), lambda: "no unit")
    network.hosts["node2"].kill()
    assert started.wait(SECONDS_TO_END) not in (0, None)
    assert node.run("pgrep", "--full", "data_tools.preprocess", code=None) == ""
    assert not killed.exists()
    node.run(*command, killed, "--workers", "1", environment=variables)  # the hosts that are left
    assert tree(killed) == tree(tmp_path / "one")


def tree(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
