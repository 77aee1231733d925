"""Where a value came from: how to name it, how to fetch it again, how generated code reaches it.

A source is a path from something that a compiled call can see (an argument, or an object that the guards hold by
identity) to the value. Equal paths compare equal, so that generated code fetches each of them once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from ..torch_private.symbols import python_text
from .emitter import Emitter

__all__ = ["Arg", "Attr", "Computed", "Const", "Fetch", "Item", "Namespace", "Number", "SizeExpression", "Source"]


class Source:
    """Base of all sources."""

    def name(self) -> str:
        """The path as a person would write it."""
        raise NotImplementedError

    def reconstruct(self, emit: Emitter) -> str:
        """The Python expression that fetches the value; `emit` names constants and shared prefixes."""
        raise NotImplementedError

    def fetch(self, args: Mapping[str, Any]) -> Any:
        """The value itself, given the call's arguments by name."""
        raise NotImplementedError

    def root(self) -> Source:
        """The first step of the path."""
        base: Source | None = getattr(self, "base", None)
        return self if base is None else base.root()

    def leads_through(self, places: Set[Source]) -> bool:
        """Whether the path comes by one of these places, or ends there."""
        base: Source | None = self if places else None
        while base is not None and base not in places:
            base = getattr(base, "base", None)
        return base is not None

    def __str__(self) -> str:
        return self.name()


@dataclass(frozen=True, slots=True)
class Arg(Source):
    """An argument of the compiled call, by its name in the generated function."""

    arg: str

    def name(self) -> str:
        return self.arg

    def reconstruct(self, emit: Emitter) -> str:
        return f"{self.arg}_"  # none of the names that generated code makes up for itself ends so

    def fetch(self, args: Mapping[str, Any]) -> Any:
        return args[self.arg]


class Const(Source):
    """An object that is held by identity: a module, a class, a function, a namespace."""

    __slots__ = ("label", "value")

    def __init__(self, value: Any, label: str) -> None:
        self.value = value
        self.label = label

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def name(self) -> str:
        return self.label

    def reconstruct(self, emit: Emitter) -> str:
        return emit.constant(self.value, self.label)

    def fetch(self, args: Mapping[str, Any]) -> Any:
        return self.value


def _keep(source: Source, found: int) -> int:
    """Paths are long, and their parts are looked up again and again: a source keeps its hash."""
    object.__setattr__(source, "_hash", found)
    return found


@dataclass(frozen=True, slots=True)
class Attr(Source):
    """`base.attr`, by the ordinary attribute protocol."""

    base: Source
    attr: str
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        return self._hash or _keep(self, hash((self.base, self.attr)))

    def name(self) -> str:
        return f"{self.base.name()}.{self.attr}"

    def reconstruct(self, emit: Emitter) -> str:
        if self.attr == "__dict__" and isinstance(self.base, Const):
            return emit.constant(self.base.value.__dict__, self.base.label + "_dict")
        return f"{emit.fetch(self.base)}.{self.attr}"

    def fetch(self, args: Mapping[str, Any]) -> Any:
        return getattr(self.base.fetch(args), self.attr)


@dataclass(frozen=True, slots=True)
class Item(Source):
    """`base[key]`; in a `__dict__` it reads as an attribute."""

    base: Source
    key: Any
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        return self._hash or _keep(self, hash((self.base, self.key)))

    def name(self) -> str:
        base = self.base
        if isinstance(base, Attr) and base.attr == "__dict__":
            return f"{base.base.name()}.{self.key}"
        if isinstance(base, Item) and base.key in ("_parameters", "_buffers", "_modules") and isinstance(self.key, str):
            return f"{base.base.name().removesuffix('.__dict__')}.{self.key}"
        return f"{base.name()}[{self.key!r}]"

    def reconstruct(self, emit: Emitter) -> str:
        return f"{emit.fetch(self.base)}[{emit.literal(self.key)}]"

    def fetch(self, args: Mapping[str, Any]) -> Any:
        owner = self.base.fetch(args)
        if isinstance(owner, dict) and not dict.__contains__(owner, self.key):
            raise KeyError(self.key)  # a defaultdict would make an entry
        return owner[self.key]


