"""Functions of Python's library that go over items: sorting, extremes, sums, searches, lengths, concatenation."""

from __future__ import annotations

import collections
import functools
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..branches.truths import any_of
from ..breaks.breaks import restart_point
from ..errors import UserRaise
from ..graph.read_sizes import ReadSizes
from ..graph.sym_nodes import concrete
from ..state import EITHER, Interpreter
from ..values import object as objects
from ..values import operators
from ..values.constant import is_constant
from ..values.kinds import c_name, isinstance
from ..values.protocol import answered
from ..values.text import Text, late_text
from .registry import C_DESCRIPTORS, Rows
from .visibility import check_visible, is_same, refuse_opaque

__all__: list[str] = []

ROWS = Rows()


class _Compared:
    """A key that `functools.cmp_to_key` made."""

    __slots__ = ("compare", "obj", "vm")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, vm: Interpreter, compare: Any, obj: Any) -> None:
        self.vm, self.compare, self.obj = vm, compare, obj

    def order(self, other: Any) -> Any:
        """What the program's function says of two keys: less than zero where this one comes first."""
        if type(other) is not _Compared:
            raise UserRaise(TypeError("other argument must be K instance"))
        return self.vm.call(self.compare, (self.obj, other.obj), {})


def _by_order(symbol: str) -> Any:
    return lambda key, other: operators.compare(key.vm, symbol, key.order(other), 0)


for _name, _symbol in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">="), ("eq", "==")):
    setattr(_Compared, f"__{_name}__", _by_order(_symbol))


@ROWS.rule(functools.cmp_to_key)
def _cmp_to_key(vm: Interpreter, mycmp: Any) -> Any:
    real: Any = functools.cmp_to_key(mycmp)

    def key(*args: Any, **kwargs: Any) -> _Compared:
        obj = vm.native(
            lambda *a, **k: real(*a, **k).obj, *args, **kwargs
        )  # which refuses other arguments, and has no hash
        made = vm.create(_Compared(vm, mycmp, obj))
        vm.recipes[id(made)] = (_made_key, (mycmp, obj), {})
        return made

    vm.recipes[id(key)] = (functools.cmp_to_key, (mycmp,), {}, key)
    return key


def _made_key(mycmp: Any, obj: Any) -> Any:
    return functools.cmp_to_key(mycmp)(obj)


class _Ordered:
    """A value whose `<` is the program's, for sorting in C."""

    __slots__ = ("value", "vm")

    def __init__(self, vm: Interpreter, value: Any) -> None:
        self.vm, self.value = vm, value

    def __lt__(self, other: _Ordered) -> bool:
        mine, theirs = self.value, other.value
        if is_constant(mine) and is_constant(theirs):
            return bool(mine < theirs)
        if isinstance(mine, _Compared):
            mine, theirs = mine.order(theirs), 0
        return self.vm.truth(operators.compare(self.vm, "<", mine, theirs))


try:
    [0].index(1)
except ValueError as _error:
    LIST_INDEX_IS_PLAIN = "1" not in str(_error)  # whether the message has no value, as in later versions


@ROWS.rule(sorted)
def _sorted(vm: Interpreter, values: Any, *, key: Any = None, reverse: Any = False) -> list[Any]:
    items = vm.listed(values)
    _sort(vm, items, key=key, reverse=reverse)
    return items


def _sort(vm: Interpreter, items: list[Any], *given: Any, key: Any = None, reverse: Any = False) -> None:
    """The list itself is sorted by C code: it is empty meanwhile, and C sees it changed; where comparing fails, it is half sorted."""
    if given:
        vm.native([].sort, *given)  # which refuses them
    backwards = vm.truth(reverse)
    if key is None and all(map(is_constant, list.__iter__(items))):
        vm.native(list.sort, items, reverse=backwards)
        return
    vm.native(
        list.sort, items, key=lambda x: _Ordered(vm, x if key is None else vm.call(key, (x,), {})), reverse=backwards
    )


