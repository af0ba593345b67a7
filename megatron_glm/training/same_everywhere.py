"""Whether all processes of a job were given the same.

Each reads configuration, tokenizer and data from what its own machine sees. Where one machine has an old copy, replicas
train on other documents or at another rate, and no loss shows it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256

from megatron_glm.config.phases import all_sources, run_phases
from megatron_glm.config.schema import Config
from megatron_glm.errors import ConfigError
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.training.checkpoints.changed_settings import changed_settings

_SHOWN = 12  # characters of a hash
_OF_A_MACHINE = ("train.threads", "data.workers", "data.prefetch")  # which may have more cores than another


def check_same_everywhere(
    config: Config,
    ranks: Ranks,
    *,
    tokenizer_hash: str,
    source_lengths: Sequence[int],
    source_hashes: Sequence[str],
    held_out_windows: int,
) -> None:
    """Compare this process with the first one; every rank calls it.

    Args:
        source_lengths: stream tokens of each of `all_sources`.
        source_hashes: `source_fingerprints`; empty where another process of this machine tells them.

    Raises:
        ConfigError: the first thing that is not the same, and on which rank; on all ranks.
    """
    tree = config.model_dump(mode="json")
    digest = sha256(json.dumps(tree).encode()).hexdigest()
    fields = [field for field, _ in all_sources(run_phases(config))]
    contents = {"tokenizer.path": f"hash {tokenizer_hash[:_SHOWN]}", "held-out windows": str(held_out_windows)}
    contents |= {field: f"{length:,} stream tokens" for field, length in zip(fields, source_lengths, strict=True)}
    contents |= {f"documents of {f}": f"hash {h[:_SHOWN]}" for f, h in zip(fields, source_hashes, strict=False)}
    if len(set(ranks.gather(digest))) > 1:  # the whole is sent where it is needed
        _refuse_settings(tree, config, ranks)
    _refuse_contents(ranks.gather(contents))


def _refuse_settings(tree: Mapping, config: Config, ranks: Ranks) -> None:
    first = ranks.gather(tree if ranks.rank == 0 else None)[0]
    mine = [str(change) for change in changed_settings(first, config) if change.name not in _OF_A_MACHINE]
    for rank, changes in enumerate(ranks.gather(mine)):
        if changes:
            raise ConfigError(
                f"rank {rank} was given another configuration than rank 0: {'; '.join(changes)}; start all processes"
                " with the same file and overrides"
            )


def _refuse_contents(found: Sequence[Mapping[str, str]]) -> None:
    for name, value in found[0].items():
        for rank, theirs in enumerate(found):
            if (other := theirs.get(name, value)) != value:
                raise ConfigError(
                    f"{name}: rank 0 finds {value}, rank {rank} finds {other}; copy the same to every machine"
                )
