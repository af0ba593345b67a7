"""How others turn JSON lines into the same shards, for comparison: each as its documentation has it.

python -m benchmarks.preprocess_peers datatrove tokenizer.json DIRECTORY OUTPUT --processes 2
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import Pool
from pathlib import Path

END = "<|endoftext|>"
_CHUNK = 32  # lines handed to a process of megatron-core's at once


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("inputs", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args(argv)
    PEERS[args.peer](args.tokenizer, args.inputs, args.output, args.processes)
    return 0


def datatrove(tokenizer: Path, inputs: Path, output: Path, processes: int) -> None:
    """A task a process; each reads files of its own."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens.megatron_tokenizer import MegatronDocumentTokenizer

    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(inputs)),
            MegatronDocumentTokenizer(str(output), tokenizer_name_or_path=str(tokenizer), eos_token=END),
        ],
        tasks=processes,
        workers=processes,
        logging_dir=str(output / "logs"),
    ).run()


class _Encoder:
    """What a process of the pool does with a line."""

    def __init__(self, tokenizer: Path):
        self._path = tokenizer

    def start(self) -> None:
        from tokenizers import Tokenizer

        _Encoder.tokenizer = Tokenizer.from_file(str(self._path))
        _Encoder.end = _Encoder.tokenizer.token_to_id(END)

    def encode(self, line: bytes) -> list[int]:
        ids = _Encoder.tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids
        return [*ids, _Encoder.end]


def megatron_core(tokenizer: Path, inputs: Path, output: Path, processes: int) -> None:
    """The shape of its preprocess_data.py: a pool that tokenizes lines, one process that writes."""
    import numpy as np
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    output.mkdir()
    encoder = _Encoder(tokenizer)
    builder = IndexedDatasetBuilder(str(output / "text_document.bin"), dtype=np.uint16)
    with Pool(processes, initializer=encoder.start) as pool:
        for ids in pool.imap(encoder.encode, _lines(inputs), _CHUNK):
            builder.add_document(ids, [len(ids)])
    builder.finalize(str(output / "text_document.idx"))


def _lines(inputs: Path) -> Iterator[bytes]:
    for path in sorted(inputs.glob("*.jsonl")):
        with path.open("rb") as stream:
            yield from stream


PEERS = {"datatrove": datatrove, "megatron-core": megatron_core}

if __name__ == "__main__":
    sys.exit(main())
