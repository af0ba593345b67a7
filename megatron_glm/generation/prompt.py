"""A text with blanks, laid out as part A of a training sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megatron_glm.errors import UserError
from megatron_glm.tokenizer.special import SpecialTokens


@dataclass(frozen=True)
class Blank:
    """A mask token of part A: where it stands, and which tokens end what is written behind it."""

    position: int
    stops: tuple[int, ...]


@dataclass(frozen=True)
class Prompt:
    """Part A and its blanks, left to right."""

    input_ids: np.ndarray  # int32 [a]: [CLS], the text, eos unless the text is to be continued
    blanks: tuple[Blank, ...]


def build_prompt(ids: np.ndarray, special: SpecialTokens, max_positions: int, *, task_masks: bool = True) -> Prompt:
    """Part A of a text.

    A closing [gMASK] is the prefix form of the document objective: no eos follows it, and the model
    ends the document with eos. Every other blank is ended by the end-of-piece token, in a text that ends with eos.

    Args:
        ids: int32 [n], the text with mask tokens, without [CLS] and eos.
        task_masks: false for a model that was trained with [MASK] for all objectives; it sees no other.

    Raises:
        UserError: no blank, more than one [gMASK], or a text longer than the model's positions.
    """
    masks = (special.mask, special.sentence_mask, special.document_mask)
    places = np.flatnonzero(np.isin(ids, masks))
    if not len(places):
        raise UserError("text: has no blank; write [MASK], [sMASK] or [gMASK] where something is to be filled in")
    if (ids == special.document_mask).sum() > 1:
        raise UserError("text: has more than one [gMASK]; a document has at most one, use [MASK] or [sMASK]")
    continues = ids[-1] == special.document_mask
    input_ids = np.concatenate([[special.cls], ids, [] if continues else [special.eos]]).astype(np.int32)
    if len(input_ids) > max_positions:
        raise UserError(
            f"text: has {len(input_ids)} tokens with its closing ones, the model reads {max_positions}; shorten it"
        )
    if not task_masks:
        input_ids[np.isin(input_ids, masks)] = special.mask
    blanks = [Blank(int(place) + 1, (special.end_of_piece,)) for place in places]
    if continues:
        blanks[-1] = Blank(blanks[-1].position, (special.eos, special.end_of_piece))
    return Prompt(input_ids, tuple(blanks))
