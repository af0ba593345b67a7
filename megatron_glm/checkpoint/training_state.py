"""state.json as the trainer writes it: checked before anybody relies on it, so that a wrong entry is told by name."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from megatron_glm.checkpoint.format import STATE
from megatron_glm.config.schema import Overrides
from megatron_glm.errors import CheckpointError
from megatron_glm.json_reading import LARGEST

Count = Annotated[int, Field(ge=0, le=LARGEST)]
Range = Annotated[list[Count], Field(min_length=2, max_length=2)]


class Part(BaseModel):
    """A group of entries; those that it does not know are newer than it, or told to people only."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Position(Part):
    """Where a run stands; a resume has to know all of it."""

    model_config = ConfigDict(extra="forbid")

    step: Count = 0
    samples: Count = 0
    tokens: Count = 0
    skipped: Count = 0
    skip_samples: list[Range] = []


class SavedLayout(Part):
    """Which processes saved."""

    data: Count | None = None
    pipeline: Count | None = None
    tensor: Count | None = None
    zero_stage: Count | None = None


class Validation(Part):
    """The newest validation; what was not finite is null."""

    step: Count | None = None
    loss: float | None = None
    losses: dict[str, float | None] = {}


class Rewarmup(Part):
    """The second warm-up of the learning rate: so many steps after a step."""

    steps: Count
    after: Count


class SavedSteering(Part):
    """Where the learning rate stands."""

    overrides: Overrides | None = None
    rewarmup: Rewarmup | None = None


class SavedMishaps(Part):
    """What judges the next steps."""

    losses: list[list[float | None]]
    phase: Count | None
    not_finite: Count
    spikes: Count
    rewinds: Count


class SavedLossScale(Part):
    """Of fp16."""

    scale: Annotated[float, Field(gt=0)]
    steps: int


class SavedModel(Part):
    """What is told or compared of the model's settings before the schema of a configuration reads all."""

    num_layers: Count | None = None
    hidden_size: Count | None = None
    num_attention_heads: Count | None = None


class SavedTrain(Part):
    """The same of the run's."""

    steps: Count | None = None
    seed: Count | None = None


class SavedConfig(Part):
    """The configuration; versions differ in all else."""

    model: SavedModel = SavedModel()
    train: SavedTrain = SavedTrain()


class TrainingState(Part):
    """All entries; whatever a version did not write is None."""

    saved_at: str | None = None
    progress: Position | None = None
    loss_scale: SavedLossScale | None = None
    steering: SavedSteering | None = None
    mishaps: SavedMishaps | None = None
    layout: SavedLayout | None = None
    stages: list[Range] | None = None
    config: SavedConfig | None = None
    tokenizer_hash: str | None = None
    source_lengths: list[Count] | None = None
    source_hashes: list[str] | None = None
    num_ids: Count | None = None
    validation: Validation | None = None
    versions: dict[str, str] | None = None

    @model_validator(mode="after")
    def _stages_have_each_layer_once(self) -> Self:
        bounds = self.stages or []
        if any(start >= stop for start, stop in bounds) or any(a[1] != b[0] for a, b in pairwise([[0, 0], *bounds])):
            raise ValueError(f"stages {bounds} are no division of layers")
        return self


def check_state(state: Mapping[str, Any], checkpoint: Path, *, needs: tuple[str, ...] = ()) -> TrainingState:
    """See that the entries are what the trainer writes.

    Args:
        needs: entries without which the caller can do nothing.

    Raises:
        CheckpointError: names the first one that is not.
    """
    where = checkpoint / STATE
    try:
        checked = TrainingState.model_validate(state)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part)
        raise CheckpointError(
            f"{where}: {place}{first['msg'].removeprefix('Value error, ')}; use another checkpoint"
        ) from error
    if lacking := [name for name in needs if getattr(checked, name) is None]:
        raise CheckpointError(f"{where}: lacks '{lacking[0]}', which a training run writes; use another checkpoint")
    return checked
