"""The attention mask of a sample as a picture."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from megatron_glm.files import atomic_file
from megatron_glm.objective.sample import Sample

if TYPE_CHECKING:
    from megatron_glm.tokenizer.base import Tokenizer

_LEGEND = (  # what a query sees of a key; the order is that of `classify`
    ("hidden", "#f4f4f4"),
    ("A sees A", "#4c78a8"),
    ("B sees A", "#9ecae9"),
    ("B sees its own span", "#e45756"),
    ("B sees an earlier span", "#f2a19f"),
)
_NAMED_TOKENS = 100  # more names than these are too small to read
_INCHES_PER_TOKEN = 0.16
_DPI = 150


def classify(sample: Sample) -> np.ndarray:
    """Which entry of the legend each query (row) and key (column) is: uint8 [T, T]."""
    T = len(sample.input_ids)
    kinds = np.zeros((T, T), np.uint8)
    span = np.cumsum(sample.block_position_ids == 1)
    for start, length_a, end in sample.segments.tolist():
        b = start + length_a
        kinds[start:b, start:b] = 1
        kinds[b:end, start:b] = 2
        earlier = np.tri(end - b, dtype=bool)
        own = span[b:end, None] == span[None, b:end]
        kinds[b:end, b:end] = np.where(earlier, np.where(own, 3, 4), 0)
    return kinds


def draw_attention_mask(sample: Sample, tokenizer: Tokenizer, path: Path) -> None:
    """Write a PNG: queries down, keys across, tokens named where there are few enough to read."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    T = len(sample.input_ids)
    named = T <= _NAMED_TOKENS
    side = max(5.0, T * _INCHES_PER_TOKEN) if named else 10.0
    figure = Figure(figsize=(side + 1.5, side + 1.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours = ListedColormap([colour for _, colour in _LEGEND])
    axes.imshow(
        classify(sample) if T else np.zeros((1, 1)),
        cmap=colours,
        norm=BoundaryNorm(np.arange(len(_LEGEND) + 1) - 0.5, len(_LEGEND)),
        interpolation="nearest",
    )
    for place in _borders(sample):
        axes.axhline(place - 0.5, color="black", linewidth=0.6)
        axes.axvline(place - 0.5, color="black", linewidth=0.6)
    if named:
        names = [_plain(tokenizer.piece(id)) for id in sample.input_ids.tolist()]
        axes.set_xticks(range(T), names, rotation=90, fontsize=6)
        axes.set_yticks(range(T), names, fontsize=6)
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    axes.set_title(f"sample {sample.index}, {sample.objective.name.lower()} objective, {T} tokens")
    handles = [Patch(facecolor=colour, edgecolor="gray", label=label) for label, colour in _LEGEND]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    with atomic_file(path) as stream, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a script that the font lacks: boxes are drawn
        figure.savefig(stream, format="png", dpi=_DPI)


def _borders(sample: Sample) -> list[int]:
    """Where a part A or a part B begins."""
    starts, lengths_a, _ = sample.segments.T
    return sorted({*starts.tolist(), *(starts + lengths_a).tolist()} - {0})


def _plain(piece: str) -> str:
    """A piece that matplotlib neither reads as mathematics nor breaks into lines."""
    return piece.replace("$", r"\$").replace("\n", "⏎")
