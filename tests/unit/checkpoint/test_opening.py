"""Weights for a new run, from checkpoints of ours and of the original code."""

import pytest
import torch

from megatron_glm.checkpoint.fingerprint import fingerprint
from megatron_glm.checkpoint.format import KINDS, Fragment
from megatron_glm.checkpoint.opening import open_weights
from megatron_glm.checkpoint.original import write_original
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.checkpoint.source import WeightsOnly
from megatron_glm.errors import CheckpointError
from megatron_glm.parallel.rectangles import Rectangle

SMALL = {
    "word_embeddings.weight": (8, 4),
    "transformer.position_embeddings.weight": (5, 4),
    "transformer.block_position_embeddings.weight": (5, 4),
    "transformer.final_layernorm.weight": (4,),
    "transformer.final_layernorm.bias": (4,),
}


@pytest.fixture
def original(tmp_path):
    """Weights of a GLM without layers in half precision, and a directory of two files in the original's format."""
    generator = torch.Generator().manual_seed(2)
    weights = {name: torch.randn(shape, generator=generator).half() for name, shape in SMALL.items()}
    write_original(tmp_path / "original", weights, iteration=7, tensor_parallel=2)
    return weights, tmp_path / "original"


def test_an_original_is_read_from_all_its_files_in_fp32_and_has_no_moments(original):
    weights, directory = original
    source = open_weights(directory, verify=True)
    assert source.shapes == SMALL
    for name, shape in SMALL.items():
        rows, columns = (shape[0], shape[1]) if len(shape) == 2 else (1, shape[0])
        wanted = Rectangle(0, 1, rows, columns - 2, columns)
        expected = weights[name].float().reshape(rows, columns)[:, 1:-1].flatten()
        assert torch.equal(source.read_rectangle(name, "weight", wanted), expected)
        for kind in KINDS[1:]:
            assert torch.equal(source.read_rectangle(name, kind, wanted), torch.zeros(wanted.size))


def test_fingerprints_are_those_of_the_weights_and_of_zeros(original):
    weights, directory = original
    found = open_weights(directory, verify=True).fingerprints()
    assert found.keys() == {f"{name}/{kind}" for name in SMALL for kind in KINDS}
    for name, weight in weights.items():
        assert found[f"{name}/weight"] == fingerprint(Fragment(name, "weight", 0, weight.float().flatten()))
        assert found[f"{name}/exp_avg"] == fingerprint(Fragment(name, "exp_avg", 0, torch.zeros(weight.numel())))


def test_a_checkpoint_s_weights_without_its_moments(checkpoints, tmp_path):
    checkpoints.save(tmp_path, 1)
    checkpoints.save(tmp_path, 2)
    reader = open_weights(tmp_path, verify=True)
    assert (type(reader), reader.step) == (CheckpointReader, 2)
    source, values = WeightsOnly.of_checkpoint(reader), checkpoints.make_values(2)
    assert torch.equal(source.read_rectangle("b.bias", "weight", Rectangle(0, 0, 1, 7, 7)), values["b.bias", "weight"])
    assert not source.read_rectangle("b.bias", "exp_avg", Rectangle(0, 0, 1, 7, 7)).any()
    assert source.fingerprints()["b.bias/weight"] == reader.fingerprints()["b.bias/weight"]
    assert source.fingerprints()["b.bias/exp_avg"] != reader.fingerprints()["b.bias/exp_avg"]


def test_fingerprints_that_an_older_version_did_not_store_are_computed(checkpoints, tmp_path, monkeypatch):
    path = checkpoints.save(tmp_path, 1)
    stored = CheckpointReader(path).fingerprints()
    reader = CheckpointReader(path)
    monkeypatch.setattr(
        reader,
        "_manifest",
        type(reader._manifest)(
            "run", 1, {name: record for name, record in reader._manifest.files.items() if name != "fingerprints.json"}
        ),
    )
    assert reader.fingerprints() == stored


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: None, lambda path: path.write_bytes(b"x")])
def test_what_holds_no_weights_is_refused(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(CheckpointError, match=f"{tmp_path}/x: (no whole checkpoint there|not an original GLM)"):
        open_weights(tmp_path / "x", verify=True)
