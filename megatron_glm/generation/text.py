"""Text in, text out: every blank of a text filled by a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from megatron_glm.errors import UserError
from megatron_glm.generation.decoding import CachedReader, fill_blanks
from megatron_glm.generation.prompt import Prompt, build_prompt
from megatron_glm.generation.sampling import Sampler, Sampling
from megatron_glm.model.glm import GLM
from megatron_glm.tokenizer.base import Tokenizer

DEFAULT_MAX_TOKENS = 64


@dataclass(frozen=True)
class Filled:
    """A text whose blanks are filled.

    Attributes:
        text: the whole, without special tokens.
        pieces: what was written into each blank, left to right.
        spans: where each piece stands in `text`, start and stop in characters; for display, since a
            piece may begin within a character that its tokens only complete.
    """

    text: str
    pieces: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]


@torch.inference_mode()
def fill(
    model: GLM,
    tokenizer: Tokenizer,
    text: str,
    *,
    sampling: Sampling | None = None,
    max_tokens: int | None = None,
    task_masks: bool = True,
) -> Filled:
    """Fill every [MASK] and [sMASK] of a text, left to right; a closing [gMASK] continues it.

    Args:
        model: in evaluation mode, on any device.
        sampling: default: the best token each time.
        max_tokens: of one blank; default: 64, or what the model's block positions allow if that is less.
        task_masks: whether the model knows [sMASK] and [gMASK]; otherwise it sees [MASK] in their place.

    Raises:
        UserError: a text without blanks or too long for the model, or max_tokens out of its range.
    """
    max_tokens = _checked_max_tokens(max_tokens, model.config.max_positions)
    ids = tokenizer.encode_with_special(text)
    prompt = build_prompt(ids, tokenizer.special, model.config.max_positions, task_masks=task_masks)
    device = model.word_embeddings.weight.device
    reader = CachedReader(
        model,
        torch.from_numpy(prompt.input_ids.astype(np.int64)).to(device),
        room=len(prompt.blanks) * (max_tokens + 1),
    )
    filled = fill_blanks(
        reader,
        prompt.blanks,
        Sampler(sampling or Sampling()),
        start_of_piece=tokenizer.special.start_of_piece,
        forbidden=torch.from_numpy(tokenizer.never_generated().copy()).to(device),
        max_tokens=max_tokens,
    )
    return _assemble(tokenizer, ids, prompt, filled)


def _checked_max_tokens(max_tokens: int | None, max_positions: int) -> int:
    most = max_positions - 1  # <|startofpiece|> takes a block position too
    if max_tokens is None:
        return min(DEFAULT_MAX_TOKENS, most)
    if not 1 <= max_tokens <= most:
        raise UserError(f"max_tokens: {max_tokens} is not allowed; from 1 to {most}, the model's block positions")
    return max_tokens


def _assemble(tokenizer: Tokenizer, ids: np.ndarray, prompt: Prompt, filled: list[list[int]]) -> Filled:
    """Put the pieces in the places of their masks, then decode once, so that spaces come out as in any text."""
    whole: list[int] = []
    bounds = []
    begin = 0
    for blank, tokens in zip(prompt.blanks, filled, strict=True):
        place = blank.position - 1  # ids have no [CLS]
        whole += ids[begin:place].tolist()
        bounds.append((len(whole), len(whole) + len(tokens)))
        whole += tokens
        begin = place + 1
    whole += ids[begin:].tolist()
    spans = (tuple(len(tokenizer.decode(whole[:bound])) for bound in pair) for pair in bounds)
    return Filled(
        tokenizer.decode(whole),
        pieces=tuple(tokenizer.decode(tokens) for tokens in filled),
        spans=tuple(spans),
    )
