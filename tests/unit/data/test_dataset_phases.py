"""Phases over real shards: no token lost or repeated, and the same samples under any layout and after any resume."""

import hashlib
import re
from collections import Counter
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.yaml_reading import parse_yaml
from megatron_glm.data.batch import collate
from megatron_glm.data.dataset import HeldOutDataset, SampleDataset
from megatron_glm.data.loader import StepLoader
from megatron_glm.errors import ConfigError, DataError
from megatron_glm.objective.sample import Objective

REPOSITORY = Path(__file__).resolve().parents[3]
FIELDS = "input_ids", "targets", "loss_mask", "position_ids", "block_position_ids", "segments"
LENGTHS = ([1, 1, 5, 30, 2, 90, 1, 200], [400, 50, 23, 24, 25, 22], [70, 7])  # of the documents of three sources


def documents(source, lengths):
    """Documents of tokens that no other document has."""
    ids = np.random.default_rng(source).permutation(10_000)[: sum(lengths)] + 10_000 * source
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


CORPORA = [documents(source, lengths) for source, lengths in enumerate(LENGTHS)]
EPOCHS = [Counter(chain.from_iterable(corpus)) for corpus in CORPORA]


@pytest.fixture
def paths(tmp_path, write_corpus):
    held_out = [documents(3, [60]), [], documents(4, [100, 9])]
    return [
        str(write_corpus(tmp_path / name, corpus, held))
        for name, corpus, held in zip("abc", CORPORA, held_out, strict=True)
    ]


def make_config(sources, phases=(), *, window=24, objective=None, isolate=True):
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "max_positions": 64},
            "tokenizer": {"path": "tok"},
            "data": {
                "sources": [{"path": path} for path in sources],
                "window": window,
                "phases": list(phases),
                "isolate_documents": isolate,
            },
            "objective": objective or {"token": 0.5, "sentence": 0.2, "document": 0.3},
            "optimizer": {"learning_rate": 1e-4},
            "train": {"output": "-", "steps": 1, "global_batch_size": 1, "micro_batch_size": 1, "seed": 3},
        }
    )


def three_phases(paths):
    """Weights, sources, window and objective change, some in the middle of epochs."""
    a, b, c = paths
    return make_config(
        [a, b],
        [
            {"from_sample": 30, "sources": [{"path": b, "weight": 0.7}, {"path": c, "weight": 0.3}]},
            {"from_sample": 77, "window": 40, "sources": [{"path": a}, {"path": b}, {"path": c}]},
            {"from_sample": 150, "window": 12, "objective": {"token": 0.0, "sentence": 0.0, "document": 1.0}},
        ],
    )


def plain_tokens(sample):
    both = np.concatenate([sample.input_ids[~sample.loss_mask], sample.targets[sample.loss_mask]])
    return both[both < 50_000].tolist()


def digest(sample):
    parts = [np.int64(sample.index), np.int64(sample.objective), *(getattr(sample, name) for name in FIELDS)]
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()


def assert_epochs_are_whole(samples):
    """The tokens of each source come all once, then all once more, and at last some once more."""
    for source, epoch in enumerate(EPOCHS):
        tokens = [token for token in chain.from_iterable(map(plain_tokens, samples)) if token // 10_000 == source]
        size = sum(epoch.values())
        for first in range(0, len(tokens), size):
            part = Counter(tokens[first : first + size])
            assert part == epoch if first + size <= len(tokens) else part <= epoch


def test_every_token_is_in_one_sample_of_an_epoch_through_all_phases(paths, tokenizer):
    samples = SampleDataset.open(three_phases(paths), tokenizer).samples(range(600))
    assert_epochs_are_whole(samples)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    phases=st.lists(
        st.tuples(st.integers(1, 60), st.permutations([0, 1, 2]), st.integers(1, 3), st.integers(2, 65)),
        min_size=1,
        max_size=4,
    ),
    window=st.integers(2, 65),
)
def test_no_phases_lose_or_repeat_a_token(paths, tokenizer, phases, window):
    tree, first = [], 0
    for samples, order, sources, new_window in phases:
        first += samples
        chosen = [{"path": paths[source], "weight": 1.0 + source} for source in order[:sources]]
        tree.append({"from_sample": first, "sources": chosen, "window": new_window})
    windows = [window, *(phase["window"] for phase in tree)]
    assume(all(a != b for a, b in pairwise(windows)))  # each phase changes something
    config = make_config(paths[:2], tree, window=window)
    assert_epochs_are_whole(SampleDataset.open(config, tokenizer).samples(range(first + 150)))


