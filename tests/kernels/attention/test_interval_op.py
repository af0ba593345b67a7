"""The operators of torch around the attention kernels: registered, compiled, checkpointed, counted, and dispatched."""

from functools import partial

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from glm_kernels.attention import attention
from glm_kernels.attention.interval_op import interval_attention, interval_attention_backward
from glm_kernels.dropout import RowKeys
from tests.kernels.attention.cases import KEY, glm, gradients, inputs, mask

VISIBILITY = glm((20, 12), (3, 4), padding=1)
ROW_KEYS = RowKeys.from_lengths([4, 2], [32, 7], 40)


def arguments(dropout=0.2):
    """Of the operator, behind query, key and value."""
    visibility = VISIBILITY
    bounds = (visibility.key_start, visibility.key_end, visibility.query_start, visibility.query_end)
    keys = (ROW_KEYS.token_key, ROW_KEYS.token) if dropout else (None, None)
    return (*bounds, *keys, dropout, KEY.seed, KEY.layer, KEY.site, 1, False)


def attend(query, key, value, dropout=0.2, backend="triton", visibility=VISIBILITY):
    return attention(
        query,
        key,
        value,
        visibility,
        dropout=dropout,
        row_keys=ROW_KEYS,
        dropout_key=KEY,
        first_head=1,
        backend=backend,
    )


def assert_the_same_bits(got, expected):
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_the_forward_operator_keeps_the_rules_of_torch():
    leaves = [x.detach().requires_grad_() for x in inputs(40, 2, 16)[:3]]
    torch.library.opcheck(interval_attention, (*leaves, *arguments(0.2)))
    cheap = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(interval_attention, (*leaves, *arguments(0.0)), test_utils=cheap)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_backward_operator_keeps_the_rules_of_torch(dropout):
    *tensors, upstream = inputs(40, 2, 16)
    output, log_sum_exp = interval_attention(*tensors, *arguments(dropout))
    upstream_of_second = torch.ones_like(log_sum_exp) if dropout else None
    saved = (*tensors, output, log_sum_exp, *arguments(dropout))
    torch.library.opcheck(interval_attention_backward, (upstream, upstream_of_second, *saved))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_compiled_as_one_graph_it_gives_the_same_bits(dropout):
    tensors, attend_so = inputs(40, 2, 16), partial(attend, dropout=dropout)
    compiled = torch.compile(attend_so, fullgraph=True)
    assert_the_same_bits(gradients(compiled, tensors), gradients(attend_so, tensors))


def test_another_mask_of_the_same_length_compiles_nothing_anew():
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(attend, fullgraph=True, backend=count)
    tensors = inputs(40, 2, 16)
    first = compiled(*tensors[:3], visibility=VISIBILITY)
    second = compiled(*tensors[:3], visibility=glm((8, 30), padding=2))
    assert len(graphs) == 1
    assert torch.equal(first, attend(*tensors[:3]))
    assert torch.equal(second, attend(*tensors[:3], visibility=glm((8, 30), padding=2)))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_rows_of_other_lengths_need_no_compilation_of_their_own(dropout):
    def attend_row(query, key, value, visibility, row_keys):
        keys = {"row_keys": row_keys, "dropout_key": KEY}
        return attention(query, key, value, visibility, dropout=dropout, **keys, backend="triton")

    torch._dynamo.reset()  # of the other case, whose probability was another constant
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(attend_row, fullgraph=True, backend=counter)
    for T in (40, 64, 50):
        visibility = glm((T - 20, 12), (1, 3), padding=4)
        row_keys = RowKeys.from_lengths([4, T], [T - 8, 4], T)
        *qkv, upstream = inputs(T, 2, 16)
        bounds = (visibility.key_start, visibility.key_end, visibility.query_start, visibility.query_end)
        for x in (*qkv, *bounds, row_keys.token, row_keys.token_key):
            torch._dynamo.mark_dynamic(x, 0)
        leaves = [x.requires_grad_() for x in qkv]
        output = compiled(*leaves, visibility, row_keys)
        output.backward(upstream)
        assert torch.equal(output, attend_row(*leaves, visibility, row_keys))
    assert counter.frame_count == 1


def test_checkpointing_repeats_the_same_bits():
    tensors = inputs(40, 2, 16)
    expected = gradients(attend, tensors)

    def checkpointed(*qkv):
        return checkpoint(attend, *qkv, use_reentrant=False, preserve_rng_state=False)

    assert_the_same_bits(gradients(checkpointed, tensors), expected)
    assert_the_same_bits(gradients(torch.compile(checkpointed, fullgraph=True), tensors), expected)


