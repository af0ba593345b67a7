"""Which tiles the attention kernels touch: their loop bounds in NumPy, to count what a mask costs.

`triton_tiles.column_tiles` is what runs; a test compares the two through counts that the kernels themselves write.
"""

from __future__ import annotations

import numpy as np


def column_tiles(start: np.ndarray, end: np.ndarray, block: int) -> tuple[int, int, int, int]:
    """The tiles of `block` columns that some rows touch, int32 [rows] each.

    Returns:
        origin, the first column of tile 0; count of the tiles; those in range(first_full, end_full) need no mask.
    """
    some = start < end
    if not some.any():
        return 0, 0, 0, 0
    start, end = start[some], end[some]
    origin = int(start.min())
    count = -(-(int(end.max()) - origin) // block)
    first_full = -(-(int(start.max()) - origin) // block)
    end_full = max(first_full, (int(end.min()) - origin) // block)
    return origin, count, first_full, end_full


def touched_tiles(start: np.ndarray, end: np.ndarray, block_rows: int, block_columns: int) -> np.ndarray:
    """The full and the border tiles of each tile of rows: int32 [T] twice -> int64 [tiles of rows, 2]."""
    counts = []
    for first in range(0, len(start), block_rows):
        rows = slice(first, first + block_rows)
        _, count, first_full, end_full = column_tiles(start[rows], end[rows], block_columns)
        counts.append((end_full - first_full, count - (end_full - first_full)))
    return np.array(counts, dtype=np.int64).reshape(-1, 2)


def tile_efficiency(start: np.ndarray, end: np.ndarray, block_rows: int, block_columns: int) -> tuple[int, int]:
    """Visible pairs, and the area of the tiles that are computed for them, in pairs."""
    area = int(touched_tiles(start, end, block_rows, block_columns).sum()) * block_rows * block_columns
    return int((end.astype(np.int64) - start).sum()), area
