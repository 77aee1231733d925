"""The one textual form that all operations share, and their base class.

    %r = dialect.name<angle>(%a, %b)[bracket] {name = value} ({ region }) : result types loc("model.py":12:0)

Operand types are not repeated: a value's type stands where the value is defined. `angle`, `bracket` and `at` name the
attributes that an operation prints in those places; all others stand in the dictionary. Attributes are `LiteralAttr`s.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, cast

from xdsl.dialects.builtin import FileLineColLoc, IntAttr, LocationAttr, StringAttr
from xdsl.ir import Attribute, Block, Operation, OpTraits, Region, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from .literals import Literal, LiteralError, parse_entries, parse_literal, print_entries, print_literal
from .types import LiteralAttr

_CLOSERS = {"[": "]", "{": "}", "(": ")", "<": ">"}


class Op(Operation):
    """Base of every operation of the IR.

    `op["dims"]` reads an attribute's Python value, `op.get(name, default)` one that may be absent.
    """

    at: ClassVar[str | None] = None  # attribute printed as ` @name`
    angle: ClassVar[str | None] = None  # attribute printed as `<text>`
    bracket: ClassVar[str | None] = None  # attribute printed as `[text]`
    arity: ClassVar[int | None] = None  # number of operands, None for any
    outputs: ClassVar[int | None] = 1  # number of results, None for any
    required: ClassVar[tuple[str, ...]] = ()  # attributes that must be there
    is_pure: ClassVar[bool] = True  # no effect but its results
    has_body: ClassVar[bool] = False  # one region of one block
    may_have_body: ClassVar[bool] = False  # such a region, or none

    traits: ClassVar[OpTraits] = OpTraits(lambda: ())

    @classmethod
    def make(
        cls,
        operands: Sequence[SSAValue] = (),
        types: Sequence[Attribute] = (),
        attrs: Mapping[str, Literal] | None = None,
        regions: Sequence[Region] = (),
        loc: LocationAttr | None = None,
    ) -> Self:
        """Build the operation; attribute values are plain Python values."""
        attributes = {k: LiteralAttr(_freeze(v)) for k, v in (attrs or {}).items()}
        return cls.create(operands=operands, result_types=types, attributes=attributes, regions=regions, location=loc)

    def __getitem__(self, name: str) -> Literal:
        return cast(LiteralAttr, self.attributes[name]).data

    def __setitem__(self, name: str, value: Literal) -> None:
        self.attributes[name] = LiteralAttr(_freeze(value))

    def get(self, name: str, default: Literal = None) -> Literal:
        found = self.attributes.get(name)
        return default if found is None else cast(LiteralAttr, found).data

    @property
    def literals(self) -> dict[str, Literal]:
        """All attributes as Python values, in order."""
        return {k: cast(LiteralAttr, v).data for k, v in self.attributes.items()}

    @property
    def bound_names(self) -> frozenset[str]:
        """The names that the operation's own attributes bind."""
        return frozenset()

    @property
    def block_body(self) -> Block:
        """The single block of the single region."""
        return self.regions[0].block

    def check(self) -> None:
        """Verify what the operation's own meaning demands.

        Raises:
            VerifyException: says what was found and what is expected.
        """

    def verify_(self) -> None:
        if self.arity is not None and len(self.operands) != self.arity:
            raise VerifyException(f"{self.name} takes {self.arity} operands, not {len(self.operands)}")
        if self.outputs is not None and len(self.results) != self.outputs:
            raise VerifyException(f"{self.name} gives {self.outputs} results, not {len(self.results)}")
        wanted = self.has_body or (self.may_have_body and bool(self.regions))
        if len(self.regions) != wanted or (wanted and len(self.regions[0].blocks) != 1):
            raise VerifyException(f"{self.name} has " + ("one region of one block" if self.has_body else "no region"))
        for name in self.required:
            if name not in self.attributes:
                raise VerifyException(f"{self.name} needs the attribute '{name}'")
        if self.at in self.attributes and not is_name(self[self.at]):
            raise VerifyException(f"{self.name}: {print_literal(self[self.at])} is not a name: {NAMES}")
        for name, value in self.attributes.items():
            if not isinstance(value, LiteralAttr):
                raise VerifyException(f"{self.name}: attribute '{name}' is not a literal")
        if "strides" in self.attributes:
            self._check_strides("strides", self.results)
        if "operand_strides" in self.attributes:
            self._check_strides("operand_strides", self.operands)
        self.check()

    def _check_strides(self, name: str, values: Sequence[SSAValue]) -> None:
        entries = self[name]
        if not isinstance(entries, tuple) or len(entries) != len(values):
            raise VerifyException(f"{self.name}: {name} is a list with an entry for each of the {len(values)} values")
        for entry, value in zip(entries, values, strict=True):
            if entry is not None and (
                not isinstance(entry, tuple) or len(entry) != len(getattr(value.type, "shape", ()))
            ):
                raise VerifyException(f"{self.name}: {name} {print_literal(entry)} do not fit {value.type}")

    def print(self, printer: Printer) -> None:
        entries = self.literals
        if self.at:
            printer.print_string(f" @{entries.pop(self.at, '')}")
        if self.angle and self.angle in entries:
            value = entries.pop(self.angle)
            printer.print_string(f"<{value if isinstance(value, str) else print_literal(value)}>")
        printer.print_operands(self.operands)
        if self.bracket and self.bracket in entries:
            value = entries.pop(self.bracket)
            text = print_literal(value)
            printer.print_string(text if isinstance(value, tuple) else f"[{text}]")
        if entries:
            printer.print_string(f" {{{print_entries(entries)}}}")
        if self.regions:
            printer.print_regions(self.regions)
        if self.results:
            printer.print_string(" : ")
            printer.print_list(self.results, lambda r: printer.print_attribute(r.type))
        printer.print_string(place_of(self))

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        attrs: dict[str, Literal] = {}
        if cls.at:
            attrs[cls.at] = parser.parse_symbol_name().data
        if cls.angle and parser.parse_optional_punctuation("<") is not None:
            text, _ = _raw_body(parser, "<")
            attrs[cls.angle] = text
        parser.parse_punctuation("(")
        operands = []
        if parser.parse_optional_punctuation(")") is None:
            operands = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_operand)
            parser.parse_punctuation(")")
        if cls.bracket and parser.parse_optional_punctuation("[") is not None:
            text, start = _raw_body(parser, "[")
            items = _literal(parser, f"[{text}]", start - 1, parse_literal)
            attrs[cls.bracket] = items[0] if cls.bracket_is_single(items) else items
        if parser.parse_optional_punctuation("{") is not None:
            text, start = _raw_body(parser, "{")
            attrs.update(_literal(parser, text, start, parse_entries))
        regions: list[Region] = []
        if parser.parse_optional_punctuation("(") is not None:
            regions = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_region)
            parser.parse_punctuation(")")
        types: list[Attribute] = []
        if parser.parse_optional_punctuation(":") is not None:
            types = list(parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type))
        return cls.make(operands, types, attrs, regions)

    @classmethod
    def bracket_is_single(cls, items: tuple[Literal, ...]) -> bool:
        """Whether the bracket holds one expression rather than a list of them."""
        return len(items) == 1


