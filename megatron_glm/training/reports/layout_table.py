"""Who has what: the layout of a run as a small table, and the schedule of its pipeline as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from megatron_glm.parallel.layout import Coordinates, Layout

_LARGEST_SCHEDULE = 10  # micro-batches that are drawn


def layout_table(layout: Layout, *, stages: Sequence[range], heads: int, words: int, parameters: Sequence[int]) -> str:
    """A line for each rank of the first replica, and one that says where the others are.

    Args:
        stages: the layers of each stage.
        heads, words: of the whole model; words are rows of the word table.
        parameters: of a rank of each stage.
    """
    rows = [("rank", "stage", "layers", "heads", "words", "parameters")]
    for pipeline, layers in enumerate(stages):
        for tensor in range(layout.tensor):
            rows.append(
                (
                    str(layout.rank(Coordinates(0, pipeline, tensor))),
                    str(pipeline),
                    _span(layers.start, layers.stop),
                    _share(heads, tensor, layout.tensor),
                    _share(words, tensor, layout.tensor),
                    f"{parameters[pipeline]:,}",
                )
            )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    if layout.data > 1:
        ranks = "k" if layout.tensor == 1 else f"{layout.tensor} k"
        lines.append(f"replica k of {layout.data}: these ranks + {ranks}; micro-batches k, k + {layout.data}, …")
    return "\n".join(lines)


def pipeline_picture(stages: int, micro_batches: int) -> str:
    """The 1F1B schedule of a step, a backward pass as long as a forward one; and the share of time that is idle.

    A digit is the forward pass of a micro-batch, a letter the backward pass of one (a: 0); dots are the bubble.
    """
    drawn = min(micro_batches, _LARGEST_SCHEDULE)
    lines = [f"stage {stage}  {line}" for stage, line in enumerate(_schedule(stages, drawn))]
    bubble = (stages - 1) / (micro_batches + stages - 1)
    note = "" if drawn == micro_batches else f"; drawn with {drawn}"
    lines.append(f"{micro_batches} micro-batches: {bubble:.0%} of a step is idle{note}")
    return "\n".join(lines)


def _schedule(stages: int, micro_batches: int) -> list[str]:
    """One forward, one backward in turn, each as soon as what it waits for is done."""
    forward = [[-1] * micro_batches for _ in range(stages)]  # when each ends
    backward = [[-1] * micro_batches for _ in range(stages)]
    orders = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, micro_batches)
        order = [("F", m) for m in range(ahead)]
        for m in range(micro_batches - ahead):
            order += [("F", m + ahead), ("B", m)]
        orders.append(order + [("B", m) for m in range(micro_batches - ahead, micro_batches)])
    lines = [""] * stages
    time = 0
    while any(orders):
        ready = [_is_ready(orders[stage], stage, stages, forward, backward, time) for stage in range(stages)]
        for stage in range(stages):
            if not ready[stage]:
                lines[stage] += "." if orders[stage] else ""
                continue
            kind, m = orders[stage].pop(0)
            (forward if kind == "F" else backward)[stage][m] = time + 1
            lines[stage] += str(m) if kind == "F" else chr(ord("a") + m)
        time += 1
    return [line.ljust(time, ".") for line in lines]


def _is_ready(
    order: list[tuple[str, int]],
    stage: int,
    stages: int,
    forward: list[list[int]],
    backward: list[list[int]],
    time: int,
) -> bool:
    if not order:
        return False
    kind, m = order[0]
    if kind == "F":
        return stage == 0 or 0 <= forward[stage - 1][m] <= time
    return stage == stages - 1 or 0 <= backward[stage + 1][m] <= time


def _share(total: int, place: int, size: int) -> str:
    share = total // size
    return _span(place * share, (place + 1) * share)


def _span(start: int, stop: int) -> str:
    return str(start) if stop - start == 1 else f"{start}–{stop - 1}"
