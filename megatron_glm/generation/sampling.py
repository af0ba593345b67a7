"""From the scores of the next token to the token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_glm.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    Attributes:
        temperature: divides the scores; 0 takes the best token.
        top_k: only the k best tokens can be drawn.
        top_p: only the fewest tokens whose probabilities reach p can be drawn.
        seed: of the draws: equal seeds give equal texts on every device.

    Raises:
        UserError: a value out of its range, or one that has no effect.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature: {self.temperature} is not allowed; 0 (greedy) or a positive number")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k: {self.top_k} is not allowed; at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p: {self.top_p} is not allowed; above 0, at most 1")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed: {self.seed} is not allowed; from 0 to 2**63 − 1")
        if self.temperature == 0 and (self.top_k or self.top_p):
            raise UserError("temperature: 0 takes the best token, so top_k and top_p have no effect; set it to 1")


class Sampler:
    """Chooses tokens one after another; the generator's state goes on from token to token."""

    def __init__(self, sampling: Sampling):
        self._sampling = sampling
        self._generator = torch.Generator().manual_seed(sampling.seed)

    def __call__(self, scores: Tensor) -> int:
        """The next token: scores [V], −inf where forbidden -> its id."""
        if self._sampling.temperature == 0:
            return int(scores.argmax())
        # On the CPU, so that the draw is the same wherever the model runs.
        probabilities = self.probabilities(scores.float().cpu())
        return int(torch.multinomial(probabilities, 1, generator=self._generator))

    def probabilities(self, scores: Tensor) -> Tensor:
        """What is drawn from: scores fp32 [V] -> fp32 [V], sum 1."""
        sampling = self._sampling
        # Without the largest score the division cannot overflow at a tiny temperature.
        probabilities = ((scores - scores.max()) / sampling.temperature).softmax(dim=-1)
        best_first = probabilities.argsort(descending=True, stable=True)
        if sampling.top_k is not None:
            probabilities[best_first[sampling.top_k :]] = 0
        if sampling.top_p is not None:
            ordered = probabilities[best_first]
            reached_before = ordered.cumsum(0) - ordered >= sampling.top_p * ordered.sum()
            reached_before[0] = False  # the best token always stays, whatever rounding says
            probabilities[best_first[reached_before]] = 0
        return probabilities / probabilities.sum()
