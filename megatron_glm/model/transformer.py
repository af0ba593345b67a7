"""The stack of layers, with the two position tables and the final norm."""

from __future__ import annotations

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megatron_glm.config.schema import Model
from megatron_glm.model.layer import LAYERNORM_EPS, Layer
from megatron_glm.model.row import Row


class Transformer(nn.Module):
    """Embedded tokens [T, H] -> hidden states [N, H] at the asked places.

    Args:
        recompute: keep only the input of each layer, and run the layer again for its backward pass.
    """

    def __init__(self, config: Model, *, recompute: bool):
        super().__init__()
        self.recompute = recompute
        # One row more than positions, as the original has: released weights fit, and position P is valid.
        self.position_embeddings = nn.Embedding(config.max_positions + 1, config.hidden_size)
        self.block_position_embeddings = nn.Embedding(config.max_positions + 1, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(config.hidden_size, config.num_attention_heads) for _ in range(config.num_layers)
        )
        self.final_layernorm = nn.LayerNorm(config.hidden_size, eps=LAYERNORM_EPS)

    def forward(self, hidden: Tensor, row: Row, target_index: Tensor) -> Tensor:
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            # Nobody reads the last layer anywhere else: half of its work or more would be thrown away.
            places = target_index if number == last else None
            attend, add = row.attend(number), row.add(number, places)
            if self.recompute and self.training:
                # Dropout is keyed, so no generator state has to be kept for the second run.
                hidden = checkpoint(layer, hidden, attend, add, places, use_reentrant=False, preserve_rng_state=False)
            else:
                hidden = layer(hidden, attend, add, places)
        return self.final_layernorm(hidden)
