"""The reasons to stop, and what a stopped run leaves for whoever has started it."""

import time
from types import SimpleNamespace

import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.errors import ConfigError
from megatron_glm.training.control.stopping import (
    LAUNCHER_ENDED,
    OUTPUT_VANISHED,
    STOP_FILE,
    End,
    Wishes,
    forget_end,
    read_end,
    write_end,
)


@pytest.fixture
def wishes(tmp_path):
    def make(rank=0, signal=None, launcher_ended=False, started=None, first_step=10, **train):
        config = config_from_tree(
            {
                "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1},
                "tokenizer": {"path": "-"},
                "data": {"sources": [{"path": "-"}]},
                "optimizer": {"learning_rate": 1},
                "train": {
                    "output": str(tmp_path),
                    "steps": 99,
                    "global_batch_size": 1,
                    "micro_batch_size": 1,
                }
                | train,
            }
        )
        return Wishes(
            config,
            rank=rank,
            signals=SimpleNamespace(received=signal),
            launcher=SimpleNamespace(has_ended=lambda: launcher_ended),
            first_step=first_step,
            started=time.monotonic() if started is None else started,
        )

    return make


def test_nobody_wishes_a_stop(wishes):
    assert wishes().reason(10) is None


def test_a_signal_names_itself_and_the_rank(wishes):
    assert wishes(rank=3, signal="SIGUSR1").reason(10).startswith("SIGUSR1 to rank 3 on ")


def test_steps_and_minutes_are_those_of_this_start(wishes):
    assert wishes(exit_after_steps=5).reason(14) is None
    assert wishes(exit_after_steps=5).reason(15) == "train.exit_after_steps=5"
    assert wishes(exit_after_minutes=0.5).reason(10) is None
    assert wishes(exit_after_minutes=0.5, started=time.monotonic() - 31).reason(10) == "train.exit_after_minutes=0.5"


def test_the_first_rank_alone_looks_at_clock_and_files(wishes, tmp_path):
    (tmp_path / STOP_FILE).touch()
    assert wishes(rank=1, exit_after_steps=1).reason(50) is None
    assert wishes().reason(10) == f"the file {tmp_path / STOP_FILE}"


def test_a_launcher_that_has_ended_comes_before_the_signal_that_its_end_sent(wishes):
    assert wishes(rank=1, signal="SIGTERM", launcher_ended=True).reason(10) == LAUNCHER_ENDED


def test_an_end_is_told_and_the_stop_file_obeyed_once(tmp_path):
    (tmp_path / STOP_FILE).touch()
    end = End(step=7, finished=False, reason=f"the file {tmp_path / STOP_FILE}")
    write_end(tmp_path, end, leads=True)
    assert read_end(tmp_path) == end
    assert not (tmp_path / STOP_FILE).exists()
    forget_end(tmp_path)
    assert read_end(tmp_path) is None
    forget_end(tmp_path)


def test_an_output_that_has_vanished_stops_the_run_and_is_an_error_of_all_ranks(wishes, tmp_path):
    mine = wishes()
    tmp_path.rmdir()
    assert mine.reason(10) == OUTPUT_VANISHED
    for leads in (True, False):
        with pytest.raises(ConfigError, match=r"was removed under the run; its state at step 10 is saved in a new one"):
            write_end(tmp_path, End(step=10, finished=False, reason=OUTPUT_VANISHED), leads=leads)


def test_one_rank_alone_writes(tmp_path):
    write_end(tmp_path, End(step=7, finished=True, reason=""), leads=False)
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_a_launcher_is_nobody_s_wish(tmp_path):
    write_end(tmp_path, End(step=7, finished=False, reason=LAUNCHER_ENDED), leads=True)
    assert read_end(tmp_path) is None


@pytest.mark.parametrize("garbage", ["", "[1]", "{}", '{"step": 1, "finished": true, "reason": "", "more": 1}', "{"])
def test_garbage_is_no_end(tmp_path, garbage):
    (tmp_path / "end.json").write_text(garbage)
    assert read_end(tmp_path) is None
