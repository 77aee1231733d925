"""Opcodes of the normal form that move, compute and build values: `(vm, frame, arg)`, each under its name."""

from __future__ import annotations

import builtins
import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..calls.visibility import check_keys, identity, is_same
from ..entry.effects import DELETED
from ..errors import CaptureError, Unsupported, UserRaise
from ..guards.source import Const
from ..state import Interpreter
from ..values import object as objects
from ..values import operators
from ..values.container import InstanceDict, LazyDict
from ..values.kinds import c_name, isinstance
from ..values.lazy import Append, Unread
from ..values.namespaces import load_cell, load_global, store_cell
from ..values.text import Text, late_text
from . import closing, exceptions
from .frame import NULL, Frame
from .unpacking import as_dict, taken
from .version import METHOD_SLOT_FIRST

# ---- stack and constants ----


def LOAD_CONST(vm: Interpreter, frame: Frame, value: Any) -> None:
    frame.stack.append(value)


def POP_TOP(vm: Interpreter, frame: Frame, _: Any) -> None:
    value = frame.stack.pop()
    if vm.unread:
        closing.check_dropped(vm, value)


def PUSH_NULL(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.stack.append(NULL)


def COPY(vm: Interpreter, frame: Frame, n: int) -> None:
    frame.stack.append(frame.stack[-n])


def SWAP(vm: Interpreter, frame: Frame, n: int) -> None:
    stack = frame.stack
    stack[-1], stack[-n] = stack[-n], stack[-1]


def END_FOR(vm: Interpreter, frame: Frame, _: Any) -> None:
    raise Unsupported("END_FOR was reached: the normal form should have skipped it")


# ---- names ----


def LOAD_FAST(vm: Interpreter, frame: Frame, name: str) -> None:
    try:
        frame.stack.append(frame.fast[name])
    except KeyError:
        raise exceptions.unbound_local(name) from None


def LOAD_FAST_AND_CLEAR(vm: Interpreter, frame: Frame, name: str) -> None:
    frame.push(frame.fast.pop(name, NULL))


def STORE_FAST(vm: Interpreter, frame: Frame, name: str) -> None:
    value = frame.stack.pop()
    if value is NULL:
        frame.fast.pop(name, None)
    else:
        frame.fast[name] = value


def DELETE_FAST(vm: Interpreter, frame: Frame, name: str) -> None:
    if name not in frame.fast:
        raise exceptions.unbound_local(name)
    del frame.fast[name]


def _loaded(vm: Interpreter, frame: Frame, load: Callable[..., Any], *args: Any) -> Any:
    """`load(vm, *args)`; a list whose `append` the next instruction asks for is not looked at."""
    following = frame.program.instructions[frame.ip].arg
    if type(following) is not str or following != "append":
        return load(vm, *args)
    vm.user.appending = frame
    try:
        return load(vm, *args)
    finally:
        vm.user.appending = None


def LOAD_GLOBAL(vm: Interpreter, frame: Frame, name: str) -> None:
    frame.stack.append(_loaded(vm, frame, load_global, frame, name))


def LOAD_BUILD_CLASS(vm: Interpreter, frame: Frame, _: Any) -> None:
    found = frame.globals.get("__builtins__", builtins)
    frame.push((found if isinstance(found, dict) else found.__dict__)["__build_class__"])  # whose call breaks the graph


def STORE_GLOBAL(vm: Interpreter, frame: Frame, name: str) -> None:
    if vm.is_created(frame.globals):
        frame.globals[name] = frame.pop()
    else:
        vm.effects.globals[id(frame.globals), name] = (frame.globals, frame.pop())


def DELETE_GLOBAL(vm: Interpreter, frame: Frame, name: str) -> None:
    if vm.is_created(frame.globals):
        if frame.globals.pop(name, NULL) is NULL:
            raise exceptions.name_error(name)
        return
    written = vm.effects.globals.get((id(frame.globals), name))
    if written is None and name not in frame.globals or written is not None and written[1] is DELETED:
        raise exceptions.name_error(name)
    if written is None:
        vm.guards.add("contains", Const(frame.globals, frame.globals.get("__name__", "globals")), name)
    vm.effects.globals[id(frame.globals), name] = (frame.globals, DELETED)


def _as_read(value: Any) -> Any:
    return value.read() if type(value) is Unread else value


def MAKE_CELL(vm: Interpreter, frame: Frame, name: str) -> None:
    """What cannot be captured is read, and breaks, where the cell is: no frame can be suspended while its cells are made."""
    cell = types.CellType(*([frame.fast[name]] if name in frame.fast else []))
    with contextlib.suppress(CaptureError):
        if name in frame.fast:
            cell.cell_contents = _as_read(frame.fast[name])
    frame.fast[name] = vm.create(cell)


def LOAD_DEREF(vm: Interpreter, frame: Frame, name: str) -> None:
    frame.push(_loaded(vm, frame, load_cell, frame.fast[name], name))


def STORE_DEREF(vm: Interpreter, frame: Frame, name: str) -> None:
    store_cell(vm, frame.fast[name], frame.pop())


def DELETE_DEREF(vm: Interpreter, frame: Frame, name: str) -> None:
    cell = frame.fast[name]
    load_cell(vm, cell, name)
    if vm.is_created(cell):
        del cell.cell_contents
    else:
        vm.effects.cells[id(cell)] = (cell, DELETED)


# ---- operators ----


def BINARY_OP(vm: Interpreter, frame: Frame, symbol: str) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = operators.binary(vm, symbol, frame.stack[-1], right)


def UNARY(vm: Interpreter, frame: Frame, symbol: str) -> None:
    frame.push(operators.unary(vm, symbol, frame.pop()))


def COMPARE_OP(vm: Interpreter, frame: Frame, symbol: str) -> None:
    right = frame.stack.pop()
    frame.stack[-1] = operators.compare(vm, symbol, frame.stack[-1], right)


def _unless(found: Any, invert: bool) -> Any:
    """A truth, which the program may know alone, or its opposite."""
    if type(found) is torch.SymBool:
        return torch.sym_not(found) if invert else found
    return found is not invert


def IS_OP(vm: Interpreter, frame: Frame, invert: bool) -> None:
    right = frame.stack.pop()
    found = (identity if vm.branches.choices.may_be else is_same)(vm, frame.stack[-1], right)
    frame.stack[-1] = found is not invert if type(found) is bool else _unless(found, invert)


def CONTAINS_OP(vm: Interpreter, frame: Frame, invert: bool) -> None:
    container = frame.pop()
    found = operators.contains(vm, container, frame.pop())
    frame.push(_unless(found, invert))


def BINARY_SUBSCR(vm: Interpreter, frame: Frame, _: Any) -> None:
    key = frame.pop()
    frame.push(_loaded(vm, frame, operators.get_item, frame.pop(), key))


def STORE_SUBSCR(vm: Interpreter, frame: Frame, _: Any) -> None:
    value, obj, key = frame.pops(3)
    operators.set_item(vm, obj, key, value)


def DELETE_SUBSCR(vm: Interpreter, frame: Frame, _: Any) -> None:
    obj, key = frame.pops(2)
    operators.delete_item(vm, obj, key)


def LOAD_ATTR(vm: Interpreter, frame: Frame, name: str) -> None:
    obj = frame.stack[-1]
    if type(obj) is not Append:
        try:
            frame.stack[-1] = _loaded(vm, frame, objects.load_attr, obj, name)
        except UserRaise as raised:
            exceptions.note_missing(vm, raised.value, obj, name)
            raise


def LOAD_METHOD(vm: Interpreter, frame: Frame, name: str) -> None:
    found = obj = frame.stack[-1]
    if type(obj) is not Append:
        try:
            found = objects.load_attr(vm, obj, name)
        except UserRaise as raised:
            exceptions.note_missing(vm, raised.value, obj, name)
            raise
    frame.stack[-1:] = (NULL, found) if METHOD_SLOT_FIRST else (found, NULL)


def LOAD_SUPER_ATTR(vm: Interpreter, frame: Frame, arg: tuple[str, bool]) -> None:
    sup, cls, obj = frame.pops(3)
    made = vm.call(sup, (cls, obj) if sup is super or arg[1] else (), {})
    frame.push(objects.load_attr(vm, made, arg[0]))


def STORE_ATTR(vm: Interpreter, frame: Frame, name: str) -> None:
    value, obj = frame.pops(2)
    objects.store_attr(vm, obj, name, value)


def DELETE_ATTR(vm: Interpreter, frame: Frame, name: str) -> None:
    objects.delete_attr(vm, frame.pop(), name)


def GET_LEN(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(vm.call(len, (frame.stack[-1],), {}))


# ---- building ----


def BUILD_TUPLE(vm: Interpreter, frame: Frame, n: int) -> None:
    frame.push(tuple(frame.pops(n)))


def BUILD_LIST(vm: Interpreter, frame: Frame, n: int) -> None:
    frame.push(frame.pops(n))


def BUILD_SET(vm: Interpreter, frame: Frame, n: int) -> None:
    values = frame.pops(n)
    check_keys(vm, values)
    frame.push(vm.native(set, values))


def BUILD_MAP(vm: Interpreter, frame: Frame, n: int) -> None:
    items = frame.pops(2 * n)
    pairs = list(zip(items[::2], items[1::2], strict=True))
    if all(type(key) is str for key in items[::2]):
        frame.push(dict(pairs))
    else:
        check_keys(vm, items[::2])
        frame.push(vm.native(dict, pairs))


def BUILD_CONST_KEY_MAP(vm: Interpreter, frame: Frame, n: int) -> None:
    keys = frame.pop()
    frame.push(dict(zip(keys, frame.pops(n), strict=True)))


def BUILD_STRING(vm: Interpreter, frame: Frame, n: int) -> None:
    parts = frame.pops(n)
    late = any(type(part) is Text for part in parts)
    frame.push(late_text(vm, str.join, ("", parts), {}) if late else "".join(parts))


def BUILD_SLICE(vm: Interpreter, frame: Frame, n: int) -> None:
    frame.push(slice(*frame.pops(n)))


def LIST_APPEND(vm: Interpreter, frame: Frame, n: int) -> None:
    value = frame.pop()
    frame.stack[-n].append(value)  # the list of a comprehension that was split may still be unread


def SET_ADD(vm: Interpreter, frame: Frame, n: int) -> None:
    value = frame.pop()
    check_keys(vm, (value,))
    vm.native(frame.stack[-n].add, value)


def MAP_ADD(vm: Interpreter, frame: Frame, n: int) -> None:
    key, value = frame.pops(2)
    check_keys(vm, (key,))
    vm.native(frame.stack[-n].__setitem__, key, value)


def LIST_EXTEND(vm: Interpreter, frame: Frame, n: int) -> None:
    value = frame.pop()
    if (
        not isinstance(value, Tensor)
        and not hasattr(vm.type_of(value), "__iter__")
        and not hasattr(vm.type_of(value), "__getitem__")
    ):
        text = f"Value after * must be an iterable, not {vm.type_of(value).__name__}"
        raise UserRaise(TypeError(text))
    frame.stack[-n].extend(vm.listed(value))


def SET_UPDATE(vm: Interpreter, frame: Frame, n: int) -> None:
    value = frame.pop()
    # A set or dict is added as one, in a table for both: the order comes from that.
    if type(value) in (set, frozenset, dict, list, tuple):
        check_keys(vm, list(value))
        vm.native(frame.stack[-n].update, value)
        return
    iterator = vm.iterate(value)
    while (step := vm.advance(iterator))[0]:
        check_keys(vm, step[1:])
        vm.native(frame.stack[-n].add, step[1])


def DICT_UPDATE(vm: Interpreter, frame: Frame, n: int) -> None:
    value = frame.pop()
    vm.native(frame.stack[-n].update, as_dict(vm, value))


def DICT_MERGE(vm: Interpreter, frame: Frame, n: int) -> None:
    given = frame.pop()
    target = frame.stack[-n]
    function = next(value for value in frame.stack[-2 - n : -4 - n : -1] if value is not NULL)  # NULL's place varies
    if not isinstance(given, dict | LazyDict | InstanceDict) and not hasattr(vm.type_of(given), "keys"):
        text = f"{exceptions.signature_text(function)} argument after ** must be a mapping, not {c_name(vm.type_of(given))}"
        raise UserRaise(TypeError(text))
    value = as_dict(vm, given)
    for key in value:
        if not isinstance(key, str):
            raise UserRaise(TypeError("keywords must be strings"))
        if key in target:
            called = exceptions.signature_text(function)
            raise UserRaise(TypeError(f"{called} got multiple values for keyword argument '{key}'"))
    target.update(value)


def LIST_TO_TUPLE(vm: Interpreter, frame: Frame, _: Any) -> None:
    frame.push(tuple(frame.pop()))


def UNPACK_SEQUENCE(vm: Interpreter, frame: Frame, n: int) -> None:
    values, _ = taken(vm, frame.pop(), n + 1)
    if len(values) > n:
        raise UserRaise(ValueError(f"too many values to unpack (expected {n})"))
    if len(values) < n:
        raise UserRaise(ValueError(f"not enough values to unpack (expected {n}, got {len(values)})"))
    frame.stack.extend(reversed(values))


def UNPACK_EX(vm: Interpreter, frame: Frame, arg: int) -> None:
    before, after = arg & 0xFF, arg >> 8
    values, iterator = taken(vm, frame.pop(), before)
    if len(values) == before:
        values += vm.listed(iterator)
    if len(values) < before + after:
        wanted = f"expected at least {before + after}, got {len(values)}"
        raise UserRaise(ValueError(f"not enough values to unpack ({wanted})"))
    end = len(values) - after
    frame.stack.extend(reversed([*values[:before], values[before:end], *values[end:]]))


def CONVERT_VALUE(vm: Interpreter, frame: Frame, name: str) -> None:
    frame.push(vm.call({"str": str, "repr": repr, "ascii": ascii}[name], (frame.pop(),), {}))


def FORMAT_SIMPLE(vm: Interpreter, frame: Frame, _: Any) -> None:
    value = frame.pop()
    frame.push(value if type(value) is str else vm.call(format, (value,), {}))


def FORMAT_WITH_SPEC(vm: Interpreter, frame: Frame, _: Any) -> None:
    value, spec = frame.pops(2)
    frame.push(vm.call(format, (value, spec), {}))
