"""Options of precision and schedule change what they say and nothing else, under every layout."""

import numpy as np
import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases
from tests.distributed.training import option_cases as options

pytestmark = pytest.mark.distributed

STEPS = 5
RAMP = {"batch_ramp": {"start": 2, "increment": 2, "samples": 12}}
SIZES = [2, 2, 4, 6, 8]
# All at once: each enters the gradients in another place, and none may be lost under a layout.
OPTIONS = RAMP | {
    "label_smoothing": 0.1,
    "recompute": "selective",
    "embedding_gradient": {"factor": 0.1, "hold_samples": 4, "rise_samples": 8},
}


@pytest.fixture(scope="module")
def one_process():
    """One process without ZeRO, with whole steps as micro-batches where they fit; no weight ever changes."""
    settings = options.with_options(cases.config(stage=0, micro=2), train=OPTIONS)
    return run_ranks(1, options.run, settings, STEPS, 0.0)[0]


@pytest.fixture(scope="module")
def plain():
    return run_ranks(1, options.run, cases.config(stage=0, micro=8), 2, 0.0)[0]


def worst(found, wanted, whole):
    """The largest difference of any gradient here, relative to the largest entry of its whole tensor."""
    return max(np.abs(found[name] - wanted[name]).max() / np.abs(whole[name]).max() for name in found)


def check_equal(results, reference, *, tensor=1, gradient=5e-6, loss=1e-5, norm=1e-5):
    for rank, result in enumerate(results):
        assert result["size"] == reference["size"]
        assert result["loss"] == pytest.approx(reference["loss"], rel=loss)
        assert result["norm"] == pytest.approx(reference["norm"], rel=norm)
        for step, whole in enumerate(reference["gradients"]):
            wanted = options.parts_of(whole, rank % tensor, tensor)
            assert worst(result["gradients"][step], wanted, whole) < gradient, f"step {step}"


@pytest.mark.parametrize(
    ("stage", "micro", "parallel"),
    [
        (0, 1, {}),
        (1, 1, {}),
        (2, 1, {"offload_optimizer": "cpu"}),
        (3, 1, {}),
        (2, 2, {"tensor": 2, "sequence": True}),
        (1, 2, {"pipeline": 2}),
    ],
)
def test_ramp_smoothing_shrink_and_selective_recomputation_are_those_of_one_process(
    one_process, stage, micro, parallel
):
    assert one_process["size"] == SIZES
    settings = options.with_options(cases.config(stage=stage, micro=micro), train=OPTIONS, parallel=parallel)
    check_equal(run_ranks(2, options.run, settings, STEPS, 0.0), one_process, tensor=parallel.get("tensor", 1))


def test_the_options_are_in_those_gradients(one_process, plain):
    # The control: without them the comparison above would notice.
    settings = options.with_options(cases.config(stage=0, micro=2), train=RAMP)
    without = run_ranks(1, options.run, settings, STEPS, 0.0)[0]
    for step in range(STEPS):
        assert worst(without["gradients"][step], *2 * [one_process["gradients"][step]]) > 1e-2
    assert without["loss"] == pytest.approx(one_process["loss"], rel=1e-6)  # shown without smoothing


def test_a_ramp_in_bf16_follows_fp32_within_its_precision(one_process):
    """Where another optimizer of DeepSpeed accumulates, in fp32."""
    settings = options.with_options(cases.config(stage=1, micro=1), train=OPTIONS | {"precision": "bf16"})
    check_equal(run_ranks(2, options.run, settings, STEPS, 0.0), one_process, gradient=0.05, loss=1e-3, norm=2e-2)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_offloaded_optimizer_has_the_same_gradients(plain, stage):
    settings = options.with_options(cases.config(stage=stage, micro=2), parallel={"offload_optimizer": "cpu"})
    check_equal(run_ranks(2, options.run, settings, 2, 0.0), plain)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_offloaded_optimizer_makes_the_same_updates(stage):
    settings = cases.config(stage=stage, micro=4)
    offloaded = options.with_options(settings, parallel={"offload_optimizer": "cpu"})
    here, there = (run_ranks(2, options.run, each, 3, 1e-3)[0] for each in (settings, offloaded))
    assert there["loss"] == pytest.approx(here["loss"], rel=1e-6)


