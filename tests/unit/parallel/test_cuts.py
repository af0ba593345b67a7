"""Which part of a parameter a rank has, and where it lies in the whole."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from megatron_glm.parallel.cuts import Cut, Shard, cut_of
from megatron_glm.parallel.rectangles import flat_range

PREFIX = "transformer.layers.3."


@st.composite
def shards(draw):
    size = draw(st.sampled_from([1, 2, 4]))
    cut = draw(st.sampled_from([None, *Cut]))
    whole = (3 * size * draw(st.integers(1, 3)), *draw(st.sampled_from([(), (size,), (2 * size,)])))
    if cut is Cut.COLUMNS and len(whole) == 1:
        cut = Cut.ROWS
    return Shard(cut, draw(st.integers(0, size - 1)), size), whole


def elements(rectangle):
    """The numbers of a rectangle's elements, in the order in which they are stored."""
    return [rectangle.start + i * rectangle.stride + j for i in range(rectangle.rows) for j in range(rectangle.width)]


@given(shards(), st.data())
def test_the_rectangles_of_a_range_are_what_the_part_holds_there(given, data):
    shard, whole = given
    part = shard.take(torch.arange(torch.Size(whole).numel()).view(whole))
    assert part.shape == shard.shape(whole)
    start = data.draw(st.integers(0, part.numel()))
    stop = data.draw(st.integers(start, part.numel()))
    rectangles = list(shard.rectangles(whole, start, stop))
    assert len(rectangles) <= 3
    place = 0
    for rectangle in rectangles:
        assert rectangle.offset == place
        place += rectangle.size
        assert rectangle.end == elements(rectangle)[-1] + 1
    assert [n for rectangle in rectangles for n in elements(rectangle)] == part.flatten()[start:stop].tolist()


@given(shards())
def test_the_parts_of_all_ranks_are_the_whole(given):
    shard, whole = given
    values = torch.arange(torch.Size(whole).numel()).view(whole)
    ranks = range(shard.size if shard.cut else 1)
    parts = [Shard(shard.cut, rank, shard.size).take(values).flatten() for rank in ranks]
    assert torch.equal(torch.cat(parts).sort().values, values.flatten())


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9))
def test_a_flat_range_never_crosses_the_end_of_a_row(start, length, stride):
    rectangles = list(flat_range(start, start + length, stride))
    assert [n for rectangle in rectangles for n in elements(rectangle)] == list(range(start, start + length))
    assert all(rectangle.start % stride + rectangle.width <= stride for rectangle in rectangles)


def test_a_rank_has_whole_heads_of_queries_keys_and_values():
    rows = torch.arange(12)[:, None]  # 4 heads of one feature, three times
    assert Shard.of(PREFIX + "attention.query_key_value.weight", rank=1, size=2).take(rows).flatten().tolist() == [
        *(2, 3),
        *(6, 7),
        *(10, 11),
    ]


def test_norms_position_tables_and_the_biases_of_sums_are_whole_on_every_rank():
    for name in (
        "transformer.position_embeddings.weight",
        "transformer.block_position_embeddings.weight",
        PREFIX + "input_layernorm.weight",
        PREFIX + "attention.dense.bias",
        PREFIX + "mlp.dense_4h_to_h.bias",
        "transformer.final_layernorm.bias",
    ):
        assert cut_of(name) is None
