"""What a machine lacks is seen, and told with what to do."""

import shutil
from collections import namedtuple

import pytest
import torch

from megatron_glm.doctor import machine

Usage = namedtuple("Usage", "total used free")


def only(findings):
    (finding,) = findings
    return finding


@pytest.mark.parametrize(("text", "cores"), [("150000 100000", 1.5), ("max 100000", 8), ("9900000 100000", 8)])
def test_the_quota_of_a_container_counts(tmp_path, monkeypatch, text, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(8)))
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert machine.granted_cores(tmp_path) == cores


def test_without_a_container_the_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(3)))
    assert machine.granted_cores(tmp_path) == 3


def test_more_threads_than_cores_are_a_warning(monkeypatch):
    monkeypatch.setattr(machine, "granted_cores", lambda: 4.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert only(machine.check_processor(processes=1)).status == "ok"
    crowded = only(machine.check_processor(processes=2))
    assert (crowded.status, crowded.fix) == ("warn", "set train.threads to 2, or OMP_NUM_THREADS")


def test_bf16_without_its_instructions_is_a_warning_and_fp16_a_fault(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(machine, "cpu_flags", lambda: {"avx2"})
    assert only(machine.check_devices(alone=True, precision="fp32")).status == "ok"
    assert only(machine.check_devices(alone=True, precision="bf16")).status == "warn"
    assert only(machine.check_devices(alone=True, precision="fp16")).status == "fail"
    monkeypatch.setattr(machine, "cpu_flags", lambda: {"avx2", "amx_bf16"})
    assert only(machine.check_devices(alone=True, precision="bf16")).status == "ok"


def test_the_instructions_are_read_from_what_the_kernel_says(tmp_path):
    source = tmp_path / "cpuinfo"
    source.write_text("processor\t: 0\nflags\t\t: fpu avx512_bf16\nprocessor\t: 1\nflags\t\t: fpu avx512_bf16\n")
    assert machine.cpu_flags(source) == {"fpu", "avx512_bf16"}
    assert machine.cpu_flags(tmp_path / "none") == set()


@pytest.mark.parametrize(
    ("name", "memory", "precision", "status"),
    [
        ((9, 0), (95, 100), "bf16", "ok"),
        ((7, 0), (95, 100), "bf16", "fail"),
        ((7, 0), (95, 100), "fp32", "ok"),
        ((9, 0), (50, 100), "bf16", "warn"),
    ],
)
def test_each_gpu_is_judged(monkeypatch, name, memory, precision, status):
    properties = namedtuple("Properties", "name major minor")("A GPU", *name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: tuple(size << 30 for size in memory))
    assert only(machine.check_devices(alone=False, precision=precision)).status == status
    both = list(machine.check_devices(alone=True, precision=precision))
    assert [(f.check, f.status) for f in both] == [("device 0", status), ("device 1", status)]


def test_a_compiler_is_needed_on_a_gpu_alone(monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    for gpu, status in ((False, "ok"), (True, "fail")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        assert only(machine.check_compiler()).status == status


def test_the_shared_memory_of_a_plain_container_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(64 << 20, 0, 64 << 20))
    finding = only(machine.check_shared_memory(tmp_path))
    assert finding.status == "warn"
    assert "--shm-size" in finding.fix
    assert only(machine.check_shared_memory(tmp_path / "none")).status == "warn"


def test_limits_of_the_shell_are_seen(tmp_path, monkeypatch):
    infinity = machine.resource.RLIM_INFINITY
    limits = {machine.resource.RLIMIT_NOFILE: (1024, 4096), machine.resource.RLIMIT_MEMLOCK: (65536, infinity)}
    monkeypatch.setattr(machine.resource, "getrlimit", limits.get)
    assert [(f.check, f.status) for f in machine.check_limits(tmp_path / "none")] == [("open files", "warn")]
    (tmp_path / "mlx5_0").mkdir()
    assert [f.status for f in machine.check_limits(tmp_path)] == ["warn", "warn"]
    monkeypatch.setattr(machine.resource, "getrlimit", lambda kind: (infinity, infinity))
    assert [f.status for f in machine.check_limits(tmp_path)] == ["ok", "ok"]
