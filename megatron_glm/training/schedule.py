"""What changes in the course of a run: the learning rate of a step, the shrinking of the embedding gradient."""

from __future__ import annotations

import math

from megatron_glm.config.schema import EmbeddingGradient, Schedule


def learning_rate(schedule: Schedule, peak: float, total_steps: int, step: int) -> float:
    """Linear warm-up from 0 to the peak, decay to the floor, then constant.

    Args:
        peak: reached at step `warmup_steps`.
        total_steps: of the run; the decay ends there unless the schedule says otherwise.
        step: counted from 1, the first update.
    """
    if step <= schedule.warmup_steps:
        return peak * step / schedule.warmup_steps
    decay_steps = (schedule.decay_steps or total_steps) - schedule.warmup_steps
    # A run that is shorter than its warm-up has nothing to decay.
    progress = min(1.0, (step - schedule.warmup_steps) / decay_steps) if decay_steps > 0 else 1.0
    remaining = (1 + math.cos(math.pi * progress)) / 2 if schedule.decay == "cosine" else 1 - progress
    return peak * (schedule.floor + (1 - schedule.floor) * remaining)


def embedding_gradient_factor(settings: EmbeddingGradient, consumed_samples: int) -> float:
    """What the word table's gradient from the input is multiplied by in a step that begins after so many samples."""
    if settings.hold_samples is None:
        return settings.factor
    risen = min(1.0, max(0.0, (consumed_samples - settings.hold_samples) / settings.rise_samples))
    return settings.factor + (1.0 - settings.factor) * risen


def rewarmup_factor(steps_since_load: int, rewarmup_steps: int) -> float:
    """What the schedule's rate is multiplied by after a load: rises linearly to 1, at step `rewarmup_steps` of it."""
    return min(1.0, steps_since_load / rewarmup_steps) if rewarmup_steps else 1.0
