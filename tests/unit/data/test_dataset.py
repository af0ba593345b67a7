"""The datasets over real shards: every token once an epoch, and the same sample whoever asks."""

from collections import Counter
from functools import partial
from itertools import chain

import numpy as np
import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.data.batch import collate
from megatron_glm.data.dataset import HeldOutDataset, SampleDataset
from megatron_glm.data.loader import StepLoader, evaluation_batches
from megatron_glm.data.order import MAX_SAMPLES
from megatron_glm.errors import ConfigError, DataError, TokenizerError
from megatron_glm.objective.sample import Objective

MIXED = {"token": 0.5, "sentence": 0.2, "document": 0.3}
FIELDS = (
    "input_ids",
    "targets",
    "loss_mask",
    "position_ids",
    "block_position_ids",
    "segments",
)


def documents(seed, lengths):
    """Documents of plain tokens that are all different within a corpus."""
    ids = np.random.default_rng(seed).permutation(50_000)[: sum(lengths)]
    return [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]


def make_config(*paths, window=24, objective=None, weights=None, **train):
    weights = weights or [1.0] * len(paths)
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "max_positions": 64},
            "tokenizer": {"path": "tok"},
            "data": {
                "sources": [{"path": str(p), "weight": w} for p, w in zip(paths, weights, strict=True)],
                "window": window,
            },
            "objective": objective or MIXED,
            "optimizer": {"learning_rate": 1e-4},
            "train": {
                "output": "runs",
                "steps": 1,
                "global_batch_size": 1,
                "micro_batch_size": 1,
                "seed": 3,
                **train,
            },
        }
    )


def plain_tokens(sample):
    """The tokens of the text in a sample: those left in part A and those that are targets."""
    part_a = sample.input_ids[~sample.loss_mask]
    both = np.concatenate([part_a, sample.targets[sample.loss_mask]])
    return both[both < 50_000].tolist()


def assert_same(one, other):
    assert (one.index, one.objective) == (other.index, other.objective)
    for name in FIELDS:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


ALL = documents(1, [1, 1, 5, 30, 2, 90, 1, 200, 1, 3, 400, 50, 23, 24, 25, 22])
SOURCES = ALL[:7], ALL[7:]


@pytest.fixture
def dataset(tmp_path, write_corpus, tokenizer):
    small = write_corpus(tmp_path / "small", SOURCES[0])
    large = write_corpus(tmp_path / "large", SOURCES[1])
    return SampleDataset.open(make_config(small, large, weights=[0.25, 0.75]), tokenizer)


