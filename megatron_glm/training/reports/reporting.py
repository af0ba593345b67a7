"""What a person reads during a run: the banner and one line an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


def not_finite_line(record: Mapping) -> str:
    """One line for a step that is left out, as its loss or gradient is not finite."""
    norm = record["gradient_norm"]
    return (
        f"step {record['step']} left out: loss {record['loss']:.3f}"
        + ("" if norm is None else f", gradient norm {norm:.3f}")
        + f", {record['in_a_row']} in a row; {_samples_text(record)}"
    )


def spike_line(record: Mapping) -> str:
    """One line for a step with a loss far above those before it."""
    done = "warning" if record["policy"] == "warn" else "left out"
    return (
        f"step {record['step']} {done}: loss {record['loss']:.3f}, expected {record['expected']:.3f},"
        f" {record['deviations']:.1f} typical deviations; {_samples_text(record)}"
    )


def rewind_line(record: Mapping) -> str:
    """One line for a run that goes back to its last checkpoint."""
    return (
        f"step {record['from_step']} → {record['step']}: back to {record['path']},"
        f" and without samples {_ranges_text(record['ranges'])}"
    )


def _samples_text(record: Mapping) -> str:
    documents = record["documents"]
    return f"samples {_ranges_text(record['ranges'])}" + (f", their documents in {documents}" if documents else "")


def _ranges_text(ranges: Sequence[Sequence[int]]) -> str:
    return ", ".join(f"{first} to {end - 1}" for first, end in ranges)


def stop_line(record: Mapping) -> str:
    """One line for a run that stops before its last step."""
    return f"stopping at step {record['step']}: {record['reason']}"


def override_line(record: Mapping) -> str:
    """One line for settings that the overrides file has changed."""
    now = ", ".join(f"{key} {record[key]:g}" for key in ("learning_rate", "floor") if record[key] is not None)
    return f"overrides from step {record['step'] + 1} on: {now or 'none, back to the configuration'}"


def straggler_line(record: Mapping) -> str:
    """One line for a rank that the others wait for."""
    return (
        f"warning: rank {record['rank']} on {record['host']} is slow:"
        f" {record['busy_seconds_per_step']:.3g} s a step outside collectives,"
        f" the median rank {record['median_busy_seconds_per_step']:.3g} s"
    )


def warning_line(record: Mapping) -> str:
    """One line for what does not stop a run."""
    return f"warning: {record['text']}"


def save_line(record: Mapping) -> str:
    """One line for a published checkpoint."""
    removed = record["removed"]
    return f"saved {record['path']}" + (f"; removed {', '.join(removed)}" if removed else "")


EVENT_LINES = {
    "save": save_line,
    "validation": validation_line,
    "skip": skip_line,
    "not_finite": not_finite_line,
    "spike": spike_line,
    "rewind": rewind_line,
    "stop": stop_line,
    "override": override_line,
    "straggler": straggler_line,
    "warning": warning_line,
}
