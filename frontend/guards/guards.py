"""Guards: what capture relied on, as printable parts that compile into one straight Python function.

A part knows its source, the test it makes and how to explain a miss. `GuardSet.lines` turns the parts into
statements that return `MISS`; `GuardSet.explain` walks them one by one and names the first that fails.
"""

from __future__ import annotations

import enum
import operator
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any

import torch
from torch import nn

from ..errors import SourceLine, Unsupported
from ..values.kinds import HEAP_TYPE, isinstance
from .drawn import StateIs
from .emitter import MISS, Emitter, MissIf, with_few_locals
from .nans import Nans
from .recompile_reason import Miss, first_miss, nothing, show
from .sameness import indistinguishable, is_decided_by_equality, same_keys
from .source import Arg, Const, Fetch, Place, Source
from .watch import DictGuards, Watch

__all__ = ["Guard", "GuardSet"]


@dataclass(frozen=True)
class Guard:
    """One part: `kind` picks the row of `_KINDS` that writes and explains it."""

    kind: str
    source: Source
    expected: Any = None
    place: Any = field(default=None, compare=False, repr=False)  # what `GuardSet.where` gave

    def test(self, emit: Emitter) -> str:
        """The expression that is true while the guard holds."""
        return _KINDS[self.kind].test(emit, self.source, self.expected)

    def is_of_state(self) -> bool:
        """Whether the guard is for one state of a random generator, which may never come again."""
        return isinstance(self.source, Fetch) and type(self.source.function) is StateIs

    def is_replaceable(self) -> bool:
        """Whether the guard is for one module at a place outside of the compiled module, where there may be another later."""
        if self.kind != "is" or not isinstance(self.expected, nn.Module):
            return False
        root = self.source.root()
        return not (isinstance(root, Const) and isinstance(root.value, nn.Module))

    def replaced(self, args: Mapping[str, Any]) -> bool:
        """Whether there is another now."""
        if not self.is_replaceable():
            return False
        try:
            return self.source.fetch(args) is not self.expected
        except Exception:  # whatever the user's own attributes raise
            return True

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """The miss, or None while the guard holds."""
        row = _KINDS[self.kind]
        if isinstance(self.expected, Source):
            return self._compared(self.expected, args)
        try:
            value = self.source.fetch(args)
        except Exception as error:  # whatever the user's own attributes raise; an empty closure cell
            return self.miss(row.show(self.expected), nothing(error))
        if row.holds(value, self.expected):
            return None
        return self.miss(row.show(self.expected), row.got(value))

    def _compared(self, second: Source, args: Mapping[str, Any]) -> Miss | None:
        """The miss of a guard that two values are one object ("alias"), or are not ("other")."""
        texts = [f"the same object as {second.name()}", "another object"]
        expected, got = texts if self.kind == "alias" else reversed(texts)
        try:
            found = self.source.fetch(args) is second.fetch(args)
        except Exception as error:
            return self.miss(expected, f"nothing ({type(error).__name__}: {error})")
        return None if found is (self.kind == "alias") else self.miss(expected, got)

    def miss(self, expected: str, got: str) -> Miss:
        """The miss of this part, with the user's line."""
        return Miss(self.source.name(), expected, got, None if self.place is None else SourceLine(*self.place))

    def __str__(self) -> str:
        return f"{self.source.name()}: {_KINDS[self.kind].show(self.expected)}"


@dataclass(frozen=True)
class _Kind:
    test: Callable[[Emitter, Source, Any], str]
    holds: Callable[[Any, Any], bool]
    show: Callable[[Any], str]
    got: Callable[[Any], str]


def _equals(emit: Emitter, source: Source, expected: Any) -> str:
    if expected is None or isinstance(expected, bool | enum.Enum | torch.dtype | torch.layout | torch.memory_format):
        return f"{emit.inline(source)} is {emit.literal(expected)}"
    kind = emit.constant(type(expected), type(expected).__name__)
    constant = emit.constant(expected, type(expected).__name__)
    value = emit.fetch(source)
    if is_decided_by_equality(expected):
        test = f"type({value}) is {kind} and {value} == {emit.literal(expected)}"
    elif type(expected) in (tuple, torch.Size) and all(map(is_decided_by_equality, expected)):
        test = f"type({value}) is {kind} and {value} == {constant}{_same_types(emit, value, expected)}"
    else:
        test = f"{emit.constant(indistinguishable, 'indistinguishable')}({value}, {constant})"
    return f"({value} is {constant} or ({test}))"


