"""One training step of GLM-Large, and of a stack of 2B layers: tokens a second, MFU and peak memory.

    python -m benchmarks.gpu.training_step --output DIR [--dry-run]

The model, the engine under DeepSpeed (ZeRO 1, bf16), the optimizer and the samples are those of a run; the text is
random. A step is one micro-batch, forward, backward and update. Each model is timed twice: with torch's norms and GELU,
and with those that torch.compile writes, which is how a run on a GPU trains.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.gpu.bench import Bench, Row, run_part, tried
from benchmarks.gpu.flops import peak_flops, step_flops
from megatron_glm.config.loading import load_config
from megatron_glm.config.schema import Config
from megatron_glm.data.batch import Batch, collate
from megatron_glm.model.glm import GLM
from megatron_glm.objective.mixture import Mixture
from megatron_glm.objective.window import Window
from megatron_glm.parallel.groups import make_groups
from megatron_glm.parallel.layout import Layout
from megatron_glm.tokenizer.base import SpecialTokens
from megatron_glm.training.engines.compiled_parts import compile_parts
from megatron_glm.training.engines.model_building import build_model
from megatron_glm.training.engines.zero_engine import ZeroEngine
from megatron_glm.training.objective_weights import objective_weights
from megatron_glm.training.processes import distributed_processes

CONFIGS = Path(__file__).parents[2] / "configs"
_ROLES = 7  # special tokens, at the end of the ids


def measure(bench: Bench) -> Iterator[Row]:
    """Time whole training steps, without and with compiled parts."""
    with distributed_processes(threads=None):
        for name, config, num_ids in cases(bench):
            training = Training(bench, config, num_ids)
            for compiled, steps in ((False, training.plain), (True, training.compiled)):
                yield tried({"model": name, "compiled": compiled}, steps)


def cases(bench: Bench) -> Iterator[tuple[str, Config, int]]:
    """Name, configuration and ids of what is trained."""
    toy = _toy(bench) if bench.is_rehearsal else []
    layers = f"model.num_layers={bench.sizes.stack_layers}"
    yield "GLM-Large", _config("glm_large.yaml", toy), 30_529 if not toy else 250
    name = f"{bench.sizes.stack_layers} layers of GLM-2B"
    yield name, _config("glm_2b.yaml", [layers, "train.recompute=none", *toy]), 50_264 if not toy else 250


class Training:
    """A model that is trained on one micro-batch, over and over; the parts that can be are compiled under way."""

    def __init__(self, bench: Bench, config: Config, num_ids: int):
        self._bench, self._config, self._num_ids = bench, config, num_ids

    @cached_property
    def _made(self) -> tuple[GLM, ZeroEngine]:
        config, groups = self._config, make_groups(Layout.of(1))
        model = build_model(config, self._num_ids, groups, (range(config.model.num_layers),))
        return model, ZeroEngine(config, model, groups=groups, accumulation=1)

    def plain(self) -> Row:
        """Steps with torch's norms and GELU."""
        return timed_steps(self._bench, self._config, self._num_ids, self._made[1])

    def compiled(self) -> Row:
        """Steps with compiled ones, from now on."""
        compile_parts(self._made[0])
        return timed_steps(self._bench, self._config, self._num_ids, self._made[1])


def timed_steps(bench: Bench, config: Config, num_ids: int, engine: ZeroEngine) -> Row:
    """The median of some steps, after two that are not timed."""
    batch = random_batch(config, num_ids).to(engine.device)
    weights = objective_weights(batch.target_counts, _probabilities(config), config.train.loss)
    if not bench.is_rehearsal:
        torch.cuda.reset_peak_memory_stats()
    seconds, losses = [], []
    for _ in range(2 + bench.sizes.steps):
        start = time.perf_counter()
        losses.append(float(engine.accumulate([batch], weights) @ torch.tensor(weights, device=engine.device).double()))
        engine.update(config.optimizer.learning_rate)
        if not bench.is_rehearsal:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    step = median(seconds[2:])
    flops = step_flops(config.model, batch, num_ids)
    peak = None if bench.is_rehearsal else peak_flops(torch.cuda.get_device_name())
    return {
        "layers": config.model.num_layers,
        "hidden": config.model.hidden_size,
        "parameters": engine.num_parameters,
        "tokens": batch.num_tokens,
        "targets": len(batch.target_ids),
        "dropout": config.model.attention_dropout,
        "step_ms": 1e3 * step,
        "tokens_per_s": batch.num_tokens / step,
        "step_flops": flops,
        "tflops": flops / step / 1e12,
        "mfu": flops / step / peak if peak else None,
        "peak_gb": None if bench.is_rehearsal else torch.cuda.max_memory_allocated() / 1e9,
        "losses": losses,
    }


def random_batch(config: Config, num_ids: int) -> Batch:
    """A micro-batch of the run's objectives over random text, each window from one document."""
    first = num_ids - _ROLES
    special = SpecialTokens(*range(first, num_ids), block_mask=None)
    objective = config.objective.model_copy(update={"block_mask_probability": 0.0, "short_sequence_probability": 0.0})
    mixture = Mixture(
        objective,
        special,
        np.arange(num_ids) % 20 == 0,
        max_positions=config.model.max_positions,
        window=config.data.window,
        isolate_documents=True,
        seed=config.train.seed,
    )
    draw = np.random.default_rng(1)
    samples = []
    for index in range(config.train.micro_batch_size):
        text = draw.integers(0, first, config.data.window - 1)
        tokens = np.concatenate([[special.cls], text]).astype(np.int32)
        samples.append(mixture.sample(index, Window(tokens, np.array([0, len(tokens)], np.int32))))
    return collate(samples, pad_id=special.eos)


def _config(file: str, overrides: list[str]) -> Config:
    return load_config(CONFIGS / file, ["parallel.zero_stage=1", "train.compile=never", *overrides])


def _toy(bench: Bench) -> list[str]:
    sizes = bench.sizes
    return [
        f"model.num_layers={sizes.stack_layers}",
        f"model.hidden_size={sizes.hidden}",
        "model.num_attention_heads=1",
        "model.max_positions=64",
        "data.window=48",
        "objective.max_spans=8",
        "train.micro_batch_size=2",
        "train.global_batch_size=2",
        "train.attention_backend=triton",
    ]


def _probabilities(config: Config) -> tuple[float, float, float]:
    return config.objective.token, config.objective.sentence, config.objective.document


if __name__ == "__main__":
    raise SystemExit(run_part("training_step", measure))
