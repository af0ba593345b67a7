"""Train a SentencePiece tokenizer whose text round-trips exactly.

    python -m data_tools.train_tokenizer --input corpus.jsonl --vocab-size 8000 --output DIR

Nothing is normalized: runs of spaces, tabs and newlines are kept, no space is put in front, and bytes
stand for characters that the vocabulary lacks (the released Chinese tokenizer, without them, gave
"⁇": THUDM/GLM issue 140). Equal inputs and options give equal bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.tokenizer_output import check_output, write_tokenizer
from megatron_glm.command import run_command
from megatron_glm.errors import DataError, TokenizerError

if TYPE_CHECKING:
    from data_tools.inputs import InputFile
    from megatron_glm.tokenizer.base import Tokenizer

_LEAST_VOCAB_SIZE = 300  # 256 bytes, the special tokens and some letters
_CHARACTER_COVERAGE = 0.9995  # the rarest characters are left to the bytes
_LONGEST_LINE = 1 << 24  # bytes; SentencePiece's own 4192 would leave long lines out in silence


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m data_tools.train_tokenizer",
        description="Train a SentencePiece tokenizer with byte fallback; text round-trips exactly.",
    )
    parser.add_argument("--input", required=True, nargs="+", metavar="FILE", help="as of data_tools.preprocess")
    parser.add_argument("--text-key", default="text", help="key of the text, a.b for b inside a (default: text)")
    parser.add_argument("--vocab-size", required=True, type=int, help="number of ids, special tokens included")
    parser.add_argument("--output", required=True, type=Path, help="directory to write; must not exist")
    parser.add_argument(
        "--model-type",
        choices=["unigram", "bpe"],
        default="unigram",
        help="unigram (default) encodes three times as fast at the same length; bpe trains faster",
    )
    parser.add_argument("--block-mask", action="store_true", help="add [dBLOCK], which block_mask_probability needs")
    parser.add_argument(
        "--sample-megabytes",
        type=float,
        default=200.0,
        help="train on about so much of the input's text, chosen by a hash of each document (default: 200)",
    )
    return run_command(parser, run, argv)


def run(args: argparse.Namespace) -> None:
    from data_tools.inputs import open_inputs

    check_output(args.output)
    if not args.sample_megabytes > 0:
        raise TokenizerError(f"--sample-megabytes: {args.sample_megabytes:g} must be above 0")
    inputs = open_inputs(args.input, line_documents=False)
    total = sum(file.bytes for file in inputs) / 1e6
    share = min(1.0, args.sample_megabytes / total)
    print(f"training a {args.model_type} model of {args.vocab_size} ids on {share:.0%} of {total:.1f} MB", flush=True)
    lines = [line for text in documents(inputs, args.text_key, share) for line in text.split("\n") if line.strip()]
    tokenizer = train(lines, args.vocab_size, model_type=args.model_type, block_mask=args.block_mask)
    write_tokenizer(tokenizer, args.output)


def documents(inputs: Sequence[InputFile], text_key: str, share: float = 1.0) -> Iterator[str]:
    """The documents of corpus files, or that share of them whose hash is lowest: the same for any order of files.

    Raises:
        DataError: a file that cannot be read; with file and line.
    """
    from data_tools.documents import DocumentReader
    from data_tools.inputs import whole

    limit = int(share * 2**64)
    for file in inputs:
        for text, _ in DocumentReader(whole(file), text_key):
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            if int.from_bytes(digest, "big") < limit:
                yield text


def train(lines: Sequence[str], vocab_size: int, *, model_type: str = "unigram", block_mask: bool = False) -> Tokenizer:
    """A SentencePiece tokenizer of exactly `vocab_size` ids, trained on lines of text.

    Raises:
        TokenizerError: a size that the text does not allow.
        DataError: no text.
    """
    import sentencepiece

    from megatron_glm.tokenizer.sentencepiece_model import SentencePieceTokenizer
    from megatron_glm.tokenizer.special import ROLE_PIECES

    if vocab_size < _LEAST_VOCAB_SIZE:
        raise TokenizerError(f"--vocab-size: {vocab_size} is too small, at least {_LEAST_VOCAB_SIZE} are needed")
    if not lines:
        raise DataError("--input: there is no text in the files given")
    added = [piece for role, piece in ROLE_PIECES.items() if block_mask or role != "block_mask"]
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size - len(added),
            character_coverage=_CHARACTER_COVERAGE,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            add_dummy_prefix=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            max_sentence_length=_LONGEST_LINE,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,  # sums of threads would depend on their number
            minloglevel=2,
        )
    except RuntimeError as error:
        raise TokenizerError(f"--vocab-size: {vocab_size}, but this text {_allowed(error, len(added))}") from error
    return SentencePieceTokenizer.with_special(model.getvalue(), added)


def _allowed(error: RuntimeError, added: int) -> str:
    """The bound that SentencePiece names, in ids with the special tokens; else its words."""
    if too_high := re.search(r"value <= (\d+)", str(error)):
        most = int(too_high[1]) + added
        if most < _LEAST_VOCAB_SIZE:
            return f"gives {most} ids at most, and {_LEAST_VOCAB_SIZE} are the least; give more text"
        return f"allows at most {most}"
    if too_low := re.search(r"required_chars\. \d+ vs (\d+)", str(error)):
        return f"needs at least {int(too_low[1]) + added}"
    return f"gives no such model: {str(error).rsplit('] ', 1)[-1]}"


if __name__ == "__main__":
    sys.exit(main())