def _has_keys(emit: Emitter, source: Source, keys: list[Any]) -> str:
    value = emit.fetch(source)
    if not keys:
        return f"not {value}"
    constant, identical = (
        emit.constant(keys, "keys"),
        emit.constant(operator.is_, "is_"),
    )  # keys are mostly interned texts
    same = f"len({value}) == {len(keys)} and {emit.constant(all, 'all')}({emit.constant(map, 'map')}({identical}, {value}, {constant}))"
    return f"({same} or {emit.constant(same_keys, 'same_keys')}({value}, {constant}))"


def _same_types(emit: Emitter, value: str, items: Iterable[Any]) -> str:
    types = [*map(type, items)]
    kinds = f"[*{emit.constant(map, 'map')}({emit.constant(type, 'type')}, {value})]"
    return f" and {kinds} == {emit.constant(types, 'types')}" if types else ""


def _lacks(value: Any, name: str) -> bool:
    """Whether an object has no such attribute, without the program's `__getattr__`."""
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return True
    return False


def _refuses(value: Any, refuse: Callable[[Any, str], None]) -> bool:
    try:
        refuse(value, "")
    except Unsupported:
        return True
    return False


@dataclass(frozen=True, eq=False)
class Weakly:
    """An object that a guard expects and does not keep alive: the program may ask whether it is still there."""

    reference: Any


def _may_end(value: Any) -> bool:
    """Whether the value is an object of a class of the program's that can be referred to weakly."""
    kind = type(value)
    ends = kind.__flags__ & HEAP_TYPE and kind.__weakrefoffset__ != 0
    return bool(ends) and not isinstance(value, type | nn.Module | torch.Tensor)


def _is(emit: Emitter, source: Source, expected: Any) -> str:
    if isinstance(expected, Weakly):  # the reference gives None where the object has ended
        return f"{emit.constant(expected.reference, 'reference')}() is {emit.inline(source)} is not None"
    return f"{emit.inline(source)} is {emit.constant(expected, getattr(expected, '__name__', 'obj'))}"


def _now(expected: Any) -> Any:
    return expected.reference() if isinstance(expected, Weakly) else expected


_KINDS: dict[str, _Kind] = {
    "is": _Kind(
        _is,
        lambda value, expected: value is _now(expected) and (value is not None or not isinstance(expected, Weakly)),
        lambda expected: f"the same object as at capture, {show(_now(expected))}",
        show,
    ),
    "equals": _Kind(_equals, indistinguishable, show, show),
    "type": _Kind(
        lambda emit, source, kind: f"type({emit.fetch(source)}) is {emit.constant(kind, kind.__name__)}",
        lambda value, kind: type(value) is kind,
        lambda kind: f"type {kind.__module__}.{kind.__qualname__}",
        lambda value: f"type {type(value).__module__}.{type(value).__qualname__}",
    ),
    "length": _Kind(
        lambda emit, source, n: f"len({emit.fetch(source)}) == {n}",
        lambda value, n: len(value) == n,
        lambda n: f"length {n}",
        lambda value: f"length {len(value)}",
    ),
    "keys": _Kind(
        _has_keys,
        same_keys,
        lambda keys: f"keys {show(keys)}",
        lambda value: f"keys {show([*value])}",
    ),
    "missing": _Kind(
        lambda emit, source, key: f"{emit.literal(key)} not in {emit.fetch(source)}",
        lambda value, key: key not in value,
        lambda key: f"no {show(key)}",
        lambda value: "it is there",
    ),
    "contains": _Kind(
        lambda emit, source, key: f"{emit.literal(key)} in {emit.fetch(source)}",
        lambda value, key: key in value,
        lambda key: f"{show(key)} in it",
        lambda value: "it is not there",
    ),
    "empty": _Kind(
        lambda emit, source, _: f"not {emit.inline(source)}",
        lambda value, _: not value,
        lambda _: "empty",
        show,
    ),
    "no attribute": _Kind(
        lambda emit, source, name: f"{emit.constant(_lacks, 'lacks')}({emit.fetch(source)}, {name!r})",
        lambda value, name: _lacks(value, name),
        lambda name: f"no attribute {name!r}",
        lambda value: "it has one",
    ),
    "refused": _Kind(
        lambda emit, source, refuse: (
            f"{emit.constant(_refuses, 'refuses')}({emit.fetch(source)}, {emit.constant(refuse, 'refuse')})"
        ),
        lambda value, refuse: _refuses(value, refuse),
        lambda _: "a tensor that cannot be captured",
        lambda value: f"an ordinary {type(value).__name__}",
    ),
    "other": _Kind(
        lambda emit, source, other: f"{emit.inline(source)} is not {emit.fetch(other)}",
        operator.is_not,
        lambda other: f"another object than {other.name()}",
        show,
    ),
    "alias": _Kind(
        lambda emit, source, other: f"{emit.inline(source)} is {emit.fetch(other)}",
        operator.is_,
        lambda other: f"the same object as {other.name()}",
        show,
    ),
}


