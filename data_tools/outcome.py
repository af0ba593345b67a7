"""What a run of preprocess has given."""

from __future__ import annotations

from dataclasses import dataclass

from data_tools.units import Amount
from megatron_glm.data.manifest import Manifest


@dataclass(frozen=True)
class Outcome:
    """The data directory that was written.

    Args:
        text_bytes: UTF-8 text of all documents.
        new: what this start has done, without the units that an earlier one had finished.
    """

    manifest: Manifest
    text_bytes: int
    new: Amount
