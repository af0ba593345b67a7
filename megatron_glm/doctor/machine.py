"""What the machine of a process has: processor, devices, compiler, shared memory, limits."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from megatron_glm.counting import count_text
from megatron_glm.doctor.finding import Finding

_GIB = 1 << 30
_SHARED_MEMORY = 1 * _GIB  # NCCL and the workers of data.workers pass their buffers through it
_OPEN_FILES = 4096  # sockets of the groups, shards, safetensors
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "svebf16"}


def check_processor(*, processes: int) -> Iterator[Finding]:
    """Cores and threads.

    Args:
        processes: of the job on this machine.
    """
    cores, threads = granted_cores(), torch.get_num_threads()
    value = f"{cores:g} cores granted of {os.cpu_count()}, {processes} × {count_text(threads, 'thread')}"
    if processes * threads > cores + 0.5 and not torch.cuda.is_available():
        threads = max(1, int(cores / processes))
        yield Finding("processor", "warn", value, f"set train.threads to {threads}, or OMP_NUM_THREADS")
    else:
        yield Finding("processor", "ok", value)


def granted_cores(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Cores that this process may use: those of its affinity, or fewer by the quota of its container."""
    cores = float(len(os.sched_getaffinity(0)))
    try:
        quota, period = (group / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else min(cores, int(quota) / int(period))


def check_devices(*, alone: bool, precision: str | None) -> Iterator[Finding]:
    """The GPU of this process, all of them if it is the only one, or the processor's instructions.

    Args:
        precision: train.precision of the configuration, if there is one.
    """
    if not torch.cuda.is_available():
        yield _check_cpu(precision)
    elif alone and torch.cuda.device_count() > 1:
        for number in range(torch.cuda.device_count()):
            yield _check_gpu(f"device {number}", number, precision)
    else:
        yield _check_gpu("device", torch.cuda.current_device(), precision)


def _check_cpu(precision: str | None) -> Finding:
    names = sorted(cpu_flags() & _BF16_FLAGS)
    value = f"no GPU; bf16 instructions of the processor: {', '.join(names) or 'none'}"
    if precision == "fp16":
        return Finding("device", "fail", value, "train.precision: DeepSpeed has no fp16 on a CPU; use bf16 or fp32")
    if precision == "bf16" and not names:
        return Finding("device", "warn", value, "train.precision: fp32 is faster here")
    return Finding("device", "ok", value)


def _check_gpu(name: str, number: int, precision: str | None) -> Finding:
    device = torch.cuda.get_device_properties(number)
    free, total = torch.cuda.mem_get_info(number)
    bf16 = device.major >= 8  # from Ampere on
    value = f"{device.name}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free, {'bf16' if bf16 else 'no bf16'}"
    if precision == "bf16" and not bf16:
        return Finding(name, "fail", value, "train.precision: set fp32, or use a GPU with bf16")
    if free < 0.9 * total:
        return Finding(name, "warn", value, "another process holds its memory: see nvidia-smi")
    return Finding(name, "ok", value)


def cpu_flags(source: Path = Path("/proc/cpuinfo")) -> set[str]:
    """The instructions that the processor names."""
    try:
        lines = source.read_text().splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.partition(":")[2].split()}


def check_compiler() -> Iterator[Finding]:
    """Triton compiles a stub in C when a kernel first runs; on a CPU nothing is compiled."""
    found = os.environ.get("CC") or next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if found or not torch.cuda.is_available():
        yield Finding("compiler", "ok", found or "none, and none needed on a CPU")
    else:
        yield Finding("compiler", "fail", "none", "install gcc: Triton needs a C compiler at run time")


def check_shared_memory(place: Path = Path("/dev/shm")) -> Iterator[Finding]:
    """Room that processes of one machine share."""
    if not place.is_dir():
        yield Finding("shared memory", "warn", f"{place} does not exist", "mount a tmpfs there")
        return
    usage = shutil.disk_usage(place)
    value = f"{usage.free / _GIB:.2f} of {usage.total / _GIB:.2f} GiB free in {place}"
    if usage.free < _SHARED_MEMORY:
        yield Finding("shared memory", "warn", value, "start the container with --shm-size=8g (or --ipc=host)")
    else:
        yield Finding("shared memory", "ok", value)


def check_limits(infiniband: Path = Path("/sys/class/infiniband")) -> Iterator[Finding]:
    """Limits of the shell: open files, and with InfiniBand memory that may be locked."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < _OPEN_FILES:
        yield Finding("open files", "warn", str(files), f"ulimit -n {16 * _OPEN_FILES}")
    else:
        yield Finding("open files", "ok", "unlimited" if files == resource.RLIM_INFINITY else str(files))
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if infiniband.is_dir() and any(infiniband.iterdir()):
        unlimited = locked == resource.RLIM_INFINITY
        value = "unlimited" if unlimited else f"{locked} bytes"
        fix = "" if unlimited else "ulimit -l unlimited: InfiniBand locks its buffers"
        yield Finding("locked memory", "ok" if unlimited else "warn", value, fix)
