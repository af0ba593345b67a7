"""A snapshot keeps the values of its moment, in memory that is asked for once."""

import torch

from megatron_glm.checkpoint.format import Fragment
from megatron_glm.checkpoint.snapshot import Snapshot


def fragments(values):
    return [Fragment("w", "weight", 0, values[:6]), Fragment("w", "weight", 6, values[6:], rows=2, stride=10)]


def test_what_training_changes_afterwards_is_not_in_it():
    values = torch.arange(10, dtype=torch.float32)
    taken = Snapshot().take(fragments(values))
    values.fill_(-1)
    assert torch.cat([fragment.values for fragment in taken]).tolist() == list(range(10))
    assert [(f.name, f.kind, f.start, f.rows, f.stride) for f in taken] == [
        ("w", "weight", 0, 1, 0),
        ("w", "weight", 6, 2, 10),
    ]


def test_the_next_one_uses_the_same_memory():
    snapshot, values = Snapshot(), torch.zeros(10)
    places = [fragment.values.data_ptr() for fragment in snapshot.take(fragments(values))]
    values += 1
    again = snapshot.take(fragments(values))
    assert [fragment.values.data_ptr() for fragment in again] == places
    assert all((fragment.values == 1).all() for fragment in again)


def test_a_precision_that_a_checkpoint_has_not_is_left_for_the_writer_to_refuse():
    taken = Snapshot().take([Fragment("w", "weight", 0, torch.zeros(3, dtype=torch.bfloat16))])
    assert taken[0].values.dtype == torch.bfloat16
