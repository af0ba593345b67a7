"""The token objective: how much of an ordinary window it masks."""

import numpy as np

from megatron_glm.objective.sample import Objective


def test_a_window_of_512_gets_about_25_spans_that_mask_15_percent(make_mixture, make_window):
    mixture, window = make_mixture(), make_window(list(range(12, 522)))
    samples = [mixture.sample(index, window, Objective.TOKEN) for index in range(400)]
    spans = np.array([(len(s.input_ids) - 512) / 2 for s in samples])
    masked = np.array([s.loss_mask.sum() for s in samples]) - spans
    # The original: 24.5 spans and 77.5 tokens of 512; here the least is 77 of 510.
    assert 24 < spans.mean() < 25.5
    assert masked.min() >= 77
    assert 77.5 < masked.mean() < 79.5
    assert masked.max() < 77 + 20


def test_the_text_is_masked_everywhere_alike(make_mixture, make_window):
    mixture, window = make_mixture(token_ratio=0.3), make_window(list(range(12, 62)))
    counts = np.zeros(62)
    for index in range(2000):
        sample = mixture.sample(index, window, Objective.TOKEN)
        counts[sample.targets[sample.loss_mask & (sample.targets >= 12)]] += 1
    shares = counts[12:] / 2000
    # The ends are the first places to be left out by a span that would cross them.
    assert np.abs(shares[8:-8] - shares[8:-8].mean()).max() < 0.06
    assert np.abs(shares - shares[::-1]).max() < 0.06
