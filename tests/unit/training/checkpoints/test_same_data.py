"""What was trained on stays as it was; what is to change from now on is a phase."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.errors import CheckpointError
from megatron_glm.training.checkpoints.same_data import check_same_data

LENGTHS = 1000, 500, 70
HASHES = "aa", "bb", "cc"
PHASE = {"from_sample": 40, "window": 64}


def config(paths="ab", window=48, objective=None, batch=8, **data):
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": path} for path in paths], "window": window, **data},
            "objective": objective or {},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 9, "global_batch_size": batch, "micro_batch_size": 2},
        }
    )


def checkpoint(saved, samples=72, lengths=LENGTHS):
    state = {
        "config": saved.model_dump(mode="json"),
        "progress": {"samples": samples},
        "source_lengths": lengths,
        "source_hashes": HASHES,
    }
    return SimpleNamespace(path=Path("step_00000009"), state=state)


def check(saved, now, lengths=LENGTHS, hashes=HASHES):
    check_same_data(saved, now, source_lengths=lengths, source_hashes=hashes)


def refusal(saved, now, samples=72, lengths=LENGTHS, hashes=HASHES):
    with pytest.raises(CheckpointError) as caught:
        check(checkpoint(saved, samples), now, lengths, hashes)
    return str(caught.value)


@pytest.mark.parametrize(
    "now",
    [
        config(),
        config(batch=16),
        config(sources=[{"path": path, "weight": 20} for path in "ab"]),
        config(phases=[{"from_sample": 72, "sources": [{"path": "c"}], "window": 300, "objective": {"max_spans": 9}}]),
        config(phases=[{"from_sample": 10**9, "window": 64}]),
    ],
)
def test_the_same_past_goes_on_whatever_comes_then(now):
    check(checkpoint(config()), now)


def test_phases_that_have_begun_stay_and_later_ones_may_change():
    saved = config(phases=[PHASE, {"from_sample": 200, "window": 32}])
    check(checkpoint(saved), config(phases=[PHASE]))


def test_a_run_that_has_consumed_nothing_may_change_anything():
    check(checkpoint(config(), samples=0), config("c", window=5), (3,))


@pytest.mark.parametrize(
    ("saved", "now", "name", "phase"),
    [
        (config(), config(window=64), "data.window", "{from_sample: 72, window: 64}"),
        (
            config(),
            config("a"),
            "data.sources",
            "{from_sample: 72, sources: [{path: a, weight: 1.0}]}",
        ),
        (
            config(),
            config(objective={"token": 0.5, "document": 0.5}),
            "objective",
            "{from_sample: 72, objective: {token: 0.5, document: 0.5}}",
        ),
        (config(phases=[PHASE]), config(), "data.phases[0]", "{from_sample: 72, window: 48}"),
        (config(), config(phases=[PHASE]), "data.phases[0]", "{from_sample: 72, window: 64}"),
        (
            config(phases=[PHASE]),
            config(phases=[{**PHASE, "window": 65}]),
            "data.phases[0].window",
            "{from_sample: 72, window: 65}",
        ),
    ],
)
def test_another_past_is_refused_with_the_phase_to_write_instead(saved, now, name, phase):
    assert refusal(saved, now) == (
        f"step_00000009: {name} differs from what its 72 samples were trained with; set it back, and add to"
        f" data.phases: {phase}"
    )


def test_the_phase_of_the_message_is_one_that_goes_on():
    phases = [{"from_sample": 72, "sources": [{"path": "a", "weight": 1.0}]}]
    check(checkpoint(config()), config(phases=phases))


def test_a_phase_that_began_elsewhere_can_only_be_set_back():
    message = refusal(config(phases=[PHASE]), config(phases=[{**PHASE, "from_sample": 41}]))
    assert message == (
        "step_00000009: data.phases[0].from_sample differs from what its 72 samples were trained with; set it back"
    )


def test_data_that_was_moved_is_known_by_its_length():
    check(checkpoint(config("ab")), config(["new/a", "b"]))
    message = refusal(config("ab"), config(["new/a", "b"]), lengths=(1001, 500))
    assert message == (
        "step_00000009: data.sources[0]: 'new/a' has 1,001 stream tokens, but 'a' had 1,000 when it was trained on: the"
        " order would be another; give the data it was trained on, and new data as a source of a phase"
    )


def test_data_that_has_grown_under_its_path_is_refused():
    assert "data.sources[1]: 'b' has 501 stream tokens" in refusal(config("ab"), config("ab"), lengths=(1000, 501))
    # Of a source that has not been read yet, nothing depends on the length.
    later = config("ab", phases=[{"from_sample": 100, "sources": [{"path": "c"}]}])
    check(checkpoint(later), later, (1000, 500, 71))


def test_data_that_was_written_anew_with_as_many_tokens_is_refused():
    changed = ("aa", "b'", "cc")
    assert refusal(config("ab"), config("ab"), hashes=changed) == (
        "step_00000009: data.sources[1]: 'b' holds other documents than 'b' did when it was trained on, though as many"
        " tokens; give the data it was trained on, and new data as a source of a phase"
    )
    assert "data.sources[1]: 'new/b' holds other" in refusal(config("ab"), config(["a", "new/b"]), hashes=changed)
    # What has not been read yet may be any data.
    later = config("a", phases=[{"from_sample": 100, "sources": [{"path": "b"}]}])
    check(checkpoint(later), later, hashes=changed)


def test_a_checkpoint_without_hashes_is_compared_by_lengths():
    old = checkpoint(config())
    del old.state["source_hashes"]
    check(old, config(), hashes=("xx", "yy"))


def test_sources_that_changed_places_are_refused_even_if_they_are_of_one_length():
    with pytest.raises(CheckpointError, match=r"data\.sources\[0\]: 'b' stands where 'a' was trained on"):
        check(checkpoint(config("ab"), lengths=(5, 5)), config("ba"), (5, 5))


def test_a_checkpoint_of_the_earlier_order_is_refused():
    old = checkpoint(config())
    del old.state["source_lengths"]
    with pytest.raises(CheckpointError, match="took the windows of an epoch in another order; finish the run with"):
        check(old, config())
