"""The embedding sum in a kernel: exact with hot rows, with dropout, over shards, and in an order that never changes."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

from glm_kernels.dropout import DropoutKey, HiddenDropout, RowKeys, Site, dropout_add
from glm_kernels.dropout.philox_reference import hidden_kept
from glm_kernels.embedding import add_positions, embedding, own_words
from glm_kernels.embedding.fused import fused_embedding
from glm_kernels.embedding.gradient import table_gradient
from glm_kernels.embedding.reference import embedding_reference
from glm_kernels.embedding.triton_kernels import _summed_by_row
from glm_kernels.tiles import Tile, trying
from tests.kernels.accuracy import COMPILERS, TYPES, assert_accurate, values_and_gradients

KEY = DropoutKey(seed=3, layer=0, site=Site.EMBEDDING)
WORDS, POSITIONS = 48, 30
SMALL = {  # so that few tokens fill many tiles, and a hot row crosses them
    "embedding_gradient_fp32": Tile({"BLOCK_T": 16, "BLOCK_H": 16}, 4, 1),
    "embedding_sorted_fp32": Tile({"BLOCK_T": 16, "BLOCK_H": 16}, 4, 1),
    "embedding_carried": Tile({"BLOCK_S": 2, "BLOCK_H": 16}, 4, 1),
}


def make_ids(length):
    """Ids as in a row of GLM: four of five block positions are 0, the positions of a span repeat."""
    generator = np.random.default_rng(length)
    spans = np.repeat(generator.integers(0, POSITIONS, length), generator.integers(1, 6, length))[:length]
    block = np.where(generator.random(length) < 0.82, 0, generator.integers(1, POSITIONS, length))
    return [torch.from_numpy(ids) for ids in (generator.integers(0, WORDS, length), spans, block)]


def make_inputs(length, width, dtype=torch.float32):
    generator = torch.Generator().manual_seed(length + width)
    shapes = [(rows, width) for rows in (WORDS, POSITIONS, POSITIONS)] + [(length, width)]
    *tables, upstream = (torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    return make_ids(length), tables, upstream


def dropping(length, probability=0.3, places=None):
    keys = RowKeys.from_lengths([5, 2], [length // 2, length // 3], length)
    return HiddenDropout(probability, keys, KEY, places)


def fused(ids, dropout=None, deterministic=False):
    def function(*tables):
        return embedding(*ids, *tables, dropout=dropout, deterministic=deterministic, backend="triton")

    return function


def formula(ids, dropout=None):
    """Plain indexing, with the mask of the NumPy reference."""

    def function(*tables):
        total = embedding_reference(*ids, *tables)
        if dropout is None:
            return total
        keys = dropout.row_keys.token_key.numpy()
        kept = hidden_kept(dropout.probability, keys, total.shape[1], key=dropout.key)
        return total * torch.from_numpy(kept) / (1 - dropout.probability)

    return function


def equal(results, others):
    return all(torch.equal(a, b) for a, b in zip(results, others, strict=True))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("deterministic", [False, True], ids=["any order", "one order"])
@pytest.mark.parametrize("with_dropout", [False, True], ids=["", "dropout"])
@pytest.mark.parametrize(("length", "width"), [(1, 4), (150, 36), (64, 260)])
def test_values_and_gradients_are_those_of_plain_indexing(dtype, deterministic, with_dropout, length, width):
    ids, tables, upstream = make_inputs(length, width, dtype)
    dropout = dropping(length) if with_dropout else None
    assert_accurate(fused(ids, dropout, deterministic), formula(ids, dropout), tables, upstream)


@settings(max_examples=20)
@example([(0, 20), (2, 120), (1, 20)], True, False)  # sorted, it fills eight tiles
@given(
    st.lists(st.tuples(st.integers(-1, 4), st.integers(1, 40)), min_size=1, max_size=8), st.booleans(), st.booleans()
)
def test_gradients_are_exact_however_often_a_row_occurs(runs, deterministic, shifted):
    ids = torch.cat([torch.full((count,), row) for row, count in runs])  # −1 and 4 have no row
    ids, first_id, rows = ids[torch.randperm(len(ids))] + 7 * shifted, 7 * shifted, 4
    upstream = torch.randn(len(ids), 4)
    with trying(SMALL):
        got = table_gradient(upstream, ids, None, first_id, rows, 0, 0.0, torch.float32, deterministic)
    inside = (ids >= first_id) & (ids < first_id + rows)
    expected = torch.zeros(rows, 4, dtype=torch.float64)
    expected.index_add_(0, ids[inside] - first_id, upstream[inside].double())
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=2e-6 * max(1.0, expected.abs().max().item()))


def test_with_dropout_it_is_the_sum_with_dropout_after():
    ids, tables, upstream = make_inputs(40, 36)
    dropout = dropping(40)

    def in_two_steps(*tables):
        total = fused(ids)(*tables)
        return dropout_add(total, None, probability=0.3, row_keys=dropout.row_keys, key=KEY, backend="triton")

    one, two = (values_and_gradients(f, tables, upstream) for f in (fused(ids, dropout), in_two_steps))
    assert torch.equal(one[0], two[0])
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=2e-6)


def test_any_strides_will_do():
    ids, tables, upstream = make_inputs(20, 36)
    wide = [torch.stack([table, table], dim=2).flatten(1) for table in tables]
    strided_ids = [torch.stack([x, x], dim=1)[:, 0] for x in ids]
    expected = values_and_gradients(fused(ids), tables, upstream)
    for views in ([x[:, ::2] for x in wide], [torch.cat([x, x], dim=1)[:, 36:] for x in tables]):
        for gradient in (upstream, upstream.t().contiguous().t()):
            assert equal(values_and_gradients(fused(strided_ids), views, gradient), expected)


@pytest.mark.parametrize("tokens", [16, 32])
@pytest.mark.parametrize("features", [16, 64])
def test_the_tile_changes_little(tokens, features):
    ids, tables, upstream = make_inputs(70, 36)
    blocks = {"BLOCK_T": tokens, "BLOCK_H": features}
    tiles = {name: Tile(blocks, 4, 1) for name in ("embedding_forward", *list(SMALL)[:2])}
    tiles["embedding_carried"] = Tile({"BLOCK_S": tokens // 4, "BLOCK_H": features}, 4, 1)
    for deterministic in (False, True):
        with trying(tiles):
            assert_accurate(fused(ids, None, deterministic), formula(ids), tables, upstream)


def test_ids_outside_their_tables_are_seen():
    ids, tables, _ = make_inputs(6, 8)
    ids[0][1], ids[1][2], ids[2][3] = WORDS, POSITIONS, -1
    assert fused(ids)(*tables).isnan().any(dim=1).tolist() == [False, True, True, True, False, False]


def test_an_empty_row_has_an_empty_sum_and_zero_gradients():
    ids, tables, upstream = make_inputs(0, 8)
    for deterministic in (False, True):
        total, *gradients = values_and_gradients(fused(ids, None, deterministic), tables, upstream)
        assert total.shape == (0, 8)
        assert not any(x.any() for x in gradients)


def test_nothing_of_the_rows_width_is_saved_for_the_backward_pass():
    ids, tables, _ = make_inputs(40, 36)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        fused(ids, dropping(40))(*(table.requires_grad_() for table in tables))
    assert [(t.dtype, t.shape) for t in saved] == [(torch.int64, (40,))] * 4


# --- hot rows and order ---------------------------------------------------------------------------


@triton.jit
def leaders_kernel(upstream, ids, totals, leaders, BLOCK_T: tl.constexpr):
    token = tl.arange(0, BLOCK_T).to(tl.int64)
    row = tl.load(ids + token)
    total, leader = _summed_by_row(upstream, 16, token, row, row >= 0, None, 0, 16, 0, 0, 1.0, 16)
    tl.store(totals + token[:, None] * 16 + tl.arange(0, 16)[None, :], total)
    tl.store(leaders + token, leader.to(tl.int32))


def test_a_tile_adds_one_sum_for_each_of_its_rows():
    ids = make_ids(64)[2]
    upstream, totals, leaders = torch.randn(64, 16), torch.empty(64, 16), torch.empty(64, dtype=torch.int32)
    leaders_kernel[(1,)](upstream, ids, totals, leaders, BLOCK_T=64)
    assert leaders.sum() == len(ids.unique()) < 20
    assert (ids == 0).sum() > 40
    expected = torch.zeros(POSITIONS, 16).index_add_(0, ids, upstream)
    torch.testing.assert_close(totals[leaders == 1], expected[ids[leaders == 1]], rtol=0, atol=1e-5)


def test_torchs_wish_for_determinism_is_heard(monkeypatch):
    asked = []
    monkeypatch.setattr("glm_kernels.embedding.op.fused_embedding", lambda *arguments: asked.append(arguments[-1]))
    ids, tables, _ = make_inputs(4, 8)
    fused(ids, None, None)(*tables)
    torch.use_deterministic_algorithms(True)
    try:
        fused(ids, None, None)(*tables)
        fused(ids, None, False)(*tables)
    finally:
        torch.use_deterministic_algorithms(False)
    assert asked == [False, True, False]


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from glm_kernels.compilation import _source
from glm_kernels.embedding.compilations import compilations
for compilation in compilations("sm_90"):
    if " bf16 " in compilation.name and "dropout" not in compilation.name:
        options = dict(compilation.options)
        kernel = triton.compile(_source(compilation), target=GPUTarget("cuda", 90, 32), options=options)
        print(compilation.fn.__name__, "atom" in kernel.asm["ptx"] or "red.global" in kernel.asm["ptx"])
"""


