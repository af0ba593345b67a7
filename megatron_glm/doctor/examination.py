"""All checks in their order, made by every process of a job together."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable

import torch

from megatron_glm.config.schema import Config
from megatron_glm.doctor import configured, job, machine, packages
from megatron_glm.doctor.finding import Finding, findings_of, merged
from megatron_glm.errors import ConfigError
from megatron_glm.parallel.groups import make_groups
from megatron_glm.parallel.layout import Layout
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.training.reports.banner import versions


def examine(config: Config | None, ranks: Ranks, before: Iterable[Finding] = ()) -> list[Finding]:
    """Every finding about this job, the same on all ranks.

    Args:
        config: the run that is meant; None: the machine and its groups alone.
        before: what each rank has found already.
    """
    gpu = torch.cuda.is_available()
    found = [*before, *findings_of("packages", lambda: packages.check_gpu_packages(gpu=gpu))]

    def add(name: str, check: Callable[[], Iterable[Finding]]) -> None:
        found.extend(findings_of(name, check))

    numbers = versions()
    commit = numbers.pop("commit", "of no checkout")  # a machine without git is no fault
    text = ", ".join(f"{name} {number}" for name, number in numbers.items())
    add("versions", lambda: job.check_same(ranks, "versions", text, "install the same packages everywhere"))
    add("code", lambda: job.check_same(ranks, "code", commit, "check out the same commit", otherwise="warn"))
    hosts = ranks.gather(socket.gethostname())
    add("backend", lambda: [Finding("backend", "ok", torch.distributed.get_backend())])
    here, precision = hosts.count(hosts[ranks.rank]), config and config.train.precision
    add("device", lambda: machine.check_devices(alone=here == 1, precision=precision))
    add("processor", lambda: machine.check_processor(processes=here))
    add("compiler", machine.check_compiler)
    add("shared memory", machine.check_shared_memory)
    add("limits", machine.check_limits)
    add("hosts", lambda: job.check_hosts(ranks))
    add("clocks", lambda: job.check_clocks(ranks))
    groups = make_groups(_layout(config, ranks.size))
    add("groups", lambda: job.check_groups(groups, ranks))
    if config:
        add("layout", lambda: configured.check_layout(config, ranks.size))
        add("apex", lambda: configured.check_apex(config))
        add("torch.compile", lambda: configured.check_compilation(config, ranks))
        add("inputs", lambda: configured.check_inputs(config, ranks))
    return merged([[Finding(**finding) for finding in findings] for findings in ranks.gather(list(map(vars, found)))])


def _layout(config: Config | None, processes: int) -> Layout:
    """That of the configuration; replicas alone where there is none, or where it does not divide."""
    try:
        parallel = config and config.parallel
        return (
            Layout.of(processes, tensor=parallel.tensor, pipeline=parallel.pipeline) if parallel else Layout(processes)
        )
    except ConfigError:
        return Layout(processes)
