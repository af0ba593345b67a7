"""`glm generate`: fill the blanks of a text with a released model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megatron_glm.generation.text import Filled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="a release, made by `glm export`")
    parser.add_argument(
        "--text",
        required=True,
        help="with blanks: [MASK] for a few words, [sMASK] for a sentence; [gMASK] at the end continues the text",
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="tokens of one blank, at most (default: 64)")
    parser.add_argument(
        "--temperature", type=float, default=0.0, metavar="T", help="0: the best token (default); 1: as likely as it is"
    )
    parser.add_argument("--top-k", type=int, metavar="K", help="draw from the K best tokens only")
    parser.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens that sum to P only")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")


def run(args: argparse.Namespace) -> None:
    import torch

    from megatron_glm.generation.sampling import Sampling
    from megatron_glm.generation.text import fill
    from megatron_glm.release.loading import load_release, read_release_config

    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.seed)
    model, tokenizer = load_release(args.model)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    filled = fill(
        model,
        tokenizer,
        args.text,
        sampling=sampling,
        max_tokens=args.max_tokens,
        task_masks=read_release_config(args.model)["task_masks"],
    )
    _show(filled)


def _show(filled: Filled) -> None:
    """The text; on a terminal what was filled in stands out."""
    if not sys.stdout.isatty():
        print(filled.text)
        return
    from rich.console import Console
    from rich.text import Text

    text = Text(filled.text)
    for start, stop in filled.spans:
        text.stylize("bold green", start, stop)
    Console(highlight=False, soft_wrap=True).print(text)