def test_in_one_order_nothing_is_added_by_atomics():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    uses_atomics = dict(line.split() for line in done.stdout.splitlines())
    assert {name for name, answer in uses_atomics.items() if answer == "True"} == {"table_gradient_kernel"}
    assert {"sorted_gradient_kernel", "carried_gradient_kernel"} < uses_atomics.keys()


# --- shards of the word table ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("parts", [2, 4])
def test_shards_of_the_word_table_add_up_to_the_whole(dtype, parts):
    ids, (word, position, block), upstream = make_inputs(40, 36, dtype)
    dropout = dropping(40)

    def in_shards(position, block, *shards):
        rows = WORDS // parts
        words = sum(
            own_words(ids[0], shard, first_word=i * rows, deterministic=True, backend="triton")
            for i, shard in enumerate(shards)
        )
        return add_positions(words, *ids[1:], position, block, dropout=dropout, deterministic=True, backend="triton")

    whole = values_and_gradients(fused(ids, dropout, True), [word, position, block], upstream)
    total, *positions = values_and_gradients(in_shards, [position, block, *word.chunk(parts)], upstream)
    assert torch.equal(total, whole[0])
    assert equal(positions[:2], whole[2:])
    if dtype == torch.float32:  # elsewhere the gradient of the words is rounded on its way to them
        torch.testing.assert_close(torch.cat(positions[2:]), whole[1], rtol=0, atol=2e-6)


