"""Samples that are left out over the end of an epoch, over the beginning of a phase, and after a resume."""

import json
import math

import numpy as np
import pytest

from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.config.loading import load_config
from megatron_glm.data.dataset import SampleDataset
from megatron_glm.data.epoch import windows_per_epoch
from megatron_glm.data.skip_list import SkipList
from megatron_glm.tokenizer.loading import load_tokenizer
from tests.distributed.ranks import run_ranks
from tests.endtoend import mishap_cases as cases
from tests.endtoend.corpus import make_corpus

pytestmark = pytest.mark.distributed

BATCH, STEPS = 8, 10


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), steps=STEPS, eval_interval=100)


@pytest.fixture(scope="module")
def plan(corpus):
    """The first sample of the second epoch, that of the phase, and what is left out."""
    config = load_config(corpus.config)
    (length,) = SampleDataset.open(config, load_tokenizer(config.tokenizer.path)).lengths
    epoch = windows_per_epoch(length, config.data.window - 1)
    phase = epoch + 22
    # To the last samples of the epoch, over its end, and over the beginning of the phase within a step.
    return epoch, phase, [[12, epoch - 13], [epoch - 4, epoch + 5], [phase - 5, phase + 2]]


def samples_of(plan):
    """Of the run's steps: int64 [steps, batch]."""
    gone = {sample for first, end in plan[2] for sample in range(first, end)}
    taken = [sample for sample in range(plan[2][-1][1] + STEPS * BATCH) if sample not in gone][: STEPS * BATCH]
    return np.array(taken).reshape(STEPS, BATCH)


def train(corpus, plan, output, *overrides, faults, processes=2, skips=True):
    _, phase, ranges = plan
    settings = [
        f"train.output={output}",
        f"schedule.decay_steps={STEPS}",
        "checkpoint.save_interval=2",
        f"data.phases=[{{from_sample: {phase}, window: 24}}]",
        *([f"data.skip_samples={ranges}"] if skips else []),
    ]
    (message,) = set(run_ranks(processes, cases.train, str(corpus.config), faults, *settings, *overrides))
    return message


def records(run, kind):
    return [r for r in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if r["kind"] == kind]


@pytest.fixture(scope="module")
def whole(corpus, plan):
    """A run in which every step has a bad loss that has one of the samples that are left out, or one of the second."""
    output = corpus.root / "whole"
    gone = [sample for first, end in plan[2] for sample in range(first, end)]
    assert train(corpus, plan, output, faults={"loss": [*gone, int(samples_of(plan)[1, 3])]}) == "no error"
    return output


def test_every_step_has_the_next_samples_that_are_not_left_out(plan, whole):
    samples = samples_of(plan)
    epoch, phase, _ = plan
    assert samples[1, 0] < 12 < epoch - 13 <= samples[1, -1]  # the plan is what it should be
    assert any(row[0] < phase <= row[-1] for row in samples)
    assert [r["samples"] for r in records(whole, "train")] == [row[-1] + 1 for row in samples.tolist()]
    (told,) = records(whole, "not_finite")
    assert (told["step"], told["ranges"]) == (2, [[8, 12], [epoch - 13, epoch - 9]])
    assert [r["phase"] for r in records(whole, "train")] == [int(row[-1] >= phase) for row in samples]


@pytest.mark.slow
@pytest.mark.parametrize(("saved", "processes"), [(2, 1), (4, 4)])
def test_a_resume_with_another_number_of_replicas_leaves_out_the_same(corpus, plan, whole, tmp_path, saved, processes):
    resumed = tmp_path / "run"
    settings = f"checkpoint.resume={whole / 'checkpoints' / f'step_{saved:08d}'}"
    gone = [sample for first, end in plan[2] for sample in range(first, end)]
    faults = {"loss": gone}
    assert train(corpus, plan, resumed, settings, faults=faults, processes=processes, skips=False) == "no error"
    found, wanted = records(resumed, "train"), records(whole, "train")[saved:]
    for key in ("step", "samples", "tokens", "phase"):
        assert [r[key] for r in found] == [r[key] for r in wanted]
    assert [r["loss"] for r in found] == pytest.approx([r["loss"] for r in wanted], rel=1e-5)
    state = CheckpointReader(scan_checkpoints(resumed / "checkpoints").newest).state
    assert SkipList.of(state["progress"]["skip_samples"]) == SkipList.of(plan[2])
    assert not records(resumed, "not_finite")


@pytest.mark.slow
def test_a_phase_that_begins_behind_samples_left_out_or_within_a_step_is_compared_with_no_other(corpus, plan, tmp_path):
    """Its losses are fifty times as high, from the first sample on that is in it."""
    _, phase, _ = plan
    policy = "train.spikes={policy: skip, window: 4}"
    for name, first in (("in the phase", phase), ("before it", phase - 8)):
        faults = {"spike": range(first, phase + 1000)}
        assert train(corpus, plan, tmp_path / name, policy, faults=faults) == "no error"
    assert not records(tmp_path / "in the phase", "spike")
    assert records(tmp_path / "before it", "spike")  # the control
    assert all(math.isfinite(r["loss"]) for r in records(tmp_path / "in the phase", "train"))
