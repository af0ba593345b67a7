"""The flat row: samples one after another, with everything that tells them apart."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_glm.data.batch import collate
from megatron_glm.objective.sample import Objective, Sample

PAD = 7


def make_sample(index, objective, segments):
    """A sample of segments given as (length of part A, length of part B), with ids that differ everywhere."""
    ends = np.cumsum([a + b for a, b in segments], dtype=np.int32)
    T = int(ends[-1]) if len(ends) else 0
    starts = ends - np.array([a + b for a, b in segments], np.int32)
    bounds = np.array([(s, a, e) for s, e, (a, _) in zip(starts, ends, segments, strict=True)], np.int32).reshape(-1, 3)
    loss_mask = np.zeros(T, bool)
    for start, a, end in bounds:
        loss_mask[start + a : end] = True
    ids = np.arange(T, dtype=np.int32) + 1000 * index
    return Sample(
        index=index,
        objective=objective,
        input_ids=ids,
        targets=ids + 1,
        loss_mask=loss_mask,
        position_ids=ids + 2,
        block_position_ids=ids + 3,
        segments=bounds,
    )


samples = st.lists(
    st.tuples(
        st.sampled_from(Objective),
        st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=3),
    ),
    max_size=6,
).map(lambda drawn: [make_sample(i + 1, *sample) for i, sample in enumerate(drawn)])


@settings(max_examples=60, deadline=None)
@given(samples=samples, multiple=st.sampled_from([1, 8, 64]))
def test_every_sample_lies_whole_in_the_row_and_the_rest_is_padding(samples, multiple):
    batch = collate(samples, multiple=multiple, pad_id=PAD)
    T = len(batch.input_ids)
    n = batch.num_tokens
    assert n == sum(len(s.input_ids) for s in samples)
    assert T % multiple == 0
    assert max(n, multiple) <= T < max(n, 1) + multiple
    assert batch.num_samples == len(samples)
    fields = [("input_ids", PAD), ("position_ids", 0), ("block_position_ids", 0)]
    for name, padding in fields:
        row = getattr(batch, name)
        assert row.dtype == torch.int64
        joined = [token for s in samples for token in getattr(s, name).tolist()]
        assert row.tolist() == joined + [padding] * (T - n)
    assert batch.row_keys.sample[:n].tolist() == [s.index for s in samples for _ in s.input_ids]
    assert batch.row_keys.token[:n].tolist() == [i for s in samples for i in range(len(s.input_ids))]
    for index, start, end in batch.row_keys.spans:
        assert (batch.row_keys.sample[start:end] == index).all()
    assert sum(end - start for _, start, end in batch.row_keys.spans) == n


@settings(max_examples=60, deadline=None)
@given(samples=samples)
def test_targets_are_those_of_the_samples_in_order(samples):
    batch = collate(samples, pad_id=PAD)
    assert batch.target_ids.tolist() == [t for s in samples for t in s.targets[s.loss_mask].tolist()]
    assert (batch.input_ids[batch.target_index] + 1).tolist() == batch.target_ids.tolist()
    objectives = [int(s.objective) for s in samples for _ in range(s.loss_mask.sum())]
    assert batch.target_objective.tolist() == objectives
    assert batch.target_counts == tuple(objectives.count(o) for o in Objective)
    assert batch.target_index.dtype == batch.target_ids.dtype == batch.target_objective.dtype == torch.int64


@settings(max_examples=40, deadline=None)
@given(samples=samples)
def test_a_token_sees_its_own_segment_alone_and_padding_sees_nothing(samples):
    batch = collate(samples, pad_id=PAD)
    expected = np.zeros((len(batch.input_ids), 2), np.int64)
    offset = 0
    for sample in samples:
        for start, a, end in (sample.segments + np.array([offset, 0, offset])).tolist():
            for i in range(start, end):
                expected[i] = start, max(start + a, i + 1)
        offset += len(sample.input_ids)
    seen = torch.stack([batch.visibility.key_start, batch.visibility.key_end], 1).numpy()
    assert (seen[:offset] == expected[:offset]).all()
    assert (seen[offset:, 0] == seen[offset:, 1]).all()


def test_a_batch_sums_what_its_samples_yielded():
    some = [replace(make_sample(i, Objective.TOKEN, [(3, 4)]), yielded=i) for i in (2, 0, 5)]
    assert collate(some, pad_id=PAD).yielded == 7
    assert collate([], pad_id=PAD).yielded == 0


def test_a_batch_of_nothing_is_64_tokens_of_padding():
    for samples in ([], [make_sample(3, Objective.TOKEN, [])]):
        batch = collate(samples, pad_id=PAD)
        assert batch.input_ids.tolist() == [PAD] * 64
        assert batch.target_index.shape == batch.target_ids.shape == batch.target_objective.shape == (0,)
        assert batch.target_counts == (0, 0, 0)
        assert batch.num_tokens == 0
        assert batch.row_keys.spans == ()
        assert batch.visibility.segments == ()


def test_a_capacity_makes_all_rows_alike():
    for segments in ([], [(3, 4)], [(10, 70)]):
        batch = collate([make_sample(1, Objective.TOKEN, segments)], capacity=80, pad_id=PAD)
        assert batch.input_ids.shape == (80,)
    with pytest.raises(ValueError, match="1 samples have 81 tokens, the row's capacity is 80"):
        collate([make_sample(1, Objective.TOKEN, [(10, 71)])], capacity=80, pad_id=PAD)


def test_a_batch_moves_as_a_whole():
    moved = collate([make_sample(1, Objective.TOKEN, [(3, 4)])], pad_id=PAD).to("meta")
    tensors = [
        moved.input_ids,
        moved.position_ids,
        moved.block_position_ids,
        moved.target_index,
        moved.target_ids,
        moved.target_objective,
        moved.visibility.key_start,
        moved.row_keys.sample,
    ]
    assert all(tensor.is_meta for tensor in tensors)
    assert moved.target_counts == (4, 0, 0)


def tensors_of(batch):
    groups = (batch, batch.visibility, batch.row_keys)
    return [value for group in groups for value in vars(group).values() if isinstance(value, torch.Tensor)]


def test_pinning_pins_every_tensor_and_keeps_the_rest(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    batch = collate([make_sample(1, Objective.TOKEN, [(3, 4)])], pad_id=PAD)
    pinned = batch.pin_memory()
    assert len(tensors_of(batch)) == 13
    assert all(
        torch.equal(after, before + 1) for before, after in zip(tensors_of(batch), tensors_of(pinned), strict=True)
    )
    assert pinned.visibility.segments == batch.visibility.segments
    assert pinned.row_keys.spans == batch.row_keys.spans
    assert pinned.target_counts == batch.target_counts


def test_no_tensor_makes_the_host_wait_on_its_way_to_a_device(monkeypatch):
    waits, to = [], torch.Tensor.to

    def moved(tensor, device, non_blocking=False):
        waits.append(not non_blocking)
        return to(tensor, device)

    monkeypatch.setattr(torch.Tensor, "to", moved)
    collate([make_sample(1, Objective.TOKEN, [(3, 4)])], pad_id=PAD).to("meta")
    assert waits == [False] * 13
