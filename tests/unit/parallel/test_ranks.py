"""A single process is a group of one."""

from megatron_glm.parallel.ranks import SingleProcess


def test_a_single_process_hears_itself_as_json_would_give_it_back():
    ranks = SingleProcess()
    assert (ranks.rank, ranks.size) == (0, 1)
    assert ranks.gather({"a": (1, None), "b": "ä"}) == [{"a": [1, None], "b": "ä"}]
    ranks.barrier()
