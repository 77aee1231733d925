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


max_, min_ = maximum, minimum


@triton.jit
def add_(a, b):
    return a + b


@triton.jit
def mul_(a, b):
    return a * b


@triton.jit
def or_(a, b):
    return a | b


@triton.jit
def and_(a, b):
    return a & b


@triton.jit
def argmax_next(a, i, b, j):
    """The larger value with its position, where b comes after a; nan is larger than all, the first of equal ones wins."""
    later = (b > a) | ((b != b) & (a == a))
    return tl.where(later, b, a), tl.where(later, j, i)


@triton.jit
def argmin_next(a, i, b, j):
    """The smaller value with its position, where b comes after a; nan is smaller than all, the first of equal ones wins."""
    later = (b < a) | ((b != b) & (a == a))
    return tl.where(later, b, a), tl.where(later, j, i)


@triton.jit
def argmax_end(values, positions, axis: tl.constexpr):
    """The largest value along an axis, and the first of its positions."""
    best = tl.reduce(values, axis, max_, keep_dims=True)
    return best, first_of(values, best, positions, axis)


@triton.jit
def argmin_end(values, positions, axis: tl.constexpr):
    """The smallest value along an axis, and the first of its positions."""
    best = tl.reduce(values, axis, min_, keep_dims=True)
    return best, first_of(values, best, positions, axis)


@triton.jit
def first_of(values, best, positions, axis: tl.constexpr):
    """The least position of a value that is the best one; where that is nan, of a nan."""
    found = (values == best) | (values != values)
    return tl.reduce(tl.where(found, positions, 2147483647), axis, min_, keep_dims=True)


@triton.jit
def one_plus_erf(x):
    """1 + erf(x) of float32 as 2^P(|x|), which is erfc(|x|), or 2 less it: off by 1.3e-7 at most, where 1 + erf rounded to float32 is by
    0.9e-7; by 0.7e-8 in the mean, 1 + erf by 0.9e-8."""
    t = tl.abs(x)
    power = t * -4.535859989118762e-05 + 0.0004455075250007212
    power = power * t - 0.0014894409105181694
    power = power * t - 0.0007746313931420445
    power = power * t + 0.02825368382036686
    power = power * t - 0.14848162233829498
    power = power * t - 0.9184163808822632
    power = (power * t - 1.6279085874557495) * t
    above = libdevice.exp2(power)
    return tl.where(x >= 0, 2.0 - above, above)


@triton.jit
def one_plus_tanh(x):
    """1 + tanh(x) of float32."""
    return 2.0 * sigmoid(2.0 * x)


