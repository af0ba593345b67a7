"""A window of the token stream, as the objectives receive it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Window:
    """The document pieces of a window, one after another.

    Every piece begins with [CLS] and ends with eos where its document does. Piece s is
    `tokens[starts[s] : starts[s + 1]]`.
    """

    tokens: np.ndarray  # int32 [n]
    starts: np.ndarray  # int32 [S + 1], from 0 to n
    sentence_ends: np.ndarray | None = None  # bool [n], the last token of each sentence, where the source stores them