def test_selective_checkpointing_keeps_the_result_and_the_bits(monkeypatch):
    from glm_kernels.attention import launch

    launches, launched = [], launch.launch_forward
    monkeypatch.setattr(launch, "launch_forward", lambda *args, **rest: launches.append(1) or launched(*args, **rest))

    def policy(_, op, *args, **kwargs):
        keeps = op is torch.ops.glm_kernels.interval_attention.default
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    def doubled(query, key, value):
        return attend(query * 2, key, value)

    def selective(*qkv):
        contexts = partial(create_selective_checkpoint_contexts, policy)
        return checkpoint(doubled, *qkv, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)

    tensors = inputs(40, 2, 16)
    expected = gradients(doubled, tensors)
    launches.clear()
    assert_the_same_bits(gradients(selective, tensors), expected)
    assert len(launches) == 1


def test_flops_are_those_of_the_visible_pairs():
    *tensors, upstream = inputs(40, 2, 16)
    leaves = [x.detach().requires_grad_() for x in tensors]
    with FlopCounterMode(display=False) as counter:
        attend(*leaves).backward(upstream)
    pairs = int(VISIBILITY.dense().sum())
    assert counter.get_total_flops() == (4 + 10) * pairs * 2 * 16


def test_both_results_have_a_gradient_alone():
    tensors = inputs(40, 2, 16)

    def second(*qkv):
        return interval_attention(*qkv, *arguments(0.0))[1][:, :39].sum()

    def reference(query, key, _):
        scores = torch.einsum("qhd,khd->hqk", query, key) / 4
        return scores.masked_fill(~VISIBILITY.dense(), -torch.inf)[:, :39].logsumexp(-1).sum()

    leaves = [x.detach().requires_grad_() for x in tensors[:3]]
    got = torch.autograd.grad(second(*leaves), leaves)
    expected = torch.autograd.grad(reference(*leaves), leaves[:2])
    for a, b in zip(got, expected, strict=False):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6)
    assert not got[2].any()


@pytest.mark.parametrize("backend", ["triton", "segments", "sdpa", "reference", "auto"])
def test_every_forced_back_end_computes_the_same(backend):
    tensors = inputs(40, 2, 16)
    expected = gradients(partial(attend, dropout=0.0, backend="reference"), [x.double() for x in tensors])
    got = gradients(partial(attend, dropout=0.0, backend=backend), tensors)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-6)


def test_with_dropout_the_reference_is_the_kernels():
    tensors = inputs(40, 2, 16)
    expected = gradients(partial(attend, backend="reference"), [x.double() for x in tensors])
    for a, b in zip(gradients(attend, tensors), expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-6)


def test_on_a_cpu_the_choice_is_segment_by_segment():
    tensors = inputs(40, 2, 16)
    assert_the_same_bits(
        gradients(partial(attend, backend="auto"), tensors), gradients(partial(attend, backend="segments"), tensors)
    )


@pytest.mark.parametrize("backend", ["triton", "segments"])
@pytest.mark.parametrize(("T", "heads"), [(0, 2), (1, 1), (3, 0)])
def test_a_row_may_have_no_tokens_or_no_heads(backend, T, heads):
    visibility = glm((0, 1)) if T == 1 else glm(padding=T)
    tensors = inputs(T, heads, 16)
    results = gradients(partial(attend, dropout=0.0, backend=backend, visibility=visibility), tensors)
    assert all(x.shape == (T, heads, 16) for x in results)
    output, dq, dk, dv = results
    if T == 1:  # a token alone sees itself
        for got, expected in ((output, tensors[2]), (dv, tensors[3]), (dq, 0 * dq), (dk, 0 * dk)):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def test_refuses_a_back_end_that_there_is_not():
    with pytest.raises(ValueError, match="'cuda' is none of auto, triton, segments, flash-varlen"):
        attend(*inputs(40, 2, 16)[:3], backend="cuda")


@pytest.mark.parametrize(("head_dim", "dtype"), [(136, torch.float32), (16, torch.float64)])
def test_refuses_heads_that_the_kernels_do_not_know(head_dim, dtype):
    with pytest.raises(ValueError, match=rf"up to 128 features in fp32, bf16 and fp16, not {head_dim} in {dtype}"):
        attend(*inputs(40, 2, head_dim, dtype)[:3])


def test_refuses_a_cpu_without_the_interpreter(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(ValueError, match="backend triton on cpu: it needs triton, and a GPU or its interpreter"):
        attend(*inputs(40, 2, 16)[:3])


def test_a_mask_without_segments_runs_on_the_kernels_alone():
    visibility = mask("window", 40)
    tensors = inputs(40, 2, 16)[:3]
    torch.testing.assert_close(
        attend(*tensors, visibility=visibility), attend(*tensors, visibility=visibility, backend="reference")
    )


def test_bounds_and_keys_may_be_parts_of_larger_tensors():
    def strided(x):
        return torch.stack([x, x], dim=1)[:, 0]

    tensors = inputs(40, 2, 16)[:3]
    bounds_and_keys = arguments()
    strange = (*(strided(x) for x in bounds_and_keys[:6]), *bounds_and_keys[6:])
    assert_the_same_bits(interval_attention(*tensors, *strange), interval_attention(*tensors, *bounds_and_keys))
