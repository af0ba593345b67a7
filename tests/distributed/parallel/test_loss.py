"""The loss over a divided vocabulary is that of the full logits, with label smoothing and padding too."""

import numpy as np
import pytest

from tests.distributed.parallel import loss_cases as cases
from tests.distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_loss_and_gradients_are_those_of_the_full_logits(size, smoothing):
    loss, nll, grad_hidden, grad_weight = cases.reference(smoothing)
    for rank, found in enumerate(run_ranks(size, cases.sharded, smoothing)):
        own_rows = np.array_split(grad_weight, size)[rank]
        for got, expected in zip(found, (loss, nll, grad_hidden, own_rows), strict=True):
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


def test_targets_that_are_no_words_are_seen_by_every_rank():
    for found in run_ranks(4, cases.of_missing_words):
        for losses in found:
            assert np.flatnonzero(np.isnan(losses)).tolist() == [1, 4, 8]


def test_a_mean_over_each_shard_would_be_seen():
    # The control: the mean logit of a shard is not that of the vocabulary.
    hidden, weight, _, _ = cases.inputs()
    logits = hidden @ weight[: cases.VALID].T
    assert (logits.mean(dim=1) - logits[:, : cases.ROWS // 4].mean(dim=1)).abs().max() > 0.1
