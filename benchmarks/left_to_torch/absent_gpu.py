"""The programs that torch.compile would run on a GPU that is not here.

Inductor writes Triton from a graph and the properties of a chip; it asks for a device only to learn those, and to run.
So it is told them, and stopped before it runs. Nothing of its choices is changed: they depend on the chip's numbers,
and on types, shapes and devices of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch._dynamo.device_interface as device_interface
import torch._functorch.config
import torch._inductor.config
import triton
from torch import Tensor, fx, nn
from torch._dynamo.device_interface import CudaInterface, get_interface_for_device
from torch._guards import detect_fake_mode
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime import triton_helpers
from torch._subclasses import FakeTensorMode
from triton.backends.compiler import GPUTarget

# Streaming multiprocessors. Source: NVIDIA's architecture white papers, A100 and H100 SXM5 (an H200 has as many).
MULTIPROCESSORS = {"sm_80": 108, "sm_90": 132}
_CUDA = torch.device("cuda", 0)
# Autograd wants a guard of the device, which a CPU build lacks for "cuda" and has for this one. The formulas that are
# traced ask whether a tensor is on a CPU, and nothing else; the graphs are moved before Inductor sees them.
_TRACED_ON = torch.device("lazy")


def pretend(arch: str) -> None:
    """Let torch and Triton see a GPU of an architecture, "sm_80" or "sm_90", until the process ends.

    It cannot be taken back, since both remember what they saw: for processes that do nothing else.
    """
    properties = _properties(arch)
    capability = (properties.major, properties.minor)

    class Worker(CudaInterface.Worker):
        get_device_properties = staticmethod(lambda device=None: properties)
        current_device = staticmethod(lambda: 0)

    class AbsentGPU(CudaInterface):
        is_available = staticmethod(lambda: True)
        is_bf16_supported = staticmethod(lambda including_emulation=False: True)
        get_compute_capability = staticmethod(lambda device=None: 10 * properties.major + properties.minor)
        get_device_properties = staticmethod(lambda device=None: properties)
        current_device = staticmethod(lambda: 0)
        device_count = staticmethod(lambda: 1)

    AbsentGPU.Worker = Worker
    get_interface_for_device("cpu")  # fills the registry, which would overwrite what follows
    for name in ("cuda", "cuda:0"):
        device_interface.register_interface_for_device(name, AbsentGPU)
    torch.cuda.get_device_properties = lambda device=None: properties
    torch.cuda.get_device_capability = lambda device=None: capability
    torch.cuda.current_device = lambda: 0
    target = GPUTarget("cuda", 10 * properties.major + properties.minor, 32)
    triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: target))
    triton_helpers.set_driver_to_gpu = lambda: None  # generated modules call it when they are loaded


def programs(module: nn.Module, *shape: int, dtype: torch.dtype) -> list[str]:
    """The source of what runs forward and of what runs backward, for an input of a shape; after `pretend`.

    The module may have been built on "meta". Gradients are those of the input and of all parameters.
    """
    graph, parameters = _traced(module)
    with FakeTensorMode():
        shapes = [shape, *(parameter.shape for parameter in parameters)]
        inputs = [torch.empty(size, dtype=dtype, device=_TRACED_ON, requires_grad=True) for size in shapes]
    return _written(graph, inputs)


def programs_of(function: Callable[..., Tensor], *inputs: Any, options: Mapping[str, Any]) -> list[str]:
    """The same of what torch.compile makes of a function and its inputs, which are on the CPU; after `pretend`.

    Args:
        options: of Inductor.
    """
    sources: list[str] = []

    def backend(graph: fx.GraphModule, traced: list[Tensor]) -> fx.GraphModule:
        sources.extend(_written(graph, traced, **options))
        return graph  # which the CPU can run

    torch.compile(function, backend=backend)(*inputs)
    return sources


def _written(graph: fx.GraphModule, inputs: list[Tensor], **options: Any) -> list[str]:
    """The programs for fake inputs, as if these were on the GPU."""
    mode, sources = detect_fake_mode(inputs), []

    def moved(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(map(moved, value))
        if not isinstance(value, Tensor):
            return value
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_CUDA)

    def lowered(graph: fx.GraphModule, inputs: list[Tensor], **options: Any) -> Any:
        for node in graph.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = moved(node.meta["val"])
            if node.kwargs.get("device") is not None:
                node.kwargs = node.kwargs | {"device": _CUDA}
        return compile_fx_inner(graph, moved(list(inputs)), **options)

    def written(lowering: GraphLowering) -> SimpleNamespace:
        sources.append(lowering.codegen()[0].value)
        return SimpleNamespace(__file__="", call=None)

    load, GraphLowering.compile_to_module = GraphLowering.compile_to_module, written
    try:
        with (
            torch._inductor.config.patch({"force_disable_caches": True, **options}),
            torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
        ):
            compile_fx(graph, inputs, inner_compile=lowered)
    finally:
        GraphLowering.compile_to_module = load
    return sources


class _ThroughModules(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return False


def _traced(module: nn.Module) -> tuple[fx.GraphModule, list[nn.Parameter]]:
    """The module as a graph of functions that takes its parameters after its input, and these parameters."""
    graph = _ThroughModules().trace(module)
    place = next(node for node in graph.nodes if node.op == "placeholder")
    parameters = []
    for node in list(graph.nodes):
        if node.op == "get_attr":
            with graph.inserting_after(place):
                place = graph.placeholder(node.target.replace(".", "_"))
            node.replace_all_uses_with(place)
            graph.erase_node(node)
            parameters.append(module.get_parameter(node.target))
        elif node.op == "output":
            node.args = ((node.args[0],),)
    return fx.GraphModule(module, graph), parameters


def _properties(arch: str) -> SimpleNamespace:
    major, minor = divmod(int(arch.removeprefix("sm_")), 10)
    return SimpleNamespace(
        name=arch,
        major=major,
        minor=minor,
        multi_processor_count=MULTIPROCESSORS[arch],
        regs_per_multiprocessor=65_536,
        max_threads_per_multi_processor=2_048,
        max_threads_per_block=1_024,
        warp_size=32,
        gcnArchName=arch,  # what a build without CUDA names a chip by, in the key of a cache
    )
