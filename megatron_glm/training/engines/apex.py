"""NVIDIA's apex, if it is there: PyPI has a package of that name that is something else."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Literal

from megatron_glm.errors import ConfigError

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


def uses_apex(wanted: Literal["torch", "apex", "auto"], field: str) -> bool:
    """Whether apex computes what a setting is about: where it is wanted, or may be used and is there.

    Raises:
        ConfigError: apex is wanted and not there, or `apex` is the PyPI package of that name.
    """
    import torch  # the doctor asks the function above where there may be none

    if wanted == "torch":
        return False
    has_gpu = torch.cuda.is_available()
    if nvidia_apex() is not None and has_gpu:
        return True
    if wanted == "apex":
        missing = "NVIDIA's apex is not installed" if has_gpu else "apex runs on CUDA devices, and there is none"
        raise ConfigError(f"{field}: apex, but {missing}; use torch, whose kernel is fused too")
    return False
