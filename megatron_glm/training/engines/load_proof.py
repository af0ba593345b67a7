"""Proof that the ranks hold what was saved: no copy was missed, mixed up or rounded on the way.

A run that goes on from other weights than it believes shows a normal curve. So after every load the parameters are
hashed where they lie, whatever the layout, and compared with the hashes that were taken when they were saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from megatron_glm.checkpoint.fingerprint import added_up, fingerprints
from megatron_glm.checkpoint.format import Fragment
from megatron_glm.checkpoint.source import ValueSource
from megatron_glm.errors import CheckpointError, ConfigError
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.training.engines.replica_check import check_replicas
from megatron_glm.training.engines.stateful_engine import StatefulEngine


def prove_loaded(engine: StatefulEngine, source: ValueSource, *, step: int, groups: Groups, ranks: Ranks) -> None:
    """Compare what all ranks hold with the source: fp32 values, the weights computed with, every replica of them.

    Args:
        step: the last one made.

    Raises:
        CheckpointError: a parameter's values are not those of the source; on all ranks.
        ReplicaError: ranks that should hold the same do not; on all ranks.
    """
    saved = ranks.gather(source.fingerprints() if ranks.rank == 0 else None)[0]
    _compare(_over_ranks(engine.fragments(), ranks), saved, f"{source.path}: after loading, the ranks together hold")
    rounded, working = (_over_ranks(part, ranks) for part in (engine.rounded_fragments(), engine.working_fragments()))
    _compare(working, rounded, f"{source.path}: after loading, the forward pass reads")
    check_replicas(engine.copies(), step=step, groups=groups, ranks=ranks)


def prove_linked(engine: StatefulEngine, ranks: Ranks) -> None:
    """See that the fp32 weights of a fresh engine are where saves and loads look for them.

    DeepSpeed tells where they are, and under some settings it is wrong: training is right then, and what is saved is
    another parameter's values. A load alone does not show it, as it puts them back to where it took them from.

    Raises:
        ConfigError: they are elsewhere; on all ranks.
    """
    rounded, working = (_over_ranks(part, ranks) for part in (engine.rounded_fragments(), engine.working_fragments()))
    if different := sorted(key for key in working if working[key] != rounded.get(key)):
        raise ConfigError(
            f"deepspeed: a setting of this section puts the fp32 values of {len(different)} parameters elsewhere than"
            f" checkpoints look for them, the first is '{different[0]}'; remove it: nothing was trained"
        )


def _over_ranks(fragments: Iterable[Fragment], ranks: Ranks) -> dict[str, int]:
    return added_up(ranks.gather(fingerprints(fragments)))


def _compare(found: Mapping[str, int], wanted: Mapping[str, int], what: str) -> None:
    different = sorted(key for key in found.keys() | wanted.keys() if found.get(key, 0) != wanted.get(key, 0))
    if different:
        raise CheckpointError(
            f"{what} other values of {len(different)} of {len(wanted)} parameters and moments than it stores, the first"
            f" is '{different[0]}'; this is a defect of the program or of the machine: nothing was trained",
            of_machine=True,
        )
