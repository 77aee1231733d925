"""Dynamic shapes: which sizes and numbers of a call become symbols, and what the user promised about them.

A size (or an int or float that the program reaches through its arguments) is a constant at first. A value that a later
call changes is *marked*, and the next capture gives it a symbol. `mark_dynamic` marks a size before its first call, as
a promise: a program that needs one particular size is then an error, `ConstraintError`, with the line that needs it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor

from ..errors import GraphBreak, SourceLine
from ..guards.checks import SizeCheck
from ..guards.emitter import Statement
from ..guards.source import Arg, Computed, Fetch, Item, Number, Place, SizeExpression, Source
from ..state import ASSERTED, Interpreter
from ..torch_private.fake import fake_tensor
from ..torch_private.symbols import hint_of, int_bounds, named_by, symbolic_float, symbolic_int
from ..values.kinds import isinstance
from .host_numbers import HostNumbers
from .late_numbers import READ, LateNumbers, is_number
from .output import GraphInput
from .read_numbers import read_number
from .sym_nodes import NUMBERS, call_with_symbols, domain_of, may_be_complex, of_hints

if TYPE_CHECKING:
    from ..guards.guards import GuardSet

__all__ = ["ConstraintError", "Dynamic", "Marks", "Symbols", "mark_dynamic", "mark_static", "maybe_mark_dynamic"]

MARKS = "_intarsia_dims"  # the attribute of a tensor that holds what was said of its sizes
_REMADE, _PLACES = 2, 3  # so many known ones: a class is made in every call, an iterator is found at other places, too
_LARGEST = 1 << 62  # sizes and numbers from here on stay constants


class ConstraintError(Exception):
    """A size that was promised to be dynamic is needed as one particular number, or outside the promised range."""


@dataclass(frozen=True)
class Promise:
    """What the user said about one size: `kind` is "dynamic", "maybe" or "static"; bounds are inclusive."""

    kind: str
    low: int | None = None
    high: int | None = None


# ---- marking tensors ----


def mark_dynamic(tensor: Tensor, dim: int | Iterable[int], min: int | None = None, max: int | None = None) -> None:
    """Promise that a dimension changes between calls: it is compiled with a symbolic size from the first call on.

    `min` and `max` (inclusive) bound the sizes. Sizes 0 and 1 are always compiled on their own. A program that needs one
    particular size, or a narrower range than `min` to `max`, raises `ConstraintError` with the line that needs it.

    Raises:
        IndexError: the tensor has no such dimension.
        ValueError: the range is empty, or the tensor's own size lies outside it.
    """
    low, high = (None if b is None else operator.index(b) for b in (min, max))
    for d in _dims(tensor, dim):
        size = int(tensor.shape[d])
        if low is not None and high is not None and low > high:
            raise ValueError(f"mark_dynamic: min={low} is larger than max={high}")
        if (low is not None and size < low) or (high is not None and size > high):
            raise ValueError(f"mark_dynamic: dimension {d} has size {size}, outside the range from {low} to {high}")
        _set(tensor, d, Promise("dynamic", low, high))


def maybe_mark_dynamic(tensor: Tensor, dim: int | Iterable[int]) -> None:
    """Compile a dimension with a symbolic size from the first call on, if the program allows it.

    Raises:
        IndexError: the tensor has no such dimension.
    """
    for d in _dims(tensor, dim):
        _set(tensor, d, Promise("maybe"))


def mark_static(tensor: Tensor, dim: int | Iterable[int] | None = None) -> None:
    """Compile a dimension (None: all) for the size that it has; each other size is a compile of its own.

    Raises:
        IndexError: the tensor has no such dimension.
    """
    for d in _dims(tensor, range(tensor.dim()) if dim is None else dim):
        _set(tensor, d, Promise("static"))


def _dims(tensor: Tensor, dim: int | Iterable[int]) -> list[int]:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"a tensor is marked, not an object of type {type(tensor).__name__}")
    found = []
    for d in [dim] if isinstance(dim, int) else dim:
        if not -tensor.dim() <= d < tensor.dim():
            raise IndexError(f"a tensor of {tensor.dim()} dimensions has no dimension {d}")
        found.append(d % tensor.dim())
    return found


def _set(tensor: Tensor, dim: int, promise: Promise) -> None:
    marks = tensor.__dict__.setdefault(MARKS, {})
    marks[dim] = promise


def promises_of(tensor: Tensor) -> dict[int, Promise]:
    """The marks of a tensor by dimension: torch's own (`torch._dynamo.mark_dynamic` and kin), then ours."""
    attributes = getattr(tensor, "__dict__", None)
    if not attributes:
        return {}
    found: dict[int, Promise] = {}
    for name, kind in _TORCH_MARKS.items():
        found.update(dict.fromkeys(attributes.get(name, ()), Promise(kind)))
    for bounds in attributes.get("_dynamo_dynamic_range", ()):
        if found.get(bounds.dim, _STATIC).kind == "dynamic":
            found[bounds.dim] = Promise("dynamic", bounds.min, bounds.max)
    found.update(attributes.get(MARKS, {}))
    return found


