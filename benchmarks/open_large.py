"""Opening a set of 40 G tokens and 60 M documents, and its first batch: seconds and memory.

    python -m benchmarks.open_large --json FILE

The index files are real, of documents of random length. The .bin files have their size but no content: holes, which
read as id 0. So the manifest's hashes of them are not true; opening does not look at them. megatron-core's GPTDataset
builds its document, sample and shuffle indices over one prefix of the same documents. Each is a fresh process, once
with the index files out of the page cache and once with them in it. 6 GB of disk are needed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from benchmarks.open_probe import SAMPLES
from benchmarks.origin import origin
from benchmarks.synthetic_run import write_run
from megatron_glm.data.manifest import Manifest, read_manifest, save_manifest
from megatron_glm.data.pair_format import bin_path, idx_path
from megatron_glm.data.provenance import origins_path
from megatron_glm.files import sha256_of

_REPOSITORY = Path(__file__).resolve().parent.parent
_PACKAGES = ("numpy", "pydantic", "megatron-core", "torch")
_SHARD_DOCUMENTS = 400_000  # with 670 tokens each, as many tokens as a shard of preprocess holds
_TARGETS = {"seconds": 1.0, "bytes": 200 * 10**6}
_NO_HASH = "0" * 64


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=60_000_000)
    parser.add_argument("--mean", type=float, default=667.0, help="tokens of a document")
    parser.add_argument("--scratch", type=Path, help="where the files lie (default: the system's temporary directory)")
    parser.add_argument("--json", type=Path, help="write the results here as well")
    args = parser.parse_args(argv)
    report = origin("benchmarks.open_large", sys.argv[1:] if argv is None else argv, _PACKAGES)
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        lengths = _Lengths(args.documents, args.mean)
        config = _write_ours(Path(scratch), lengths)
        prefix = _write_single(Path(scratch) / "single", lengths)
        arms = {"ours": [config], "megatron-core": [prefix, Path(scratch) / "cache"]}
        rows = [_probe(Path(scratch), name, places, warm) for name, places in arms.items() for warm in (False, True)]
    report |= {"documents": args.documents, "tokens": lengths.tokens, "shards": len(lengths.parts), "results": rows}
    report["targets"] = {f"ours, {row['pages']}": _is_met(row) for row in rows if row["arm"] == "ours"}
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


class _Lengths:
    """The tokens of every document, drawn anew a part at a time whenever they are asked for."""

    def __init__(self, documents: int, mean: float):
        self._mean = mean
        self.parts = [min(_SHARD_DOCUMENTS, documents - first) for first in range(0, documents, _SHARD_DOCUMENTS)]
        self.tokens = sum(int(part.sum()) for part in self)

    def __iter__(self) -> Iterator[np.ndarray]:
        for number, documents in enumerate(self.parts):
            yield 1 + np.random.default_rng(number).exponential(self._mean, documents).astype(np.int32)


def _write_ours(scratch: Path, lengths: _Lengths) -> Path:
    """A data directory, a tokenizer, and the configuration that reads them, by its path."""
    config = write_run(scratch, tokens=1000, mean=100, global_batch_size=SAMPLES, micro_batch_size=8)
    directory = scratch / "data"
    manifest = read_manifest(directory).model_dump()
    shards = []
    for number, part in enumerate(lengths):
        prefix = directory / "train" / f"{number:05d}"
        _write_index(prefix, [part], len(part), int(part.sum()))
        with open(origins_path(prefix), "wb") as stream:
            stream.truncate(8 * len(part))
        files = {"bin": bin_path(prefix), "idx": idx_path(prefix), "origins": origins_path(prefix)}
        shard = {"name": prefix.name, "input": 0, "documents": len(part), "tokens": int(part.sum())}
        sizes = {f"{kind}_bytes": path.stat().st_size for kind, path in files.items()}
        shards.append(shard | sizes | {f"{kind}_sha256": _NO_HASH for kind in files})
        shards[-1]["idx_sha256"] = sha256_of(idx_path(prefix))
    documents = sum(lengths.parts)
    manifest["splits"]["train"] = {"shards": shards, "documents": documents, "tokens": lengths.tokens}
    manifest["inputs"] = [manifest["inputs"][0] | {"documents_in": documents, "documents_out": documents}]
    save_manifest(directory, Manifest.model_validate(manifest))
    (scratch / "config.json").write_text(config.model_dump_json(), encoding="utf-8")
    return scratch / "config.json"


def _write_single(prefix: Path, lengths: _Lengths) -> Path:
    """The same documents as one pair."""
    _write_index(prefix, lengths, sum(lengths.parts), lengths.tokens)
    return prefix


def _write_index(prefix: Path, parts: Sequence[np.ndarray] | _Lengths, documents: int, tokens: int) -> None:
    """A .idx (docs/data.md has the layout) in bounded memory, and a .bin of holes; ids of two bytes."""
    with open(bin_path(prefix), "wb") as stream:
        stream.truncate(2 * tokens)
    with open(idx_path(prefix), "wb") as stream:
        stream.write(b"MMIDIDX\0\0" + np.uint64(1).tobytes() + np.uint8(8).tobytes())
        stream.write(np.array([documents, documents + 1], "<u8").tobytes())
        for part in parts:
            stream.write(part.astype("<i4").tobytes())
        _write_offsets(stream, parts)
        for first in range(0, documents + 1, _SHARD_DOCUMENTS):
            stream.write(np.arange(first, min(first + _SHARD_DOCUMENTS, documents + 1), dtype="<i8").tobytes())


def _write_offsets(stream: BinaryIO, parts: Sequence[np.ndarray] | _Lengths) -> None:
    start = 0
    for part in parts:
        ends = start + 2 * np.cumsum(part, dtype=np.int64)
        stream.write(np.concatenate(([start], ends[:-1])).astype("<i8").tobytes())
        start = int(ends[-1])


def _probe(scratch: Path, name: str, places: Sequence[Path], warm: bool) -> dict[str, object]:
    for path in scratch.rglob("*.idx"):
        _set_cached(path, warm)
    path = os.pathsep.join([str(_REPOSITORY), str(_REPOSITORY / "kernels")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.open_probe", name, *map(str, places)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {name}: {done.stderr.strip()}")
    row = json.loads(done.stdout.splitlines()[-1])
    for left in (scratch / "cache").glob("*"):  # the peer's indices: each of its runs builds them
        left.unlink()
    seconds, resident = row["seconds"], row["resident bytes"]
    summary = {
        "arm": name,
        "pages": "in the cache" if warm else "not in the cache",
        "open + first batch, s": round(seconds["open"] + seconds["first batch"], 3),
        "with imports and tokenizer, s": round(sum(seconds.values()), 3),
        "growth, bytes": row["peak bytes"] - resident["tokenizer"],
        "peak, bytes": row["peak bytes"],
    }
    print("  ".join(f"{key}: {value}" for key, value in summary.items()), flush=True)
    return summary | {"steps": row}


def _set_cached(path: Path, warm: bool) -> None:
    with open(path, "rb") as stream:
        if warm:
            while stream.read(1 << 24):
                pass
        else:
            os.fsync(stream.fileno())  # what is not written yet cannot be dropped
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _is_met(row: dict[str, object]) -> dict[str, bool]:
    return {
        "open + first batch within 1 s": row["open + first batch, s"] <= _TARGETS["seconds"],
        "growth within 200 MB": row["growth, bytes"] <= _TARGETS["bytes"],
    }


if __name__ == "__main__":
    sys.exit(main())
