"""README.md of a release: the model card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megatron_glm.checkpoint.manifest import FileRecord
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.config.phases import run_phases
from megatron_glm.config.schema import Config
from megatron_glm.model.sizes import parameter_count
from megatron_glm.tokenizer.base import Tokenizer

_HEADER = """\
---
library_name: transformers
pipeline_tag: text-generation
tags:
- glm
- blank-infilling
- megatron_glm
---
"""

_USE = """\
## How to use it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "path/of/this/folder"
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
print(model.fill(tokenizer, "The [MASK] of France is Paris."))
print(model.fill(tokenizer, "Once upon a time [gMASK]"))
```

`[MASK]` stands for a few words, `[sMASK]` for a sentence; `[gMASK]` at the end continues the text. `model.fill` is
plain: greedy, and without a cache. `glm generate --model FOLDER --text "…"` of megatron_glm has a cache and sampling.

A forward pass takes `input_ids` [B, L], `position_ids` [B, 2, L] (place in the text with its blanks, or that of the
blank; 0, or the place within the piece from 1) and as `attention_mask` the length of the text with its blanks [B],
or a full mask [B, 1, L, L]. Logits are [B, L, num_ids]: the padded rows of the word table are left out.
`AutoModel` gives hidden states instead. For LoRA:
`target_modules=["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]`.

Not supported by vLLM, nor by `model.generate` of transformers: they know neither the two rows of positions nor a text
that sees all of itself.
"""


def model_card(
    reader: CheckpointReader, config: Config, tokenizer: Tokenizer, dtype: str, files: Mapping[str, FileRecord]
) -> str:
    """The card, from what the checkpoint says about its run."""
    model = config.model
    millions = parameter_count(model, tokenizer.vocab_size) / 1e6
    intro = (
        f"A GLM of {millions:,.2f} M parameters, pretrained by autoregressive blank infilling "
        "([arXiv 2103.10360](https://arxiv.org/abs/2103.10360)) with megatron_glm."
    )
    facts = {
        "layers / hidden size / heads": f"{model.num_layers} / {model.hidden_size} / {model.num_attention_heads}",
        "positions": model.max_positions,
        "vocabulary": f"{tokenizer.vocab_size:,} ids ({tokenizer.kind})",
        "weights": dtype,
        **_phases(config, reader),
        **_progress(reader),
        "optimizer": f"AdamW, peak learning rate {config.optimizer.learning_rate:g}, {config.schedule.decay} decay",
        **_validation(reader.state.get("validation")),
    }
    return "\n".join([_HEADER, "# GLM", "", intro, "", _table(("what", "value"), facts), "", _USE, _hashes(files)])


def _phases(config: Config, reader: CheckpointReader) -> dict[str, str]:
    """Objectives, window and data, also of each phase that has begun."""
    samples = reader.state.get("progress", {}).get("samples", 0)
    rows = {}
    for phase in run_phases(config):
        if phase.first_sample and phase.first_sample >= samples:
            break
        since = f", from sample {phase.first_sample:,} on" if phase.first_sample else ""
        objective, sources = phase.settings.objective, phase.settings.sources
        shares = f"token {objective.token:g}, sentence {objective.sentence:g}, document {objective.document:g}"
        rows |= {
            f"objectives{since}": shares,
            f"window{since}": f"{phase.settings.window} tokens",
            f"data{since}": ", ".join(f"{source.name} (weight {source.weight:g})" for source in sources),
        }
    return rows


def _progress(reader: CheckpointReader) -> dict[str, str]:
    progress = reader.state.get("progress", {})
    return {
        "steps": f"{reader.step:,}",
        **{name: f"{progress[name]:,}" for name in ("samples", "tokens") if name in progress},
    }


def _validation(record: Mapping[str, Any] | None) -> dict[str, str]:
    """The last validation of the run, if there was one; losses in nats a token."""
    losses = (record or {}).get("losses", {})
    return {
        f"validation loss, {objective}": "not finite" if loss is None else f"{loss:.4f}"
        for objective, loss in losses.items()
    }


def _hashes(files: Mapping[str, FileRecord]) -> str:
    table = _table(("file", "hash"), {name: f"`{files[name].sha256}`" for name in sorted(files)})
    return f"## SHA-256\n\n{table}\n"


def _table(head: tuple[str, str], rows: Mapping[str, Any]) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|"]
    return "\n".join(lines + [f"| {name} | {value} |" for name, value in rows.items()])
