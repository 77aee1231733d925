"""Random numbers computed in kernels: word n of a stream of random bits (the scalar row `philox`) for element n.

A program draws one seed from torch's generator at each call; the streams of its operators are those of this seed and the numbers that follow it.
Values are other ones than eager's, of the same distributions.
"""

from __future__ import annotations

import math

from xdsl.ir import SSAValue

from ....ir.dtypes import BOOL, F32, F64, I64, DType
from ....ir.symbols import product
from .builder import RANDOM, Builder, NotCovered, Result, real, rule

_BITS = 24  # of a float32 in [0, 1): all are multiples of 2**-24
_LARGEST = {"bf16": 1 - 2.0**-8, "f16": 1 - 2.0**-11}  # below 1


class _Words:
    """The random bits of one operator: `count` words for each element."""

    def __init__(self, b: Builder, count: int) -> None:
        if b.get("generator") is not None:
            raise NotCovered("a generator of its own")
        assert b.stream is not None
        self.b, self.count, self.taken = b, count, 0
        self.seed = b.to_shape(b.stream(b), b.type.shape)

    def take(self) -> SSAValue:
        """The next word of each element (i32)."""
        b = self.b
        numbers = b.iota(product(b.type.shape), I64, self.taken, self.count)
        self.taken += 1
        return b.ew("philox", self.seed, b.reshape(numbers, b.type.shape))

    def positive(self) -> SSAValue:
        """31 bits (i32, not negative)."""
        return self.b.ew("and", self.take(), 0x7FFFFFFF)

    def uniform(self, dtype: DType) -> SSAValue:
        """In [0, 1), in the dtype for arithmetic."""
        b = self.b
        if dtype != F64:
            low = b.ew("and", self.take(), (1 << _BITS) - 1)
            return b.ew("mul", b.cast(low, F32), 2.0**-_BITS)
        high = b.ew("shl", b.cast(b.ew("and", self.take(), (1 << 26) - 1), I64), 27)
        low = b.cast(b.ew("and", self.take(), (1 << 27) - 1), I64)
        return b.ew("mul", b.cast(b.ew("or", high, low), F64), 2.0**-53)

    def above_zero(self, dtype: DType) -> SSAValue:
        """In (0, 1], for logarithms: also far below 2**-24."""
        b = self.b
        if dtype == F64:
            return b.ew("sub", b.full(1.0, None, F64), self.uniform(F64))
        return b.ew("mul", b.ew("add", b.cast(self.positive(), F32), 1.0), 2.0**-31)

    def normal(self, dtype: DType) -> SSAValue:
        """Mean 0, deviation 1, by Box and Muller's transform: of each pair of elements one takes the cosine and one the sine."""
        b = self.b
        if dtype == F64:
            radius = b.ew("sqrt", b.ew("mul", b.ew("log", self.above_zero(F64)), -2.0))
            return b.ew("mul", radius, b.ew("cos", b.ew("mul", self.uniform(F64), 2 * math.pi)))
        element = b.reshape(b.iota(product(b.type.shape)), b.type.shape)
        even, first = b.ew("eq", b.ew("and", element, 1), 0), b.ew("and", element, -2)
        high, low = b.ew("philox", self.seed, first), b.ew("philox", self.seed, b.ew("or", first, 1))
        u = b.ew("mul", b.ew("add", b.cast(b.ew("and", high, 0x7FFFFFFF), F32), 1.0), 2.0**-31)  # in (0, 1]
        square = b.ew("max", b.ew("mul", b.ew("log", u), -2.0), 1e-20)
        radius = b.ew("mul", square, b.ew("rsqrt", square))
        turn = b.ew("mul", b.cast(low, F32), 2.0**-32)  # from -1/2 to 1/2
        cosine = b.ew("sub", b.full(0.25, None, F32), b.ew("abs", turn))
        sine = b.ew("sub", b.full(0.25, None, F32), b.ew("abs", b.ew("sub", b.ew("abs", turn), 0.25)))
        return b.ew("mul", radius, self._sine(b.ew("where", even, cosine, b.ew("copysign", sine, turn))))

    def _sine(self, turn: SSAValue) -> SSAValue:
        """sin(2 pi x) for -1/4 <= x <= 1/4, to 6e-8: five terms and one more of its series."""
        b = self.b
        square = b.ew("mul", turn, turn)
        terms = [(-1) ** (k // 2) * (2 * math.pi) ** k / math.factorial(k) for k in range(1, 12, 2)]
        found = b.full(terms[-1], None, F32)
        for term in reversed(terms[:-1]):
            found = b.ew("add", b.ew("mul", found, square), term)
        return b.ew("mul", found, turn)

    def below(self, p: float) -> SSAValue:
        """True with the probability p, which a multiple of 2**-32 stands for."""
        b = self.b
        threshold = round(p * 2**32)
        if not 0 < threshold < 2**32:
            return b.full(threshold > 0, None, BOOL)
        return b.ew("lt", self.take(), threshold - 2**31)


def _of(b: Builder) -> DType:
    """The dtype for arithmetic of a result of floats."""
    real(b.type.dtype)
    if not b.type.dtype.is_float:
        raise NotCovered("a distribution of floats as integers")
    return b.type.dtype.compute


def _number(value: object) -> float:
    if isinstance(value, SSAValue) or not isinstance(value, int | float):
        raise NotCovered("a parameter that is no number")
    return float(value)


def _doubled(dtype: DType, words: int) -> int:
    return 2 * words if dtype == F64 else words


@rule("rand.default", "rand_like.default", table=RANDOM)
def _rand(b: Builder) -> Result:
    dtype = _of(b)
    found = _Words(b, _doubled(dtype, 1)).uniform(dtype)
    largest = _LARGEST.get(b.type.dtype.name)
    return b.finish(b.ew("min", found, largest) if largest else found)


@rule("uniform.default", table=RANDOM)
def _uniform(b: Builder) -> Result:
    dtype = _of(b)
    low, high = _number(b.get("from", 0.0)), _number(b.get("to", 1.0))
    found = b.ew("add", b.ew("mul", _Words(b, _doubled(dtype, 1)).uniform(dtype), high - low), low)
    rounded = b.cast(found, b.type.dtype)  # may be `to` itself, which is none of the numbers
    return b.ew("where", b.ew("ge", rounded, high), b.full(low), rounded) if high > low else rounded


@rule("randn.default", "randn_like.default", table=RANDOM)
def _randn(b: Builder) -> Result:
    dtype = _of(b)
    return b.finish(_Words(b, _doubled(dtype, 2)).normal(dtype))


@rule(
    "normal_functional.default",
    "normal.Tensor_float",
    "normal.float_Tensor",
    "normal.Tensor_Tensor",
    "normal.float_float",
    "log_normal.default",
    table=RANDOM,
)
def _normal(b: Builder) -> Result:
    dtype = _of(b)
    z = _Words(b, _doubled(dtype, 2)).normal(dtype)
    mean, std = (b.either(name) for name in ("mean", "std"))
    std, mean = (b.cast(v, dtype) if isinstance(v, SSAValue) else _number(v) for v in (std, mean))
    z = b.ew("add", b.ew("mul", z, std), mean)
    return b.finish(b.ew("exp", z) if "log_normal" in b.op.target else z)


@rule("exponential.default", table=RANDOM)
def _exponential(b: Builder) -> Result:
    """-log(u) / lambd, never 0: programs divide by it."""
    dtype = _of(b)
    drawn = b.ew("neg", b.ew("log", _Words(b, _doubled(dtype, 1)).above_zero(dtype)))
    least = 2.0**-24 if dtype == F32 else 2.0**-53
    return b.finish(b.ew("div", b.ew("max", drawn, least), _number(b.get("lambd", 1.0))))


@rule("geometric.default", table=RANDOM)
def _geometric(b: Builder) -> Result:
    """ceil(log(u) / log(1 - p)): how many trials the first success takes."""
    real(b.type.dtype)
    dtype = b.type.dtype.compute if b.type.dtype.is_float else F32
    p = _number(b.get("p"))
    if not 0 < p < 1:
        raise NotCovered("a probability that is none")
    u = _Words(b, _doubled(dtype, 1)).above_zero(dtype)
    return b.finish(b.ew("max", b.ew("ceil", b.ew("div", b.ew("log", u), math.log1p(-p))), 1.0))


@rule("cauchy.default", table=RANDOM)
def _cauchy(b: Builder) -> Result:
    dtype = _of(b)
    angle = b.ew("mul", b.ew("sub", _Words(b, _doubled(dtype, 1)).uniform(dtype), 0.5), math.pi)
    sigma, median = _number(b.get("sigma", 1.0)), _number(b.get("median", 0.0))
    return b.finish(b.ew("add", b.ew("mul", b.ew("tan", angle), sigma), median))


@rule("bernoulli.p", table=RANDOM)
def _bernoulli(b: Builder) -> Result:
    real(b.type.dtype)
    return b.finish(_Words(b, 1).below(_number(b.get("p", 0.5))))


@rule("bernoulli.default", "bernoulli.Tensor", table=RANDOM)
def _bernoulli_of(b: Builder) -> Result:
    real(b.type.dtype)
    p = b.tensor("p" if b.has("p") else "self")
    wide = F64 if b.dtype_of(p) == F64 else F32
    return b.finish(b.ew("lt", _Words(b, _doubled(wide, 1)).uniform(wide), b.cast(p, wide)))


@rule("native_dropout.default", table=RANDOM)
def _dropout(b: Builder) -> Result:
    x, p = b.tensor("input"), _number(b.get("p"))
    real(b.type.dtype)
    if b.get("train") is False:
        return [x, b.full(True, None, BOOL)]
    kept = _Words(b, 1).below(1 - p)
    wide = b.type.dtype.compute
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return [b.finish(b.ew("mul", b.ew("mul", b.cast(x, wide), b.cast(kept, wide)), scale)), kept]


@rule("rrelu_with_noise_functional.default", table=RANDOM)
def _rrelu(b: Builder) -> Result:
    """x where it is positive, else x times a number between `lower` and `upper`; the factors are the second result."""
    if b.get("training") is not True:
        raise NotCovered("a mean slope")
    dtype, x = _of(b), b.tensor("self")
    lower, upper = _number(b.get("lower", 0.125)), _number(b.get("upper", 1 / 3))
    slope = b.ew("add", b.ew("mul", _Words(b, _doubled(dtype, 1)).uniform(dtype), upper - lower), lower)
    wide = b.cast(x, dtype)
    factor = b.ew("where", b.ew("le", wide, 0.0), slope, b.full(1.0, None, dtype))
    return [b.finish(b.ew("mul", wide, factor)), b.finish(factor, 1)]


@rule("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype", "random.from", table=RANDOM)
def _randint(b: Builder) -> Result:
    """low + (bits * range) >> 32; from 2**31 on, the remainder of 63 bits."""
    real(b.type.dtype)
    low, high = ("from", "to") if b.op.target == "aten.random.from" else ("low", "high")
    first, last = b.get(low, 0), b.get(high)
    if not isinstance(first, int) or not isinstance(last, int) or not 0 < last - first < 2**62:
        raise NotCovered("limits that are no numbers, or further apart than 2**62")
    span = last - first
    if span < 2**31:
        words = _Words(b, 1)
        bits = b.ew("and", b.cast(words.take(), I64), 0xFFFFFFFF)
        drawn = b.ew("shr", b.ew("mul", bits, span), 32)
    else:
        words = _Words(b, 2)
        high_bits = b.ew("shl", b.cast(words.positive(), I64), 32)
        drawn = b.ew("mod", b.ew("or", high_bits, b.ew("and", b.cast(words.take(), I64), 0xFFFFFFFF)), span)
    return b.finish(b.ew("add", drawn, first))
