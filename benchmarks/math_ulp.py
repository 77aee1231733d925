"""Largest errors of targets/cpp/intarsia_math.h in ulp, against float64 (for float32) and mpmath (for float64).

`python benchmarks/math_ulp.py [names]` visits every float32 for functions of one argument (half an hour); `--step 4099` takes seconds.
The tests use the same code on small samples.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import mpmath
import numpy as np
import torch

from intarsia.targets.build import Source, compile_sources, find_toolchain
from intarsia.targets.load import Library

Tensors = Callable[..., torch.Tensor]
UNARY: dict[str, Tensors] = {
    **{
        name: getattr(torch, name)
        for name in [
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sigmoid",
            "rsqrt",
            "sqrt",
            "tanh",
            "sinh",
            "cosh",
            "asinh",
            "acosh",
            "atanh",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "erf",
            "erfc",
            "lgamma",
            "floor",
            "ceil",
            "trunc",
            "round",
            "abs",
            "sign",
            "relu",
        ]
    },
    "sin_small": torch.sin,
    "cos_small": torch.cos,
}
BINARY: dict[str, Tensors] = {
    "pow": torch.pow,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "fmod": torch.fmod,
    "mod": torch.remainder,
    "floordiv": torch.floor_divide,
    "max": torch.maximum,
    "min": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "copysign": torch.copysign,
}
LIMITED = {"sin_small": 65536.0, "cos_small": 65536.0}  # arguments that are promised to work
DTYPES = {"float": torch.float32, "double": torch.float64}


def loops(names: Sequence[str], types: Sequence[str], arity: int) -> str:
    """C++ functions `name_type(inputs..., out, n)`, one loop each."""
    text = '#include "intarsia_math.h"\n'
    for name in names:
        for ctype in types:
            inputs = "ab"[:arity]
            parameters = ", ".join(f"const {ctype}* __restrict__ {x}" for x in inputs)
            arguments = ", ".join(f"{x}[i]" for x in inputs)
            text += f'extern "C" void {name}_{ctype}({parameters}, {ctype}* __restrict__ out, int64_t n) {{\n#pragma omp simd\n'
            text += f"  for (int64_t i = 0; i < n; i++) out[i] = im::{name}({arguments});\n}}\n"
    return text


class MathLibrary:
    """The header's functions as functions of tensors. `flags` are added to the compiler's."""

    def __init__(
        self, folder: Path, names: Sequence[str], types: Sequence[str], arity: int, flags: tuple[str, ...] = ()
    ) -> None:
        toolchain = find_toolchain()
        toolchain = dataclasses.replace(toolchain, flags=(*toolchain.flags, *flags))
        [path] = compile_sources([Source("math", loops(names, types, arity))], toolchain, folder)
        self._library, self._arity = Library(path), arity

    def __call__(self, name: str, *inputs: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(inputs[0])
        ctype = next(c for c, dtype in DTYPES.items() if dtype == out.dtype)
        function = self._library.function(f"{name}_{ctype}", self._arity + 2)
        function(*(x.data_ptr() for x in inputs), out.data_ptr(), out.numel())
        return out


def ulp_errors(result: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """|result - exact| of float32 results in units of the last place of the rounded exact value (float64 in). Where one is NaN or
    infinite and the other, rounded, is not the same: infinity."""
    rounded = exact.float()
    same = (result == rounded) | (result.isnan() & rounded.isnan())
    magnitude = rounded.abs().clamp(min=torch.finfo(torch.float32).tiny)
    _, exponent = torch.frexp(magnitude)
    error = torch.ldexp((result.double() - exact).abs(), (24 - exponent).double())
    broken = ~same & ~(result.isfinite() & rounded.isfinite())
    # A result that rounded to infinity beside the largest float is one step off, not infinitely many.
    edge = (
        broken
        & ~result.isnan()
        & ~rounded.isnan()
        & (result.clamp(-3.4028234e38, 3.4028234e38) == rounded.clamp(-3.4028234e38, 3.4028234e38))
    )
    error = torch.where(same & ~rounded.isfinite(), 0.0, error)
    return torch.where(edge, 1.0, torch.where(broken, torch.inf, error))


def all_floats(step: int, chunk: int = 1 << 24) -> list[range]:
    return [range(start, min(start + chunk * step, 1 << 32), step) for start in range(0, 1 << 32, chunk * step)]


def bits_to_floats(bits: range) -> torch.Tensor:
    return torch.arange(bits.start, bits.stop, bits.step, dtype=torch.int64).to(torch.uint32).view(torch.float32)


def worst_float(library: MathLibrary, name: str, step: int) -> tuple[float, float]:
    """(largest error in ulp, the argument) over every `step`th float32."""
    worst, where = -1.0, 0.0
    for bits in all_floats(step):
        x = bits_to_floats(bits)
        if name in LIMITED:
            x = x[x.abs() <= LIMITED[name]]
        if not x.numel():
            continue
        error = ulp_errors(library(name, x), UNARY[name](x.double()))
        index = int(error.argmax())
        if float(error[index]) > worst:
            worst, where = float(error[index]), float(x[index])
    return worst, where


MPMATH = {
    "abs": mpmath.fabs,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "log2": lambda x: mpmath.log(x, 2),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "sin_small": mpmath.sin,
    "cos_small": mpmath.cos,
}


TRANSCENDENTAL = frozenset(UNARY) - {"lgamma", "floor", "ceil", "trunc", "round", "sign", "relu"}


def worst_double(library: MathLibrary, name: str, x: torch.Tensor) -> tuple[float, float]:
    """(largest error in ulp, the argument) over the finite results of float64 arguments inside the domain."""
    worst, where = -1.0, 0.0
    function = MPMATH.get(name) or getattr(mpmath, name)
    result = library(name, x)
    expected = UNARY[name](x)
    keep = expected.isfinite() & (expected.abs() > 1e-300)
    with mpmath.workdps(40):
        for a, r, e in zip(x[keep].tolist(), result[keep].tolist(), expected[keep].tolist(), strict=True):
            error = float(abs(mpmath.mpf(r) - function(mpmath.mpf(a))) / mpmath.mpf(float(np.spacing(abs(e)))))
            if not error <= worst:
                worst, where = error, a
    return worst, where


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--step", type=int, default=1, help="visit one float32 in STEP (default: all)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    unary = [name for name in UNARY if not arguments.names or name in arguments.names]
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(1500, generator=generator, dtype=torch.float64)
    doubles = torch.cat(
        [base, base * 30, base.sign() * torch.exp(base * 8), torch.rand(1500, generator=generator, dtype=torch.float64)]
    )
    with tempfile.TemporaryDirectory() as folder:
        library = MathLibrary(Path(folder), unary, list(DTYPES), 1)
        for name in unary:
            error, where = worst_float(library, name, arguments.step)
            print(f"{name:10} float {error:8.3f} at {where:<16.9g}", end="", flush=True)
            if name in TRANSCENDENTAL:
                limit = LIMITED.get(name, 1e300)
                error, where = worst_double(library, name, doubles.clamp(-limit, limit))
                print(f" double {error:8.3f} at {where:.17g}", end="")
            print()


if __name__ == "__main__":
    main()
