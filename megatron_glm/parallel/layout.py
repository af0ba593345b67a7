"""Which part of the model and of the batch each process has: data × pipeline × tensor.

The ranks of one tensor-parallel group are neighbours, so that the most talkative group stays on a node;
then come the replicas, and the stages of the pipeline lie farthest apart. That is the order of DeepSpeed's
own pipeline topology.
"""

from __future__ import annotations

from dataclasses import dataclass

from megatron_glm.errors import ConfigError


@dataclass(frozen=True)
class Coordinates:
    """A process's place on each axis."""

    data: int
    pipeline: int
    tensor: int


@dataclass(frozen=True)
class Layout:
    """The sizes of the three axes; their product is the number of processes."""

    data: int = 1
    pipeline: int = 1
    tensor: int = 1

    @classmethod
    def of(cls, processes: int, *, tensor: int = 1, pipeline: int = 1) -> Layout:
        """The layout of a job; what tensor and pipeline leave over are replicas.

        Raises:
            ConfigError: the processes do not divide.
        """
        stage = tensor * pipeline
        if processes % stage:
            below = processes // stage * stage
            nearest = f"start {below} or {below + stage}" if below else f"start at least {stage}"
            raise ConfigError(
                f"parallel.tensor: {tensor} × parallel.pipeline {pipeline} = {stage} does not divide "
                f"{processes} processes; {nearest} (on one machine: deepspeed --num_accelerators {below + stage} …)"
            )
        return cls(processes // stage, pipeline, tensor)

    @property
    def processes(self) -> int:
        return self.data * self.pipeline * self.tensor

    def coordinates(self, rank: int) -> Coordinates:
        """Where a rank stands, 0 <= rank < processes."""
        rest, tensor = divmod(rank, self.tensor)
        pipeline, data = divmod(rest, self.data)
        return Coordinates(data, pipeline, tensor)

    def rank(self, place: Coordinates) -> int:
        """The rank that stands at a place."""
        return (place.pipeline * self.data + place.data) * self.tensor + place.tensor

    def tensor_groups(self) -> list[list[int]]:
        """The ranks that share each layer; all groups, in order."""
        return [[start + i for i in range(self.tensor)] for start in range(0, self.processes, self.tensor)]

    def data_groups(self) -> list[list[int]]:
        """The ranks that hold the same parameters for different samples."""
        return [
            [self.rank(Coordinates(data, pipeline, tensor)) for data in range(self.data)]
            for pipeline in range(self.pipeline)
            for tensor in range(self.tensor)
        ]

    def pipeline_groups(self) -> list[list[int]]:
        """The ranks through which a micro-batch passes, first stage first."""
        return [
            [self.rank(Coordinates(data, pipeline, tensor)) for pipeline in range(self.pipeline)]
            for data in range(self.data)
            for tensor in range(self.tensor)
        ]

    def end_groups(self) -> list[list[int]]:
        """The first and the last rank of each pipeline: both hold the word table."""
        return [[ranks[0], ranks[-1]] for ranks in self.pipeline_groups()] if self.pipeline > 1 else []
