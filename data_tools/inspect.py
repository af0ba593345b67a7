"""Show a document of a corpus, or the documents of a training sample: text, ids, and the place they came from.

python -m data_tools.inspect data/wiki --document 1000 --tokenizer tokenizers/mine
python -m data_tools.inspect --sample 51200 --config configs/glm_base.yaml
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from megatron_glm.command import run_command
from megatron_glm.data.manifest import SPLITS, read_manifest
from megatron_glm.data.prefixes import PrefixSet
from megatron_glm.data.provenance import document_origin
from megatron_glm.data.shards import ShardSet
from megatron_glm.errors import ConfigError, DataError

if TYPE_CHECKING:
    from megatron_glm.data.pair_set import PairSet
    from megatron_glm.tokenizer.base import Tokenizer


def describe_document(documents: PairSet, document: int, tokenizer: Tokenizer) -> Iterator[str]:
    """A document line by line: where it lies, where it came from, its ids, its text.

    Raises:
        DataError: there is no such document.
    """
    if not 0 <= document < documents.num_documents:
        raise DataError(f"--document: {document} is none of the {documents.num_documents:,} documents, counted from 0")
    ids = documents.tokens(documents.document_start(document), documents.document_start(document + 1))
    yield f"{place_of(documents, document)} · {len(ids)} tokens"
    yield f"origin: {origin_of(documents, document)}"
    yield f"ids: {' '.join(map(str, ids.tolist()))}"
    yield ""
    yield tokenizer.decode(ids)


def describe_pieces(documents: PairSet, start: int, stop: int, tokenizer: Tokenizer) -> Iterator[str]:
    """The documents that the stream tokens [start, stop) are pieces of, with the text of each piece."""
    from megatron_glm.data.stream import Stream

    stream = Stream(documents, tokenizer.special)
    window = stream.pieces(start, stop)
    bounds = window.starts.tolist()
    for number, document in enumerate(stream.documents(start, stop)):
        ids = window.tokens[bounds[number] + 1 : bounds[number + 1]]  # without [CLS]
        length = documents.document_start(document + 1) - documents.document_start(document)
        yield ""
        yield f"piece {number + 1} of {len(bounds) - 1}: {place_of(documents, document)} · {length} tokens"
        yield f"origin: {origin_of(documents, document)}"
        yield tokenizer.decode(ids)


def place_of(documents: PairSet, document: int) -> str:
    """The number of a document, and its pair and number there."""
    shard, place = documents.locate_document(document)
    return f"document {document} · {documents.prefix(shard)}, document {place} there"


def origin_of(documents: PairSet, document: int) -> str:
    """The input file of a document and its first byte or row there; of a foreign pair only that is known.

    Raises:
        DataError: the origins of a shard cannot be read.
    """
    if isinstance(documents, ShardSet):
        manifest = read_manifest(documents.directory)
        origin = document_origin(documents.directory, manifest, documents.split, document)
        return f"{origin.path}, {origin.unit} {origin.place}"
    shard, place = documents.locate_document(document)
    return f"{documents.prefix(shard)}, document {place}; nothing else is known of an existing pair"


def _show_document(args: argparse.Namespace) -> None:
    from data_tools.verify import check_tokenizer
    from megatron_glm.tokenizer.loading import load_tokenizer

    if args.tokenizer is None or args.config is not None:
        raise ConfigError("--document: needs --tokenizer, the directory of the data's tokenizer, and no --config")
    if len(args.where) + bool(args.prefix) != 1:
        raise ConfigError("--document: give one data directory, or --prefix and existing pairs")
    documents: PairSet
    tokenizer = load_tokenizer(args.tokenizer)
    if args.prefix:
        try:
            documents = PrefixSet(args.prefix, num_ids=tokenizer.vocab_size, eos=tokenizer.special.eos)
        except DataError as error:
            raise DataError(f"--prefix: {error}") from error
    else:
        documents = ShardSet(Path(args.where[0]), args.split)
        check_tokenizer(read_manifest(documents.directory), args.tokenizer)
    for line in describe_document(documents, args.document, tokenizer):
        print(line)


def _show_sample(args: argparse.Namespace) -> None:
    from rich.console import Console

    from megatron_glm.data.show_sample import show
    from megatron_glm.data.sources import open_documents

    if args.config is None or args.tokenizer is not None or args.prefix is not None:
        raise ConfigError("--sample: needs --config, the file of the run, which names sources and tokenizer")
    console = Console(highlight=False, markup=False)
    shown = show(console, args.config, args.where, args.sample, None)
    documents = open_documents(shown.source, shown.field, "train", shown.tokenizer)
    for line in describe_pieces(documents, shown.origin.start, shown.origin.stop, shown.tokenizer):
        console.print(line, soft_wrap=not console.is_terminal)  # a pipe gets whole lines


def _run(args: argparse.Namespace) -> None:
    if args.document is not None:
        _show_document(args)
    else:
        _show_sample(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data_tools.inspect", description=__doc__.splitlines()[0])
    parser.add_argument(
        "where",
        nargs="*",
        metavar="DIR | section.key=value",
        help="with --document: written by data_tools.preprocess; with --sample: settings that replace the file's",
    )
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--document", type=int, metavar="N", help="number of a document of the split, from 0")
    asked.add_argument("--sample", type=int, metavar="INDEX", help="global sample index of a run, from 0")
    parser.add_argument("--split", choices=SPLITS, default="train", help="of --document; default: %(default)s")
    parser.add_argument("--tokenizer", metavar="DIR", help="of --document: the tokenizer of the data")
    parser.add_argument("--prefix", nargs="+", metavar="PREFIX", help="instead of DIR: existing pairs of Megatron")
    parser.add_argument("--config", metavar="FILE", help="of --sample: YAML file of the run")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(_parser(), _run, argv)


if __name__ == "__main__":
    sys.exit(main())
