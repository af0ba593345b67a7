"""What a demo run reached, read from the files that it left."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from megatron_glm.training.reports.metrics import read_metrics
from megatron_glm.training.reports.reporting import short_number

REQUIRED_GAIN_NATS = 1.0  # below the unigram entropy: what a model cannot reach without reading the context


@dataclass(frozen=True)
class Paths:
    """Where the parts of a demo lie."""

    root: Path

    corpus = property(lambda self: self.root / "corpus.jsonl")
    tokenizer = property(lambda self: self.root / "tokenizer")
    data = property(lambda self: self.root / "data")
    run = property(lambda self: self.root / "run")
    metrics = property(lambda self: self.run / "metrics.jsonl")
    plot = property(lambda self: self.run / "loss.png")
    release = property(lambda self: self.root / "release")
    generations = property(lambda self: self.root / "generations.json")
    memory = property(lambda self: self.root / "stages")


def gain_nats(paths: Paths) -> float:
    """How far the last validation loss of the token objective lies below the unigram entropy."""
    records = list(read_metrics(paths.metrics))
    start = next(record for record in records if record["kind"] == "start")
    validation = [record for record in records if record["kind"] == "validation"][-1]
    return start["unigram_entropy"]["token"] - validation["losses"]["token"]


def summary(paths: Paths) -> str:
    """The closing lines of a demo."""
    records = list(read_metrics(paths.metrics))
    start = next(record for record in records if record["kind"] == "start")
    steps = [record for record in records if record["kind"] == "train"]
    validation = [record for record in records if record["kind"] == "validation"][-1]
    seconds = sum(record["tokens"] / record["tokens_per_second"] for record in _differences(steps))
    lines = [
        f"tokens seen   {short_number(steps[-1]['tokens'])} in {steps[-1]['step']} steps,"
        f" {short_number(steps[-1]['tokens'] / seconds)} tok/s",
        "loss          first    last     validation  unigram entropy   (nats a target token)",
    ]
    for name, entropy in start["unigram_entropy"].items():
        lines.append(
            f"  {name:<11} {steps[0]['losses'][name]:<8.3f} {steps[-1]['losses'][name]:<8.3f}"
            f" {validation['losses'][name]:<11.3f} {entropy:.3f}"
        )
    lines += [
        f"gain          {gain_nats(paths):.2f} nats below the unigram entropy (token objective;"
        f" at least {REQUIRED_GAIN_NATS:.1f} is demanded)",
        f"release       {paths.release}",
        f"metrics       {paths.metrics}",
        f"loss curve    {paths.plot}",
        "generations",
    ]
    for generation in json.loads(paths.generations.read_text(encoding="utf-8")):
        lines += [f"  {generation['prompt']}", f"  → {' '.join(generation['text'].split())}"]
    return "\n".join(lines)


def _differences(steps: list[dict]) -> list[dict]:
    """The records with the tokens of their own interval in place of the total."""
    before = [0, *(record["tokens"] for record in steps)]
    return [{**record, "tokens": record["tokens"] - earlier} for record, earlier in zip(steps, before, strict=False)]
