"""A prompt is laid out as part A of a training sample."""

import numpy as np
import pytest

from megatron_glm.errors import UserError
from megatron_glm.generation.prompt import Blank, build_prompt
from megatron_glm.tokenizer.special import SpecialTokens

SPECIAL = SpecialTokens(cls=90, eos=91, mask=92, sentence_mask=93, document_mask=94, start_of_piece=95, end_of_piece=96)


def prompt(*ids, **options):
    return build_prompt(np.array(ids, np.int32), SPECIAL, 10, **options)


def test_cls_stands_before_the_text_and_eos_behind_it():
    built = prompt(1, 92, 2, 93)
    assert built.input_ids.tolist() == [90, 1, 92, 2, 93, 91]
    assert built.blanks == (Blank(2, (96,)), Blank(4, (96,)))


def test_a_closing_document_mask_leaves_the_text_open_and_ends_with_eos_or_end_of_piece():
    built = prompt(1, 92, 2, 94)
    assert built.input_ids.tolist() == [90, 1, 92, 2, 94]
    assert built.blanks == (Blank(2, (96,)), Blank(4, (91, 96)))


def test_a_document_mask_inside_the_text_is_infilled():
    built = prompt(1, 94, 2)
    assert built.input_ids.tolist() == [90, 1, 94, 2, 91]
    assert built.blanks == (Blank(2, (96,)),)


def test_a_model_without_task_masks_sees_only_the_plain_one():
    built = prompt(93, 1, 94, task_masks=False)
    assert built.input_ids.tolist() == [90, 92, 1, 92]
    assert built.blanks[1].stops == (91, 96)


def test_a_text_as_long_as_the_positions_fits():
    assert len(prompt(*[1] * 7, 92).input_ids) == 10


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2], "has no blank; write"),
        ([], "has no blank"),
        ([94, 1, 94], r"more than one \[gMASK\]"),
        ([*[1] * 8, 92], "has 11 tokens with its closing ones, the model reads 10; shorten it"),
    ],
)
def test_refuses_a_text_that_cannot_be_filled(ids, message):
    with pytest.raises(UserError, match=message):
        prompt(*ids)
