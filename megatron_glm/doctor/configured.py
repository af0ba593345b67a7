"""Can this configuration run on these processes: layout, batch, tokenizer, data, disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from megatron_glm.checkpoint.format import KINDS
from megatron_glm.config.batching import BatchSizes
from megatron_glm.config.combinations import check_combinations, check_heads
from megatron_glm.config.schema import Config, Train
from megatron_glm.counting import count_text
from megatron_glm.data.dataset import HeldOutDataset, SampleDataset
from megatron_glm.doctor.finding import Finding, findings_of
from megatron_glm.doctor.job import check_same
from megatron_glm.errors import UserError
from megatron_glm.model.sizes import parameter_count
from megatron_glm.parallel.layout import Layout
from megatron_glm.parallel.ranks import Ranks
from megatron_glm.tokenizer.base import Tokenizer
from megatron_glm.tokenizer.loading import load_tokenizer
from megatron_glm.training.engines.apex import apex_normalizes, apex_updates
from megatron_glm.training.engines.compilation import settle_compilation
from megatron_glm.training.engines.compiled_parts import is_compiled
from megatron_glm.training.engines.model_building import check_divides
from megatron_glm.training.reports.reporting import short_number

_CHECKPOINTS = 2  # the newest stays until the next one is whole
_BYTES_OF_A_VALUE = 4

Opened = TypeVar("Opened")


def check_layout(config: Config, processes: int) -> Iterator[Finding]:
    """Layout and batch. Raises ConfigError where the layout does not divide or does not go with other settings."""
    layout = Layout.of(processes, tensor=config.parallel.tensor, pipeline=config.parallel.pipeline)
    check_combinations(config)
    axes = {"replica": layout.data, "stage": layout.pipeline, "tensor rank": layout.tensor}
    value = " × ".join(count_text(size, axis) for axis, size in axes.items())
    yield Finding("layout", "ok", value)
    yield from findings_of("batch", lambda: [_batch(config.train, layout.data)])


def _batch(train: Train, replicas: int) -> Finding:
    accumulation = BatchSizes.of(train).accumulation(train.micro_batch_size, replicas)
    samples = count_text(train.global_batch_size, "sample")
    value = f"{samples} = {train.micro_batch_size} × {accumulation} × {count_text(replicas, 'replica')}"
    return Finding("batch", "ok", value)


def check_apex(config: Config) -> Iterator[Finding]:
    """What apex is to compute; nothing is found where it can. Raises ConfigError where it cannot."""
    apex_updates(config.optimizer, zero_stage=config.parallel.zero_stage)
    apex_normalizes(config.train)
    yield from ()


def check_compilation(config: Config, ranks: Ranks) -> Iterator[Finding]:
    """What torch.compile is to compute; a collective. Raises ConfigError where it must and cannot."""
    settled = settle_compilation(config, ranks)
    if is_compiled(config.train) and not settled.is_on:
        yield Finding("torch.compile", "warn", settled.told, "mend that, or set train.compile=never")
    else:
        yield Finding("torch.compile", "ok", settled.told)


def check_inputs(config: Config, ranks: Ranks) -> Iterator[Finding]:
    """Tokenizer, data, model and disk; a collective. What needs the tokenizer waits until all ranks have it."""
    tokenizer, everywhere, failed = _read("tokenizer", lambda: load_tokenizer(config.tokenizer.path), ranks)
    yield from failed
    if not everywhere:
        return
    fix = "copy one tokenizer to all machines, or put it on the shared file system"
    yield from check_same(ranks, "tokenizer", f"hash {tokenizer.content_hash[:12]}", fix)
    lengths, everywhere, failed = _read("data", lambda: _read_some(config, tokenizer), ranks)
    yield from failed
    if everywhere:
        value = f"{short_number(sum(lengths))} tokens in {len(lengths)} {'source' if len(lengths) == 1 else 'sources'}"
        yield from check_same(ranks, "data", value, "copy the same data to all machines, or share it")
    yield from findings_of("model", lambda: check_model(config, tokenizer.vocab_size))
    parameters = parameter_count(config.model, tokenizer.vocab_size)
    yield from findings_of("disk", lambda: [check_disk(Path(config.train.output), parameters)])


def _read(name: str, work: Callable[[], Opened], ranks: Ranks) -> tuple[Opened | None, bool, list[Finding]]:
    """This rank's work, whether all ranks have done theirs, and what kept this one from it."""
    value, problem = None, ""
    try:
        value = work()
    except Exception as error:  # of any kind: the other ranks wait for this one
        problem = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    read = ranks.gather(not problem)
    fix = "it must be readable under this path on every machine" if any(read) else ""
    failed = [Finding(name, "fail", " ".join(problem.split()), fix)] if problem else []
    return value, all(read), failed


def _read_some(config: Config, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The lengths of the sources; a first training sample and held-out window are made too."""
    samples = SampleDataset.open(config, tokenizer)
    samples.sample(0)
    held_out = HeldOutDataset.open(config, tokenizer)
    held_out.sample(held_out.objectives[0], 0)
    return samples.lengths


def check_model(config: Config, num_ids: int) -> Iterator[Finding]:
    """Heads and words. Raises ConfigError where the ranks of a layer cannot share them."""
    check_heads(config)
    check_divides(config, num_ids)
    count = short_number(parameter_count(config.model, num_ids))
    yield Finding("model", "ok", f"{count} parameters, each layer on {config.parallel.tensor} of the ranks")


def check_disk(output: Path, num_parameters: int) -> Finding:
    """Room for two checkpoints, and the right to write them."""
    place = output.absolute()
    while not place.exists():
        place = place.parent
    needed = _CHECKPOINTS * num_parameters * len(KINDS) * _BYTES_OF_A_VALUE
    free = shutil.disk_usage(place).free
    value = f"{short_number(free)}B free in {place}; {_CHECKPOINTS} checkpoints are {short_number(needed)}B"
    if not os.access(place, os.W_OK):
        return Finding("disk", "fail", f"{place} cannot be written", "train.output: choose another directory")
    if free < needed:
        return Finding("disk", "fail", value, "train.output: make room, or choose a larger disk")
    return Finding("disk", "ok", value)
