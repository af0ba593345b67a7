"""`glm show-sample` shows the samples that are trained, and refuses what it cannot show in one line."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from megatron_glm import cli
from megatron_glm.config.loading import load_config
from megatron_glm.data.dataset import SampleDataset
from megatron_glm.objective.sample import Objective

CONFIG = """
model: {{num_layers: 1, hidden_size: 8, num_attention_heads: 1, max_positions: 64}}
tokenizer: {{path: tok}}
data: {{sources: [{{path: {path}}}], window: 24}}
objective: {{token: 0.5, sentence: 0.2, document: 0.3}}
optimizer: {{learning_rate: 1.0e-4}}
train: {{output: runs, steps: 1, global_batch_size: 1, micro_batch_size: 1, seed: 3}}
"""


@pytest.fixture
def readable(tokenizer):
    """The tokenizer of these tests, with numbers for words."""

    def decode(ids):
        return " ".join(str(int(id)) for id in ids)

    return SimpleNamespace(**vars(tokenizer), decode=decode, piece=str)


@pytest.fixture
def config(tmp_path, write_corpus, readable, monkeypatch):
    path = write_corpus(tmp_path / "corpus", [list(range(100, 140)), [7], list(range(200, 260))])
    monkeypatch.setattr("megatron_glm.tokenizer.loading.load_tokenizer", lambda directory: readable)
    (tmp_path / "run.yaml").write_text(CONFIG.format(path=path))
    return tmp_path / "run.yaml"


@pytest.fixture
def show(config, capsys):
    def run(*argv):
        code = cli.main(["show-sample", "--config", str(config), *argv])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_traced_sample_is_the_one_that_is_trained(config, readable):
    traced, trained = (cls.open(load_config(config), readable) for cls in (SampleDataset, SampleDataset))
    for index in range(20):
        origin, sample = traced.trace(index)
        expected = trained.sample(index)
        assert (sample.index, sample.objective) == (index, expected.objective)
        assert np.array_equal(sample.input_ids, expected.input_ids)
        assert np.array_equal(sample.segments, expected.segments)
        assert origin.source == 0
        assert 0 <= origin.start <= origin.stop <= origin.start + 23


def test_a_sample_is_printed_with_its_window(show, config, readable):
    code, out, err = show("--index", "5")
    origin, sample = SampleDataset.open(load_config(config), readable).trace(5)
    assert (code, err) == (0, "")
    assert out.startswith(f"sample 5 · {sample.objective.name.lower()} objective · {len(sample.input_ids)} tokens")
    assert out.splitlines()[1].endswith(f"stream tokens [{origin.start}, {origin.stop})")
    assert "segment 1 of" in out


@pytest.mark.parametrize("objective", Objective)
def test_a_window_is_shown_under_any_objective(show, objective):
    name = objective.name.lower()
    origins = set()
    for argv in (("--objective", name), ()):
        _, out, _ = show("--index", "5", *argv)
        origins.add(out.splitlines()[1])
        assert not argv or f"sample 5 · {name} objective" in out
    assert len(origins) == 1


def test_settings_of_the_file_can_be_replaced(show):
    assert (
        "sample 0 · document objective"
        in show("--index", "0", "objective.token=0", "objective.sentence=0", "objective.document=1")[1]
    )


def test_the_attention_mask_is_drawn(show, tmp_path):
    code, out, _ = show("--index", "0", "--png", str(tmp_path / "mask.png"))
    assert code == 0
    assert "mask.png" in out
    assert (tmp_path / "mask.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("index", ["-1", str(2**62)])
def test_an_index_outside_the_order_is_refused(show, index):
    assert show("--index", index) == (
        2,
        "",
        f"error: there is no sample {index}; give a number from 0 to 2**62 − 1\n",
    )


def test_a_picture_into_no_directory_is_refused_before_anything_is_read(show, tmp_path):
    code, out, err = show("--index", "0", "--png", str(tmp_path / "none" / "mask.png"))
    assert (code, out) == (2, "")
    assert err.startswith(f"error: --png: no directory '{tmp_path / 'none'}'")


def test_a_picture_that_cannot_be_written_is_one_error(show, tmp_path):
    (tmp_path / "mask.png").mkdir()
    code, _, err = show("--index", "0", "--png", str(tmp_path / "mask.png"))
    assert code == 2
    assert err == f"error: --png: '{tmp_path / 'mask.png'}' cannot be written: Is a directory\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "mask.png", "run.yaml"]


def test_help_loads_neither_torch_nor_the_data(tmp_path):
    program = (
        "import sys; from megatron_glm import cli\n"
        "try: cli.main(['show-sample', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'numpy', 'pydantic', 'rich', 'matplotlib'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
