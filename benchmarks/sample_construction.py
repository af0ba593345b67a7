"""Samples a second on one core: a batch at a time against one by one.

    python -m benchmarks.sample_construction [--samples 4096] [--json FILE]

The corpus is random ids in shards on disk, written first and read once before the clock starts: its pages are in
the cache. Times are CPU time of this process, from the global index to the finished sample (order, windows,
objective, spans, positions, segments), the best of several passes. The one-by-one way is the plain reference that
tests compare the other with; both run alternately.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np

from benchmarks.origin import origin
from megatron_glm.config.schema import Objective as ObjectiveConfig
from megatron_glm.data.dataset import SampleDataset
from megatron_glm.data.indexed_writer import IndexedWriter
from megatron_glm.data.manifest import Input, Manifest, Options, Shard, Split, Splits, TokenizerRecord, save_manifest
from megatron_glm.data.order import Order
from megatron_glm.data.pair_format import bin_path, idx_path
from megatron_glm.data.shards import ShardSet
from megatron_glm.data.stream import Stream
from megatron_glm.files import sha256_of
from megatron_glm.objective.mixture import Mixture
from megatron_glm.tokenizer.base import SpecialTokens

WINDOW, NUM_IDS, SEED = 512, 50_008, 1234
SPECIAL = SpecialTokens(
    cls=50_000,
    eos=50_001,
    mask=50_002,
    sentence_mask=50_003,
    document_mask=50_004,
    start_of_piece=50_005,
    end_of_piece=50_006,
    block_mask=None,
)
# The mean length of a document, in tokens, by how many a window holds.
CORPORA = {"one document": 20_000, "four documents": 160}
MIXTURES = {
    "token": {"token": 1.0},
    "document": {"token": 0.0, "document": 1.0},
    "token and document": {"token": 0.5, "document": 0.5},
    "all three": {"token": 0.4, "sentence": 0.3, "document": 0.3},
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4096, help="of a batch")
    parser.add_argument("--tokens", type=int, default=4_000_000, help="of each corpus")
    parser.add_argument("--repeats", type=int, default=5, help="passes that are timed")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    args = parser.parse_args(argv)
    rows = []
    print(f"{'windows of':16} {'objectives':20} {'one by one':>12} {'in a batch':>12}   ratio")
    with tempfile.TemporaryDirectory() as scratch:
        for corpus, mean in CORPORA.items():
            write_corpus(Path(scratch, corpus), args.tokens, mean)
            shards = ShardSet(Path(scratch, corpus), "train")
            for objectives, shares in MIXTURES.items():
                row = {"windows of": corpus, "objectives": objectives, **measure(shards, shares, args)}
                rows.append(row)
                alone, together = row["one by one, samples/s"], row["in a batch, samples/s"]
                print(f"{corpus:16} {objectives:20} {alone:8.0f} /s {together:10.0f} /s {together / alone:6.1f}x")
    if args.json:
        about = origin("benchmarks.sample_construction", sys.argv[1:] if argv is None else argv, ["numpy"])
        report = {**about, "samples": args.samples, "window": WINDOW, "results": rows}
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def measure(shards: ShardSet, shares: dict[str, float], args: argparse.Namespace) -> dict[str, float]:
    """Samples a second of CPU time both ways, and the mean pieces of a window."""
    stream = Stream(shards, SPECIAL)
    order = Order([stream.length], [1.0], window=WINDOW, seed=SEED)
    sentence_ends = np.arange(NUM_IDS) % 20 == 0
    mixture = Mixture(
        ObjectiveConfig(**shares),
        SPECIAL,
        sentence_ends,
        max_positions=WINDOW,
        window=WINDOW,
        isolate_documents=True,
        seed=SEED,
    )
    dataset = SampleDataset([stream], order, [mixture])
    indices = np.arange(args.samples)

    def alone() -> None:
        _, starts, stops = (places.tolist() for places in order.locate(indices))
        for index, start, stop in zip(indices.tolist(), starts, stops, strict=True):
            mixture.sample(index, stream.pieces(start, stop))

    def together() -> None:
        dataset.samples(indices)

    seconds = best_times([alone, together], args.repeats)
    segments = np.mean([len(sample.segments) for sample in dataset.samples(indices)])
    return {
        "segments a sample": round(float(segments), 2),
        "one by one, samples/s": round(args.samples / seconds[0]),
        "in a batch, samples/s": round(args.samples / seconds[1]),
    }


def best_times(functions: Sequence[Callable[[], None]], repeats: int) -> list[float]:
    """CPU seconds of the fastest of `repeats` passes of each function, taken by turns."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats + 1):  # the first warms up
        for function, taken in zip(functions, times, strict=True):
            start = time.process_time()
            function()
            taken.append(time.process_time() - start)
    return [min(taken[1:]) for taken in times]


def write_corpus(directory: Path, num_tokens: int, mean: int) -> None:
    """One shard of random documents with exponential lengths, and its manifest."""
    random = np.random.default_rng(SEED)
    prefix = directory / "train" / "00000"
    prefix.parent.mkdir(parents=True)
    with IndexedWriter(prefix, np.dtype(np.uint16)) as writer:
        while writer.num_tokens < num_tokens:
            text = random.integers(0, SPECIAL.cls, 1 + int(random.exponential(mean)))
            writer.add_document(np.append(text, SPECIAL.eos))
        documents, tokens = writer.num_documents, writer.num_tokens
    pair = {"bin": bin_path(prefix), "idx": idx_path(prefix)}
    shard = Shard(
        name=prefix.name,
        input=0,
        documents=documents,
        tokens=tokens,
        **{f"{kind}_bytes": path.stat().st_size for kind, path in pair.items()},
        **{f"{kind}_sha256": sha256_of(path) for kind, path in pair.items()},
        origins_bytes=0,
        origins_sha256=sha256(b"").hexdigest(),
    )
    source = Input(
        path="random",
        unit="byte",
        bytes=0,
        parts=(),
        documents_in=documents,
        documents_out=documents,
        dropped={},
        repaired={},
    )
    manifest = Manifest(
        tokenizer=TokenizerRecord(hash="0" * 64, kind="bpe", vocab_size=NUM_IDS, special={}, probes=()),
        dtype="uint16",
        append_eos=True,
        splits=Splits(
            train=Split(shards=[shard], documents=documents, tokens=tokens),
            held_out=Split(shards=[], documents=0, tokens=0),
        ),
        inputs=(source,),
        options=Options(held_out=0.0, text_key="text", line_documents=False, shard_tokens=0),
        versions={},
    )
    save_manifest(directory, manifest)


if __name__ == "__main__":
    main()
