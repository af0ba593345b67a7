"""Existing pairs of Megatron are read like our own, and what they do not tell is found out or refused."""

import os
from collections import Counter
from itertools import chain

import numpy as np
import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.schema import Source
from megatron_glm.data.dataset import HeldOutDataset, SampleDataset
from megatron_glm.data.indexed_writer import IndexedWriter
from megatron_glm.data.pair_format import bin_path, idx_path
from megatron_glm.data.pair_set import OPEN_PAIRS
from megatron_glm.data.prefixes import PrefixSet, expand
from megatron_glm.data.sources import open_documents
from megatron_glm.errors import ConfigError, DataError

EOS = 50_001
NUM_IDS = 50_008


def write_pair(prefix, documents, dtype=np.uint16):
    """Documents are lists of sequences."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with IndexedWriter(prefix, np.dtype(dtype)) as writer:
        for sequences in documents:
            writer.add_document(np.array(list(chain(*sequences)), np.int64), [len(s) for s in sequences])
    return str(prefix)


def write_by_megatron(prefix, documents, dtype=np.uint16):
    megatron = pytest.importorskip("megatron.core.datasets.indexed_dataset", exc_type=ImportError)
    builder = megatron.IndexedDatasetBuilder(str(bin_path(prefix)), dtype=dtype)
    for sequences in documents:
        builder.add_document(list(chain(*sequences)), [len(sequence) for sequence in sequences])
    builder.finalize(str(idx_path(prefix)))
    return str(prefix)


def random_documents(lengths, *, eos, sentences):
    """Documents of plain ids that are all different, of one sequence or of several."""
    ids = iter(np.random.default_rng(2).permutation(50_000).tolist())
    documents = []
    for length in lengths:
        tokens = [next(ids) for _ in range(length)] + [EOS] * (eos and length > 0)
        cut = len(tokens) // 2
        documents.append([part for part in (tokens[:cut], tokens[cut:]) if part] if sentences else [tokens])
        if not tokens:
            documents[-1] = []
    return documents


def flat(documents):
    return [list(chain(*sequences)) for sequences in documents]


def open_set(*prefixes):
    return PrefixSet(prefixes, num_ids=NUM_IDS, eos=EOS)


def make_config(*sources, window=24, objective=None, phases=()):
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "max_positions": 64},
            "tokenizer": {"path": "tok"},
            "data": {"sources": list(sources), "window": window, "phases": list(phases)},
            "objective": objective or {"token": 0.5, "sentence": 0.2, "document": 0.3},
            "optimizer": {"learning_rate": 1e-4},
            "train": {"output": "runs", "steps": 1, "global_batch_size": 1, "micro_batch_size": 1, "seed": 3},
        }
    )


def plain_tokens(sample):
    both = np.concatenate([sample.input_ids[~sample.loss_mask], sample.targets[sample.loss_mask]])
    return both[both < 50_000].tolist()


@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("sentences", [True, False])
def test_every_token_of_megatron_s_own_pairs_is_in_one_sample_of_an_epoch(tmp_path, tokenizer, eos, sentences):
    lengths = [1, 30, 0, 2, 90, 0, 1, 200, 23, 24, 25, 1, 1]
    documents = random_documents(lengths, eos=eos, sentences=sentences)
    first = write_by_megatron(tmp_path / "first", documents[:5], np.int32)
    second = write_by_megatron(tmp_path / "second", documents[5:], np.uint16)
    dataset = SampleDataset.open(make_config({"prefixes": [first, second]}), tokenizer)
    stored = sum(map(len, flat(documents)))
    stream = stored + len(lengths) * (1 if eos else 2)
    windows = -(-(stream + 22) // 23)
    text = Counter(token for token in chain(*flat(documents)) if token != EOS)
    for epoch in range(2):
        samples = dataset.samples(range(epoch * windows, (epoch + 1) * windows))
        assert Counter(chain.from_iterable(map(plain_tokens, samples))) == text


@pytest.mark.parametrize("eos", [True, False])
def test_the_same_documents_give_the_same_samples_as_a_directory_of_ours(tmp_path, write_corpus, tokenizer, eos):
    lengths = [5, 30, 2, 90, 1, 200, 23]
    bare = flat(random_documents(lengths, eos=False, sentences=False))
    ours = write_corpus(tmp_path / "ours", bare, append_eos=eos)
    pair = write_pair(tmp_path / "theirs", random_documents(lengths, eos=eos, sentences=False))
    one, other = (
        SampleDataset.open(make_config(source), tokenizer) for source in ({"path": str(ours)}, {"prefixes": [pair]})
    )
    for mine, theirs in zip(one.samples(range(60)), other.samples(range(60)), strict=True):
        assert np.array_equal(mine.input_ids, theirs.input_ids)
        assert np.array_equal(mine.targets, theirs.targets)


def test_documents_lie_where_they_lie_in_pairs_of_different_types(tmp_path):
    documents = random_documents([3, 0, 5, 1, 0, 0, 7], eos=True, sentences=True)
    prefixes = [
        write_pair(tmp_path / "a", documents[:2], np.int32),
        write_pair(tmp_path / "empty", [[], []]),
        write_pair(tmp_path / "none", []),
        write_pair(tmp_path / "b", documents[2:], np.uint16),
    ]
    found = open_set(*prefixes)
    expected = flat([*documents[:2], [], [], *documents[2:]])
    assert found.num_documents == len(expected)
    for k, tokens in enumerate(expected):
        start, stop = found.document_start(k), found.document_start(k + 1)
        assert found.tokens(start, stop).tolist() == tokens
        assert [found.find_document(place) for place in range(start, stop)] == [k] * len(tokens)
    assert found.ends_with_eos
    assert not open_set(prefixes[1], prefixes[2]).num_tokens


def test_whether_sequences_are_sentences_is_told_by_their_number(tmp_path):
    lengths = [4, 0, 6]
    by_sentence = write_pair(tmp_path / "sentences", random_documents(lengths, eos=True, sentences=True) * 2)
    by_document = write_pair(tmp_path / "documents", random_documents(lengths, eos=True, sentences=False))
    assert [open_set(*p).has_sentences for p in ([by_sentence], [by_document], [by_sentence, by_document])] == [
        True,
        False,
        False,
    ]


def test_documents_some_with_eos_and_some_without_are_refused_with_one_of_each(tmp_path):
    good = write_pair(tmp_path / "good", [[[1, EOS]]] * 400)
    bad = write_pair(tmp_path / "bad", [[[2]]])
    with pytest.raises(DataError) as caught:
        open_set(good, bad)
    assert str(caught.value).startswith(
        f"document 0 of '{good}' ends with eos (id {EOS}), document 0 of '{bad}' does not; give pairs"
    )


def test_patterns_stand_for_their_pairs_in_order(tmp_path):
    for name in ("part_10", "part_9", "other", "part_2"):
        write_pair(tmp_path / name, [[[1, EOS]]])
    names = [path.name for path in expand([str(tmp_path / "other"), str(tmp_path / "part_*")])]
    assert names == ["other", "part_10", "part_2", "part_9"]


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        (["nothing_*"], r"nothing_\*': no \.idx file has such a name"),
        (["a.bin"], r"a\.bin': leave the extension out"),
        (["a", "a*"], r"a' is given twice; its documents"),
        (["a", "x/../a"], r"x/\.\./a' is given twice, also as '.*/a'; its documents"),
        (["a", "link"], r"link' is given twice, also as '.*/a'"),
        (["a\0"], r"a\\x00': names no file"),
        (["missing"], r"missing\.idx: No such file or directory"),
    ],
)
def test_names_that_lead_nowhere_are_refused(tmp_path, prefixes, message):
    write_pair(tmp_path / "a", [[[1, EOS]]])
    for path in (bin_path, idx_path):
        path(tmp_path / "link").symlink_to(path(tmp_path / "a"))
    with pytest.raises(DataError, match=message):
        open_set(*(f"{tmp_path}/{prefix}" for prefix in prefixes))


def test_a_later_phase_of_sentences_does_not_alter_the_short_sequences_before_it(tmp_path, tokenizer):
    documents = [[list(range(first, first + 7)) for first in range(100, 800, 7)]]
    source = {"prefixes": [write_pair(tmp_path / "a", documents)]}
    short = {"token": 1.0, "short_sequence_probability": 1.0}
    phase = {"from_sample": 20, "objective": {"token": 0.0, "sentence": 1.0, "short_sequence_probability": 0.0}}
    alone, followed = (
        SampleDataset.open(make_config(source, window=48, objective=short, phases=phases), tokenizer).samples(range(20))
        for phases in ([], [phase])
    )
    assert [s.input_ids.tolist() for s in alone] == [s.input_ids.tolist() for s in followed]


@pytest.mark.parametrize("prefix", ["", ".", "/"])
def test_a_path_without_a_name_is_refused(prefix):
    with pytest.raises(DataError, match=f"'{prefix}': names no file"):
        expand([prefix])


def test_an_id_outside_the_vocabulary_is_named_when_it_is_read(tmp_path):
    prefix = write_pair(tmp_path / "a", [[[1, NUM_IDS, EOS]]])
    with pytest.raises(DataError, match=r"a\.bin: token 1 is id 50008, ids must be 0 … 50007; were these pairs"):
        open_set(prefix).tokens(0, 3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda index: index + bytes(2), "holds the modes of multimodal sequences"),
        (lambda index: index + b"junk!", r"damaged: its 2 sequences and 1 documents need 74 bytes, there are 79"),
        (lambda index: index[:18] + index[18:26] + index[34:58], "an index of fairseq, which has no documents"),
        (lambda index: b"TNTIDX\0\0" + bytes(50), "not an index of Megatron"),
        (lambda index: index[:17] + b"\x06" + index[18:], "type code 6 cannot be read"),
        (lambda index: index[:17] + b"\x09" + index[18:], "type code 9 cannot be read"),
    ],
)
def test_relatives_of_the_format_are_refused_by_name(tmp_path, damage, message):
    prefix = write_pair(tmp_path / "a", [[[1, 2], [3, EOS]]])
    index = idx_path(tmp_path / "a")
    index.write_bytes(damage(index.read_bytes()))
    with pytest.raises(DataError, match=message):
        open_set(prefix)


def test_errors_begin_with_the_field_of_the_config(tmp_path, tokenizer):
    good = write_pair(tmp_path / "good", [[[1, EOS]]])
    source = Source(prefixes=(good,), held_out_prefixes=("none",))
    assert open_documents(source, "data.sources[3]", "train", tokenizer).num_documents == 1
    with pytest.raises(DataError, match=r"^data\.sources\[3\]\.held_out_prefixes: none\.idx: No such file"):
        open_documents(source, "data.sources[3]", "held_out", tokenizer)
    with pytest.raises(DataError, match=r"^data\.sources\[0\]\.prefixes: none\.idx"):
        open_documents(Source(prefixes=("none",)), "data.sources[0]", "train", tokenizer)


def test_held_out_prefixes_are_what_is_evaluated(tmp_path, tokenizer):
    train = write_pair(tmp_path / "train", [[[*range(100, 200), EOS]]])
    held = write_pair(tmp_path / "held", [[[*range(300, 400), EOS]]])
    config = make_config({"prefixes": [train], "held_out_prefixes": [held]})
    dataset = HeldOutDataset.open(config, tokenizer)
    for objective in dataset.objectives:
        seen = chain(*(plain_tokens(dataset.sample(objective, k)) for k in range(dataset.num_windows)))
        assert sorted(seen) == list(range(300, 400))
    with pytest.raises(DataError, match=r"no held-out documents in .*held_out_prefixes"):
        HeldOutDataset.open(make_config({"prefixes": [train]}), tokenizer)


def test_held_out_pairs_that_are_trained_on_are_refused(tmp_path, tokenizer):
    for name in ("part_0", "part_1"):
        write_pair(tmp_path / name, [[[1, EOS]]])
    source = Source(prefixes=(f"{tmp_path}/part_*",), held_out_prefixes=(f"{tmp_path}/../{tmp_path.name}/part_1",))
    with pytest.raises(DataError, match=r"^field\.held_out_prefixes: '.*/part_1' is one of the training pairs too"):
        open_documents(source, "field", "held_out", tokenizer)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, "give either path"),
        ({"path": "a", "prefixes": ["b"]}, "give either path"),
        ({"path": "a", "held_out_prefixes": ["b"]}, "held_out_prefixes belong to prefixes"),
        ({"prefixes": []}, "prefixes"),
    ],
)
def test_a_source_is_of_one_kind(source, message):
    with pytest.raises(ConfigError, match=rf"data\.sources.*{message}"):
        make_config(source)


def test_a_pair_that_changes_after_opening_is_refused(tmp_path):
    prefix = write_pair(tmp_path / "a", [[[1, EOS]]])
    documents = open_set(prefix)
    documents._file.cache_clear()
    for path in (bin_path, idx_path):
        path(tmp_path / "a").unlink()
    write_pair(tmp_path / "a", [[[1, EOS]], [[2, EOS]]])
    with pytest.raises(DataError, match="2 documents and 4 tokens, expected 1 and 2"):
        documents.tokens(0, 1)


def test_many_pairs_open_few_at_a_time(tmp_path):
    prefixes = [write_pair(tmp_path / f"p{k}", [[[k, EOS]]]) for k in range(20)]
    documents = PrefixSet(prefixes, num_ids=NUM_IDS, eos=EOS, open_pairs=2)
    before = len(os.listdir("/proc/self/fd"))
    assert documents.tokens(0, 40).tolist()[::2] == list(range(20))
    assert len(os.listdir("/proc/self/fd")) <= before
    assert documents._file.cache_info().currsize == 2


def test_the_sources_of_a_run_share_the_pairs_that_may_be_open(tmp_path, tokenizer):
    prefixes = [write_pair(tmp_path / f"p{k}", [[[*range(k, k + 30), EOS]]]) for k in range(3)]
    dataset = SampleDataset.open(make_config(*({"prefixes": [prefix]} for prefix in prefixes)), tokenizer)
    limits = [stream._shards._file.cache_info().maxsize for stream in dataset._streams]
    assert limits == [OPEN_PAIRS // 3] * 3
