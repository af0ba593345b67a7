"""What the parts of a model cost a training step, from its configuration alone: no torch is imported here.

Only ratios matter, so everything is counted in multiply-adds of the forward pass over one row; the backward
pass costs twice as much everywhere.
"""

from __future__ import annotations

from megatron_glm.config.schema import Model, Objective
from megatron_glm.model.sizes import padded_vocab_size

_COPIES = 4  # reading three tables and summing moves as much memory as a few multiply-adds a feature


def layer_costs(model: Model, objective: Objective, *, window: int, num_ids: int) -> tuple[float, ...]:
    """The cost of each layer a token, the embeddings in the first one and norm and output layer in the last.

    The last layer goes on at the targets only once it has attended, and the output layer reads nothing else.
    """
    h = model.hidden_size
    targets = target_share(objective)
    # Every token sees part A and what comes before it: on the average less than the window.
    attending = 3 * h * h + 2 * h * window * (1 - targets / 2)
    after = 9 * h * h  # the attention's output projection and the two of the MLP
    costs = [float(attending + after)] * model.num_layers
    costs[-1] = attending + targets * after + targets * h * padded_vocab_size(model, num_ids)
    costs[0] += _COPIES * h
    return tuple(costs)


def target_share(objective: Objective) -> float:
    """Targets a token of the row, on the average over the mixture."""
    return sum(weight * targets / tokens for weight, tokens, targets in _rows(objective))


def row_tokens(objective: Objective) -> tuple[float, float]:
    """Tokens of the row a raw token, and targets a raw token, on the average over the mixture."""
    rows = _rows(objective)
    return sum(weight * tokens for weight, tokens, _ in rows), sum(weight * targets for weight, _, targets in rows)


def _rows(objective: Objective) -> list[tuple[float, float, float]]:
    """For each objective its weight in the mixture, and tokens of the row and targets a raw token.

    A masked token leaves part A for part B, where each span adds one token, and in A one mask.
    """
    spans = {
        "token": (objective.token_ratio, 1 / objective.mean_span),
        "sentence": (objective.sentence_ratio, 0.0),
        "document": ((1 + objective.document_min_ratio) / 2, 0.0),
    }
    return [
        (getattr(objective, name), 1 + 2 * masked * a_token, masked * (1 + a_token))
        for name, (masked, a_token) in spans.items()
    ]