@pytest.mark.parametrize("append_eos", [True, False])
@pytest.mark.parametrize("objective", ["token", "sentence", "document"])
@pytest.mark.parametrize("lengths", [[1], [2, 1, 1], [300], [22, 23, 24, 46, 47, 1, 70], [1] * 60])
def test_every_token_is_in_one_sample_of_an_epoch(tmp_path, write_corpus, tokenizer, lengths, objective, append_eos):
    corpus = documents(4, lengths)
    path = write_corpus(tmp_path / "corpus", corpus, append_eos=append_eos)
    dataset = SampleDataset.open(make_config(path, objective={"token": 0.0, objective: 1.0}), tokenizer)
    length = sum(lengths) + 2 * len(lengths)
    windows = -(-(length + 22) // 23)
    for epoch in range(3):
        samples = dataset.samples(range(epoch * windows, (epoch + 1) * windows))
        seen = Counter(chain.from_iterable(map(plain_tokens, samples)))
        assert seen == Counter(chain.from_iterable(corpus))


def test_three_short_documents_fill_a_long_window_epoch_after_epoch(tmp_path, write_corpus, tokenizer):
    corpus = write_corpus(tmp_path / "tiny", documents(2, [4, 3, 5]))
    dataset = SampleDataset.open(make_config(corpus, window=64), tokenizer)
    everything = sorted(chain.from_iterable(documents(2, [4, 3, 5])))
    covered: list[int] = []
    index = 0
    for _ in range(5):  # the grid is shifted each epoch, so one has one window or two
        while len(covered) < len(everything):
            covered += plain_tokens(dataset.sample(index))
            index += 1
        assert sorted(covered) == everything
        covered = []


def test_joined_documents_are_read_from_the_same_windows(tmp_path, write_corpus, tokenizer):
    corpus = write_corpus(tmp_path / "a", SOURCES[1])
    isolated = make_config(corpus)
    joined = isolated.model_copy(update={"data": isolated.data.model_copy(update={"isolate_documents": False})})
    one, other = (SampleDataset.open(config, tokenizer) for config in (isolated, joined))
    for index in range(60):
        (place, apart), (place_of_joined, together) = one.trace(index), other.trace(index)
        assert place == place_of_joined
        assert Counter(plain_tokens(apart)) == Counter(plain_tokens(together))


def test_a_sample_is_the_same_whatever_was_asked_before(dataset):
    together = dataset.samples(range(60))
    assert {sample.objective for sample in together} == set(Objective)
    for i in (59, 3, 0, 31, 3):
        assert_same(dataset.sample(i), together[i])
    for one, other in zip(dataset.samples([7, 50, 7]), [together[7], together[50], together[7]], strict=True):
        assert_same(one, other)


def test_sources_take_their_turns_by_weight(dataset):
    ids = [set(chain.from_iterable(source)) for source in SOURCES]
    turns = [0, 0]
    for sample in dataset.samples(range(400)):
        tokens = set(plain_tokens(sample))
        if tokens:
            source = int(not tokens <= ids[0])
            assert tokens <= ids[source]
            turns[source] += 1
    assert turns[0] * 2 < turns[1] < turns[0] * 4


@pytest.mark.parametrize(("dp_size", "micro"), [(1, 12), (1, 1), (2, 3), (3, 2), (4, 1)])
def test_a_step_s_rows_hold_the_same_samples_in_any_layout(dataset, dp_size, micro):
    expected = {sample.index: sample for sample in dataset.samples(range(24, 36)) if len(sample.input_ids)}
    found = {}
    counts = np.zeros(3, np.int64)
    for rank in range(dp_size):
        with StepLoader(
            dataset,
            partial(collate, pad_id=50_001),
            consumed_samples=24,
            global_batch_size=12,
            micro_batch_size=micro,
            dp_rank=rank,
            dp_size=dp_size,
            prefetch=1,
        ) as loader:
            step = next(loader)
        counts += step.target_counts
        for batch in step.micro_batches:
            for index, start, end in batch.row_keys.spans:
                found[index] = batch.input_ids[start:end].tolist(), batch.position_ids[start:end].tolist()
    assert found == {i: (s.input_ids.tolist(), s.position_ids.tolist()) for i, s in expected.items()}
    by_objective = [
        sum(int(s.loss_mask.sum()) for s in expected.values() if s.objective == objective) for objective in Objective
    ]
    assert counts.tolist() == by_objective


@pytest.fixture
def held_out_config(tmp_path, write_corpus):
    one = write_corpus(tmp_path / "one", documents(1, [9]), documents(5, [100, 7, 60]))
    none = write_corpus(tmp_path / "none", documents(2, [9]))
    two = write_corpus(tmp_path / "two", documents(3, [9]), documents(6, [150]))
    return lambda **options: make_config(one, none, two, **options)


def test_held_out_windows_cover_all_held_out_text_once(held_out_config, tokenizer):
    held_out = HeldOutDataset.open(held_out_config(), tokenizer)
    assert held_out.num_windows == -(-173 // 23) + -(-152 // 23)
    assert held_out.objectives == tuple(Objective)
    corpus = Counter(chain.from_iterable(documents(5, [100, 7, 60]) + documents(6, [150])))
    for objective in held_out.objectives:
        samples = [held_out.sample(objective, window) for window in range(held_out.num_windows)]
        assert {sample.objective for sample in samples} == {objective}
        assert Counter(chain.from_iterable(map(plain_tokens, samples))) == corpus


def test_fewer_windows_are_spread_evenly_and_keep_their_spans(held_out_config, tokenizer):
    every = HeldOutDataset.open(held_out_config(), tokenizer)
    third = HeldOutDataset.open(held_out_config(eval_samples=5), tokenizer)
    assert (every.num_windows, third.num_windows) == (15, 5)
    for window in range(5):
        assert_same(third.sample(Objective.TOKEN, window), every.sample(Objective.TOKEN, 3 * window))


def test_held_out_samples_have_indices_that_no_training_sample_has(held_out_config, tokenizer):
    held_out = HeldOutDataset.open(held_out_config(), tokenizer)
    assert [held_out.sample(Objective.TOKEN, w).index for w in (0, 14)] == [MAX_SAMPLES, MAX_SAMPLES + 14]
    with pytest.raises(IndexError, match=r"window 15 lies outside range\(15\)"):
        held_out.sample(Objective.TOKEN, 15)


def test_only_objectives_that_are_trained_are_evaluated(held_out_config, tokenizer):
    def objectives(**objective):
        return HeldOutDataset.open(held_out_config(objective=objective), tokenizer).objectives

    assert objectives(token=0.5, document=0.5) == (Objective.TOKEN, Objective.DOCUMENT)
    assert objectives(token=0.0, sentence=1.0) == (Objective.SENTENCE,)
    # A single short span counts as the token objective, whatever the mixture is.
    single = objectives(token=0.0, sentence=1.0, single_span_probability=0.1)
    assert single == (Objective.TOKEN, Objective.SENTENCE)


def test_replicas_evaluate_every_window_together(held_out_config, tokenizer):
    held_out = HeldOutDataset.open(held_out_config(), tokenizer)
    layouts = [(0, 1), (0, 2), (1, 2)]
    counts = {
        layout: [
            batch.target_counts[Objective.SENTENCE]
            for batch in evaluation_batches(
                held_out,
                Objective.SENTENCE,
                partial(collate, pad_id=50_001),
                dp_rank=layout[0],
                dp_size=layout[1],
                micro_batch_size=4,
            )
        ]
        for layout in layouts
    }
    assert len(counts[0, 2]) == len(counts[1, 2])
    assert sum(counts[0, 1]) == sum(counts[0, 2]) + sum(counts[1, 2]) > 0


def test_missing_shards_are_named_with_their_field_and_the_remedy(tmp_path, write_corpus, tokenizer):
    good = write_corpus(tmp_path / "good", documents(1, [9]))
    with pytest.raises(DataError) as caught:
        SampleDataset.open(make_config(good, "corpora/wiki"), tokenizer)
    assert str(caught.value) == (
        "data.sources[1].path: no shards in 'corpora/wiki' "
        "(expected manifest.json; run python -m data_tools.preprocess first)"
    )


@pytest.mark.parametrize("kind", [SampleDataset, HeldOutDataset])
def test_another_tokenizer_than_the_data_s_is_refused_by_both_hashes(tmp_path, write_corpus, tokenizer, kind):
    path = write_corpus(tmp_path / "corpus", documents(1, [9]), documents(2, [9]))
    other = type(tokenizer)(**{**vars(tokenizer), "content_hash": "f" * 64})
    with pytest.raises(TokenizerError, match=r"data\.sources\[0\]\.path: .* tokenizer\.path holds") as caught:
        kind.open(make_config(path), other)
    assert tokenizer.content_hash in str(caught.value)
    assert "f" * 64 in str(caught.value)


def test_a_window_longer_than_the_position_table_is_refused(tmp_path, write_corpus, tokenizer):
    path = write_corpus(tmp_path / "corpus", documents(1, [200]))
    SampleDataset.open(make_config(path, window=65), tokenizer)
    with pytest.raises(ConfigError, match=r"model\.max_positions: 64 .* data\.window 66"):
        SampleDataset.open(make_config(path, window=66), tokenizer)


def test_a_source_without_training_documents_is_refused(tmp_path, write_corpus, tokenizer):
    path = write_corpus(tmp_path / "corpus", [], documents(1, [9]))
    with pytest.raises(DataError, match=r"data\.sources\[0\]: no training documents in '.*corpus'"):
        SampleDataset.open(make_config(path), tokenizer)


def test_an_evaluation_without_held_out_documents_is_refused(tmp_path, write_corpus, tokenizer):
    path = write_corpus(tmp_path / "corpus", documents(1, [9]))
    with pytest.raises(DataError, match=r"data\.sources: no held-out documents in '.*corpus'; preprocess"):
        HeldOutDataset.open(make_config(path), tokenizer)
