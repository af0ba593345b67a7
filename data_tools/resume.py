"""What an interrupted run leaves for the next one: which run it was, and its finished units.

The temporary directory of the output holds `units/run.json`, written before any work is done, and a
directory for each finished unit. The same command continues there; another one is refused, since it
would mix two runs in one output.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from data_tools.dedupe import HASHES
from data_tools.inputs import InputFile
from data_tools.units import Unit
from data_tools.workers import ResumableError
from megatron_glm.data.manifest import MANIFEST, Options, Record
from megatron_glm.errors import UserError
from megatron_glm.files import atomic_file
from megatron_glm.tokenizer.base import Tokenizer

_RUN_FILE = "run.json"


class InputRecord(Record):
    """An input as the run found it; `cuts` are the ends of its units, in bytes."""

    path: str
    bytes: int
    cuts: tuple[int, ...]


class RunRecord(Record):
    """All that decides the bytes of the output, but for the content of the inputs, which each unit records."""

    format_version: Literal[3] = 3
    tokenizer: str
    options: Options
    versions: dict[str, str]
    inputs: tuple[InputRecord, ...]


def record_run(
    inputs: Sequence[InputFile],
    units: Sequence[Unit],
    tokenizer: Tokenizer,
    options: Options,
    versions: dict[str, str],
) -> RunRecord:
    """The record of a run that is about to begin."""
    cuts: list[list[int]] = [[] for _ in inputs]
    for unit in units:
        cuts[unit.input].append(unit.part.stop)
    return RunRecord(
        tokenizer=tokenizer.content_hash,
        options=options,
        versions=versions,
        inputs=tuple(
            InputRecord(path=file.path, bytes=file.bytes, cuts=tuple(ends))
            for file, ends in zip(inputs, cuts, strict=True)
        ),
    )


def is_kept(error: BaseException) -> bool:
    """Whether the finished units outlive this failure: a user's mistake is told at once and leaves nothing."""
    return isinstance(error, ResumableError) or not isinstance(error, UserError)


@contextmanager
def refusals_keep_units(directory: Path) -> Iterator[None]:
    """Until the units are opened, a user's mistake leaves there what an earlier start has finished.

    Raises:
        ResumableError: instead of the mistake, with its words.
    """
    try:
        yield
    except UserError as error:
        if not any(directory.iterdir()):
            raise
        raise ResumableError(str(error)) from error


def units_directory(directory: Path) -> Path:
    """Where the units are, below the temporary `directory` of the output."""
    return directory / "units"


def removed_units(output: Path) -> Path:
    """Where the units' directory goes when all is placed: out of the output by one rename, and then away."""
    return output.with_name(f".{output.name}.units")


def open_units(directory: Path, output: Path, run: RunRecord, *, restart: bool) -> Path:
    """The directory of the units below the temporary `directory`; in it only what is finished.

    Raises:
        ResumableError: it was left by another run; the difference is named.
    """
    units, removed = units_directory(directory), removed_units(output)
    if removed.exists() and (directory / MANIFEST).exists() and not units.exists():
        os.rename(removed, units)  # killed just before the directory was published
    if removed.exists():
        shutil.rmtree(removed)
    if restart or not (units / _RUN_FILE).exists():
        _clear(directory)
        units.mkdir()
        with atomic_file(units / _RUN_FILE) as stream:
            stream.write(run.model_dump_json().encode("utf-8"))
        return units
    for difference in _differences(_read(units / _RUN_FILE), run):
        raise ResumableError(
            f"{difference}, so the interrupted run of '{output}' cannot go on; "
            "give what it had, or start anew with --restart"
        )
    for phase in (units, units / HASHES):
        for left in phase.iterdir() if phase.exists() else ():
            if not (left.name.isdecimal() or left.name in (_RUN_FILE, HASHES)):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return units


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _read(path: Path) -> RunRecord:
    try:
        return RunRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise ResumableError(
            f"{path}: not a record of this version ({error.errors()[0]['msg']}); start anew with --restart"
        ) from error


def _differences(old: RunRecord, new: RunRecord) -> Iterator[str]:
    """What the two runs do not share, the first causes first."""
    before, now = [file.path for file in old.inputs], [file.path for file in new.inputs]
    for number, (was, given) in enumerate(zip(before, now, strict=False), 1):
        if was != given:
            yield f"--input: file {number} is '{given}', it was '{was}'"
    if len(before) != len(now):
        yield f"--input: {len(now)} files are given, there were {len(before)}"
    if old.tokenizer != new.tokenizer:
        yield f"--tokenizer: its hash is {new.tokenizer[:12]}, it was {old.tokenizer[:12]}"
    for name in Options.model_fields:
        if (was := getattr(old.options, name)) != (given := getattr(new.options, name)):
            yield f"--{name.replace('_', '-')}: is {given}, it was {was}"
    for name in sorted(old.versions.keys() | new.versions.keys()):
        if (was := old.versions.get(name)) != (given := new.versions.get(name)):
            yield f"{name}: the version is {given}, it was {was}"
    for was, given in zip(old.inputs, new.inputs, strict=False):
        if was.bytes != given.bytes:
            yield f"--input: '{given.path}' has {given.bytes} bytes, it had {was.bytes}"
        elif was.cuts != given.cuts:
            yield f"--input: '{given.path}' is cut elsewhere: it was changed, or the size of the units"
