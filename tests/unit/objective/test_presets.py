"""The presets give their ratios of masking enough spans."""

from pathlib import Path

import numpy as np
import pytest

from megatron_glm.config.loading import load_config
from megatron_glm.objective.mixture import Mixture
from megatron_glm.objective.sample import Objective

PRESETS = sorted((Path(__file__).resolve().parents[3] / "configs").glob("*.yaml"))


def yielded(config, special, sentence_ends, make_window):
    """Tokens that 60 samples of every objective leave unmasked: windows of one document, and of six."""
    mixture = Mixture(
        config.objective,
        special,
        sentence_ends,
        max_positions=config.model.max_positions,
        window=config.data.window,
        isolate_documents=config.data.isolate_documents,
        seed=1,
    )
    rng = np.random.default_rng(2)
    total = 0
    for index in range(60):
        text = rng.integers(8, 100, config.data.window - 12)  # 4 of 92 ids end a sentence
        window = make_window(*np.array_split(text, (1, 6)[index % 2]))
        total += sum(mixture.sample(index, window, objective).yielded for objective in Objective)
    return total


@pytest.mark.parametrize("path", PRESETS, ids=[path.stem for path in PRESETS])
def test_no_preset_masks_less_than_its_ratio(path, special, sentence_ends, make_window):
    assert yielded(load_config(path), special, sentence_ends, make_window) == 0


def test_a_window_of_1024_needs_twice_the_spans(special, sentence_ends, make_window):
    path = next(path for path in PRESETS if path.stem == "glm_10b")
    longer = ["data.window=1024"]
    assert yielded(load_config(path, longer), special, sentence_ends, make_window) > 0
    longer.append("objective.max_spans=80")
    assert yielded(load_config(path, longer), special, sentence_ends, make_window) == 0