_EQUAL_THEMSELVES = frozenset([int, bool, str, type(None)])


@dataclass
class GuardSet:
    """All guards of one capture, in the order in which capture came to rely on them.

    `extra` holds the checks that concern several values at once (tensor facts, sizes, global state); each has
    `lines(emit)` and `explain(args)`. `where` gives the user's line that capture is at, `keep` the user's choice among the parts.
    """

    parts: dict[tuple[Any, ...], Guard] = field(default_factory=dict)
    extra: list[Any] = field(default_factory=list)
    where: Callable[[], Any] | None = field(default=None, repr=False)
    keep: Callable[[list[Guard]], Iterable[Any]] | None = field(default=None, repr=False)
    _nans: Nans = field(default_factory=Nans, repr=False)

    def add(self, kind: str, source: Source, expected: Any = None) -> None:
        """Add one part; the same fact about the same source is kept once."""
        token = expected if kind in ("missing", "contains", "no attribute", "other") else None
        key = (kind, source, token)
        if key not in self.parts:
            expected = Weakly(weakref.ref(expected)) if kind == "is" and _may_end(expected) else expected
            self.parts[key] = Guard(kind, source, expected, self.where() if self.where is not None else None)
            if kind == "keys" or kind == "equals" and type(expected) not in _EQUAL_THEMSELVES:
                for relation in self._nans.relations(kind, source, expected):
                    self.add(*relation)

    def sizes(self) -> Iterator[tuple[Source, tuple[int | None, ...]]]:
        """The sizes of each argument tensor that is checked; None where any size will do."""
        for check in self.extra:
            for facts in getattr(check, "facts", ()):
                if facts.real is None:
                    yield facts.source, facts.sizes

    @property
    def has_symbols(self) -> bool:
        """Whether sizes or numbers of this capture are symbolic."""
        return any(hasattr(check, "relations") for check in self.extra)

    def numbers(self) -> Iterator[tuple[Source, Any]]:
        """Each int, float, tuple or size that is expected to have one particular value."""
        for guard in self.parts.values():
            if guard.kind == "equals" and type(guard.expected) in (int, float, tuple, torch.Size):
                yield guard.source, guard.expected

    def truths(self) -> Iterator[tuple[Source, bool]]:
        """Each tensor, or comparison of one, that an `if` asks for: what it is expected to be."""
        for guard in self.parts.values():
            if guard.kind == "equals" and isinstance(guard.source, Fetch) and guard.source.function is bool:
                yield guard.source, guard.expected

    def is_past(self, values: Mapping[str, Any]) -> bool:
        """Whether a random generator is not in the state that these are for: each call would ask for one that is gone."""
        return any(guard.is_of_state() and guard.explain(values) for guard in list(self.parts.values()))

    def other_modules(self, values: Mapping[str, Any]) -> set[Source]:
        """The places of a module where a call has another one of its class."""
        found: set[Source] = set()
        for guard in self.parts.values():
            if isinstance(guard.source.root(), Arg) and guard.is_replaceable():
                with suppress(Exception):  # whatever the user's own attributes raise
                    module = guard.source.fetch(values)
                    if module is not guard.expected and type(module) is type(guard.expected):
                        found.add(guard.source)
        return found

    def pinned(self) -> Iterator[tuple[Source, Any]]:
        """What is expected to be one text or float or place of an iterator, to have these keys (a tuple), or to be one class or an instance of it."""
        for guard in self.parts.values():
            texts = guard.kind == "equals" and type(guard.expected) in (str, bytes, float)
            texts = texts or guard.kind == "equals" and isinstance(guard.source, Place)
            if texts or guard.kind in ("is", "type") and isinstance(guard.expected, type):
                yield guard.source, guard.expected
            elif guard.kind == "keys":
                yield guard.source, tuple(guard.expected)
        for check in self.extra:
            yield from getattr(check, "fixed_floats", tuple)()

    def lines(self, emit: Emitter, watched: bool = False) -> None:
        """Write the whole check as statements that return MISS: arguments and thread state first, then modules and globals.

        With `watched`, guards that dicts of modules materialize stand in a function of their own, which runs when one of these has changed.
        """
        if self.keep is not None:
            self.parts, self.keep = dict(compress(self.parts.items(), self.keep([*self.parts.values()]))), None
        early = [isinstance(guard.source.root(), Arg) for guard in self.parts.values()]
        _write(emit, compress(self.parts.values(), early))
        for check in self.extra:
            if check.first:
                check.lines(emit)
        late = list(compress(self.parts.values(), map(operator.not_, early)))
        if watched:
            late = self._watch(emit, self._watch(emit, late, DictGuards()), DictGuards(names=True))
        _write(emit, late)
        for check in self.extra:
            if not check.first:
                check.lines(emit)

    def _watch(self, emit: Emitter, parts: list[Guard], decided: DictGuards) -> list[Guard]:
        """Put the decided guards into a watch; returns the others."""
        found = [decided.add(part.kind, part.source, part.expected) for part in parts]
        if not decided.pays(sum(found)):
            return parts
        inside = list(compress(parts, found))
        # Neither refers to the namespace that holds the watch.
        made = Watch(decided, partial(_hold, inside), partial(_function, inside))
        watch = emit.constant(made, "names" if decided.names else "modules")
        emit.miss_if(f"not ({watch}.check() or {watch}.holds())")
        return list(compress(parts, map(operator.not_, found)))

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """The first part that does not hold for these arguments."""
        return first_miss(self.parts.values(), self.extra, args)

    @property
    def code(self) -> str:
        """The compiled check as source text."""
        emit = Emitter()
        self.lines(emit)
        return "\n".join(map(str, emit.lines))

    def __iter__(self) -> Any:
        return iter([*self.parts.values(), *self.extra])

    def __len__(self) -> int:
        return len(self.parts) + len(self.extra)

    def __str__(self) -> str:
        return "\n".join(str(part) for part in self)


