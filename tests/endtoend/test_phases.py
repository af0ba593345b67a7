"""A run whose data change in its course: planned from the beginning, or added when it is continued."""

import json
import re
import shutil

import pytest

from data_tools import preprocess
from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.checkpoint.reading import CheckpointReader
from tests.distributed.ranks import run_ranks
from tests.endtoend import pretraining_cases as cases
from tests.endtoend.corpus import make_corpus
from tests.endtoend.corpus import run as run_command

pytestmark = pytest.mark.distributed

PHASE = "{from_sample: 44, window: 32, objective: {token: 0.0, sentence: 0.0, document: 1.0}}"  # within step 6


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), steps=10)


def train(corpus, output, *overrides, processes=2):
    common = (f"train.output={output}", "schedule.decay_steps=10", "checkpoint.save_interval=4")
    return run_ranks(processes, cases.train_until_failure, str(corpus.config), *common, *overrides)[0]


def records(output):
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [record for record in lines if record["kind"] == "train"]


def test_a_phase_that_is_added_at_a_resume_is_the_run_that_was_planned_with_it(corpus, tmp_path):
    planned, stopped = tmp_path / "planned", tmp_path / "stopped"
    assert train(corpus, planned, f"data.phases=[{PHASE}]") == "no error"
    assert train(corpus, stopped, "train.steps=4") == "no error"
    assert train(corpus, stopped, f"data.phases=[{PHASE}]") == "no error"
    hashes = [
        CheckpointReader(scan_checkpoints(run / "checkpoints").newest).parameter_hashes() for run in (planned, stopped)
    ]
    assert hashes[0] == hashes[1]
    found = records(stopped)
    assert [record["loss"] for record in found] == [record["loss"] for record in records(planned)]
    assert [record["phase"] for record in found] == [0] * 5 + [1] * 5
    assert all(set(record["losses"]) == {"document"} for record in found[6:])


def test_a_change_of_what_was_consumed_is_refused_with_the_phase_to_write(corpus, tmp_path):
    run = tmp_path / "run"
    assert train(corpus, run, "train.steps=4", processes=1) == "no error"
    message = train(corpus, run, "data.window=32", processes=1)
    assert message.startswith("CheckpointError: ")
    assert message.endswith(
        "data.window differs from what its 32 samples were trained with; set it back, and add to data.phases:"
        " {from_sample: 32, window: 32}"
    )
    phase = re.search(r"\{.*\}$", message)[0]
    assert train(corpus, run, f"data.phases=[{phase}]", processes=1) == "no error"


def test_data_that_were_written_anew_with_as_many_tokens_are_refused(tmp_path):
    corpus = make_corpus(tmp_path, steps=10)
    run = tmp_path / "run"
    assert train(corpus, run, "train.steps=4", processes=1) == "no error"
    documents = (tmp_path / "text.txt").read_text().rstrip("\n").split("\n\n")
    (tmp_path / "text.txt").write_text("\n\n".join(reversed(documents)) + "\n")
    shutil.rmtree(tmp_path / "data")
    options = ("--tokenizer", tmp_path / "tokenizer", "--output", tmp_path / "data", "--held-out", 0.1, "--workers", 1)
    run_command(preprocess.main, "--input", tmp_path / "text.txt", *options)
    message = train(corpus, run, processes=1)
    assert message.startswith("CheckpointError: ")
    assert "data.sources[0]: " in message
    assert "holds other documents" in message
