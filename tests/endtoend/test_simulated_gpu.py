"""Training on a device that is not the host: the losses are those of a CPU, and nothing lands on the wrong side.

The GPU is simulated: tests/simulated_gpu. Its operators are those of the CPU, so that numbers can be compared; torch
refuses to mix its tensors with those of the host, and its NCCL refuses what NCCL refuses. What no simulation shows:
kernels as a GPU runs them, their races, and NCCL itself.
"""

import json
import sys

import pytest

from megatron_glm.training.launchers import free_port
from tests.distributed.ranks import run_ranks
from tests.endtoend import pretraining_cases
from tests.endtoend.corpus import make_corpus
from tests.simulated_gpu.machine import SimulatedMachine

pytestmark = pytest.mark.distributed

CASES = "tests.endtoend.simulated_gpu_cases"
SETTINGS = [
    *("train.steps=4", "schedule.decay_steps=4", "schedule.warmup_steps=2", "train.eval_interval=2"),
    *("checkpoint.save_interval=2", "train.attention_backend=segments", "train.compile=never", "train.log_interval=1"),
]
LAYOUTS = {
    "replicas": (2, ["parallel.zero_stage=2", "data.workers=1"]),
    "tensor": (
        2,
        ["parallel.tensor=2", "parallel.sequence=true", "parallel.zero_stage=1", "train.recompute=selective"],
    ),
    "pipeline": (2, ["parallel.pipeline=2", "parallel.zero_stage=1", "checkpoint.background=false"]),
}
MORE_LAYOUTS = {
    "one": (1, ["parallel.zero_stage=0"]),
    "ZeRO 1": (2, ["parallel.zero_stage=1", "train.micro_batch_size=1", "train.replica_check_interval=1"]),
    "ZeRO 3": (2, ["parallel.zero_stage=3", "data.workers=2", "checkpoint.background=false"]),
    "tensor, ZeRO 3": (2, ["parallel.tensor=2", "parallel.zero_stage=3", "train.recompute=full"]),
    "pipeline, ZeRO 0": (2, ["parallel.pipeline=2", "parallel.zero_stage=0", "train.recompute=full"]),
    "measured stages": (2, ["model.num_layers=5", "parallel.pipeline=2", "parallel.zero_stage=0"]),
    "all": (4, ["parallel.tensor=2", "parallel.sequence=true", "parallel.pipeline=2", "parallel.zero_stage=0"]),
    "offload": (2, ["parallel.zero_stage=2", "parallel.offload_optimizer=cpu"]),
    "offload, ZeRO 3": (2, ["parallel.zero_stage=3", "parallel.offload_optimizer=cpu"]),
    "options": (
        2,
        [
            *("train.batch_ramp.start=4", "train.batch_ramp.increment=4", "train.batch_ramp.samples=12"),
            *("train.spikes.policy=skip", "train.embedding_gradient.factor=0.5", "train.label_smoothing=0.1"),
        ],
    ),
}
LOW_PRECISION = {
    "replicas": (2, ["parallel.zero_stage=2"]),
    "tensor": (2, ["parallel.tensor=2", "parallel.zero_stage=1"]),
    "ZeRO 3": (2, ["parallel.zero_stage=3"]),
    "pipeline": (2, ["parallel.pipeline=2", "parallel.zero_stage=1"]),
}
# A step of few tokens: each program of a kernel takes Triton's interpreter milliseconds.
SMALL = [
    *("train.steps=2", "schedule.decay_steps=2", "schedule.warmup_steps=1", "train.eval_samples=1", "data.window=24"),
    *("train.global_batch_size=2", "train.micro_batch_size=1", "model.hidden_size=16", "train.attention_backend=auto"),
]
ON_KERNELS = {
    "fp32": (1, ["parallel.zero_stage=0"]),
    "bf16, tensor": (
        2,
        [
            *("train.precision=bf16", "parallel.tensor=2", "parallel.sequence=true", "parallel.zero_stage=1"),
            "train.recompute=selective",
        ],
    ),
    "fp16": (2, ["train.precision=fp16", "parallel.zero_stage=2"]),
    "fp16, pipeline": (
        2,
        ["train.precision=fp16", "parallel.pipeline=2", "parallel.zero_stage=1", "train.recompute=full"],
    ),
}
KERNEL_TOLERANCE = {"fp32": 1e-5, "bf16": 2e-3, "fp16": 2e-3}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def machine(tmp_path_factory):
    return SimulatedMachine(tmp_path_factory.mktemp("simulated_gpu"), gpus=4)


