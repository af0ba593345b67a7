"""How functions that launch kernels become operators of torch.

A kernel reads what its pointers say. Given a tensor of another device, type or length it would read whatever lies
there, so an operator says of every tensor what it has to be, as docstrings do, and refuses any other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import signature

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.library import CustomOpDef

from glm_kernels.dispatch import KERNEL_TYPES

_FORM = re.compile(r"(\w+) \[([\w, ]+)\]")


def kernel_operator(name: str, **forms: str) -> Callable[[Callable], CustomOpDef]:
    """Register what launches kernels as the operator glm_kernels::<name>.

    It runs with the GPU of its tensors as the current one, on which Triton launches, and outside of autocast: kernels
    compute in the types that they are given.

    Args:
        forms: of the tensors by their arguments' names, such as "int64 [T]". A dimension has one size in all of them.
            The type is one of torch's, "float" for one of KERNEL_TYPES, or the name of an argument of the same type.
            Every tensor has one.

    Calling the operator raises:
        ValueError: a tensor is not of its form, or not on the device of the first one.
        RuntimeError: under forward-mode differentiation, which would pass over it and take its derivative for 0.
    """
    parsed = {argument: form(text) for argument, text in forms.items()}

    def register(function: Callable) -> CustomOpDef:
        names = tuple(signature(function).parameters)

        @wraps(function)
        def launching(*args, **kwargs):
            arguments = dict(zip(names, args, strict=False), **kwargs)
            tensors = {argument: x for argument, x in arguments.items() if isinstance(x, Tensor)}
            if forward_ad._current_level >= 0:  # torch has no public name for it
                raise RuntimeError(f"glm_kernels::{name} has no forward-mode derivative; use reverse mode")
            check_forms(f"glm_kernels::{name}", tensors, parsed)
            with torch.cuda.device_of(next(iter(tensors.values()))):
                return computed(**arguments)

        computed = without_autocast(function)
        schema = torch.library.infer_schema(function, mutates_args=())
        return torch.library.custom_op(f"glm_kernels::{name}", launching, mutates_args=(), schema=schema)

    return register


def without_autocast(function: Callable) -> Callable:
    """The function of tensors, computed in the types that it is given, whatever autocast says."""

    @wraps(function)
    def computed(*args, **kwargs):
        kind = next(x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)).device.type
        if not torch.is_autocast_enabled(kind):
            return function(*args, **kwargs)
        with torch.autocast(kind, enabled=False):
            return function(*args, **kwargs)

    return computed


@dataclass(frozen=True)
class Form:
    """What a tensor has to be.

    Args:
        types: the types allowed; None: that of `like`.
        like: the argument whose type it has, if any.
        dimensions: their names.
    """

    types: tuple[torch.dtype, ...] | None
    like: str | None
    dimensions: tuple[str, ...]


def form(text: str) -> Form:
    """A form as `kernel_operator` takes it: "int64 [T]"."""
    kind, names = _FORM.fullmatch(text).groups()
    dimensions = tuple(names.split(", "))
    if kind == "float":
        return Form(KERNEL_TYPES, None, dimensions)
    dtype = getattr(torch, kind, None)
    return Form((dtype,), None, dimensions) if isinstance(dtype, torch.dtype) else Form(None, kind, dimensions)


def check_forms(place: str, tensors: Mapping[str, Tensor], forms: Mapping[str, Form]) -> None:
    """Raise ValueError for the first tensor that is not of its form, or not on the device of the first."""
    sizes: dict[str, int] = {}
    first, device = None, None
    for name, x in tensors.items():  # on the way of every launch: a plain loop, without a call of our own
        wanted = forms[name]
        if device is None:
            first, device = name, x.device
        elif x.device != device:
            raise ValueError(f"{place}: {name} is on {x.device}, {first} on {device}; move one of them")
        types = wanted.types
        if x.dtype not in types if types else x.dtype != tensors[wanted.like].dtype:
            raise ValueError(f"{place}: {name} is {_shown(x.dtype)}, it has to be {_type_of(wanted, tensors)}")
        fits = x.dim() == len(wanted.dimensions)
        for dimension, size in zip(wanted.dimensions, x.shape, strict=False):
            fits = fits and sizes.setdefault(dimension, size) == size
        if not fits:
            shown = ", ".join(wanted.dimensions)
            here = ", ".join(str(sizes.get(dimension, dimension)) for dimension in wanted.dimensions)
            raise ValueError(f"{place}: {name} is {list(x.shape)}, it has to be [{shown}], here [{here}]")


def _type_of(wanted: Form, tensors: Mapping[str, Tensor]) -> str:
    if wanted.types is None:
        return f"{_shown(tensors[wanted.like].dtype)} as {wanted.like}"
    return " or ".join(map(_shown, wanted.types))


def _shown(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
