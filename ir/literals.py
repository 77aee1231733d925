"""Literals in IR text: the values of operation attributes.

One small grammar, a subset of Python's expressions, so that Python's own parser reads it: integers, floats (inf and nan
too), true, false, none, strings, lists, symbolic integers over names, `torch.float32` and its like, `device("cpu")`.
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

import sympy
import torch

from .symbols import FloorDiv, Mod, dim, symbol

Literal: TypeAlias = Any  # int | float | complex | bool | None | str | sympy.Expr | torch.dtype | ... | tuple of these

_NAMES = {"true": True, "false": False, "none": None, "inf": math.inf, "nan": math.nan}
_FUNCTIONS = {"FloorDiv": FloorDiv, "Mod": Mod, "Max": sympy.Max, "Min": sympy.Min}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: _product(a, b),
}


class LiteralError(ValueError):
    """Text outside the grammar; `offset` counts characters from the start of the parsed text."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def print_literal(value: Literal) -> str:
    """The text of a literal; `parse_literal` gives back an equal value."""
    match value:
        case True:
            return "true"
        case False:
            return "false"
        case None:
            return "none"
        case float():
            return "nan" if math.isnan(value) else repr(value)
        case complex():
            return f"complex({print_literal(value.real)}, {print_literal(value.imag)})"
        case str():
            return '"' + _ESCAPED.sub(_escape, value) + '"'
        case tuple() | list():
            return "[" + ", ".join(map(print_literal, value)) + "]"
        case sympy.Basic():
            return _print_expr(value)
        case torch.device():
            return f'device("{value}")'
        case torch.dtype() | torch.layout() | torch.memory_format():
            return str(value)
        case int():
            return str(value)
    raise TypeError(f"{type(value).__name__} cannot be an attribute of an operation: {value!r}")


# Quotes, backslashes, what has no sign, and marks that turn the direction of writing: a text shows all that is in it.
_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]')
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escape(found: re.Match[str]) -> str:
    char = found.group()
    return _SHORT_ESCAPES.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")


@lru_cache(maxsize=65536)
def _print_expr(value: sympy.Expr) -> str:
    return str(value)


@lru_cache(maxsize=65536)
def parse_literal(text: str) -> Literal:
    """Read one literal.

    Raises:
        LiteralError: the text is outside the grammar.
    """
    return _build(_parse(text, 0), 0)


@lru_cache(maxsize=65536)
def parse_entries(text: str) -> tuple[tuple[str, Literal], ...]:
    """Read `a = 1, b = [s0, 2]`, the inside of an attribute dictionary."""
    prefix = "dict("
    call = _parse(prefix + _escape_keywords(text) + ")", len(prefix))
    if not isinstance(call, ast.Call) or call.args:
        raise LiteralError("expected `name = value`", 0)
    entries: dict[str, Literal] = {}
    for entry in call.keywords:
        if entry.arg is None:
            raise LiteralError("expected `name = value`", 0)
        if _unescape(entry.arg) in entries:
            raise LiteralError(f"'{_unescape(entry.arg)}' is given twice", max(0, entry.col_offset - len(prefix)))
        entries[_unescape(entry.arg)] = _build(entry.value, len(prefix))
    return tuple(entries.items())


def print_entries(entries: Mapping[str, Literal]) -> str:
    """The inside of an attribute dictionary."""
    return ", ".join(f"{name} = {print_literal(value)}" for name, value in entries.items())


def _escape_keywords(text: str) -> str:
    """`from` and its like are argument names in ATen schemas but keywords in Python."""
    for word in ("from", "lambda", "in", "is", "as"):
        if f"{word} =" in text:
            text = text.replace(f", {word} =", f", {word}_=")
            if text.startswith(f"{word} ="):
                text = f"{word}_=" + text[len(word) + 2 :]
    return text


def _unescape(name: str) -> str:
    return name[:-1] if name.endswith("_") and keyword.iskeyword(name[:-1]) else name


def _parse(text: str, prefix: int) -> ast.expr:
    text = text.replace("\n", " ").replace(
        "\r", " "
    )  # a value may go on in the next line; strings hold no bare line ends
    try:
        return ast.parse(text.rstrip(), mode="eval").body
    except SyntaxError as error:
        raise LiteralError(f"not a value: {error.msg}", max(0, (error.offset or 1) - 1 - prefix)) from None
    except (ValueError, MemoryError, RecursionError) as error:
        raise LiteralError(f"not a value: {error}", 0) from None


def _build(node: ast.expr, prefix: int) -> Literal:
    """The value of a piece of the syntax tree.

    Raises:
        LiteralError: it is outside the grammar, or has no value: `"a" + 1`, `Mod(s0, 0)`.
    """
    try:
        return _evaluate(node, prefix)
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, LiteralError):
            raise
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise LiteralError(f"'{ast.unparse(node)}' has no value: {message}", max(0, node.col_offset - prefix)) from None


def _power(base: Any, exponent: Any) -> Any:
    if not isinstance(exponent, int) or not 0 <= exponent <= 64:
        raise ValueError("an exponent is a number from 0 to 64")
    if isinstance(base, int) and base.bit_length() * exponent > _MOST_BITS or _terms(base) ** exponent > _MOST_TERMS:
        raise ValueError("the number, or the expression, is too long")
    return base**exponent


_MOST_BITS, _MOST_TERMS = 1024, 1024


def _terms(value: Any) -> int:
    """The summands of an expression, which are multiplied out."""
    return len(sympy.Add.make_args(value)) if isinstance(value, sympy.Expr) else 1


def _product(a: Any, b: Any) -> Any:
    if _terms(a) * _terms(b) > _MOST_TERMS:
        raise ValueError("the expression is too long")
    if isinstance(a, str | tuple) or isinstance(b, str | tuple):
        raise TypeError("only numbers are multiplied")
    return a * b


def _call(name: str, args: list[Any]) -> Any:
    if name in ("FloorDiv", "Mod") and len(args) == 2 and args[1] == 0:
        raise ValueError("division by zero")
    if not args or not all(isinstance(a, int | sympy.Expr) and not isinstance(a, bool) for a in args):
        raise TypeError("sizes are integers and expressions over symbols")
    function: Any = _FUNCTIONS[name]
    return _number(function(*map(sympy.sympify, args)))


def _evaluate(node: ast.expr, prefix: int) -> Literal:
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.Name(id=name):
            return _NAMES[name] if name in _NAMES else symbol(name)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return tuple(_build(item, prefix) for item in items)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _number(-_build(operand, prefix))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _BINARY:
            return _number(_BINARY[type(op)](_build(left, prefix), _build(right, prefix)))
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            return _number(_power(_build(left, prefix), _build(right, prefix)))
        case ast.Attribute(value=ast.Name(id="torch"), attr=attr):
            found = getattr(torch, attr, None)
            if isinstance(found, torch.dtype | torch.layout | torch.memory_format):
                return found
        case ast.Call(func=ast.Name(id="device"), args=[ast.Constant(value=str() as name)]):
            return torch.device(name)
        case ast.Call(func=ast.Name(id="complex"), args=[real, imag]):
            return complex(_build(real, prefix), _build(imag, prefix))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            return _call(name, [_build(arg, prefix) for arg in args])
    raise LiteralError(f"not a value: {ast.unparse(node)}", max(0, node.col_offset - prefix))


def _number(value: Any) -> Any:
    return dim(value) if isinstance(value, sympy.Expr) else value
