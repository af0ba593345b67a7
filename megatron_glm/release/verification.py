"""Proof that a release is the model: transformers loads it in a process of its own and gives the same logits.

The process sees the release and the network's absence, nothing of ours. It gets three small samples, one a
mask token, as a padded batch and one by one; what it answers is compared with our model on the
checkpoint's weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glm_kernels.attention import Visibility
from megatron_glm.config.schema import Config
from megatron_glm.errors import CheckpointError
from megatron_glm.model.glm import GLM
from megatron_glm.release.loading import load_release
from megatron_glm.release.verification_samples import VerificationSample, verification_samples
from megatron_glm.release.weights import Weights, read_weight
from megatron_glm.tokenizer.base import Tokenizer

TOLERANCE = 1e-5  # of a logit in fp32: ten units in the last place of 16; more only where logits exceed that
TOLERANCE_HOLDS_UP_TO = 16.0
_PROGRAM = Path(__file__).with_name("verification_process.py")
_TEXTS = (
    "Hello, world!",
    "A [MASK] in the middle, and  two spaces.",
    "un[MASK]able\nand a line [sMASK] Then more. [gMASK]",
    "It spells <|endofpiece|>, [CLS] and </s>; 你好，世界。",
)


def verify_release(directory: Path, source: Weights, config: Config, tokenizer: Tokenizer, dtype: torch.dtype) -> str:
    """Compare a release with the checkpoint it was made from; returns one line about what was found.

    Raises:
        CheckpointError: transformers cannot load it, weights are missing or left over, or it gives other
            logits or token ids.
    """
    model = _model(source, config, tokenizer, dtype)
    _compare_own_reading(directory, model)
    samples = verification_samples(tokenizer.special, tokenizer.vocab_size, config.model.max_positions)
    answer = _ask_transformers(directory, samples)
    _compare_loading(answer.report)
    _compare_tokens(answer.report, tokenizer)
    return _compare_logits(_logits(model, samples), answer.logits)


@dataclass(frozen=True)
class _Answer:
    """What the other process said."""

    logits: dict[str, Tensor]  # how the samples were given -> fp32 [N, num_ids]: part B, sample after sample
    report: dict


def _model(source: Weights, config: Config, tokenizer: Tokenizer, dtype: torch.dtype) -> GLM:
    """Our model on the checkpoint's weights, rounded as the release stores them, computing in fp32."""
    model = GLM(config.model, num_ids=tokenizer.vocab_size, seed=None).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(read_weight(source, name, dtype))
    return model


def _compare_own_reading(directory: Path, model: GLM) -> None:
    stored = dict(load_release(directory)[0].named_parameters())
    for name, parameter in model.named_parameters():
        if not torch.equal(stored[name], parameter):
            raise CheckpointError(f"the release's {name} is not the checkpoint's")


def _ask_transformers(directory: Path, samples: list[VerificationSample]) -> _Answer:
    with tempfile.TemporaryDirectory(prefix="glm-verify-") as scratch:
        folder = Path(scratch)
        save_file(_batch(samples), folder / "inputs.safetensors")
        (folder / "texts.json").write_text(json.dumps(_TEXTS), encoding="utf-8")
        # The name of the folder becomes that of a module: any name the user chose must do, and this one does.
        (folder / "release").symlink_to(directory.resolve(), target_is_directory=True)
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HOME": str(folder / "hub"),
            "HF_MODULES_CACHE": str(folder / "modules"),
        }
        # -P: the program must not find our own modules beside it.
        done = subprocess.run(
            [sys.executable, "-P", str(_PROGRAM), scratch], env=environment, cwd=scratch, capture_output=True, text=True
        )
        if done.returncode:
            raise CheckpointError(f"transformers cannot load the release: {_last_line(done.stderr)}")
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return _Answer(load_file(folder / "logits.safetensors"), report)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _batch(samples: list[VerificationSample]) -> dict[str, Tensor]:
    """The samples padded to one length: input_ids [B, L], position_ids [B, 2, L], part_a [B], lengths [B]."""
    lengths = [len(sample.input_ids) for sample in samples]
    input_ids = np.zeros((len(samples), max(lengths)), np.int64)
    position_ids = np.zeros((len(samples), 2, max(lengths)), np.int64)
    for row, sample in enumerate(samples):
        input_ids[row, : lengths[row]] = sample.input_ids
        position_ids[row, 0, : lengths[row]] = sample.position_ids
        position_ids[row, 1, : lengths[row]] = sample.block_position_ids
    return {
        "input_ids": torch.from_numpy(input_ids),
        "position_ids": torch.from_numpy(position_ids),
        "part_a": torch.tensor([sample.part_a for sample in samples]),
        "lengths": torch.tensor(lengths),
    }


@torch.inference_mode()
def _logits(model: GLM, samples: list[VerificationSample]) -> Tensor:
    """Our logits at part B, the samples as segments of one flat row: [N, num_ids]."""
    ends = np.cumsum([len(sample.input_ids) for sample in samples])
    starts = ends - [len(sample.input_ids) for sample in samples]
    segments = [(start, s.part_a, end) for start, s, end in zip(starts, samples, ends, strict=True)]
    row = (
        torch.from_numpy(np.concatenate([getattr(sample, name) for sample in samples]))
        for name in ("input_ids", "position_ids", "block_position_ids")
    )
    part_b = np.concatenate([np.arange(start + part_a, end) for start, part_a, end in segments])
    visibility = Visibility.from_segments(segments, int(ends[-1]))
    return model.logits(model(*row, visibility, torch.from_numpy(part_b)))


def _compare_loading(report: dict) -> None:
    for model, loading in report["loading"].items():
        for problem, names in loading.items():
            if names:
                raise CheckpointError(f"{model} of transformers finds {problem} weights in the release: {names}")


def _compare_tokens(report: dict, tokenizer: Tokenizer) -> None:
    special = tokenizer.special
    for text, answer in zip(_TEXTS, report["tokens"], strict=True):
        inner = tokenizer.encode_with_special(text).tolist()
        closing = [] if inner[-1] == special.document_mask else [special.eos]
        ids = [special.cls, *inner, *closing]
        if answer != {"ids": ids, "text": tokenizer.decode(ids)}:
            raise CheckpointError(f"AutoTokenizer of transformers reads {text!r} as {answer}, our tokenizer as {ids}")


def _compare_logits(ours: Tensor, theirs: dict[str, Tensor]) -> str:
    worst = max(float((ours - logits).abs().max()) for logits in theirs.values())
    allowed = TOLERANCE * max(1.0, float(ours.abs().max()) / TOLERANCE_HOLDS_UP_TO)
    agreement = f"largest logit difference {worst:.1e} over {len(ours)} places, allowed {allowed:.1e}"
    if not worst <= allowed:  # not `>`: a NaN must not pass
        raise CheckpointError(f"the release gives other logits in transformers than the model: {agreement}")
    return f"verified with transformers in a fresh process: {agreement}; same token ids"
