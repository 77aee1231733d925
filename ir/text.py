"""Text in and out: `parse_module` and `print_module`, and the xDSL context with all dialects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.ir import Dialect, Operation
from xdsl.parser import Parser, ParserState
from xdsl.printer import Printer
from xdsl.utils.lexer import Input
from xdsl.utils.mlir_lexer import MLIRLexer

from .dialects import buffer, kernel, loop, prim
from .dialects.aten import aten_op
from .types import IndexType, LiteralAttr, RefType, ScalarType, TensorType

DIALECTS = (
    Dialect("prim", list(prim.OPS), [TensorType, LiteralAttr, IndexType]),
    Dialect("kernel", list(kernel.OPS), []),
    Dialect("loop", list(loop.LOOP_OPS), [ScalarType]),
    Dialect("scalar", list(loop.SCALAR_DIALECT_OPS), []),
    Dialect("buffer", list(buffer.OPS), [RefType]),
)


_OF_ROWS: dict[str, Mapping[str, type[Operation]]] = {"prim": prim.ELEMENTWISE, "scalar": loop.SCALAR_OPS}


class IntarsiaContext(Context):
    """A context in which `aten.*` is an open set."""

    def get_optional_op(self, name: str, *, dialect_stack: object = ()) -> type[Operation] | None:
        if name.startswith("aten."):
            return aten_op(name)
        found = super().get_optional_op(name, dialect_stack=dialect_stack)  # type: ignore[arg-type]
        dialect, _, row = name.partition(".")
        if found is None and dialect in _OF_ROWS:  # a row that somebody has added to the scalar table
            return _OF_ROWS[dialect].get(row)
        return found

    def clone(self) -> IntarsiaContext:
        """A context of the same kind: the base class would make one that knows no `aten.*`."""
        copy = make_context()
        copy.allow_unregistered = self.allow_unregistered
        return copy


def make_context() -> IntarsiaContext:
    """A new context that knows builtin and all our dialects."""
    context = IntarsiaContext()
    context.load_dialect(Builtin)
    for dialect in DIALECTS:
        context.load_dialect(dialect)
    return context


class IrLexer(MLIRLexer):
    """xDSL's lexer, which would try a string that is never closed, or has an escape that there is not, in exponentially many ways."""

    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"')


class IrParser(Parser):
    """xDSL's parser with that lexer."""

    def __init__(self, ctx: Context, text: str, name: str) -> None:
        super().__init__(ctx, "", name)
        self._parser_state = ParserState(IrLexer(Input(text, name)))


def parse_module(text: str, filename: str = "<text>") -> ModuleOp:
    """Read a module.

    Raises:
        xdsl.utils.exceptions.ParseError: with file, line, column and a caret.
    """
    return IrParser(make_context(), text, filename).parse_module()


def print_module(module: Operation) -> str:
    """The text of a module (or of any operation); `parse_module` reads it back to the same text."""
    stream = StringIO()
    Printer(stream=stream).print_op(module)
    return stream.getvalue() + "\n"