def _extreme(function: Callable[..., Any], symbol: str) -> Callable[..., Any]:
    def apply(vm: Interpreter, *args: Any, key: Any = None, **default: Any) -> Any:
        """Each item is compared with the best before the next one is taken: both may run code of the program's."""
        if not args or len(args) > 1 and default or default.keys() - {"default"}:
            vm.native(function, *args[:2], **default, **({} if key is None else {"key": key}))  # which says so
        iterator = vm.iterate(args if len(args) > 1 else args[0])
        more, best = vm.advance(iterator)
        if not more:
            return vm.native(function, [], **default)
        least = best if key is None else vm.call(key, (best,), {})
        while (step := vm.advance(iterator))[0]:
            item, value = step[1], step[1] if key is None else vm.call(key, (step[1],), {})
            if key is None and (either := _either(vm, function is max, symbol, best, item)) is not None:
                best = least = either
            elif key is not None and (chosen := _chosen(vm, symbol, (item, value), (best, least))) is not None:
                best, least = chosen
            elif vm.truth(operators.compare(vm, symbol, value, least)):
                best, least = item, value
        return best

    return apply


def _either(vm: Interpreter, larger: bool, symbol: str, best: Any, item: Any) -> Any:
    """The larger or smaller of two numbers or tensors whose values are not known yet; None where that is to be compared."""
    late = vm.dynamic.extreme([best, item], larger)
    if late is None and _is_read_size(best, item):
        return (torch.sym_max if larger else torch.sym_min)(best, item)
    if late is not None or not isinstance(best, Tensor) or not isinstance(item, Tensor):
        return late
    found = operators.compare(vm, symbol, item, best)
    truth = vm.decision(found, EITHER)
    return vm.branches.either(vm, found, item, best) if truth is None else item if truth else best


def _chosen(vm: Interpreter, symbol: str, new: tuple[Any, Any], old: tuple[Any, Any]) -> tuple[Any, Any] | None:
    """The better of two items with its key, where the keys are tensors of one number; None where the keys are to be compared."""
    if not all(isinstance(key, Tensor) and key.numel() == 1 for _, key in (new, old)):
        return None
    found = operators.compare(vm, symbol, new[1], old[1])
    truth = vm.decision(found, EITHER)
    if truth is not None:
        return new if truth else old
    keys = (vm.out.call_method("detach", (k,), {}) if k.requires_grad else k for k in (new[1], old[1]))
    return vm.branches.either(vm, found, new[0], old[0]), vm.branches.either(vm, found, *keys)  # nobody else sees a key


def _is_read_size(*values: Any) -> bool:
    """Whether these are integers, at least one of which only the running program knows."""
    symbols = [v for v in values if type(v) is torch.SymInt and getattr(v.node, "expr", None) is not None]
    return all(type(v) is int or any(v is s for s in symbols) for v in values) and any(map(ReadSizes.is_read, symbols))


ROWS.rule(max)(_extreme(max, ">"))
ROWS.rule(min)(_extreme(min, "<"))


def iterated(vm: Interpreter, values: Any, refuse: Callable[[], Any]) -> Any:
    """`iter(values)` for C code with words of its own for what has no iterator, which `refuse` raises."""
    try:
        return vm.iterate(values)
    except UserRaise as raised:
        if isinstance(raised.value, TypeError):
            vm.native(refuse)
        raise


@ROWS.rule(functools.reduce)
def _reduce(vm: Interpreter, function: Any, values: Any, initial: Any = objects.MISSING, /) -> Any:
    iterator = iterated(vm, values, lambda: functools.reduce(max, 0))  # type: ignore[call-overload]
    more, total = vm.advance(iterator) if initial is objects.MISSING else (True, initial)
    if not more:
        raise UserRaise(TypeError("reduce() of empty iterable with no initial value"))
    while (step := vm.advance(iterator))[0]:
        total = vm.call(function, (total, step[1]), {})
    return total


@ROWS.rule(sum)
def _sum(vm: Interpreter, values: Any, start: Any = 0) -> Any:
    iterator, total = vm.iterate(values), start
    while (step := vm.advance(iterator))[0]:
        total = operators.binary(vm, "+", total, step[1])
    return total


@ROWS.rule(any)
def _any(vm: Interpreter, values: Any) -> Any:
    return _first(vm, values, True)


@ROWS.rule(all)
def _all(vm: Interpreter, values: Any) -> Any:
    return operators.unary(vm, "not", _first(vm, values, False))


