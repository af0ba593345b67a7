"""A rewind that no checkpoint holds yet: which start it is for."""

import pytest

from megatron_glm.errors import CheckpointError
from megatron_glm.training.checkpoints.rewind_file import (
    REWIND_FILE,
    RewindRecord,
    forget_rewind,
    keep_rewind,
    kept_rewind,
)

RECORD = RewindRecord(run_id="run", step=4, rewinds=2, skip_samples=[[50, 70]])


def test_it_is_for_a_start_from_the_checkpoint_that_the_run_went_back_to_or_from_one_before(tmp_path):
    keep_rewind(tmp_path, RECORD)
    assert kept_rewind(tmp_path, run_id="run", step=4) == RECORD
    assert kept_rewind(tmp_path, run_id="run", step=2) == RECORD


@pytest.mark.parametrize("start", [{"run_id": "run", "step": 5}, {"run_id": "another", "step": 4}])
def test_a_later_checkpoint_and_another_run_know_for_themselves(tmp_path, start):
    keep_rewind(tmp_path, RECORD)
    assert kept_rewind(tmp_path, **start) is None


def test_the_last_one_holds(tmp_path):
    keep_rewind(tmp_path, RECORD)
    keep_rewind(tmp_path, later := RECORD.model_copy(update={"rewinds": 3, "skip_samples": [[40, 70]]}))
    assert kept_rewind(tmp_path, run_id="run", step=4) == later


def test_it_can_be_forgotten_and_need_not_be_there(tmp_path):
    keep_rewind(tmp_path, RECORD)
    for _ in range(2):
        forget_rewind(tmp_path)
        assert kept_rewind(tmp_path, run_id="run", step=4) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"\x80\x04\x95", b'{"run_id": "run", "step": -1, "rewinds": 0, "skip_samples": []}'],
)
def test_a_file_that_is_no_such_record_is_told(tmp_path, content):
    (tmp_path / REWIND_FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"rewind\.json: not what a run that went back has written"):
        kept_rewind(tmp_path, run_id="run", step=4)
