"""A run with compiled norms and GELU, from the banner to its last bit."""

import json
import os

import pytest

from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.checkpoint.reading import CheckpointReader
from tests.distributed.ranks import run_ranks
from tests.endtoend import pretraining_cases as cases
from tests.endtoend.corpus import make_corpus

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def records(run, kind):
    return [r for r in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if r["kind"] == kind]


def final(run):
    return CheckpointReader(scan_checkpoints(run / "checkpoints").newest)


def curve(run):
    return [(r["step"], r["loss"], r["gradient_norm"]) for r in records(run, "train")]


@pytest.mark.parametrize(
    "layout",
    [("parallel.zero_stage=2",), ("parallel.zero_stage=1", "parallel.pipeline=2", "model.num_layers=3")],
    ids=["ZeRO 2", "two stages, divided by measured times"],
)
def test_a_stop_a_resume_and_an_empty_cache_change_no_bit(corpus, tmp_path, layout):
    def train(output, programs, *more):
        # Replicas are compared at every save, and at every fourth step besides.
        settings = ("train.compile=always", "train.replica_check_interval=4", "schedule.decay_steps=40")
        run_ranks(
            2, cases.train_compiled, str(programs), str(corpus.config), f"train.output={output}", *settings, *layout,
            *more, timeout=400,
        )  # fmt: skip

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(whole, tmp_path / "one")
    stages = records(whole, "start")[0]["stages"]
    layers = [f"parallel.stage_layers={[stop - start for start, stop in stages]}"] if len(stages) > 1 else []
    train(parts, tmp_path / "one", "train.steps=20", *layers)
    train(parts, tmp_path / "two", *layers)
    assert [record["compiled"] for record in records(parts, "start")] == [True, True]
    assert curve(parts) == curve(whole)
    assert final(parts).parameter_hashes() == final(whole).parameter_hashes()
    assert records(parts, "validation")[-1]["losses"] == records(whole, "validation")[-1]["losses"]


def test_programs_that_were_cut_short_are_compiled_anew(corpus, tmp_path):
    # As a compiler may leave them that is killed while it writes: a process that runs one ends by SIGBUS.
    programs, outputs = tmp_path / "programs", [tmp_path / "first", tmp_path / "second"]
    for output in outputs:
        for program in programs.glob("*/*.main.so"):
            os.truncate(program, program.stat().st_size // 3)
        settings = (f"train.output={output}", "train.compile=always", "train.steps=4", "train.log_interval=1")
        run_ranks(1, cases.train_compiled, str(programs), str(corpus.config), *settings, timeout=300)
    assert len(list(programs.glob("*/*.main.so"))) > 3
    assert curve(outputs[0]) == curve(outputs[1])
    assert [record["compiled"] for output in outputs for record in records(output, "start")] == [True, True]


def test_without_a_compiler_the_run_ends_before_its_first_step_and_says_what_to_do(corpus, tmp_path):
    output = tmp_path / "run"
    found = run_ranks(
        2, cases.train_without_compiler, str(tmp_path), str(corpus.config), f"train.output={output}",
        "train.compile=always",
    )  # fmt: skip
    assert found[0] == found[1]
    assert found[0].startswith("ConfigError: train.compile: always, but torch.compile fails on rank 0: Invalid")
    assert not (output / "metrics.jsonl").exists()
    assert not (output / "checkpoints").exists() or list((output / "checkpoints").iterdir()) == []
