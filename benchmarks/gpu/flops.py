"""The floating-point operations that a training step of GLM needs, exactly: what MFU is a share of.

Counted are the matrix products of the tokens, pairs and targets that there are: no padding, no masked pair, and
nothing that is computed a second time. The backward pass has two products for each one of the forward pass.

Source of the measure: PaLM (arXiv 2204.02311), appendix B.
"""

from __future__ import annotations

from megatron_glm.config.schema import Model
from megatron_glm.data.batch import Batch

# Dense bf16 products a second, without sparsity. Source: NVIDIA's data sheets.
PEAK_FLOPS = {"H200": 989.4e12, "H100": 989.4e12, "H800": 989.4e12, "A100": 311.8e12, "A800": 311.8e12}


def step_flops(model: Model, batch: Batch, num_ids: int) -> int:
    """Of one forward and backward pass over a batch."""
    pairs = int((batch.visibility.key_end.long() - batch.visibility.key_start.long()).sum())
    return 3 * forward_flops(model, tokens=batch.num_tokens, targets=len(batch.target_ids), pairs=pairs, ids=num_ids)


def forward_flops(model: Model, *, tokens: int, targets: int, pairs: int, ids: int) -> int:
    """Of one forward pass; pairs: of a query and a key that it sees. The last layer ends at the targets only."""
    h, layers = model.hidden_size, model.num_layers
    attending = 6 * h * h * tokens + 4 * h * pairs
    after = 18 * h * h  # a token: the attention's output projection and the two products of the MLP
    return layers * attending + after * ((layers - 1) * tokens + targets) + 2 * h * ids * targets


def peak_flops(device_name: str) -> float | None:
    """Of a GPU by its name, such as "NVIDIA H200"; None if it is not known."""
    return next((peak for name, peak in PEAK_FLOPS.items() if name in device_name), None)
