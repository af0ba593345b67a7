"""YAML as people expect it: no repeated keys, no aliases, values that JSON has too, `1e-4` is a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from megatron_glm.errors import ConfigError

LARGEST_FILE = 1 << 22  # bytes; a minute of reading, and no configuration
_DEEPEST = 50
_PLAIN = (str, bool, int, float, type(None))


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        if self.check_event(yaml.AliasEvent):  # aliases let a kilobyte unfold into a terabyte
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is not a string", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"repeated key {key!r}", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 takes 010 for 8, 1:30 for 90, and 1e-4, without a dot and a sign, for a string; YAML 1.2 and people do not.
_NUMBERS = {
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][\d_]*|0x[\da-fA-F_]+)",
    "tag:yaml.org,2002:float": r"[-+]?(\d[\d_]*\.[\d_]*([eE][-+]?\d+)?|\.\d[\d_]*([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+)"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"({_pattern})\Z"), list("-+.0123456789"))


class _Dumper(yaml.SafeDumper):
    """Puts in quotes what _Loader would take for something else than text."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def yaml_text(value: Any) -> str:
    """YAML that parse_yaml reads back equal."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_yaml_file(path: Path) -> Any:
    """The value of a YAML file. Raises ConfigError with file and line."""
    try:
        if (size := path.stat().st_size) > LARGEST_FILE:
            raise ConfigError(f"{path}: {size} bytes are no configuration (at most {LARGEST_FILE})")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read as UTF-8 text ({error})") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name a YAML file") from None
    return parse_yaml(text, where=str(path))


def parse_yaml(text: str, *, where: str) -> Any:
    """The value of a YAML text; `where` names it in errors. Raises ConfigError."""
    try:
        loader = _Loader(text)
        try:
            value = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"{where}{line}: {getattr(error, 'problem', None) or error}") from None
    except (ValueError, RecursionError) as error:  # an impossible date, a nest of thousands of brackets
        raise ConfigError(f"{where}: not valid YAML ({error})") from None
    _check_plain(value, where)
    return value


def _check_plain(value: Any, where: str) -> None:
    """Dates, sets and bytes are written as something else than they are read; a deep nest cannot be written at all,
    and a text with a NUL in it is the name of no file.
    """
    level = [value]
    for _ in range(_DEEPEST):
        holders = [part for part in level if isinstance(part, dict | list)]
        for odd in (part for part in level if not isinstance(part, dict | list) and type(part) not in _PLAIN):
            raise ConfigError(f"{where}: {str(odd)[:40]!r} is a {type(odd).__name__}; put it in quotes")
        for cut in (part for part in level if isinstance(part, str) and "\0" in part):
            raise ConfigError(f"{where}: {cut[:40]!r} holds a NUL, at which the system would end a path; leave it out")
        level = [part for holder in holders for part in (holder.values() if isinstance(holder, dict) else holder)]
        if not level:
            return
    raise ConfigError(f"{where}: nested more than {_DEEPEST} levels deep")
