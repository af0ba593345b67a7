"""From a YAML file and dotted overrides to a checked configuration, or one line that says what is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from megatron_glm.config.schema import Config
from megatron_glm.config.yaml_reading import parse_yaml, read_yaml_file
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
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_explain(error, tree)) from None


def config_to_yaml(config: Config) -> str:
    """The whole resolved configuration as YAML that load_config reads back."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


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


def _explain(error: ValidationError, tree: Mapping[str, Any]) -> str:
    """One line for the first violation; unknown keys come first, since they cause the others."""
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    problem = problems[0]
    name = _dotted(problem["loc"])
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if problem["type"] == "extra_forbidden":
        return f"unknown key '{name}'{_did_you_mean(problem['loc'])}{more}"
    if problem["type"] == "missing":
        return f"{name}: missing; it has no default{more}"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    given = problem["input"]
    shown = "" if isinstance(given, (dict, BaseModel)) else f" (got {given!r})"
    return f"{name}: {message}{shown}{more}"


def _dotted(location: tuple[str | int, ...]) -> str:
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else str(part)
    return name


def _did_you_mean(location: tuple[str | int, ...]) -> str:
    """Suggest the nearest allowed key, in the same section or, failing that, in any other."""
    typed = str(location[-1])
    here = _section_at(location[:-1])
    prefix = _dotted(location[:-1])
    near = difflib.get_close_matches(typed, list(here.model_fields), n=1)
    if near:
        return f"; did you mean '{prefix + '.' if prefix else ''}{near[0]}'?"
    for section, field in Config.model_fields.items():
        if _is_section(field.annotation) and typed in field.annotation.model_fields:
            return f"; did you mean '{section}.{typed}'?"
    return f"; allowed here: {', '.join(here.model_fields)}"


def _section_at(location: tuple[str | int, ...]) -> type[BaseModel]:
    section: type[BaseModel] = Config
    for part in location:
        if isinstance(part, str):
            annotation = section.model_fields[part].annotation
            # tuple[Source, ...] holds its section as the first argument
            section = next(kind for kind in (annotation, *get_args(annotation)) if _is_section(kind))
    return section


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