_STATIC = Promise("static")
_TORCH_MARKS = {
    "_dynamo_weak_dynamic_indices": "maybe",
    "_dynamo_unbacked_indices": "maybe",
    "_dynamo_dynamic_indices": "dynamic",
    "_dynamo_static_indices": "static",
}


# ---- what changes between calls ----


class Marks:
    """What has been seen to change between the calls of one compiled function.

    `dims` are dimensions of tensors, `numbers` ints and floats, both by source. They only grow.
    """

    def __init__(self) -> None:
        self.dims: dict[Source, frozenset[int]] = {}
        self.numbers: set[Source] = set()
        self.inside: set[Source] = set()
        # Arguments of a piece that have no symbol and are something else in every call.
        self.varying: set[Source] = set()
        self.modules: set[Source] = set()  # where another module came to a piece
        self.turns: dict[Source, int] = {}  # how often an `if` on a comparison had another answer than before
        self.passes_over = True  # whether sides that warn or raise may be left out: no call has come to one that was
        self.states: list[Any] = []  # of Python's random generators, for each of which alone a graph was made
        self.floats = False  # whether the backend takes symbolic floats
        self.wrapping: WeakSet[type] = (
            WeakSet()
        )  # functions of autograd's that give wrapper tensors: torch runs them as they are
        self.gradients = True  # whether it takes graphs that take gradients themselves

    def learn(self, earlier: Sequence[GuardSet], values: Mapping[str, Any]) -> None:
        """Compare a call that no entry fits with what each entry was made for."""
        for guards in earlier:
            for source, sizes in guards.sizes():
                value = _fetched(source, values)
                if isinstance(value, Tensor) and value.dim() == len(sizes):
                    changed = {d for d, (a, b) in enumerate(zip(sizes, value.shape, strict=True)) if a not in (None, b)}
                    if changed:
                        self.dims[source] = self.dims.get(source, frozenset()) | changed
            for source, expected in guards.numbers():
                self._compare(source, expected, _fetched(source, values))
        for source, expected in earlier[-1].truths() if earlier else ():
            self.turns[source] = self.turns.get(source, 0) + (_fetched(source, values) is not expected)

    def learn_varying(self, earlier: Iterable[GuardSet], values: Mapping[str, Any], limit: int) -> None:
        """Note the arguments that had another value in each of `limit` captures, or a class that every call makes again.

        A capture for one more value would not be used again either: the graph is to break where they are looked at.
        """
        seen: dict[Source, list[Any]] = {}
        for guards in earlier:
            self.modules |= guards.other_modules(values)
            for source, expected in guards.pinned():
                seen.setdefault(source, []).append(expected)
        for source, known in seen.items():
            value = _fetched(source, values)
            value = tuple(dict.keys(value)) if isinstance(value, dict) else value
            cls = value if isinstance(value, type) else type(value)
            classes = {k for k in known if isinstance(k, type)}
            again = [k for k in classes if _names(k) == _names(cls)]
            if cls not in classes and len(again) >= _REMADE:
                self.varying.add(source.root())
            others = {k for k in known if not isinstance(k, type)}
            most = _PLACES if isinstance(source, Place) else limit // 2 if type(value) is float else limit
            if isinstance(source, Arg | Place) and len(others) >= most and all(k != value for k in others):
                self.varying.add(source)

    def _compare(self, source: Source, expected: Any, value: Any) -> None:
        kind = type(expected)
        if type(value) is not kind:
            return
        if kind in (tuple, torch.Size) and len(value) == len(expected):
            for index, (a, b) in enumerate(zip(expected, value, strict=True)):
                self._compare(Item(source, index), a, b)
        elif kind is int and value != expected or kind is float and repr(value) != repr(expected):
            self.numbers.add(source)
            base = getattr(source, "base", None)
            while base is not None and base not in self.inside:
                self.inside.add(base)
                base = getattr(base, "base", None)


