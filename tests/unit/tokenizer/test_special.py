"""Special ids are distinct and inside the vocabulary, or the tokenizer is refused."""

from dataclasses import replace

import pytest

from megatron_glm.errors import TokenizerError
from megatron_glm.tokenizer.special import SpecialTokens

GOOD = SpecialTokens(cls=0, eos=1, mask=2, sentence_mask=3, document_mask=4, start_of_piece=5, end_of_piece=6)


def test_distinct_ids_inside_the_vocabulary_pass():
    GOOD.check(7)
    replace(GOOD, block_mask=7).check(8)


def test_refuses_roles_that_share_an_id():
    with pytest.raises(TokenizerError, match="'document_mask' and 'end_of_piece' share the id 4"):
        replace(GOOD, end_of_piece=4).check(7)


@pytest.mark.parametrize("id", [-1, 7])
def test_refuses_an_id_outside_the_vocabulary(id):
    with pytest.raises(TokenizerError, match=rf"'mask': id {id} is outside the vocabulary, 0\.\.6"):
        replace(GOOD, mask=id).check(7)


def test_an_absent_block_mask_is_no_role():
    assert "block_mask" not in GOOD.by_role()
