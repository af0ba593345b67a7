"""Settings that may be changed under a run's hands: a file in its output that rank 0 reads between steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from megatron_glm.config.explaining import explain
from megatron_glm.config.schema import Overrides
from megatron_glm.config.yaml_reading import LARGEST_FILE, parse_yaml
from megatron_glm.errors import ConfigError

OVERRIDES_FILE = "overrides.yaml"


class OverridesFile:
    """Tells what has changed in the file since it was asked last.

    Args:
        held: what the run has now: a checkpoint's, or nothing.
        refused: takes one line about a content that cannot be adopted; the run goes on with what it has.
    """

    def __init__(self, output: Path, *, held: Overrides, refused: Callable[[str], None]):
        self._path = output / OVERRIDES_FILE
        self._held = held
        self._refused = refused
        self._seen: tuple[int, ...] | None = None  # of the file, while it is there
        self._said = ""  # last, of a file that cannot be read

    def news(self) -> dict[str, Any] | None:
        """The settings to adopt on all ranks, where they are not those that the run has; a removed file has none."""
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return None
            if status.st_size > LARGEST_FILE:
                self._seen = seen
                self._refused(f"{self._path}: {status.st_size} bytes are no settings; nothing is changed")
                return None
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return self._changed(Overrides(), None)
        except (OSError, UnicodeDecodeError) as error:
            if (line := f"{self._path}: cannot be read as UTF-8 text ({error}); nothing is changed") != self._said:
                self._refused(line)  # once, and not at every step of a file system's bad hour
            self._said = line
            return None
        try:
            return self._changed(self._parsed(text), seen)
        except ConfigError as error:
            self._seen = seen  # said once
            self._refused(f"{error}; nothing is changed")
            return None

    def _changed(self, found: Overrides, seen: tuple[int, ...] | None) -> dict[str, Any] | None:
        self._seen, self._said = seen, ""
        if found == self._held:
            return None
        self._held = found
        return found.model_dump(mode="json")

    def _parsed(self, text: str) -> Overrides:
        tree = parse_yaml(text, where=str(self._path))
        if not isinstance(tree, dict):  # an editor that is about to write it has emptied it
            allowed = ", ".join(Overrides.model_fields)
            raise ConfigError(f"{self._path}: holds no settings; allowed: {allowed}; remove the file to end them")
        try:
            return Overrides.model_validate(tree)
        except ValidationError as error:
            raise ConfigError(f"{self._path}: {explain(error, Overrides)}") from None
