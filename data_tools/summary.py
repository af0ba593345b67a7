"""What preprocess says of a data directory that it has written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from data_tools.outcome import Outcome
from data_tools.progress import rates
from megatron_glm.data.manifest import QUARANTINE, Manifest


def warnings(manifest: Manifest) -> Iterator[str]:
    """What the user may not expect of the data."""
    for record in manifest.inputs:
        if record.documents_out == 0:
            yield f"'{record.path}' gave no document, all of its {record.documents_in} are dropped"
    if manifest.options.held_out > 0 and manifest.splits.held_out.documents == 0:
        yield (
            f"no document was held out (share {manifest.options.held_out} of {manifest.splits.train.documents}), "
            "so this data cannot be used for evaluation"
        )
    if manifest.quarantine:
        yield f"{manifest.quarantine.documents:,} documents cannot be read, see {QUARANTINE} in the output"


def summary(outcome: Outcome, seconds: float, output: Path) -> Iterator[str]:
    """Documents, tokens, speed, and where they are, in lines."""
    manifest = outcome.manifest
    train, held_out = manifest.splits.train, manifest.splits.held_out
    reasons: Counter[str] = Counter()
    for record in manifest.inputs:
        reasons.update(record.dropped)
    dropped = ", ".join(f"{number:,} {reason}" for reason, number in reasons.items()) or "0"
    read = sum(record.documents_in for record in manifest.inputs)
    tokens = train.tokens + held_out.tokens
    yield f"documents  {read:,} read, {train.documents:,} train, {held_out.documents:,} held out, dropped: {dropped}"
    yield (
        f"tokens     {tokens:,} as {manifest.dtype} ({outcome.text_bytes / tokens:.2f} bytes/token) "
        f"in {len(train.shards)} + {len(held_out.shards)} shards"
    )
    yield f"speed      {rates(outcome.new, seconds)}  {seconds:.1f} s"
    yield f"written to {output}"
