"""What was saved is what is read, however it was cut."""

import hashlib
import json
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from megatron_glm.checkpoint.format import KINDS, Fragment
from megatron_glm.checkpoint.reading import CheckpointReader
from megatron_glm.errors import CheckpointError
from megatron_glm.parallel.cuts import Shard, cut_of

CUT_NAMES = ["word_embeddings.weight", "attention.query_key_value.weight", "mlp.dense_4h_to_h.weight"]


def test_a_checkpoint_gives_back_what_was_saved(checkpoints, tmp_path):
    path = checkpoints.save(tmp_path / "runs" / "x", 1000)
    assert path == tmp_path / "runs" / "x" / "step_00001000"
    reader = CheckpointReader(path)
    assert (reader.run_id, reader.step, reader.shapes) == ("run", 1000, checkpoints.shapes)
    assert reader.state == {"samples": 8000, "seed": 1000}
    assert reader.attachments() == {"tokenizer/tokenizer.model": b"pieces"}
    assert checkpoints.holds(reader, 1000)


def test_its_files_are_plain_safetensors_and_json(checkpoints, tmp_path):
    path = checkpoints.save(tmp_path, 3)
    assert sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()) == [
        "fingerprints.json",
        "manifest.json",
        "parameters.json",
        "rank_00000_000.safetensors",
        "state.json",
        "tokenizer/tokenizer.model",
    ]
    stored = load_file(path / "rank_00000_000.safetensors")
    assert torch.equal(stored["b.bias/exp_avg/0"], checkpoints.make_values(3)["b.bias", "exp_avg"])
    manifest = json.loads((path / "manifest.json").read_bytes())
    assert (manifest["format_version"], manifest["run_id"], manifest["step"]) == (2, "run", 3)
    assert manifest["files"]["tokenizer/tokenizer.model"] == {
        "size": 6,
        "sha256": hashlib.sha256(b"pieces").hexdigest(),
    }


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_partition_over_ranks_and_files_reads_back_equal_in_any_range(checkpoints, data):
    shapes = data.draw(
        st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1)
    )
    size = data.draw(st.integers(1, 3), label="ranks")
    values = checkpoints.make_values(0, shapes)
    held = [[] for _ in range(size)]
    for (name, kind), tensor in values.items():
        cuts = [*data.draw(st.lists(st.integers(0, len(tensor)), max_size=4)), 0, len(tensor)]
        for start, stop in zip(sorted(cuts), sorted(cuts)[1:], strict=False):
            rank = data.draw(st.integers(0, size - 1))
            held[rank].append(Fragment(name, kind, start, tensor[start:stop]))
    part_bytes = data.draw(st.sampled_from([4, 64, 1 << 20]))

    with tempfile.TemporaryDirectory() as directory:

        def save(ranks):
            fragments = iter(held[ranks.rank])
            return checkpoints.save(
                Path(directory), 1, fragments=fragments, shapes=shapes, ranks=ranks, part_bytes=part_bytes
            )

        path = checkpoints.run_threads(size, save)[0]
        reader = CheckpointReader(path)
        assert reader.shapes == shapes
        for (name, kind), tensor in values.items():
            start = data.draw(st.integers(0, len(tensor)))
            stop = data.draw(st.integers(start, len(tensor)))
            assert torch.equal(reader.read(name, kind), tensor)
            assert torch.equal(reader.read(name, kind, start, stop), tensor[start:stop])
            digest = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
            assert reader.parameter_hashes()[f"{name}/{kind}"] == digest


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_parts_of_a_matrix_read_back_as_any_other_parts_of_it(checkpoints, data):
    """Tensor-parallel parts, each cut further into flat ranges as ZeRO does."""
    size = data.draw(st.sampled_from([1, 2, 4]), label="tensor-parallel size")
    name = data.draw(st.sampled_from([*CUT_NAMES, "norm.weight"]))
    whole = (3 * size * data.draw(st.integers(1, 2)), size * data.draw(st.integers(1, 3)))
    shapes = {name: whole}
    values = checkpoints.make_values(0, shapes)
    held = [[] for _ in range(size)]
    for (_, kind), tensor in values.items():
        for rank in range(size if cut_of(name) else 1):
            shard = Shard.of(name, rank=rank, size=size)
            part = shard.take(tensor.view(whole)).flatten()
            cuts = sorted([*data.draw(st.lists(st.integers(0, len(part)), max_size=3)), 0, len(part)])
            for start, stop in pairwise(cuts):
                for piece in shard.rectangles(whole, start, stop):
                    stored = part[start:stop][piece.offset : piece.offset + piece.size]
                    held[rank].append(Fragment(name, kind, piece.start, stored, piece.rows, piece.stride))

    with tempfile.TemporaryDirectory() as directory:

        def save(ranks):
            return checkpoints.save(Path(directory), 1, fragments=iter(held[ranks.rank]), shapes=shapes, ranks=ranks)

        reader = CheckpointReader(checkpoints.run_threads(size, save)[0])
        for (_, kind), tensor in values.items():
            start = data.draw(st.integers(0, len(tensor)))
            stop = data.draw(st.integers(start, len(tensor)))
            assert torch.equal(reader.read(name, kind, start, stop), tensor[start:stop])
            digest = hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
            assert reader.parameter_hashes()[f"{name}/{kind}"] == digest
            other = Shard.of(name, rank=0, size=data.draw(st.sampled_from([1, size])))
            part = other.take(tensor.view(whole)).flatten()
            read = [reader.read_rectangle(name, kind, piece) for piece in other.rectangles(whole, 0, len(part))]
            assert torch.equal(torch.cat(read), part)


def test_parts_stay_small(checkpoints, tmp_path):
    values = {("w", kind): torch.arange(1000.0) for kind in KINDS}
    fragments = [
        Fragment(name, kind, start, tensor[start : start + 100])
        for (name, kind), tensor in values.items()
        for start in range(0, 1000, 100)
    ]
    path = checkpoints.save(tmp_path, 1, fragments=fragments, shapes={"w": (1000,)}, part_bytes=1000)
    sizes = [file.stat().st_size for file in path.glob("rank_*")]
    assert len(sizes) == 15
    assert max(sizes) < 1400


def test_views_of_one_flat_buffer_are_written_each_by_itself(checkpoints, tmp_path):
    # ZeRO's partitions are such views; safetensors must not take them for shared tensors.
    flat = torch.randn(30)
    fragments = [Fragment("w", kind, 0, flat[10 * i : 10 * i + 10]) for i, kind in enumerate(KINDS)]
    reader = CheckpointReader(checkpoints.save(tmp_path, 1, fragments=fragments, shapes={"w": (10,)}))
    assert torch.equal(reader.read("w", "exp_avg"), flat[10:20])


def test_a_range_outside_the_parameter_is_refused(checkpoints, tmp_path):
    reader = CheckpointReader(checkpoints.save(tmp_path, 1))
    for start, stop in [(-1, 2), (3, 2), (0, 8)]:
        with pytest.raises(IndexError, match=r"b\.bias: elements"):
            reader.read("b.bias", "weight", start, stop)
    with pytest.raises(CheckpointError, match="has no parameter 'c'"):
        reader.read("c", "weight")
