"""The layouts whose curves are compared: each is possible, and trains on a text that is made here."""

import json
import subprocess

import pytest

from benchmarks import layout_curves
from megatron_glm.config.combinations import check_combinations
from megatron_glm.config.loading import load_config
from megatron_glm.parallel.layout import Layout


@pytest.fixture
def config(tmp_path, monkeypatch):
    """The configuration, without the corpus."""
    called = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: called.append(command))
    path = layout_curves.write_config(tmp_path)
    assert [command[2] for command in called] == [
        f"data_tools.{module}" for module in ("sample_corpus", "train_tokenizer", "preprocess")
    ]
    return path


@pytest.mark.parametrize("name", layout_curves.LAYOUTS)
def test_every_layout_is_a_possible_one(config, name):
    processes, overrides = layout_curves.LAYOUTS[name]
    found = load_config(config, [*layout_curves._COMMON, *overrides])
    check_combinations(found)
    layout = Layout.of(processes, tensor=found.parallel.tensor, pipeline=found.parallel.pipeline)
    micro = found.train.micro_batch_size
    assert found.train.global_batch_size % (micro * layout.data) == 0
    assert found.data.sources[0].path == str(config.parent / "data")


def test_the_figures_are_relative_to_the_first_layout(monkeypatch, tmp_path, capsys):
    curves = {"1 process": [4.0, 2.0], "PP 2": [4.0, 2.002]}
    monkeypatch.setattr(layout_curves, "write_config", lambda place: place)
    monkeypatch.setattr(layout_curves, "_run", lambda name, config, steps: curves[name])
    file, picture = tmp_path / "curves.json", tmp_path / "curves.png"
    layout_curves.main(["--layouts", *curves, "--json", str(file), "--picture", str(picture)])
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert figures["losses"] == curves
    assert figures["largest relative difference"] == {"1 process": 0.0, "PP 2": pytest.approx(1e-3)}
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "PP 2             last loss 2.002000  largest relative difference 1.0e-03" in capsys.readouterr().out
