"""The documents of a sample are found again, in the shards and in the files that they came from."""

import numpy as np
import pytest

from megatron_glm.config.loading import config_from_tree
from megatron_glm.data.dataset import SampleDataset
from megatron_glm.data.provenance import origins_path
from megatron_glm.data.sample_documents import SampleDocuments

DOCUMENTS = [[10 * k + j for j in range(5 + k)] for k in range(7)]  # every token belongs to one document alone


@pytest.fixture
def config(tmp_path, write_corpus, tokenizer):
    directory = write_corpus(tmp_path / "data", DOCUMENTS)
    for number, places in enumerate(([0, 5, 2**40], [7, 8, 9], [11])):
        np.array(places, "<i8").tofile(origins_path(directory / "train" / f"{number:05d}"))
    return config_from_tree(
        {
            "model": {"num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "max_positions": 64},
            "tokenizer": {"path": "-"},
            "data": {"sources": [{"path": str(directory)}], "window": 12},
            "optimizer": {"learning_rate": 1e-4},
            "train": {"output": "-", "steps": 1, "global_batch_size": 4, "micro_batch_size": 4},
        }
    )


def test_each_document_of_a_sample_is_named_with_its_place_in_the_input(config, tokenizer):
    dataset = SampleDataset.open(config, tokenizer)
    found = [SampleDocuments(config, dataset)(index) for index in range(8)]
    for index, sample in enumerate(found):
        ids = set(dataset.sample(index).input_ids.tolist()) | set(dataset.sample(index).targets.tolist())
        named = {number for number, tokens in enumerate(DOCUMENTS) if ids & set(tokens)}
        assert named <= {document["document"] for document in sample["documents"]}
    by_number = {document["document"]: document for sample in found for document in sample["documents"]}
    assert [by_number[k]["byte"] for k in range(7)] == [0, 5, 2**40, 7, 8, 9, 11]
    assert {document["file"] for document in by_number.values()} == {"input.txt"}
    assert by_number[4]["pair"].endswith("train/00001")
    assert by_number[4]["number_in_pair"] == 1


def test_origins_that_cannot_be_read_are_told_and_the_rest_is_there(config, tokenizer):
    dataset = SampleDataset.open(config, tokenizer)
    for path in origins_path(dataset.stored_at(0, 0)[0]).parent.glob("*.origins"):
        path.unlink()
    documents = SampleDocuments(config, dataset)(0)["documents"]
    assert documents
    assert all("No such file" in document["origin"] and document["pair"] for document in documents)
