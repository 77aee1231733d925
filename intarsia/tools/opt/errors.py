"""What can be wrong with a command line and with a file, and how it is shown: `file:line:column: error: message`, the line, carets."""

from __future__ import annotations

import re
from collections.abc import Set
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.utils.exceptions import ParseError, VerifyException
from xdsl.utils.lexer import Input, Span

from ...ir.binding import all_late_names
from ...ir.dialects import buffer, loop, prim
from ...ir.text import IrParser

_SHOWN = 160  # characters of a long line


class CommandError(Exception):
    """The command line asks for what there is not, or for two things that exclude each other: exit code 2."""


class InputError(Exception):
    """A file that cannot be read or written, or a module that something cannot be done with: exit code 1."""


class LocatedVerifyError(Exception):
    """A verifier's error with the place of its operation in the text."""


class PositionParser(IrParser):
    """A parser that remembers where each operation stands in the text."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.positions: dict[Operation, int] = {}

    def parse_operation(self) -> Operation:
        start = self._current_token.span.start
        op = super().parse_operation()
        self.positions[op] = start
        return op


def verify_located(module: ModuleOp, parser: PositionParser) -> None:
    """Verify each operation by itself, so that an error has the place of the innermost one.

    Raises:
        LocatedVerifyError: file, line, column, the line itself and a caret.
    """
    late: dict[Operation, Set[str]] = {}  # by function: asking for each operation again would be quadratic
    for op in [*(op for op in module.walk() if not op.regions), *module.walk()]:  # what is inside of another first
        try:
            func = op.parent_op()
            while func is not None and not isinstance(func, prim.Func | loop.Kernel):
                func = func.parent_op()
            if isinstance(func, prim.Func):
                if func not in late:
                    late[func] = all_late_names(func.block_body.ops)
                func.check_names(op, late[func])
            op.verify(verify_nested_ops=False)
        except VerifyException as error:
            raise _located(op, parser, str(error)) from None
        except _MALFORMED as error:  # a list where a number belongs: verifiers look at meaning
            said = f"{op.name}: an attribute is of another kind than it has to be: {type(error).__name__}: {error}"
            raise _located(op, parser, said.splitlines()[0]) from None
    names: set[str] = set()
    for op in module.ops:
        if isinstance(op, prim.Func | loop.Kernel):
            if op["sym_name"] in names:
                raise _located(op, parser, f"{op.name}: another one is called @{op['sym_name']}, too")
            names.add(op["sym_name"])
    kernels = {op["sym_name"] for op in module.walk() if isinstance(op, loop.Kernel)}
    for op in module.walk():
        if isinstance(op, loop.Launch | buffer.Launch) and op["kernel"] not in kernels:
            raise _located(op, parser, f"{op.name}: the module has no loop.kernel @{op['kernel']}")
    try:
        module.verify()
    except (VerifyException, ValueError) as error:
        span = Span(0, 1, parser.lexer.input)
        raise LocatedVerifyError(caret_text(span, str(error).splitlines()[0])) from None


_MALFORMED = (TypeError, AttributeError, LookupError, ValueError, AssertionError)


def _located(op: Operation, parser: PositionParser, message: str) -> LocatedVerifyError:
    start = parser.positions.get(op, 0)
    span = Span(start, start + len(_token_at(parser.lexer.input.content, start)), parser.lexer.input)
    return LocatedVerifyError(caret_text(span, message))


def _token_at(text: str, start: int) -> str:
    match = re.compile(r"(%[\w, %:]+= )?[\w.]+").match(text, start)
    return match.group() if match else " "


def caret_text(span: Span[str], message: str) -> str:
    """`file:line:column: error: message`, the line, and carets under the place."""
    source: Input[str] = span.input
    begin = source.get_start_of_line(span.start)
    end = source.get_end_of_line(span.start)
    line, column = source.content.count("\n", 0, span.start) + 1, span.start - begin
    shown = source.content[begin:end]
    carets = "^" * max(1, min(span.end, end) - span.start)
    place = f"{source.name}:{line}:{column + 1}"
    if len(shown) > _SHOWN:  # keep the place visible in a long line
        first = max(0, column - 60)
        shown, column = shown[first : first + _SHOWN], column - first
        carets = carets[: _SHOWN - column] or "^"
    return f"{place}: error: {message}\n  {shown}\n  {' ' * column}{carets}"


def error_text(error: ParseError) -> str:
    """A parse error in the same form as the verifier's."""
    span: Any = error.span
    return caret_text(span, error.msg)
