"""Whether a continued run sees the samples behind its checkpoint as the one that trained on them did.

The order of all samples follows from the configuration, so what has been consumed must not change: a source's place in
its stream would be another, and tokens would be repeated or lost. What is to change from now on is a phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import yaml

from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.phases import RunPhase, Settings, all_sources, identity, run_phases
from megatron_glm.config.schema import Config
from megatron_glm.data.blend import normalized
from megatron_glm.errors import CheckpointError


def check_same_data(
    checkpoint: CheckpointReader, config: Config, *, source_lengths: Sequence[int], source_hashes: Sequence[str]
) -> None:
    """Refuse other sources, windows or objectives for the samples that were consumed.

    A source may have moved: it is known by its documents, where its path is new.

    Args:
        source_lengths: stream tokens of each of `all_sources`.
        source_hashes: `source_fingerprints` of them.

    Raises:
        CheckpointError: with the phase to write instead.
    """
    consumed = checkpoint.state["progress"]["samples"]
    if consumed == 0:
        return
    if "source_lengths" not in checkpoint.state:
        raise CheckpointError(
            f"{checkpoint.path}: written by a version that took the windows of an epoch in another order; finish the"
            " run with that version, or start anew in another train.output"
        )
    saved = run_phases(config_from_tree(checkpoint.state["config"]))
    now = run_phases(config)
    before, after = ([phase for phase in phases if phase.first_sample < consumed] for phases in (saved, now))
    moved = _places(now)
    for then, phase in zip(before, after, strict=False):
        if name := _difference((then, _places(saved)), (phase, moved)):
            raise _refusal(checkpoint, name, before[-1].settings, now, consumed)
    if len(before) != len(after):
        name = max(before, after, key=len)[min(len(before), len(after))].field
        raise _refusal(checkpoint, name, before[-1].settings, now, consumed)
    _check_sources(checkpoint, saved, now, before, source_lengths, source_hashes)


def _places(phases: Sequence[RunPhase]) -> dict:
    return {identity(source): place for place, (_, source) in enumerate(all_sources(phases))}


def _difference(then: tuple[RunPhase, dict], now: tuple[RunPhase, dict]) -> str | None:
    """The first setting in which two phases are not the same."""
    (old, old_places), (new, new_places) = then, now
    if old.first_sample != new.first_sample:
        return f"{new.field}.from_sample"
    if _turns(old, old_places) != _turns(new, new_places):
        return new.sources_field
    if old.settings.window != new.settings.window:
        return f"{new.field}.window"
    return new.objective_field if old.settings.objective != new.settings.objective else None


def _turns(phase: RunPhase, places: dict) -> list[tuple[int, Fraction]]:
    sources = phase.settings.sources
    shares = normalized([source.weight for source in sources])  # 1 and 2 are 10 and 20
    return [(places[identity(source)], share) for source, share in zip(sources, shares, strict=True)]


def _check_sources(
    checkpoint: CheckpointReader,
    saved: Sequence[RunPhase],
    now: Sequence[RunPhase],
    consumed: Sequence[RunPhase],
    lengths: Sequence[int],
    hashes: Sequence[str],
) -> None:
    """Of the sources that were read, each must have its documents, and a path of its own or a new one."""
    saved_lengths = checkpoint.state["source_lengths"]
    saved_hashes = checkpoint.state.get("source_hashes", hashes)  # a checkpoint of before can only tell lengths
    known = _places(saved)
    for place, ((_, old), (field, new)) in enumerate(zip(all_sources(saved), all_sources(now), strict=False)):
        if place not in {known[identity(source)] for phase in consumed for source in phase.settings.sources}:
            continue
        if place >= min(len(saved_lengths), len(saved_hashes)):
            raise CheckpointError(f"{checkpoint.path}: its state knows fewer sources than its configuration has")
        if saved_lengths[place] != lengths[place]:
            raise CheckpointError(
                f"{checkpoint.path}: {field}: '{new.name}' has {lengths[place]:,} stream tokens, but '{old.name}' had"
                f" {saved_lengths[place]:,} when it was trained on: the order would be another; give the data it was"
                " trained on, and new data as a source of a phase"
            )
        if identity(old) != identity(new) and identity(new) in known:
            raise CheckpointError(
                f"{checkpoint.path}: {field}: '{new.name}' stands where '{old.name}' was trained on; put the sources"
                " back in their order"
            )
        if saved_hashes[place] != hashes[place]:
            raise CheckpointError(
                f"{checkpoint.path}: {field}: '{new.name}' holds other documents than '{old.name}' did when it was"
                " trained on, though as many tokens; give the data it was trained on, and new data as a source of a"
                " phase"
            )


def _refusal(
    checkpoint: CheckpointReader, name: str, before: Settings, now: Sequence[RunPhase], consumed: int
) -> CheckpointError:
    wanted = next(phase.settings for phase in reversed(now) if phase.first_sample <= consumed)
    phase = {"from_sample": consumed, **_changes(before, wanted)}
    remedy = "set it back"
    if len(phase) > 1:
        shown = yaml.safe_dump(phase, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6).strip()
        remedy += f", and add to data.phases: {shown}"
    return CheckpointError(
        f"{checkpoint.path}: {name} differs from what its {consumed:,} samples were trained with; {remedy}"
    )


def _changes(before: Settings, wanted: Settings) -> dict[str, Any]:
    """What a phase has to give to make `wanted` of `before`."""
    changes: dict[str, Any] = {}
    if wanted.sources != before.sources:
        changes["sources"] = [source.model_dump(mode="json", exclude_none=True) for source in wanted.sources]
    if wanted.window != before.window:
        changes["window"] = wanted.window
    objective = before.objective.model_dump()
    if other := {key: value for key, value in wanted.objective.model_dump().items() if objective[key] != value}:
        changes["objective"] = other
    return changes
