"""`glm show-sample`: one training sample, so that a person can check what the model is taught."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_glm.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from megatron_glm.config.schema import Source
    from megatron_glm.data.dataset import Origin
    from megatron_glm.objective.sample import Sample
    from megatron_glm.tokenizer.base import Tokenizer

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

    from megatron_glm.data.sample_drawing import draw_attention_mask

    if args.png and not args.png.parent.is_dir():
        raise ConfigError(f"--png: no directory '{args.png.parent}' to write '{args.png.name}' to; make it first")
    console = Console(highlight=False)
    shown = show(console, args.config, args.overrides, args.index, args.objective)
    if args.png:
        try:
            draw_attention_mask(shown.sample, shown.tokenizer, args.png)
        except OSError as error:
            raise ConfigError(f"--png: '{args.png}' cannot be written: {error.strerror}") from error
        console.print(f"attention mask: {args.png}", soft_wrap=True)
    return 0


@dataclass(frozen=True)
class Shown:
    """A sample that was printed, and what it was made of: a window of `source`, which stands at `field`."""

    sample: Sample
    origin: Origin
    source: Source
    field: str
    tokenizer: Tokenizer


def show(console: Console, config_file: str, overrides: Sequence[str], index: int, objective: str | None) -> Shown:
    """Print a sample of a run.

    Args:
        objective: its name, lower case; None: the one it is trained under.

    Raises:
        ConfigError: there is no such sample; otherwise as `SampleDataset.open`.
    """
    from megatron_glm.config.loading import load_config
    from megatron_glm.config.phases import all_sources, run_phases
    from megatron_glm.data.dataset import SampleDataset
    from megatron_glm.data.order import MAX_SAMPLES
    from megatron_glm.data.sample_text import describe
    from megatron_glm.objective.sample import Objective
    from megatron_glm.tokenizer.loading import load_tokenizer

    if not 0 <= index < MAX_SAMPLES:
        raise ConfigError(f"there is no sample {index}; give a number from 0 to 2**62 − 1")
    config = load_config(config_file, overrides)
    tokenizer = load_tokenizer(config.tokenizer.path)
    under = Objective[objective.upper()] if objective else None
    origin, sample = SampleDataset.open(config, tokenizer).trace(index, under)
    field, source = all_sources(run_phases(config))[origin.source]
    window = f"{field} '{source.name}', stream tokens [{origin.start}, {origin.stop})"
    for line in describe(sample, tokenizer, window):
        console.print(line, soft_wrap=not console.is_terminal)  # a pipe gets whole lines
    return Shown(sample, origin, source, field, tokenizer)
