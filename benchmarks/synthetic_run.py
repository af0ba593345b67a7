"""A run of random ids on disk, with its tokenizer and configuration: what loaders are measured on."""

from __future__ import annotations

from pathlib import Path

import tokenizers

from benchmarks.sample_construction import NUM_IDS, SPECIAL, WINDOW, write_corpus
from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.schema import Config
from megatron_glm.data.manifest import Manifest, read_manifest, save_manifest
from megatron_glm.tokenizer.huggingface import HuggingFaceTokenizer


def write_run(directory: Path, *, tokens: int, mean: int, global_batch_size: int, micro_batch_size: int) -> Config:
    """Write shards and a tokenizer; the configuration trains all three objectives on windows of 512.

    Args:
        tokens: of the corpus.
        mean: tokens of a document, on average.
    """
    pieces = {f"<{id}>": id for id in range(NUM_IDS)}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=pieces, merges=[])).to_str().encode()
    tokenizer = HuggingFaceTokenizer("bpe", model, SPECIAL, prefix_space=False)
    tokenizer.save(directory / "tokenizer")
    write_corpus(directory / "data", tokens, mean)
    manifest = read_manifest(directory / "data").model_dump()
    manifest["tokenizer"]["hash"] = tokenizer.content_hash
    save_manifest(directory / "data", Manifest.model_validate(manifest))
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 1, "max_positions": WINDOW},
            "tokenizer": {"path": str(directory / "tokenizer")},
            "data": {"sources": [{"path": str(directory / "data")}], "window": WINDOW},
            "objective": {"token": 0.4, "sentence": 0.3, "document": 0.3},
            "optimizer": {"learning_rate": 1e-4},
            "train": {
                "output": str(directory / "run"),
                "steps": 1,
                "global_batch_size": global_batch_size,
                "micro_batch_size": micro_batch_size,
            },
        }
    )


def with_data(config: Config, **settings: int) -> Config:
    """The same configuration with other settings of its data section."""
    return config.model_copy(update={"data": config.data.model_copy(update=settings)})
