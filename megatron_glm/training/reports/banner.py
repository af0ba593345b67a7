"""What a run says before its first step: what will run, on what, from where."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from megatron_glm.config.schema import Config, Objective, Source
from megatron_glm.counting import count_text
from megatron_glm.model.sizes import padded_vocab_size
from megatron_glm.parallel.layout import Layout
from megatron_glm.planning.stages import Division
from megatron_glm.planning.typical_step import sent_per_step
from megatron_glm.planning.zero_communication import local_elements
from megatron_glm.training.reports.layout_table import layout_table, pipeline_picture
from megatron_glm.training.reports.reporting import short_number

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
    division: Division,
    compiled: str,
    start: str,
    entropy: Mapping[str, float],
) -> str:
    """The start banner, one fact a line."""
    train, parallel = config.train, config.parallel
    tokens = train.global_batch_size * config.data.window
    lines = {
        "versions": "  ".join(f"{name} {value}" for name, value in versions().items()),
        "model": f"{count_text(config.model.num_layers, 'layer')} × {config.model.hidden_size},"
        f" {count_text(config.model.num_attention_heads, 'head')}, {short_number(num_parameters)} parameters,"
        f" {num_ids} token ids",
        "layout": f"{count_text(replicas, 'replica')}{_divided(config)} on {device}, ZeRO {parallel.zero_stage},"
        f" {train.precision}",
        "batch": f"{train.global_batch_size} samples ="
        f" {train.micro_batch_size} × {accumulation} × {count_text(replicas, 'replica')},"
        f" about {short_number(tokens)} raw tokens a step",
        "compiled": compiled,
        **_stages(config, division),
        **_sent(config, replicas, accumulation, num_ids, division.stages),
        "data": _shares(config.data.sources),
        "objective": f"{_mixture(config.objective)}; loss {train.loss}",
        **_schedules(config),
        **_phases(config),
        "validation": f"{train.eval_samples} held-out windows at most; unigram entropy "
        + ", ".join(f"{name} {value:.3f}" for name, value in entropy.items()),
        "checkpoint": f"{short_number(num_parameters * _BYTES_PER_PARAMETER)}B each, in {train.output}/checkpoints",
        **_spread(config, replicas, accumulation, num_ids, division.stages),
        "start": start,
        "to resume": "give the same command again",
    }
    width = max(map(len, lines))
    indent = "\n" + " " * (width + 2)
    return "\n".join(f"{name:>{width}}  {text.replace(chr(10), indent)}" for name, text in lines.items())


def _spread(config: Config, replicas: int, accumulation: int, num_ids: int, stages: Sequence[range]) -> dict[str, str]:
    """Which rank has what, and the pipeline's schedule, where ranks share a model."""
    layout = Layout(replicas, config.parallel.pipeline, config.parallel.tensor)
    if layout.tensor == layout.pipeline == 1:
        return {}
    table = layout_table(
        layout,
        stages=stages,
        heads=config.model.num_attention_heads,
        words=padded_vocab_size(config.model, num_ids),
        parameters=[sum(local_elements(config, layout, num_ids=num_ids, layers=layers).values()) for layers in stages],
    )
    picture = {"schedule": pipeline_picture(layout.pipeline, accumulation)} if layout.pipeline > 1 else {}
    return {"ranks": table, **picture}


def _divided(config: Config) -> str:
    """What a replica is divided into: ' × 2 stages × 4 tensor ranks with sequence parallelism', or nothing."""
    parallel, parts = config.parallel, []
    if parallel.pipeline > 1:
        parts.append(f" × {parallel.pipeline} stages")
    if parallel.tensor > 1:
        parts.append(f" × {parallel.tensor} tensor ranks{' with sequence parallelism' if parallel.sequence else ''}")
    return "".join(parts)


def _stages(config: Config, division: Division) -> dict[str, str]:
    """A line on how the layers are divided, where they are."""
    if config.parallel.pipeline == 1:
        return {}
    layers = " + ".join(str(len(stage)) for stage in division.stages)
    return {"stages": f"{layers} layers, {division.reason}"}


def _sent(config: Config, replicas: int, accumulation: int, num_ids: int, stages: Sequence[range]) -> dict[str, str]:
    """A line on what the processes send each other, where there are several."""
    layout = Layout(replicas, config.parallel.pipeline, config.parallel.tensor)
    sent = sent_per_step(config, layout, num_ids=num_ids, accumulation=accumulation, stages=stages)
    shown = [f"{short_number(size)}B over {axis}" for axis, size in sent.items() if size]
    return {"sent": f"about {', '.join(shown)}, by each process in a step"} if shown else {}


def _schedules(config: Config) -> dict[str, str]:
    """A line for each thing that changes with the samples consumed, where it is used."""
    ramp, gradient, lines = config.train.batch_ramp, config.train.embedding_gradient, {}
    if ramp.start is not None:
        lines["batch ramp"] = f"from {ramp.start} samples by {ramp.increment} until sample {ramp.samples}"
    if gradient.factor < 1:
        rise = (
            ""
            if gradient.hold_samples is None
            else f", rising to 1 from sample {gradient.hold_samples} to {gradient.hold_samples + gradient.rise_samples}"
        )
        lines["embeddings"] = f"gradient from the input × {gradient.factor:g}{rise}"
    return lines


def _phases(config: Config) -> dict[str, str]:
    """A line for each phase: what it changes."""
    lines = {}
    for number, phase in enumerate(config.data.phases, start=1):
        changes = [f"from sample {phase.from_sample}"]
        if phase.sources:
            changes.append(_shares(phase.sources))
        if phase.window:
            changes.append(f"window {phase.window}")
        changes += [f"{name} {value}" for name, value in phase.objective.items()]
        lines[f"phase {number}"] = "; ".join(changes)
    return lines


def _shares(sources: Sequence[Source]) -> str:
    return ", ".join(f"{source.name} × {source.weight:g}" for source in sources)


def _mixture(objective: Objective) -> str:
    shares = {name: getattr(objective, name) for name in ("token", "sentence", "document")}
    return ", ".join(f"{name} {share:g}" for name, share in shares.items() if share > 0)
