"""Generation without a cache: the whole row through GLM.forward for every token. What CachedReader is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from glm_kernels.attention import Visibility
from megatron_glm.model.glm import GLM


class RecomputingReader:
    """A `decoding.Reader` that keeps the tokens and nothing else; the model must be in evaluation mode.

    Args:
        part_a: int64 [a], on the model's device.
    """

    def __init__(self, model: GLM, part_a: Tensor):
        self._model = model
        self._part_a = len(part_a)
        self._row = torch.stack([part_a, torch.arange(len(part_a), device=part_a.device), torch.zeros_like(part_a)])

    def step(self, token: int, position: int, block_position: int) -> Tensor:
        place = torch.tensor([[token], [position], [block_position]], device=self._row.device)
        self._row = torch.cat([self._row, place], dim=1)
        length = self._row.shape[1]
        visibility = Visibility.from_segments([(0, self._part_a, length)], length).to(self._row.device)
        last = torch.tensor([length - 1], device=self._row.device)
        return self._model.logits(self._model(*self._row, visibility, last))[0]
