"""Where the tokens, heads and words of a row are when the ranks of a group share each layer."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from glm_kernels.dropout import HiddenDropout
from glm_kernels.embedding import add_positions, own_words
from megatron_glm.parallel.collectives import bundle_to_shards, collect_rows, from_shards, scatter_rows, to_shards
from megatron_glm.parallel.loss import parallel_linear_cross_entropy


class ShardedPlacement:
    """Heads and words are divided over the ranks of a group; between the layers the tokens may be too.

    Args:
        heads: of a layer, over all ranks.
        spread: each rank holds T / size tokens of a row between the layers (sequence parallelism). T is a
            multiple of the group's size then.

    Attributes:
        first_head: the number of this rank's first attention head.
    """

    def __init__(self, group: dist.ProcessGroup, *, heads: int, spread: bool):
        self._group, self._spread = group, spread
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self.first_head = self._rank * (heads // self._size)

    def held_tokens(self, length: int, device: torch.device) -> Tensor | None:
        """The places of this rank's tokens in a row of T: int64 [T / size]; None where it holds all."""
        if not self._spread:
            return None
        held = self._held(length)
        return torch.arange(held.start, held.stop, device=device)

    def embed(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        block_position_ids: Tensor,
        word: Tensor,
        position: Tensor,
        block_position: Tensor,
        dropout: HiddenDropout | None = None,
    ) -> Tensor:
        """The sum of the three embeddings of the tokens held, with dropout; `word` is this rank's shard."""
        # Deterministic: a step that is done again, after a resume say, has the same bits.
        words = own_words(input_ids, word, first_word=self._rank * word.shape[0], deterministic=True)
        if self._spread:
            words = scatter_rows(words, self._group)
            held = self._held(len(input_ids))
            position_ids, block_position_ids = position_ids[held], block_position_ids[held]
            position, block_position = bundle_to_shards((position, block_position), self._group)
        else:
            words = from_shards(words, self._group)
        ids, tables = (position_ids, block_position_ids), (position, block_position)
        return add_positions(words, *ids, *tables, dropout=dropout, deterministic=True)

    def select(self, hidden: Tensor, places: Tensor) -> Tensor:
        """The hidden states of some tokens of the whole row, on every rank: [t, H], int64 [N] -> [N, H]."""
        whole = collect_rows(hidden, self._group) if self._spread else hidden
        return whole.index_select(0, places)

    def token_loss(
        self, hidden: Tensor, word: Tensor, target_ids: Tensor, *, num_valid: int, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Smoothed loss and −log softmax over the words of all ranks: [N, H], int64 [N] -> fp32 [N] twice, in nats."""
        return parallel_linear_cross_entropy(
            to_shards(hidden, self._group),
            word,
            target_ids,
            num_valid=num_valid,
            label_smoothing=label_smoothing,
            group=self._group,
        )

    def _held(self, length: int) -> slice:
        share = length // self._size
        return slice(self._rank * share, (self._rank + 1) * share)
