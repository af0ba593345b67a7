"""A sample in words: part A with its blanks, part B span by span, and both position rows.

Blanks are numbered in the order of part B, the order in which the model fills them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from megatron_glm.counting import count_text
from megatron_glm.objective.sample import Sample

if TYPE_CHECKING:
    from megatron_glm.tokenizer.base import Tokenizer

_COLOURS = ("green", "yellow", "blue", "magenta", "cyan", "red")


@dataclass(frozen=True)
class Blank:
    """One span of part B."""

    number: int  # from 1, over the whole sample
    mask: int  # where its mask token stands in the sample
    start: int  # where it begins in the sample: its start-of-piece
    stop: int

    @property
    def style(self) -> str:
        return f"bold {_COLOURS[(self.number - 1) % len(_COLOURS)]}"


def describe(sample: Sample, tokenizer: Tokenizer, origin: str) -> Iterator[Text]:
    """The sample line by line, as styled text.

    Args:
        origin: which window it was made of.
    """
    blanks = find_blanks(sample)
    yield Text.assemble(
        (f"sample {sample.index}", "bold"),
        f" · {sample.objective.name.lower()} objective · {len(sample.input_ids)} tokens · "
        f"{count_text(len(sample.segments), 'segment')} · {count_text(sum(map(len, blanks)), 'blank')} · "
        f"{count_text(int(sample.loss_mask.sum()), 'target')}",
    )
    yield Text(f"window: {origin}", "dim")
    if not len(sample.input_ids):
        yield Text("nothing in this window can be masked")
    if sample.yielded:
        yield Text(f"the limits on spans left {sample.yielded} of the tokens unmasked that the ratio asks for")
    for number, ((start, length_a, end), own) in enumerate(zip(sample.segments.tolist(), blanks, strict=True), 1):
        yield Text()
        yield Text(
            f"segment {number} of {len(blanks)} · tokens {start} … {end - 1} · part A {length_a} · "
            f"part B {end - start - length_a}",
            "bold",
        )
        yield _part_a(sample, tokenizer, start, start + length_a, own)
        yield _rows(sample, start, start + length_a, "   ")
        for blank in own:
            yield _part_b(sample, tokenizer, blank)
            yield _rows(sample, blank.start, blank.stop, "       ")


def find_blanks(sample: Sample) -> list[list[Blank]]:
    """The blanks of each segment, in the order of part B."""
    found: list[list[Blank]] = []
    number = 0
    for start, length_a, end in sample.segments.tolist():
        begin = start + length_a
        first = (np.flatnonzero(sample.block_position_ids[begin:end] == 1) + begin).tolist()
        own = []
        for at, stop in pairwise([*first, end]):
            number += 1
            own.append(Blank(number, start + int(sample.position_ids[at]), at, stop))
        found.append(own)
    return found


def compact(values: Sequence[int]) -> str:
    """Numbers in words: 0, 1, 2, 3 is "0…3", and 5, 5, 5 is "5 ×3"."""
    parts = []
    start = 0
    while start < len(values):
        step = values[start + 1] - values[start] if start + 1 < len(values) else None
        stop = start + 1
        if step in (0, 1):
            while stop < len(values) and values[stop] - values[stop - 1] == step:
                stop += 1
        if stop - start == 1:
            parts.append(f"{values[start]}")
        elif step == 0:
            parts.append(f"{values[start]} ×{stop - start}")
        else:
            parts.append(f"{values[start]}…{values[stop - 1]}")
        start = stop
    return ", ".join(parts)


def _part_a(sample: Sample, tokenizer: Tokenizer, start: int, stop: int, blanks: Sequence[Blank]) -> Text:
    ids = sample.input_ids[start:stop]
    by_place = {blank.mask - start: blank for blank in blanks}
    cuts = sorted({0, len(ids), *by_place, *(place + 1 for place in by_place)})
    line = Text("A  ")
    for place, text in zip(cuts, _texts(tokenizer, ids, cuts), strict=False):
        if (blank := by_place.get(place)) is None:
            line.append(text)
        else:
            line.append(f" {blank.number}:{text.strip()}", blank.style)
    return line


def _texts(tokenizer: Tokenizer, ids: np.ndarray, cuts: Sequence[int]) -> Iterator[str]:
    """The text between each two cuts. A part decoded alone would lose the space at its edge."""
    before = ""
    for start, stop in pairwise(cuts):
        whole = tokenizer.decode(ids[:stop])
        # A character that is cut in two is written otherwise before its second half is there.
        yield whole[len(before) :] if whole.startswith(before) else tokenizer.decode(ids[start:stop])
        before = whole


def _part_b(sample: Sample, tokenizer: Tokenizer, blank: Blank) -> Text:
    line = Text.assemble("B  ", (f"{blank.number}: ", blank.style))
    targets = sample.targets[blank.start : blank.stop]
    line.append(tokenizer.decode(targets), blank.style)
    # Without corruption the inputs after the start-of-piece are the targets, one place later.
    corrupted = int((sample.input_ids[blank.start + 1 : blank.stop] != targets[:-1]).sum())
    if corrupted:
        line.append(f"  (read as {tokenizer.decode(sample.input_ids[blank.start : blank.stop])})", "dim")
    return line


def _rows(sample: Sample, start: int, stop: int, indent: str) -> Text:
    position = compact(sample.position_ids[start:stop].tolist())
    block = compact(sample.block_position_ids[start:stop].tolist())
    return Text(f"{indent}position {position}   block position {block}", "dim")
