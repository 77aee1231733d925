"""Index expressions as text, for C++ and for Triton: one walk, two ways to write a division."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import sympy

from ...ir.symbols import Dim, FloorDiv, Mod


@dataclass(frozen=True)
class IndexSyntax:
    """How a language writes what differs. Its own division rounds to zero: operands that may be negative get the functions.

    Attributes:
        language: its name, for messages.
        signs: of division and remainder.
        functions: names of division, remainder, maximum and minimum.
        by_numbers: in the place of the signs, where the divisor is no constant: a number that the program reads may be
            zero, at which a processor stops the process. What such a division gives is thrown away (a check fails).
        name: the text of a variable, and whether it can stand as a factor.
    """

    language: str
    signs: tuple[str, str]
    functions: tuple[str, str, str, str]
    by_numbers: tuple[str, str] | None = None
    name: Callable[[str], tuple[str, bool]] = lambda name: (name, True)

    def text(self, value: Dim, binding: int = 0) -> str:
        """`binding`: 0 inside brackets, 1 as a term, 2 as a factor.

        Raises:
            TypeError: an expression that is no index.
        """
        e = sympy.sympify(value)
        match e:
            case sympy.Integer():
                text, strength = str(int(e)), 2 if e >= 0 else 0
            case sympy.Symbol():
                text, simple = self.name(e.name)
                strength = 2 if simple else 0
            case sympy.Add():
                terms = sorted(e.args, key=_term_order)
                text = self.text(terms[0], 1)
                for term in terms[1:]:
                    negative = bool(term.as_coeff_Mul()[0] < 0)
                    text += (" - " if negative else " + ") + self.text(-term if negative else term, 1)
                strength = 0
            case sympy.Mul():
                coefficient, factors = e.as_coeff_mul()
                parts = [self.text(f, 2) for f in sorted(factors, key=str)]
                if coefficient == -1:
                    parts[0] = "-" + parts[0]
                elif coefficient != 1:
                    parts.insert(0, self.text(coefficient, 1))
                text, strength = " * ".join(parts), 1
            case sympy.Pow(exp=sympy.Integer()):
                text, strength = " * ".join([self.text(e.base, 2)] * int(e.exp)), 1
            case FloorDiv() | Mod():
                base, divisor = e.args
                kind = 0 if isinstance(e, FloorDiv) else 1
                names: tuple[str, ...] | None = self.functions
                if base.is_nonnegative and divisor.is_nonnegative:
                    names = None if divisor.is_Integer else self.by_numbers
                if names is None:
                    text, strength = f"{self.text(base, 2)} {self.signs[kind]} {self.text(divisor, 2)}", 1
                    if binding == 1:
                        text, strength = f"({text})", 2
                else:
                    text, strength = f"{names[kind]}({self.text(base)}, {self.text(divisor)})", 2
            case sympy.Max() | sympy.Min():
                function = self.functions[2 if isinstance(e, sympy.Max) else 3]
                text = self.text(e.args[0])
                for arg in e.args[1:]:
                    text = f"{function}({text}, {self.text(arg)})"
                strength = 2
            case _:
                raise TypeError(f"no {self.language} text for the index expression {e} ({type(e).__name__})")
        return f"({text})" if strength < binding else text


def _term_order(term: sympy.Expr) -> tuple[bool, bool, str]:
    """Positive terms first, constants last, so that code reads `768 * i0 + r0 - 1`."""
    coefficient, _ = term.as_coeff_Mul()
    return bool(coefficient < 0), bool(term.is_Integer), str(term)