def _first(vm: Interpreter, values: Any, wanted: bool) -> Any:
    """Whether some value has this truth; the iterator is left where that is known."""
    plain = type(values) in (list, tuple) and not any(vm.overrides.own(v, "__bool__") for v in values)
    late = any_of(vm, values, wanted) if plain else None
    if late is not None:
        return late
    iterator = vm.iterate(values)
    while True:
        more, item = vm.advance(iterator)
        if not more:
            return False
        if vm.truth(item) is wanted:
            return True


@ROWS.rule(reversed)
def _reversed(vm: Interpreter, values: Any) -> Any:
    if isinstance(values, Tensor):
        if (own := vm.overrides.own(values, "__reversed__")) is not None:
            return vm.call(own, (), {})
        vm.overrides.check_methods(Tensor.__reversed__, (values,))
        return vm.call(torch.flip, (values, [0]), {}) if values.dim() else values
    method, owner = objects.lookup(type(values), "__reversed__")
    if method is None and owner is not None:
        raise UserRaise(TypeError(f"'{c_name(vm.type_of(values))}' object is not reversible"))
    if owner is not None and type(method) not in C_DESCRIPTORS and not vm.is_frontend_class(type(values)):
        return vm.call(objects.bind(vm, method, owner, values, type(values), "__reversed__"), (), {})
    if (items := vm.user.items_of(values)) is not None:
        return vm.native(reversed, items)
    if owner is None and objects.find_method(type(values), "__getitem__") is not None:  # asked for an item at a time
        check_visible(vm, (values,), "reversed()")
        made = vm.native(reversed, values)
        vm.methods.iterators[id(made)] = made, restart_point(vm), tuple(vm.places())
        return made
    values = vm.materialize(values)
    if vm.is_frontend_class(type(values)) and not hasattr(type(values), "__reversed__"):
        raise UserRaise(TypeError(f"'{c_name(vm.type_of(values))}' object is not reversible"))
    check_visible(vm, () if isinstance(values, list | tuple | dict) else (values,), "reversed()")
    return vm.native(reversed, values)


def _equal(vm: Interpreter, a: Any, b: Any) -> bool:
    return is_same(vm, a, b) or vm.truth(operators.compare(vm, "==", a, b))


def _count(vm: Interpreter, items: Any, value: Any) -> int:
    return sum(_equal(vm, item, value) for item in operators.each_now(items))


def _index(vm: Interpreter, items: Any, value: Any, *bounds: Any) -> int:
    base: Any = tuple if isinstance(items, tuple) else list
    if len(bounds) > 2 or any(bound is None for bound in bounds):
        vm.native(base.index, base(), value, *bounds)  # which refuses them
    first, last = [*map(concrete, bounds), None, None][:2]
    for i in range(base.__len__(items))[slice(_as_number(vm, first), _as_number(vm, last))]:
        if i >= base.__len__(items):
            break
        if _equal(vm, base.__getitem__(items, i), value):
            return i
    if base is tuple or LIST_INDEX_IS_PLAIN:
        vm.native(base.index, base(), None)  # which raises, in CPython's words
    raise UserRaise(ValueError(f"{vm.call(repr, (value,), {})} is not in list"))


def _as_number(vm: Interpreter, value: Any) -> Any:
    index = None if isinstance(value, int) else objects.find_method(type(value), "__index__")
    return value if index is None else vm.call(operator.index, (value,), {})


def _remove(vm: Interpreter, items: list[Any], value: Any) -> None:
    for i, item in enumerate(operators.each_now(items)):
        if _equal(vm, item, value):
            list.__setitem__(items, slice(i, i + 1), [])  # it may be shorter now
            return
    raise UserRaise(ValueError("list.remove(x): x not in list"))


def _in_deque(function: Any) -> Any:
    """A search of a deque, which C code does: it notices where the deque changes meanwhile."""

    def apply(vm: Interpreter, items: Any, *args: Any) -> Any:
        check_visible(vm, (items, *args), function.__name__)
        for item in collections.deque.__iter__(items) if args else ():
            is_same(vm, item, args[0])
        return vm.native_recorded(function, items, *args)

    apply.__name__ = function.__name__
    return apply


