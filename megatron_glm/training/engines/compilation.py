"""Whether norms and GELU of a run are compiled: tried on every rank before there is a model, and decided for all alike.

A kernel that cannot be compiled, or computes something else, must show in the first minute, not in the third hour.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from megatron_glm.config.schema import Config
from megatron_glm.errors import ConfigError
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.training.engines.apex import apex_normalizes
from megatron_glm.training.engines.compiled_parts import is_compiled
from megatron_glm.training.engines.compiled_trial import try_parts
from megatron_glm.training.engines.program_directory import see_that_torch_has_one

_REASON = 300  # characters of a compiler's error
_TELLING = ("error", "failed", "cannot")  # a linker says why before its caller says that it has ended


@dataclass(frozen=True)
class Compilation:
    """What was decided.

    Attributes:
        config: the run's, with train.compile decided: what a model is built from.
        told: in words, for the banner.
    """

    config: Config
    told: str

    @property
    def is_on(self) -> bool:
        return self.config.train.compile == "always"


def settle_compilation(
    config: Config,
    ranks: Ranks,
    *,
    say: Callable[[str], object] = lambda text: None,
    stopping: Callable[[], str | None] = lambda: None,
) -> Compilation:
    """Compile what the configuration asks for, on all ranks, which call this together.

    Where one rank cannot, all do without if train.compile is `auto`: the run is then slower, and the banner says why.

    Args:
        say: is given a line on rank 0, before what may take a minute.
        stopping: the name of a signal that has told this process to stop; None if none has. Ctrl-C and Slurm tell the
            compilers below it too, which end at once: a run that is to stop must not be told that it has none.

    Raises:
        ConfigError: train.compile is `always` and a rank cannot, or one lacks the apex that is asked for, or a
            directory that torch wants in any case; on all.
    """
    wanted, compiles = config.train.compile, is_compiled(config.train)
    started, by_apex, refusal, failure = time.monotonic(), False, None, None
    try:
        see_that_torch_has_one()
        if compiles:
            by_apex = apex_normalizes(config.train)
            if ranks.rank == 0:
                say("compiling norms and GELU, unless an earlier start has")
            try_parts(config, norms=not by_apex)
    except ConfigError as error:
        refusal = str(error)
    except Exception as error:  # of Dynamo, Inductor, Triton, a compiler or a driver: each has kinds of its own
        failure = _reason(error)
    reports = ranks.gather([refusal, failure, stopping(), time.monotonic() - started])
    for rank, (refused, *_) in enumerate(reports):
        if refused:
            raise ConfigError(f"rank {rank}: {refused}")
    if not compiles:
        why = "on a CPU torch's own norms are faster" if wanted == "auto" else "train.compile is never"
        return _settled(config, "never", f"nothing: {why}")
    failures = [f"rank {rank}: {reason}" for rank, (_, reason, _, _) in enumerate(reports) if reason]
    if not failures:
        parts = "bias + GELU; the norms are apex's" if by_apex else "norms, bias + GELU"
        return _settled(config, "always", f"{parts}; torch.compile took {max(took for *_, took in reports):.0f} s")
    if signals := [name for _, _, name, _ in reports if name]:
        return _settled(config, "never", f"nothing: {signals[0]} has ended the compilers")
    if wanted == "always":
        raise ConfigError(
            f"train.compile: always, but torch.compile fails on {failures[0]}; it needs a C++ compiler on a CPU, Triton"
            " and a C compiler on a GPU (`glm doctor` looks for them), and a directory that can be written"
            " (TORCHINDUCTOR_CACHE_DIR); mend that, or set train.compile=never"
        )
    return _settled(config, "never", f"NOTHING, and the run is slower for it: torch.compile fails on {failures[0]}")


def _settled(config: Config, compile: str, told: str) -> Compilation:
    train = config.train.model_copy(update={"compile": compile})
    return Compilation(config.model_copy(update={"train": train}), told)


def _reason(error: BaseException) -> str:
    """The first words of what led to it, as one line: a compiler's errors have pages."""
    while (cause := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = cause
    if isinstance(error, subprocess.CalledProcessError):
        program = Path(error.cmd[0] if isinstance(error.cmd, (list, tuple)) else error.cmd.split()[0]).name
        text = f"{program} ended with {error.returncode}: {_complaint(error.output)}"
    else:
        text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_REASON]


def _complaint(output: str | bytes | None) -> str:
    """The line of a compiler's output that tells what is wrong."""
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = (line for line in lines if any(word in line.lower() for word in _TELLING))
    return next(telling, lines[-1] if lines else "it said nothing")
