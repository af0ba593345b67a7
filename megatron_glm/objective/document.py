"""The document objective: one long span (GLM paper, section 2.1.2)."""

from __future__ import annotations

from megatron_glm.objective.randomness import Draws, Purpose
from megatron_glm.objective.segments import Segments
from megatron_glm.objective.spans import Limits, Span, Spans, least_masked, longest_first


def document_spans(
    segments: Segments, draws: Draws, min_ratio: float, prefix_probability: float, eos: int, limits: Limits
) -> Spans:
    """One span in every run, its length uniform between `min_ratio` and all of the tokens.

    The infill form lies anywhere. The prefix form is the end of the run, the closing eos included: with it
    the model learns to stop.
    """
    tokens = segments.tokens
    lengths, places, forms = (
        draws.per_token(purpose, len(tokens)) for purpose in (Purpose.LENGTH, Purpose.PLACE, Purpose.FORM)
    )
    spans: list[Span] = []
    yielded = 0
    for start, stop in longest_first(segments.runs):
        wanted = least_masked(min_ratio, stop - start)
        if len(spans) == limits.max_spans:
            yielded += wanted
            continue
        most = min(stop - start, limits.longest)
        least = min(wanted, most)
        length = least + int(lengths[start] * (most - least + 1))
        yielded += wanted - least
        if forms[start] < prefix_probability:
            closed = stop < len(tokens) and tokens[stop] == eos
            spans.append(Span(stop - length, stop + closed, ends_text=True))
        else:
            place = start + int(places[start] * (stop - start - length + 1))
            spans.append(Span(place, place + length))
    return Spans(sorted(spans, key=lambda span: span.start), yielded)
