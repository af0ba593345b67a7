"""Damaged configurations: one line that says what is wrong, or a configuration that is written and read as the same."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.config.loading import config_from_tree, config_to_yaml, load_config
from megatron_glm.config.yaml_reading import parse_yaml
from megatron_glm.errors import ConfigError
from tests.damage import ODD_TEXT, damaged, damaged_tree
from tests.fuzzing import bounded, fuzz, fuzz_test

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
SNIPPETS = [
    *ODD_TEXT,
    *(b"!!python/object/apply:os.system ['true']", b"!!python/name:os.system", b"!!binary aGVsbG8=", b"!!set {a, b}"),
    *(b"&a ", b"*a", b"<<: ", b"? ", b"- ", b": ", b"#", b"|", b">-", b"%YAML 9.9\n", b"---\n", b"...\n", b"\t", b"'"),
    *(b"2026-11-30", b"0x10", b"0o17", b"1_000", b"1:30", b".inf", b".nan", b"~", b"yes", b"1e4", b"0b1", b"="),
    *(b'"\\ud800"', b'"\\0"', b"\xc2\x85", b"[" * 5000, b"{a: " * 5000, b"- " * 5000),
]
LONGEST = 8000  # a name may be long, a value is cut
FULL = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "max_positions": 64},
    "tokenizer": {"path": "tokenizers/a"},
    "data": {
        "sources": [{"path": "data/a", "weight": 2.0}, {"prefixes": ["b/*"], "held_out_prefixes": ["c"]}],
        "window": 48,
        "phases": [{"from_sample": 100, "window": 32, "objective": {"token": 0.5, "document": 0.5}}],
        "skip_samples": [[1, 5]],
    },
    "objective": {"token": 0.4, "sentence": 0.2, "document": 0.4},
    "optimizer": {"learning_rate": 1e-3},
    "schedule": {"warmup_steps": 5, "decay_steps": 30},
    "train": {
        "output": "runs/a",
        "steps": 40,
        "global_batch_size": 8,
        "micro_batch_size": 2,
        "batch_ramp": {"start": 4},
    },
    "parallel": {"zero_stage": 2},
    "checkpoint": {"save_interval": 20},
    "deepspeed": {"zero_optimization": {"overlap_comm": True}},
}


def error_of(work):
    """What a ConfigError says; None where there is none, and the value."""
    try:
        return None, work()
    except ConfigError as error:
        return str(error), None


@fuzz_test
@pytest.mark.parametrize("name", ["demo.yaml", "glm_large.yaml"])
def test_a_damaged_file_is_refused_or_means_one_thing_by_fuzz(tmp_path, name, examples):
    original = (CONFIGS / name).read_bytes()
    path, again = tmp_path / "config.yaml", tmp_path / "again.yaml"

    @fuzz(examples)
    @given(content=damaged(original, snippets=SNIPPETS))
    def holds(content):
        path.write_bytes(content)
        with bounded():
            error, config = error_of(lambda: load_config(path))
            if error is None:
                again.write_text(config_to_yaml(config), encoding="utf-8")
                assert load_config(again) == config
            assert error is None or len(error) < LONGEST

    holds()


@fuzz_test
def test_damaged_settings_are_refused_or_mean_one_thing_by_fuzz(tmp_path, examples):
    path = tmp_path / "again.yaml"

    @fuzz(examples)
    @given(tree=damaged_tree(FULL))
    def holds(tree):
        with bounded():
            error, config = error_of(lambda: config_from_tree(tree))
            if error is None:
                path.write_text(config_to_yaml(config), encoding="utf-8")
                assert load_config(path) == config
            assert error is None or len(error) < LONGEST

    holds()


@fuzz_test
def test_a_damaged_override_is_refused_or_taken_by_fuzz(tmp_path, examples):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(FULL), encoding="utf-8")
    wholes = ["train.steps=100", "data.sources.0.weight=3", "objective.token=0.4", "data.skip_samples=[[1, 2]]"]

    @fuzz(examples)
    @given(text=st.sampled_from(wholes).flatmap(lambda whole: damaged(whole.encode(), snippets=SNIPPETS)))
    def holds(text):
        with bounded():
            error_of(lambda: load_config(path, [text.decode(errors="surrogateescape")]))

    holds()


@fuzz_test
def test_yaml_of_any_kind_has_a_value_or_an_error_by_fuzz(examples):
    @fuzz(examples)
    @given(parts=st.lists(st.sampled_from(SNIPPETS) | st.binary(max_size=6), max_size=12))
    def holds(parts):
        with bounded():
            error, _ = error_of(lambda: parse_yaml(b"".join(parts).decode(errors="replace"), where="x"))
            assert error is None or error.startswith("x")

    holds()


@pytest.mark.parametrize("depth", [51, 300, 3000])
def test_a_nest_that_could_not_be_written_is_not_read(depth):
    error, _ = error_of(lambda: parse_yaml("{a: " * depth + "1" + "}" * depth, where="x"))
    assert "deep" in error or "recursion" in error


@pytest.mark.parametrize("text", ["2026-11-30", "!!binary aGVsbG8=", "!!set {a, b}", "!!omap [x: 1]", "!!pairs [x: 1]"])
def test_values_that_would_be_written_as_others_are_not_read(text):
    error, _ = error_of(lambda: parse_yaml(f"deepspeed: {{a: [{text}]}}", where="x"))
    assert "put it in quotes" in error


def test_a_file_of_any_size_is_told_without_reading_it(tmp_path):
    path = tmp_path / "config.yaml"
    with open(path, "wb") as stream:
        stream.truncate(1 << 40)  # a hole
    with bounded(), pytest.raises(ConfigError, match="1099511627776 bytes are no configuration"):
        load_config(path)
