"""What the tiles of the attention kernels waste: visible pairs by the area of the tiles that are computed for them.

    python -m benchmarks.tile_efficiency [--json FILE]

Exact, from the loop bounds of the kernels over the intervals of drawn samples, and the tile tables for heads of 64 in
bf16. Documents of a window end at uniformly drawn places.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from glm_kernels.attention import Visibility
from glm_kernels.attention.schedule import tile_efficiency
from glm_kernels.attention.tiles import TILES, entry_of
from glm_kernels.tiles import find_tile
from megatron_glm.config.schema import Objective as ObjectiveConfig
from megatron_glm.data.batch import collate
from megatron_glm.objective.mixture import Mixture
from megatron_glm.objective.sample import Objective, Sample
from megatron_glm.objective.window import Window
from megatron_glm.tokenizer.special import SpecialTokens

HEAD_DIM, DTYPE, SEED, NUM_IDS = 64, torch.bfloat16, 1234, 1000
SPECIAL = SpecialTokens(
    cls=1, eos=0, mask=2, sentence_mask=3, document_mask=4, start_of_piece=5, end_of_piece=6, block_mask=None
)
KERNELS = {"forward": "forward", "dK, dV": "key_value", "dQ": "query"}


@dataclass(frozen=True)
class Rows:
    """Rows of one kind: their samples, and the documents of a window."""

    objective: Objective
    window: int  # raw tokens
    documents: int
    samples: int  # of a row

    @property
    def name(self) -> str:
        documents = f"{self.documents} document{'s' * (self.documents > 1)}"
        row = f"{self.samples} samples" if self.samples > 1 else "one sample"
        return f"{row} of {self.window} tokens, {documents}, {self.objective.name.lower()} objective"


ROWS = (
    *(Rows(Objective.TOKEN, 512, documents, 8) for documents in (1, 3, 6)),
    Rows(Objective.DOCUMENT, 512, 1, 8),
    *(Rows(Objective.TOKEN, window, 1, 1) for window in (512, 1024, 1536, 2048, 4096)),
    *(Rows(Objective.DOCUMENT, window, 1, 1) for window in (512, 1024, 1536, 2048, 4096)),
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=64, help="samples of each kind")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    args = parser.parse_args(argv)
    results = [
        {"rows": rows.name, "architecture": architecture, **efficiencies(rows, architecture, args.draws)}
        for rows in ROWS
        for architecture in TILES
    ]
    for result in results:
        figures = "  ".join(f"{kernel} {result[kernel]:.3f}" for kernel in KERNELS)
        print(f"{result['rows']:62} {result['architecture']}  {figures}")
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def efficiencies(rows: Rows, architecture: str, draws: int) -> dict[str, float]:
    """Visible pairs / computed area of each kernel, over all rows together."""
    totals = {kernel: np.zeros(2) for kernel in KERNELS}
    for visibility in visibilities(rows, draws):
        for kernel, name in KERNELS.items():
            entry = entry_of(name, HEAD_DIM, DTYPE, dropout=False, long_segments=visibility.has_long_segments)
            tile = find_tile(TILES, entry, architecture).blocks
            totals[kernel] += tile_efficiency(*_seen_from_rows(name, visibility, tile["BLOCK_M"], tile["BLOCK_N"]))
    return {kernel: float(pairs / area) for kernel, (pairs, area) in totals.items()}


def _seen_from_rows(
    name: str, visibility: Visibility, block_m: int, block_n: int
) -> tuple[np.ndarray, np.ndarray, int, int]:
    """The intervals and blocks by which a kernel walks: from keys over queries, or from queries over keys."""
    if name == "key_value":
        return visibility.query_start.numpy(), visibility.query_end.numpy(), block_n, block_m
    return visibility.key_start.numpy(), visibility.key_end.numpy(), block_m, block_n


def visibilities(rows: Rows, draws: int) -> Iterator[Visibility]:
    """The masks of rows of this kind, of `draws` samples in all."""
    samples = list(_samples(rows, draws))
    for first in range(0, draws, rows.samples):
        yield collate(samples[first : first + rows.samples], pad_id=SPECIAL.eos).visibility


def _samples(rows: Rows, draws: int) -> Iterator[Sample]:
    mixture = Mixture(
        ObjectiveConfig(max_spans=max(40, rows.window // 12)),
        SPECIAL,
        np.zeros(NUM_IDS, dtype=bool),
        max_positions=rows.window,
        window=rows.window,
        isolate_documents=True,
        seed=SEED,
    )
    random = np.random.default_rng(SEED)
    for index in range(draws):
        cuts = np.sort(random.choice(np.arange(1, rows.window), rows.documents - 1, replace=False))
        starts = np.array([0, *cuts, rows.window], dtype=np.int32)
        tokens = random.integers(10, NUM_IDS, rows.window, dtype=np.int32)
        tokens[starts[:-1]] = SPECIAL.cls
        yield mixture.sample(index, Window(tokens, starts), rows.objective)


if __name__ == "__main__":
    main()
