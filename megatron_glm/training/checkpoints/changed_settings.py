"""What a continued run does otherwise than the one that saved, and what of it needs permission.

A setting that decides what is learned must not change by accident: an edited file or another default would show as a
strange curve, weeks later. A setting of where and how fast the same is computed may change freely.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from megatron_glm.config.loading import config_from_tree
from megatron_glm.config.schema import Config
from megatron_glm.errors import CheckpointError, ConfigError

_OF_EACH_START = (
    "checkpoint.resume",
    "checkpoint.strict",
    "checkpoint.allow_changes",
    "checkpoint.init_from",
    "train.output",
)

# Settings and sections that decide what is learned. Sources, windows and objectives are not among them, as they have
# rules of their own (same_data.py), nor is train.steps, whose change is what most resumes are for.
GUARDED = (
    "model",
    "optimizer",
    "schedule",
    "data.isolate_documents",
    "train.global_batch_size",
    "train.batch_ramp",
    "train.embedding_gradient",
    "train.label_smoothing",
    "train.loss",
    "train.precision",
    "deepspeed",
)
FREE = (
    "model.initializer_range",  # nothing is initialised any more
    "model.num_layers",  # of these, the shapes of the parameters tell
    "model.hidden_size",
    "model.max_positions",
    "model.vocab_size",
    "optimizer.fused",  # whose code computes the same
    "schedule.rewarmup_steps",  # it is about the resume itself
)
_DECAY_END = "schedule.decay_steps"


@dataclass(frozen=True)
class Change:
    """One setting that is not what it was."""

    name: str
    before: Any
    now: Any

    @property
    def needs_permission(self) -> bool:
        return _is_within(self.name, GUARDED) and not _is_within(self.name, FREE)

    def __str__(self) -> str:
        return f"{self.name} {self.before} → {self.now}"


def changed_settings(saved: Mapping[str, Any], config: Config) -> tuple[Change, ...]:
    """All that differs, but for where a run writes and how it starts."""
    # Through the schema: settings that are newer than the checkpoint had their defaults.
    before, now = (_flat(each.model_dump(mode="json")) for each in (config_from_tree(saved), config))
    if before[_DECAY_END] or now[_DECAY_END]:  # where both leave it to train.steps, that is the change
        for settings in (before, now):
            settings[_DECAY_END] = settings[_DECAY_END] or settings["train.steps"]
    return tuple(
        Change(name, before.get(name), now.get(name))
        for name in dict.fromkeys([*now, *before])
        if before.get(name) != now.get(name) and name not in _OF_EACH_START
    )


def check_changes(where: Path, changes: Sequence[Change], allowed: Sequence[str]) -> None:
    """Refuse what was not allowed.

    Args:
        where: the checkpoint.
        allowed: settings or sections: checkpoint.allow_changes.

    Raises:
        CheckpointError: shows each change, and how to allow them.
        ConfigError: an entry of `allowed` is no setting.
    """
    for name in allowed:
        if not _is_setting(name):
            raise ConfigError(f"checkpoint.allow_changes: '{name}' is no setting and no section (such as optimizer)")
    refused = [change for change in changes if change.needs_permission and not _is_within(change.name, allowed)]
    if refused:
        names = ",".join([*allowed, *(change.name for change in refused)])
        raise CheckpointError(
            f"{where}: saved by a run with other settings: {'; '.join(map(str, refused))}; set them back, or allow"
            f" them with checkpoint.allow_changes=[{names}]"
        )


def _is_within(name: str, sections: Iterable[str]) -> bool:
    return any(name == section or name.startswith(f"{section}.") for section in sections)


def _is_setting(name: str) -> bool:
    section: Any = Config
    for key in name.split("."):
        if key not in getattr(section, "model_fields", {}):
            return section is dict  # what is below a mapping is not ours to know
        section = section.model_fields[key].annotation
        section = dict if getattr(section, "__origin__", None) is dict else section
    return True


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted name; a list is one value, without what its items leave open."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": _given(value)}
    return flat


def _given(value: Any) -> Any:
    if isinstance(value, list):
        return [_given(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _given(item) for key, item in value.items() if item is not None}
    return value
