"""Keyed dropout inside a kernel: a bit is decided by Philox4x32-7, from where it stands and nothing else.

    key      64-bit hash of (run's seed, layer, site): DropoutKey.philox_key
    counter  64-bit hash of (sample, token), two words: RowKeys.token_key; then two words of the site's own:
             attention: key token's place in its sample, global head (the first of the four words)
             hidden states: feature // 4, 0 (the word number feature % 4)

So a mask depends on no row, tile, rank or kernel, and every pass draws it anew. `philox_reference.py` is the same in
NumPy. A kernel passes the words in the shapes in which they vary ([M, 1] for rows, [1, N] for columns): the first
rounds then work on vectors.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011); seven rounds are their least safe number.
"""

import triton
import triton.language as tl

from glm_kernels.interpreting import INTERPRETED

ROUNDS = tl.constexpr(7)
_MULTIPLIER_0, _MULTIPLIER_1 = tl.constexpr(0xD2511F53), tl.constexpr(0xCD9E8D57)
_KEY_STEP_0, _KEY_STEP_1 = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)


@triton.jit
def counter_words(token_key):
    """The low and the high word of each token's key: int64 [...] -> uint32 [...] twice."""
    return token_key.to(tl.uint32), (token_key >> 32).to(tl.uint32)


@triton.jit
def _product(word, MULTIPLIER: tl.constexpr):
    """The low and the high word of a product: uint32 [...] -> uint32 [...] twice."""
    if INTERPRETED:
        return tl.mul(word, MULTIPLIER, sanitize_overflow=False), tl.umulhi(word, MULTIPLIER)
    # One wide multiplication. Asked for in two halves, the assembler does two.
    return tl.inline_asm_elementwise(
        "{ .reg .b64 wide; mul.wide.u32 wide, $2, $3; mov.b64 {$0, $1}, wide; }",
        "=r,=r,r,r",
        [word, tl.full([], MULTIPLIER, tl.uint32)],
        dtype=(tl.uint32, tl.uint32),
        is_pure=True,
        pack=1,
    )


@triton.jit
def draw(key, low, high, third, fourth):
    """Four random words for each value of the counter: key int64, counter 32-bit words, all tensors -> uint32 each."""
    key = key.to(tl.int64)  # a small one would come as 32 bits
    k0, k1 = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    c0, c1 = low.to(tl.uint32), high.to(tl.uint32)
    c2, c3 = third.to(tl.uint32), fourth.to(tl.uint32)
    for _ in tl.static_range(ROUNDS):
        first_low, first_high = _product(c0, _MULTIPLIER_0)
        second_low, second_high = _product(c2, _MULTIPLIER_1)
        c0, c1 = second_high ^ c1 ^ k0, second_low
        c2, c3 = first_high ^ c3 ^ k1, first_low
        k0 = tl.add(k0, _KEY_STEP_0, sanitize_overflow=False)
        k1 = tl.add(k1, _KEY_STEP_1, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def kept(word, threshold):
    """Whether what a random word decides about is kept: uint32 [...], `keys.drop_threshold` -> bool [...]."""
    return word >= threshold.to(tl.uint32)
