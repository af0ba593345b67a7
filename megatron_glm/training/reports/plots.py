"""The picture of a run: losses by objective, learning rate and gradient norm over the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_glm.files import atomic_file
from megatron_glm.training.reports.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = {"token": "tab:blue", "sentence": "tab:green", "document": "tab:orange"}
_EVENTS = {"not_finite": "tab:red", "spike": "tab:purple", "rewind": "black"}

Curve = tuple[list[int], list[float]]


def plot_metrics(metrics: Path, picture: Path) -> None:
    """Draw a metrics file as PNG; without any record there is nothing to draw, and no picture."""
    records = list(read_metrics(metrics))
    train = [record for record in records if record.get("kind") == "train"]
    validation = [record for record in records if record.get("kind") == "validation"]
    if not records:
        return
    # Not at the top: matplotlib takes half a second to import, and only rank 0 draws.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 9), layout="constrained")
    losses, rate, norm = figure.subplots(3, 1, sharex=True, height_ratios=(4, 1, 1))
    _draw_losses(losses, train, validation)
    _draw_entropy(losses, records)
    _mark_events(losses, records)
    losses.legend(frameon=False)
    _draw(rate, "learning rate", _curve(train, lambda record: record.get("learning_rate")))
    _draw(norm, "gradient norm", _curve(train, lambda record: record.get("gradient_norm")))
    norm.set_xlabel("step")
    with atomic_file(picture) as stream:
        FigureCanvasAgg(figure).print_png(stream)


def _draw_losses(axes: Axes, train: list[dict], validation: list[dict]) -> None:
    for name, curve in _by_objective(train).items():
        axes.plot(*curve, color=_COLOURS.get(name), linewidth=1.2, label=f"{name}, training")
    for name, curve in _by_objective(validation).items():
        axes.plot(*curve, "o--", color=_COLOURS.get(name), markersize=5, linewidth=0.8, label=f"{name}, held out")
    axes.set_ylabel("loss (nats per target token)")
    axes.grid(alpha=0.3)


def _draw_entropy(axes: Axes, records: list[dict]) -> None:
    """What prediction without context reaches: the line that a loss has to cross."""
    starts = [record for record in records if record.get("kind") == "start"]
    for name, entropy in (starts[-1]["unigram_entropy"] if starts else {}).items():
        axes.axhline(entropy, color=_COLOURS.get(name), linestyle=":", label=f"{name}, unigram entropy")


def _mark_events(axes: Axes, records: list[dict]) -> None:
    """Where something was wrong, or the run came back to."""
    for kind, colour in _EVENTS.items():
        for number, record in enumerate(record for record in records if record.get("kind") == kind):
            label = None if number else kind.replace("_", " ")
            axes.axvline(record["step"], color=colour, linewidth=0.8, alpha=0.6, label=label)


def _draw(axes: Axes, label: str, curve: Curve) -> None:
    axes.plot(*curve, color="tab:gray", linewidth=1.2)
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)


def _by_objective(records: list[dict]) -> dict[str, Curve]:
    names = dict.fromkeys(name for record in records for name in record.get("losses") or {})
    return {name: _curve(records, lambda record, name=name: (record.get("losses") or {}).get(name)) for name in names}


def _curve(records: Iterable[dict[str, Any]], value: Callable[[dict], float | None]) -> Curve:
    """Steps and values, where there is a value."""
    points = [(record["step"], y) for record in records if (y := value(record)) is not None]
    return [step for step, _ in points], [y for _, y in points]
