"""Make a tokenizer directory from a published vocabulary, with the ids of the original GLM releases.

python -m data_tools.import_tokenizer --kind roberta --vocab vocab.json --merges merges.txt --output DIR
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from data_tools.tokenizer_output import write_tokenizer
from megatron_glm.command import run_command
from megatron_glm.errors import TokenizerError


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m data_tools.import_tokenizer",
        description="Make a tokenizer directory from a published vocabulary, with the special ids of the GLM releases.",
    )
    parser.add_argument(
        "--kind",
        required=True,
        choices=["bert", "gpt2", "roberta", "chinese"],
        help="bert: uncased WordPiece; gpt2, roberta: byte-level BPE; chinese: SentencePiece (cog-pretrain.model)",
    )
    parser.add_argument("--vocab", required=True, type=Path, help="vocab.txt, vocab.json or the .model file")
    parser.add_argument("--merges", type=Path, help="merges.txt, for gpt2 and roberta")
    parser.add_argument("--output", required=True, type=Path, help="directory to write; must not exist")
    parser.add_argument("--block-mask", action="store_true", help="add [dBLOCK], which block_mask_probability needs")
    return run_command(parser, run, argv)


def run(args: argparse.Namespace) -> None:
    from megatron_glm.tokenizer import published

    needs_merges = args.kind in ("gpt2", "roberta")
    if needs_merges != (args.merges is not None):
        raise TokenizerError(f"--merges: {'needed' if needs_merges else 'not used'} with --kind {args.kind}")
    match args.kind:
        case "bert":
            tokenizer = published.bert_uncased(args.vocab, block_mask=args.block_mask)
        case "gpt2":
            tokenizer = published.gpt2(args.vocab, args.merges, block_mask=args.block_mask)
        case "roberta":
            tokenizer = published.roberta(args.vocab, args.merges, block_mask=args.block_mask)
        case "chinese":
            tokenizer = published.chinese(args.vocab, block_mask=args.block_mask)
    write_tokenizer(tokenizer, args.output)


if __name__ == "__main__":
    sys.exit(main())