@pytest.mark.parametrize(("stage", "parallel"), [(1, {}), (2, {"tensor": 2}), (3, {}), (1, {"pipeline": 2})])
def test_fp16_follows_fp32_within_its_precision(plain, stage, parallel):
    train = {"precision": "fp16", "loss_scale": {"initial_power": 8}}
    settings = options.with_options(cases.config(stage=stage, micro=2), train=train, parallel=parallel)
    results = run_ranks(2, options.run, settings, 2, 0.0)
    check_equal(results, plain, tensor=parallel.get("tensor", 1), gradient=1e-2, loss=1e-3, norm=5e-3)


@pytest.mark.parametrize(("stage", "parallel"), [(1, {}), (2, {"tensor": 2}), (3, {}), (1, {"pipeline": 2})])
def test_all_ranks_skip_the_same_steps_until_the_loss_scale_fits(stage, parallel):
    """On its way down there is a scale at which a single gradient overflows, on one rank."""
    train = {"precision": "fp16", "loss_scale": {"initial_power": 22}}
    settings = options.with_options(cases.config(stage=stage, micro=4), train=train, parallel=parallel)
    results = run_ranks(2, options.run, settings, 9, 1e-3)
    norms, scale = results[0]["norm"], 2.0**22
    assert norms[:2] == [None, None]
    assert norms[-1] is not None
    for norm, after in zip(norms, results[0]["scale"], strict=True):
        scale = scale / 2 if norm is None else scale
        assert after == scale
    assert [result["norm"] for result in results] == [norms, norms]
    assert [result["scale"] for result in results] == [results[0]["scale"]] * 2


FP16 = {"precision": "fp16", "loss_scale": {"initial_power": 8}}


@pytest.mark.parametrize(
    ("stage", "train", "parallel"),
    [
        (1, {"precision": "bf16"}, {"offload_optimizer": "cpu"}),
        pytest.param(1, FP16, {"pipeline": 2}, marks=pytest.mark.slow),
        pytest.param(3, {}, {"offload_optimizer": "cpu"}, marks=pytest.mark.slow),
        pytest.param(2, FP16, {}, marks=pytest.mark.slow),
    ],
)
def test_a_stop_leaves_no_trace(tmp_path, stage, train, parallel):
    """Two steps, a checkpoint and two more are four, to the bit."""
    settings = options.with_options(cases.config(stage=stage, micro=2), train=train, parallel=parallel)

    def save(name, steps, resume=None):
        return run_ranks(2, options.save_with, settings, str(tmp_path / name), steps, resume)[0]

    half, whole = save("half", 2), save("whole", 4)
    resumed = save("resumed", 2, half["path"])
    assert resumed["loss"] == whole["loss"][2:]
    assert cases.hashes(resumed) == cases.hashes(whole)


@pytest.mark.parametrize(
    ("stage", "train", "parallel"),
    [(2, {"precision": "fp16"}, {}), (3, {"precision": "fp16"}, {"tensor": 2}), (1, {}, {"offload_optimizer": "cpu"})],
)
def test_their_checkpoints_load_without_them(tmp_path, stage, train, parallel):
    """Loaded and saved again by one process in fp32, a checkpoint is the same to the bit."""
    settings = options.with_options(cases.config(stage=stage, micro=2), train=train, parallel=parallel)
    saved = run_ranks(2, options.save_with, settings, str(tmp_path / "a"), 2)[0]
    settings = cases.config(stage=0, micro=2)
    again = run_ranks(1, options.save_with, settings, str(tmp_path / "b"), 0, saved["path"])[0]
    assert cases.hashes(again) == cases.hashes(saved)
