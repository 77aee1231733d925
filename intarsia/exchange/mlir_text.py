"""A reader of MLIR's text, as much as modules of StableHLO need: functions, operations in their generic form, attributes, types.

Nothing is executed, and nothing is looked up outside of the text. Forms that operations have of their own stand in `stablehlo_forms`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .errors import ExchangeError

_SKIPPED = re.compile(r"(?:\s|//[^\n]*)*+")
_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*+"'
    r"|[%^][A-Za-z0-9_$.-]+(?:#\d+)?(?::\d+)?|@[A-Za-z_][\w$.-]*|@\"[^\"\n]*\""
    r"|#[A-Za-z_][\w$.]*|->|::|-?0x[0-9A-Fa-f]+|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|[A-Za-z_][\w$.]*|[^\s\w]"
)
_TYPE = re.compile(r"(?:\?|\d+)x")
_CLOSERS = {"(": ")", "[": "]", "{": "}", "<": ">"}
MOST_DEEP = 64  # regions and lists in each other
_SHOWN = 160


@dataclass(frozen=True)
class Type:
    """Of a tensor: sizes, None where one is not known, and the word of its elements."""

    shape: tuple[int | None, ...]
    element: str

    def __str__(self) -> str:
        return f"tensor<{''.join('?x' if n is None else f'{n}x' for n in self.shape)}{self.element}>"


@dataclass
class Operation:
    """One operation: names of values, attributes under the names of the generic form, and where it stands."""

    name: str
    operands: list[str]
    attributes: dict[str, Any]
    regions: list[Region]
    results: list[str]
    types: list[Type]
    position: int
    given: list[Type] = field(default_factory=list)  # of the operands, where the form says them


@dataclass
class Region:
    """One block: its arguments with their types, and operations; the last one names the results."""

    arguments: list[tuple[str, Type]]
    operations: list[Operation]


@dataclass
class Function:
    """A function of the module."""

    name: str
    body: Region
    results: list[Type]
    position: int


Form = Callable[["Reader", Operation], None]  # reads what stands behind an operation's name


@dataclass
class Reader:
    """The text and the place that has been read to."""

    text: str
    name: str
    forms: dict[str, Form]
    position: int = 0
    depth: int = 0
    token: str = ""
    start: int = 0

    def __post_init__(self) -> None:
        self.advance()

    # -- tokens

    def advance(self) -> str:
        """The token that was next."""
        token = self.token
        self.previous_end = self.position
        begin = _SKIPPED.match(self.text, self.position)
        self.start = begin.end() if begin else self.position
        found = _TOKEN.match(self.text, self.start)
        self.token = found[0] if found else ""
        self.position = found.end() if found else self.start
        if not found and self.start < len(self.text):
            self.fail("this cannot be read")
        return token

    def go_to(self, position: int) -> None:
        """Read on from a place."""
        self.position = position
        self.advance()

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        """Raise an error that shows the line."""
        raise ExchangeError(located(self.text, self.name, self.start if at is None else at, message))

    def take(self, word: str) -> bool:
        """Whether the next token is this one, which is then read."""
        if self.token == word:
            self.advance()
            return True
        return False

    def want(self, *words: str) -> None:
        """Read these tokens."""
        for word in words:
            if not self.take(word):
                self.fail(f"expected '{word}', found '{self.token or 'the end'}'")

    def value(self) -> str:
        """The name of a value."""
        if not self.token.startswith("%"):
            self.fail(f"expected a value such as %0, found '{self.token or 'the end'}'")
        return self.advance()

    def values(self) -> list[str]:
        """Names of values with commas between them, or none."""
        return self.several(self.value) if self.token.startswith("%") else []

    def several(self, read: Callable[[], Any]) -> list[Any]:
        """One or more with commas between them."""
        found = [read()]
        while self.take(","):
            found.append(read())
        return found

    def listed(self, opener: str, read: Callable[[], Any]) -> list[Any]:
        """None or more in brackets."""
        self.want(opener)
        found = [] if self.token == _CLOSERS[opener] else self.several(read)
        self.want(_CLOSERS[opener])
        return found

    def integer(self) -> int:
        """A whole number."""
        if not re.fullmatch(r"-?\d{1,19}", self.token):
            self.fail(f"expected a whole number, found '{self.token or 'the end'}'")
        return int(self.advance())

    def integers(self) -> list[int]:
        """`[1, 2]`."""
        return self.listed("[", self.integer)

    def word(self, name: str) -> None:
        """`name =`."""
        self.want(name, "=")

    def raw(self, opener: str) -> str:
        """The text between an opening bracket, which is next, and its closing one."""
        if self.token != opener:
            self.fail(f"expected '{opener}', found '{self.token or 'the end'}'")
        stack, begin = [_CLOSERS[opener]], self.position
        for found in re.finditer(r'"(?:[^"\\\n]|\\.)*+"|->|[()\[\]{}<>]', self.text[begin:]):
            mark = found[0]
            if mark in _CLOSERS:
                stack.append(_CLOSERS[mark])
            elif mark == stack[-1]:
                stack.pop()
                if not stack:
                    body = self.text[begin : begin + found.start()]
                    self.go_to(begin + found.end())
                    return body
            elif mark in ")]}>":
                break
        self.fail(f"'{opener}' is never closed")

    # -- types

    def type(self) -> Type:
        """`tensor<4x8xf32>`, with or without an encoding."""
        if self.token == "!":
            self.fail("a type that is no tensor is not taken")
        if self.token != "tensor":
            self.fail(f"expected a tensor type, found '{self.token or 'the end'}'")
        begin = self.start
        self.advance()
        body = self.raw("<").strip()
        sizes: list[int | None] = []
        while found := _TYPE.match(body):
            size = found[0][:-1]
            if len(size) > 12:
                self.fail("a size is too large", begin)
            sizes.append(None if size == "?" else int(size))
            body = body[found.end() :]
        if len(sizes) > 32:
            self.fail("a tensor of more than 32 dimensions", begin)
        element = body.partition(",")[0].strip()
        if not re.fullmatch(r"[A-Za-z]\w*(<f(32|64)>)?", element):
            self.fail(f"the type of elements '{element[:40]}' is not taken", begin)
        return Type(tuple(sizes), element)

    def types(self) -> list[Type]:
        """One type, or several in parentheses."""
        return self.listed("(", self.type) if self.token == "(" else [self.type()]

    def signature(self, op: Operation) -> None:
        """`: (types) -> types`."""
        self.want(":")
        op.given = self.listed("(", self.type)
        self.want("->")
        op.types = self.types()

    # -- attributes

    def attribute(self) -> Any:
        """A value: numbers, strings, lists and dictionaries become Python's; a name that a dialect wraps becomes the name."""
        with _Deeper(self):
            return self._attribute()

    def _attribute(self) -> Any:
        token = self.token
        if token == "[":
            return self.listed("[", self.attribute)
        if token == "{":
            return self.dictionary()
        if token.startswith('"'):
            return self.advance()[1:-1]
        if token in ("true", "false"):
            return self.advance() == "true"
        if token == "array":
            self.advance()
            body = self.raw("<").partition(":")[2]
            words = [w.strip() for w in body.split(",") if w.strip()]
            if not all(re.fullmatch(r"-?\d{1,19}|true|false", w) for w in words):
                self.fail("an array of whole numbers or booleans is expected")
            return [w == "true" if w in ("true", "false") else int(w) for w in words]
        if token == "dense":
            begin = self.start
            self.advance()
            body = self.raw("<")
            self.want(":")
            return Dense(body, self.type(), begin)
        if re.fullmatch(r"-?\d.*", token):
            number = (
                float(self.advance()) if re.search(r"[.eE]", token) and "x" not in token else int(self.advance(), 0)
            )
            self._typed()
            return number
        if token.startswith("#"):
            return self._dialect()
        if token.startswith("@"):
            return self.advance()
        if token == "tensor":
            return self.type()
        if re.match(r"[A-Za-z]", token):
            self.advance()
            if self.token == "<":
                self.raw("<")
            return token
        self.fail(f"expected an attribute, found '{token or 'the end'}'")

    def _typed(self) -> None:
        if self.token == ":":
            self.advance()
            if self.token == "tensor":
                self.type()
            else:
                self.advance()

    def _dialect(self) -> Any:
        name = self.advance()
        if self.token != "<":
            return name
        begin = self.position
        body = self.raw("<")
        if name == "#stablehlo.conv" or "=" not in body:
            return body.split()[-1] if name == "#stablehlo" and body.split() else body
        end = self.start
        self.go_to(begin)
        found: dict[str, Any] = {}
        while self.token != ">":
            key = self.advance()
            self.want("=")
            found[key] = self.attribute()
            if not self.take(","):
                break
        self.want(">")
        if self.start != end:
            self.fail(f"{name} cannot be read", begin)
        return found

    def dictionary(self) -> dict[str, Any]:
        """`{name = value, flag}`."""
        return dict(self.listed("{", self._entry))

    def _entry(self) -> tuple[str, Any]:
        name = self.advance().strip('"')
        return name, self.attribute() if self.take("=") else True

    def optional_dictionary(self) -> dict[str, Any]:
        """A dictionary, or nothing."""
        return self.dictionary() if self.token == "{" else {}

    def location(self) -> None:
        """`loc(...)`, which is not kept."""
        if self.token == "loc":
            self.advance()
            self.raw("(")

    # -- operations

    def region(self, arguments: list[tuple[str, Type]] | None = None) -> Region:
        """`{ operations }`, with a block's head or without."""
        with _Deeper(self):
            self.want("{")
            given = list(arguments or [])
            if self.token.startswith("^"):
                self.advance()
                given += self.listed("(", self._argument) if self.token == "(" else []
                self.want(":")
            operations = []
            while self.token not in ("}", ""):
                if self.token.startswith("^"):
                    self.fail("a region of several blocks is not taken")
                operations.append(self.operation())
            self.want("}")
            return Region(given, operations)

    def _argument(self) -> tuple[str, Type]:
        name = self.value()
        self.want(":")
        kind = self.type()
        self.optional_dictionary()
        self.location()
        return name, kind

    def operation(self) -> Operation:
        """One operation, in its own form or in the generic one."""
        results: list[str] = []
        if self.token.startswith("%"):
            for name in self.values():
                base, colon, count = name.partition(":")
                if colon and not 1 <= int(count[:6]) <= 10_000:
                    self.fail(f"{name}: so many results")
                results += [f"{base}#{k}" for k in range(int(count))] if colon else [base]
            self.want("=")
        op = Operation("", [], {}, [], results, [], self.start)
        token = self.advance()
        op.name = token.strip('"')
        if token.startswith('"'):
            self._generic(op)
        elif op.name in self.forms:
            self.forms[op.name](self, op)
        else:
            self.fail(f"the operation {op.name or 'without a name'} is not taken", op.position)
        self.location()
        if len(op.types) != len(results):
            self.fail(f"{op.name} gives {len(op.types)} results, and {len(results)} are named", op.position)
        return op

    def _generic(self, op: Operation) -> None:
        op.operands = self.listed("(", self.value)
        if self.token == "<":
            self.advance()
            op.attributes |= self.dictionary()
            self.want(">")
        if self.token == "(":
            op.regions = self.listed("(", self.region)
        op.attributes |= self.optional_dictionary()
        self.signature(op)

    def module(self) -> dict[str, Function]:
        """`module { func.func ... }`, or functions alone."""
        self._aliases()
        wrapped = self.take("module")
        if wrapped:
            if self.token.startswith("@"):
                self.advance()
            if self.take("attributes"):
                self.dictionary()
            self.want("{")
        found: dict[str, Function] = {}
        while self.token == "func.func":
            made = self._function()
            if made.name in found:
                self.fail(f"a second function @{made.name}", made.position)
            found[made.name] = made
        if wrapped:
            self.want("}")
            self.location()
        self._aliases()
        if self.token:
            self.fail(f"expected a function, found '{self.token}'")
        return found

    def _aliases(self) -> None:
        while self.token.startswith("#"):
            self.advance()
            self.want("=")
            if self.token == "loc":
                self.location()
            else:
                self.attribute()

    def _function(self) -> Function:
        position = self.start
        self.want("func.func")
        if self.token in ("public", "private"):
            self.advance()
        if not self.token.startswith("@"):
            self.fail("expected the name of a function")
        name = self.advance().strip('@"')
        arguments = self.listed("(", self._argument)
        results: list[Type] = []
        if self.take("->"):
            results = self.listed("(", self._result) if self.token == "(" else [self.type()]
        if self.take("attributes"):
            self.dictionary()
        body = self.region(arguments)
        self.location()
        return Function(name, body, results, position)

    def _result(self) -> Type:
        kind = self.type()
        self.optional_dictionary()
        return kind


@dataclass(frozen=True)
class Dense:
    """`dense<text> : type`, and where it stands."""

    text: str
    type: Type
    position: int


class _Deeper:
    """A region or list inside of another."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def __enter__(self) -> None:
        self.reader.depth += 1
        if self.reader.depth > MOST_DEEP:
            self.reader.fail("nested too deeply")

    def __exit__(self, *error: object) -> None:
        self.reader.depth -= 1


def located(text: str, name: str, position: int, message: str) -> str:
    """`file:line:column: error: message`, and the line."""
    begin = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    line, column = text.count("\n", 0, position) + 1, position - begin
    shown = text[begin : len(text) if end < 0 else end]
    if len(shown) > _SHOWN:
        first = max(0, column - 60)
        shown, column_shown = shown[first : first + _SHOWN], column - first
    else:
        column_shown = column
    return f"{name}:{line}:{column + 1}: error: {message}\n  {shown}\n  {' ' * column_shown}^"
