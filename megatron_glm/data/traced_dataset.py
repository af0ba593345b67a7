"""The training samples together with where they come from, for people who look at one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron_glm.data.dataset import SampleDataset
from megatron_glm.objective.sample import Objective, Sample


@dataclass(frozen=True)
class Origin:
    """The window of a sample: stream tokens [start, stop) of a source."""

    source: int
    start: int
    stop: int


class TracedDataset(SampleDataset):
    """A SampleDataset that tells a sample's window, and shows it under any objective."""

    def trace(self, index: int, objective: Objective | None = None) -> tuple[Origin, Sample]:
        """A sample and its window; with an objective as an evaluation would make it, else as it is trained."""
        origin = Origin(*(int(place[0]) for place in self._order.locate(np.array([index]))))
        window = self._streams[origin.source].pieces(origin.start, origin.stop)
        return origin, self._mixture.sample(index, window, objective)
