"""Minimax polynomials for targets/cpp/include/intarsia_math.h: prints the coefficient lists that the header holds.

Method: Lawson's iteration in 60-digit arithmetic; coefficients are rounded to the target precision one at a time, lowest power first,
and the remaining ones are fitted again, so that rounding errors of the first ones are absorbed by the later ones.
Run it with the names of the wanted polynomials, or with none for all of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import mpmath as mp

mp.mp.dps = 60
Function = Callable[[mp.mpf], mp.mpf]


def round_to(x: mp.mpf, bits: int) -> mp.mpf:
    """x rounded to `bits` significant binary digits (24: float, 53: double)."""
    if x == 0:
        return mp.mpf(0)
    _, exponent = mp.frexp(x)
    return mp.ldexp(mp.nint(mp.ldexp(x, bits - int(exponent))), int(exponent) - bits)


def near_minimax(f: Function, powers: list[int], lo: mp.mpf, hi: mp.mpf, weight: Function) -> list[mp.mpf]:
    """Coefficients c with max |weight * (f - sum c_k x^p_k)| nearly minimal on [lo, hi]: least squares on Chebyshev nodes,
    repeated with each node's weight multiplied by its error (Lawson)."""
    n, count = len(powers), 6 * len(powers) + 10
    nodes = [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)]
    rows = [[weight(x) * x**p for p in powers] for x in nodes]
    values = [weight(x) * f(x) for x in nodes]
    importance = [mp.mpf(1)] * count
    best: tuple[mp.mpf, list[mp.mpf]] = (mp.inf, [])
    for _ in range(12):
        normal = [
            [mp.fsum(k * r[i] * r[j] for k, r in zip(importance, rows, strict=True)) for j in range(n)]
            for i in range(n)
        ]
        right = [mp.fsum(k * r[i] * y for k, r, y in zip(importance, rows, values, strict=True)) for i in range(n)]
        solution = list(mp.lu_solve(mp.matrix(normal), mp.matrix(right)))
        errors = [
            abs(y - mp.fsum(c * q for c, q in zip(solution, r, strict=True))) for r, y in zip(rows, values, strict=True)
        ]
        best = min(best, (max(errors), solution), key=lambda pair: pair[0])
        scale = mp.fsum(k * e for k, e in zip(importance, errors, strict=True)) / mp.fsum(importance)
        importance = [k * e / scale + mp.mpf("1e-6") for k, e in zip(importance, errors, strict=True)]
    return best[1]


def fit(
    f: Function, powers: list[int], lo: float, hi: float, weight: Function, bits: int
) -> tuple[list[mp.mpf], mp.mpf]:
    """As `remez`, with coefficients that are exact in `bits` binary digits."""
    fixed: list[tuple[int, mp.mpf]] = []
    rest = list(powers)
    low, high = mp.mpf(lo), mp.mpf(hi)
    worst = mp.mpf(0)
    while rest:

        def residual(x: mp.mpf) -> mp.mpf:
            return f(x) - mp.fsum(c * x**p for p, c in fixed)

        coefficients = near_minimax(residual, rest, low, high, weight)
        fixed.append((rest.pop(0), round_to(coefficients[0], bits)))
    for i in range(201):
        x = low + (high - low) * (i + mp.mpf("0.5")) / 201
        worst = max(worst, abs(weight(x) * (f(x) - mp.fsum(c * x**p for p, c in fixed))))
    return [c for _, c in fixed], worst


def _log_tail(f: mp.mpf) -> mp.mpf:
    return (mp.log1p(f) - f + f * f / 2) / f**3


def _erfcx(t: mp.mpf) -> mp.mpf:
    return (1 + 2 * t) * mp.exp(t * t) * mp.erfc(t)


def _odd_tail(g: Function) -> Function:
    """(g(x) - x) / x^3 as a function of z = x^2."""
    return lambda z: (g(mp.sqrt(z)) - mp.sqrt(z)) / mp.sqrt(z) ** 3


def _odd_weight(g: Function) -> Function:
    return lambda z: abs(mp.sqrt(z) ** 3 / g(mp.sqrt(z)))


def _odd(g: Function, terms: int, hi: float) -> tuple[Function, list[int], float, float, Function]:
    return _odd_tail(g), list(range(terms)), hi * hi * 1e-6, hi * hi, _odd_weight(g)


