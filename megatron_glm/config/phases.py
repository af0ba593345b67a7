"""What holds from which sample on: `data.phases`, resolved.

A phase names only what it changes; the rest stays as it was in the phase before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from megatron_glm.config.explaining import explain
from megatron_glm.config.schema import Config, Objective, Phase, Source
from megatron_glm.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """What holds in a phase."""

    sources: tuple[Source, ...]
    window: int
    objective: Objective


@dataclass(frozen=True)
class RunPhase:
    """A stretch of a run."""

    first_sample: int
    settings: Settings
    field: str  # its place in the configuration
    sources_field: str  # that of its sources, which may be those of an earlier phase
    objective_field: str


def run_phases(config: Config) -> tuple[RunPhase, ...]:
    """The phases of a run, the first of which begins at sample 0 with `data.sources`, `data.window` and `objective`.

    Raises:
        ConfigError: phases out of order, one that changes nothing or cannot be, a source that is listed twice.
    """
    data = config.data
    first = RunPhase(0, Settings(data.sources, data.window, config.objective), "data", "data.sources", "objective")
    phases = [first]
    _check_sources(first)
    for number, phase in enumerate(data.phases):
        phases.append(_next_phase(phases[-1], phase, f"data.phases[{number}]", config.model.max_positions))
    return tuple(phases)


def identity(source: Source) -> tuple[Path | None, tuple[str, ...] | None]:
    """What makes a source the same in all phases: where its training documents lie, not its weight."""
    return source.path and Path(source.path), source.prefixes


def all_sources(phases: Sequence[RunPhase]) -> tuple[tuple[str, Source], ...]:
    """The sources of all phases in the order of their first appearance, each with its place in the configuration."""
    found: dict[tuple, tuple[str, Source]] = {}
    for phase in phases:
        for place, source in enumerate(phase.settings.sources):
            found.setdefault(identity(source), (f"{phase.sources_field}[{place}]", source))
    return tuple(found.values())


def _next_phase(before: RunPhase, phase: Phase, field: str, max_positions: int) -> RunPhase:
    if phase.from_sample <= before.first_sample:
        raise ConfigError(
            f"{field}.from_sample: {phase.from_sample} is not after {before.first_sample}, where the phase before"
            " begins; list the phases by their first samples"
        )
    window = phase.window or before.settings.window
    if max_positions < max(2, window - 1):
        raise ConfigError(
            f"{field}.window: {window} needs model.max_positions of at least {max(2, window - 1)}, not {max_positions}"
        )
    settings = Settings(
        phase.sources or before.settings.sources, window, _merged(before.settings.objective, phase, field)
    )
    if settings == before.settings:
        raise ConfigError(
            f"{field}: changes nothing from sample {phase.from_sample} on; give sources, window or objective, or"
            " leave it out"
        )
    after = RunPhase(
        phase.from_sample,
        settings,
        field,
        f"{field}.sources" if phase.sources else before.sources_field,
        f"{field}.objective" if phase.objective else before.objective_field,
    )
    _check_sources(after)
    return after


def _merged(objective: Objective, phase: Phase, field: str) -> Objective:
    try:
        merged = Objective.model_validate({**objective.model_dump(), **phase.objective})
    except ValidationError as error:
        raise ConfigError(explain(error, Objective, f"{field}.objective.")) from None
    if merged.task_masks != objective.task_masks:  # a release could not say which mask stands for what
        raise ConfigError(
            f"{field}.objective.task_masks: {merged.task_masks} is not that of the run, {objective.task_masks}; it is"
            " the same in all phases: leave it out"
        )
    return merged


def _check_sources(phase: RunPhase) -> None:
    seen: dict[tuple, int] = {}
    for place, source in enumerate(phase.settings.sources):
        if (earlier := seen.setdefault(identity(source), place)) != place:
            raise ConfigError(
                f"{phase.sources_field}[{place}]: '{source.name}' is {phase.sources_field}[{earlier}] already;"
                " list it once, with the weights added"
            )
