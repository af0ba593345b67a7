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

from megatron_glm.config.phases import RunPhase, all_sources, identity, run_phases
from megatron_glm.config.schema import Config
from megatron_glm.data.manifest import SplitName
from megatron_glm.data.order import MAX_SAMPLES, Change, Order
from megatron_glm.data.pair_set import OPEN_PAIRS
from megatron_glm.data.sources import open_documents
from megatron_glm.data.stream import Stream
from megatron_glm.errors import ConfigError, DataError
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
        mixtures: of each phase of the order, make a sample of a window.

    Attributes:
        lengths: stream tokens of each source; the order depends on them.
    """

    def __init__(self, streams: Sequence[Stream], order: Order, mixtures: Sequence[Mixture]):
        self._streams = streams
        self._order = order
        self._mixtures = mixtures
        self.lengths = tuple(stream.length for stream in streams)

    @classmethod
    def open(cls, config: Config, tokenizer: Tokenizer) -> Self:
        """Open the training documents of all phases' sources; the time does not grow with the corpus.

        Raises:
            DataError: shards that are missing, damaged or empty.
            TokenizerError: shards written with another tokenizer.
            ConfigError: a window longer than the position table; a weight that is too small.
        """
        phases = run_phases(config)
        streams = _open_streams(phases, tokenizer, "train")
        for (field, source), stream in zip(all_sources(phases), streams, strict=True):
            if stream.length == 0:
                raise DataError(
                    f"{field}: no training documents in '{source.name}'; "
                    "leave the source out or preprocess it with a smaller --held-out"
                )
        order = Order(
            [stream.length for stream in streams],
            [source.weight for source in config.data.sources],
            window=config.data.window,
            seed=config.train.seed,
            changes=_changes(phases),
        )
        return cls(streams, order, _mixtures(phases, config, tokenizer))

    def sample(self, index: int) -> Sample:
        """The sample with a global index; it is empty (T = 0) where its window has nothing to mask."""
        return self.trace(index)[1]

    def phase(self, index: int) -> int:
        """Which phase holds at a sample: 0 before the first of `data.phases`."""
        return int(self._order.phase(np.array([index]))[0])

    def probabilities(self, samples: Sequence[int] | np.ndarray) -> tuple[float, ...]:
        """How likely each objective is, single-span samples included: the mean over these samples."""
        counts = np.bincount(self._order.phase(np.asarray(samples)), minlength=len(self._mixtures))
        shares = (counts / len(samples)).tolist()
        present = [(share, mixture) for share, mixture in zip(shares, self._mixtures, strict=True) if share]
        return tuple(sum(share * mixture.probabilities[o] for share, mixture in present) for o in Objective)

    def trace(self, index: int, objective: Objective | None = None) -> tuple[Origin, Sample]:
        """A sample and its window; with an objective as an evaluation would make it, else as it is trained."""
        origin = self._origin(index)
        window = self._streams[origin.source].pieces(origin.start, origin.stop)
        return origin, self._mixtures[self.phase(index)].sample(index, window, objective)

    def documents(self, index: int) -> tuple[Origin, range]:
        """The window of a sample, and the documents of its source that have pieces in it."""
        origin = self._origin(index)
        return origin, self._streams[origin.source].documents(origin.start, origin.stop)

    def stored_at(self, source: int, document: int) -> tuple[Path, int]:
        """The pair that holds a document of a source, without extension, and its number there."""
        return self._streams[source].stored_at(document)

    def samples(self, indices: Sequence[int] | np.ndarray) -> list[Sample]:
        """Several samples at once: the same ones, located, drawn and laid out together."""
        indices = np.asarray(indices, np.int64)
        located = zip(*(place.tolist() for place in self._order.locate(indices)), strict=True)
        windows = [self._streams[source].pieces(start, stop) for source, start, stop in located]
        phase = self._order.phase(indices)
        made: dict[int, Sample] = {}
        for number in np.unique(phase).tolist():
            places = np.flatnonzero(phase == number)
            chosen = self._mixtures[number].samples(indices[places], [windows[place] for place in places])
            made.update(zip(places.tolist(), chosen, strict=True))
        return [made[place] for place in range(len(indices))]

    def _origin(self, index: int) -> Origin:
        return Origin(*(int(place[0]) for place in self._order.locate(np.array([index]))))


class HeldOutDataset:
    """Windows spread evenly over the held-out documents, for every objective that is trained in some phase.

    They are the same in all phases: those of the sources of all phases, cut by `data.window`, with the spans of
    the section `objective`. The sources' held-out streams are taken one after another, each cut into windows from
    its start; their weights play no part, so runs with other weights are measured on the same text. The spans of
    a window depend on the seed and its place, not on how many windows are asked for: its sample index is
    2**62 + place, which no training sample has.

    Args:
        streams: the held-out documents, one per source; together they are not empty.
        mixture: makes a sample of a window.
        objectives: those to evaluate.
        window: raw tokens of a sample, at most.
        limit: windows of an evaluation, at most.

    Attributes:
        objectives: those to evaluate.
        num_windows: the windows of an evaluation, `limit` or all there are.
    """

    def __init__(
        self, streams: Sequence[Stream], mixture: Mixture, objectives: tuple[Objective, ...], *, window: int, limit: int
    ):
        self._streams = streams
        self._mixture = mixture
        self._stride = window - 1
        windows = [-(-stream.length // self._stride) for stream in streams]
        self._source_ends = np.cumsum(windows)
        self._available = int(self._source_ends[-1])
        self.objectives = objectives
        self.num_windows = min(limit, self._available)

    @classmethod
    def open(cls, config: Config, tokenizer: Tokenizer) -> Self:
        """Open the held-out documents of all phases' sources; sources without held-out documents add no windows.

        Raises:
            DataError: no source has held-out documents; otherwise as `SampleDataset.open`.
        """
        phases = run_phases(config)
        streams = _open_streams(phases, tokenizer, "held_out")
        if not any(stream.length for stream in streams):
            names = ", ".join(f"'{source.name}'" for _, source in all_sources(phases))
            raise DataError(
                f"data.sources: no held-out documents in {names}; preprocess with a larger --held-out, "
                "or give held_out_prefixes"
            )
        mixtures = _mixtures(phases, config, tokenizer)
        objectives = tuple(o for o in Objective if any(mixture.probabilities[o] > 0 for mixture in mixtures))
        return cls(streams, mixtures[0], objectives, window=config.data.window, limit=config.train.eval_samples)

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


def _changes(phases: Sequence[RunPhase]) -> list[Change]:
    """The phases after the first as the order takes them."""
    places = {identity(source): place for place, (_, source) in enumerate(all_sources(phases))}
    return [
        Change(
            phase.first_sample,
            tuple(places[identity(source)] for source in phase.settings.sources),
            tuple(source.weight for source in phase.settings.sources),
            phase.settings.window,
            phase.sources_field,
        )
        for phase in phases[1:]
    ]


def _mixtures(phases: Sequence[RunPhase], config: Config, tokenizer: Tokenizer) -> list[Mixture]:
    """The mixture of each phase. It takes the longer windows of earlier phases too, with which waves are finished."""
    mixtures, longest = [], 0
    for phase in phases:
        longest = max(longest, phase.settings.window)
        try:
            mixture = Mixture(
                phase.settings.objective,
                tokenizer.special,
                tokenizer.sentence_ends(),
                max_positions=config.model.max_positions,
                window=longest,
                isolate_documents=config.data.isolate_documents,
                seed=config.train.seed,
            )
        except ConfigError as error:
            raise ConfigError(str(error).replace("objective.", f"{phase.objective_field}.", 1)) from error
        mixtures.append(mixture)
    return mixtures


def _open_streams(phases: Sequence[RunPhase], tokenizer: Tokenizer, split: SplitName) -> list[Stream]:
    # Short sequences are cut at them too: looked up only for a later phase, they would alter the samples before it.
    objectives = [phase.settings.objective for phase in phases]
    sentences = any(objective.sentence > 0 or objective.short_sequence_probability > 0 for objective in objectives)
    sources = all_sources(phases)
    share = max(OPEN_PAIRS // len(sources), 1)
    return [
        Stream(
            open_documents(source, field, split, tokenizer, open_pairs=share), tokenizer.special, sentences=sentences
        )
        for field, source in sources
    ]
