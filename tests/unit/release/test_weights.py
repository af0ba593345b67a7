"""The weights of a release: rounded once, split by size, whole."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megatron_glm.errors import CheckpointError
from megatron_glm.release.weights import INDEX, WEIGHTS, read_weight, stored_weights, weight_files, write_weights


class Source:
    """A checkpoint in memory."""

    def __init__(self, **weights):
        self._weights = weights
        self.shapes = {name: tuple(weight.shape) for name, weight in weights.items()}

    def read(self, name, kind):
        assert kind == "weight"
        return self._weights[name].flatten()


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12), limit=st.integers(1, 400))
@settings(max_examples=25, deadline=None)
def test_every_parameter_is_stored_once_and_no_file_exceeds_the_limit(tmp_path_factory, sizes, limit):
    directory = tmp_path_factory.mktemp("weights")
    source = Source(**{f"p{number}": torch.randn(size) for number, size in enumerate(sizes)})
    write_weights(directory, source, torch.float32, limit)
    files = weight_files(directory, {path.name for path in directory.iterdir()})
    stored = list(stored_weights(files))
    assert sorted(name for name, _ in stored) == sorted(source.shapes)
    assert all(torch.equal(weight, source.read(name, "weight")) for name, weight in stored)
    assert files == sorted(directory.glob("*.safetensors"))
    by_file = [sum(4 * sizes[int(name[1:])] for name in names) for names in _names_by_file(directory, source)]
    assert all(size <= max(limit, 4 * max(sizes)) for size in by_file)


def _names_by_file(directory: Path, source: Source) -> list[list[str]]:
    if not (directory / INDEX).exists():
        return [list(source.shapes)]
    index = json.loads((directory / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(4 * shape[0] for shape in source.shapes.values())
    files = set(index["weight_map"].values())
    return [[name for name, file in index["weight_map"].items() if file == each] for each in files]


def test_weights_below_the_limit_are_one_file(tmp_path):
    write_weights(tmp_path, Source(a=torch.ones(3), b=torch.ones(2, 2)), torch.float32, 28)
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS]


def test_a_value_that_the_dtype_cannot_hold_is_an_error():
    with pytest.raises(CheckpointError, match=r"b: values up to 70000 do not fit into torch.float16; export as"):
        read_weight(Source(b=torch.tensor([1.0, -70000.0])), "b", torch.float16)


def test_a_weight_keeps_its_shape():
    assert read_weight(Source(b=torch.ones(2, 3)), "b", torch.bfloat16).shape == (2, 3)
