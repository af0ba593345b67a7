"""One Transformer layer, pre-LN."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from glm_kernels.dropout import Site
from megatron_glm.model.attention import Attend, SelfAttention
from megatron_glm.model.mlp import MLP

LAYERNORM_EPS = 1e-5

Add = Callable[[Tensor, Tensor | None, Site], Tensor]  # x, residual [T, H], site -> residual + dropout(x)
Select = Callable[[Tensor, Tensor], Tensor]  # hidden [t, H], places int64 [N] -> [N, H]


def add_residual(x: Tensor, residual: Tensor | None, site: Site) -> Tensor:
    """The `Add` of evaluation and generation, without dropout."""
    return x if residual is None else residual + x


def select_tokens(hidden: Tensor, places: Tensor) -> Tensor:
    """The `Select` of a whole row."""
    return hidden.index_select(0, places)


class Layer(nn.Module):
    """x + Attention(LN(x)), then x + MLP(LN(x)); [T, H] -> [T, H].

    With `places`, int64 [N], only those tokens go on after attending: [N, H]. `add` must know the same places, and
    `select` takes their states from those of the tokens held.

    Source: GLM paper, section 2.2.
    """

    def __init__(self, hidden_size: int, num_heads: int):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(hidden_size, eps=LAYERNORM_EPS)
        self.attention = SelfAttention(hidden_size, num_heads)
        self.post_attention_layernorm = nn.LayerNorm(hidden_size, eps=LAYERNORM_EPS)
        self.mlp = MLP(hidden_size)

    def forward(
        self,
        hidden: Tensor,
        attend: Attend,
        add: Add = add_residual,
        places: Tensor | None = None,
        select: Select = select_tokens,
    ) -> Tensor:
        attended = self.attention(self.input_layernorm(hidden), attend, places)
        if places is not None:
            hidden = select(hidden, places)
        hidden = add(attended, hidden, Site.ATTENTION_OUTPUT)
        return add(self.mlp(self.post_attention_layernorm(hidden)), hidden, Site.MLP_OUTPUT)
