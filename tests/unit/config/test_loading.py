"""Configuration: what is written is what is run, and a mistake is one line that helps."""

import json
import math
from typing import get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.config.loading import config_from_tree, config_to_yaml, load_config
from megatron_glm.config.schema import Config, Section
from megatron_glm.config.yaml_reading import parse_yaml
from megatron_glm.errors import ConfigError

MINIMAL = """
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4}
tokenizer: {path: tok}
data: {sources: [{path: corpora/a}, {path: corpora/b, weight: 2}]}
optimizer: {learning_rate: 1e-4}
train: {output: runs/x, steps: 10, global_batch_size: 8, micro_batch_size: 2}
"""


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(MINIMAL)
    return path


def test_values_defaults_and_overrides_in_order(config_file):
    config = load_config(
        config_file,
        [
            "train.steps=20",
            "train.steps=30",
            "data.sources.1.weight=0.5",
            "deepspeed.zero_optimization.x=[1, 2]",
        ],
    )
    assert config.optimizer.learning_rate == 1e-4
    assert config.train.steps == 30
    assert [source.weight for source in config.data.sources] == [1.0, 0.5]
    assert config.objective.token == 1.0
    assert config.deepspeed == {"zero_optimization": {"x": [1, 2]}}


@pytest.mark.parametrize("path", ["tok", "1e5", "010", "1:30", "1_0", "0x1f", ".5", "true", "null", "~", "2024-01-01"])
def test_the_printed_configuration_reads_back_equal(config_file, tmp_path, path):
    config = load_config(config_file, [f"tokenizer.path='{path}'"])
    again = tmp_path / "again.yaml"
    again.write_text(config_to_yaml(config))
    assert load_config(again) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "optimizer.learning_rte=1",
            "unknown key 'optimizer.learning_rte'; did you mean 'optimizer.learning_rate'?",
        ),
        ("steps=5", "unknown key 'steps'; did you mean 'train.steps'?"),
        (
            "data.sources.0.wieght=5",
            r"unknown key 'data.sources\[0\].wieght'; did you mean 'data.sources\[0\].weight'",
        ),
        ("train.qqqqq=5", "unknown key 'train.qqqqq'; allowed here: output, steps"),
        ("train.steps=0", r"train.steps: input should be greater than or equal to 1 \(got 0\)"),
        ("train.steps=many", r"train.steps: input should be a valid integer.*'many'"),
        ("train.precision=fp8", r"train.precision: input should be 'fp32', 'bf16' or 'fp16' \(got 'fp8'\)"),
        ("optimizer.learning_rate=.nan", "optimizer.learning_rate: input should be a finite number"),
        ("model.num_attention_heads=7", "model: hidden_size 64 is not a multiple of num_attention_heads 7"),
        ("objective.token=0.7", "objective: token 0.7 .* = 0.7, must be 1"),
        ("schedule={warmup_steps: 5, decay_steps: 5}", "schedule: decay_steps 5 must be above warmup_steps 5"),
        ("data.sources=[]", "data.sources: "),
        (
            "data.skip_samples=[[0, 9], [30, 20]]",
            r"data: skip_samples\[1\]: \[30, 20\] is no range; give \[first, end\]",
        ),
        ("data.skip_samples=[[-1, 20]]", r"data: skip_samples\[0\]: \[-1, 20\] is no range"),
        ("train.spikes.policy=ignore", "train.spikes.policy: input should be 'off', 'warn', 'skip' or 'rewind'"),
        ("data.sources.9.weight=1", "'9' is not a position in a list of 2"),
        ("train.steps", "expected section.key=value"),
        ("train.steps.x=1", "'train.steps' is 10, which has no keys"),
        ("optimizer=null", "optimizer: "),
    ],
)
def test_a_mistake_is_named_with_field_value_and_remedy(config_file, override, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(config_file, [override])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("right", "misspelt", "key"),
    [
        ("learning_rate", "learning_rte", "optimizer.learning_rate"),
        ("optimizer:", "optimzer:", "optimizer"),
        ("path: corpora/a", "pth: corpora/a", "data.sources[0].path"),
    ],
)
def test_a_required_key_that_is_misspelt_is_one_mistake(config_file, right, misspelt, key):
    config_file.write_text(MINIMAL.replace(right, misspelt))
    with pytest.raises(ConfigError) as caught:
        load_config(config_file)
    assert str(caught.value).endswith(f"did you mean '{key}'?")


