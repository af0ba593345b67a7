"""The stack of layers, with the two position tables and the final norm."""

from __future__ import annotations

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glm_kernels.attention import keeps_scores
from megatron_glm.config.schema import AttentionBackend, Model, Recompute
from megatron_glm.model.attention import Attend
from megatron_glm.model.layer import LAYERNORM_EPS, Layer
from megatron_glm.model.row import Row


class Transformer(nn.Module):
    """Embedded tokens [T, H] -> hidden states [N, H] at the asked places.

    Args:
        recompute: what runs again for the backward pass instead of being kept. `full`: each layer, of which the
            input is kept; `selective`: each layer's attention, of which query, key, value and context are kept
            (arXiv 2205.05198, section 5).
        held: the layers that exist here, with the position tables before the first layer and the norm after the
            last; the others are None. Without the last layer the hidden states of all tokens are returned, [T, H].
    """

    def __init__(self, config: Model, *, recompute: Recompute, held: range):
        super().__init__()
        self.recompute = recompute
        # One row more than positions, as the original has: released weights fit, and position P is valid.
        positions, is_first, is_last = config.max_positions + 1, 0 in held, config.num_layers - 1 in held
        self.position_embeddings = nn.Embedding(positions, config.hidden_size) if is_first else None
        self.block_position_embeddings = nn.Embedding(positions, config.hidden_size) if is_first else None
        self.layers = nn.ModuleList(
            Layer(config.hidden_size, config.num_attention_heads) if number in held else None
            for number in range(config.num_layers)
        )
        self.final_layernorm = nn.LayerNorm(config.hidden_size, eps=LAYERNORM_EPS) if is_last else None

    def forward(self, hidden: Tensor, row: Row, target_index: Tensor) -> Tensor:
        last, select = len(self.layers) - 1, row.placement.select
        for number, layer in enumerate(self.layers):
            if layer is None:
                continue
            # Nobody reads the last layer anywhere else: half of its work or more would be thrown away.
            places = target_index if number == last else None
            attend, add = row.attend(number), row.add(number, places)
            if self.recompute == "selective" and self.training:
                attend = _recomputed(attend, row.attention_backend)
            # Dropout is keyed, so no generator state has to be kept for the second run.
            if self.recompute == "full" and self.training:
                hidden = checkpoint(
                    layer, hidden, attend, add, places, select, use_reentrant=False, preserve_rng_state=False
                )
            else:
                hidden = layer(hidden, attend, add, places, select)
        return hidden if self.final_layernorm is None else self.final_layernorm(hidden)


def _recomputed(attend: Attend, backend: AttentionBackend) -> Attend:
    def recomputed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if keeps_scores(query, backend):
            return checkpoint(attend, query, key, value, use_reentrant=False, preserve_rng_state=False)
        return attend(query, key, value)

    return recomputed
