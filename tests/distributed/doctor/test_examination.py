"""A job of several processes is examined as one, and an ill rank is named."""

import pytest

from data_tools import train_tokenizer
from tests.distributed.doctor import cases
from tests.distributed.ranks import run_ranks
from tests.endtoend.corpus import make_corpus, run, write_text

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(tmp_path_factory.mktemp("corpus"))


def examined(size, *args):
    """What all ranks have found alike."""
    first, *others = run_ranks(size, *args)
    assert all(other == first for other in others)
    return first


def test_a_job_that_is_well(corpus):
    found = examined(4, cases.examined, str(corpus.config), ("parallel.tensor=2",))
    assert {check: line for check, line in found.items() if line[0] == "fail"} == {}
    assert found["backend"] == ("ok", "gloo")
    assert found["hosts"][1].startswith("ranks 0-3 on ")
    assert found["layout"][1] == "2 replicas × 1 stage × 2 tensor ranks"
    assert found["batch"][1] == "8 samples = 2 × 2 × 2 replicas"
    assert found["tokenizer"][1].endswith("on all 4 ranks")
    assert found["data"][1].endswith("tokens in 1 source, on all 4 ranks")
    assert found["group all"][1].startswith("1 × 4 ranks, ")
    assert found["group data"][1].startswith("2 × 2 ranks, ")
    assert found["group tensor"][1].startswith("2 × 2 ranks, ")
    assert found["group tensor"][1].endswith("GB/s (all-reduce of 8 MiB)")
    assert found["model"][1].endswith("parameters, each layer on 2 of the ranks")
    assert "group pipeline" not in found


def test_a_pipeline_has_groups_of_its_own(corpus):
    found = examined(3, cases.examined, str(corpus.config), ("parallel.pipeline=3",))
    assert found["group pipeline"][1].startswith("1 × 3 ranks, ")
    assert found["group ends"][1].startswith("1 × 2 ranks, ")


def test_a_layout_that_does_not_divide_is_told_and_the_rest_is_examined(corpus):
    found = examined(2, cases.examined, str(corpus.config), ("parallel.tensor=4",))
    assert found["layout"][0] == "fail"
    assert "does not divide 2 processes" in found["layout"][1]
    assert found["model"][0] == "fail"
    assert "parallel.tensor: 4 does not divide model.num_attention_heads 2" in found["model"][1]
    assert found["data"][0] == "ok"
    assert found["group all"][0] == "ok"


def test_a_batch_that_does_not_divide_is_told_beside_the_layout(corpus):
    found = examined(2, cases.examined, str(corpus.config), ("train.global_batch_size=7",))
    assert found["layout"][0] == "ok"
    assert found["batch"][0] == "fail"


def test_data_that_one_rank_cannot_read_is_told_with_the_rank(corpus):
    found = examined(2, cases.examined, str(corpus.config), (), ("data.sources=[{path: /nowhere}]",))
    status, value = found["data"]
    assert status == "fail"
    assert value.startswith("rank 1: data.sources[0].path: no shards in '/nowhere'")
    assert found["tokenizer"][0] == "ok"


def test_a_tokenizer_that_one_rank_cannot_read_is_told_before_what_needs_it(corpus):
    found = examined(2, cases.examined, str(corpus.config), (), ("tokenizer.path=/nowhere",))
    assert found["tokenizer"][0] == "fail"
    assert found["tokenizer"][1].startswith("rank 1: ")
    assert found.keys().isdisjoint({"data", "model", "disk"})


def test_another_tokenizer_on_one_rank_is_told(corpus, tmp_path):
    text = write_text(tmp_path / "other.txt", documents=50, seed=1)
    run(train_tokenizer.main, "--input", text, "--vocab-size", 300, "--output", tmp_path / "tokenizer")
    found = examined(2, cases.examined, str(corpus.config), (), (f"tokenizer.path={tmp_path / 'tokenizer'}",))
    assert found["tokenizer"][0] == "fail"
    assert "rank 1 has others" in found["tokenizer"][1]


def test_too_little_disk_is_told(corpus):
    # A model whose checkpoints no disk holds; it is never built.
    huge = ("model.num_layers=10000", "model.hidden_size=65536")
    status, value = examined(2, cases.examined, str(corpus.config), huge)["disk"]
    assert status == "fail"
    assert "2 checkpoints are" in value


def test_a_wrong_sum_is_told_with_its_rank():
    status, value = examined(2, cases.with_a_wrong_sum)["group all"]
    assert status == "fail"
    assert value.endswith("wrong sum on rank 1")


@pytest.mark.parametrize("seconds", [30.0, -30.0])
def test_a_clock_that_goes_wrong_is_told_with_its_rank(seconds):
    status, value = examined(3, cases.with_a_clock_off_by, seconds)["clocks"]
    assert status == "warn"
    assert value == "30.0 s apart; rank 1 differs most from rank 0"
