"""What the processes of the tests of loading do: load, prove, spoil what was loaded and prove again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.writing import save_checkpoint
from megatron_glm.config.schema import Config
from megatron_glm.errors import UserError
from megatron_glm.parallel.groups import Groups
from megatron_glm.parallel.ranks import DistributedRanks
from megatron_glm.training.engines.engine_state import local_parts
from megatron_glm.training.engines.load_proof import prove_linked, prove_loaded
from tests.distributed.training import cases


def is_large(name: str) -> bool:
    """Whether tensor-parallel ranks share it and ZeRO-3 partitions it."""
    return name.endswith((".dense_h_to_4h.weight", ".dense_4h_to_h.weight"))


def spoil_fp32(kind: str, engine: cases.Engine) -> None:
    part = [part for part in local_parts(engine._engine) if is_large(part.name)][-1]
    getattr(part, kind)[-1] += 1


def spoil_working(engine: cases.Engine) -> None:
    """Change a weight that the forward pass reads, and not the one that the optimizer updates."""
    parameter = [value for name, value in engine._engine.module.named_parameters() if is_large(name)][-1]
    values = parameter.data if parameter.numel() else parameter.ds_tensor.data
    values.view(-1)[0] += 1


SPOILS: dict[str, Callable[[cases.Engine], None]] = {
    "exp_avg": lambda engine: spoil_fp32("exp_avg", engine),
    "exp_avg_sq": lambda engine: spoil_fp32("exp_avg_sq", engine),
    "working": spoil_working,
}


def linked(settings: Config, engine: cases.Engine, groups: Groups) -> str:
    """What is found of a fresh engine."""
    try:
        prove_linked(engine, DistributedRanks())
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def prove_and_spoil(directory: str, settings: Config, engine: cases.Engine, groups: Groups) -> dict[str, str]:
    """Train, save, load, and prove what was loaded, before and after each way to spoil it on the last rank."""
    ranks = DistributedRanks()
    for step in range(2):
        cases.one_step(settings, engine, groups, step)
    path = save_checkpoint(
        Path(directory) / str(settings.parallel).replace(" ", "_") / settings.train.precision,
        run_id="test",
        step=2,
        fragments=engine.fragments(),
        shapes=engine.shapes,
        state={},
        ranks=ranks,
    )
    cases.one_step(settings, engine, groups, 2)  # so that the load has something to change
    found = {"elsewhere": proof(engine, path, groups, ranks)}
    engine.load(CheckpointReader(path), step=2)
    found["loaded"] = proof(engine, path, groups, ranks)
    for name, spoil in SPOILS.items():
        if ranks.rank == ranks.size - 1:
            with torch.no_grad():
                spoil(engine)
        found[name] = proof(engine, path, groups, ranks)
        engine.load(CheckpointReader(path), step=2)
    found["loaded again"] = proof(engine, path, groups, ranks)
    return found


def proof(engine: cases.Engine, path: Path, groups: Groups, ranks: DistributedRanks) -> str:
    try:
        prove_loaded(engine, CheckpointReader(path), step=2, groups=groups, ranks=ranks)
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def hyperparameters(path: str, settings: Config, engine: cases.Engine, groups: Groups) -> dict:
    """What the optimizer's groups hold after a load, and the losses of the steps that follow."""
    checkpoint = CheckpointReader(Path(path))
    engine.load(checkpoint, step=checkpoint.step)
    losses = [cases.one_step(settings, engine, groups, step)[0] for step in range(checkpoint.step, checkpoint.step + 4)]
    keys = ("lr", "betas", "eps", "weight_decay")
    held = [{key: group[key] for key in keys} for group in engine._engine.optimizer.param_groups]
    return {"groups": held, "loss": losses}
