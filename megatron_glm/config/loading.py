"""From a YAML file and dotted overrides to a checked configuration, or one line that says what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from megatron_glm.config.explaining import explain
from megatron_glm.config.phases import run_phases
from megatron_glm.config.schema import Config
from megatron_glm.config.yaml_reading import parse_yaml, read_yaml_file, yaml_text
from megatron_glm.errors import ConfigError


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """The configuration of a YAML file with `section.key=value` overrides applied in order.

    Raises:
        ConfigError: with file or field, value, and what is allowed.
    """
    path = Path(path)
    tree = read_yaml_file(path)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected sections such as 'model:' and 'train:', found {type(tree).__name__}")
    for override in overrides:
        _apply_override(tree, override)
    return config_from_tree(tree)


def config_from_tree(tree: Mapping[str, Any]) -> Config:
    """Check a nested mapping against the schema. Raises ConfigError naming the first wrong field."""
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, Config)) from None
    run_phases(config)  # checks them
    return config


def config_to_yaml(config: Config) -> str:
    """The whole resolved configuration as YAML that load_config reads back."""
    return yaml_text(config.model_dump(mode="json"))


def _apply_override(tree: dict, override: str) -> None:
    name, equals, text = override.partition("=")
    keys = name.split(".")
    if not equals or not all(keys):
        raise ConfigError(f"override {override!r}: expected section.key=value, such as train.steps=100")
    node: Any = tree
    for depth, key in enumerate(keys[:-1]):
        node = _child(node, key, ".".join(keys[: depth + 1]))
    value = parse_yaml(text, where=f"override {override!r}")
    if isinstance(node, list):
        node[_position(node, keys[-1], name)] = value
    elif isinstance(node, dict):
        node[keys[-1]] = value
    else:
        raise ConfigError(f"override {override!r}: {'.'.join(keys[:-1])!r} is {node!r}, which has no keys")


def _child(node: Any, key: str, name: str) -> Any:
    if isinstance(node, list):
        return node[_position(node, key, name)]
    if not isinstance(node, dict):
        raise ConfigError(f"override of {name!r}: its parent is {node!r}, which has no keys")
    if node.get(key) is None:
        node[key] = {}
    return node[key]


def _position(node: list, key: str, name: str) -> int:
    if not key.isdigit() or int(key) >= len(node):
        raise ConfigError(f"override of {name!r}: {key!r} is not a position in a list of {len(node)}")
    return int(key)
