"""Where torch.compile keeps what it has compiled, and whether that may be loaded.

torch takes every file that is there for whole. One that was cut short, by a disk that was full, a compiler that was
killed or a machine that lost its power, ends the process by a signal when it is run, at every start anew.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from megatron_glm.errors import ConfigError

_ELF = b"\x7fELF"
_HEADER_BYTES = 64
_SOURCES = (".cpp", ".py")  # written aside and renamed, so that only a loss of power leaves them empty


def see_that_torch_has_one() -> None:
    """Load the compiler of torch, whether it is to be used or not: what draws initial values does so too.

    Raises:
        ConfigError: the directory cannot be made.
    """
    try:
        import torch._dynamo  # noqa: F401  seconds
    except OSError as error:
        raise ConfigError(
            f"TORCHINDUCTOR_CACHE_DIR: torch cannot make its directory for compiled programs, which it does whatever"
            f" train.compile is ({error}); set the variable to a directory that can be written"
        ) from error


def see_that_it_is_ours() -> Path:
    """The directory; programs are not loaded from another user's: anybody can guess the usual name in /tmp.

    Raises:
        PermissionError: it is the usual one, and another user's.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

    place = Path(cache_dir())
    if place == Path(default_cache_dir()) and place.exists() and place.stat().st_uid != os.getuid():
        raise PermissionError(f"'{place}' belongs to another user; set TORCHINDUCTOR_CACHE_DIR to a directory of yours")
    return place


def remove_cut_programs(place: Path) -> None:
    """Remove what is not whole, so that it is compiled anew; what another process is writing is left to it."""
    for program in place.glob("*/*.so"):
        with suppress(Timeout, OSError), FileLock(_lock_of(place, program), timeout=0):
            if not _is_whole(program):
                program.unlink()
    for suffix in _SOURCES:
        for source in place.glob(f"*/*{suffix}"):
            with suppress(OSError):
                if source.stat().st_size == 0:
                    source.unlink()


def _lock_of(place: Path, program: Path) -> Path:
    """The lock that torch holds while a program is written."""
    locks = place / "locks"
    locks.mkdir(exist_ok=True)
    return locks / f"{program.name.partition('.')[0]}.lock"


def _is_whole(program: Path) -> bool:
    """Whether a shared library ends where its header says: at the end of the table of its sections, which is last."""
    with program.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES or not header.startswith(_ELF):
        return False
    start, entry_bytes, entries = (int.from_bytes(header[a:b], "little") for a, b in ((40, 48), (58, 60), (60, 62)))
    return 0 < start + entry_bytes * entries <= program.stat().st_size
