"""How a run ends, or goes back, where its loss does."""

from __future__ import annotations

from megatron_glm.errors import UserError


class DivergedError(UserError):
    """The loss or the gradient is not a number, again and again; raised by all ranks alike."""


class RewindWished(Exception):  # noqa: N818 - it is no error
    """All ranks have agreed to go back to the last checkpoint.

    Attributes:
        end: the sample after the last one of the step that is to blame.
        samples: how many before it are then left out, at most.
    """

    def __init__(self, *, end: int, samples: int):
        super().__init__(f"from sample {end}")
        self.end = end
        self.samples = samples
