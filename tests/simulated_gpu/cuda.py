"""The Python side of the simulated GPU: what torch.cuda answers in a process that has one.

torch itself calls `start` at the end of its import: it looks for entry points named "torch.backends", and
`SimulatedMachine` puts one on the path.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import torch

from tests.simulated_gpu.nccl import pretend_nccl

_MEMORY = 80 << 30  # bytes; nothing is bounded by it
_CAPABILITY = (8, 0)


def start() -> None:
    """Give this process the GPUs that SIMULATED_GPUS counts, those of them that CUDA_VISIBLE_DEVICES lets it see."""
    count = _visible_gpus()
    if os.environ.get("SIMULATED_TRITON") == "0":
        sys.modules["triton"] = None  # as where it is not installed: stock operators have the numbers of a CPU
    if not count:
        return
    if torch.backends.cuda.is_built():
        raise RuntimeError("the simulated GPU takes the place of CUDA in a torch that was built without it")
    torch.ops.load_library(os.environ["SIMULATED_GPU_LIBRARY"])
    torch.ops.simulated_gpu.start(count)
    _pretend_cuda(count)
    pretend_nccl()


def _visible_gpus() -> int:
    count = int(os.environ.get("SIMULATED_GPUS", "0"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return count if visible is None else sum(int(number) < count for number in visible.split(",") if number.strip())


def _pretend_cuda(count: int) -> None:
    cuda, device = torch.cuda, torch.ops.simulated_gpu
    torch.version.cuda = "12.8"
    cuda._queued_calls.clear()  # they look at the chip
    cuda._lazy_init = _initialize
    cuda._is_in_bad_fork = device.is_lost
    cuda._is_compiled = lambda: True
    cuda.is_available = lambda: True  # one function each: torch.compile keeps them by identity
    cuda.device_count = _visible_gpus  # as NVML counts, whatever the variable was at first
    cuda._exchange_device = lambda index: device.exchange_device(index)
    cuda._maybe_exchange_device = lambda index: device.exchange_device(index)
    functions = {
        "getDevice": device.current_device,
        "setDevice": device.choose_device,
        "getDeviceCount": lambda: count,
        "synchronize": device.synchronize,
        "emptyCache": lambda: None,
        "memoryStats": lambda index: {},
        "resetPeakMemoryStats": lambda index: None,
        "resetAccumulatedMemoryStats": lambda index: None,
        "isCurrentStreamCapturing": lambda: False,
        "getCurrentRawStream": lambda index: 0,
    }
    for name, function in functions.items():
        setattr(torch._C, f"_cuda_{name}", function)
    cuda.nccl.version = lambda: (2, 27, 5)
    cuda.get_device_properties = _properties_of
    cuda.get_device_capability = lambda device=None: _CAPABILITY
    cuda.get_device_name = lambda device=None: _properties_of(device).name
    cuda.mem_get_info = lambda device=None: (_MEMORY, _MEMORY)
    cuda.is_bf16_supported = lambda including_emulation=True: True
    cuda.default_generators = tuple(torch.Generator(device=f"cuda:{index}") for index in range(count))
    cuda.Stream, cuda.Event = Stream, Event
    cuda.current_stream = lambda device=None: Stream()
    cuda.default_stream = lambda device=None: Stream()
    cuda.set_stream = lambda stream: None
    cuda.nvtx._nvtx = SimpleNamespace(rangePushA=lambda text: 0, rangePop=lambda: 0)


def _initialize() -> None:
    """What torch calls before it uses CUDA."""
    if torch.ops.simulated_gpu.is_lost():
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
    if not torch.cuda._initialized:
        torch.cuda._initialized = True
        for seeding, _ in torch.cuda._lazy_seed_tracker.get_calls():
            seeding()


def _properties_of(device: object = None) -> SimpleNamespace:
    torch.cuda._lazy_init()
    index = torch.cuda._utils._get_device_index(device, optional=True)
    return SimpleNamespace(
        name="simulated GPU",
        uuid=f"GPU-{index}",
        major=_CAPABILITY[0],
        minor=_CAPABILITY[1],
        total_memory=_MEMORY,
        multi_processor_count=108,
        is_integrated=False,
    )


class Stream(torch.Stream):
    """A stream in which all is done when it is asked for."""

    def __new__(cls, device: object = None, priority: int = 0, **_: object) -> Stream:
        return super().__new__(cls, device=torch.device("cuda", torch.cuda.current_device()), priority=priority)


class Event(torch.Event):
    """An event of such a stream."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        return super().__new__(cls, device=torch.device("cuda"), enable_timing=enable_timing)
