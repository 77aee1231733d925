"""Binary operators and comparisons as tables: symbol, function, special methods."""

from __future__ import annotations

import functools
import operator
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..branches.truths import as_operand, is_among, truth_of
from ..calls.visibility import check_key, check_operands, check_text, check_visible, is_same, refuse_opaque
from ..errors import GraphBreak, Unsupported, UserRaise
from ..graph.read_numbers import constant_of, with_numbers
from ..state import Interpreter
from ..subclasses import jagged
from ..torch_private.symbols import hint_of
from . import object as objects
from .constant import is_constant
from .container import GlobalsDict, InstanceDict, LazyDict
from .kinds import SYMBOLIC, isinstance
from .protocol import binary_by_methods, compare_by_methods, is_written_in_python
from .sets import rely_on_table
from .tensor import rely_on_method, tensor_class
from .text import Text, is_late, late_text

__all__ = [
    "BINARY",
    "COMPARE",
    "UNARY",
    "binary",
    "compare",
    "contains",
    "delete_item",
    "get_item",
    "is_old_sequence",
    "set_item",
    "unary",
]

_NAMES = {"+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul"}
_NAMES |= {"<<": "lshift", ">>": "rshift", "&": "and", "|": "or", "^": "xor"}
BINARY: dict[str, tuple[Any, str]] = {
    **{symbol: (getattr(operator, f"__{name}__"), name) for symbol, name in _NAMES.items()},
    **{f"{symbol}=": (getattr(operator, f"__i{name}__"), name) for symbol, name in _NAMES.items()},
}
COMPARE: dict[str, tuple[Any, str, str]] = {
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}
_REFLECTED = {f: next(g for g, name, _ in COMPARE.values() if name == mirror) for f, _, mirror in COMPARE.values()}
UNARY: dict[str, tuple[Any, str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
}


# Exactly of these types, so that nothing of the program's runs, no symbol is among them, and nothing has to be looked into.
_NUMBERS = frozenset([int, float, bool])
_PLAIN = _NUMBERS | {str, type(None)}
_KEYS = type(functools.cmp_to_key(operator.sub))  # of the keys, too: compared, they call the program


def binary(vm: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    """`left symbol right`."""
    function, name = BINARY[symbol]
    if type(left) in _NUMBERS and type(right) in _NUMBERS:
        return vm.native(function, left, right)
    if symbol[0] == "%" and type(left) in (str, Text) and is_late(vm, [left, right]):
        return late_text(vm, operator.mod, (left, right), {})
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        result = _overridden(vm, function, symbol, left, right, _names_of(name, symbol))
        if result is not NotImplemented:
            return result
        if not isinstance(left, Tensor):
            function = BINARY[symbol.removesuffix("=")][0]
        rely_on_method(vm, f"__{name}__" if isinstance(left, Tensor) else f"__r{name}__")
        if symbol[-1] == "=":
            rely_on_method(vm, f"__i{name}__")
        if symbol.removesuffix("=") in _TAKE_TRUTHS:
            left, right = (as_operand(vm, a, b) for a, b in ((left, right), (right, left)))
        result = _of_the_other(vm, name, left, right)
        return vm.out.call_function(function, (left, right), {}) if result is NotImplemented else result
    if isinstance(left, SYMBOLIC) or isinstance(right, SYMBOLIC):
        return vm.native(function, left, right)
    if (
        vm.branches.lists.known
        and (made := vm.branches.lists.call(vm, function, (left, right), {})) is not NotImplemented
    ):
        return made
    if symbol[0] == "*" and name == "mul":
        left, right = _repeats(vm, left, right), _repeats(vm, right, left)
    own = (f"__{name}__", f"__i{name}__") if symbol.endswith("=") else (f"__{name}__",)
    if is_written_in_python(left, *own) or is_written_in_python(right, f"__r{name}__"):
        return binary_by_methods(vm, symbol, name, left, right)
    left, right = _as_items(vm, symbol, left, right), _as_items(vm, symbol, right, left)
    if symbol == "|=" and type(left) is LazyDict:
        vm.native(left.writable().update, vm.materialize(right))
        return left
    if symbol == "+=" and isinstance(left, list) and objects.lookup(type(left), "__iadd__")[1] is list:
        refuse_opaque(vm, left, "`+=`")
        list.extend(left, vm.listed(right))
        return left
    if symbol[0] == "%" and isinstance(left, str | bytes):
        check_text(vm, right)
        check_visible(vm, (right,), "`%`")
    if not (isinstance(left, list | tuple) or isinstance(right, list | tuple)):
        check_operands(vm, (left, right), f"`{symbol}`")
    rely_on_table(vm, left)
    rely_on_table(vm, right)
    if type(left) in _SETS or type(right) in _SETS:  # which take nothing from an iterator here
        left, right = (v if vm.user.is_iterator(v) else vm.materialize(v) for v in (left, right))
        return vm.native_recorded(function, left, right)
    return vm.native_recorded(function, vm.materialize(left), vm.materialize(right))


_SETS = (set, frozenset)
_TAKE_TRUTHS = frozenset("&|^*+/")  # what gives the same for a bool as for a tensor of one without dimensions


def _names_of(name: str, symbol: str) -> tuple[tuple[str, ...], str]:
    return ((f"__i{name}__", f"__{name}__") if symbol[-1] == "=" else (f"__{name}__",)), f"__r{name}__"


def _overridden(
    vm: Interpreter, function: Any, symbol: str, left: Any, right: Any, names: tuple[tuple[str, ...], str]
) -> Any:
    """`left symbol right` where a class of the program's, or a mode, says what that is; else `NotImplemented`."""
    if not vm.overrides.known and not vm.overrides.active:
        return NotImplemented
    for value, own in ((left, names[0]), (right, names[1:])):
        kind = vm.overrides.kind_of(value) if isinstance(value, Tensor) else None
        if kind is not None and is_written_in_python_by(kind, own):
            raise GraphBreak(f"`{symbol}` is a method of {kind.__qualname__}")
    return vm.overrides.run(function, (left, right), {}) if vm.overrides.concern((left, right)) else NotImplemented


def is_written_in_python_by(kind: type, names: tuple[str, ...]) -> bool:
    """Whether a class of the program's, and not torch's, has one of these methods."""
    owners = [objects.lookup(kind, name)[1] for name in names]
    return any(owner is not None and owner not in Tensor.__mro__ for owner in owners)


def _as_items(vm: Interpreter, symbol: str, value: Any, other: Any) -> Any:
    """The items of an object of the caller's that derives from list, where the operator only reads them."""
    items = vm.user.items_of(value)
    if items is None or symbol == "+=" and isinstance(other, list):
        return value
    if symbol in ("+", "*") and isinstance(other, list | int):
        return items
    raise GraphBreak(f"`{symbol}` looks into {vm.user.opaque[id(value)]}, a {type(value).__name__} of the caller's")


def _repeats(vm: Interpreter, value: Any, other: Any) -> Any:
    """How often a sequence is repeated, where an object stands for a number."""
    kind = type(value)
    if not isinstance(other, list | tuple | str | bytes) or isinstance(value, int):
        return value
    index = objects.find_method(kind, "__index__")
    numeric = any(objects.find_method(kind, f"__{name}__") for name in ("mul", "rmul"))
    return value if index is None or numeric else vm.call(operator.index, (value,), {})


def _of_the_other(vm: Interpreter, name: str, left: Any, right: Any) -> Any:
    """The answer of the operand that is no tensor: tensors leave objects that they do not know to them."""
    owner, operand, method = (right, left, f"__r{name}__") if isinstance(left, Tensor) else (left, right, f"__{name}__")
    kind = type(owner)
    known = isinstance(owner, Tensor | int | float | complex)
    if known or hasattr(kind, "__torch_function__") or hasattr(kind, "__array__"):
        return NotImplemented
    found = objects.find_method(kind, method)
    return NotImplemented if found is None else vm.call(found, (owner, operand), {})


def compare(vm: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    """`left symbol right` for a comparison."""
    function, method, reflected = COMPARE[symbol]
    if type(left) in _PLAIN and type(right) in _PLAIN:
        return vm.native(function, left, right)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        result = _overridden(vm, function, symbol, left, right, ((method,), reflected))
        if result is not NotImplemented:
            return result
        rely_on_method(vm, method if isinstance(left, Tensor) else reflected)
        if isinstance(left, Tensor) and isinstance(right, Tensor):
            mine, other = tensor_class(vm, left), tensor_class(vm, right)
            # CPython asks the subclass first: results lie as its tensor does.
            if mine is not other and issubclass(other, mine):
                return vm.out.call_function(_REFLECTED[function], (right, left), {})
        return vm.out.call_function(function, (left, right), {})
    if isinstance(left, SYMBOLIC) or isinstance(right, SYMBOLIC):
        # torch compares its symbolic truths with nothing else; compared they are known.
        left, right = (vm.truth(value) if type(value) is torch.SymBool else value for value in (left, right))
        return vm.native(function, left, right)
    if _KEYS in (type(left), type(right)):
        raise GraphBreak("keys that functools.cmp_to_key has made before are compared")
    asked = (method, "__eq__") if symbol == "!=" else (method,)
    answers = (reflected, "__eq__") if symbol == "!=" else (reflected,)
    if is_written_in_python(left, *asked) or is_written_in_python(right, *answers):
        return compare_by_methods(vm, symbol, method, reflected, left, right)
    if not (is_constant(left) or is_constant(right)):
        if type(left) is type(right) and type(left) in (list, tuple):
            return _compare_sequences(vm, symbol, left, right)
        if type(left) is type(right) is slice:
            left, right = [(v.start, v.stop, v.step) for v in (left, right)]
            return _compare_sequences(vm, symbol, left, right)
        if type(left) is type(right) is dict and symbol in ("==", "!=") and not _asks_keys(vm, left, right):
            return _compare_dicts(vm, symbol, left, right)
        if isinstance(left, deque) and isinstance(right, deque):
            for x, y in zip(deque.__iter__(left), deque.__iter__(right), strict=False):
                is_same(vm, x, y)
    check_operands(vm, (left, right), f"`{symbol}`")
    if objects.lookup(type(left), "__eq__")[1] is object:
        is_same(vm, left, right)
    if type(left) not in _PLAIN and not vm.user.is_iterator(left):  # from which a comparison takes nothing
        left = vm.materialize(left)
    if type(right) not in _PLAIN and not vm.user.is_iterator(right):
        right = vm.materialize(right)
    return vm.native_recorded(function, left, right)


def _compare_sequences(vm: Interpreter, symbol: str, left: Any, right: Any) -> Any:
    """A comparison of two lists, two tuples or what two slices hold, item by item; the program's `__eq__` may change the lists meanwhile."""
    if type(left) is list and len(left) != len(right) and symbol in ("==", "!="):  # no item is looked at
        return symbol == "!="
    at = 0
    while at < min(len(left), len(right)) and _is_found(vm, left[at], right[at]):
        at += 1
    if at >= min(len(left), len(right)):
        return compare(vm, symbol, len(left), len(right))
    return symbol == "!=" if symbol in ("==", "!=") else compare(vm, symbol, left[at], right[at])


def _is_found(vm: Interpreter, x: Any, y: Any) -> bool:
    """Whether two items are one object, or equal."""
    same = x is y or torch.SymFloat in (type(x), type(y)) and is_same(vm, x, y)
    return same or vm.truth(compare(vm, "==", x, y))


def _asks_keys(vm: Interpreter, *tables: dict[Any, Any]) -> bool:
    """Whether looking up the keys of one in the other runs methods of the program's: C code is to call these, and in its order."""
    return any(vm.methods.of(kind) for kind in {type(key) for table in tables for key in table})


def _compare_dicts(vm: Interpreter, symbol: str, left: dict[Any, Any], right: dict[Any, Any]) -> bool:
    """`==` or `!=` of two dicts."""
    same = len(left) == len(right)
    if same:
        for key, value in left.items():
            other = vm.call(dict.get, (right, key, objects.MISSING), {})
            if other is objects.MISSING or not _is_found(vm, value, other):
                same = False
                break
    return same is (symbol == "==")


def unary(vm: Interpreter, symbol: str, value: Any) -> Any:
    """`symbol value`."""
    if symbol == "not":
        truth = truth_of(vm, value)
        return torch.sym_not(truth) if type(truth) is torch.SymBool else not truth
    function, method = UNARY[symbol]
    if isinstance(value, Tensor):
        if (own := vm.overrides.own(value, method)) is not None:
            return vm.call(own, (), {})
        rely_on_method(vm, method)
        if vm.overrides.concern((value,)):
            return vm.overrides.run(function, (value,), {})
        return vm.out.call_function(function, (value,), {})
    found = objects.find_method(type(value), method)
    refuse_opaque(vm, value, f"`{symbol}`")
    return vm.call(found, (value,), {}) if found is not None else vm.native(function, value)


def contains(vm: Interpreter, container: Any, item: Any) -> Any:
    """`item in container`: True, False, or a symbol where only the running program knows it."""
    if isinstance(container, Tensor):
        if (own := vm.overrides.own(container, "__contains__")) is not None:
            return vm.truth(vm.call(own, (item,), {}))
        return _is_in_tensor(vm, container, item)
    found = objects.find_method(type(container), "__contains__")
    if found is not None and not vm.is_library(found.__module__) or found is not None and not _is_plain(container):
        return vm.truth(vm.call(found, (container, item), {}))
    mapping = vm.tracked_mapping(container)
    if mapping is not None:
        return item in mapping
    iterates, owner = (
        objects.find_method(type(container), "__iter__"),
        objects.lookup(type(container), "__contains__")[1],
    )
    if iterates is not None and owner is None:
        return _found_in(vm, container, item)
    if iterates is None or owner is list:
        items = vm.user.items_of(container)
        container = container if items is None else items
    if (among := is_among(vm, item, container)) is not None:
        return among
    if isinstance(container, list | tuple) and any(isinstance(x, Tensor) for x in (*container, item)):
        return any(is_same(vm, x, item) for x in container) or _contains_tensor(container, item)
    if isinstance(container, list | tuple):
        return any(is_same(vm, x, item) or vm.truth(compare(vm, "==", x, item)) for x in each_now(container))
    if isinstance(container, deque | type({}.values())):  # whose iterators notice changes, as the C code does
        return _found_in(vm, container, item)
    refuse_opaque(vm, container, "`in`")
    if objects.lookup(type(container), "__next__")[1] is not None or is_old_sequence(container):
        return _found_in(vm, container, item)
    check_key(vm, item)
    if isinstance(item, Tensor) and isinstance(container, dict):
        _look_up_tensor(vm, container, item)
    return bool(vm.native(operator.contains, container, item))


def _is_in_tensor(vm: Interpreter, container: Tensor, item: Any) -> Any:
    """What `Tensor.__contains__` computes."""
    rely_on_method(vm, "__contains__")
    plain = isinstance(item, Tensor) or type(item) in _SOUGHT
    if not plain or Tensor.__contains__ is not _CONTAINS or vm.overrides.concern((container, item)):
        raise GraphBreak("`in` looks into a tensor's values")
    return truth_of(vm, vm.out.call_method("any", (compare(vm, "==", item, container),), {}))


_CONTAINS = Tensor.__contains__
_SOUGHT = (bool, int, float, complex, torch.SymInt, torch.SymFloat, torch.SymBool)


def each_now(items: Any) -> Iterator[Any]:
    """The items by place, as the C code reads them: past an `__iter__` of the program's, and with what changes meanwhile."""
    base: Any = tuple if isinstance(items, tuple) else list
    at = 0
    while at < base.__len__(items):
        yield base.__getitem__(items, at)
        at += 1


def is_old_sequence(container: Any) -> bool:
    kind = type(container)
    return objects.lookup(kind, "__iter__")[1] is None and objects.find_method(kind, "__getitem__") is not None


def _found_in(vm: Interpreter, container: Any, item: Any) -> bool:
    """`in` by iteration, which stops at the first equal item."""
    iterator = vm.iterate(container)
    while True:
        more, value = vm.advance(iterator)
        if not more or is_same(vm, value, item) or vm.truth(compare(vm, "==", value, item)):
            return more


def _is_plain(container: Any) -> bool:
    return type(container) in (list, tuple, dict, set, frozenset, str, LazyDict, InstanceDict, GlobalsDict)


def _contains_tensor(container: Any, item: Any) -> bool:
    if isinstance(item, Tensor) or any(isinstance(x, Tensor) for x in container):
        raise GraphBreak("`in` compares tensors by value")
    return item in container


def truth_as_torch(vm: Interpreter, tensor: Tensor) -> Any:
    """`Tensor.__bool__(tensor)`."""
    if vm.overrides.own(tensor, "__bool__") is not None:
        raise GraphBreak("torch's __bool__ is called for a tensor whose class has one of its own")
    return truth_of(vm, tensor)


def length_of(vm: Interpreter, tensor: Tensor) -> Any:
    """`len(tensor)` as torch does it."""
    if vm.overrides.concern((tensor,)):
        return vm.overrides.run(len, (tensor,), {})
    if tensor.dim() == 0:
        raise UserRaise(TypeError("len() of a 0-d tensor"))
    return tensor.shape[0]


def rows_of(vm: Interpreter, tensor: Tensor) -> Any:
    """`iter(tensor)` as torch does it."""
    vm.overrides.check_methods(Tensor.__iter__, (tensor,))
    if vm.overrides.concern((tensor,)):
        return vm.overrides.run(iter, (tensor,), {})
    if tensor.dim() == 0:
        raise UserRaise(TypeError("iteration over a 0-d tensor"))
    return iter(vm.call_tensor_method(tensor, "unbind", (0,), {}))


def item_of(vm: Interpreter, tensor: Tensor, key: Any) -> Any:
    """`tensor[key]` as torch does it."""
    rely_on_method(vm, "__getitem__")
    if vm.overrides.concern((tensor, key)):
        return vm.overrides.run(operator.getitem, (tensor, key), {})
    if type(key) is int and (found := jagged.row(vm, tensor, key)) is not NotImplemented:
        return found
    part, key = _select_symbols(vm, tensor, given := with_numbers(vm, key))
    selected = part is not tensor and key == ()  # the key () of the program's own makes another tensor
    made = part if selected else vm.out.call_function(operator.getitem, (part, key), {})
    if isinstance(made, Tensor):
        vm.out.read.note_part(tensor, given, made)
    return made


def get_item(vm: Interpreter, obj: Any, key: Any) -> Any:
    """`obj[key]`."""
    if isinstance(obj, Tensor):
        own = vm.overrides.own(obj, "__getitem__")
        return item_of(vm, obj, key) if own is None else vm.call(own, (key,), {})
    found = objects.find_method(type(obj), "__getitem__")
    if found is not None:
        return vm.call(found, (obj, key), {})
    items = vm.user.items_of(obj)
    obj = obj if items is None else items
    mapping = vm.tracked_mapping(obj)
    missing = objects.find_method(type(obj), "__missing__")
    if missing is not None and isinstance(obj, dict):
        if mapping is None:  # the key is asked once
            found = vm.native(dict.get, obj, _as_key(vm, obj, key), _ABSENT)
            return vm.call(missing, (obj, key), {}) if found is _ABSENT else found
        if key not in mapping:
            return vm.call(missing, (obj, key), {})
    if mapping is not None:
        return mapping[key]
    if isinstance(obj, type):
        own = objects.lookup(obj, "__class_getitem__")[0]
        programs = isinstance(own, classmethod) and not vm.is_library(getattr(own.__func__, "__module__", None))
        if programs and objects.find_method(type(obj), "__getitem__") is None:
            return vm.call(objects.load_attr(vm, obj, "__class_getitem__"), (key,), {})
        method = objects.find_method(type(obj), "__getitem__")
        if method is None or vm.is_library(method.__module__):
            return vm.native(operator.getitem, obj, key)
    if isinstance(key, Tensor):
        if not isinstance(obj, dict):
            if type(place := constant_of(key)) is int and not vm.overrides.concern((key,)):
                return get_item(vm, obj, place)
            raise GraphBreak("a tensor's value is used as an index")
        _look_up_tensor(vm, obj, key)
    key = _as_key(vm, obj, key)
    factory = obj.default_factory if isinstance(obj, defaultdict) else None
    if factory is None or not hasattr(factory, "__code__"):
        return vm.native(operator.getitem, obj, key)
    value = vm.native(dict.get, obj, key, _ABSENT)
    if value is _ABSENT:
        value = vm.call(factory, (), {})
        vm.native(operator.setitem, obj, key, value)
    return value


_ABSENT = object()  # no value of the program's


def _look_up_tensor(vm: Interpreter, mapping: dict[Any, Any], key: Tensor) -> None:
    """Tensors are found by identity: that one which guards hold is none of the keys that may be other ones in each call is guarded."""
    info = vm.out.inputs.get(id(key))
    if info is not None and info.static and not dict.__contains__(mapping, key):
        for other in filter(lambda k: isinstance(k, Tensor), mapping):
            is_same(vm, key, other)


def _select_symbols(vm: Interpreter, tensor: Tensor, key: Any) -> tuple[Any, Any]:
    """The tensor at the symbolic integers of the key, and the rest of the key: torch's own indexing takes them for the numbers of this call."""
    entries = list(key) if type(key) is tuple else [key]
    kinds = {type(e) for e in entries}
    if torch.SymInt not in kinds or not kinds <= _BASIC_KEYS or entries.count(...) > 1:
        return tensor, key
    axes, axis = [], 0
    for i, entry in enumerate(entries):
        axes.append(axis)
        if entry is ...:
            axis = tensor.dim() - sum(e is not None for e in entries[i + 1 :])
        elif entry is not None:
            axis += 1
    last = max(i for i, e in enumerate(entries) if type(e) is torch.SymInt)
    if axis > tensor.dim() or None in entries[:last]:  # the strides of new dimensions are made of those behind them
        return tensor, key
    hints = [hint_of(tensor.shape[d]) if type(e) is torch.SymInt else 0 for e, d in zip(entries, axes, strict=True)]
    sizes = [(hint_of(e), n) for e, n in zip(entries, hints, strict=True) if type(e) is torch.SymInt]
    inside = all(None in (e, n) or -n <= e < n for e, n in sizes)  # of what nobody knows yet the program asks
    if not inside:  # torch's own error
        return tensor, key
    for entry, d in reversed(list(zip(entries, axes, strict=True))):
        if type(entry) is torch.SymInt:
            tensor = vm.out.call_function(torch.select, (tensor, d, entry), {})
    return tensor, tuple(e for e in entries if type(e) is not torch.SymInt)


_BASIC_KEYS = {int, torch.SymInt, slice, type(None), type(...)}


def set_item_of(vm: Interpreter, tensor: Tensor, key: Any, value: Any) -> None:
    """`tensor[key] = value` as torch does it."""
    rely_on_method(vm, "__setitem__")
    if vm.overrides.concern((tensor, key, value)):
        vm.overrides.run(operator.setitem, (tensor, key, value), {})
        return
    key = with_numbers(vm, key)
    own = isinstance(value, Tensor) and vm.out.read.is_part(tensor, key, value)  # what `x[k:] += y` ends with
    if own and not vm.out.takes_gradients():
        vm.out.call_method("copy_", (value, value), {})
        return
    part, key = _select_symbols(vm, tensor, key)
    vm.out.call_function(operator.setitem, (part, ... if part is not tensor and key == () else key, value), {})


def set_item(vm: Interpreter, obj: Any, key: Any, value: Any) -> None:
    """`obj[key] = value`."""
    if isinstance(obj, Tensor):
        if (own := vm.overrides.own(obj, "__setitem__")) is not None:
            vm.call(own, (key, value), {})
            return
        set_item_of(vm, obj, key, value)
        return
    _change_item(vm, "__setitem__", operator.setitem, obj, key, value)


def delete_item(vm: Interpreter, obj: Any, key: Any) -> None:
    """`del obj[key]`."""
    _change_item(vm, "__delitem__", operator.delitem, obj, key)


def _change_item(vm: Interpreter, special: str, function: Any, obj: Any, key: Any, *value: Any) -> None:
    found = objects.find_method(type(obj), special)
    if found is not None:
        vm.call(found, (obj, key, *value), {})
        return
    if type(obj) is LazyDict:
        obj = obj.writable()
    else:
        refuse_tracked(vm, obj)
    vm.native(function, obj, _as_key(vm, obj, key), *value)


def _as_key(vm: Interpreter, obj: Any, key: Any) -> Any:
    """A key or index that C code may use as it is."""
    if is_constant(key):
        refuse_opaque(vm, obj, "indexing")
        return key
    if type(key) is slice and isinstance(obj, list | tuple | str | bytes | range):
        return slice(*(_as_number(vm, part) for part in (key.start, key.stop, key.step)))
    index = objects.find_method(type(key), "__index__") if isinstance(obj, list | tuple | str | range) else None
    if index is not None and not isinstance(key, int):
        return vm.call(operator.index, (key,), {})
    refuse_opaque(vm, obj, "indexing")
    check_key(vm, key)
    return key


def _as_number(vm: Interpreter, value: Any) -> Any:
    if type(value) is torch.SymBool:
        return vm.truth(value)
    index = objects.find_method(type(value), "__index__") if not isinstance(value, Tensor | int) else None
    return value if index is None else vm.call(operator.index, (value,), {})


def refuse_tracked(vm: Interpreter, obj: Any) -> None:
    """Refuse to change in place an object of the user's that has no stand-in."""
    if isinstance(obj, InstanceDict) or vm.is_created(obj):
        return
    if type(obj) is LazyDict:
        raise Unsupported(f"a large or subclassed dict of the caller's is changed: {obj.source.name()}")
    entry = vm.user.by_value.get(id(obj))
    if entry is not None and entry.real is obj:
        raise Unsupported(f"{entry.source.name()}, a {type(obj).__name__} of the caller's, is changed in place")