@triton.jit
def tanh(x):
    """tanh(x); of float32 without branches, off by 5 units in the last place at most: the library's takes one of two ways for each
    element, so that all that is needed behind it has to wait in registers. Near 0 a polynomial, fitted to x = 0.6."""
    if x.dtype == tl.float32:
        u = x * x
        near = u * -0.006276393783152406 + 0.021116228260917382
        near = near * u - 0.05387514456287622
        near = near * u + 0.13332924095227439
        near = near * u - 0.33333330434418634
        return tl.where(tl.abs(x) < 0.6, x + x * (u * near), one_plus_tanh(x) - 1.0)
    else:  # noqa: RET505  # Triton compiles what follows a return
        return libdevice.tanh(x)


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)); of float32 in five instructions, where `tl.sigmoid` takes care of quotients that this one cannot have."""
    if x.dtype == tl.float32:
        return libdevice.fast_dividef(1.0, 1.0 + libdevice.exp2(x * -1.4426950408889634))
    else:  # noqa: RET505  # Triton compiles what follows a return
        return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def exp_of_sum(x):
    """exp for what is added to 1 or more: a subnormal result is 0."""
    if x.dtype == tl.float32:
        return libdevice.exp2(x * 1.4426950408889634)
    else:  # noqa: RET505  # Triton compiles what follows a return
        return tl.exp(x)


@triton.jit
def max_expsum_add(most, total, x):
    """Join the elements of x along its last axis to the largest value and the sum of exponentials below it."""
    new = maximum(most, tl.reduce(x, len(x.shape) - 1, max_))
    shift = tl.where(new == float("-inf"), 0.0, new)
    below = exp_of_sum(x - tl.expand_dims(shift, len(x.shape) - 1))
    return new, total * exp_of_sum(most - shift) + tl.reduce(below, len(x.shape) - 1, add_)


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
def max_expsum_whole(x, axis: tl.constexpr):
    """The largest value along an axis, and the sum of exponentials below it."""
    most = tl.reduce(x, axis, max_, keep_dims=True)
    return most, tl.reduce(exp_of_sum(x - tl.where(most == float("-inf"), 0.0, most)), axis, add_, keep_dims=True)


@triton.jit
def max_expsum_all(most, total, axis: tl.constexpr):
    """All of them along an axis as one."""
    top = tl.reduce(most, axis, max_, keep_dims=True)
    shift = tl.where(top == float("-inf"), 0.0, top)
    return top, tl.reduce(total * tl.exp(most - shift), axis, add_, keep_dims=True)


@triton.jit
def moments_whole(x, inside, axis: tl.constexpr):
    """Count, sum and squares around the mean of the elements along an axis that are `inside`."""
    count = tl.reduce(tl.zeros_like(x) + tl.where(inside, 1.0, 0.0), axis, add_, keep_dims=True)
    total = tl.reduce(tl.where(inside, x, 0.0), axis, add_, keep_dims=True)
    apart = tl.where(inside, x - total / tl.maximum(count, 1.0), 0.0)
    return count, total, tl.reduce(apart * apart, axis, add_, keep_dims=True)


@triton.jit
def moments_all(count, total, squares, axis: tl.constexpr):
    """All of them along an axis as one."""
    number = tl.reduce(count, axis, add_, keep_dims=True)
    whole = tl.reduce(total, axis, add_, keep_dims=True)
    apart = total / tl.maximum(count, 1.0) - whole / tl.maximum(number, 1.0)
    return number, whole, tl.reduce(squares + apart * apart * count, axis, add_, keep_dims=True)


@triton.jit
def meet(counter, count):
    """Wait until `count` programs have come here; what each of them has stored before, all can read."""
    tl.debug_barrier()  # all threads of this program have stored
    seen = tl.atomic_add(counter, 1, sem="acq_rel") + 1
    while seen < count:
        seen = tl.atomic_add(counter, 0, sem="acquire")
    tl.debug_barrier()


@triton.jit
def moments_add(count, mean, squares, x):
    """Join the elements of x along its last axis to count (a number), mean, and squares around it."""
    number: tl.constexpr = x.shape[len(x.shape) - 1]
    middle = tl.reduce(x, len(x.shape) - 1, add_) * (1.0 / number)
    apart = x - tl.expand_dims(middle, len(x.shape) - 1)
    added = tl.reduce(apart * apart, len(x.shape) - 1, add_)
    share = number / (count + number)
    apart_means = middle - mean
    return count + number, mean + apart_means * share, squares + added + apart_means * apart_means * (count * share)


@triton.jit
def moments_add_inside(count, mean, squares, x, inside):
    """The same for the elements of x that are `inside`; the count is that of each place."""
    number = tl.reduce(inside.to(x.dtype), len(x.shape) - 1, add_)
    middle = tl.reduce(tl.where(inside, x, 0.0), len(x.shape) - 1, add_) / tl.maximum(number, 1.0)
    apart = tl.where(inside, x - tl.expand_dims(middle, len(x.shape) - 1), 0.0)
    added = tl.reduce(apart * apart, len(x.shape) - 1, add_)
    return moments_join(count + tl.zeros_like(mean), mean, squares, number, middle, added)


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
def quotient(x, y):
    """x / y of float32, rounded to nearest, where y has few elements for many of x: a product and two fused products and sums.

    The reciprocal is rounded to nearest, so that one correction by what is left over gives the nearest quotient (Markstein: Computation of
    elementary functions on the IBM RISC System/6000 processor, 1990; of all quotients that are almost between two numbers, none is wrong).
    Where nothing is left over that says something (x is zero, infinite, nan) the product is right. Both are scaled where the divisor is far
    from 1; a quotient below 2^-40 may be off by its last place.
    """
    factor = tl.where(tl.abs(y) < 8.673617379884035e-19, 1.152921504606847e18, 1.0)  # 2^-60 and 2^60
    factor = tl.where(tl.abs(y) > 1.152921504606847e18, 8.673617379884035e-19, factor)
    inverse = tl.div_rn(1.0, y * factor)
    if y.numel == 1:
        usual = tl.where(y > 0, factor, 0.0)
        if (usual if len(y.shape) == 0 else tl.max(tl.reshape(usual, [1]), 0)) == 1.0:
            found = quotient_by_usual(x, y, inverse)
        else:
            found = quotient_by_any(x * factor, y * factor, inverse)
    else:
        found = quotient_by_any(x * factor, y * factor, inverse)
    return found


@triton.jit
def quotient_by_usual(x, y, inverse):
    """The same for a positive divisor of a usual size. A number stands for what is left over of infinity; as it is negative, zeros keep their signs."""
    near = x * inverse
    over = tl.minimum(tl.fma(near, y, x * -1.0), 3.4028234663852886e38)
    return tl.fma(tl.maximum(over, -3.4028234663852886e38), inverse * -1.0, near)


@triton.jit
def quotient_by_any(x, y, inverse):
    """The same for any divisor that was scaled."""
    near = x * inverse
    rest = tl.fma(near, y * -1.0, x)
    return tl.where(tl.abs(rest) < tl.abs(x), tl.fma(rest, inverse, near), near)


@triton.jit
def sign(x):
    """-1, 0 or 1; nan gives 0, as in torch."""
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


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
def to_f8e4m3(x, overflow):
    """The bits of a float32 as float8_e4m3fn: rounded to nearest even, `overflow` beyond 464."""
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = (size + 0x7FFFF + ((size >> 20) & 1) - 0x3C000000) >> 20
    small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    out = tl.where(size < 0x3C800000, small, normal)
    out = tl.where(size > 0x43E80000, overflow, out)
    out = tl.where(size > 0x7F800000, 0x7F, out)
    return (((bits >> 24) & 0x80) | out).to(tl.uint8)


@triton.jit
def from_f8e4m3(x):
    """The number whose float8_e4m3fn has these bits."""
    bits = x.to(tl.uint32)
    size = bits & 0x7F
    scaled = ((size + 0x3C0) << 20).to(tl.float32, bitcast=True)
    number = tl.where(size < 8, size.to(tl.float32) * 0.001953125, scaled)
    number = tl.where(size == 0x7F, float("nan"), number)
    return tl.where(bits > 0x7F, -number, number)


@triton.jit
def to_f8e5m2(x):
    """The bits of a float32 as float8_e5m2: rounded to nearest even, infinite from 61440 on."""
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = (size + 0xFFFFF + ((size >> 21) & 1) - 0x38000000) >> 21
    small = (size.to(tl.float32, bitcast=True) + 128.0).to(tl.uint32, bitcast=True) - 0x43000000
    out = tl.where(size < 0x38800000, small, normal)
    out = tl.where(size >= 0x47700000, 0x7C, out)
    out = tl.where(size > 0x7F800000, 0x7F, out)
    return (((bits >> 24) & 0x80) | out).to(tl.uint8)


@triton.jit
def from_f8e5m2(x):
    """The number whose float8_e5m2 has these bits: they are the upper half of a float16."""
    return (x.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


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