def _of_known_items(function: Any, least: int = 1, most: int = 1) -> Any:
    """A method of sequences, for those whose items are guarded, with so many arguments."""

    def apply(vm: Interpreter, items: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_opaque(vm, items, f"{function.__name__.strip('_')}()")
        if not least <= len(args) <= most or kwargs and function is not _sort:
            vm.native(getattr(type(items), function.__name__.strip("_")), items, *args, **kwargs)  # which says so
        return function(vm, items, *args, **kwargs)

    return apply


ROWS.rule(list.sort)(_of_known_items(_sort, 0, 0))
ROWS.rule(list.count, tuple.count)(_of_known_items(_count))
ROWS.rule(list.index, tuple.index)(_of_known_items(_index, 1, 3))
ROWS.rule(list.remove)(_of_known_items(_remove))
for _search in (collections.deque.index, collections.deque.count, collections.deque.remove):
    ROWS.rule(_search)(_of_known_items(_in_deque(_search), 1, 3 if _search is collections.deque.index else 1))


@ROWS.rule(operator.length_hint)
def _length_hint(vm: Interpreter, obj: Any, default: Any = 0) -> Any:
    """The length; where there is none, or a TypeError instead, what `__length_hint__` says; where that says nothing, the default."""
    if not isinstance(default, int):
        default = vm.call(operator.index, (default,), {})
    kind = type(obj)
    if vm.tracked_contents(obj) is not None or objects.lookup(kind, "__len__")[1] is not None:
        length = _unless_type_error(vm, len, obj)
        if length is not NotImplemented:
            return length
    hint, owner = objects.lookup(kind, "__length_hint__")
    if owner is None:
        return default
    if isinstance(hint, types.MethodDescriptorType):
        refuse_opaque(vm, obj, "length_hint()")
        return vm.native(operator.length_hint, vm.materialize(obj), default)
    result = _unless_type_error(vm, objects.bind(vm, hint, owner, obj, kind, "__length_hint__"))
    return default if result is NotImplemented else answered(vm, operator.length_hint, obj, "__length_hint__", result)


def _unless_type_error(vm: Interpreter, function: Any, *args: Any) -> Any:
    """What a call gives, NotImplemented where it raises a TypeError."""
    try:
        return vm.call(function, args, {})
    except UserRaise as raised:
        if not isinstance(raised.value, TypeError):
            raise
        return NotImplemented


@ROWS.rule(str.join)
def _join(vm: Interpreter, separator: Any, items: Any) -> Any:
    if type(items) not in (list, tuple):
        items = vm.listed(iterated(vm, items, lambda: separator.join(0)))
    late = any(type(item) is Text for item in items)
    return late_text(vm, str.join, (separator, items), {}) if late else vm.native(str.join, separator, items)


@ROWS.rule(bytes.join)
def _join_bytes(vm: Interpreter, separator: Any, items: Any) -> Any:
    if type(items) not in (list, tuple):
        items = vm.listed(iterated(vm, items, lambda: separator.join(0)))
    check_visible(vm, (items,), "join()")
    return vm.native(bytes.join, separator, items)


@ROWS.rule(operator.concat)
def _concat(vm: Interpreter, left: Any, right: Any) -> Any:
    return _concatenated(vm, "+", left, right)


@ROWS.rule(operator.iconcat)
def _iconcat(vm: Interpreter, left: Any, right: Any) -> Any:
    return _concatenated(vm, "+=", left, right)


def _concatenated(vm: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    if objects.lookup(type(left), "__getitem__")[1] is None or objects.lookup(type(right), "__getitem__")[1] is None:
        raise UserRaise(TypeError(f"{vm.type_of(left).__name__!r} object can't be concatenated"))
    return operators.binary(vm, symbol, left, right)


@ROWS.rule(operator.countOf)
def _count_of(vm: Interpreter, values: Any, value: Any) -> int:
    return sum(_equal(vm, item, value) for item in _each_of(vm, values))


@ROWS.rule(operator.indexOf)
def _index_of(vm: Interpreter, values: Any, value: Any) -> int:
    for i, item in enumerate(_each_of(vm, values)):
        if _equal(vm, item, value):
            return i
    raise UserRaise(ValueError("sequence.index(x): x not in sequence"))


def _each_of(vm: Interpreter, values: Any) -> Iterator[Any]:
    try:
        iterator = vm.iterate(values)
    except UserRaise as raised:
        if not isinstance(raised.value, TypeError):
            raise
        raise UserRaise(TypeError(f"argument of type '{c_name(vm.type_of(values))}' is not iterable")) from None
    while True:
        more, item = vm.advance(iterator)
        if not more:
            return
        yield item
