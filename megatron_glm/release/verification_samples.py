"""Small samples that reach every part of the input: each mask token, shuffled spans, the last position."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron_glm.tokenizer.special import SpecialTokens


@dataclass(frozen=True)
class VerificationSample:
    """Part A and B of one sample, int64 [T] each."""

    input_ids: np.ndarray
    position_ids: np.ndarray
    block_position_ids: np.ndarray
    part_a: int


def verification_samples(special: SpecialTokens, num_ids: int, max_positions: int) -> list[VerificationSample]:
    """Three samples of random ordinary tokens: two [MASK], filled right to left; one [sMASK]; a closing [gMASK]."""
    draws = np.random.default_rng(0)
    ordinary = np.setdiff1d(np.arange(num_ids), list(special.by_role().values()))
    short = min(24, max_positions + 1)
    most = max_positions  # block positions of a span
    first, second = (short // 3, 2 * short // 3)
    return [
        _sample(draws, ordinary, special, short, special.mask, [(second, min(3, most)), (first, min(2, most))]),
        _sample(draws, ordinary, special, short - short // 4, special.sentence_mask, [(first, min(6, most))]),
        _sample(draws, ordinary, special, max_positions + 1, special.document_mask, [(max_positions, min(9, most))]),
    ]


def _sample(
    draws: np.random.Generator,
    ordinary: np.ndarray,
    special: SpecialTokens,
    length: int,
    mask: int,
    spans: list[tuple[int, int]],
) -> VerificationSample:
    """A random part A of `length` tokens with masks, and behind it the spans: (position of the mask, inputs)."""
    text = draws.choice(ordinary, length)
    text[0] = special.cls
    rows = [(text, np.arange(length), np.zeros(length, np.int64))]
    for position, inputs in spans:
        text[position] = mask
        piece = np.concatenate([[special.start_of_piece], draws.choice(ordinary, inputs - 1)])
        rows.append((piece, np.full(inputs, position), np.arange(1, inputs + 1)))
    columns = (np.concatenate(column).astype(np.int64) for column in zip(*rows, strict=True))
    return VerificationSample(*columns, part_a=length)
