"""Steps that go wrong on one rank, samples that are left out, and going back: what comes of a whole run."""

import json
import shutil

import pytest

from megatron_glm.checkpoint.discovery import scan_checkpoints
from megatron_glm.checkpoint.reading import CheckpointReader
from tests.distributed.ranks import run_ranks
from tests.endtoend import mishap_cases as cases
from tests.endtoend.corpus import make_corpus

pytestmark = pytest.mark.distributed

BATCH = 8


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"), steps=12, eval_interval=100)


def train(corpus, output, *overrides, faults=None, processes=2, save=4):
    settings = (f"train.output={output}", "schedule.decay_steps=12", f"checkpoint.save_interval={save}")
    (message,) = set(run_ranks(processes, cases.train, str(corpus.config), faults or {}, *settings, *overrides))
    return message


def records(run, *kinds):
    return [r for r in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if r["kind"] in kinds]


def final(run):
    return CheckpointReader(scan_checkpoints(run / "checkpoints").newest)


def curve(run):
    return [(r["step"], r["samples"], r["loss"], r["gradient_norm"]) for r in records(run, "train")]


def copy_of(run, output, step):
    """The run as it was when it had saved this step."""
    shutil.copytree(run, output)
    for path in (output / "checkpoints").iterdir():
        if path.name > f"step_{step:08d}":
            shutil.rmtree(path)
    return output


FAULTS = {"gradient": [2 * BATCH + 1], "loss": [5 * BATCH + 2, 6 * BATCH + 2]}  # steps 3, 6 and 7
LAYOUTS = {
    "ZeRO-2": ["parallel.zero_stage=2"],
    "ZeRO-0": ["parallel.zero_stage=0"],
    "ZeRO-3": ["parallel.zero_stage=3", "deepspeed.zero_optimization.stage3_param_persistence_threshold=100"],
    "bf16": ["parallel.zero_stage=1", "train.precision=bf16"],
    "bf16 ZeRO-2": ["parallel.zero_stage=2", "train.precision=bf16"],
    "tensor": ["parallel.zero_stage=1", "parallel.tensor=2"],
    "pipeline": ["parallel.zero_stage=1", "parallel.pipeline=2", "parallel.stage_costs=counted"],
    "fp16": ["parallel.zero_stage=2", "train.precision=fp16", "train.loss_scale={initial_power: 8}"],
}
LAYOUTS["offloaded"] = [*LAYOUTS["bf16"], "parallel.offload_optimizer=cpu"]
LAYOUTS["fp16 offloaded"] = [*LAYOUTS["fp16"], "parallel.offload_optimizer=cpu"]


@pytest.fixture(
    scope="module",
    params=[
        "ZeRO-2",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("ZeRO-0", "tensor", "pipeline", "offloaded")),
    ],
)
def faulty_run(corpus, request):
    output = corpus.root / f"faulty {request.param}"
    assert train(corpus, output, *LAYOUTS[request.param], faults=FAULTS) == "no error"
    return output, LAYOUTS[request.param]


def test_steps_that_are_not_finite_are_told_with_samples_and_documents_and_left_out(faulty_run):
    run, _ = faulty_run
    told = records(run, "not_finite")
    assert [(r["step"], r["in_a_row"]) for r in told] == [(3, 1), (6, 1), (7, 2)]
    assert [r["ranges"] for r in told] == [[[BATCH * (r["step"] - 1), BATCH * r["step"]]] for r in told]
    for record in told:
        lines = [json.loads(line) for line in (run / record["documents"]).read_text().splitlines()]
        assert [line["sample"] for line in lines] == list(range(*record["ranges"][0]))
        assert all(document["byte"] >= 0 for line in lines for document in line["documents"])
        assert all(line["documents"] for line in lines)
    progress = final(run).state["progress"]
    assert (progress["step"], progress["samples"], progress["skipped"]) == (12, 12 * BATCH, 3)


def test_a_resume_after_them_is_the_run_that_never_stopped(corpus, faulty_run, tmp_path):
    run, layout = faulty_run
    resumed = copy_of(run, tmp_path / "run", step=4)
    assert train(corpus, resumed, *layout, faults=FAULTS) == "no error"
    assert final(resumed).parameter_hashes() == final(run).parameter_hashes()
    assert curve(resumed) == curve(run)
    assert records(resumed, "not_finite") == records(run, "not_finite")


def test_too_many_in_a_row_end_the_run_on_all_ranks_and_nothing_more_is_saved(corpus, tmp_path):
    faults = {"gradient": [BATCH * step for step in (4, 5, 6)]}
    message = train(corpus, tmp_path / "run", faults=faults)
    assert message.startswith("DivergedError: step 7: loss ")
    assert f"on samples {6 * BATCH} to {7 * BATCH - 1}, the last of 3 such steps in a row" in message
    assert final(tmp_path / "run").step == 4


@pytest.fixture(scope="module")
def gapped_run(corpus):
    output = corpus.root / "gapped"
    assert train(corpus, output, "data.skip_samples=[[20, 37], [50, 51], [200, 210]]") == "no error"
    return output