def _names(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _fetched(source: Source, values: Mapping[str, Any]) -> Any:
    try:
        return source.fetch(values)
    except Exception:  # the user's own attribute code may raise anything
        return None


# ---- one capture ----


@dataclass
class Dynamic:
    """The symbols of one capture. `everything` is `dynamic=True`."""

    vm: Interpreter
    everything: bool = False
    marks: Marks = field(default_factory=Marks)
    promised: list[tuple[GraphInput, int, int, Promise]] = field(default_factory=list)
    _numbers: dict[Source, Any] = field(default_factory=dict)
    _floats: dict[int, tuple[Any, Source]] = field(default_factory=dict)
    _host: HostNumbers | None = None
    _late: LateNumbers | None = None

    def tensor(self, value: Tensor, source: Source, static: bool, promised: bool = True) -> tuple[Tensor, GraphInput]:
        """The fake twin of an input, with symbols for the sizes that change, and its record."""
        vm = self.vm
        promises = promises_of(value) if promised and not static else {}
        wanted = set() if static else set(self._changing(value, source))
        for d, promise in promises.items():
            (wanted.discard if promise.kind == "static" else wanted.add)(d)
        wanted = {d for d in wanted if value.shape[d] > 1}  # sizes 0 and 1 broadcast or vanish: an entry of their own
        if wanted:
            vm.need_symbols()
        ranges = {d: (p.low, p.high) for d, p in promises.items() if p.kind == "dynamic"}
        fake = fake_tensor(vm.fake_mode, value, tuple(sorted(wanted)), source.name(), ranges)
        info = GraphInput(source, fake, value, static)
        for d, promise in promises.items():
            if promise.kind == "dynamic" and value.shape[d] > 1:
                self.promised.append((info, d, int(value.shape[d]), promise))
        return fake, info

    def _changing(self, value: Tensor, source: Source) -> Iterable[int]:
        dims = {*range(value.dim())}  # other calls may have had a tensor of more
        return dims if self.everything else dims & self.marks.dims.get(source, frozenset())

    def opens(self, source: Source) -> bool:
        """Whether a constant tuple is to be read item by item, because a number in it changes."""
        return source in self.marks.inside

    def number(self, value: int | float, source: Source, always: bool = False) -> Any:
        """A symbolic int for a number that changes, or `always`, or None for one that is taken as it is."""
        known = self._numbers.get(source)
        if known is not None:
            return known
        kind = type(value)
        if abs(value) >= _LARGEST or not (always or self._is_wanted(value, source)):
            return None
        vm = self.vm
        if kind is float:
            if value - value != 0.0 or value == 0.0 or not self.marks.floats:
                return None
            vm.need_symbols()
            vm.guards.add("type", source, kind)
            return self.float_of(value, source)
        vm.need_symbols()
        vm.guards.add("type", source, kind)
        # A symbol is never negative: of a negative number the opposite is read.
        base = source if value >= 0 else Fetch(operator.neg, source)
        made = symbolic_int(vm.shape_env, abs(int(value)), base.name())
        vm.out.add_input(GraphInput(base, made, abs(value), False))
        self._numbers[source] = made if value >= 0 else -made
        return self._numbers[source]

    def offset(self, info: GraphInput) -> Any:
        """Where an input begins in its storage; where that changes, a number that the graph is given: no size says it."""
        offset: Any = info.fake.storage_offset()
        if type(offset) is int:
            return offset
        made = self.number(hint_of(offset), Fetch(Tensor.storage_offset, info.source), always=True)
        if offset.node.expr == offset.node._expr:
            named_by(offset, made)
        return made

    def _is_wanted(self, value: int | float, source: Source) -> bool:
        if source in self.marks.numbers or type(value) is float and _is_rate(source):
            return True
        if not self.everything or type(value) is not int or value < 2:
            return False
        while isinstance(source, Item):
            source = source.base
        return isinstance(source, Arg)

    # ---- floats: each is a symbol of its own, computed in Python as eager computes it ----

    def float_of(self, value: float, source: Source) -> Any:
        """The symbol of a finite float. Zeros are constants: where a program compares one, a symbol has lost its sign."""
        known = self._numbers.get(source)
        if known is not None:
            return known
        if value == 0.0:
            self.vm.guards.add("equals", source, value)
            return value
        made = symbolic_float(self.vm.shape_env, value, f"{source.name()} #{len(self._floats)}")
        self._floats[id(made)] = (made, source)
        self._numbers[source] = made
        self.vm.out.add_input(GraphInput(source, made, value, False))
        return made

    def item(self, tensor: Tensor) -> Any:
        """`tensor.item()` as a symbolic float, where the host knows it before the graph runs; else None."""
        if not self.marks.floats or tensor.requires_grad or self.vm.out.inside:
            return None
        found = self._numbers_of_tensors().read(tensor)
        if found is None or found[0] is None:
            return None if found is None else found[1]
        self.vm.need_symbols()
        return self.float_of(found[1], found[0])

    def any_item(self, tensor: Tensor) -> Any:
        """`tensor.item()`, known to the host or not; None where the graph has to end."""
        found = (read(tensor) for read in (self.item, self.late_item, partial(read_number, self.vm)))
        return next((number for number in found if number is not None), None)

    def late_item(self, tensor: Tensor) -> Any:
        """`tensor.item()` as a number that only the running program knows; None where the graph has to end."""
        return self._late.read(tensor) if self.may_be_late() and self._late is not None else None

    def may_be_late(self) -> bool:
        """Whether numbers and sizes may be symbols that only the running program knows."""
        if not self.marks.floats or self.vm.out.inside:
            return False
        self.vm.need_symbols()
        self._late = self._late or LateNumbers(self.vm)
        return True

    def late(self, value: Any) -> Tensor | None:
        """The tensor that holds a number which only the running program knows."""
        return None if self._late is None else self._late.tensor_of(value)

    def extreme(self, values: list[Any], larger: bool) -> Any:
        """`max` or `min` of two numbers one of which is late, or in a tensor of the graph's; else None."""
        if len(values) != 2:
            return None
        first, second = values
        if any(isinstance(v, Tensor) and is_number(v, self.vm.out) for v in values):
            return self._late.chosen(self.vm, first, second, larger) if self.may_be_late() and self._late else None
        known = any(self.late(v) is not None for v in values)
        return self._late.extreme(first, second, larger) if known and self._late else None

    def check_type(self, value: Any) -> None:
        """Break where a number came to be that may be a tensor in eager, if it is."""
        if self._late is not None:
            self._late.check(value)

    def truth(self, tensor: Tensor) -> bool | None:
        """`bool(tensor)`, guarded, where it is asked of an input as it is before the graph; else None."""
        found = self._numbers_of_tensors().truth(tensor)
        if found is None or self.marks.turns.get(found[0], 0) > _TURNS:
            return None
        self.vm.guards.add("equals", *found)
        return found[1]

    def _numbers_of_tensors(self) -> HostNumbers:
        if self._host is None:
            self._host = HostNumbers(self.vm.out, self.source_of, self.vm.guards.extra.append)
        return self._host

    def written_by_host(self) -> dict[Source, list[Source]]:
        """By the number, the tensors that the host writes it into behind the graph, which does not."""
        return {} if self._host is None else self._host.leave_to_host()

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Real Python code with symbols among its arguments: arithmetic stays symbolic, text and keys become constants."""
        if function is operator.getitem and type(args[1]) is int:  # of a list of hundreds, perhaps
            return function(*args)
        if self._late is not None and any(self.late(a) is not None for a in args):
            recording, self.vm.recording = self.vm.recording, False
            try:
                return self._late.applied(function, args, kwargs)
            finally:
                self.vm.recording = recording
        kinds = {type(a) for a in args}
        plain = not kwargs and kinds <= {int, float, torch.SymInt, torch.SymFloat}
        known = any(function is f for f in (_ARITHMETIC if torch.SymFloat in kinds else _OF_FLOATS))
        if plain and self.marks.floats and known and kinds & {torch.SymInt, torch.SymFloat}:
            value = None if may_be_complex(function, args) else of_hints(function, args)
            if type(value) is float and value - value == 0.0:
                return self.float_of(value, Computed(function, tuple(map(self.source_of, args))))
        if len(args) == 1 and type(args[0]) is torch.SymFloat and not kwargs and any(function is f for f in _ROUNDING):
            return self.whole(args[0], function)
        value = call_with_symbols(function, args, kwargs, self.vm.methods.repeats())
        if self.vm.out.read.is_read_float(value) and self.may_be_late() and self._late is not None:
            return self._late.of_integers(function, args, kwargs)  # which checks that Python refuses none
        domain = domain_of(function, args)
        if type(domain) is torch.SymBool:
            self.vm.decision(domain, ASSERTED)
        return self.vm.out.read.no_float(value)

    def whole(self, value: Any, function: Any = int) -> Any:
        """`function(value)`, an int, of a symbolic float: a symbol of its own where the float is more than a quotient of sizes."""
        if self.late(value) is not None:
            return self.call(function, (value,), {})
        number = function(hint_of(value))
        quotient = type(value.node.expr).__name__ == "IntTrueDiv"
        if quotient or not self.marks.floats or type(number) is not int or not 0 <= number < _LARGEST:
            return torch.sym_int(value) if function in (int, math.trunc) else function(value)
        source = Computed(function, (self.source_of(value),))
        if source not in self._numbers:
            made = symbolic_int(self.vm.shape_env, number, source.name())
            self.vm.out.add_input(GraphInput(source, made, number, False))
            self._numbers[source] = made
        return self._numbers[source]

    def source_of(self, value: Any) -> Source:
        if type(value) not in NUMBERS:
            return Number(value)
        if self.late(value) is not None:
            raise GraphBreak(READ)
        known = self._floats.get(id(value))
        if known is not None:
            return known[1]
        expr, bound = value.node.expr, self.vm.out.symbols
        return SizeExpression(
            expr, tuple((s, bound[s][0].source, *bound[s][1:]) for s in sorted(expr.free_symbols, key=str))
        )

    def number_input(self, value: Any) -> Any:
        """The symbolic float, itself an input of the graph, that stands for one that was computed from sizes."""
        if self.late(value) is not None:
            raise GraphBreak(READ)
        if id(value) in self._floats or not self.marks.floats or value.node.expr.is_number:
            return value
        if not all(s in self.vm.out.symbols for s in value.node.expr.free_symbols):
            return value
        source = self.source_of(value)
        if source not in self._numbers:
            hint = hint_of(value)
            if type(hint) is not float or hint - hint != 0.0:
                return value
            return self.float_of(hint, source)
        return self._numbers[source]

    def is_float(self, value: Any) -> bool:
        """Whether it is a symbolic float that does not follow from sizes alone."""
        return id(value) in self._floats

    # ---- promises ----

    def check_promises(self, place_of: Any) -> None:
        """Raise ConstraintError for a promised size that the program fixed or narrowed; `place_of(symbol)` is the line."""
        for info, d, real, promise in self.promised:
            size = info.fake.shape[d]
            problem = self._broken(size, promise, real)
            if problem is not None:
                symbol = size.node._expr if isinstance(size, torch.SymInt) else None
                raise ConstraintError(_message(info.source.name(), d, promise, problem, place_of(symbol)))

    def release(self) -> None:
        """The capture is done: let go of what it knew of the call, keep what the backend may still change."""
        if self.vm.shape_env is not None:
            self.vm.shape_env.guards.where = _nowhere
        del self.vm

    def _broken(self, size: Any, promise: Promise, real: int) -> str | None:
        if not isinstance(size, torch.SymInt) or size.node.expr.is_number:
            return f"the program needs it to be {real}"
        expr, env = size.node.expr, size.node.shape_env
        limits = env.var_to_range.get(expr) if expr.is_Symbol else None
        if limits is None:
            return None
        low, high = int_bounds(limits)
        if promise.low is not None and low > max(promise.low, 2):
            return f"the program needs it to be at least {low}"
        if promise.high is not None and high is not None and high < promise.high:
            return f"the program needs it to be at most {high}"
        return None


def _group(source: Source) -> Source | None:
    """The group of an optimizer's parameters that a number is in, also in a tuple there: schedules change these."""
    while isinstance(source, Item):
        group = source.base
        groups = group.base if isinstance(group, Item) else None
        if getattr(groups, "key", getattr(groups, "attr", None)) == "param_groups":
            return group
        source = group
    return None


def _is_rate(source: Source) -> bool:
    """Whether a number is the learning rate of a group of an optimizer's, which schedules change in each step."""
    return isinstance(source, Item) and source.key == "lr" and _group(source) is source.base


def _nowhere() -> None:
    return None


def _message(name: str, dim: int, promise: Promise, problem: str, place: SourceLine | None) -> str:
    bounds = "".join(
        f", {key}={bound}" for key, bound in (("min", promise.low), ("max", promise.high)) if bound is not None
    )
    where = [] if place is None else [f"{place.filename}:{place.lineno}: {place.text}"]
    return "\n".join(
        [
            *where,
            f"  {name}.shape[{dim}] is marked dynamic, but {problem}",
            f"  marked by: mark_dynamic({name}, {dim}{bounds})",
            "  what to do: change this line so that it works for every size, promise a range that it allows (min=, max=),",
            "  or use maybe_mark_dynamic, which lets the compiler fix the size",
        ]
    )


@dataclass
class Symbols:
    """What one capture relies on of its symbols: completed by what the backend comes to rely on."""

    sizes: SizeCheck
    dynamic: Dynamic

    def check(self) -> None:
        """Raise ConstraintError where a promise is broken."""
        self.dynamic.check_promises(self.sizes.place_of)

    def late(self) -> list[Statement]:
        """Checks of the relations that the backend has come to rely on.

        Raises:
            ConstraintError: the backend fixed a size that was promised to be dynamic.
        """
        self.check()
        return self.sizes.late()


_BINARY = "add sub mul truediv pow iadd isub imul itruediv ipow mod floordiv neg pos abs"
_FUNCTIONS = "sqrt cbrt exp exp2 expm1 log log2 log10 log1p pow cos sin tan acos asin atan cosh sinh tanh erf"
_OF_FLOATS = frozenset(getattr(math, name) for name in _FUNCTIONS.split())  # of ints, too, they give floats
_ARITHMETIC = _OF_FLOATS | {abs, float, *(getattr(operator, name) for name in _BINARY.split())}
_TURNS = 2  # what turns more often is a break, with both sides compiled
_ROUNDING = frozenset([int, round, math.trunc, math.floor, math.ceil])
