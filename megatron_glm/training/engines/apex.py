"""NVIDIA's apex, if it is there: PyPI has a package of that name that is something else."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Literal

from megatron_glm.errors import ConfigError

if TYPE_CHECKING:  # the doctor looks for packages, pydantic among them, before anything imports them
    from megatron_glm.config.schema import Optimizer, Train

_OF_NVIDIA = ("normalization", "optimizers")  # the parts of it that we use


def nvidia_apex() -> ModuleType | None:
    """NVIDIA's apex, imported; None where no apex is installed.

    Raises:
        ConfigError: `apex` is another package; none of its code is run.
    """
    spec = find_spec("apex")
    if spec is None:
        return None
    places = list(spec.submodule_search_locations or ())
    if not any(all(Path(place, part).is_dir() for part in _OF_NVIDIA) for place in places):
        place = places[0] if places else spec.origin
        raise ConfigError(
            f"apex: the package in '{place}' is not NVIDIA's (`pip install apex` gives a web toolkit of that name);"
            " run `pip uninstall apex`, and where it is wanted build https://github.com/NVIDIA/apex from source"
        )
    return import_module("apex")


def apex_updates(settings: Optimizer, *, zero_stage: int) -> bool:
    """Whether apex computes AdamW. Raises ConfigError where it is wanted and not there, or another package is."""
    if settings.fused == "auto" and zero_stage == 3:
        return False  # check_combinations says why
    return _uses_apex(settings.fused, "optimizer.fused", extension="amp_C")


def apex_normalizes(settings: Train) -> bool:
    """Whether apex computes the norms. Raises ConfigError where it is wanted and not there, or another package is."""
    return _uses_apex(settings.fused_norm, "train.fused_norm", extension="fused_layer_norm_cuda")


def _uses_apex(wanted: Literal["torch", "apex", "auto"], field: str, *, extension: str) -> bool:
    """Whether it is wanted, or may be used and is there.

    Args:
        extension: the compiled module that does it. Without some option its build leaves it out, and apex can still
            be imported.
    """
    if wanted == "torch":
        return False
    missing = _missing(extension)
    if missing and wanted == "apex":
        raise ConfigError(f"{field}: apex, but {missing}; use torch, whose kernel is fused too")
    return not missing


def _missing(extension: str) -> str | None:
    """What apex lacks to be used here, in words."""
    import torch  # the doctor asks for nvidia_apex where there may be none

    if not torch.cuda.is_available():
        return "apex runs on CUDA devices, and there is none"
    if nvidia_apex() is None:
        return "NVIDIA's apex is not installed"
    if find_spec(extension) is None:
        return f"NVIDIA's apex was built without its CUDA extension {extension}"
    return None
