"""The JSON files by which transformers knows what a release is."""

from __future__ import annotations

from typing import Any

import numpy as np

from megatron_glm.config.schema import Config
from megatron_glm.model.sizes import padded_vocab_size
from megatron_glm.tokenizer.base import Tokenizer

# "glm" would load transformers' own class of that name, for another model.
MODEL_TYPE = "glm_blank_infilling"
DTYPE_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_MODEL_CLASS = "modeling_glm.GLMForBlankInfilling"


def model_config(config: Config, tokenizer: Tokenizer, dtype: str) -> dict[str, Any]:
    """config.json."""
    special = tokenizer.special
    return {
        "architectures": ["GLMForBlankInfilling"],
        "auto_map": {
            "AutoConfig": "configuration_glm.GLMConfig",
            "AutoModel": "modeling_glm.GLMModel",
            "AutoModelForCausalLM": _MODEL_CLASS,
            "AutoModelForSeq2SeqLM": _MODEL_CLASS,
        },
        "model_type": MODEL_TYPE,
        **config.model.model_dump(),
        "vocab_size": padded_vocab_size(config.model, tokenizer.vocab_size),
        "num_ids": tokenizer.vocab_size,
        "task_masks": config.objective.task_masks,
        "mask_token_id": special.mask,
        "sentence_mask_token_id": special.sentence_mask,
        "document_mask_token_id": special.document_mask,
        **_generation_ids(tokenizer),
        "tie_word_embeddings": True,
        "dtype": DTYPE_NAMES[dtype],
    }


def generation_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """generation_config.json."""
    never = set(np.flatnonzero(tokenizer.never_generated()).tolist())
    never.remove(tokenizer.special.end_of_piece)  # it ends a piece, and what is suppressed cannot
    return {**_generation_ids(tokenizer), "suppress_tokens": sorted(never), "do_sample": False}


def tokenizer_config() -> dict[str, Any]:
    """tokenizer_config.json; which token has which role stands in glm_tokenizer.json."""
    return {
        "tokenizer_class": "GLMTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_glm.GLMTokenizer", None]},
        "clean_up_tokenization_spaces": False,
    }


def _generation_ids(tokenizer: Tokenizer) -> dict[str, int]:
    special = tokenizer.special
    return {
        "bos_token_id": special.start_of_piece,
        "eos_token_id": special.end_of_piece,
        "pad_token_id": special.eos,
    }
