"""The scripts for the shell: they parse, they stop at the first failure, they explain what they read."""

import re
import stat
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "launch_scripts"
SCRIPTS = sorted([*FOLDER.glob("*.sh"), *FOLDER.glob("*.sbatch")])


def test_there_are_three():
    assert [path.name for path in SCRIPTS] == ["hostfile.sh", "one_node.sh", "slurm.sbatch"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_parses_and_stops_at_a_failure(path):
    subprocess.run(["bash", "-n", path], check=True)
    assert "\nset -euo pipefail\n" in path.read_text()
    assert path.stat().st_mode & stat.S_IXUSR


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_explains_every_variable_that_it_reads(path):
    text = path.read_text()
    explained = set(re.findall(r"^#   ([A-Z_]+) ", text, re.M))
    code = re.sub(r"^#.*$", "", text, flags=re.M)
    read = {name for name in re.findall(r"\$\{?\(*([A-Z][A-Z_]+)", code) if not name.startswith("SLURM_")}
    assert read == explained


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_without_a_configuration_says_how_it_is_used(path):
    done = subprocess.run(["bash", path], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"usage: {'sbatch ' if path.suffix == '.sbatch' else ''}{path.name} CONFIG" in done.stderr


@pytest.fixture
def stand_in(tmp_path):
    """Puts a command in front of those of the machine; the environment to use."""

    def put(**commands):
        for name, script in commands.items():
            path = tmp_path / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    return put


PYTHON = 'case "$*" in *free_port*) echo 23456 ;; *) echo "$*" ;; esac'


def started(script, environment, *arguments):
    command = ["bash", FOLDER / script, "a.yaml", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def test_without_a_gpu_two_processes_start_and_with_gpus_as_deepspeed_finds_them(stand_in):
    supervised = "-m launch_scripts.supervise --restarts 5 -- deepspeed"
    run = f"--master_port 23456 {FOLDER}/../pretrain_glm.py --config a.yaml train.steps=3"
    environment = stand_in(nvidia_smi="exit 9", python=PYTHON)
    assert started("one_node.sh", environment, "train.steps=3") == f"{supervised} --num_accelerators 2 {run}"
    environment = stand_in(nvidia_smi="exit 0") | {"MASTER_PORT": "23456"}
    assert started("one_node.sh", environment, "train.steps=3") == f"{supervised} {run}"
    four = started("one_node.sh", environment | {"PROCESSES": "4", "RESTARTS": "0"}, "train.steps=3")
    assert four == f"{supervised} --num_accelerators 4 {run}".replace("restarts 5", "restarts 0")


def test_a_hostfile_is_for_ssh_or_for_one_launcher_a_host(stand_in, tmp_path):
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("# ours\n\nnode1 slots=8\nnode2 slots=8\n")
    environment = stand_in(python=PYTHON) | {"HOSTFILE": str(hostfile)}
    supervised = "-m launch_scripts.supervise --restarts 5 -- deepspeed"
    place = f"{supervised} --hostfile {hostfile} --master_addr node1 --master_port 29500"
    run = f"{FOLDER}/../pretrain_glm.py --config a.yaml"
    assert started("hostfile.sh", environment) == f"{place} {run}"
    assert started("hostfile.sh", environment | {"NODE_RANK": "1"}) == f"{place} --no_ssh --node_rank 1 {run}"


def test_the_slurm_script_gives_each_task_what_it_needs(stand_in):
    """The first node is where all meet, on a port of the job's own."""
    environment = stand_in(
        scontrol="printf 'node7\\nnode8\\n'", python='echo "$MASTER_ADDR $MASTER_PORT $OMP_NUM_THREADS $*"'
    )
    job = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_JOB_ID": "123456", "SLURM_CPUS_PER_TASK": "6"}
    place, _, rest = started("slurm.sbatch", environment | job, "train.steps=3").partition(" --kill-on-bad-exit=1 ")
    assert place == "node7 23456 6 -m launch_scripts.supervise --restarts 5 -- srun"
    assert rest.endswith("python pretrain_glm.py --config a.yaml train.steps=3")
