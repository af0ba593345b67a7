"""The documents of a bad step are a file beside the metrics, of one process, and never what a run ends with."""

import json

import numpy as np

from megatron_glm.errors import DataError
from megatron_glm.training.guards.culprits import Culprits

SAMPLES = np.array([3, 5])


def test_the_leading_process_writes_a_line_a_sample(tmp_path):
    name = Culprits(tmp_path, lambda index: {"sample": index}, leads=True)(7, SAMPLES)
    assert name == "culprits/step_00000007.jsonl"
    assert [json.loads(line) for line in (tmp_path / name).read_text().splitlines()] == [{"sample": 3}, {"sample": 5}]


def test_other_processes_write_and_look_up_nothing(tmp_path):
    assert Culprits(tmp_path, lambda index: 1 / 0, leads=False)(7, SAMPLES) is None
    assert not list(tmp_path.iterdir())


def test_where_the_data_cannot_be_read_the_run_goes_on(tmp_path):
    def cut(index):
        raise DataError("part_0.idx: ends at byte 8")

    assert Culprits(tmp_path, cut, leads=True)(7, SAMPLES) is None
    assert not list(tmp_path.rglob("*.jsonl"))


def test_where_nothing_can_be_written_the_run_goes_on(tmp_path):
    (tmp_path / "culprits").write_text("in the way")
    assert Culprits(tmp_path, lambda index: {"sample": index}, leads=True)(7, SAMPLES) is None
