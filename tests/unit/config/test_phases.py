"""Phases: what each changes, what it keeps, and what cannot be one."""

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.phases import all_sources, run_phases
from megatron_glm.errors import ConfigError


def config(*phases, sources=({"path": "a"}, {"path": "b"}), max_positions=512):
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "max_positions": max_positions},
            "tokenizer": {"path": "-"},
            "data": {"sources": list(sources), "window": 48, "phases": list(phases)},
            "objective": {"token": 0.7, "document": 0.3, "mean_span": 2.0},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 9, "global_batch_size": 8, "micro_batch_size": 2},
        }
    )


def test_a_run_without_phases_is_one():
    (only,) = run_phases(config())
    assert (only.first_sample, only.settings.window) == (0, 48)


def test_what_a_phase_does_not_give_stays_as_it_was_in_the_phase_before():
    first, second, third = run_phases(
        config({"from_sample": 10, "window": 64}, {"from_sample": 20, "objective": {"token": 0.0, "document": 1.0}})
    )
    assert (second.first_sample, second.settings.window) == (10, 64)
    assert second.settings.objective == first.settings.objective
    assert third.settings.window == 64
    assert third.settings.sources == first.settings.sources
    assert (third.settings.objective.document, third.settings.objective.mean_span) == (1.0, 2.0)


def test_a_source_is_the_same_in_all_phases_whatever_its_place_and_weight():
    phases = run_phases(
        config(
            {"from_sample": 10, "sources": [{"path": "c"}, {"path": "b/", "weight": 3.0}]},
            {"from_sample": 20, "sources": [{"path": "a"}, {"prefixes": ["x", "y"]}]},
        )
    )
    assert [(field, source.name) for field, source in all_sources(phases)] == [
        ("data.sources[0]", "a"),
        ("data.sources[1]", "b"),
        ("data.phases[0].sources[0]", "c"),
        ("data.phases[1].sources[1]", "x y"),
    ]


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        (
            [{"from_sample": 9, "window": 40}, {"from_sample": 9, "window": 30}],
            "data.phases[1].from_sample: 9 is not after 9, where the phase before begins; list the phases by their"
            " first samples",
        ),
        ([{"from_sample": 0}], "data.phases[0].from_sample: input should be greater than or equal to 1 (got 0)"),
        (
            [{"from_sample": 10**19, "window": 40}],
            f"data.phases[0].from_sample: input should be less than or equal to {10**18} (got {10**19})",
        ),
        ([{"window": 40}], "data.phases[0].from_sample: missing; it has no default"),
        (
            [{"from_sample": 9}],
            "data.phases[0]: changes nothing from sample 9 on; give sources, window or objective, or leave it out",
        ),
        (
            [{"from_sample": 9, "window": 48, "objective": {"mean_span": 2}}],
            "data.phases[0]: changes nothing from sample 9 on; give sources, window or objective, or leave it out",
        ),
        (
            [{"from_sample": 9, "window": 514}],
            "data.phases[0].window: 514 needs model.max_positions of at least 513, not 512",
        ),
        (
            [{"from_sample": 9, "objective": {"document": 1.0}}],
            "data.phases[0].objective: token 0.7 + sentence 0.0 + document 1.0 = 1.7, must be 1",
        ),
        (
            [{"from_sample": 9, "objective": {"maxspans": 5}}],
            "unknown key 'data.phases[0].objective.maxspans'; did you mean 'data.phases[0].objective.max_spans'?",
        ),
        (
            [{"from_sample": 9, "objective": {"max_spans": 0}}],
            "data.phases[0].objective.max_spans: input should be greater than or equal to 1 (got 0)",
        ),
        (
            [{"from_sample": 9, "objective": {"task_masks": False}}],
            "data.phases[0].objective.task_masks: False is not that of the run, True; it is the same in all phases:"
            " leave it out",
        ),
        (
            [{"from_sample": 9, "widow": 5}],
            "unknown key 'data.phases[0].widow'; did you mean 'data.phases[0].window'?",
        ),
        (
            [{"from_sample": 9, "sources": [{"pth": "a"}]}],
            "unknown key 'data.phases[0].sources[0].pth'; did you mean 'data.phases[0].sources[0].path'?",
        ),
        (
            [{"from_sample": 9, "sources": [{"path": "c"}, {"path": "c/"}]}],
            "data.phases[0].sources[1]: 'c/' is data.phases[0].sources[0] already; list it once, with the weights"
            " added",
        ),
    ],
)
def test_a_phase_that_cannot_be_is_refused_in_one_line(phases, message):
    with pytest.raises(ConfigError) as caught:
        config(*phases)
    assert str(caught.value).split(" (and ")[0] == message


def test_a_source_that_is_listed_twice_is_refused():
    with pytest.raises(ConfigError, match=r"data\.sources\[1\]: 'a' is data\.sources\[0\] already"):
        config(sources=[{"path": "a"}, {"path": "a", "weight": 2.0}])
