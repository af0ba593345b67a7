"""A chain of commands, each redone only when what it read or what it wrote has changed.

A stage is up to date when the content of its inputs and outputs is what it was when the stage last
ended well, and the stages that it reads from have not been run since. So what was deleted or edited
is made again with all that depends on it, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from megatron_glm.files import atomic_file, sha256_of
from megatron_glm.json_reading import json_object


@dataclass(frozen=True)
class Stage:
    """One step of a chain.

    Attributes:
        name: also of the file that remembers it.
        run: makes the outputs; raises where it fails.
        inputs: files and directories that it reads.
        outputs: files and directories that it makes, from nothing.
        settings: whatever else its result depends on, as JSON.
        resumable: an interrupted run is continued, not begun anew.
    """

    name: str
    run: Callable[[], None]
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    resumable: bool = False


class Chain:
    """Runs stages in order and remembers them in a directory.

    Args:
        memory: directory of one JSON file a stage.
        say: takes a line for the user.
    """

    def __init__(self, memory: Path, say: Callable[[str], None]):
        self._memory = memory
        self._say = say

    def run(self, stages: Iterable[Stage]) -> list[str]:
        """Bring all stages up to date, in order: the names of those that were run."""
        makers: dict[Path, Stage] = {}
        run = []
        for stage in stages:
            sources = {maker.name: maker for path in stage.inputs if (maker := _maker(path, makers))}
            if self._bring_up_to_date(stage, sources.values()):
                run.append(stage.name)
            makers |= dict.fromkeys(stage.outputs, stage)
        return run

    def _bring_up_to_date(self, stage: Stage, sources: Iterable[Stage]) -> bool:
        read = {
            "settings": dict(stage.settings),
            "inputs": _contents(stage.inputs),
            "sources": {source.name: (self._recall(source) or {}).get("run") for source in sources},
        }
        known = self._recall(stage) or {}
        this_run = known.pop("run", None)
        if known == read | {"outputs": _contents(stage.outputs)} and all(path.exists() for path in stage.outputs):
            self._say(f"{stage.name}: up to date")
            return False
        if not (stage.resumable and known == read | {"outputs": None}):
            for path in stage.outputs:
                _remove(path)
        self._remember(stage, read | {"outputs": None, "run": this_run})
        self._say(f"{stage.name}: running")
        stage.run()
        missing = [str(path) for path in stage.outputs if not path.exists()]
        if missing:
            raise RuntimeError(f"stage {stage.name} did not make {', '.join(missing)}")
        self._remember(stage, read | {"outputs": _contents(stage.outputs), "run": uuid.uuid4().hex})
        return True

    def _recall(self, stage: Stage) -> dict | None:
        try:
            return json_object(self._path(stage).read_bytes())
        except (OSError, ValueError):
            return None

    def _remember(self, stage: Stage, facts: dict) -> None:
        self._memory.mkdir(parents=True, exist_ok=True)
        with atomic_file(self._path(stage)) as stream:
            stream.write(json.dumps(facts, indent=1, sort_keys=True).encode())

    def _path(self, stage: Stage) -> Path:
        return self._memory / f"{stage.name}.json"


def _maker(path: Path, makers: Mapping[Path, Stage]) -> Stage | None:
    """The stage that makes a path, or a directory that it lies in."""
    return next((makers[place] for place in (path, *path.parents) if place in makers), None)


def _contents(paths: Iterable[Path]) -> dict[str, str]:
    """One hash for each file or whole directory; what is absent has an empty one."""
    return {str(path): _content(path) for path in paths}


def _content(path: Path) -> str:
    if path.is_file():
        return sha256_of(path)
    if not path.is_dir():
        return ""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(path)}\0{sha256_of(file)}\n".encode())
    return digest.hexdigest()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
