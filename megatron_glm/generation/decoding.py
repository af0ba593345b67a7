"""Filling blanks token by token: part A is read once, part B grows.

Each blank starts with <|startofpiece|> at its mask's position and counts block positions from 1, as in
training; the blanks filled before it stay visible. `CachedReader` does that with one token a step;
reference.py has the same by reading everything anew, as the parity test wants it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from glm_kernels.embedding import embedding
from megatron_glm.generation.cache import LayerCache
from megatron_glm.generation.prompt import Blank
from megatron_glm.generation.sampling import Sampler
from megatron_glm.model.glm import GLM


class Reader(Protocol):
    """A model that has read part A."""

    def step(self, token: int, position: int, block_position: int) -> Tensor:
        """Read one token of part B; returns the scores of the next, [num_ids]."""


class CachedReader:
    """Reads part A at once and part B with a key/value cache.

    Args:
        part_a: int64 [a], on the model's device.
        room: tokens of part B, at most.
    """

    def __init__(self, model: GLM, part_a: Tensor, room: int):
        config = model.config
        head_dim = config.hidden_size // config.num_attention_heads
        self._model = model
        self._caches = [
            LayerCache(len(part_a) + room, config.num_attention_heads, head_dim, model.word_embeddings.weight)
            for _ in model.transformer.layers
        ]
        self._read(part_a, torch.arange(len(part_a), device=part_a.device), torch.zeros_like(part_a))

    def step(self, token: int, position: int, block_position: int) -> Tensor:
        place = torch.tensor([[token], [position], [block_position]], device=self._model.word_embeddings.weight.device)
        return self._model.logits(self._read(*place))[0]

    def _read(self, input_ids: Tensor, position_ids: Tensor, block_position_ids: Tensor) -> Tensor:
        """Hidden states [n, H] of n further tokens."""
        transformer = self._model.transformer
        hidden = embedding(
            input_ids,
            position_ids,
            block_position_ids,
            self._model.word_embeddings.weight,
            transformer.position_embeddings.weight,
            transformer.block_position_embeddings.weight,
        )
        for layer, cache in zip(transformer.layers, self._caches, strict=True):
            hidden = layer(hidden, cache.attend)
        return transformer.final_layernorm(hidden)


def fill_blanks(
    reader: Reader,
    blanks: Sequence[Blank],
    sampler: Sampler,
    *,
    start_of_piece: int,
    forbidden: Tensor,
    max_tokens: int,
) -> list[list[int]]:
    """The tokens of each blank, without the one that ended it; at least one, at most `max_tokens`.

    Args:
        forbidden: bool [num_ids], tokens that are never written; a blank's own stops end it all the same.
    """
    filled = []
    for blank in blanks:
        stops = torch.tensor(blank.stops, device=forbidden.device)
        tokens: list[int] = []
        scores = reader.step(start_of_piece, blank.position, 1)
        while len(tokens) < max_tokens:
            banned = forbidden.clone()
            banned[stops] = not tokens  # no span of the training is empty
            token = sampler(scores.masked_fill(banned, -torch.inf))
            if token in blank.stops:
                break
            tokens.append(token)
            scores = reader.step(token, blank.position, 1 + len(tokens))
        filled.append(tokens)
    return filled