def _hold(parts: Iterable[Guard]) -> bool:
    return first_miss(parts, (), {}) is None


def _function(parts: Iterable[Guard]) -> Callable[[], bool]:
    """The guards as one function, in a namespace of its own: other threads may make it, too."""
    emit = Emitter()
    emit.namespace["MISS"] = MISS  # by which a namespace of ours is known (`runtime.entries._needed`)
    _write(emit, parts)
    checks = with_few_locals(emit.lines, "")
    lines = [c.text("return False") if isinstance(c, MissIf) else c for c in checks]
    text = "\n    ".join(["def holds():", *lines, "return True"])
    exec(compile(text, "<intarsia guards>", "exec"), emit.namespace)
    return emit.namespace.pop("holds")  # type: ignore[no-any-return]


def _write(emit: Emitter, parts: Iterable[Guard]) -> None:
    """Tests in groups, what they fetch in front of them."""
    tests: list[str] = []
    for guard in parts:
        before = len(emit.lines)
        test = guard.test(emit)
        fetched = emit.lines[before:]
        del emit.lines[before:]
        if fetched:
            _flush(emit, tests)
            emit.lines += fetched
        tests.append(test)
    _flush(emit, tests)


def _flush(emit: Emitter, tests: list[str]) -> None:
    for start in range(0, len(tests), 8):
        emit.miss_if(f"not ({' and '.join(tests[start : start + 8])})")
    tests.clear()
