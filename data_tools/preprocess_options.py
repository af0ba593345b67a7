"""The command line of preprocess."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from megatron_glm.command import count_or_none

DEFAULT_SHARD_TOKENS = 1 << 28
_NO_OPTIONS_OF_A_REQUEST = ("dry_run", "debug")


def make_parser(description: str) -> argparse.ArgumentParser:
    """The options of `python -m data_tools.preprocess`; docs/data.md has the same table."""
    parser = argparse.ArgumentParser(prog="python -m data_tools.preprocess", description=description)
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="FILE",
        dest="inputs",
        help="text, JSON lines or tables; patterns of such, in quotes; or directories (docs/data.md tells which)",
    )
    parser.add_argument("--tokenizer", required=True, metavar="DIR", help="tokenizer directory")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="data directory to write")
    parser.add_argument("--held-out", type=share, default=0.01, metavar="P", help="share held out (default 0.01)")
    parser.add_argument("--workers", type=count, metavar="N", help="processes (default: one for each core)")
    parser.add_argument(
        "--text-key", default="text", metavar="KEY", help="key of the text, a.b for b inside a (default text)"
    )
    parser.add_argument("--line-documents", action="store_true", help="every line of a .txt file is a document")
    parser.add_argument(
        "--shard-tokens", type=count, default=DEFAULT_SHARD_TOKENS, metavar="N", help="tokens of a shard, at most"
    )
    parser.add_argument("--sentences", action="store_true", help="store where sentences end, for sentence spans")
    parser.add_argument(
        "--min-tokens", type=count_or_none, default=0, metavar="N", help="drop documents with fewer tokens"
    )
    parser.add_argument(
        "--malformed",
        choices=("fail", "skip", "quarantine"),
        default="fail",
        help="what cannot be read ends the run (default), is left out, or goes to quarantine.jsonl",
    )
    parser.add_argument(
        "--dedupe", choices=("none", "exact"), default="none", help="exact: of equal documents keep the first"
    )
    parser.add_argument(
        "--no-fast", action="store_false", dest="fast", help="do not use the fast tokenizers of megatron_glm[fast]"
    )
    parser.add_argument("--restart", action="store_true", help="begin anew instead of continuing an interrupted run")
    parser.add_argument(
        "--dry-run", action="store_true", help="say from a sample what comes out, how large and when; write nothing"
    )
    return parser


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """What was given on the command line, by the names of `preprocess.Request`."""
    return {name: value for name, value in vars(args).items() if name not in _NO_OPTIONS_OF_A_REQUEST}


def share(text: str) -> float:
    """A share of the documents, 0 <= share < 1, as argparse reads it."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share, 0 <= P < 1")
    return value


def count(text: str) -> int:
    """A count of 1 or more, as argparse reads it."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a count of 1 or more")
    return value