def test_two_mistakes_are_counted(config_file):
    config_file.write_text(MINIMAL.replace("learning_rate", "learning_rte").replace("steps: 10, ", ""))
    with pytest.raises(ConfigError, match=r"did you mean 'optimizer.learning_rate'\? \(and 1 more\)$"):
        load_config(config_file)


def test_a_missing_section_is_named(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(MINIMAL.replace("optimizer: {learning_rate: 1e-4}", ""))
    with pytest.raises(ConfigError, match="optimizer: missing"):
        load_config(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", ":3: repeated key 'a'"),
        ("a: &x 1\nb: *x\n", ":2: aliases are not allowed"),
        ("a: [1\n", ":2: "),
        ("1: 2\n", "key 1 is not a string"),
        ("a: !!python/object/apply:os.system [true]\n", "could not determine a constructor"),
        ("d: 2020-99-99\n", "not valid YAML"),
        ('a: [{b: "x\\0y"}]\n', r"'x\\x00y' holds a NUL"),
        ("", "expected sections"),
    ],
)
def test_broken_yaml_is_named_with_its_line(tmp_path, text, message):
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_a_directory_in_the_place_of_a_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read \(Is a directory\); name a YAML file$"):
        load_config(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"absent\.yaml: no such configuration file"):
        load_config(tmp_path / "absent.yaml")


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.e-4", "1.0e-4", "+1e-4", "0.0001"])
def test_numbers_with_an_exponent_are_numbers(text):
    assert parse_yaml(text, where="test") == 1e-4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-7", -7),
        ("+7", 7),
        ("1_000", 1000),
        ("0x1f", 31),
        (".5", 0.5),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("1_0.5", 10.5),
        ("-.inf", -math.inf),
        ("010", "010"),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        (".", "."),
        ("-", [None]),
        ("1.2.3", "1.2.3"),
        ("1e", "1e"),
    ],
)
def test_what_people_take_for_a_number_is_one(text, value):
    parsed = parse_yaml(text, where="test")
    assert (parsed, type(parsed)) == (value, type(value))


@given(st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_every_number_of_json_is_itself(number):
    parsed = parse_yaml(json.dumps(number), where="test")
    assert (parsed, type(parsed)) == (number, type(number))


def test_a_zero_in_front_makes_no_octal_number(config_file):
    assert load_config(config_file, ["train.steps=0100"]).train.steps == 100


def number_fields(section, prefix=""):
    """The settings that are a number or none, by name."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from number_fields(field.annotation, f"{prefix}{name}.")
        elif {int, float, 0} & set(leaves(field.annotation)) and get_origin(field.annotation) is not tuple:
            yield f"{prefix}{name}"


def leaves(annotation):
    arguments = get_args(annotation)
    return [leaf for argument in arguments for leaf in leaves(argument)] if arguments else [annotation]


@pytest.mark.parametrize("name", ["model.num_layers", "data.workers", "train.threads"])
def test_a_number_that_would_take_the_machine_down_is_refused(config_file, name):
    with pytest.raises(ConfigError, match=rf"^{name}: input should be less than or equal to \d+ \(got 1000000\)$"):
        load_config(config_file, [f"{name}=1000000"])


NUMBERS = dict.fromkeys(number_fields(Config), "true") | {
    "parallel.stage_layers": "[true]",
    "data.skip_samples": "[[true, 2]]",
    "data.phases": "[{from_sample: true}]",
    "data.sources": "[{path: a, weight: true}]",
}


@pytest.mark.parametrize("name", NUMBERS)
def test_true_is_no_number(config_file, name):
    with pytest.raises(ConfigError, match=rf"^{name}.*: a number is meant, not true or false \(got True\)"):
        load_config(config_file, [f"{name}={NUMBERS[name]}"])


@given(st.text(max_size=60))
def test_any_text_is_a_value_or_an_error_never_a_crash(text):
    # No text of 60 characters is a whole configuration.
    with pytest.raises(ConfigError):
        config_from_tree({"model": parse_yaml(text, where="fuzz")})
