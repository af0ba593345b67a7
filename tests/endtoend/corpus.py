"""A toy corpus with its tokenizer, shards and configuration: a whole run in seconds."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import yaml

from data_tools import preprocess, train_tokenizer

_SUBJECTS = ("the old cat", "a red dog", "my small bird", "her good friend", "this big house", "one quiet river")
_VERBS = ("sat on", "looked at", "ran around", "found", "remembered", "was near")
_OBJECTS = ("the mat", "a long road", "the green hill", "some warm bread", "the open door", "an early train")


@dataclass(frozen=True)
class Corpus:
    """Directories of a toy corpus, and the configuration that trains on it."""

    root: Path
    config: Path


def write_text(path: Path, documents: int, seed: int = 0) -> Path:
    """Documents of a few sentences, parted by blank lines."""
    rng = random.Random(seed)

    def sentence() -> str:
        return f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}.".capitalize()

    texts = [" ".join(sentence() for _ in range(rng.randint(1, 12))) for _ in range(documents)]
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return path


def make_corpus(root: Path, **train: object) -> Corpus:
    """Text → tokenizer → shards → configuration, through the commands a user would run."""
    text = write_text(root / "text.txt", documents=300)
    run(train_tokenizer.main, "--input", text, "--vocab-size", 320, "--output", root / "tokenizer")
    options = ("--held-out", 0.1, "--workers", 1)
    run(preprocess.main, "--input", text, "--tokenizer", root / "tokenizer", "--output", root / "data", *options)
    config = {
        "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "max_positions": 64},
        "tokenizer": {"path": str(root / "tokenizer")},
        "data": {"sources": [{"path": str(root / "data")}], "window": 48},
        "objective": {"token": 0.4, "sentence": 0.2, "document": 0.4},
        "optimizer": {"learning_rate": 3e-3},
        "schedule": {"warmup_steps": 5},
        "train": {
            "output": str(root / "run"),
            "steps": 40,
            "global_batch_size": 8,
            "micro_batch_size": 2,
            "log_interval": 1,
            "eval_interval": 20,
            "eval_samples": 8,
            "threads": 1,
        }
        | train,
        "parallel": {"zero_stage": 2},
        "checkpoint": {"save_interval": 20},
    }
    path = root / "config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return Corpus(root, path)


def run(main, *arguments: object) -> None:
    code = main([str(argument) for argument in arguments])
    assert code == 0, f"{main.__module__} ended with {code}"
