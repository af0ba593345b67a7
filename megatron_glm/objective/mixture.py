"""From a window and a sample index to a blank-infilling sample.

Everything that chance decides about a sample is a function of (seed, sample index, its window), so it is the
same for any number of processes, any batch size and after any resume.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from megatron_glm.errors import ConfigError
from megatron_glm.objective.batch_spans import RowSpans, document_row_spans, join, row_spans, token_row_spans
from megatron_glm.objective.document import document_spans
from megatron_glm.objective.layout import Layout, lay_out, layout
from megatron_glm.objective.randomness import BatchDraws, Draws, Purpose
from megatron_glm.objective.row import Row, parts, row_of
from megatron_glm.objective.sample import Objective, Sample
from megatron_glm.objective.segments import Segments, cut_short, segment
from megatron_glm.objective.sentence import sentence_spans
from megatron_glm.objective.spans import Limits, SpanLengths, Spans
from megatron_glm.objective.token import single_spans, token_spans
from megatron_glm.objective.window import Window

if TYPE_CHECKING:
    from megatron_glm.config.schema import Objective as ObjectiveConfig
    from megatron_glm.tokenizer.base import SpecialTokens

_TOGETHER = 256  # samples: enough to hide the cost of a call, few enough to stay in the cache
_SHORTEST_SEQUENCE = 32  # tokens, as in the original


class Mixture:
    """The objectives of a run, one of them for each sample.

    Args:
        config: the section `objective`.
        special: ids of the special tokens.
        sentence_ends: bool [vocabulary], tokens that end a sentence.
        max_positions: the largest position of either row.
        window: raw tokens of a window, at most.
        isolate_documents: every document piece is a segment of its own; otherwise they are joined in one.
        seed: of the run.

    Attributes:
        probabilities: of each objective; those of the config, but for samples with a single span.
        capacity: tokens of a sample, at most.

    Raises:
        ConfigError: [dBLOCK] is asked for and the tokenizer has none, or a span would not fit the positions.
    """

    def __init__(
        self,
        config: ObjectiveConfig,
        special: SpecialTokens,
        sentence_ends: np.ndarray,
        *,
        max_positions: int,
        window: int,
        isolate_documents: bool,
        seed: int,
    ):
        if config.block_mask_probability and special.block_mask is None:
            raise ConfigError(
                f"objective.block_mask_probability: {config.block_mask_probability} needs a [dBLOCK] token, "
                "and the tokenizer has none; set it to 0 or add the token"
            )
        if max_positions < max(2, window - 1):
            raise ConfigError(
                f"model.max_positions: {max_positions} is too small for data.window {window}, "
                f"which needs at least {max(2, window - 1)}"
            )
        self._config = config
        self._special = special
        self._sentence_ends = sentence_ends
        self._window = window
        self._isolate = isolate_documents
        self._seed = seed
        self._longest = max_positions - 1  # row 1 of a span of L tokens goes up to L + 1
        self._lengths = SpanLengths(config.mean_span, self._longest)
        self._maskable = _maskable(special, len(sentence_ends))
        self._masks = {
            Objective.TOKEN: special.mask,
            Objective.SENTENCE: special.sentence_mask if config.task_masks else special.mask,
            Objective.DOCUMENT: special.document_mask if config.task_masks else special.mask,
        }
        self._cumulative = list(accumulate((config.token, config.sentence, config.document)))
        single = config.single_span_probability
        token, sentence, document = (
            (1 - single) * share / self._cumulative[-1] for share in (config.token, config.sentence, config.document)
        )
        self.probabilities = single + token, sentence, document
        self.capacity = window + 2 * config.max_spans

    def draw(self, index: int) -> Objective:
        """The objective of a sample in training."""
        draws = Draws(self._seed, index)
        if self._is_single(draws):
            return Objective.TOKEN
        u = draws.one(Purpose.OBJECTIVE) * self._cumulative[-1]
        return Objective(bisect_right(self._cumulative, u))

    def sample(self, index: int, window: Window, objective: Objective | None = None) -> Sample:
        """The sample that a window becomes: at most `capacity` tokens, in which none of the text is lost.

        Args:
            index: global sample index.
            objective: for evaluation; it is then neither drawn nor made harder by the training options (short
                sequences, single spans, [dBLOCK]).

        Raises:
            ValueError: a window that is too long, or whose pieces do not begin with [CLS].
        """
        self._check(window)
        training = objective is None
        objective = self.draw(index) if objective is None else objective
        draws = Draws(self._seed, index)
        short = training and draws.one(Purpose.SHORT_SEQUENCE) < self._config.short_sequence_probability
        if short:
            window = self._cut_short(window, draws)
        segments = segment(window, self._maskable, isolate=self._isolate or short)
        spans = self._spans(objective, segments, draws, single=training and self._is_single(draws))
        corrupt = training and objective is Objective.TOKEN and self._config.block_mask_probability > 0
        arrays = layout(
            segments.tokens,
            segments.bounds,
            spans.spans,
            self._span_order(segments, spans, draws),
            mask=self._masks[objective],
            start_of_piece=self._special.start_of_piece,
            end_of_piece=self._special.end_of_piece,
            block_tokens=self._corrupted(segments.tokens, draws) if corrupt else None,
        )
        return Sample(index, objective, *arrays, yielded=spans.yielded)

    def samples(self, indices: np.ndarray, windows: Sequence[Window]) -> list[Sample]:
        """`sample` of each index and window, in training: the same samples, drawn and laid out together.

        Args:
            indices: global sample indices, int64 [k].

        Raises:
            ValueError: a window that is too long, or whose pieces do not begin with [CLS].
        """
        made: list[Sample] = []
        for first in range(0, len(windows), _TOGETHER):
            some = slice(first, first + _TOGETHER)
            made += self._together(indices[some], windows[some])
        return made

    def _together(self, indices: np.ndarray, windows: Sequence[Window]) -> list[Sample]:
        for window in windows:
            self._check(window)
        draws = BatchDraws(self._seed, indices)
        single = draws.ones(Purpose.SINGLE_SPAN) < self._config.single_span_probability
        shares = np.array(self._cumulative)
        drawn = np.searchsorted(shares, draws.ones(Purpose.OBJECTIVE) * shares[-1], side="right")
        objectives = np.where(single, Objective.TOKEN, drawn)
        short = draws.ones(Purpose.SHORT_SEQUENCE) < self._config.short_sequence_probability
        if short.any():
            windows = [
                self._cut_short(window, Draws(self._seed, index)) if is_short else window
                for index, window, is_short in zip(indices.tolist(), windows, short.tolist(), strict=True)
            ]
        row = row_of(windows, self._maskable, short | self._isolate)
        spans = self._row_spans(row, indices, objectives, single, draws)
        layouts = parts(self._row_layout(row, spans, objectives, draws), row.segment_bounds)
        return [
            Sample(index, Objective(objective), *arrays, yielded=yielded)
            for index, objective, arrays, yielded in zip(
                indices.tolist(), objectives.tolist(), layouts, spans.yielded.tolist(), strict=True
            )
        ]

    def _row_layout(self, row: Row, spans: RowSpans, objectives: np.ndarray, draws: BatchDraws) -> Layout:
        in_order = np.argsort(spans.starts)
        starts, stops, has_end = (each[in_order] for each in (spans.starts, spans.stops, spans.has_end))
        sample = np.searchsorted(row.sample_bounds, starts, side="right") - 1
        order = np.arange(len(starts))
        if self._config.shuffle_spans:
            numbers = draws.at(Purpose.ORDER, sample, starts - row.sample_bounds[sample])
            order = np.lexsort((numbers, np.searchsorted(row.bounds, starts, side="right")))
        return lay_out(
            row.tokens,
            row.bounds,
            starts,
            stops,
            has_end,
            order,
            masks=np.array([self._masks[objective] for objective in Objective])[objectives[sample]],
            start_of_piece=self._special.start_of_piece,
            end_of_piece=self._special.end_of_piece,
            block_tokens=self._corrupted_row(row, objectives == Objective.TOKEN, draws),
        )

    def _row_spans(
        self, row: Row, indices: np.ndarray, objectives: np.ndarray, single: np.ndarray, draws: BatchDraws
    ) -> RowSpans:
        """Of the common objectives together, of sentences and single spans sample by sample."""
        config = self._config
        room = (self.capacity - np.diff(row.sample_bounds)) // 2
        max_spans = np.minimum(config.max_spans, room)
        token = row.runs.of((objectives == Objective.TOKEN) & ~single)
        document = row.runs.of(objectives == Objective.DOCUMENT)
        found = [
            token_row_spans(token, draws, self._lengths, config.token_ratio, max_spans, self._longest),
            document_row_spans(
                row.tokens,
                document,
                draws,
                config.document_min_ratio,
                config.prefix_probability,
                self._special.eos,
                max_spans,
                self._longest,
            ),
        ]
        for sample in np.flatnonzero(single | (objectives == Objective.SENTENCE)).tolist():
            spans = self._spans(
                Objective(objectives[sample]),
                row.segments_of(sample),
                Draws(self._seed, int(indices[sample])),
                single=bool(single[sample]),
            )
            found.append(row_spans(spans, sample, row.sample_bounds))
        return join(found)

    def _corrupted_row(self, row: Row, is_token: np.ndarray, draws: BatchDraws) -> np.ndarray | None:
        probability = self._config.block_mask_probability
        if probability == 0:
            return None
        sample = np.repeat(np.arange(len(is_token)), np.diff(row.sample_bounds))
        numbers = draws.at(Purpose.CORRUPTION, sample, np.arange(len(sample)) - row.sample_bounds[sample])
        return np.where(is_token[sample] & (numbers < probability), np.int32(self._special.block_mask), row.tokens)

    def _check(self, window: Window) -> None:
        if len(window.tokens) > self._window:
            raise ValueError(f"a window of {len(window.tokens)} tokens, at most {self._window} are allowed")
        if (window.tokens[window.starts[:-1]] != self._special.cls).any():
            raise ValueError(f"a piece of the window does not begin with [CLS] (id {self._special.cls})")

    def _is_single(self, draws: Draws) -> bool:
        probability = self._config.single_span_probability
        return probability > 0 and draws.one(Purpose.SINGLE_SPAN) < probability

    def _cut_short(self, window: Window, draws: Draws) -> Window:
        """Each new [CLS] takes from the room of the spans; the least length leaves at least half of it."""
        room = -(-2 * len(window.tokens) // self._config.max_spans)
        least = max(3, min(_SHORTEST_SEQUENCE, self._window // 2), room)
        most = max(least, self._window - 2)
        length = least + int(draws.one(Purpose.SEQUENCE_LENGTH) * (most - least + 1))
        return cut_short(window, self._sentence_ends, self._special.cls, length)

    def _spans(self, objective: Objective, segments: Segments, draws: Draws, *, single: bool) -> Spans:
        config = self._config
        room = (self.capacity - len(segments.tokens)) // 2
        limits = Limits(min(config.max_spans, room), self._longest)
        if single:
            return single_spans(segments, draws, self._lengths, limits)
        if objective is Objective.TOKEN:
            return token_spans(segments, draws, self._lengths, config.token_ratio, limits)
        if objective is Objective.SENTENCE:
            return sentence_spans(segments, draws, self._sentence_ends, config.sentence_ratio, limits)
        return document_spans(
            segments, draws, config.document_min_ratio, config.prefix_probability, self._special.eos, limits
        )

    def _span_order(self, segments: Segments, spans: Spans, draws: Draws) -> np.ndarray:
        """Random inside a segment, or as in the text: int64 [K]."""
        if not self._config.shuffle_spans:
            return np.arange(len(spans.spans))
        starts = np.fromiter((span.start for span in spans.spans), np.int64, len(spans.spans))
        segment_of = np.searchsorted(segments.bounds, starts, side="right")
        return np.lexsort((draws.per_token(Purpose.ORDER, len(segments.tokens))[starts], segment_of))

    def _corrupted(self, tokens: np.ndarray, draws: Draws) -> np.ndarray:
        hit = draws.per_token(Purpose.CORRUPTION, len(tokens)) < self._config.block_mask_probability
        return np.where(hit, np.int32(self._special.block_mask), tokens)


def _maskable(special: SpecialTokens, num_ids: int) -> np.ndarray:
    """Which ids are ordinary text: bool [vocabulary]."""
    maskable = np.ones(num_ids, bool)
    maskable[list(special.by_role().values())] = False
    return maskable
