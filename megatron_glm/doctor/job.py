"""What the processes of a job are to each other: where they run, their clocks, their groups.

Every check is a collective: all processes make it, and all have the same finding.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from megatron_glm.doctor.finding import Finding, Status, ranks_text
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import Ranks

_SKEW_SECONDS = 1.0
_ROUNDS = 5
_BYTES = {"cpu": 8 << 20, "cuda": 256 << 20}


def check_hosts(ranks: Ranks) -> Iterator[Finding]:
    """Which ranks run where; two of them on one GPU are a fault."""
    own_gpu = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if _cuda() else None
    places = ranks.gather([socket.gethostname(), own_gpu])
    by_host: dict[str, list[int]] = {}
    for rank, (host, _) in enumerate(places):
        by_host.setdefault(host, []).append(rank)
    value = "; ".join(f"{ranks_text(found)} on {host}" for host, found in by_host.items())
    gpus = [gpu for _, gpu in places if gpu]
    if len(set(gpus)) < len(gpus):
        twice = [rank for rank, (_, gpu) in enumerate(places) if gpus.count(gpu) > 1]
        value += f"; {ranks_text(twice)} share GPUs"
        yield Finding("hosts", "fail", value, "start one process a GPU, and see CUDA_VISIBLE_DEVICES")
    else:
        yield Finding("hosts", "ok", value)


def check_same(ranks: Ranks, name: str, value: str, fix: str, *, otherwise: Status = "fail") -> Iterator[Finding]:
    """A fact that should be the same on every rank; what it is called where it is not."""
    values = ranks.gather(value)
    others = [rank for rank, found in enumerate(values) if found != values[0]]
    if others:
        told = f"rank 0 has {values[0]}; {ranks_text(others)} {'has' if len(others) == 1 else 'have'} others"
        yield Finding(name, otherwise, f"{told}, first {values[others[0]]}", fix)
    else:
        yield Finding(name, "ok", value if ranks.size == 1 else f"{value}, on all {ranks.size} ranks")


def check_clocks(ranks: Ranks, clock: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Difference of the ranks' clocks, read when they have all just met; a median, as some meetings take longer."""
    rounds = []
    for _ in range(_ROUNDS):
        ranks.barrier()
        rounds.append(ranks.gather(clock()))
    offsets = [statistics.median(r[rank] - r[0] for r in rounds) for rank in range(ranks.size)]
    skew = max(offsets) - min(offsets)
    if skew > _SKEW_SECONDS:
        farthest = max(range(ranks.size), key=lambda rank: abs(offsets[rank]))
        value = f"{skew:.1f} s apart; rank {farthest} differs most from rank 0"
        yield Finding("clocks", "warn", value, "set the clocks by NTP (chronyd, systemd-timesyncd)")
    else:
        yield Finding("clocks", "ok", f"{skew * 1e3:.1f} ms apart")


def check_groups(groups: Groups, ranks: Ranks) -> Iterator[Finding]:
    """Each kind of group: a sum over it is right, and how fast its slowest one is."""
    layout = groups.layout
    kinds = {
        "all": ([list(range(layout.processes))], dist.group.WORLD),
        "data": (layout.data_groups(), groups.data),
        "pipeline": (layout.pipeline_groups(), groups.pipeline),
        "tensor": (layout.tensor_groups(), groups.tensor),
        "ends": (layout.end_groups(), groups.ends),
    }
    for kind, (members, group) in kinds.items():
        if not members or len(members[0]) == 1:
            continue
        own = next((found for found in members if ranks.rank in found), None)
        right = own is None or _sums(own, group)
        wrong = [rank for rank, good in enumerate(ranks.gather(right)) if not good]
        speeds = ranks.gather(None if own is None else _bus_speed(group))
        slowest = min(speed for speed in speeds if speed is not None)
        size = _BYTES["cuda" if _cuda() else "cpu"]
        value = f"{len(members)} × {len(members[0])} ranks, {slowest / 1e9:.2f} GB/s (all-reduce of {size >> 20} MiB)"
        if wrong:
            fix = "a device or link of theirs gives wrong results: run without them"
            yield Finding(f"group {kind}", "fail", f"{value}; wrong sum on {ranks_text(wrong)}", fix)
        else:
            yield Finding(f"group {kind}", "ok", value)


def _sums(members: list[int], group: dist.ProcessGroup) -> bool:
    # Each rank has its own power of two, so that no other set of ranks has the same sum.
    value = torch.zeros(len(members), dtype=torch.int64, device=_device())
    value[members.index(dist.get_rank())] = 1 << (dist.get_rank() % 62)
    dist.all_reduce(value, group=group)
    return value.tolist() == [1 << (rank % 62) for rank in members]


def _bus_speed(group: dist.ProcessGroup) -> float:
    """Bytes per second over each link, as NCCL's tests count them: 2 (n − 1) / n of the tensor in an all-reduce."""
    size = _BYTES["cuda" if _cuda() else "cpu"]
    tensor, times = torch.zeros(size // 4, device=_device()), []
    for _ in range(_ROUNDS):  # the first one also builds the connections; the fastest counts
        dist.barrier(group=group)
        started = time.perf_counter()
        dist.all_reduce(tensor, group=group)
        if _cuda():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    n = dist.get_world_size(group)
    return size * 2 * (n - 1) / n / min(times)


def _cuda() -> bool:
    return torch.cuda.is_available()


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if _cuda() else torch.device("cpu")
