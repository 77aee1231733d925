"""Largest errors of targets/cpp/include/intarsia_math.h in ulp, against float64 (for float32) and mpmath (for float64), for each kind of vectors.

`python benchmarks/math_ulp.py` visits one float32 in 61 and takes minutes; `--step 1 exp log` visits every float32, a minute or two a function.
What is found goes to benchmarks/results/math-ulp.json, where an entry is replaced by one that visited more, and from there to docs/math.md.
The tests use the same code on small samples.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import torch

from intarsia.targets.build.load import Library
from intarsia.targets.build.toolchain import Source, compile_sources, find_toolchain

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
ISAS = {
    "avx512": ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    "avx2": ("-march=x86-64-v3", "-mprefer-vector-width=256"),
    "plain": ("-march=x86-64",),
}
RESULTS = Path(__file__).resolve().parent / "results" / "math-ulp.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "math.md"


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


def all_floats(step: int, chunk: int = 1 << 20) -> list[range]:
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


PAIRS = ("pow", "atan2", "hypot")  # functions of two arguments that round more than once


def worst_pair(library: MathLibrary, name: str, count: int) -> tuple[float, list[float]]:
    """(largest error in ulp, the arguments) over random float32 pairs of all sizes that matter."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(count, generator=generator).exp2() * torch.randn(count, generator=generator).mul(3).exp()
    b = torch.randn(count, generator=generator) * 10
    if name != "pow":
        a = a * torch.randn(count, generator=generator).sign()
    error = ulp_errors(library(name, a, b), BINARY[name](a.double(), b.double()))
    index = int(error.argmax())
    return float(error[index]), [float(a[index]), float(b[index])]


def doubles() -> torch.Tensor:
    """The float64 arguments that are tried."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(1500, generator=generator, dtype=torch.float64)
    wide = [base, base * 30, base.sign() * torch.exp(base * 8)]
    return torch.cat([*wide, torch.rand(1500, generator=generator, dtype=torch.float64)])


def measure(name: str, folder: Path, isa: str, step: int) -> dict[str, Any]:
    """What docs/math.md says of a function for one kind of vectors."""
    pair = name in PAIRS
    library = MathLibrary(folder / f"{name}-{isa}", [name], list(DTYPES), 2 if pair else 1, ISAS[isa])
    if pair:
        error, at = worst_pair(library, name, 4_000_000)
        return {"step": 0, "float": error, "float_at": at}
    error, where = worst_float(library, name, step)
    found = {"step": step, "float": error, "float_at": where}
    if name in TRANSCENDENTAL:
        limit = LIMITED.get(name, 1e300)
        error, where = worst_double(library, name, doubles().clamp(-limit, limit))
        found |= {"double": error, "double_at": where}
    return found


def runs_here(isa: str) -> bool:
    """Whether this machine can run code for these vectors."""
    widest = find_toolchain().isa
    return {"plain": widest != "neon", "avx2": widest in ("avx512", "avx2")}.get(isa, widest == isa)


def better(old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """The entry that visited more arguments."""
    return old if old is not None and old["step"] < new["step"] else new


def page(results: dict[str, dict[str, Any]]) -> str:
    """docs/math.md."""
    isas = [isa for isa in ISAS if any(isa in row for row in results.values())]
    lines = [
        "# Errors of the vector math",
        "",
        "Generated kernels compute with the functions of `targets/cpp/include/intarsia_math.h`: branch-free polynomials that the compiler turns into vector",
        "code of any width. The table gives the largest error that was found, in units of the last place (ulp) of the exact result: 0.5 is a",
        "correctly rounded result. It is written by `python benchmarks/math_ulp.py` from",
        "[math-ulp.json](../benchmarks/results/math-ulp.json), which also holds the argument of each worst case.",
        "",
        "* *float32* is compared with float64 over every float32 bit pattern (*all*), or over one in so many (*1 in 61*): infinities, NaN, signed zeros and",
        "  subnormal numbers are among them. Functions of two arguments: 4 million random pairs.",
        "* *float64* is compared with mpmath at 40 digits on 6,000 arguments of all magnitudes.",
        "* `avx512` and `avx2` have fused multiply-add; `plain` is any x86-64 processor, without it: a product is rounded before it is added.",
        "* `sin_small` and `cos_small` run where a loop has found that all its angles are below 65536; in float64 without fused multiply-add they are",
        "  the C library's.",
        "* `pow` is the one that is nearly correctly rounded, because a small error of a logarithm is multiplied by the exponent.",
        "* bfloat16 and float16 are computed in float32 and rounded once.",
        "",
        f"| function | domain | float32 over | {' | '.join(f'float32 {isa}' for isa in isas)} | {' | '.join(f'float64 {isa}' for isa in isas)} |",
        f"| --- | --- | --- | {'---: | ' * (2 * len(isas))}".rstrip(),
    ]
    for name, row in sorted(results.items()):
        steps = {found["step"] for found in row.values()}
        over = " / ".join({0: "4M pairs", 1: "all"}.get(s, f"1 in {s}") for s in sorted(steps))
        cells = [f"{row[isa][kind]:.2f}" if kind in row.get(isa, {}) else "" for kind in DTYPES for isa in isas]
        lines.append(f"| `{name}` | {DOMAINS.get(name, 'all')} | {over} | {' | '.join(cells)} |")
    lines += [
        "",
        "Exact, so not in the table: `abs`, `sign`, `relu`, `floor`, `ceil`, `trunc`, `round` (half to even), `min`, `max`, `copysign`, `fmod`,",
        "`remainder`, and sums, products and quotients, which are IEEE operations. `sqrt` is correctly rounded. NaN in gives NaN out; results that",
        "overflow are infinite, as in torch. `lgamma` in float64 is the C library's.",
        "",
    ]
    return "\n".join(lines)


DOMAINS = {
    "log": "x >= 0",
    "log2": "x >= 0",
    "log10": "x >= 0",
    "log1p": "x >= -1",
    "sqrt": "x >= 0",
    "rsqrt": "x >= 0",
    "acosh": "x >= 1",
    "atanh": "-1 to 1",
    "asin": "-1 to 1",
    "acos": "-1 to 1",
    "sin_small": "-65536 to 65536",
    "cos_small": "-65536 to 65536",
    "pow": "x > 0",
}
EXACT = frozenset({"floor", "ceil", "trunc", "round", "abs", "sign", "relu"})


def main() -> None:
    """Measure, keep what was found, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="functions (default: all)")
    parser.add_argument("--step", type=int, default=61, help="visit one float32 in STEP")
    parser.add_argument("--isa", default=",".join(ISAS), help="kinds of vectors, with commas")
    parser.add_argument("--page-only", action="store_true", help="write docs/math.md from what was found before")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not options.page_only:
        names = options.names or [name for name in [*UNARY, *PAIRS] if name not in EXACT]
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                for isa in filter(runs_here, options.isa.split(",")):
                    found = measure(name, Path(folder), isa, options.step)
                    print(name, isa, found, flush=True)
                    row = results.setdefault(name, {})
                    row[isa] = better(row.get(isa), found)
                    RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
