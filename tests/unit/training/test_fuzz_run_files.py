"""The files in a run's output that a later start, or the run itself, reads: whatever they hold, it goes on."""

import json

from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.config.schema import Overrides
from megatron_glm.data.skip_list import SkipList
from megatron_glm.errors import CheckpointError
from megatron_glm.training.checkpoints.rewind_file import REWIND_FILE, RewindRecord, kept_rewind
from megatron_glm.training.control.overrides import OVERRIDES_FILE, OverridesFile
from megatron_glm.training.control.stopping import END_FILE, End, read_end
from megatron_glm.training.reports.metrics import MetricsLog, read_metrics
from tests.damage import damaged, damaged_tree, to_json
from tests.fuzzing import bounded, fuzz, fuzz_test

RECORDS = [
    {"kind": "start", "step": 0, "samples": 0},
    {"kind": "train", "step": 1, "loss": 2.5, "losses": {"token": 2.5, "document": None}},
    {"kind": "validation", "step": 2, "loss": 2.25},
]


@fuzz_test
def test_overrides_are_adopted_or_refused_by_fuzz(tmp_path, examples):
    whole = b"learning_rate: 1e-4\nfloor: 0.2\n"

    @fuzz(examples)
    @given(content=damaged(whole) | damaged_tree({"learning_rate": 1e-4, "floor": 0.2}).map(to_json))
    def holds(content):
        (tmp_path / OVERRIDES_FILE).write_bytes(content)
        refused = []
        file = OverridesFile(tmp_path, held=Overrides(), refused=refused.append)
        with bounded():
            news = file.news()
            assert file.news() is None or not refused  # said once
        assert not (news and refused)
        if news:
            Overrides.model_validate(news)

    holds()


@fuzz_test
def test_metrics_keep_the_records_that_they_are_by_fuzz(tmp_path, examples):
    path, whole = tmp_path / "metrics.jsonl", b"".join(to_json(record) + b"\n" for record in RECORDS)

    @fuzz(examples)
    @given(content=damaged(whole) | damaged_tree(RECORDS[1]).map(to_json), start_step=st.integers(0, 3))
    def holds(content, start_step):
        path.write_bytes(content)
        with bounded():
            before = list(read_metrics(path))
            log = MetricsLog(path, start_step=start_step)
            log.write({"step": start_step + 1})
            log.close()
            kept = [record for record in before if record["step"] <= start_step]
            assert list(read_metrics(path)) == [*kept, {"step": start_step + 1}]
            assert [json.loads(line) for line in path.read_text().splitlines()][:-1] == kept

    holds()


@fuzz_test
def test_the_end_of_a_start_is_read_whole_or_not_by_fuzz(tmp_path, examples):
    whole = {"step": 40, "finished": True, "reason": ""}

    @fuzz(examples)
    @given(content=damaged(to_json(whole)) | damaged_tree(whole).map(to_json))
    def holds(content):
        (tmp_path / END_FILE).write_bytes(content)
        with bounded():
            end = read_end(tmp_path)
        assert end is None or (type(end), type(end.step), type(end.finished), type(end.reason)) == (End, int, bool, str)

    holds()


@fuzz_test
def test_a_kept_rewind_is_one_or_refused_by_fuzz(tmp_path, examples):
    tree = {"run_id": "run", "step": 4, "rewinds": 2, "skip_samples": [[0, 3], [50, 70]]}

    @fuzz(examples)
    @given(content=damaged(to_json(tree)) | damaged_tree(tree).map(to_json))
    def holds(content):
        (tmp_path / REWIND_FILE).write_bytes(content)
        with bounded():
            try:
                kept = kept_rewind(tmp_path, run_id="run", step=4)
            except CheckpointError:
                return
            assert kept is None or RewindRecord.model_validate(kept.model_dump()) == kept
            if kept is not None:
                SkipList.of(kept.skip_samples).take(0, 100)

    holds()
