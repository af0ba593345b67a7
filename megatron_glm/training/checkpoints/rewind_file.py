"""What a run that goes back has decided, kept until a checkpoint holds it.

Between a rewind and the next save no checkpoint knows which samples are left out: a run that ended there would come to
the same spike again, go back again, and count that as its first time.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from megatron_glm.checkpoint.training_state import Count, Range
from megatron_glm.errors import CheckpointError
from megatron_glm.files import Files, atomic_file
from megatron_glm.json_reading import json_object

REWIND_FILE = "rewind.json"


class RewindRecord(BaseModel):
    """A rewind that no checkpoint holds yet.

    Attributes:
        step: of the checkpoint that the run has gone back to.
        rewinds: of the run so far, this one included.
        skip_samples: all ranges that are left out from there on.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    run_id: str
    step: Count
    rewinds: Count
    skip_samples: list[Range]


def keep_rewind(output: Path, record: RewindRecord, files: Files | None = None) -> None:
    """Put the record into a run's output, whole, in place of an earlier one. Raises OSError."""
    files = files or Files()
    with atomic_file(output / REWIND_FILE, files) as stream:
        files.write(stream, record.model_dump_json().encode())


def kept_rewind(output: Path, *, run_id: str, step: int) -> RewindRecord | None:
    """The rewind that holds for a start from a checkpoint; None where that one knows all, or there was none.

    Args:
        run_id: of the checkpoint.
        step: of it. What lies behind the one that the run went back to was saved later, and is the truth.

    Raises:
        CheckpointError: the file cannot be read, or is no such record.
    """
    path = output / REWIND_FILE
    try:
        record = RewindRecord.model_validate(json_object(path.read_bytes()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise _damaged(path, error.errors()[0]["msg"]) from error
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    return record if record.run_id == run_id and step <= record.step else None


def forget_rewind(output: Path, files: Files | None = None) -> None:
    """A newer checkpoint holds it; a file that cannot be removed is passed over at the next start."""
    path = output / REWIND_FILE
    if path.exists():
        with suppress(OSError):
            (files or Files()).unlink(path)


def _damaged(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path}: not what a run that went back has written ({reason}); it may go back again")