@pytest.mark.parametrize(("workers", "processes"), [(2, 2), (0, 1)])
def test_samples_that_are_left_out_stay_so_after_a_resume_that_does_not_name_them(
    corpus, gapped_run, tmp_path, workers, processes
):
    resumed = copy_of(gapped_run, tmp_path / "run", step=4)
    assert train(corpus, resumed, f"data.workers={workers}", processes=processes) == "no error"
    whole, found = curve(gapped_run), curve(resumed)
    assert [row[:2] for row in found] == [row[:2] for row in whole]
    assert found[-1][1] == 12 * BATCH + 17 + 1
    if processes == 2:
        assert final(resumed).parameter_hashes() == final(gapped_run).parameter_hashes()
    assert [row[2] for row in found] == pytest.approx([row[2] for row in whole], rel=1e-5)
    assert final(resumed).state["progress"]["skip_samples"] == [[20, 37], [50, 51], [200, 210]]


@pytest.mark.parametrize(
    "layout",
    ["ZeRO-2", *(pytest.param(name, marks=pytest.mark.slow) for name in LAYOUTS if name != "ZeRO-2")],
)
def test_a_rewind_ends_as_the_run_that_left_out_the_samples_before_the_spike_from_the_start(corpus, tmp_path, layout):
    policy = ["train.spikes={policy: rewind, window: 4, rewind_steps: 2}", *LAYOUTS[layout]]
    rewound, told_so = tmp_path / "rewound", tmp_path / "told so"
    faults = {"spike": [6 * BATCH + 3]}  # step 7, after the checkpoint of step 4
    assert train(corpus, rewound, *policy, faults=faults) == "no error"
    (told,) = records(rewound, "rewind")
    gap = [5 * BATCH, 7 * BATCH]
    assert (told["step"], told["from_step"], told["ranges"]) == (4, 7, [gap])
    assert [r["step"] for r in records(rewound, "train")] == list(range(1, 13))
    assert train(corpus, told_so, *policy, f"data.skip_samples=[{gap}]", faults=faults) == "no error"
    assert final(told_so).parameter_hashes() == final(rewound).parameter_hashes()
    assert curve(told_so) == curve(rewound)
    assert final(rewound).state["progress"]["skip_samples"] == [gap]


@pytest.mark.slow
@pytest.mark.parametrize("call", [8, 10], ids=["in the first step", "before the next save"])
def test_a_rewind_is_not_made_again_by_a_start_after_a_kill_that_came_before_the_next_save(corpus, tmp_path, call):
    policy = ["train.spikes={policy: rewind, window: 4, rewind_steps: 2}"]
    whole, killed, faults = tmp_path / "whole", tmp_path / "killed", {"spike": [6 * BATCH + 3]}
    assert train(corpus, whole, *policy, faults=faults) == "no error"
    # Seven steps, and back to step 4: the next save is after eleven.
    with pytest.raises(AssertionError, match="ended with -9"):
        train(corpus, killed, *policy, faults={**faults, "killed in call": [call]})
    assert final(killed).step == 4
    assert (killed / "rewind.json").exists()
    assert train(corpus, killed, *policy, faults=faults) == "no error"
    assert final(killed).parameter_hashes() == final(whole).parameter_hashes()
    assert curve(killed) == curve(whole)
    assert [(r["step"], r["from_step"]) for r in records(killed, "rewind")] == [(4, 7)]
    told = records(killed, "start")[-1]
    assert told["skip_samples"] == [[5 * BATCH, 7 * BATCH]]
    assert "without the samples 40 to 55" in " ".join(told["notes"])
    for run in (whole, killed):
        assert final(run).state["mishaps"]["rewinds"] == 1
        assert not (run / "rewind.json").exists()


@pytest.mark.slow
def test_a_stop_after_a_rewind_leaves_no_trace_and_the_samples_stay_left_out(corpus, tmp_path):
    policy = ["train.spikes={policy: rewind, window: 4, rewind_steps: 2}", "schedule.rewarmup_steps=3"]
    whole, stopped, faults = tmp_path / "whole", tmp_path / "stopped", {"spike": [6 * BATCH + 3]}
    assert train(corpus, stopped, *policy, "train.exit_after_steps=6", faults=faults) == "no error"
    shutil.copytree(stopped, whole)
    assert train(corpus, whole, *policy, faults=faults) == "no error"
    assert train(corpus, stopped, *policy, "train.exit_after_steps=5", faults=faults) == "no error"
    assert final(stopped).step == 11
    assert train(corpus, stopped, *policy, faults=faults) == "no error"
    assert final(stopped).parameter_hashes() == final(whole).parameter_hashes()
    assert curve(stopped) == curve(whole)
    for run in (stopped, whole):
        assert [(r["step"], r["from_step"]) for r in records(run, "rewind")] == [(6, 7)]
        assert final(run).state["progress"]["skip_samples"] == [[6 * BATCH, 7 * BATCH]]
    rates = [r["learning_rate"] for r in records(whole, "train")]
    assert rates[6] == pytest.approx(rates[5] / 3, rel=0.3)  # going back is a load, after which the rate rises again


@pytest.mark.slow
def test_without_a_checkpoint_there_is_no_way_back_and_the_step_is_left_out(corpus, tmp_path):
    policy = ["train.spikes={policy: rewind, window: 4}"]
    # The last step: the validation and the save at the end must be made all the same.
    assert train(corpus, tmp_path / "run", *policy, faults={"spike": [11 * BATCH + 3]}, save=100) == "no error"
    assert [r["kind"] for r in records(tmp_path / "run", "spike", "warning", "rewind")] == ["spike", "warning"]
    assert [r["step"] for r in records(tmp_path / "run", "validation")] == [12]
    progress = final(tmp_path / "run").state["progress"]
    assert (progress["step"], progress["skipped"]) == (12, 1)
