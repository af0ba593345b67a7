"""What a person reads during a run: the banner and one line an interval."""

from __future__ import annotations

from collections.abc import Mapping

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def short_number(value: float) -> str:
    """Three significant digits with a unit: 1234567 -> '1.23M'."""
    for factor, unit in _UNITS:
        # 999,500 rounds to 1.00M, not to 1000k
        if abs(value) >= factor * 0.9995:
            scaled = value / factor
            digits = 2 if abs(scaled) < 9.995 else 1 if abs(scaled) < 99.95 else 0
            return f"{scaled:.{digits}f}{unit}"
    return f"{value:.0f}"


def short_time(seconds: float) -> str:
    """The two largest units: '32d 01h', '2h 05m', '3m 20s'."""
    seconds = round(seconds)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}h"
    if hour:
        return f"{hour}h {minute:02}m"
    return f"{minute}m {second:02}s"


def losses_text(loss: float, by_objective: Mapping[str, float]) -> str:
    """'2.314 (token 1.920, document 2.710)'."""
    parts = ", ".join(f"{name} {value:.3f}" for name, value in by_objective.items())
    return f"{loss:.3f} ({parts})"


def step_line(record: Mapping, *, steps: int, eta_seconds: float) -> str:
    """One line for a record of the metrics file."""
    return (
        f"step {record['step']}/{steps}"
        f"  samples {short_number(record['samples'])}"
        f"  tokens {short_number(record['tokens'])}"
        f"  loss {losses_text(record['loss'], record['losses'])}"
        f"  lr {record['learning_rate']:.2e}"
        f"  grad {record['gradient_norm']:.2f}"
        f"  {short_number(record['tokens_per_second'])} tok/s"
        f"  data {record['data_wait']:.1%}"
        f"  eta {short_time(eta_seconds)}"
    )


def skip_line(record: Mapping) -> str:
    """One line for a step whose update was skipped."""
    return (
        f"step {record['step']} skipped: overflow,"
        f" loss scale {record['loss_scale']:.0f} → {record['next_loss_scale']:.0f}"
    )


def validation_line(record: Mapping) -> str:
    """One line for a validation record."""
    return (
        f"validation at step {record['step']}"
        f"  loss {losses_text(record['loss'], record['losses'])}"
        f"  targets {short_number(sum(record['targets'].values()))}"
        f"  {record['seconds']:.1f} s"
    )