@dataclass(frozen=True, slots=True)
class Fetch(Source):
    """`function(base)` for a reader with no side effect, such as `tuple` of a view, or a context variable's `get`."""

    function: Any
    base: Source

    def name(self) -> str:
        return f"{getattr(self.function, '__name__', self.function)}({self.base.name()})"

    def reconstruct(self, emit: Emitter) -> str:
        function = emit.constant(self.function, getattr(self.function, "__name__", "fetch"))
        return f"{function}({emit.fetch(self.base)})"

    def fetch(self, args: Mapping[str, Any]) -> Any:
        return self.function(self.base.fetch(args))


class Place(Fetch):
    """How far an iterator is, as `function` tells it."""

    __slots__ = ()

    def name(self) -> str:
        return f"the place of {self.base.name()}"


class Namespace(Fetch):
    """The `__dict__` of an object, read past what its class says of attributes."""

    __slots__ = ()

    def name(self) -> str:
        return f"{self.base.name()}.__dict__"


@dataclass(frozen=True, slots=True)
class Number(Source):
    """A number that is known at capture; only an operand of `Computed`."""

    value: int | float

    def name(self) -> str:
        return repr(self.value)

    def reconstruct(self, emit: Emitter) -> str:
        return emit.literal(self.value)

    def fetch(self, args: Mapping[str, Any]) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class Computed(Source):
    """`function(*operands)`, arithmetic on numbers, done in the order in which the program does it."""

    function: Any
    operands: tuple[Source, ...]

    def name(self) -> str:
        return f"{getattr(self.function, '__name__', self.function)}({', '.join(o.name() for o in self.operands)})"

    def root(self) -> Source:
        return _root_of([o for o in self.operands if not isinstance(o, Number)], self)

    def reconstruct(self, emit: Emitter) -> str:
        function = emit.constant(self.function, getattr(self.function, "__name__", "compute"))
        return f"{function}({', '.join(map(emit.fetch, self.operands))})"

    def fetch(self, args: Mapping[str, Any]) -> Any:
        return self.function(*(o.fetch(args) for o in self.operands))


@dataclass(frozen=True, slots=True)
class Made(Source):
    """`function(*operands, **keywords)`, a tensor that each call makes in front of the graph; `number` tells it from others made alike."""

    function: Any
    operands: tuple[Source, ...]
    keywords: tuple[tuple[str, Any], ...]
    number: int

    def name(self) -> str:
        return f"{self.function.__name__}({', '.join(o.name() for o in self.operands)}) #{self.number}"

    def root(self) -> Source:
        return _root_of([o for o in self.operands if not isinstance(o, Number)], self)

    def reconstruct(self, emit: Emitter) -> str:
        given = [*map(emit.fetch, self.operands), *(f"{k}={emit.literal(v)}" for k, v in self.keywords)]
        return f"{emit.constant(self.function, self.function.__name__)}({', '.join(given)})"

    def fetch(self, args: Mapping[str, Any]) -> Any:
        return self.function(*(o.fetch(args) for o in self.operands), **dict(self.keywords))


@dataclass(frozen=True, slots=True)
class SizeExpression(Source):
    """Arithmetic over sizes, a sympy expression: `symbols` says for each what it is of which value ("size", "stride" or "", dim)."""

    expr: Any
    symbols: tuple[tuple[Any, Source, str, int], ...]

    def name(self) -> str:
        return str(self.expr)

    def root(self) -> Source:
        return _root_of([source for _, source, _, _ in self.symbols], self)

    def reconstruct(self, emit: Emitter) -> str:
        emit.namespace.setdefault("math", math)
        emit.namespace.setdefault("torch", torch)
        return python_text(
            self.expr, {s: emit.fetch(source) + _read(method, dim) for s, source, method, dim in self.symbols}
        )

    def fetch(self, args: Mapping[str, Any]) -> Any:
        names = {s: f"s{i}" for i, (s, *_) in enumerate(self.symbols)}
        values = {}
        for s, source, method, dim in self.symbols:
            value = source.fetch(args)
            values[names[s]] = getattr(value, method)(dim) if method else value
        return eval(python_text(self.expr, names), {"math": math, "torch": torch, **values})


def _root_of(operands: Sequence[Source], otherwise: Source) -> Source:
    """The root of what is computed: one that is no argument, where there is one."""
    roots = [o.root() for o in operands]
    return next((r for r in roots if not isinstance(r, Arg)), roots[0] if roots else otherwise)


def _read(method: str, dim: int) -> str:
    return f".{method}({dim})" if method else ""
