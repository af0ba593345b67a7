"""From text to the sentences that are masked: stored by preprocess, found by the index, taken whole."""

import sys
from itertools import pairwise
from unicodedata import normalize

import numpy as np
import pytest

from data_tools.preprocess import Request, preprocess
from data_tools.sentences import load_splitter, sentence_ends
from megatron_glm.config.loading import config_from_tree
from megatron_glm.data.dataset import SampleDataset
from megatron_glm.data.prefixes import PrefixSet
from megatron_glm.data.shards import ShardSet
from megatron_glm.errors import DataError
from megatron_glm.tokenizer.loading import load_tokenizer

# "Dr." ends no sentence, and ";" does, if marks are all that is known.
DOCUMENTS = [
    "Dr. Smith walked to the river; it was old. Mr. Stone was slow! Was it the water? Yes; no. 他走了。 The end.",
    "A mountain of stone.",
    "The river is old. The mountain is not; e.g. the stone. 你好！“他走了。”\nThe U.S. water is slow.",
] * 4


@pytest.fixture
def build(tmp_path, tokenizer_directory):
    (tmp_path / "text.txt").write_text("\n\n".join(DOCUMENTS))

    def run(name, **options):
        output = tmp_path / name
        inputs = [str(tmp_path / "text.txt")]
        tokenizer = str(tokenizer_directory)
        preprocess(Request(inputs=inputs, output=output, tokenizer=tokenizer, workers=1, held_out=0.0, **options))
        return output

    return run


def open_dataset(source, tokenizer, **objective):
    tree = {
        "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "max_positions": 64},
        "tokenizer": {"path": "tokenizer"},
        "data": {"sources": [source], "window": 64},
        "objective": {"token": 0.0, "sentence": 1.0, **objective},
        "optimizer": {"learning_rate": 1e-4},
        "train": {"output": "runs", "steps": 1, "global_batch_size": 1, "micro_batch_size": 1, "seed": 3},
    }
    return SampleDataset.open(config_from_tree(tree), tokenizer)


def targets(sample, tokenizer):
    """The ids of each masked span."""
    ids = sample.targets[sample.loss_mask]
    parts = np.split(ids, np.flatnonzero(ids == tokenizer.special.end_of_piece) + 1)
    return [tuple(part[:-1].tolist()) for part in parts if len(part)]


def test_the_ids_are_those_of_a_run_without_sentences(build):
    with_sentences, without = build("with", sentences=True), build("without")
    for path in sorted((without / "train").glob("*.bin")):
        assert path.read_bytes() == (with_sentences / "train" / path.name).read_bytes()
    assert [ShardSet(path, "train").has_sentences for path in (with_sentences, without)] == [True, False]


def test_the_stored_ends_are_those_of_the_text(build, tokenizer_directory):
    tokenizer = load_tokenizer(tokenizer_directory)
    shards = ShardSet(build("data", sentences=True, shard_tokens=150), "train")
    assert len(shards.shard_tokens) > 3
    bounds = [shards.document_start(k) for k in range(shards.num_documents + 1)]
    for text, (start, stop) in zip(DOCUMENTS, pairwise(bounds), strict=True):
        ends = shards.sequence_ends(start, stop).tolist()
        assert ends[-1] == stop  # eos belongs to the last sentence
        found = [tokenizer.decode(shards.tokens(a, b)) for a, b in pairwise([start, *ends])]
        text = normalize("NFKC", text)  # as this tokenizer does, which changes no place here
        expected = [text[a:b] for a, b in pairwise([0, *sentence_ends(text).tolist()])]
        closing = tokenizer.piece(tokenizer.special.eos)
        assert [sentence.removesuffix(closing).strip() for sentence in found] == list(map(str.strip, expected))
    assert shards.sequence_ends(0, shards.num_tokens).tolist() == sorted(
        {end for start, stop in pairwise(bounds) for end in shards.sequence_ends(start, stop).tolist()}
    )


@pytest.mark.parametrize("as_prefixes", [False, True])
def test_the_masked_spans_are_stored_sentences(build, tokenizer_directory, as_prefixes):
    tokenizer = load_tokenizer(tokenizer_directory)
    directory = build("data", sentences=True)
    shards = ShardSet(directory, "train")
    ends = shards.sequence_ends(0, shards.num_tokens).tolist()
    stored = {tuple(shards.tokens(a, b).tolist()) for a, b in pairwise([0, *ends])}
    stored |= {sentence[:-1] for sentence in stored if sentence[-1] == tokenizer.special.eos}
    source = {"path": str(directory)}
    if as_prefixes:
        prefixes = [str(directory / "train" / "*")]
        source = {"prefixes": prefixes}
        assert PrefixSet(prefixes, num_ids=tokenizer.vocab_size, eos=tokenizer.special.eos).has_sentences
    dataset = open_dataset(source, tokenizer, sentence_ratio=0.01)
    samples = dataset.samples(range(60))
    spans = [span for sample in samples for span in targets(sample, tokenizer)]
    # A window cuts at most two sentences, its first and its last one.
    whole = sum(span in stored for span in spans)
    assert whole > 0.5 * len(spans)
    for span in spans:
        assert span in stored or any(span in (each[: len(span)], each[-len(span) :]) for each in stored | {()})


def test_a_source_without_stored_sentences_falls_back_on_marks(build, tokenizer_directory):
    tokenizer = load_tokenizer(tokenizer_directory)
    with_sentences, without = (
        open_dataset({"path": str(build(name, sentences=sentences))}, tokenizer, sentence_ratio=0.01)
        for name, sentences in (("with", True), ("without", False))
    )
    marks = tokenizer.sentence_ends()

    def spans(dataset):
        return [np.array(span) for sample in dataset.samples(range(60)) for span in targets(sample, tokenizer)]

    assert not any(marks[span[:-1]][~marks[span[1:]]].any() for span in spans(without))
    assert any(marks[span[:-1]][~marks[span[1:]]].any() for span in spans(with_sentences))


def test_without_nupunkt_nothing_is_written(build, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "nupunkt", None)
    load_splitter.cache_clear()
    with pytest.raises(DataError, match=r"--sentences: .* pip install -c constraints\.txt -e '\.\[sentences\]'"):
        build("data", sentences=True)
    assert [path.name for path in tmp_path.iterdir() if "data" in path.name and path.suffix != ".lock"] == []
