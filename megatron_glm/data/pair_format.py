"""Megatron's .bin/.idx pair: the token ids of many documents in one file, and where each begins.

The .bin file holds the ids back to back and nothing else, so a range of the corpus is a range of
the file. The .idx file (magic MMIDIDX, version 1, all little-endian) holds, after a header of 34
bytes, the length of every sequence in tokens (int32), its offset in bytes (int64), and the number
of sequences before each document (int64, one entry more than there are documents). A sequence is
whatever its writer chose: a sentence, or a whole document; an empty document has none.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")  # magic, version, type code, sequences, documents + 1
# The forks of Megatron disagree about all other codes: 6 and 7 were float64, float32 or uint16.
DTYPES = {4: np.dtype("<i4"), 8: np.dtype("<u2")}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_UINT16_BELOW = 65_500  # Megatron's own threshold: ids of 65 500 and above go into int32


def dtype_for(vocab_size: int) -> np.dtype:
    """The type that a vocabulary of `vocab_size` ids is stored in: uint16 below 65 500, else int32."""
    return np.dtype(np.uint16 if vocab_size < _UINT16_BELOW else np.int32)


def bin_path(prefix: Path) -> Path:
    """The file of the token ids of a pair."""
    return prefix.with_name(f"{prefix.name}.bin")


def idx_path(prefix: Path) -> Path:
    """The file of the lengths, offsets and documents of a pair."""
    return prefix.with_name(f"{prefix.name}.idx")


def index_header(dtype: np.dtype, sequences: int, documents: int) -> bytes:
    """The first bytes of an .idx."""
    return HEADER.pack(MAGIC, VERSION, _CODES[dtype], sequences, documents + 1)
