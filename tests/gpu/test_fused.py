"""Embedding, dropout and loss on a GPU, by the rules that they pass in the interpreter."""

import pytest
import torch
import torch.nn.functional as F

from glm_kernels.dropout import DropoutKey, HiddenDropout, RowKeys, Site, dropout_add
from glm_kernels.dropout.philox_reference import hidden_kept
from glm_kernels.embedding import embedding
from glm_kernels.loss.op import smoothed_cross_entropy
from glm_kernels.loss.reference import linear_cross_entropy_reference
from glm_kernels.loss.shard import shard_gradients, shard_statistics
from tests.kernels.accuracy import TYPES, assert_accurate, values_and_gradients

EMBEDDING = DropoutKey(seed=5, layer=0, site=Site.EMBEDDING)
MLP = DropoutKey(seed=5, layer=3, site=Site.MLP_OUTPUT)


@pytest.fixture(scope="module")
def sizes(rehearsal):
    """Tokens, width, vocabulary with its padding, ids that count."""
    return (40, 48, 256, 250) if rehearsal else (3000, 1024, 30_592, 30_530)


def draw(device, dtype, *shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def row_keys(tokens, device):
    return RowKeys.from_lengths([7, 9], [tokens - 11, 8], tokens).to(device)


def kept(keys, width, key, probability=0.1):
    return torch.from_numpy(hidden_kept(probability, keys.token_key.cpu().numpy(), width, key=key))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("deterministic", [False, True])
def test_embeddings_and_their_gradients_are_those_of_the_formula(dtype, deterministic, sizes, device):
    T, H, V, _ = sizes
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(V, (T,), generator=generator)
    blocks = torch.randint(9, (T,), generator=generator).masked_fill(torch.rand(T, generator=generator) < 0.8, 0)
    ids = [x.to(device) for x in (words, torch.arange(T) % 33, blocks)]
    keys = row_keys(T, device)
    dropout = HiddenDropout(0.1, keys, EMBEDDING)
    mask = kept(keys, H, EMBEDDING).to(device)

    def kernel(*tables):
        return embedding(*ids, *tables, dropout=dropout, deterministic=deterministic, backend="triton")

    def formula(*tables):
        total = sum(F.embedding(i, table) for i, table in zip(ids, tables, strict=True))
        return total * mask / 0.9

    tables = [draw(device, dtype, rows, H, seed=rows) for rows in (V, 34, 34)]
    assert_accurate(kernel, formula, tables, draw(device, dtype, T, H))


def test_deterministic_embedding_gradients_have_the_same_bits_every_time(sizes, device, repeats):
    T, H, V, _ = sizes
    ids = [torch.arange(T, device=device) % n for n in (V, 33, 3)]
    tables, upstream = [draw(device, torch.bfloat16, n, H) for n in (V, 34, 34)], draw(device, torch.bfloat16, T, H)

    def kernel(*tables):
        return embedding(*ids, *tables, deterministic=True, backend="triton")

    first = values_and_gradients(kernel, tables, upstream)
    for _ in range(repeats - 1):
        again = values_and_gradients(kernel, tables, upstream)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_dropout_with_residual_is_the_formula_with_the_mask_of_its_keys(dtype, sizes, device):
    T, H, _, _ = sizes
    keys = row_keys(T, device)
    mask = kept(keys, H, MLP).to(device)

    def kernel(x, residual):
        return dropout_add(x, residual, probability=0.1, row_keys=keys, key=MLP, backend="triton")

    inputs = [draw(device, dtype, T, H, seed=seed) for seed in (1, 2)]
    assert_accurate(kernel, lambda x, r: r + x * mask / 0.9, inputs, draw(device, dtype, T, H, seed=3))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_and_its_gradients_are_those_of_the_formula(dtype, smoothing, sizes, device):
    N, H, V, num_valid = sizes
    targets = torch.randint(num_valid, (N,), generator=torch.Generator().manual_seed(4)).to(device)

    def kernel(hidden, weight):
        options = {"num_valid": num_valid, "label_smoothing": smoothing, "backend": "triton"}
        return smoothed_cross_entropy(hidden, weight, targets, **options)[0]

    def formula(hidden, weight):
        return linear_cross_entropy_reference(hidden, weight, targets, num_valid=num_valid, label_smoothing=smoothing)

    hidden, weight = draw(device, dtype, N, H), draw(device, dtype, V, H, seed=1) / H**0.5
    assert_accurate(kernel, formula, [hidden, weight], draw(device, torch.float32, N, seed=2))


@pytest.mark.parametrize("shards", [2, 4])
def test_shards_of_the_vocabulary_add_up_to_the_whole(shards, sizes, device):
    N, H, V, num_valid = sizes
    targets = torch.randint(num_valid, (N,), generator=torch.Generator().manual_seed(4)).to(device)
    hidden, weight = draw(device, torch.float32, N, H), draw(device, torch.float32, V, H, seed=1) / H**0.5
    upstream, rows = draw(device, torch.float32, N, seed=2), V // shards
    parts = []
    for first in range(0, V, rows):
        local = torch.where((targets >= first) & (targets < first + rows), targets - first, -1)
        valid = min(max(num_valid - first, 0), rows)
        parts.append((weight[first : first + rows], local, valid))
    found = torch.stack(
        [shard_statistics(hidden, own, local, valid=valid, backend="triton") for own, local, valid in parts]
    )
    normalizer, target = found[:, 0].logsumexp(dim=0), found[:, 1].sum(dim=0)
    options = {"label_smoothing": 0.0, "num_valid": num_valid, "backend": "triton"}
    gradients = [
        shard_gradients(upstream, hidden, own, local, normalizer, valid=valid, **options) for own, local, valid in parts
    ]
    whole = values_and_gradients(
        lambda h, w: linear_cross_entropy_reference(h, w, targets, num_valid=num_valid),
        [hidden.double(), weight.double()],
        upstream.double(),
    )
    of_shards = normalizer - target, sum(g for g, _ in gradients), torch.cat([g for _, g in gradients])
    for got, exact in zip(of_shards, whole, strict=True):
        assert (got - exact).abs().max() <= 5e-6 * exact.abs().max().clamp(min=1)
