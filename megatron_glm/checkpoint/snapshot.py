"""What a rank saves, copied to the host's memory, so that training can go on while it is written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from megatron_glm.checkpoint.format import Fragment, Kind


class Snapshot:
    """Copies of the fragments of one moment, in memory that is kept for the next: 12 bytes a parameter saved here.

    To ask for this memory anew at every save would be slower, and could fail in the middle of a run.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[str, Kind, int], Tensor] = {}

    def take(self, fragments: Iterable[Fragment]) -> list[Fragment]:
        """The fragments with values of their own. The copies of the call before are written over."""
        taken = []
        for fragment in fragments:
            place = fragment.name, fragment.kind, fragment.start
            memory = self._memory.get(place)
            if memory is None or memory.shape != fragment.values.shape:
                # From locked memory a GPU copies at the full speed of the bus.
                values = fragment.values
                memory = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
                self._memory[place] = memory
            taken.append(replace(fragment, values=memory.copy_(fragment.values.detach(), non_blocking=True)))
        if any(tensor.is_pinned() for tensor in self._memory.values()):
            torch.cuda.synchronize()
        return taken