def _freeze(value: Any) -> Any:
    return tuple(map(_freeze, value)) if isinstance(value, list | tuple) else value


def _raw_body(parser: Parser, opener: str) -> tuple[str, int]:
    """The text up to the closer that matches the opener just consumed, and where it starts."""
    content = parser.lexer.input.content
    start = parser._current_token.span.start
    stack, position = [_CLOSERS[opener]], start
    while position < len(content):
        char = content[position]
        if char == '"':
            position += 1
            while position < len(content) and content[position] != '"':
                position += 2 if content[position] == "\\" else 1
        elif char in _CLOSERS:
            stack.append(_CLOSERS[char])
        elif char == stack[-1]:
            stack.pop()
            if not stack:
                parser._resume_from(position + 1)
                return content[start:position], start
        elif char in ")]}>":
            break
        position += 1
    parser.raise_error(f"'{opener}' is never closed by '{_CLOSERS[opener]}'", start - 1, start)


def _literal(parser: Parser, text: str, start: int, read: Any) -> Any:
    try:
        return read(text)
    except LiteralError as error:
        at = min(start + error.offset, start + max(0, len(text) - 1))
        parser.raise_error(str(error), at, at + 1)


def location(filename: str, line: int) -> FileLineColLoc:
    """The location of a line in the user's code. A name with quotes, backslashes or what cannot be printed is kept in ASCII."""
    return FileLineColLoc(StringAttr(comment_of(filename)), IntAttr(line), IntAttr(0))


def _escaped(name: str) -> str:
    """What stands between the quotes of a string of xDSL's: escapes are those of bytes, so that a name with one has to be ASCII."""
    if not _ESCAPED.search(name):
        return name
    plain = name if name.isascii() else name.encode("unicode_escape").decode("ascii")
    return _ESCAPED.sub(lambda found: f"\\{ord(found[0]):02X}", plain)


_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f]')


def location_of(op: Operation) -> tuple[str, int] | None:
    """(file, line) of the user's code that an operation comes from, or None."""
    loc = op.location
    return (loc.filename.data, loc.line.data) if isinstance(loc, FileLineColLoc) else None


def place_of(op: Operation) -> str:
    """The user's line as MLIR writes it behind an operation, ` loc("file":line:0)`; "" where none is known."""
    place = location_of(op)
    return "" if place is None else f' loc("{_escaped(place[0])}":{place[1]}:0)'


def line_of(op: Operation) -> str:
    """The user's line that an operation comes from, as "file:line"; "" where none is known."""
    place = location_of(op)
    return f"{place[0]}:{place[1]}" if place else ""


NAMES = "ASCII letters, digits and '_', no digit first, no keyword of Python's"


def is_name(text: Literal) -> bool:
    """Whether generated C++ and Python can call something this."""
    return isinstance(text, str) and text.isascii() and text.isidentifier() and not keyword.iskeyword(text)


# What moves or hides other characters where a text is shown, and what is none.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def visible(text: str) -> str:
    """A text to show, line by line: what would move or hide other characters is written as `\\u202e`."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def comment_of(place: str) -> str:
    """A place in the user's code for a comment of generated text: on one line whatever the file is called, and no end of line is escaped."""
    plain = place.isprintable() and not set(place) & {'"', "\\"}
    return place if plain else place.encode("unicode_escape").decode("ascii")


def defined_values(op: Operation) -> Iterator[SSAValue]:
    """What an operation defines: the arguments of its blocks, and its results."""
    for region in op.regions:
        for block in region.blocks:
            yield from block.args
    yield from op.results


def single_block(operations: Iterable[Operation] = (), arg_types: Sequence[Attribute] = ()) -> Region:
    """A region of one block."""
    block = Block(arg_types=arg_types)
    block.add_ops(operations)
    return Region(block)
