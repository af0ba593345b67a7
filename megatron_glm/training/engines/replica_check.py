"""Whether ranks that hold the same values still do.

Replicas compute alike for months; a flipped bit, a faulty GPU or a race makes one of them another model, which no
loss shows at first. So everything held twice is compared by hash.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_glm.errors import UserError
from megatron_glm.model.sizes import WORD_TABLE
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import DistributedRanks, Ranks


class ReplicaError(UserError):
    """Ranks that should hold the same values do not; raised by all ranks alike."""


@dataclass(frozen=True)
class Copy:
    """Values that other ranks may hold too.

    Attributes:
        parameter: the name.
        part: which elements, and of what; copies of one parameter and part must be equal.
        is_working: what the forward pass reads, not what the optimizer updates.
    """

    parameter: str
    part: str
    is_working: bool
    values: Tensor


def check_replicas(copies: Iterable[Copy], *, step: int, groups: Groups, ranks: Ranks) -> None:
    """Compare what this rank holds with its replicas and with the ranks that share its layers.

    Args:
        step: the last one made.
        ranks: all processes of the job; all of them call this.

    Raises:
        ReplicaError: the first parameter that differs, and the ranks that hold each value of it.
    """
    copies = list(copies)
    hashes = {f"{copy.parameter} ({copy.part})": content_hash(copy.values) for copy in copies}
    # All comparisons, whatever the first one finds: other ranks wait in the later ones.
    found = [_difference(hashes, groups.data), _difference(hashes, groups.tensor)]
    if groups.ends is not None:
        # The two stages' gradients are averaged in buckets of their own: only the table itself is kept alike.
        table = [
            f"{copy.parameter} ({copy.part})" for copy in copies if copy.is_working and copy.parameter == WORD_TABLE
        ]
        found.append(_difference({name: hashes[name] for name in table}, groups.ends))
    names = [name for of_rank in ranks.gather(found) for name in of_rank if name]
    if names:
        holders = _holders(hashes.get(names[0]), ranks)
        raise ReplicaError(
            f"step {step}: parameter {names[0]} is not the same on {holders}; stopped, and nothing was saved after it:"
            " continue from the last checkpoint, and have these ranks' devices checked if it comes again",
            of_machine=True,
        )


def content_hash(values: Tensor) -> str:
    """A hash of the bits of a tensor."""
    data = values.detach().to("cpu").contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(data.numpy(), digest_size=8).hexdigest()


def _difference(hashes: Mapping[str, str], group: dist.ProcessGroup) -> str | None:
    """The first of the names under which another rank of the group holds something else."""
    if dist.get_world_size(group) == 1:
        return None
    held = DistributedRanks(group).gather(dict(hashes))
    return next((name for name in hashes if len({theirs.get(name, hashes[name]) for theirs in held}) > 1), None)


def _holders(value: str | None, ranks: Ranks) -> str:
    """Which ranks hold which value: "ranks 0, 2 as on rank 1"."""
    holders = defaultdict(list)
    for rank, theirs in enumerate(ranks.gather(value)):
        if theirs is not None:
            holders[theirs].append(str(rank))
    shown = (
        "rank " + numbers[0] if len(numbers) == 1 else "ranks " + ", ".join(numbers) for numbers in holders.values()
    )
    return " as on ".join(shown)
