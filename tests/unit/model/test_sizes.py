"""Sizes from the configuration alone, and those of every preset."""

import subprocess
import sys
from pathlib import Path

import pytest

from megatron_glm.config.loading import load_config
from megatron_glm.config.schema import Model
from megatron_glm.errors import ConfigError
from megatron_glm.model.glm import GLM
from megatron_glm.model.sizes import padded_vocab_size, parameter_count, parameter_shapes

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
BERT, GPT2, ROBERTA, CHINESE = 30_526, 50_266, 50_269, 50_010  # ids with GLM's special tokens

PRESETS = {
    "glm_base": (BERT, 109.34e6),
    "glm_large": (BERT, 334.69e6),
    "glm_doc": (BERT, 334.69e6),
    "glm_sent": (BERT, 334.69e6),
    "glm_410m": (BERT, 410.27e6),
    "glm_515m": (BERT, 514.63e6),
    "glm_roberta": (ROBERTA, 354.87e6),
    "glm_roberta_443m": (ROBERTA + 1, 442.88e6),  # with [dBLOCK]
    "glm_220m": (GPT2, 229.96e6),  # by the formula: the original gives no count
    "glm_2b": (GPT2, 1.920e9),
    "glm_10b": (GPT2, 9.881e9),
    "chinese": (CHINESE, 355.66e6),
    "chinese_10b": (CHINESE, 9.880e9),
}


def small(**changes):
    sizes = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "max_positions": 20}
    return Model(**sizes | changes)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_parameters_of_the_original(name):
    num_ids, published = PRESETS[name]
    count = parameter_count(load_config(CONFIGS / f"{name}.yaml").model, num_ids)
    last_digit = 1e4 if published < 1e9 else 1e6
    assert abs(count - published) <= last_digit / 2


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_can_hold_its_samples_and_splits_its_batch(name):
    config = load_config(CONFIGS / f"{name}.yaml")
    assert config.data.window <= config.model.max_positions
    assert config.model.hidden_size == 64 * config.model.num_attention_heads
    assert config.train.global_batch_size % (config.train.micro_batch_size * 64) == 0
    assert config.schedule.warmup_steps < (config.schedule.decay_steps or config.train.steps) <= config.train.steps


def test_the_shapes_are_those_of_the_model_in_its_order():
    model = GLM(small(), num_ids=300, seed=None)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    expected = parameter_shapes(small(), 300)
    assert shapes == expected
    assert list(shapes) == list(expected)
    assert parameter_count(small(), 300) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("num_ids", "rows"), [(1, 128), (128, 128), (129, 256), (30_526, 30_592), (50_269, 50_304)])
def test_the_vocabulary_is_padded_to_a_multiple_of_128(num_ids, rows):
    assert padded_vocab_size(small(), num_ids) == rows


def test_an_explicit_vocabulary_size_is_kept_if_it_holds_the_ids():
    assert padded_vocab_size(small(vocab_size=160), 160) == 160
    with pytest.raises(ConfigError, match=r"model\.vocab_size: 160 rows do not hold the tokenizer's 161 ids"):
        padded_vocab_size(small(vocab_size=160), 161)


def test_sizes_are_known_without_torch():
    check = "import sys, megatron_glm.model.sizes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=CONFIGS.parent, check=False).returncode == 0
