"""Which files the arguments of --input stand for, in an order that is the same on every machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

from megatron_glm.errors import DataError
from megatron_glm.json_reading import parse_json

_LEFT_OUT = (".", "_")  # first letters of hidden files and of markers as _SUCCESS, by the custom of Hadoop's tools
_SPLITS_FILE = "dataset_dict.json"  # of a Hugging Face DatasetDict
_STATE_FILE = "state.json"  # of a Hugging Face Dataset


def expand(path: str) -> list[str]:
    """The files that an argument stands for: a file for itself, a pattern or a directory for those it has.

    Sorted by code points: the order of a directory differs between file systems, and of a locale between users.

    Raises:
        DataError: there is none, or a directory holds several datasets or an incomplete one.
    """
    if Path(path).is_dir():
        return _files_below(path)
    if not has_magic(path) or Path(path).exists():  # a name may hold brackets
        return [path]
    matches = glob(path, recursive=True)
    # ** matches a directory and also what is in it; the set has each file once.
    files = {file for match in matches for file in (_files_below(match) if Path(match).is_dir() else [match])}
    if not files:
        raise DataError(f"--input: no file matches '{path}'; ** stands for any number of directories")
    return sorted(files)


def refuse_repeated(files: Sequence[str]) -> None:
    """Raises DataError if a file is there twice, under any name: its documents would be doubled in silence."""
    seen: dict[tuple[int, int] | str, str] = {}
    for file in files:
        if (first := seen.get(identity := _identity(file))) is not None:
            other = f", also as '{first}'" if first != file else ""
            raise DataError(f"--input: '{file}' is given twice{other}, its documents would be doubled; leave one out")
        seen[identity] = file


def _identity(file: str) -> tuple[int, int] | str:
    """Equal for all names of a file, hard links too; of one that is missing, which is told later, its name."""
    try:
        status = os.stat(file)
    except OSError:
        return file
    return status.st_dev, status.st_ino


def _files_below(directory: str) -> list[str]:
    if (dataset := _saved_dataset(Path(directory))) is not None:
        return dataset
    files = []
    for parent, directories, names in os.walk(directory, onerror=_raise, followlinks=True):
        directories[:] = [name for name in directories if not name.startswith(_LEFT_OUT)]
        files += [Path(parent, name).as_posix() for name in names if not name.startswith(_LEFT_OUT)]
    if not files:
        raise DataError(f"--input: the directory '{directory}' holds no file; leave it out")
    return sorted(files)


def _saved_dataset(directory: Path) -> list[str] | None:
    """The Arrow files of a Hugging Face dataset as `save_to_disk` writes it, in its order; None if it is no such."""
    if (splits := _read_json(directory / _SPLITS_FILE, "splits")) is not None:
        names = ", ".join(f"'{directory / str(split)}'" for split in splits)
        raise DataError(f"--input: '{directory}' holds several splits; name those that you mean: {names}")
    data_files = _read_json(directory / _STATE_FILE, "_data_files")
    if data_files is None:
        return None
    if _read_json(directory / _STATE_FILE, "_indices_data_files"):
        raise DataError(
            f"--input: the dataset '{directory}' is a selection of the rows that it holds, as old versions of "
            "`datasets` wrote it; load it and save it again by a version since 2.0, which writes the selected rows"
        )
    try:
        names = [entry["filename"] for entry in data_files]
    except (TypeError, KeyError) as error:
        raise DataError(f"--input: '{directory / _STATE_FILE}' names no files; save the dataset again") from error
    if foreign := [name for name in names if not _is_file_name(name)]:
        raise DataError(
            f"--input: '{directory / _STATE_FILE}' names {foreign[0]!r:.80}, which is no file beside it; "
            "save the dataset again"
        )
    return [(directory / name).as_posix() for name in names]


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and "/" not in name and "\0" not in name


def _read_json(path: Path, key: str) -> list | None:
    """What stands under a key of a JSON object; None if there is no such file or key."""
    try:
        content = parse_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"--input: '{path}': {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"--input: '{path}': broken JSON ({error}); fetch it again") from error
    value = content.get(key) if isinstance(content, dict) else None
    if value is not None and not isinstance(value, list):
        raise DataError(f"--input: '{path}': '{key}' is no list; save the dataset again")
    return value


def _raise(error: OSError) -> None:
    raise DataError(f"--input: '{error.filename}': {error.strerror}") from error
