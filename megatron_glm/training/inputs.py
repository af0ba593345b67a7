"""What a run reads: tokenizer, training samples and held-out windows."""

from __future__ import annotations

from functools import partial

from megatron_glm.config.schema import Config
from megatron_glm.data.batch import collate
from megatron_glm.data.dataset import HeldOutDataset, SampleDataset
from megatron_glm.data.fingerprint import source_fingerprints
from megatron_glm.planning.rows import row_capacity, row_multiple
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.loading import load_tokenizer


class Inputs:
    """The inputs of a configuration, opened by one process.

    Args:
        tells_sources: whether this process says what tells the sources from others; it reads them for that.

    Attributes:
        source_hashes: `source_fingerprints`; empty where another process of this machine tells them.
        row_options: of `collate`.

    Raises:
        TokenizerError, DataError, ConfigError: one of them cannot be read, or they do not fit each other.
    """

    def __init__(self, config: Config, *, tells_sources: bool):
        self.tokenizer: Tokenizer = load_tokenizer(config.tokenizer.path)
        self.samples = SampleDataset.open(config, self.tokenizer)
        self.held_out = HeldOutDataset.open(config, self.tokenizer)
        self.source_hashes = source_fingerprints(config) if tells_sources else ()
        self.row_options = {
            "pad_id": self.tokenizer.special.eos,
            "multiple": row_multiple(config),
            "capacity": row_capacity(config),
        }
        self.collate = partial(collate, **self.row_options)
