"""Where a run stands: everything that a resume needs to know of its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from megatron_glm.data.skip_list import SkipList


@dataclass
class Progress:
    """Where a run stands: all of its data state.

    Attributes:
        samples: global index of the next sample, so those that were consumed or left out.
        skipped: steps whose update was not made: an fp16 overflow, or one of mishaps.py.
        skip_samples: ranges [first, end) of samples that are left out.
    """

    step: int = 0
    samples: int = 0
    tokens: int = 0
    skipped: int = 0
    skip_samples: Sequence[Sequence[int]] = ()

    @property
    def skips(self) -> SkipList:
        """What is left out, as a loader takes it."""
        return SkipList.of(self.skip_samples)

    @property
    def updates(self) -> int:
        """Updates of the weights so far."""
        return self.step - self.skipped

    def position(self) -> dict[str, int]:
        """What every metrics record begins with."""
        return {"step": self.step, "samples": self.samples, "tokens": self.tokens}

    def become(self, other: Progress, *, skip_samples: Sequence[Sequence[int]]) -> None:
        """Stand where another does, with other samples left out from there on."""
        for field in fields(self):
            setattr(self, field.name, getattr(other, field.name))
        self.skip_samples = skip_samples