def test_samples_asked_for_together_over_a_change_are_those_asked_for_singly(paths, tokenizer):
    dataset = SampleDataset.open(three_phases(paths), tokenizer)
    indices = [151, 20, 76, 29, 77, 30, 149, 150, 20]
    assert list(map(digest, dataset.samples(indices))) == [digest(dataset.sample(index)) for index in indices]


def test_a_phase_has_its_objectives(paths, tokenizer):
    dataset = SampleDataset.open(three_phases(paths), tokenizer)
    assert {sample.objective for sample in dataset.samples(range(150))} == set(Objective)
    assert {sample.objective for sample in dataset.samples(range(150, 300))} == {Objective.DOCUMENT}
    assert [dataset.phase(index) for index in (0, 29, 30, 149, 150, 10**9)] == [0, 0, 1, 2, 3, 3]


def test_the_probabilities_of_a_step_over_a_change_are_the_mean_of_its_samples(paths, tokenizer):
    dataset = SampleDataset.open(three_phases(paths), tokenizer)
    assert dataset.probabilities(range(0, 8)) == pytest.approx((0.5, 0.2, 0.3))
    assert dataset.probabilities(range(144, 152)) == pytest.approx((0.375, 0.15, 0.475))
    assert dataset.probabilities(range(152, 160)) == pytest.approx((0.0, 0.0, 1.0))


def test_windows_keep_their_length_until_the_wave_is_read(paths, tokenizer):
    config = make_config(paths[1:2], [{"from_sample": 5, "window": 9}])
    samples = SampleDataset.open(config, tokenizer).samples(range(30))
    read = np.cumsum([len(plain_tokens(sample)) for sample in samples])
    last = int(np.flatnonzero(read == sum(LENGTHS[1]))[0])  # of the epoch, which is one wave
    assert last > 20
    assert len(plain_tokens(samples[last - 1])) > 9


