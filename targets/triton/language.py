"""What Triton's language lacks for the scalar table: small functions that generated kernels call.

Operators with a trailing underscore are what reductions and scans join values by.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def maximum(a, b):
    """The larger one; nan if either is nan."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    """The smaller one; nan if either is nan."""
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def add_(a, b):
    return a + b


@triton.jit
def mul_(a, b):
    return a * b


@triton.jit
def max_(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def min_(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def or_(a, b):
    return a | b


@triton.jit
def and_(a, b):
    return a & b


@triton.jit
def argmax_pair(a, i, b, j):
    """The larger value with its position; nan is larger than all, the first of equal ones wins."""
    nan_a, nan_b = a != a, b != b
    equal = (a == b) | (nan_a & nan_b)
    first = (a > b) | (nan_a & (nan_b == 0)) | (equal & (i < j))
    first = first & ((nan_b == 0) | nan_a)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def argmin_pair(a, i, b, j):
    """The smaller value with its position; nan is smaller than all, the first of equal ones wins."""
    nan_a, nan_b = a != a, b != b
    equal = (a == b) | (nan_a & nan_b)
    first = (a < b) | (nan_a & (nan_b == 0)) | (equal & (i < j))
    first = first & ((nan_b == 0) | nan_a)
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def max_expsum_add(most, total, x, inside):
    """Join the elements of x along its last axis, where they are `inside`, to the largest value and the sum of exponentials below it."""
    x = tl.where(inside, x, float("-inf"))
    new = maximum(most, tl.reduce(x, len(x.shape) - 1, max_))
    shift = tl.where(new == float("-inf"), 0.0, new)
    below = tl.exp(x - tl.expand_dims(shift, len(x.shape) - 1))
    return new, total * tl.exp(most - shift) + tl.reduce(below, len(x.shape) - 1, add_)


@triton.jit
def max_expsum_join(most_a, total_a, most_b, total_b):
    """Join two of them."""
    new = maximum(most_a, most_b)
    shift = tl.where(new == float("-inf"), 0.0, new)
    return new, total_a * tl.exp(most_a - shift) + total_b * tl.exp(most_b - shift)


@triton.jit
def max_expsum_end(most, total):
    """The largest value, and the sum."""
    return most, total


@triton.jit
def moments_add(count, mean, squares, x, inside):
    """Join the elements of x along its last axis, where they are `inside`, to count, mean, and squares around it."""
    number = tl.reduce(tl.where(inside, x * 0.0 + 1.0, 0.0), len(x.shape) - 1, add_)
    middle = tl.reduce(tl.where(inside, x, 0.0), len(x.shape) - 1, add_) / tl.maximum(number, 1.0)
    apart = tl.where(inside, x - tl.expand_dims(middle, len(x.shape) - 1), 0.0)
    return moments_join(count, mean, squares, number, middle, tl.reduce(apart * apart, len(x.shape) - 1, add_))


@triton.jit
def moments_join(count_a, mean_a, squares_a, count_b, mean_b, squares_b):
    """Join two of them (Chan, Golub, LeVeque 1979)."""
    count = count_a + count_b
    share = tl.where(count > 0, count_b / tl.maximum(count, 1.0), 0.0)
    apart = mean_b - mean_a
    return count, mean_a + apart * share, squares_a + squares_b + apart * apart * count_a * share


@triton.jit
def moments_end(count, mean, squares):
    """Count, sum and squares around the mean."""
    return count, mean * count, squares


@triton.jit
def sign(x):
    """-1, 0 or 1; nan gives 0, as in torch."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


@triton.jit
def one_plus_tanh(x):
    """1 + tanh(x) in float32, without the cancellation."""
    return 2.0 / (1.0 + tl.exp(-2.0 * x))


@triton.jit
def one_plus_erf(x):
    """1 + erf(x) in float32, that is erfc(-x): an error of 1e-7, which rounding 1 + erf(x) has too, in a third of the instructions.

    erfc(t) = 2^-q(t) for t >= 0, where q is almost a parabola; its coefficients are a least-squares fit weighted for the largest error.
    """
    t = tl.abs(x)
    q = t * -1.1610822184593417e-05 + 0.00015302712563425303
    q = q * t - 0.0008484981954097748
    q = q * t + 0.0022753605153411627
    q = q * t - 8.550279744667932e-05
    q = q * t - 0.0277240052819252
    q = q * t + 0.14830774068832397
    q = q * t + 0.9184429049491882
    q = q * t + 1.6279072761535645
    tail = tl.where(t >= 4.0, 0.0, tl.exp2(-q * t))
    return tl.where(x < 0, tail, 2.0 - tail)


@triton.jit
def sqrt(x):
    """The root, rounded to nearest: `tl.sqrt_rn` is for float32 alone, `tl.sqrt` rounds so for float64."""
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:  # noqa: RET505  # Triton compiles what follows a return
        return tl.sqrt_rn(x)


@triton.jit
def floordiv(a, b):
    """Division rounded to minus infinity."""
    if a.dtype.is_floating():
        rest = libdevice.fmod(a, b)
        quotient = (a - rest) / b
        quotient = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
        whole = tl.floor(quotient)
        whole = tl.where(quotient - whole > 0.5, whole + 1, whole)
        return tl.where(b == 0, a / b, tl.where(quotient == 0, (a / b) * 0, whole))
    else:  # noqa: RET505  # Triton compiles what follows a return
        quotient = a // b
        return tl.where((a % b != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)


@triton.jit
def mod(a, b):
    """The remainder with the sign of the divisor."""
    if a.dtype.is_floating():
        rest = libdevice.fmod(a, b)
    else:
        rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@triton.jit
def shl(a, b):
    """A shift outside the width gives 0."""
    inside = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(inside, a << tl.where(inside, b, 0), 0)


@triton.jit
def shr(a, b):
    """Arithmetic; a shift outside the width gives 0 or -1."""
    inside = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return a >> tl.where(inside, b, a.dtype.primitive_bitwidth - 1)


@triton.jit
def philox(seed, number):
    """Words of a stream of random bits: word n is part n % 4 of block n // 4 of Philox4x32-10."""
    block = number >> 2
    zero = (number & 0).to(tl.uint32)
    a, b, c, d = tl.philox(seed, block.to(tl.uint32), (block >> 32).to(tl.uint32), zero, zero)
    low = tl.where((number & 1) != 0, b, a)
    high = tl.where((number & 1) != 0, d, c)
    return tl.where((number & 2) != 0, high, low).to(tl.int32, bitcast=True)


@triton.jit
def int_pow(a, b):
    """An integer power by squaring; a negative exponent gives 0 but for a base of 1 or -1."""
    result = a * 0 + 1
    base = a
    left = tl.where(b < 0, -b, b)
    for _ in range(6):
        result = tl.where((left & 1) != 0, result * base, result)
        base = base * base
        left = left >> 1
    return tl.where((b < 0) & (a != 1) & (a != -1), 0, result)


__all__ = [
    "add_",
    "and_",
    "argmax_pair",
    "argmin_pair",
    "floordiv",
    "int_pow",
    "max_",
    "max_expsum_add",
    "max_expsum_end",
    "max_expsum_join",
    "maximum",
    "min_",
    "minimum",
    "mod",
    "moments_add",
    "moments_end",
    "moments_join",
    "mul_",
    "one_plus_erf",
    "one_plus_tanh",
    "or_",
    "philox",
    "shl",
    "shr",
    "sign",
    "sqrt",
]
