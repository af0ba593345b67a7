"""The attention kernels compute little that no query sees, in the rows that training has."""

import json
from pathlib import Path

import pytest

from benchmarks.tile_efficiency import ROWS, Rows, efficiencies, main, visibilities
from glm_kernels.attention.tiles import TILES
from megatron_glm.objective.sample import Objective

PUBLISHED = Path(__file__).resolve().parents[3] / "benchmarks/results/tile_efficiency.json"
BOUNDS = [
    (Rows(Objective.TOKEN, window=512, documents=1, samples=8), 0.78),
    *((Rows(Objective.TOKEN, window, documents=1, samples=1), 0.90) for window in (1024, 2048, 3000)),
    *((Rows(Objective.DOCUMENT, window, documents=1, samples=1), 0.82) for window in (1024, 2048, 3000)),
]


@pytest.mark.parametrize("architecture", TILES)
@pytest.mark.parametrize(("rows", "bound"), BOUNDS, ids=lambda value: getattr(value, "name", value))
def test_the_share_of_visible_pairs_in_computed_tiles(rows, bound, architecture):
    found = efficiencies(rows, architecture, draws=32)
    assert min(found.values()) >= bound
    assert max(found.values()) < 1


def test_rows_are_those_that_their_name_says():
    rows = Rows(Objective.TOKEN, window=64, documents=3, samples=2)
    assert rows.name == "2 samples of 64 tokens, 3 documents, token objective"
    (visibility,) = visibilities(rows, draws=2)
    assert 4 <= len(visibility.segments) <= 6  # a document of a bare [CLS] has nothing to mask
    assert visibility.segments[-1][2] > 2 * 60


def test_the_published_figures_are_todays(tmp_path, capsys):
    main(["--json", str(tmp_path / "report.json")])
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report == json.loads(PUBLISHED.read_text(encoding="utf-8"))
    assert "8 samples of 512 tokens, 6 documents, token objective" in capsys.readouterr().out
    assert {row["rows"] for row in report} == {rows.name for rows in ROWS}
