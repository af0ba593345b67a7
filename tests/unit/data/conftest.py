"""Small corpora, in memory and on disk, for tests of what is built on shards."""

import hashlib
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from megatron_glm.data.indexed_writer import IndexedWriter
from megatron_glm.data.manifest import Input, Manifest, Options, Shard, Split, Splits, TokenizerRecord, save_manifest
from megatron_glm.data.pair_format import bin_path, idx_path
from megatron_glm.files import sha256_of
from megatron_glm.tokenizer.base import SpecialTokens

TOKENIZER_HASH = hashlib.sha256(b"the tokenizer of the tests").hexdigest()


class MemoryShards:
    """Documents held in lists, with the interface of a ShardSet; `sentence_ends` are places in all their tokens."""

    def __init__(self, documents, ends_with_eos=True, sentence_ends=None):
        self.documents = [list(document) for document in documents]
        self.ends_with_eos = ends_with_eos
        self.has_sentences = sentence_ends is not None
        self._sentence_ends = np.array(sentence_ends or [], np.int64)
        self.num_documents = len(self.documents)
        self._joined = np.array(list(chain.from_iterable(self.documents)), np.int32)
        self._starts = np.cumsum([0] + [len(document) for document in self.documents]).tolist()
        self.num_tokens = self._starts[-1]
        # Shards of three documents, with an empty one between.
        bounds = [0, *(k for k in range(self.num_documents) if k % 3 == 0), self.num_documents]
        self.shard_documents = np.array(bounds)
        self.shard_tokens = np.array([self._starts[k] for k in bounds])

    def document_start(self, k):
        return self._starts[k]

    def locate_document(self, k):
        shard = int(self.shard_documents.searchsorted(k, side="right")) - 1
        return shard, k - int(self.shard_documents[shard])

    def prefix(self, shard):
        return Path(f"shard_{shard}")

    def tokens(self, start, stop):
        return self._joined[start:stop].copy()

    def sequence_ends(self, start, stop, document):
        assert self._starts[document] <= start
        return self._sentence_ends[(self._sentence_ends > start) & (self._sentence_ends <= stop)]


@pytest.fixture(scope="session")
def memory_shards():
    return MemoryShards


@pytest.fixture(scope="session")
def special():
    """Special tokens above 50 000; every smaller id is a plain token."""
    roles = ("cls", "eos", "mask", "sentence_mask", "document_mask", "start_of_piece", "end_of_piece")
    return SpecialTokens(**{role: 50_000 + i for i, role in enumerate(roles)}, block_mask=None)


@pytest.fixture(scope="session")
def tokenizer(special):
    """What a dataset asks of a tokenizer; every tenth id ends a sentence."""
    ends = np.arange(50_008) % 10 == 0
    ends[50_000:] = False
    return SimpleNamespace(special=special, vocab_size=50_008, content_hash=TOKENIZER_HASH, sentence_ends=lambda: ends)


@pytest.fixture
def write_corpus(special):
    """Writes a data directory: documents (without eos) of both splits, three to a shard."""

    def write(directory, train, held_out=(), *, append_eos=True):
        splits = {}
        for name, documents in (("train", train), ("held_out", held_out)):
            (directory / name).mkdir(parents=True)
            shards = []
            for first in range(0, len(documents), 3):
                prefix = directory / name / f"{len(shards):05d}"
                ending = [special.eos] if append_eos else []
                shards.append(_write_shard(prefix, [[*d, *ending] for d in documents[first : first + 3]]))
            tokens = sum(shard.tokens for shard in shards)
            splits[name] = Split(shards=shards, documents=len(documents), tokens=tokens)
        total = len(train) + len(held_out)
        manifest = Manifest(
            tokenizer=TokenizerRecord(hash=TOKENIZER_HASH, kind="bpe", vocab_size=50_008, special={}, probes=()),
            dtype="uint16",
            append_eos=append_eos,
            splits=Splits(**splits),
            inputs=(
                Input(
                    path="input.txt",
                    unit="byte",
                    bytes=0,
                    parts=(),
                    documents_in=total,
                    documents_out=total,
                    dropped={},
                    repaired={},
                ),
            ),
            options=Options(held_out=0.0, text_key="text", line_documents=False, shard_tokens=0),
            versions={},
        )
        save_manifest(directory, manifest)
        return directory

    return write


def _write_shard(prefix, documents):
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        for document in documents:
            writer.add_document(np.array(document, np.int64))
    pair = {"bin": bin_path(prefix), "idx": idx_path(prefix)}
    return Shard(
        name=prefix.name,
        input=0,
        documents=len(documents),
        tokens=sum(map(len, documents)),
        **{f"{kind}_bytes": path.stat().st_size for kind, path in pair.items()},
        **{f"{kind}_sha256": sha256_of(path) for kind, path in pair.items()},
        origins_bytes=0,  # training does not ask for them
        origins_sha256=hashlib.sha256(b"").hexdigest(),
    )
