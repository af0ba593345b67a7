"""The samples of a run, each a pure function of (seed, global sample index).

`SampleDataset` gives the training samples; `HeldOutDataset` gives the same held-out windows once per
objective, so that the losses of two steps, or of two runs on the same data, are comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from megatron_glm.config.schema import Config
from megatron_glm.data.manifest import SplitName
from megatron_glm.data.order import MAX_SAMPLES, Order
from megatron_glm.data.shards import ShardSet
from megatron_glm.data.stream import Stream
from megatron_glm.errors import DataError, TokenizerError
from megatron_glm.objective.mixture import Mixture
from megatron_glm.objective.sample import Objective, Sample
from megatron_glm.tokenizer.base import Tokenizer


@dataclass(frozen=True)
class Origin:
    """The window of a sample: stream tokens [start, stop) of a source."""

    source: int
    start: int
    stop: int


class SampleDataset:
    """The training samples: `sample(i)` is the same on every machine, in any order of asking.

    Args:
        streams: one per source.
        order: where the window of a sample lies.
        mixture: makes a sample of a window.
    """

    def __init__(self, streams: Sequence[Stream], order: Order, mixture: Mixture):
        self._streams = streams
        self._order = order
        self._mixture = mixture

    @classmethod
    def open(cls, config: Config, tokenizer: Tokenizer) -> Self:
        """Open the training shards of `data.sources`; the time does not grow with the corpus.

        Raises:
            DataError: shards that are missing, damaged or empty.
            TokenizerError: shards written with another tokenizer.
            ConfigError: a window longer than the position table; a weight that is too small.
        """
        streams = _open_streams(config, tokenizer, "train")
        for ordinal, (source, stream) in enumerate(zip(config.data.sources, streams, strict=True)):
            if stream.length == 0:
                raise DataError(
                    f"data.sources[{ordinal}].path: no training documents in '{source.path}'; "
                    "leave the source out or preprocess it with a smaller --held-out"
                )
        order = Order(
            [stream.length for stream in streams],
            [source.weight for source in config.data.sources],
            window=config.data.window,
            seed=config.train.seed,
        )
        return cls(streams, order, _mixture(config, tokenizer))

    def sample(self, index: int) -> Sample:
        """The sample with a global index; it is empty (T = 0) where its window has nothing to mask."""
        return self.trace(index)[1]

    @property
    def probabilities(self) -> tuple[float, ...]:
        """How likely each objective is, single-span samples included."""
        return self._mixture.probabilities

    def trace(self, index: int, objective: Objective | None = None) -> tuple[Origin, Sample]:
        """A sample and its window; with an objective as an evaluation would make it, else as it is trained."""
        origin = Origin(*(int(place[0]) for place in self._order.locate(np.array([index]))))
        window = self._streams[origin.source].pieces(origin.start, origin.stop)
        return origin, self._mixture.sample(index, window, objective)

    def samples(self, indices: Sequence[int] | np.ndarray) -> list[Sample]:
        """Several samples at once: the same ones, located, drawn and laid out together."""
        indices = np.asarray(indices, np.int64)
        located = zip(*(place.tolist() for place in self._order.locate(indices)), strict=True)
        windows = [self._streams[source].pieces(start, stop) for source, start, stop in located]
        return self._mixture.samples(indices, windows)


class HeldOutDataset:
    """Windows spread evenly over the held-out documents, for every objective that is trained.

    The sources' held-out streams are taken one after another, each cut into windows from its start; their
    weights play no part, so runs with other weights are measured on the same text. The spans of
    a window depend on the seed and its place, not on how many windows are asked for: its sample index is
    2**62 + place, which no training sample has.

    Args:
        streams: the held-out documents, one per source; together they are not empty.
        mixture: makes a sample of a window.
        window: raw tokens of a sample, at most.
        limit: windows of an evaluation, at most.

    Attributes:
        objectives: those whose probability is above zero.
        num_windows: the windows of an evaluation, `limit` or all there are.
    """

    def __init__(self, streams: Sequence[Stream], mixture: Mixture, *, window: int, limit: int):
        self._streams = streams
        self._mixture = mixture
        self._stride = window - 1
        windows = [-(-stream.length // self._stride) for stream in streams]
        self._source_ends = np.cumsum(windows)
        self._available = int(self._source_ends[-1])
        self.objectives = tuple(o for o in Objective if mixture.probabilities[o] > 0)
        self.num_windows = min(limit, self._available)

    @classmethod
    def open(cls, config: Config, tokenizer: Tokenizer) -> Self:
        """Open the held-out shards of `data.sources`; sources without held-out documents add no windows.

        Raises:
            DataError: no source has held-out documents; otherwise as `SampleDataset.open`.
        """
        streams = _open_streams(config, tokenizer, "held_out")
        if not any(stream.length for stream in streams):
            paths = ", ".join(f"'{source.path}'" for source in config.data.sources)
            raise DataError(f"data.sources: no held-out documents in {paths}; preprocess with a larger --held-out")
        mixture = _mixture(config, tokenizer)
        return cls(streams, mixture, window=config.data.window, limit=config.train.eval_samples)

    def sample(self, objective: Objective, window: int) -> Sample:
        """The sample of window 0 … num_windows − 1 under an objective.

        Raises:
            IndexError: another window.
        """
        if not 0 <= window < self.num_windows:
            raise IndexError(f"window {window} lies outside range({self.num_windows})")
        place = window * self._available // self.num_windows
        source = int(np.searchsorted(self._source_ends, place, side="right"))
        first = int(self._source_ends[source - 1]) if source else 0
        start = (place - first) * self._stride
        stop = min(start + self._stride, self._streams[source].length)
        pieces = self._streams[source].pieces(start, stop)
        return self._mixture.sample(MAX_SAMPLES + place, pieces, objective=objective)


def _mixture(config: Config, tokenizer: Tokenizer) -> Mixture:
    return Mixture(
        config.objective,
        tokenizer.special,
        tokenizer.sentence_ends(),
        max_positions=config.model.max_positions,
        window=config.data.window,
        isolate_documents=config.data.isolate_documents,
        seed=config.train.seed,
    )


def _open_streams(config: Config, tokenizer: Tokenizer, split: SplitName) -> list[Stream]:
    streams = []
    for ordinal, source in enumerate(config.data.sources):
        field = f"data.sources[{ordinal}].path"
        try:
            shards = ShardSet(Path(source.path), split)
        except DataError as error:
            raise DataError(f"{field}: {error}") from error
        written_with = shards.manifest["tokenizer"]["hash"]
        if written_with != tokenizer.content_hash:
            raise TokenizerError(
                f"{field}: '{source.path}' was written with the tokenizer {written_with}, but "
                f"tokenizer.path '{config.tokenizer.path}' holds {tokenizer.content_hash}; "
                "use the tokenizer of the data or preprocess again"
            )
        streams.append(Stream(shards, tokenizer.special))
    return streams
