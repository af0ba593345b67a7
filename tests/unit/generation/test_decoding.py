"""Decoding blank by blank: the cache changes nothing, and the inputs are those of the training."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_glm.generation.cache import LayerCache
from megatron_glm.generation.decoding import CachedReader, fill_blanks
from megatron_glm.generation.prompt import Blank, build_prompt
from megatron_glm.generation.reference import RecomputingReader
from megatron_glm.tokenizer.special import SpecialTokens


@pytest.mark.parametrize("lengths", [[1], [5], [1, 4, 2], [3, 1, 6, 2]])
@torch.inference_mode()
def test_cached_scores_are_those_of_the_whole_row_at_every_step(model, lengths):
    draws = torch.Generator().manual_seed(len(lengths))
    part_a = torch.randint(model.num_ids, (11,), generator=draws)
    cached = CachedReader(model, part_a, room=sum(lengths))
    recomputing = RecomputingReader(model, part_a)
    for blank, length in enumerate(lengths):
        for block_position in range(1, length + 1):
            step = (int(torch.randint(model.num_ids, (), generator=draws)), 2 * blank + 1, block_position)
            difference = (cached.step(*step) - recomputing.step(*step)).abs().max()
            assert difference <= 1e-5


def test_a_full_cache_is_an_error():
    cache = LayerCache(3, num_heads=1, head_dim=2, like=torch.zeros(()))
    token = torch.zeros(1, 1, 2)
    for _ in range(3):
        cache.attend(token, token, token)
    with pytest.raises(ValueError, match="4 tokens in a cache of 3"):
        cache.attend(token, token, token)


class _Recorder:
    """A reader that writes down what it is given; all tokens score alike."""

    def __init__(self, num_ids):
        self.steps = []
        self._num_ids = num_ids

    def step(self, token, position, block_position):
        self.steps.append((token, position, block_position))
        return torch.zeros(self._num_ids)


@pytest.mark.golden
def test_inputs_are_those_of_the_original_layouts(shared):
    golden = json.loads(shared("golden/glm_reference_layouts.json").read_text())
    ids = golden["special_ids"]
    special = SpecialTokens(
        ids["ENC"], ids["eos"], ids["MASK"], ids["sMASK"], ids["gMASK"], ids["sop"], ids["eop"], ids["dBLOCK"]
    )
    num_ids = 30592
    nothing = torch.zeros(num_ids, dtype=torch.bool)
    for case in golden["cases"]:
        part_a = case["input_ids"][: case["sep"]]
        text = part_a[1:] if case.get("kind") == "document_prefix" else part_a[1:-1]
        if case.get("kind") == "document_infill" and text[-1] == special.document_mask:
            continue  # a text that ends with [gMASK] is read as the prefix form
        if case["mask"] == "[gMASK]" and text.count(special.document_mask) > 1:
            continue
        prompt = build_prompt(np.array(text, np.int32), special, max_positions=1024)
        assert prompt.input_ids.tolist() == part_a

        rows = list(zip(*(case[name][case["sep"] :] for name in _ROW), strict=True))
        spans = [[row for row in rows if row[1] == blank.position] for blank in prompt.blanks]
        answers = iter([target for span in spans for *_, target in span])
        recorder = _Recorder(num_ids)
        fill_blanks(
            recorder,
            prompt.blanks,
            lambda scores, answers=answers: next(answers),
            start_of_piece=special.start_of_piece,
            forbidden=nothing,
            max_tokens=1000,
        )
        assert recorder.steps == [(token, *positions) for span in spans for token, *positions, _ in span]


_ROW = ("input_ids", "position_ids", "block_position_ids", "targets")


@given(seed=st.integers(0, 2**32), max_tokens=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_a_blank_gets_between_one_and_max_tokens_none_of_them_forbidden(seed, max_tokens):
    draws = np.random.default_rng(seed)
    forbidden = torch.tensor([True, True, True, False, False, False])
    recorder = _Recorder(6)

    def sampler(scores):
        return int(draws.choice(np.flatnonzero(np.isfinite(scores.numpy()))))

    filled = fill_blanks(
        recorder,
        [Blank(3, (1,)), Blank(5, (1, 0))],
        sampler,
        start_of_piece=2,
        forbidden=forbidden,
        max_tokens=max_tokens,
    )
    assert all(1 <= len(tokens) <= max_tokens and set(tokens) <= {3, 4, 5} for tokens in filled)
    # Every token of a piece was read, the last too: the next blank sees all of it.
    assert [token for token, *_ in recorder.steps] == [2, *filled[0], 2, *filled[1]]