@pytest.fixture(scope="module")
def gpus(machine):
    with machine.server(SIMULATED_TRITON="0") as server:
        yield server


@pytest.fixture(scope="module")
def gpus_with_kernels(machine):
    with machine.server(TRITON_INTERPRET="1") as server:
        yield server


def train(corpus, name, processes, *overrides, on=None):
    """One run, on the CPU or the server of a simulated machine."""
    arguments = [str(corpus.config), f"train.output={corpus.root / name}", *SETTINGS, *overrides]
    if on is None:
        run_ranks(processes, pretraining_cases.train, *arguments, timeout=240)
    else:
        on.run_ranks(processes, pretraining_cases.__name__, "train", *arguments)
    return corpus.root / name


def losses(output):
    """Of every step and validation, by kind and step, and the norms of the gradients."""
    records = map(json.loads, (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {
        (record["kind"], record["step"], name): value
        for record in records
        if record["kind"] in ("train", "validation")
        for name, value in {"loss": record["loss"], "norm": record.get("grad_norm", 0.0), **record["losses"]}.items()
    }


@pytest.fixture(scope="module")
def on_a_cpu(corpus):
    return losses(train(corpus, "on a CPU", 1, "parallel.zero_stage=0"))


def compare(corpus, name, processes, overrides, gpus, tolerance):
    on_cpu = losses(train(corpus, f"{name} on a CPU", processes, *overrides))
    on_gpu = losses(train(corpus, f"{name} on GPUs", processes, *overrides, on=gpus))
    assert on_gpu == pytest.approx(on_cpu, rel=tolerance)


@pytest.mark.parametrize("name", LAYOUTS)
def test_losses_are_those_of_a_cpu(corpus, on_a_cpu, gpus, name):
    processes, overrides = LAYOUTS[name]
    assert losses(train(corpus, name, processes, *overrides, on=gpus)) == pytest.approx(on_a_cpu, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE_LAYOUTS)
def test_losses_of_more_layouts_are_those_of_a_cpu(corpus, gpus, name):
    compare(corpus, name, *MORE_LAYOUTS[name], gpus, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", LOW_PRECISION)
def test_losses_in_bf16_are_those_of_a_cpu(corpus, gpus, name):
    # Not to the last bit: on a CPU torch joins operators that it has no joint kernel for on a GPU.
    processes, overrides = LOW_PRECISION[name]
    compare(corpus, f"bf16 {name}", processes, [*overrides, "train.precision=bf16"], gpus, 3e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_KERNELS)
def test_our_kernels_are_what_a_gpu_runs(corpus, gpus_with_kernels, name):
    processes, overrides = ON_KERNELS[name]
    without_dropout = ["model.hidden_dropout=0", "model.attention_dropout=0"]  # whose masks are another generator's
    on_cpu = losses(train(corpus, f"kernels {name}, CPU", 1, *SMALL, *without_dropout))
    output = train(corpus, f"kernels {name}", processes, *SMALL, *without_dropout, *overrides, on=gpus_with_kernels)
    assert losses(output) == pytest.approx(on_cpu, rel=KERNEL_TOLERANCE[name.split(",")[0]])


def test_a_run_goes_on_from_gpus_to_a_cpu_and_back(corpus, on_a_cpu, gpus):
    layouts = [(2, LAYOUTS["replicas"], gpus), (3, (1, ["parallel.zero_stage=0"]), None), (4, LAYOUTS["tensor"], gpus)]
    for steps, (processes, overrides), place in layouts:
        output = train(corpus, "moved", processes, *overrides, f"train.steps={steps}", on=place)
    moved = losses(output)
    for step in (1, 2, 3, 4):
        assert moved["train", step, "loss"] == pytest.approx(on_a_cpu["train", step, "loss"], rel=1e-5)


def test_every_group_waits_as_long_as_the_first(gpus):
    for minutes in gpus.run_ranks(2, CASES, "timeouts"):
        assert len(minutes) >= 3
        assert set(minutes) == {30.0}


def test_a_rank_that_fails_does_not_wait_for_the_others(gpus, tmp_path):
    assert gpus.run_ranks(2, CASES, "failure_of_one", str(tmp_path / "rank 1 has left")) == [True, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ["deepspeed", "--num_accelerators", "2", "--master_port"],
        ["torchrun", "--nproc-per-node", "2", "--master-port"],
        ["mpiexec", "-n", "2", "-genv", "MASTER_PORT"],
    ],
    ids=lambda launcher: launcher[0],
)
def test_the_command_is_the_same_as_on_a_cpu(corpus, machine, launcher):
    name, script = launcher[0], ["pretrain_glm.py", "--config", str(corpus.config)]
    command = [*launcher, str(free_port()), *([sys.executable] if name == "mpiexec" else []), *script, *SETTINGS]
    variables = {"CPU": {"SIMULATED_GPUS": "0"}, "GPUs": {"SIMULATED_TRITON": "0"}}
    outputs = {place: corpus.root / f"{name} on {place}" for place in variables}
    for place, output in outputs.items():
        done = machine.run(*command, f"train.output={output}", **variables[place])
        assert done.returncode == 0, done.stdout + done.stderr
    assert " on cuda:0," in done.stdout
    assert losses(outputs["GPUs"]) == pytest.approx(losses(outputs["CPU"]), rel=1e-6)


@pytest.mark.slow
def test_the_gpus_that_a_user_chooses_are_those_that_are_used(corpus, machine):
    name, script = str(corpus.root / "chosen"), ["pretrain_glm.py", "--config", str(corpus.config)]
    command = ["deepspeed", "--master_port", str(free_port()), *script, *SETTINGS, f"train.output={name}"]
    done = machine.run(*command, CUDA_VISIBLE_DEVICES="1,3", SIMULATED_TRITON="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Setting CUDA_VISIBLE_DEVICES=1,3" in done.stdout + done.stderr
    assert "2 replicas on cuda:0" in done.stdout


@pytest.mark.slow
def test_the_doctor_finds_the_gpus_and_measures_their_groups(corpus, machine):
    where = ["--nproc-per-node", "2", "--master-port", str(free_port()), "-m", "megatron_glm.doctor"]
    done = machine.run("torchrun", *where, "--json", "--config", str(corpus.config), "train.compile=never")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert found["backend"]["value"] == "nccl"
    assert found["device"]["value"] == "simulated GPU, 80.0 of 80.0 GiB free, bf16"
    assert {check["status"] for check in found.values()} <= {"ok", "warn"}
    assert "all-reduce of 256 MiB" in found["group data"]["value"]


@pytest.mark.slow
def test_a_release_fills_blanks_with_the_tokens_of_a_cpu(corpus, machine, gpus):
    run = train(corpus, "to release", 2, *LAYOUTS["tensor"][1], on=gpus)
    release = corpus.root / "release"
    glm = [sys.executable, "-m", "megatron_glm.cli"]
    checkpoint = run / "checkpoints" / "step_00000004"
    exported = machine.run(*glm, "export", "--checkpoint", str(checkpoint), "--output", str(release))
    assert exported.returncode == 0, exported.stdout + exported.stderr
    fill = [*glm, "generate", "--model", str(release), "--text", "the old [MASK] sat. [gMASK]", "--max-tokens", "6"]
    on_cpu = machine.run(*fill, SIMULATED_GPUS="0")
    assert on_cpu.returncode == 0, on_cpu.stderr
    for variables in ({"SIMULATED_TRITON": "0"}, {"TRITON_INTERPRET": "1"}):
        filled = machine.run(*fill, **variables)
        assert (filled.returncode, filled.stdout) == (0, on_cpu.stdout), filled.stderr


def test_the_simulated_gpu_refuses_the_classic_mistakes(gpus):
    (refused,) = gpus.run_ranks(1, CASES, "refusals")
    assert len(refused) == 8, refused


def test_the_simulated_nccl_refuses_what_nccl_does(gpus):
    for refused in gpus.run_ranks(2, CASES, "refused_messages"):
        assert len(refused) == 3, refused
    for error in gpus.run_ranks(2, CASES, "message_from_one_gpu"):
        assert "Duplicate GPU detected" in error


def test_a_copy_to_the_host_is_not_there_before_the_host_waits(gpus):
    assert gpus.run_ranks(1, CASES, "unawaited_copy") == [[[0.0, 0.0], [1.0, 1.0]]]


def test_what_is_saved_in_the_background_is_there_when_training_goes_on(gpus):
    assert gpus.run_ranks(1, CASES, "snapshot") == [[1.0, 1.0]]
