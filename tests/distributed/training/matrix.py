"""All layouts that up to four processes can have, a small selection of them, and slices of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from megatron_glm.config.schema import Config
from tests.distributed.training import cases

PROCESSES = 4


@dataclass(frozen=True)
class Case:
    """One layout; `recompute` is that of whole layers."""

    tensor: int
    pipeline: int
    data: int
    accumulation: int
    stage: int
    sequence: bool
    recompute: bool

    @property
    def processes(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def is_possible(self) -> bool:
        if self.processes > PROCESSES or (self.sequence and self.tensor == 1):
            return False
        return self.pipeline == 1 or self.stage < 2

    def config(self, layers: int) -> Config:
        """Its configuration; every case makes a step of the same samples."""
        return cases.config(
            stage=self.stage,
            micro=cases.GLOBAL_BATCH // self.data // self.accumulation,
            tensor=self.tensor,
            pipeline=self.pipeline,
            sequence=self.sequence,
            recompute="full" if self.recompute else "none",
            layers=layers,
        )

    def covers(self) -> set[tuple]:
        """What a selection must have once: every ZeRO stage with each size of each axis, and some other pairs."""
        sizes = {"tp": self.tensor, "pp": self.pipeline, "dp": self.data, "accumulation": self.accumulation}
        options = {"sequence": self.sequence, "recompute": self.recompute}
        pairs = {(name, value, self.stage) for name, value in (sizes | options).items()}
        return pairs | {(self.tensor, self.pipeline), (self.sequence, self.recompute)}

    def __str__(self) -> str:
        options = "-sp" * self.sequence + "-recompute" * self.recompute
        sizes = f"tp{self.tensor}-pp{self.pipeline}-dp{self.data}-acc{self.accumulation}-zero{self.stage}"
        return sizes + options


def possible_cases() -> list[Case]:
    """tp × pp × dp × accumulation × ZeRO × sequence parallelism × recomputation, what is possible of it."""
    axes = ((1, 2, 4), (1, 2), (1, 2), (1, 2, 4), (0, 1, 2, 3), (False, True), (False, True))
    return [case for values in product(*axes) if (case := Case(*values)).is_possible]


def covering_cases(cases: Sequence[Case]) -> list[Case]:
    """A few of the cases that together cover what all of them do, chosen greedily, cheap ones first."""
    missing, chosen = set().union(*(case.covers() for case in cases)), []
    while missing:
        best = max(cases, key=lambda case: (len(case.covers() & missing), -case.processes))
        chosen.append(best)
        missing -= best.covers()
    return chosen
