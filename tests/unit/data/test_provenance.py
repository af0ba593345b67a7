"""Each document knows the file and the place that it came from."""

import numpy as np
import pytest

from megatron_glm.data.manifest import read_manifest
from megatron_glm.data.provenance import DocumentOrigin, document_origin, origins_path
from megatron_glm.errors import DataError


@pytest.fixture
def directory(tmp_path, write_corpus):
    """Seven documents in shards of three, three and one, with made-up places."""
    directory = write_corpus(tmp_path / "data", [[document] for document in range(7)])
    for number, places in enumerate(([0, 5, 2**40], [7, 8, 9], [11])):
        np.array(places, "<i8").tofile(origins_path(directory / "train" / f"{number:05d}"))
    return directory


def test_the_place_of_a_document_is_found_in_its_shard(directory):
    manifest = read_manifest(directory)
    places = [document_origin(directory, manifest, "train", document).place for document in range(7)]
    assert places == [0, 5, 2**40, 7, 8, 9, 11]
    assert document_origin(directory, manifest, "train", 3) == DocumentOrigin("input.txt", 7, "byte")


@pytest.mark.parametrize("document", [-1, 7])
def test_a_document_that_is_not_there_is_an_index_error(directory, document):
    with pytest.raises(IndexError, match=rf"document {document} lies outside range\(7\)"):
        document_origin(directory, read_manifest(directory), "train", document)


def test_origins_that_are_cut_or_gone_are_named(directory):
    manifest = read_manifest(directory)
    path = origins_path(directory / "train" / "00001")
    path.write_bytes(path.read_bytes()[:20])
    assert document_origin(directory, manifest, "train", 4).place == 8
    with pytest.raises(DataError, match=r"00001\.origins: has no entry for document 2; copy"):
        document_origin(directory, manifest, "train", 5)
    path.unlink()
    with pytest.raises(DataError, match=r"00001\.origins: No such file"):
        document_origin(directory, manifest, "train", 4)
