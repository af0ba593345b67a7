"""What a run says before its first step: what will run, on what, from where."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from megatron_glm.config.schema import Config
from megatron_glm.training.reporting import short_number

_PACKAGES = ("megatron_glm", "torch", "deepspeed", "triton", "numpy")
_BYTES_PER_PARAMETER = 12  # a checkpoint holds the fp32 weight and two fp32 moments


def versions() -> dict[str, str]:
    """Versions of what decides a run's numbers, and the commit of a source checkout."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    commit = _commit()
    return found | {"commit": commit} if commit else found


def _commit() -> str | None:
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):  # no git, or not a checkout
        return None
    return result.stdout.strip()


def banner(
    config: Config,
    *,
    device: str,
    replicas: int,
    accumulation: int,
    num_ids: int,
    num_parameters: int,
    start: str,
    entropy: Mapping[str, float],
) -> str:
    """The start banner, one fact a line."""
    train, parallel = config.train, config.parallel
    tokens = train.global_batch_size * config.data.window
    weights = ", ".join(f"{source.path} × {source.weight:g}" for source in config.data.sources)
    mixture = ", ".join(
        f"{name} {value:g}"
        for name in ("token", "sentence", "document")
        if (value := getattr(config.objective, name)) > 0
    )
    lines = {
        "versions": "  ".join(f"{name} {value}" for name, value in versions().items()),
        "model": f"{_count(config.model.num_layers, 'layer')} × {config.model.hidden_size},"
        f" {_count(config.model.num_attention_heads, 'head')}, {short_number(num_parameters)} parameters,"
        f" {num_ids} token ids",
        "layout": f"{_count(replicas, 'replica')} on {device}, ZeRO {parallel.zero_stage}, {train.precision}",
        "batch": f"{train.global_batch_size} samples ="
        f" {train.micro_batch_size} × {accumulation} × {_count(replicas, 'replica')},"
        f" about {short_number(tokens)} raw tokens a step",
        "data": weights,
        "objective": f"{mixture}; loss {train.loss}",
        "validation": f"{train.eval_samples} held-out windows at most; unigram entropy "
        + ", ".join(f"{name} {value:.3f}" for name, value in entropy.items()),
        "checkpoint": f"{short_number(num_parameters * _BYTES_PER_PARAMETER)}B each, in {train.output}/checkpoints",
        "start": start,
        "to resume": "give the same command again",
    }
    width = max(map(len, lines))
    return "\n".join(f"{name:>{width}}  {text}" for name, text in lines.items())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
