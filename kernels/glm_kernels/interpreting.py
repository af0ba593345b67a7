"""What a kernel does differently where Triton's interpreter runs it (TRITON_INTERPRET=1, on a CPU).

NumPy has no bfloat16. The interpreter keeps one as its 16 bits, and then multiplies, adds and compares those bits as
integers, and it narrows fp32 to bf16 by cutting it off. So there a kernel computes with the fp32 that its bf16 stands
for, and rounds by hand where a GPU would. On a GPU each function below is what its first line says, at no cost:
`INTERPRETED` is known when a kernel is compiled, and the other branch is not there.

TRITON_INTERPRET has to be set before triton is imported: its own functions read it then.
"""

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def loaded(x):
    """x as it was loaded; in the interpreter bf16 as the fp32 of the same value, which every operation takes."""
    if INTERPRETED and x.dtype == tl.bfloat16:
        x = x.to(tl.float32)  # exact: widening is what the interpreter does right
    return x


@triton.jit
def operand(x, dtype: tl.constexpr):
    """fp32 x rounded to dtype, for tl.dot; in the interpreter the result for bf16 is an fp32 that holds the value."""
    if INTERPRETED and dtype == tl.bfloat16:
        return (_rounded_bits(x) << 16).to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def stored(x, dtype: tl.constexpr):
    """fp32 x rounded to dtype, for tl.store."""
    if INTERPRETED and dtype == tl.bfloat16:
        return _rounded_bits(x).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return x.to(dtype)


@triton.jit
def _rounded_bits(x):
    """The 16 bits of the bf16 nearest to each finite fp32 (ties to even), or of its infinity or NaN: uint32."""
    bits = x.to(tl.uint32, bitcast=True)
    rounded = (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16
    # Adding to a NaN's bits could carry it into infinity, or round it to a number.
    return tl.where(x == x, rounded, (bits >> 16) | 0x0040)
