"""The benchmark of opening runs, on a small set: what it writes is a set that opens."""

import json

import numpy as np
import pytest

from benchmarks.open_large import _Lengths, _write_single, main
from megatron_glm.data.indexed import IndexedFile


def test_an_index_that_is_streamed_is_a_valid_one(tmp_path):
    lengths = _Lengths(1_000_001, 3.0)
    _write_single(tmp_path / "single", lengths)
    file = IndexedFile(tmp_path / "single")
    file.check()
    expected = np.concatenate(list(lengths))
    assert (file.num_documents, file.num_tokens) == (1_000_001, expected.sum()) == (len(expected), lengths.tokens)
    assert file.find_document(int(expected[:700_000].sum())) == 700_000


@pytest.mark.slow
@pytest.mark.distributed
def test_a_small_set_is_opened_by_both(tmp_path):
    pytest.importorskip("megatron.core")
    report = tmp_path / "report.json"
    main(["--documents", "20000", "--mean", "100", "--scratch", str(tmp_path), "--json", str(report)])
    rows = json.loads(report.read_text(encoding="utf-8"))["results"]
    assert [row["arm"] for row in rows] == ["ours", "ours", "megatron-core", "megatron-core"]
    assert not any(row["steps"]["torch"] for row in rows[:2])
    assert all(row["growth, bytes"] < 200 * 10**6 for row in rows[:2])