def test_tokens_spread_over_ranks_are_those_of_the_whole_row():
    ids, (word, position, block), _ = make_inputs(40, 36)
    words = own_words(ids[0], word, first_word=0, backend="triton")
    whole = add_positions(words, *ids[1:], position, block, dropout=dropping(40), backend="triton")
    for places in torch.arange(40).chunk(2):
        dropout = dropping(40, places=places)
        held = (words[places], ids[1][places], ids[2][places], position, block)
        for_here = add_positions(*held, dropout=dropout, backend="triton")
        assert torch.equal(for_here, whole[places])


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_words_of_other_shards_are_zero_and_get_no_gradient(backend):
    word, ids = torch.randn(4, 8), torch.tensor([3, 4, 7, 8, 20])

    def function(word):
        return own_words(ids, word, first_word=4, backend=backend)

    value, gradient = values_and_gradients(function, [word], torch.ones(5, 8))
    assert torch.equal(value, torch.stack([torch.zeros(8), word[0], word[3], torch.zeros(8), torch.zeros(8)]))
    assert gradient[:, 0].tolist() == [1, 0, 0, 1]


# --- as an operation of torch ---------------------------------------------------------------------


def test_they_are_well_formed_operations():
    ids, tables, upstream = make_inputs(20, 8)
    tables = [table.requires_grad_() for table in tables]
    key = dropping(20).token_key()
    opcheck(fused_embedding, (None, *tables, *ids, key, 0, False, KEY.philox_key(), 0.3, True))
    base = torch.randn(20, 8, requires_grad=True)
    opcheck(fused_embedding, (base, None, *tables[1:], *ids, None, 0, False, 0, 0.0, True))
    opcheck(table_gradient, (upstream, ids[0], key, 3, 9, KEY.philox_key(), 0.3, torch.float32, False))


@COMPILERS
def test_compiled_as_one_graph_it_gives_the_same_bits(compiler):
    ids, tables, upstream = make_inputs(20, 8)
    function = fused(ids, dropping(20), None)
    compiled = torch.compile(function, fullgraph=True, backend=compiler)
    assert equal(*(values_and_gradients(f, tables, upstream) for f in (function, compiled)))


def test_rows_of_other_lengths_need_no_compilation_of_their_own():
    frames, counter = set(), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(fused_embedding, fullgraph=True, dynamic=True, backend=counter)
    for length in (6, 13, 40):
        ids, tables, _ = make_inputs(length, 8)
        tables = [table.requires_grad_() for table in tables]
        compiled(None, *tables, *ids, None, 0, False, 0, 0.0, True).sum().backward()
        frames.add(counter.frame_count)
    assert len(frames) == 1


def test_recomputed_activations_give_the_same_gradients():
    ids, tables, upstream = make_inputs(20, 8)
    function = fused(ids, dropping(20), True)

    def again(*tables):
        return checkpoint(function, *tables, use_reentrant=False)

    assert equal(*(values_and_gradients(f, tables, upstream) for f in (function, again)))