LN2H = 0.3466
PI4 = 0.7854
# name -> (function, powers, lo, hi, weight): what the header calls P in `r + r^2 P(r)` and so on.
TABLE: dict[str, tuple[Function, list[int], float, float, Function]] = {
    "exp_f": (
        lambda r: (mp.expm1(r) - r) / r**2,
        list(range(5)),
        -LN2H,
        LN2H * 1.0003,
        lambda r: abs(r**2 / mp.expm1(r)),
    ),
    "log_f": (_log_tail, list(range(8)), -0.3334, 0.3335, lambda f: abs(f**3 / mp.log1p(f))),
    "sin_f": _odd(mp.sin, 3, PI4),
    "cos_f": (lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, list(range(3)), 1e-6, PI4**2, lambda z: z**2),
    "tan_f": _odd(mp.tan, 6, PI4),
    "asin_f": _odd(mp.asin, 5, 0.5),
    "atan_f": _odd(mp.atan, 8, 1.0),
    "sinh_f": _odd(mp.sinh, 4, 1.0),
    "erf_small_f": (
        lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
        list(range(5)),
        1e-8,
        0.605**2,
        lambda z: abs(mp.sqrt(z) / mp.erf(mp.sqrt(z))),
    ),
    # erf(t) = 1 - 2^P(t); the power needs only float's absolute precision
    "erf_large_f": (
        lambda t: mp.log(mp.erfc(t), 2),
        list(range(7)),
        0.6,
        3.95,
        lambda t: mp.erfc(t) * mp.log(2) / mp.erf(t),
    ),
    "erf_power_f": (lambda r: mp.mpf(2) ** r - 1, list(range(1, 6)), -0.5, 0.5001, lambda r: mp.mpf(2) ** -r),
    "erf_small_d": (
        lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1,
        list(range(11)),
        1e-10,
        0.905**2,
        lambda z: abs(mp.sqrt(z) / mp.erf(mp.sqrt(z))),
    ),
    # erf(t) = 1 - e^P(t)
    "erf_large_d": (lambda t: mp.log(mp.erfc(t)), list(range(19)), 0.9, 5.95, lambda t: mp.erfc(t) / mp.erf(t)),
    "exp_d": (
        lambda r: (mp.expm1(r) - r) / r**2,
        list(range(10)),
        -LN2H,
        LN2H * 1.0003,
        lambda r: abs(r**2 / mp.expm1(r)),
    ),
    "sin_d": _odd(mp.sin, 6, PI4),
    "cos_d": (lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, list(range(6)), 1e-6, PI4**2, lambda z: z**2),
    # log((1+s)/(1-s)) = 2s + s^3 L(s^2) with s = f/(2+f)
    "log_d": (
        lambda z: (2 * mp.atanh(mp.sqrt(z)) - 2 * mp.sqrt(z)) / mp.sqrt(z) ** 3,
        list(range(7)),
        1e-7,
        0.0296,
        lambda z: abs(mp.sqrt(z) ** 3 / (2 * mp.atanh(mp.sqrt(z)))),
    ),
    # (1 + 2t) exp(t^2) erfc(t) as a function of q = (t - 2) / (t + 2)
    "erfc_f": (
        lambda q: _erfcx(2 * (1 + q) / (1 - q)),
        list(range(12)),
        -1.0,
        0.675,
        lambda q: 1 / _erfcx(2 * (1 + q) / (1 - q)),
    ),
    # pow: log2(m) = s L(s^2), 2^r, both in double but only as good as a float result needs
    "powlog_d": (
        lambda z: 2 * mp.atanh(mp.sqrt(z)) / mp.sqrt(z) / mp.log(2),
        list(range(6)),
        1e-9,
        0.0296,
        lambda z: mp.sqrt(z) / (2 * mp.atanh(mp.sqrt(z)) / mp.log(2)),
    ),
    "powexp_d": (lambda r: mp.mpf(2) ** r, list(range(7)), -0.5, 0.5001, lambda r: mp.mpf(2) ** -r),
}


def main(names: list[str]) -> None:
    for name in names or list(TABLE):
        f, powers, lo, hi, weight = TABLE[name]
        double = name.endswith("_d")
        coefficients, worst = fit(f, powers, lo, hi, weight, 53 if double else 24)
        print(f"{name}: error {mp.nstr(worst, 3)} = 2^{mp.nstr(mp.log(worst, 2), 4)}")
        print("  " + ", ".join(mp.nstr(c, 17 if double else 9) + ("" if double else "f") for c in coefficients))


if __name__ == "__main__":
    main(sys.argv[1:])
