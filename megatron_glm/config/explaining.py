"""What is wrong with a configuration, in one line."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError


def explain(error: ValidationError, section: type[BaseModel], prefix: str = "") -> str:
    """One line for the first violation; unknown keys come first, since they cause the others.

    Args:
        section: what was validated.
        prefix: where it stands in the configuration, with the dot.
    """
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    meant = {_nearest(problem["loc"], section) for problem in problems if problem["type"] == "extra_forbidden"}
    # A required key that is misspelt is one mistake, not two.
    problems = [each for each in problems if each["type"] != "missing" or _dotted(each["loc"]) not in meant]
    problem = problems[0]
    name = (prefix + _dotted(problem["loc"])).rstrip(".")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    if problem["type"] == "extra_forbidden":
        return f"unknown key '{name}'{_did_you_mean(problem['loc'], section, prefix)}{more}"
    if problem["type"] == "missing":
        return f"{name}: missing; it has no default{more}"
    message = problem["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    given = problem["input"]
    shown = "" if isinstance(given, (dict, BaseModel)) else f" (got {reprlib.repr(given)})"
    return f"{name}: {message}{shown}{more}"


def _dotted(location: tuple[str | int, ...]) -> str:
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else str(part)
    return name


def _did_you_mean(location: tuple[str | int, ...], section: type[BaseModel], prefix: str) -> str:
    near = _nearest(location, section)
    if near is None:
        return f"; allowed here: {', '.join(_section_at(location[:-1], section).model_fields)}"
    return f"; did you mean '{prefix}{near}'?"


def _nearest(location: tuple[str | int, ...], section: type[BaseModel]) -> str | None:
    """The nearest allowed key, in the same section or, failing that, in one of those of the top."""
    typed = str(location[-1])
    here = _section_at(location[:-1], section)
    if near := difflib.get_close_matches(typed, list(here.model_fields), n=1):
        return _dotted((*location[:-1], near[0]))
    for name, field in section.model_fields.items():
        if _is_section(field.annotation) and typed in field.annotation.model_fields:
            return f"{name}.{typed}"
    return None


def _section_at(location: tuple[str | int, ...], section: type[BaseModel]) -> type[BaseModel]:
    for part in location:
        if isinstance(part, str):
            section = next(_sections(section.model_fields[part].annotation))
    return section


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The section that a field holds, also where it holds a list of them, or perhaps none."""
    if _is_section(annotation):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
