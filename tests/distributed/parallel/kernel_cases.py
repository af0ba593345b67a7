"""The divided model and the whole one with the kernels of embedding, dropout and loss, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from megatron_glm.data.batch import collate
from tests.distributed.parallel import sharded_cases
from tests.distributed.training.cases import sample


def small(function: Callable[..., Any], *arguments: Any) -> Any:
    """A case of one layer and two samples: the interpreter is slow."""
    model = sharded_cases.MODEL.model_copy(update={"num_layers": 1})
    batch = collate([sample(index) for index in range(2)], pad_id=0)
    with mock.patch.multiple(sharded_cases, MODEL=model, batch=lambda: batch):
        return function(*arguments)


def on_kernels(function: Callable[..., Any], *arguments: Any) -> Any:
    """A small case as on a GPU."""
    with mock.patch("glm_kernels.dispatch._on_a_gpu", return_value=True) as asked:
        result = small(function, *arguments)
    assert asked.called
    return result


def sharded(spread: bool):
    return on_kernels(sharded_cases.sharded, spread, "none")
