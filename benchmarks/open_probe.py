"""One fresh process that opens a large set and makes its first samples: seconds and resident memory of each step.

    python -m benchmarks.open_probe ours config.json
    python -m benchmarks.open_probe megatron-core PREFIX CACHE

The output is JSON. benchmarks/open_large.py starts it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

SAMPLES, WINDOW = 1024, 512


def main(argv: Sequence[str] | None = None) -> int:
    name, *places = sys.argv[1:] if argv is None else argv
    seconds, resident, started = {}, {"started": _resident_bytes()}, time.perf_counter()
    for step in PROBES[name](*map(Path, places)):
        seconds[step] = round(time.perf_counter() - started, 4)
        resident[step] = _resident_bytes()
        started = time.perf_counter()
    peak = _status("VmHWM") * 1024
    print(
        json.dumps(
            {"seconds": seconds, "resident bytes": resident, "peak bytes": peak, "torch": "torch" in sys.modules}
        )
    )
    return 0


def ours(config_path: Path) -> Iterator[str]:
    """SampleDataset.open, and a batch."""
    from megatron_glm.config.loading import config_from_tree
    from megatron_glm.data.dataset import SampleDataset
    from megatron_glm.tokenizer.loading import load_tokenizer

    yield "import"
    config = config_from_tree(json.loads(config_path.read_bytes()))
    tokenizer = load_tokenizer(config.tokenizer.path)
    yield "tokenizer"
    dataset = SampleDataset.open(config, tokenizer)
    yield "open"
    samples = dataset.samples(np.arange(SAMPLES))
    assert len(samples) == SAMPLES
    yield "first batch"


def megatron_core(prefix: Path, cache: Path) -> Iterator[str]:
    """GPTDataset over all documents for one epoch, without its index files, and as many samples."""
    from types import SimpleNamespace

    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    yield "import"
    tokenizer = SimpleNamespace(eod=0, pad=0, vocab_size=50_000, unique_identifiers={"class": "probe"})
    config = GPTDatasetConfig(
        random_seed=1234,
        sequence_length=WINDOW,
        blend=([str(prefix)], None),
        split="1,0,0",
        path_to_cache=str(cache),
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    yield "tokenizer"
    documents = IndexedDataset(str(prefix))
    indices = np.arange(len(documents.document_indices) - 1, dtype=np.int32)
    dataset = GPTDataset(documents, str(prefix), indices, None, Split.train, config)
    yield "open"
    for index in range(SAMPLES):
        dataset[index]
    yield "first batch"


PROBES: dict[str, Callable[..., Iterator[str]]] = {"ours": ours, "megatron-core": megatron_core}


def _resident_bytes() -> int:
    return _status("VmRSS") * 1024


def _status(name: str) -> int:
    """A number of /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    sys.exit(main())
