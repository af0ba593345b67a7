"""`glm show-sample`: one training sample, so that a person can check what the model is taught."""

from __future__ import annotations

import argparse
from pathlib import Path

from megatron_glm.errors import ConfigError

_OBJECTIVES = ("token", "sentence", "document")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, help="YAML file of the run, for example configs/demo.yaml")
    parser.add_argument("--index", required=True, type=int, metavar="N", help="global sample index, from 0")
    parser.add_argument(
        "--objective",
        choices=_OBJECTIVES,
        help="show the same window under this objective, as an evaluation would; default: as it is trained",
    )
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the sample's attention mask too")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="settings that replace the file's")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from megatron_glm.config.loading import load_config
    from megatron_glm.data.dataset import SampleDataset
    from megatron_glm.data.order import MAX_SAMPLES
    from megatron_glm.data.sample_drawing import draw_attention_mask
    from megatron_glm.data.sample_text import describe
    from megatron_glm.objective.sample import Objective
    from megatron_glm.tokenizer.loading import load_tokenizer

    if not 0 <= args.index < MAX_SAMPLES:
        raise ConfigError(f"--index: {args.index} is no sample; give a number from 0 to 2**62 − 1")
    if args.png and not args.png.parent.is_dir():
        raise ConfigError(f"--png: no directory '{args.png.parent}' to write '{args.png.name}' to; make it first")
    config = load_config(args.config, args.overrides)
    tokenizer = load_tokenizer(config.tokenizer.path)
    objective = Objective[args.objective.upper()] if args.objective else None
    origin, sample = SampleDataset.open(config, tokenizer).trace(args.index, objective)
    path = config.data.sources[origin.source].path
    window = f"data.sources[{origin.source}] '{path}', stream tokens [{origin.start}, {origin.stop})"

    console = Console(highlight=False)
    for line in describe(sample, tokenizer, window):
        console.print(line, soft_wrap=not console.is_terminal)  # a pipe gets whole lines
    if args.png:
        try:
            draw_attention_mask(sample, tokenizer, args.png)
        except OSError as error:
            raise ConfigError(f"--png: '{args.png}' cannot be written: {error.strerror}") from error
        console.print(f"attention mask: {args.png}", soft_wrap=True)
    return 0
