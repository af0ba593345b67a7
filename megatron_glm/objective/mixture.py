"""From a window and a sample index to a blank-infilling sample.

Everything that chance decides about a sample is a function of (seed, sample index, its window), so it is the
same for any number of processes, any batch size and after any resume.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from megatron_glm.errors import ConfigError
from megatron_glm.objective.document import document_spans
from megatron_glm.objective.layout import layout
from megatron_glm.objective.randomness import Draws, Purpose
from megatron_glm.objective.sample import Objective, Sample
from megatron_glm.objective.segments import Segments, cut_short, segment
from megatron_glm.objective.sentence import sentence_spans
from megatron_glm.objective.spans import Limits, SpanLengths, Spans
from megatron_glm.objective.token import single_spans, token_spans
from megatron_glm.objective.window import Window

if TYPE_CHECKING:
    from megatron_glm.config.schema import Objective as ObjectiveConfig
    from megatron_glm.tokenizer.base import SpecialTokens

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
