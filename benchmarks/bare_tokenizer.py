"""The rate of a tokenizer alone, in a process of its own.

    python -m benchmarks.bare_tokenizer gigatoken tokenizer.json corpus/*.jsonl

Reading and JSON are outside of the clock; ids as a NumPy array are inside. Nothing is tokenized before the clock
starts. Texts come in batches of about a megabyte, as data_tools.preprocess makes them, and with several threads of
sixteen, so that none waits long for the one with the longest text. The output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

_BATCH_BYTES, _BATCH_DOCUMENTS = 1 << 20, 4096
_THREADED_BATCHES = 16  # times as large


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json of Hugging Face tokenizers")
    parser.add_argument("inputs", nargs="+", type=Path)
    parser.add_argument("--threads", type=int, default=1, help="that the library may use")
    args = parser.parse_args(argv)
    encode = ENGINES[args.engine](args.tokenizer, args.threads)
    seconds = text_bytes = tokens = documents = 0
    for batch, size in batches(args.inputs, times=1 if args.threads == 1 else _THREADED_BATCHES):
        start = time.perf_counter()
        ids = encode(batch)
        seconds += time.perf_counter() - start
        text_bytes += size
        documents += len(batch)
        tokens += len(ids)
    print(json.dumps({"seconds": seconds, "text_bytes": text_bytes, "documents": documents, "tokens": tokens}))
    return 0


def gigatoken(path: Path, threads: int) -> Callable[[list[str]], np.ndarray]:
    """gigatoken on the calling thread, or on threads of its own."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # before the library is loaded
    import awkward
    from gigatoken import Tokenizer

    tokenizer, parallel = Tokenizer.from_json(path.read_bytes()), threads > 1
    return lambda texts: awkward.to_numpy(awkward.flatten(tokenizer.encode_batch(texts, parallel=parallel)))


def hugging_face(path: Path, threads: int) -> Callable[[list[str]], np.ndarray]:
    """`encode_batch_fast` of Hugging Face tokenizers."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # before the library is loaded
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))

    def encode(texts: list[str]) -> np.ndarray:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return np.concatenate([np.array(encoding.ids, np.int32) for encoding in encodings])

    return encode


ENGINES = {"gigatoken": gigatoken, "tokenizers": hugging_face}


def batches(inputs: Sequence[Path], *, times: int = 1) -> Iterator[tuple[list[str], int]]:
    """Texts, and the bytes of their UTF-8: `times` a megabyte."""
    batch: list[str] = []
    size = 0
    for path in inputs:
        with path.open("rb") as stream:
            for line in stream:
                batch.append(json.loads(line)["text"])
                size += len(batch[-1].encode("utf-8"))
                if size >= times * _BATCH_BYTES or len(batch) >= times * _BATCH_DOCUMENTS:
                    yield batch, size
                    batch, size = [], 0
    if batch:
        yield batch, size


if __name__ == "__main__":
    sys.exit(main())
