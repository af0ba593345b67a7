"""The loss with our kernels: exact, the same for any chunks, tiles and shards, and its logits never all at once."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck
from torch.utils.checkpoint import checkpoint

from glm_kernels.loss import linear_cross_entropy, shard_triton, smoothed_cross_entropy
from glm_kernels.loss.fused import fused_linear_cross_entropy
from glm_kernels.loss.reference import linear_cross_entropy_reference
from glm_kernels.loss.shard import shard_gradients, shard_statistics
from glm_kernels.tiles import Tile, trying
from tests.kernels.accuracy import COMPILERS, FP32, TYPES, assert_accurate, values_and_gradients

SHAPES = [  # tokens, rows of the table, valid ids, width
    (0, 40, 33, 12),
    (1, 1, 1, 16),
    (7, 40, 33, 12),
    (33, 256, 129, 64),
    (9, 4500, 4443, 16),  # more than one block of columns
]


def make_inputs(N, V, valid, H, dtype=torch.float32):
    generator = torch.Generator().manual_seed(N + V)
    hidden = torch.randn(N, H, generator=generator)
    weight = torch.randn(V, H, generator=generator) / H**0.5
    weight[valid:] = 1e3  # would be seen
    targets = torch.randint(0, valid, (N,), generator=generator)
    return hidden.to(dtype), weight.to(dtype), targets, torch.linspace(-1, 2, N)


def fused(targets, valid, smoothing):
    def function(hidden, weight):
        loss, nll = smoothed_cross_entropy(
            hidden, weight, targets, num_valid=valid, label_smoothing=smoothing, backend="triton"
        )
        assert loss.dtype == nll.dtype == torch.float32
        return loss

    return function


def formula(targets, valid, smoothing):
    def function(hidden, weight):
        return linear_cross_entropy_reference(hidden, weight, targets, num_valid=valid, label_smoothing=smoothing)

    return function


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_losses_and_gradients_are_those_of_the_full_logits(dtype, smoothing, shape):
    hidden, weight, targets, upstream = make_inputs(*shape, dtype)
    arguments = targets, shape[2], smoothing
    assert_accurate(fused(*arguments), formula(*arguments), [hidden, weight], upstream)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens_of_a_chunk", [1, 4, 9])
def test_losses_and_gradients_are_exact_in_chunks(dtype, tokens_of_a_chunk, monkeypatch):
    monkeypatch.setattr("glm_kernels.loss.shard_triton._CHUNK_LOGITS", tokens_of_a_chunk * 256)
    hidden, weight, targets, upstream = make_inputs(33, 256, 129, 64, dtype)
    assert_accurate(fused(targets, 129, 0.1), formula(targets, 129, 0.1), [hidden, weight], upstream)


def test_the_logits_of_all_chunks_lie_in_the_memory_of_one(monkeypatch):
    monkeypatch.setattr("glm_kernels.loss.shard_triton._CHUNK_LOGITS", 5 * 256)
    hidden, weight, _, _ = make_inputs(33, 256, 129, 64, torch.bfloat16)
    chunks = list(shard_triton._chunks_of_logits(hidden, weight, 129))
    assert {logits.data_ptr() for _, logits in chunks} == {chunks[0][1].data_ptr()}
    assert [chunk.stop - chunk.start for chunk, _ in chunks] == [5] * 6 + [3]
    assert all(logits.dtype == torch.bfloat16 and logits.shape[1] == 256 for _, logits in chunks)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_negative_log_likelihood_comes_along_without_a_gradient(smoothing):
    hidden, weight, targets, _ = make_inputs(7, 40, 33, 12)
    loss, nll = smoothed_cross_entropy(
        hidden.requires_grad_(), weight, targets, num_valid=33, label_smoothing=smoothing, backend="triton"
    )
    assert loss.requires_grad
    assert not nll.requires_grad
    plain = linear_cross_entropy(hidden, weight, targets, num_valid=33, backend="triton")
    assert torch.equal(nll, plain)


def test_padded_rows_of_the_table_get_no_gradient():
    hidden, weight, targets, upstream = make_inputs(7, 40, 33, 12)
    *_, of_weight = values_and_gradients(fused(targets, 33, 0.1), [hidden, weight], upstream)
    assert of_weight[:33].all()
    assert not of_weight[33:].any()


def test_any_strides_will_do():
    hidden, weight, targets, upstream = make_inputs(7, 40, 33, 12)
    expected = values_and_gradients(fused(targets, 33, 0.0), [hidden, weight], upstream)
    strided = [torch.stack([x, x], dim=-1).flatten(1)[:, ::2] for x in (hidden, weight)]
    got = values_and_gradients(
        fused(targets.repeat_interleave(2)[::2], 33, 0.0), strided, upstream.repeat_interleave(2)[::2]
    )
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=FP32)


def test_large_logits_do_not_overflow():
    hidden, weight, targets, upstream = make_inputs(7, 40, 33, 12)
    results = values_and_gradients(fused(targets, 33, 0.1), [hidden * 1e4, weight], upstream)
    assert all(x.isfinite().all() for x in results)


def test_a_target_that_no_shard_has_is_seen():
    hidden, weight, targets, _ = make_inputs(7, 40, 33, 12)
    targets[[2, 5]] = torch.tensor([33, 2**40])
    assert fused(targets, 33, 0.0)(hidden, weight).isnan().nonzero().flatten().tolist() == [2, 5]


@pytest.mark.parametrize("block", [16, 64, 1024])
def test_the_tile_changes_little(block):
    hidden, weight, targets, upstream = make_inputs(9, 300, 257, 16)
    with trying({f"loss_{kernel}": Tile({"BLOCK_V": block}, 4, 1) for kernel in ("statistics", "gradient")}):
        assert_accurate(fused(targets, 257, 0.1), formula(targets, 257, 0.1), [hidden, weight], upstream)


# --- shards of the vocabulary ---------------------------------------------------------------------


def over_shards(parts, smoothing, hidden, weight, targets, upstream, valid):
    """Loss and gradients from shards of the table, with the reductions that a group of processes makes."""
    rows = len(weight) // parts
    shards = []
    for first in range(0, len(weight), rows):
        here = min(max(valid - first, 0), rows)
        local = targets - first
        shards.append((weight[first : first + rows], local.where((local >= 0) & (local < here), -1), here))
    statistics = torch.stack([shard_statistics(hidden, *s[:2], valid=s[2], backend="triton") for s in shards])
    own, target, total = statistics.unbind(1)
    largest = own.max(dim=0).values
    normalizer = largest + (own - largest).exp().sum(dim=0).log()
    logit = target.sum(dim=0)
    loss = normalizer - logit + smoothing * (logit - total.sum(dim=0) / valid)
    gradients = [
        shard_gradients(
            upstream,
            hidden,
            *s[:2],
            normalizer,
            valid=s[2],
            label_smoothing=smoothing,
            num_valid=valid,
            backend="triton",
        )
        for s in shards
    ]
    of_hidden, of_weight = zip(*gradients, strict=True)
    return loss, torch.stack(of_hidden).sum(dim=0), torch.cat(of_weight)


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_shards_of_the_vocabulary_add_up_to_the_whole(parts, smoothing):
    shape = (11, 64, 45, 12)  # of four shards, the last one has padding alone
    hidden, weight, targets, upstream = make_inputs(*shape)
    got = over_shards(parts, smoothing, hidden, weight, targets, upstream, 45)
    exact = [hidden.double(), weight.double()]
    expected = values_and_gradients(formula(targets, 45, smoothing), exact, upstream.double())
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=FP32 * max(1.0, b.abs().max().item()))


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize("valid", [33, 0])
def test_a_target_behind_the_words_is_seen_by_every_shard(backend, valid):
    hidden, weight, targets, upstream = make_inputs(7, 40, 33, 12)
    targets = targets if valid else torch.full_like(targets, -1)
    targets[[2, 5]] = torch.tensor([33, 2**40])
    normalizer, target, _ = shard_statistics(hidden, weight, targets, valid=valid, backend=backend)
    assert target.isnan().nonzero().flatten().tolist() == [2, 5]
    options = {"valid": valid, "label_smoothing": 0.1, "num_valid": 33, "backend": backend}
    gradients = shard_gradients(upstream, hidden, weight, targets, normalizer, **options)
    assert all(x.isfinite().all() for x in gradients)


def test_a_shard_of_padding_alone_has_no_say():
    hidden, weight, targets, upstream = make_inputs(7, 40, 33, 12)
    elsewhere = torch.full_like(targets, -1)
    normalizer, target, total = shard_statistics(hidden, weight, elsewhere, valid=0, backend="triton")
    assert (normalizer == -torch.inf).all()
    assert not target.any()
    assert not total.any()
    gradients = shard_gradients(
        upstream, hidden, weight, elsewhere, target, valid=0, label_smoothing=0.1, num_valid=33, backend="triton"
    )
    assert not any(x.any() for x in gradients)


# --- as an operation of torch ---------------------------------------------------------------------


def test_they_are_well_formed_operations():
    hidden, weight, targets, upstream = make_inputs(7, 40, 33, 12)
    opcheck(shard_triton.statistics, (hidden, weight, targets, 33))
    opcheck(shard_triton.gradients, (upstream, hidden, weight, targets, torch.zeros(7), 33, 0.1, 33))
    inputs = (hidden.requires_grad_(), weight.requires_grad_(), targets, 33, 0.1)
    opcheck(fused_linear_cross_entropy, inputs)


@COMPILERS
def test_compiled_as_one_graph_it_gives_the_same_bits(compiler):
    hidden, weight, targets, upstream = make_inputs(7, 40, 33, 12)
    expected = values_and_gradients(fused(targets, 33, 0.1), [hidden, weight], upstream)
    compiled = torch.compile(fused(targets, 33, 0.1), fullgraph=True, backend=compiler)
    got = values_and_gradients(compiled, [hidden, weight], upstream)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_rows_of_other_lengths_need_no_compilation_of_their_own():
    frames, counter = set(), CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(fused_linear_cross_entropy, fullgraph=True, dynamic=True, backend=counter)
    for length in (6, 13, 40):
        hidden, weight, targets, _ = make_inputs(length, 40, 33, 12)
        compiled(hidden.requires_grad_(), weight.requires_grad_(), targets, 33, 0.1)[0].sum().backward()
        frames.add(counter.frame_count)
    assert len(frames) == 1


def test_recomputed_activations_give_the_same_gradients():
    hidden, weight, targets, upstream = make_inputs(7, 40, 33, 12)
    function = fused(targets, 33, 0.1)
    plain = values_and_gradients(function, [hidden, weight], upstream)
    again = values_and_gradients(
        lambda *inputs: checkpoint(function, *inputs, use_reentrant=False), [hidden, weight], upstream
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_a_graph_kept_for_a_second_pass_gives_the_same_gradients():
    hidden, weight, targets, upstream = make_inputs(7, 40, 33, 12)
    leaves = hidden.requires_grad_(), weight.requires_grad_()
    loss = fused(targets, 33, 0.1)(*leaves)
    first = torch.autograd.grad(loss, leaves, upstream, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(loss, leaves, upstream), strict=True))
