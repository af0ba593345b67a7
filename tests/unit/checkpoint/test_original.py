"""Checkpoints of the original GLM code are read whole, and only weights come out of them."""

import os
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from megatron_glm.checkpoint.original import read_original, write_original
from megatron_glm.errors import CheckpointError

NAMES = {  # shapes with hidden size H = 12
    "input_layernorm.weight": (12,),
    "input_layernorm.bias": (12,),
    "attention.query_key_value.weight": (36, 12),
    "attention.query_key_value.bias": (36,),
    "attention.dense.weight": (12, 12),
    "attention.dense.bias": (12,),
    "post_attention_layernorm.weight": (12,),
    "post_attention_layernorm.bias": (12,),
    "mlp.dense_h_to_4h.weight": (48, 12),
    "mlp.dense_h_to_4h.bias": (48,),
    "mlp.dense_4h_to_h.weight": (12, 48),
    "mlp.dense_4h_to_h.bias": (12,),
}


@pytest.fixture(scope="session")
def weights():
    """A model of two layers, each element a number of its own."""
    shapes = {
        "word_embeddings.weight": (24, 12),
        "transformer.position_embeddings.weight": (9, 12),
        "transformer.block_position_embeddings.weight": (9, 12),
        "transformer.final_layernorm.weight": (12,),
        "transformer.final_layernorm.bias": (12,),
    } | {f"transformer.layers.{layer}.{name}": shape for layer in range(2) for name, shape in NAMES.items()}
    numbers = torch.arange(sum(np.prod(shape) for shape in shapes.values()), dtype=torch.float32)
    parts = numbers.split([int(np.prod(shape)) for shape in shapes.values()])
    return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.golden
def test_a_file_of_the_original_code_holds_the_reference_weights(shared):
    reference = load_file(shared("golden/glm_reference_tiny.safetensors"))
    expected = {name.removeprefix("param."): w for name, w in reference.items() if name.startswith("param.")}
    assert same(read_original(shared("golden/glm_reference_tiny_mp_rank_00.pt")), expected)


@pytest.mark.parametrize("tensor_parallel", [1, 2, 3, 4])
def test_any_number_of_ranks_gives_back_the_whole_weights(weights, tmp_path, tensor_parallel):
    write_original(tmp_path / "x", weights, iteration=7, tensor_parallel=tensor_parallel)
    assert len(list((tmp_path / "x").iterdir())) == tensor_parallel
    assert same(read_original(tmp_path / "x"), weights)


def test_a_rank_holds_its_own_query_key_and_value_rows(weights, tmp_path):
    write_original(tmp_path / "x", weights, iteration=7, tensor_parallel=2)
    second = torch.load(tmp_path / "x" / "mp_rank_01_model_states.pt", weights_only=True)["module"]
    name = "transformer.layers.1.attention.query_key_value.weight"
    rows = [*range(6, 12), *range(18, 24), *range(30, 36)]
    assert torch.equal(second[name], weights[name][rows])
    name = "transformer.layers.1.mlp.dense_4h_to_h.weight"
    assert torch.equal(second[name], weights[name][:, 24:])


def test_generators_stored_beside_the_weights_do_not_hinder(weights, tmp_path):
    path = tmp_path / "mp_rank_00_model_states.pt"
    beside = {"np_rng_state": np.random.get_state(), "random_rng_state": random.getstate()}
    torch.save({"module": weights, "torch_rng_state": torch.get_rng_state(), **beside}, path)
    assert same(read_original(path), weights)


def test_a_planted_pickle_never_runs(tmp_path):
    class Planted:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "planted"),)

    torch.save({"module": {}, "extra": Planted()}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match="not an original GLM checkpoint"):
        read_original(tmp_path / "x.pt")
    assert not (tmp_path / "planted").exists()


def test_unknown_missing_and_misplaced_parts_are_named(weights, tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"module": {"prompt_spell.x": torch.ones(1), **weights}}, path)
    with pytest.raises(CheckpointError, match=r"1 parameters are not GLM's, the first is 'prompt_spell\.x'"):
        read_original(path)
    torch.save({"module": {name: w for name, w in weights.items() if name != "word_embeddings.weight"}}, path)
    with pytest.raises(CheckpointError, match=r"1 parameters are missing, the first is 'word_embeddings\.weight'"):
        read_original(path)
    torch.save(weights, path)
    with pytest.raises(CheckpointError, match="no 'module' of tensors"):
        read_original(path)
    with pytest.raises(CheckpointError, match="no such file"):
        read_original(tmp_path / "absent.pt")
    with pytest.raises(CheckpointError, match="no original checkpoint"):
        read_original(tmp_path)


def test_a_missing_rank_is_named(weights, tmp_path):
    write_original(tmp_path / "x", weights, iteration=7, tensor_parallel=3)
    first = tmp_path / "x" / "mp_rank_00_model_states.pt"
    with pytest.raises(CheckpointError, match="one of 3 tensor-parallel files, 1 given; give the directory"):
        read_original(first)
    (tmp_path / "x" / "mp_rank_02_model_states.pt").unlink()
    with pytest.raises(CheckpointError, match="one of 3 tensor-parallel files, 2 given"):
        read_original(tmp_path / "x")
    first.unlink()
    with pytest.raises(CheckpointError, match=r"mp_rank_00_model_states\.pt is missing"):
        read_original(tmp_path / "x")


def test_norms_that_drifted_apart_are_refused(weights, tmp_path):
    # It has happened: ranks that clipped differently (BLOOM). Keeping one silently would hide it.
    write_original(tmp_path / "x", weights, iteration=7, tensor_parallel=2)
    path = tmp_path / "x" / "mp_rank_01_model_states.pt"
    content = torch.load(path, weights_only=True)
    content["module"]["transformer.final_layernorm.bias"] += 1
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"final_layernorm\.bias' must be the same"):
        read_original(tmp_path / "x")


def test_weights_that_cannot_be_cut_so_often_are_refused_and_nothing_is_left(weights, tmp_path):
    with pytest.raises(CheckpointError, match=r"cannot be cut into 5 tensor-parallel parts"):
        write_original(tmp_path / "x", weights, iteration=7, tensor_parallel=5)
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_cut_and_garbled_files_are_one_clear_error(weights, data):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.pt"
        torch.save({"module": weights}, path)
        content = path.read_bytes()
        garbled = data.draw(
            st.one_of(
                st.binary(max_size=200),
                st.integers(0, len(content) - 1).map(lambda length: content[:length]),
            )
        )
        path.write_bytes(garbled)
        with pytest.raises(CheckpointError, match="not an original GLM checkpoint"):
            read_original(path)