def test_held_out_windows_are_those_of_all_phases_sources_and_objectives(paths, tokenizer):
    a, _, c = paths
    phases = [{"from_sample": 9, "sources": [{"path": c}], "window": 40}, {"from_sample": 20, "sources": [{"path": a}]}]
    phases.append({"from_sample": 30, "objective": {"token": 0.0, "document": 1.0}})
    config = make_config([a], phases, objective={"token": 1.0})
    held_out = HeldOutDataset.open(config, tokenizer)
    assert held_out.objectives == (Objective.TOKEN, Objective.DOCUMENT)
    assert held_out.num_windows == -(-62 // 23) + -(-113 // 23)
    seen = chain.from_iterable(
        plain_tokens(held_out.sample(Objective.DOCUMENT, window)) for window in range(held_out.num_windows)
    )
    assert Counter(seen) == Counter(chain(*documents(3, [60]), *documents(4, [100, 9])))


def test_errors_of_a_phase_s_sources_name_the_phase(tmp_path, paths, write_corpus, tokenizer):
    empty = write_corpus(tmp_path / "empty", [], documents(5, [9]))
    for path, message in (
        ("nowhere", r"^data\.phases\[0\]\.sources\[1\]\.path: no shards in 'nowhere'"),
        (str(empty), r"^data\.phases\[0\]\.sources\[1\]: no training documents in '.*empty'"),
    ):
        phase = {"from_sample": 9, "sources": [{"path": paths[0]}, {"path": path}]}
        with pytest.raises(DataError, match=message):
            SampleDataset.open(make_config(paths[:1], [phase]), tokenizer)


def test_an_objective_of_a_phase_that_the_tokenizer_does_not_support_names_the_phase(paths, tokenizer):
    config = make_config(paths[:1], [{"from_sample": 9, "objective": {"block_mask_probability": 0.1}}])
    with pytest.raises(ConfigError, match=r"^data\.phases\[0\]\.objective\.block_mask_probability: 0\.1 needs"):
        SampleDataset.open(config, tokenizer)


# --- elastic resume -------------------------------------------------------------------------------


def consume(dataset, found, first, steps, *, batch, dp_size, micro, prefetch):
    """Some steps of all replicas: what each sample became, by its index; the first sample after them."""
    for rank in range(dp_size):
        with StepLoader(
            dataset,
            partial(collate, pad_id=50_001),
            consumed_samples=first,
            global_batch_size=batch,
            micro_batch_size=micro,
            dp_rank=rank,
            dp_size=dp_size,
            prefetch=prefetch,
        ) as loader:
            for _ in range(steps):
                for row in next(loader).micro_batches:
                    for index, start, end in row.row_keys.spans:
                        assert index not in found, "a sample came twice"
                        parts = (row.input_ids, row.position_ids, row.block_position_ids)
                        content = b"".join(part[start:end].numpy().tobytes() for part in parts)
                        found[index] = hashlib.sha256(content).digest()
    return first + steps * batch


def hash_of(found):
    return hashlib.sha256(b"".join(found[index] for index in sorted(found))).hexdigest()


WHOLE = {"batch": 16, "dp_size": 1, "micro": 16, "prefetch": 0}
STEPS = 20  # 320 samples: all phases, and several epochs of each source


@pytest.fixture
def undisturbed(paths, tokenizer):
    dataset = SampleDataset.open(three_phases(paths), tokenizer)
    found = {}
    consume(dataset, found, 0, STEPS, **WHOLE)
    return dataset, hash_of(found)


@pytest.mark.parametrize(
    ("dp_size", "micro", "prefetch"),
    [(1, 1, 0), (1, 4, 2), (2, 8, 0), (2, 1, 1), (4, 4, 3), (4, 2, 0), (8, 1, 2), (8, 2, 0), (16, 1, 1)],
)
def test_the_samples_are_the_same_under_every_layout(undisturbed, dp_size, micro, prefetch):
    dataset, expected = undisturbed
    found = {}
    consume(dataset, found, 0, STEPS, batch=16, dp_size=dp_size, micro=micro, prefetch=prefetch)
    assert hash_of(found) == expected


layouts = st.sampled_from([(1, 8, 0), (2, 4, 0), (4, 1, 1), (8, 2, 0), (8, 1, 2)])


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.tuples(st.integers(1, 6), st.sampled_from([16, 32, 48]), layouts), min_size=2, max_size=6))
def test_a_run_that_is_cut_anywhere_and_resumed_under_other_layouts_has_the_same_samples(
    undisturbed, paths, tokenizer, parts
):
    _, expected = undisturbed
    found, first = {}, 0
    for steps, batch, (dp_size, micro, prefetch) in parts:
        dataset = SampleDataset.open(three_phases(paths), tokenizer)  # as a new process does
        steps = min(steps, (16 * STEPS - first) // batch)
        first = consume(dataset, found, first, steps, batch=batch, dp_size=dp_size, micro=micro, prefetch=prefetch)
    dataset = SampleDataset.open(three_phases(paths), tokenizer)
    consume(dataset, found, first, (16 * STEPS - first) // 16, **WHOLE)
    assert hash_of(found) == expected


def test_a_phase_that_is_added_later_leaves_the_samples_before_it(paths, tokenizer):
    planned = three_phases(paths)
    tree = planned.model_dump(mode="json")
    tree["data"]["phases"] = tree["data"]["phases"][:1]
    with_one = SampleDataset.open(config_from_tree(tree), tokenizer)
    with_all = SampleDataset.open(planned, tokenizer)
    assert [*map(digest, with_one.samples(range(77)))] == [*map(digest, with_all.samples(range(77)))]


def test_the_example_of_the_documentation_is_a_configuration():
    page = (REPOSITORY / "docs/data.md").read_text(encoding="utf-8")
    (example,) = (block for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S) if "phases:" in block)
    tree = make_config(["a"], objective={"token": 1.0}).model_dump(mode="json") | parse_yaml(example, where="data.md")
    tree["model"]["max_positions"] = 1024
    assert len(config_from_tree(tree).data.phases) >= 2
