"""What the objectives make of a window: arrays ready to be packed into a batch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Objective(IntEnum):
    """What is masked; one of them per sample (GLM paper, sections 2.1.1 and 2.1.2)."""

    TOKEN = 0
    SENTENCE = 1
    DOCUMENT = 2


@dataclass(frozen=True)
class Sample:
    """One window as blank-infilling segments A1 B1 A2 B2 …; T may be 0 where nothing can be masked.

    A segment that starts at b, whose part A has a tokens and that ends at e, sees nothing of the others: its
    token i sees the tokens [b, max(b + a, i + 1)).
    """

    index: int  # global sample index: the dropout key
    objective: Objective
    input_ids: np.ndarray  # int32 [T]
    targets: np.ndarray  # int32 [T]; in part A the input itself, as in the original
    loss_mask: np.ndarray  # bool [T]: true in part B
    position_ids: np.ndarray  # int32 [T]  row 0: position in the corrupted text
    block_position_ids: np.ndarray  # int32 [T]  row 1: 0 in A, 1… in each span of B
    segments: np.ndarray  # int32 [S, 3]: start, length of part A, end; contiguous, they tile range(T)
    yielded: int = 0  # tokens that the ratio asked for and the limits on spans refused
