"""What every operator that launches kernels does: on the device of its tensors, in their types, or not at all."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from triton.runtime.interpreter import GridExecutor

from glm_kernels.attention import attention
from glm_kernels.dropout import HiddenDropout, RowKeys, dropout_add
from glm_kernels.embedding import embedding
from glm_kernels.loss import shard_triton, smoothed_cross_entropy
from glm_kernels.loss.shard import shard_gradients, shard_statistics
from glm_kernels.operators import check_forms, form
from tests.kernels.attention.cases import KEY, glm

T, H, WORDS, VALID = 40, 32, 64, 60
VISIBILITY = glm((20, 12), (3, 4), padding=1)
ROW_KEYS = RowKeys.from_lengths([4, 2], [32, 7], T)
KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "glm_kernels"


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def ids(most):
    return torch.arange(T) * 7 % most


def attend(backend="triton", query=None, key=None, value=None, visibility=VISIBILITY, row_keys=ROW_KEYS):
    query, key, value = (draw(T, 2, 16) if x is None else x for x in (query, key, value))
    options = {"row_keys": row_keys, "dropout_key": KEY, "backend": backend}
    return attention(query, key, value, visibility, dropout=0.2, **options)


def embed(backend="triton", word=None, position=None, words=None, places=None, row_keys=ROW_KEYS, deterministic=True):
    tables = draw(WORDS, H) if word is None else word, draw(41, H) if position is None else position, draw(9, H)
    of_tokens = ids(WORDS) if words is None else words, ids(41) if places is None else places, ids(9)
    dropout = HiddenDropout(0.1, row_keys, KEY)
    return embedding(*of_tokens, *tables, dropout=dropout, deterministic=deterministic, backend=backend)


def drop(backend="triton", x=None, residual=None, row_keys=ROW_KEYS, places=None):
    x, residual = (draw(T, H) if tensor is None else tensor for tensor in (x, residual))
    options = {"probability": 0.1, "row_keys": row_keys, "key": KEY, "places": places}
    return dropout_add(x, residual, **options, backend=backend)


def lose(backend="triton", hidden=None, weight=None, targets=None, num_valid=VALID):
    hidden, weight = draw(T, H) if hidden is None else hidden, draw(WORDS, H) if weight is None else weight
    targets = ids(VALID) if targets is None else targets
    return smoothed_cross_entropy(hidden, weight, targets, num_valid=num_valid, label_smoothing=0.1, backend=backend)[0]


# One argument each that the operation has a gradient of.
LEAVES = {attend: ("query", (T, 2, 16)), embed: ("word", (WORDS, H)), drop: ("x", (T, H)), lose: ("hidden", (T, H))}
OPERATIONS = pytest.mark.parametrize(("function", "leaf"), LEAVES.items(), ids=lambda x: getattr(x, "__name__", ""))


@pytest.fixture
def launches(monkeypatch):
    """The kernels that are launched, each with the tensor whose device was the current one then."""
    found, inside = [], []

    class Device:
        def __init__(self, tensor):
            self.tensor = tensor

        def __enter__(self):
            inside.append(self.tensor)

        def __exit__(self, *_):
            inside.pop()

    launch = GridExecutor.__call__

    def recorded(executor, *args, **kwargs):
        found.append((executor.fn.__name__, inside[-1] if inside else None))
        return launch(executor, *args, **kwargs)

    monkeypatch.setattr(torch.cuda, "device_of", Device)
    monkeypatch.setattr(GridExecutor, "__call__", recorded)
    return found


def test_every_launch_is_on_the_device_of_its_tensors(launches):
    for function, (name, shape) in LEAVES.items():
        function(**{name: draw(*shape).requires_grad_()}).sum().backward()
    embed(word=draw(WORDS, H).requires_grad_(), deterministic=False).sum().backward()
    inputs = draw(T, H), draw(WORDS, H), ids(VALID)
    normalizer = shard_statistics(*inputs, valid=VALID, backend="triton")[0]
    options = {"valid": VALID, "label_smoothing": 0.0, "num_valid": VALID, "backend": "triton"}
    shard_gradients(draw(T), *inputs, normalizer, **options)
    assert all(isinstance(tensor, torch.Tensor) for _, tensor in launches), launches
    decorated = re.compile(r"^@triton\.jit.*\ndef (\w+_kernel)\(", re.MULTILINE)
    everything = {name for file in KERNELS.rglob("*.py") for name in decorated.findall(file.read_text())}
    assert {name for name, _ in launches} == everything
    assert len(everything) == 11


def test_no_operator_is_registered_in_any_other_way():
    assert [f.name for f in sorted(KERNELS.rglob("*.py")) if "library.custom_op" in f.read_text()] == ["operators.py"]


LONG = replace(VISIBILITY, key_end=VISIBILITY.key_end.long())
INT32 = replace(ROW_KEYS, token_key=ROW_KEYS.token_key.int())
SHORT = RowKeys.from_lengths([4], [5], 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attend(key=draw(T, 2, 16).half()), "key is float16, it has to be float32 as query"),
        (lambda: attend(value=draw(T, 1, 16)), "value is [40, 1, 16], it has to be [T, heads, d], here [40, 2, 16]"),
        (lambda: attend(key=draw(T, 32)), "key is [40, 32], it has to be [T, heads, d], here [40, 2, 16]"),
        (lambda: attend(visibility=LONG), "key_end is int64, it has to be int32"),
        (lambda: attend(row_keys=INT32), "token_key is int32, it has to be int64"),
        (
            lambda: embed(position=draw(41, H).double()),
            "position is float64, it has to be float32 or bfloat16 or float16",
        ),
        (lambda: embed(position=draw(41, 16)), "position is [41, 16], it has to be [P, H], here [41, 32]"),
        (lambda: embed(words=ids(WORDS).int()), "input_ids is int32, it has to be int64"),
        (lambda: embed(places=ids(41)[:3]), "position_ids is [3], it has to be [T], here [40]"),
        (lambda: embed(row_keys=SHORT), "token_key is [5], it has to be [T], here [40]"),
        (lambda: drop(residual=draw(T, 16)), "residual is [40, 16], it has to be [N, H], here [40, 32]"),
        (lambda: drop(places=ids(5)[:3]), "places is [3], it has to be [N], here [40]"),
        (lambda: drop(row_keys=SHORT), "dropout of 40 tokens with the keys of 5; give their places"),
        (lambda: lose(weight=draw(WORDS, H).half()), "weight is float16, it has to be float32 as hidden"),
        (lambda: lose(targets=ids(VALID)[:5]), "target_ids is [5], it has to be [N], here [40]"),
        (lambda: lose(targets=ids(VALID).int()), "target_ids is int32, it has to be int64"),
        (lambda: lose(num_valid=65), "valid: 65 words of a table of 64; it has to be in 0..64"),
    ],
)
def test_what_a_kernel_would_misread_is_refused_by_name(call, message, launches):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
    assert launches == []


def test_a_tensor_elsewhere_is_refused_by_name():
    tensors = {"x": draw(3, 2), "places": torch.zeros(3, dtype=torch.int64, device="meta")}
    with pytest.raises(ValueError, match="op: places is on meta, x on cpu; move one of them"):
        check_forms("op", tensors, {"x": form("float [N, H]"), "places": form("int64 [N]")})


@pytest.mark.parametrize("place", [-1, T, 2**40])
def test_a_place_outside_the_row_is_seen(place):
    result = drop(x=draw(3, H), residual=draw(3, H), places=torch.tensor([1, place, 2]))
    assert result[1].isnan().all()
    assert result[[0, 2]].isfinite().all()


@pytest.mark.parametrize("target", [-1, -(2**40), VALID, 2**40])
def test_a_target_that_there_is_not_is_seen(target):
    targets = ids(VALID)
    targets[5] = target
    assert lose(targets=targets).isnan().nonzero().tolist() == [[5]]


@OPERATIONS
def test_a_second_derivative_is_refused(function, leaf):
    name, shape = leaf
    x = draw(*shape).requires_grad_()
    first = torch.autograd.grad(function(**{name: x}).square().sum(), x, create_graph=True)[0]
    if function is drop:  # its gradient is the same operation
        assert torch.autograd.grad(first.sum(), x)[0].any()
        return
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        torch.autograd.grad(first.sum(), x)


@OPERATIONS
def test_a_forward_derivative_is_refused_and_not_zero(function, leaf):
    name, shape = leaf
    x = draw(*shape)
    with pytest.raises(RuntimeError, match="has no forward-mode derivative; use reverse mode"):
        torch.func.jvp(lambda x: function(**{name: x}), (x,), (x,))
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward-mode"):
        function(**{name: forward_ad.make_dual(x, x)})


@OPERATIONS
def test_a_gradient_by_functional_transforms_is_refused(function, leaf):
    name, shape = leaf
    with pytest.raises(RuntimeError, match=r"autograd\.Function with functorch transforms"):
        torch.func.grad(lambda x: function(**{name: x}).sum())(draw(*shape))


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize("tokens_of_a_chunk", [T, 20])
def test_the_loss_and_its_gradients_are_computed_in_their_own_type_under_autocast(
    backend, tokens_of_a_chunk, monkeypatch
):
    monkeypatch.setattr(shard_triton, "_CHUNK_LOGITS", WORDS * tokens_of_a_chunk)
    monkeypatch.setattr("glm_kernels.loss.chunks.CHUNK_LOGITS", VALID * tokens_of_a_chunk)
    leaves = draw(T, H).requires_grad_(), draw(WORDS, H).requires_grad_()
    inputs = *(x.detach() for x in leaves), ids(VALID)
    options = {"valid": VALID, "label_smoothing": 0.1, "num_valid": VALID, "backend": backend}

    def results():
        loss = lose(backend, *leaves)
        statistics = shard_statistics(*inputs, valid=VALID, backend=backend)
        of_shard = shard_gradients(draw(T), *inputs, statistics[0], **options)
        return loss, *torch.autograd.grad(loss.sum(), leaves), statistics, *of_shard

    expected = results()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = results()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@OPERATIONS
def test_a_gradient_of_one_argument_alone_is_that_of_all(function, leaf):
    name, shape = leaf
    others = {attend: "value", embed: "position", drop: "residual", lose: "weight"}
    shapes = {"value": (T, 2, 16), "position": (41, H), "residual": (T, H), "weight": (WORDS, H)}
    other = others[function]

    def gradients(*wanted):
        leaves = {name: draw(*shape), other: draw(*shapes[other])}
        for key in wanted:
            leaves[key].requires_grad_()
        function(**leaves).square().sum().backward()
        return [leaves[key].grad for key in (name, other)]

    both, first, second = gradients(name, other), gradients(name), gradients(other)
    assert torch.equal(first[0], both[0])
    assert torch.equal(second[1], both[1])
    assert first[1] is None
    assert second[0] is None
