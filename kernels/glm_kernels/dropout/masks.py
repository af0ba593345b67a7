"""Drop masks drawn from a counter-based generator, so that a mask is a pure function of its key.

Philox takes the whole key as it is (seed and sample as its key; layer, site and place as the high
words of its counter): no two masks of a run share a stream, no generator state is kept, and
torch's global generator is not touched. A bit is decided by 16 random ones: a probability is met
to within 2⁻¹⁷, and on a CPU the draw is faster than torch's Bernoulli.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from glm_kernels.dropout.keys import DropoutKey, RowKeys

_LEVELS = 1 << 16
_DRAWS_PER_WORD = 4  # 16-bit draws in one 64-bit output
_DRAWS_PER_COUNT = 4 * _DRAWS_PER_WORD  # Philox gives four words for each value of its counter


def keep_scale(probability: float) -> float:
    """What the kept values are multiplied by, so that the mean stays; 0 if nothing is kept."""
    return 1.0 / (1.0 - probability) if probability < 1.0 else 0.0


def kept_bytes(drops: Tensor) -> Tensor:
    """What is not dropped, to multiply values by: bool [...] -> int8 [...], a byte each to keep for the backward pass.

    On a CPU torch multiplies floats by bytes several times as fast as it fills them under a bool mask.
    """
    return drops.logical_not().view(torch.int8)


def hidden_drops(probability: float, width: int, row_keys: RowKeys, key: DropoutKey) -> Tensor:
    """Which entries of a row of hidden states are dropped: bool [T, width], false in padding."""
    drops = np.zeros((row_keys.sample.shape[0], width), dtype=bool)
    for sample, start, end in row_keys.spans:
        drawn = _draw(probability, (end - start) * width, key, sample, place=0)
        drops[start:end] = drawn.reshape(end - start, width)
    return torch.from_numpy(drops).to(row_keys.sample.device)


def attention_drops(
    probability: float, heads: int, area: int, *, sample: int, place: int, key: DropoutKey, first_head: int = 0
) -> Tensor:
    """Which attention weights of one segment are dropped: bool [heads, area], on the CPU.

    Args:
        area: query-key pairs of the segment, in any fixed order.
        sample: global sample index.
        place: the segment's first token in its sample.
        first_head: of the heads asked for; a part of them gets the masks that it has among all.
    """
    drawn = _draw(probability, heads * area, key, sample, place, skipped=first_head * area)
    return torch.from_numpy(drawn.reshape(heads, area))


def _draw(probability: float, count: int, key: DropoutKey, sample: int, place: int, *, skipped: int = 0) -> np.ndarray:
    block, inside = divmod(skipped, _DRAWS_PER_COUNT)
    generator = np.random.Philox(
        key=np.array([key.seed, sample], dtype=np.uint64),
        counter=np.array([block, key.layer, key.site, place], dtype=np.uint64),
    )
    words = generator.random_raw(-(-(inside + count) // _DRAWS_PER_WORD))
    return words.view(np.uint16)[inside : inside + count] < round(probability * _LEVELS)
