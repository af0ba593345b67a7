"""A run before its first step, as one thing to hand on."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_glm.config.schema import Config
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.planning.stages import Division
from megatron_glm.training.checkpoints.starting import Beginning
from megatron_glm.training.engines.compilation import Compilation
from megatron_glm.training.engines.engine import Engine
from megatron_glm.training.inputs import Inputs


@dataclass(frozen=True)
class PreparedRun:
    """What all that follows needs of a run.

    Attributes:
        config: as the user gave it.
        accumulation: micro-batches of a replica in a step.
        division: which layers each stage has.
        compilation: what of the model is compiled.
        engine: with the weights and moments that the run begins with.
        beginning: where it stands; its progress changes while it runs.
    """

    config: Config
    inputs: Inputs
    ranks: Ranks
    groups: Groups
    accumulation: int
    division: Division
    compilation: Compilation
    engine: Engine
    beginning: Beginning
