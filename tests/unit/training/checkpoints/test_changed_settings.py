"""What may change between the parts of a run, and what needs permission."""

from pathlib import Path

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.errors import CheckpointError, ConfigError
from megatron_glm.training.checkpoints.changed_settings import FREE, GUARDED, changed_settings, check_changes

TREE = {
    "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2},
    "tokenizer": {"path": "-"},
    "data": {"sources": [{"path": "a"}]},
    "optimizer": {"learning_rate": 1e-3},
    "train": {"output": "-", "steps": 9, "global_batch_size": 8, "micro_batch_size": 2},
}
SAVED = config_from_tree(TREE).model_dump(mode="json")
WHERE = Path("step_00000009")


def changes(**settings):
    """What `section__key=value, …` changes."""
    tree = {section: dict(values) for section, values in TREE.items()}
    for name, value in settings.items():
        *sections, key = name.split("__")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[key] = value
    return changed_settings(SAVED, config_from_tree(tree))


def test_the_same_configuration_has_no_changes():
    assert changes() == ()


def test_every_change_is_told():
    told = changes(data__window=64, data__sources=[{"path": "b", "weight": 2.0}])
    assert list(map(str, told)) == [
        "data.sources [{'path': 'a', 'weight': 1.0}] → [{'path': 'b', 'weight': 2.0}]",
        "data.window 512 → 64",
    ]


def test_where_a_run_writes_and_how_it_starts_is_no_change():
    assert changes(train__output="elsewhere", checkpoint__resume="must", checkpoint__allow_changes=["optimizer"]) == ()


def test_an_end_of_the_decay_that_is_written_out_is_no_change_and_another_one_is():
    assert changes(schedule__decay_steps=9) == ()
    assert list(map(str, changes(train__steps=20))) == ["train.steps 9 → 20"]
    assert list(map(str, changes(train__steps=20, schedule__decay_steps=9))) == ["train.steps 9 → 20"]
    other = changes(train__steps=20, schedule__decay_steps=20)
    with pytest.raises(CheckpointError, match=r"schedule\.decay_steps 9 → 20; set them back"):
        check_changes(WHERE, other, [])


def test_a_section_that_the_checkpoint_does_not_know_had_its_defaults():
    older = {name: section for name, section in SAVED.items() if name != "checkpoint"}
    assert changed_settings(older, config_from_tree(TREE)) == ()


def test_a_key_of_a_mapping_that_is_gone_is_a_change():
    saved = {**SAVED, "deepspeed": {"zero_optimization": {"round_robin_gradients": True}}}
    (change,) = changed_settings(saved, config_from_tree(TREE))
    assert str(change) == "deepspeed.zero_optimization.round_robin_gradients True → None"
    with pytest.raises(CheckpointError, match="round_robin_gradients True → None"):
        check_changes(WHERE, [change], [])


@pytest.mark.parametrize(
    "settings",
    [
        {"train__micro_batch_size": 1},
        {"train__steps": 90, "train__log_interval": 3, "train__threads": 2},
        {"parallel__zero_stage": 3},
        {"parallel__tensor": 2, "parallel__pipeline": 2, "parallel__sequence": True},
        {"train__recompute": "full", "optimizer__fused": "auto"},
        {"data__workers": 3, "data__prefetch": 5},
        {"checkpoint__keep_last": 3, "checkpoint__save_interval": 5, "checkpoint__background": False},
        {"model__initializer_range": 0.5},
        {"schedule__rewarmup_steps": 4},
    ],
)
def test_where_and_how_fast_the_same_is_computed_may_change_freely(settings):
    assert len(changes(**settings)) == len(settings)
    check_changes(WHERE, changes(**settings), [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("optimizer.learning_rate", 2e-3),
        ("optimizer.beta1", 0.5),
        ("optimizer.beta2", 0.5),
        ("optimizer.eps", 1e-3),
        ("optimizer.weight_decay", 0.0),
        ("optimizer.gradient_clipping", 0.0),
        ("schedule.decay", "linear"),
        ("schedule.warmup_steps", 3),
        ("schedule.floor", 0.5),
        ("model.hidden_dropout", 0.0),
        ("data.isolate_documents", False),
        ("train.global_batch_size", 16),
        ("train.precision", "bf16"),
        ("train.loss", "per_token"),
        ("train.label_smoothing", 0.1),
        ("train.batch_ramp.start", 2),
        ("train.embedding_gradient.factor", 0.1),
        ("deepspeed.zero_optimization.round_robin_gradients", True),
    ],
)
def test_what_decides_what_is_learned_is_refused_with_a_diff_unless_it_is_allowed(name, value):
    found = changes(**{name.replace(".", "__"): value})
    message = rf"step_00000009: saved by a run with other settings: {name} .* → {value}; set them back, or allow"
    with pytest.raises(CheckpointError, match=rf"{message} them with checkpoint\.allow_changes=\[{name}\]"):
        check_changes(WHERE, found, [])
    check_changes(WHERE, found, [name])
    check_changes(WHERE, found, ["parallel", name.split(".")[0]])


def test_what_is_allowed_already_stays_in_the_advice():
    found = changes(optimizer__beta1=0.5, optimizer__beta2=0.5, schedule__floor=0.0)
    with pytest.raises(
        CheckpointError, match=r"schedule\.floor 0\.1 → 0\.0; .*allow_changes=\[optimizer,schedule\.floor\]"
    ):
        check_changes(WHERE, found, ["optimizer"])


def test_a_section_s_name_allows_no_other_that_begins_alike():
    with pytest.raises(CheckpointError):
        check_changes(WHERE, changes(optimizer__beta1=0.5), ["optimizer.beta2"])
    with pytest.raises(ConfigError, match=r"checkpoint\.allow_changes: 'optim' is no setting and no section"):
        check_changes(WHERE, (), ["optim"])
    with pytest.raises(ConfigError, match=r"'optimizer\.learning_rte' is no setting"):
        check_changes(WHERE, (), ["optimizer.learning_rte"])


def test_the_rules_name_settings_and_sections_that_there_are():
    check_changes(WHERE, (), [*GUARDED, *FREE])


def test_every_setting_of_the_documented_table_is_in_the_docs():
    page = (Path(__file__).resolve().parents[4] / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    assert [name for name in (*GUARDED, *FREE) if f"`{name}`" not in page] == []
