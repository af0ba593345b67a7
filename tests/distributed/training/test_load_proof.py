"""After a load every engine proves that it holds what was saved, and computes with the configuration's own settings."""

from functools import partial

import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.training import cases, layouts, load_cases
from tests.distributed.training.option_cases import with_options

pytestmark = pytest.mark.distributed

LAYOUTS = {
    "ZeRO 0": {"stage": 0},
    "ZeRO 1": {"stage": 1},
    "ZeRO 2": {"stage": 2},
    "ZeRO 3": {"stage": 3},
    "ZeRO 1, bf16": {"stage": 1, "precision": "bf16"},
    "ZeRO 3, bf16": {"stage": 3, "precision": "bf16"},
    "tensor": {"stage": 1, "tensor": 2},
    "pipeline": {"stage": 1, "pipeline": 2},
}
PARTS = {"sub_group_size": 3000, "stage3_param_persistence_threshold": 100}
CHANGED = {"learning_rate": 3e-3, "beta1": 0.5, "beta2": 0.7, "eps": 1e-4, "weight_decay": 0.9}


def settings(name):
    return cases.config(micro=2, **LAYOUTS[name])


@pytest.fixture(scope="module")
def proofs(tmp_path_factory):
    """Of each layout, what each of two ranks found."""
    prove = partial(load_cases.prove_and_spoil, str(tmp_path_factory.mktemp("proofs")))
    results = run_ranks(2, layouts.in_turn, prove, [settings(name) for name in LAYOUTS])
    return {name: [of_rank[place] for of_rank in results] for place, name in enumerate(LAYOUTS)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_was_loaded_is_what_was_saved_and_nothing_else_is(proofs, name):
    for found in proofs[name]:
        assert found["loaded"] == found["loaded again"] == ""
        assert "after loading, the ranks together hold other values of" in found["elsewhere"]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("spoilt", load_cases.SPOILS)
def test_one_value_that_is_not_the_saved_one_on_one_rank_stops_all_ranks_alike(proofs, name, spoilt):
    first, second = proofs[name]
    assert first[spoilt] == second[spoilt] != ""
    has_replica = name == "ZeRO 0" or (spoilt == "working" and name in ("ZeRO 1", "ZeRO 2", "ZeRO 1, bf16"))
    if has_replica:  # what is saved, and hashed, is the other rank's
        assert first[spoilt].startswith("ReplicaError: ")
    elif spoilt == "working":
        assert "after loading, the forward pass reads other values of 1 of" in first[spoilt]
    else:
        assert "after loading, the ranks together hold other values of 1 of" in first[spoilt]
        assert f"/{spoilt}'" in first[spoilt]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("saved"))
    return run_ranks(2, cases.run_and_save, cases.config(stage=1, micro=2), directory, 3)[0]["path"]


def changed(name):
    plain = settings(name)
    return plain.model_copy(update={"optimizer": plain.optimizer.model_copy(update=CHANGED)})


@pytest.fixture(scope="module")
def resumed(saved):
    """Of each layout, after a load with other settings: what its optimizer holds, and its losses."""
    names = [name for name in LAYOUTS if "bf16" not in name]
    results = run_ranks(2, layouts.in_turn, partial(load_cases.hyperparameters, saved), [changed(n) for n in names])
    return {name: results[0][place] for place, name in enumerate(names)}


@pytest.fixture(scope="module")
def unchanged(saved):
    run = partial(load_cases.hyperparameters, saved)
    return run_ranks(1, layouts.in_turn, run, [cases.config(stage=0, micro=2)])[0][0]


@pytest.mark.parametrize("name", [name for name in LAYOUTS if "bf16" not in name])
def test_the_optimizer_goes_on_with_the_settings_of_the_configuration(resumed, unchanged, name):
    decayed, undecayed = resumed[name]["groups"]
    assert decayed == {"lr": 3e-3, "betas": (0.5, 0.7), "eps": 1e-4, "weight_decay": 0.9}
    assert undecayed == {**decayed, "weight_decay": 0.0}
    assert resumed[name]["loss"] == pytest.approx(resumed["ZeRO 0"]["loss"], rel=1e-5)
    assert resumed[name]["loss"][0] == pytest.approx(unchanged["loss"][0], rel=1e-5)  # nothing was updated before it
    assert abs(resumed[name]["loss"][1] / unchanged["loss"][1] - 1) > 1e-4


def test_weights_that_are_not_where_they_are_said_to_be_stop_a_fresh_run():
    """Without the setting nothing is found, under any layout."""
    round_robin = [
        one.model_copy(update={"deepspeed": {"zero_optimization": {"round_robin_gradients": True}}})
        for one in (cases.config(stage=1, micro=2), cases.config(stage=2, micro=2))
    ]
    offloaded = [with_options(cases.config(stage=s, micro=2), parallel={"offload_optimizer": "cpu"}) for s in (1, 3)]
    # As a model of more than a billion parameters a rank has them.
    in_parts = cases.config(stage=3, micro=2).model_copy(update={"deepspeed": {"zero_optimization": PARTS}})
    well = [*map(settings, LAYOUTS), *offloaded, in_parts]
    for of_rank in run_ranks(2, layouts.in_turn, load_cases.linked, [*well, *round_robin]):
        assert of_rank[: len(well)] == [""] * len(well)
        for found in of_rank[len(well) :]:
            assert found.startswith("ConfigError: deepspeed: a setting of this section puts the fp32 values of ")
