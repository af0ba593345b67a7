"""The two passes over a chunk of logits: their softmax's statistics, and their gradient in their own place.

Each logit is read once per pass, in the type that the matrix product left it in, and never written as fp32: at
50,304 ids that is half of the traffic and half of the memory of the same in plain torch.
"""

import triton
import triton.language as tl

from glm_kernels.interpreting import loaded, stored


@triton.jit(do_not_specialize_on_alignment=["targets", "normalizer", "target_logit", "total"])
def statistics_kernel(
    logits,  # [tokens, width]
    targets,  # int64 [tokens], column of the target; -1 where another shard has it
    normalizer,  # fp32 [tokens], log of the sum of exponentials
    target_logit,  # fp32 [tokens], 0 where another shard has it
    total,  # fp32 [tokens], sum of the logits
    width,
    valid,  # columns that take part
    BLOCK_V: tl.constexpr,
):
    """The log-sum-exp, the target's logit and the sum of the logits of one token; a program a token.

    Source: Milakov and Gimelshein (2018), online softmax, a block of columns at a time.
    """
    token = tl.program_id(0).to(tl.int64)
    logits += token * width
    largest, exponentials, summed = float("-inf"), 0.0, 0.0
    for start in range(0, valid, BLOCK_V):
        columns = start + tl.arange(0, BLOCK_V)
        # Bounded by width, a multiple of 16 where it matters: up to an odd number of columns, each is loaded alone.
        x = loaded(tl.load(logits + columns, mask=columns < width, other=0.0)).to(tl.float32)
        inside = columns < valid
        x = tl.where(inside, x, float("-inf"))
        larger = tl.maximum(largest, tl.max(x, 0))
        exponentials = exponentials * tl.exp(largest - larger) + tl.sum(tl.exp(x - larger), 0)
        summed += tl.sum(tl.where(inside, x, 0.0), 0)
        largest = larger
    target = tl.load(targets + token)
    here = (target >= 0) & (target < valid)
    own = loaded(tl.load(logits + target, mask=here, other=0.0)).to(tl.float32)
    tl.store(normalizer + token, largest + tl.log(exponentials))
    # An id that no shard has must not read what lies behind the logits, nor go unseen.
    tl.store(target_logit + token, tl.where(target < valid, own, float("nan")))
    tl.store(total + token, summed)


@triton.jit(do_not_specialize_on_alignment=["targets", "normalizer", "upstream"])
def gradient_kernel(
    logits,  # [tokens, width], overwritten
    targets,  # int64 [tokens]
    normalizer,  # fp32 [tokens], over all shards
    upstream,  # fp32 [tokens], gradient of the loss
    width,
    valid,
    uniform,  # share of the target distribution that every id has
    share,  # share that the target has beyond that
    BLOCK_V: tl.constexpr,
):
    """upstream · (softmax − target distribution) over the logits; columns from `valid` on become 0.

    A program a token and a block of columns.
    """
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    places = logits + token * width + columns
    x = loaded(tl.load(places, mask=columns < width, other=0.0)).to(tl.float32)
    x = tl.where(columns < valid, x, float("-inf"))
    wanted = uniform + tl.where(columns == tl.load(targets + token), share, 0.0)
    gradient = (tl.exp(x - tl.load(normalizer + token)) - wanted) * tl.load(upstream + token)
    gradient = tl.where(columns < valid, gradient, 0.0)
    tl.store(places, stored(gradient, logits.dtype.element_ty), mask=columns < width)
