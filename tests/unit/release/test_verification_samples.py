"""The samples that a release is verified with."""

import pytest

from megatron_glm.release.verification_samples import verification_samples
from megatron_glm.tokenizer.special import SpecialTokens

SPECIAL = SpecialTokens(cls=0, eos=1, mask=2, sentence_mask=3, document_mask=4, start_of_piece=5, end_of_piece=6)


@pytest.mark.parametrize("max_positions", [1, 2, 7, 48, 512])
def test_samples_stay_within_ids_and_positions(max_positions):
    for sample in verification_samples(SPECIAL, 30, max_positions):
        assert 0 <= sample.input_ids.min() <= sample.input_ids.max() < 30
        assert sample.position_ids.max() <= max_positions
        assert sample.block_position_ids.max() <= max_positions
        assert 0 < sample.part_a < len(sample.input_ids)


def test_samples_reach_every_mask_and_the_last_position():
    samples = verification_samples(SPECIAL, 30, 48)
    assert {id for sample in samples for id in sample.input_ids.tolist()} >= {0, 2, 3, 4, 5}
    assert max(sample.position_ids.max() for sample in samples) == 48
