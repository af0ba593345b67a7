"""A machine with an old copy of anything is named before a step is made, on all ranks alike."""

import threading

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.errors import ConfigError
from megatron_glm.training.same_everywhere import check_same_everywhere

CONTENTS = {"tokenizer_hash": "a" * 64, "source_lengths": [1000, 2000], "source_hashes": ["b" * 64, "c" * 64]}
CONTENTS |= {"held_out_windows": 8}


class Rank:
    """One of some threads that meet."""

    def __init__(self, rank, board, meeting):
        self.rank, self._board, self._meeting = rank, board, meeting

    def gather(self, value):
        self._board[self.rank] = value
        self._meeting.wait(10)
        values = list(self._board)
        self._meeting.wait(10)
        return values


def config(**train):
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 2},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": "a"}, {"path": "b"}]},
            "optimizer": {"learning_rate": 1e-3},
            "train": {"output": "-", "steps": 9, "global_batch_size": 8, "micro_batch_size": 2, **train},
        }
    )


def told(*given):
    """What each of some ranks, with these configurations and contents, is told."""
    board, meeting, messages = [None] * len(given), threading.Barrier(len(given)), [None] * len(given)

    def check(rank):
        try:
            check_same_everywhere(given[rank][0], Rank(rank, board, meeting), **CONTENTS | given[rank][1])
        except ConfigError as error:
            messages[rank] = str(error)

    threads = [threading.Thread(target=check, args=(rank,)) for rank in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(messages)) == 1
    return messages[0]


def test_the_same_is_well_though_one_process_of_a_machine_alone_looks_at_the_documents():
    assert told((config(), {}), (config(), {"source_hashes": ()}), (config(), {})) is None


def test_a_machine_may_have_more_cores_and_where_a_run_writes_is_seen_elsewhere():
    assert told((config(output="x"), {}), (config(output="y", threads=1), {})) is None


def test_another_setting_is_named_with_its_rank():
    assert told((config(), {}), (config(), {}), (config(seed=7, precision="bf16"), {})) == (
        "rank 2 was given another configuration than rank 0: train.seed 1234 → 7; train.precision fp32 → bf16; start"
        " all processes with the same file and overrides"
    )


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"tokenizer_hash": "d" * 64},
            "tokenizer.path: rank 0 finds hash aaaaaaaaaaaa, rank 1 finds hash dddd",
        ),
        ({"source_lengths": [1000, 2001]}, "data.sources[1]: rank 0 finds 2,000 stream tokens, rank 1 finds 2,001"),
        (
            {"source_hashes": ["b" * 64, "d" * 64]},
            "documents of data.sources[1]: rank 0 finds hash cccccccccccc, ",
        ),
        ({"held_out_windows": 7}, "held-out windows: rank 0 finds 8, rank 1 finds 7; copy the same to every machine"),
    ],
)
def test_other_contents_are_named_with_their_rank(other, message):
    assert told((config(), {}), (config(), other)).startswith(message)
