"""The rate of a tokenizer alone, in a process and on a core of its own.

    python -m benchmarks.bare_tokenizer gigatoken tokenizer.json corpus/*.jsonl

Reading and JSON are outside of the clock; ids as a NumPy array are inside. Nothing is tokenized before the clock
starts. Texts come in batches of about a megabyte, as data_tools.preprocess makes them. The output is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

_BATCH_BYTES, _BATCH_DOCUMENTS = 1 << 20, 4096


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json of Hugging Face tokenizers")
    parser.add_argument("inputs", nargs="+", type=Path)
    args = parser.parse_args(argv)
    encode = ENGINES[args.engine](args.tokenizer)
    seconds = text_bytes = tokens = documents = 0
    for batch, size in batches(args.inputs):
        start = time.perf_counter()
        ids = encode(batch)
        seconds += time.perf_counter() - start
        text_bytes += size
        documents += len(batch)
        tokens += len(ids)
    print(json.dumps({"seconds": seconds, "text_bytes": text_bytes, "documents": documents, "tokens": tokens}))
    return 0


def gigatoken(path: Path) -> Callable[[list[str]], np.ndarray]:
    """gigatoken on the calling thread."""
    import awkward
    from gigatoken import Tokenizer

    tokenizer = Tokenizer.from_json(path.read_bytes())
    return lambda texts: awkward.to_numpy(awkward.flatten(tokenizer.encode_batch(texts, parallel=False)))


def hugging_face(path: Path) -> Callable[[list[str]], np.ndarray]:
    """`encode_batch_fast` of Hugging Face tokenizers on one thread."""
    import os

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # before the library is loaded
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))

    def encode(texts: list[str]) -> np.ndarray:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return np.concatenate([np.array(encoding.ids, np.int32) for encoding in encodings])

    return encode


ENGINES = {"gigatoken": gigatoken, "tokenizers": hugging_face}


def batches(inputs: Sequence[Path]) -> Iterator[tuple[list[str], int]]:
    """Texts, and the bytes of their UTF-8."""
    batch: list[str] = []
    size = 0
    for path in inputs:
        with path.open("rb") as stream:
            for line in stream:
                batch.append(json.loads(line)["text"])
                size += len(batch[-1].encode("utf-8"))
                if size >= _BATCH_BYTES or len(batch) >= _BATCH_DOCUMENTS:
                    yield batch, size
                    batch, size = [], 0
    if batch:
        yield batch, size


if __name__ == "__main__":
    sys.exit(main())
