"""Names of the program: globals, closure cells, what instances and classes hold, each with the guard that reading it needs."""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any

import torch

from ..bytecode import exceptions
from ..bytecode.frame import Frame
from ..bytecode.version import CHAINS_DESCRIPTORS
from ..entry.effects import DELETED
from ..errors import GraphBreak, Unsupported
from ..guards.definitions import lookup
from ..guards.source import Attr, Const, Fetch, Item, Namespace, Source
from ..state import Interpreter
from .constant import is_constant, is_static
from .kinds import SYMBOLIC, isinstance, namespace_of, namespace_reader
from .lazy import Unread

__all__ = [
    "bind_class",
    "MEMBERS",
    "find_method",
    "instance_attr",
    "is_member",
    "is_library_function",
    "load_cell",
    "load_global",
    "load_global_value",
    "member_table",
    "refuse_former",
    "refuse_unsaved",
    "refuses",
    "namespace_source",
    "rely_on_definition",
    "rely_on_entry",
    "store_cell",
    "wrap_class_value",
    "wrap_library",
    "write_instance",
]

MEMBERS = ("_parameters", "_buffers", "_modules")
_FRONTEND = __name__.rsplit(".", 2)[0]


def find_method(cls: type, name: str) -> types.FunctionType | None:
    """The Python-level function behind a special method of `cls`; None when it is C's, absent, or our own."""
    if cls in SYMBOLIC:
        return None
    found = lookup(cls, name)[0]
    if type(found) is not types.FunctionType:  # a class that has no subclasses
        if not issubclass(type(found), (staticmethod, classmethod)) or type(found.__func__) is not types.FunctionType:
            return None
        found = found.__func__ if name == "__new__" else _method_around(found)
    return None if (found.__module__ or "").startswith(_FRONTEND) else found


def _method_around(found: staticmethod[..., Any] | classmethod[Any, ..., Any]) -> types.FunctionType:
    """A function of the object itself that calls a static or a class method."""
    function, static = found.__func__, isinstance(found, staticmethod)

    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if static else function(type(self), *args, **kwargs)

    method.__module__ = function.__module__
    made: Any = method
    return made  # type: ignore[no-any-return]


def bind_class(vm: Interpreter, function: Any, cls: type) -> Any:
    """What a class method around `function` is: up to CPython 3.12 what a descriptor in it gives for the class."""
    if (
        isinstance(function, types.FunctionType)
        or not CHAINS_DESCRIPTORS
        or lookup(type(function), "__get__")[1] is None
    ):
        return types.MethodType(function, cls)
    getter = find_method(type(function), "__get__")
    if getter is not None:
        return vm.call(getter, (function, cls, cls), {})
    if isinstance(function, property) and function.fget is not None:
        return vm.call(function.fget, (cls,), {})
    return vm.native(function.__get__, cls, cls)


def wrap_library(vm: Interpreter, value: Any, source: Source) -> Any:
    """A value of a library's namespace: code and constants are taken as they are."""
    if is_static(value) or isinstance(value, types.FunctionType) or type(value) in _FIXED:
        return vm.user.held(value)
    return vm.user.wrap(value, source)


def load_global(vm: Interpreter, frame: Frame, name: str) -> Any:
    """A global or builtin name."""
    namespace = frame.globals
    if vm.effects.read is not None:
        vm.effects.read["global", id(namespace), name] = namespace
    made = vm.is_created(namespace)
    if made and name in namespace:
        return namespace[name]
    written = vm.effects.globals.get((id(namespace), name))
    if written is not None:
        if written[1] is not DELETED:
            return written[1]
    elif name in namespace:
        return load_global_value(vm, namespace, name, namespace.get("__name__", "module"))
    elif (known := (-id(namespace), name)) in vm.globals_read and not made:  # of Python's own, guarded already
        return vm.globals_read[known]
    found = namespace.get("__builtins__", builtins)
    found = found if isinstance(found, dict) else found.__dict__
    if written is None and not made and (name not in found or not vm.is_library(namespace.get("__name__"))):
        vm.guards.add("missing", Const(namespace, namespace.get("__name__", "module")), name)
    if name not in found:
        raise exceptions.name_error(name)
    rely_on_entry(vm, found, name)
    if written is None and not made:
        vm.globals_read[-id(namespace), name] = found[name]
    return found[name]


def load_global_value(vm: Interpreter, namespace: dict[str, Any], name: str, module: str) -> Any:
    """The value of a global that exists, guarded."""
    key = (id(namespace), name)
    if key in vm.globals_read:
        return vm.globals_read[key]
    source = Item(Const(namespace, f"{module}"), name)
    raw = namespace[name]
    if vm.is_library(module):
        value = wrap_library(vm, raw, rely_on_entry(vm, namespace, name) or source)
    else:
        value = vm.user.wrap(raw, source)
    if value is raw:
        vm.globals_read[key] = value
    return value


def rely_on_entry(vm: Interpreter, namespace: dict[str, Any], name: str) -> Source | None:
    """Rely on a name in a namespace of Python's or torch's, which a program may patch; its source, by the module where it has one."""
    module = sys.modules.get(namespace.get("__name__", ""))
    if module is None or module.__dict__ is not namespace:
        return None
    source = Attr(Const(module, module.__name__), name)
    raw = namespace[name]
    if isinstance(raw, _PATCHED) or raw is None:
        vm.guards.add("is", source, raw)
    return source


def load_cell(vm: Interpreter, cell: types.CellType, name: str) -> Any:
    """The contents of a closure cell."""
    if vm.effects.read is not None:
        vm.effects.read["variable", id(cell), name] = cell
    written = vm.effects.cells.get(id(cell))
    if written is not None and written[1] is not DELETED:
        return written[1]
    source = None if vm.is_created(cell) else vm.user.source_of(cell) or Const(cell, name)
    if written is not None or _is_empty(cell):
        if written is None and source is not None:
            vm.guards.add("equals", Fetch(_is_empty, source), True)
        own = name in vm.frames[-1].code.co_cellvars
        raise exceptions.unbound_local(name) if own else exceptions.name_error(name, free=True)
    value = cell.cell_contents
    if type(value) is Unread:
        return value.read()
    return value if source is None else vm.user.wrap(value, Attr(source, "cell_contents"))


def store_cell(vm: Interpreter, cell: types.CellType, value: Any) -> None:
    """Assign to a closure cell."""
    if vm.is_created(cell):
        cell.cell_contents = value
    else:
        vm.effects.cells[id(cell)] = (cell, value)


def namespace_source(obj: Any, source: Source) -> Source:
    """Where guards look for the attributes of an instance's own: past a `__getattribute__` of the program's, which they must not run."""
    own = find_method(type(obj), "__getattribute__") is not None
    return Namespace(namespace_reader(type(obj)), source) if own else Attr(source, "__dict__")


def instance_attr(vm: Interpreter, obj: Any, name: str) -> tuple[bool, Any]:
    """(found, value) of the instance's own attribute."""
    found, value = vm.effects.attr(obj, name)
    if found:
        return (False, None) if value is DELETED else (True, value)
    if name == "gauss_next":
        vm.random.python.check_attribute(obj)
    namespace = namespace_of(obj)
    if namespace is None:
        return False, None
    source = None if vm.is_created(obj) else vm.user.source_of(obj)
    if source is None:
        return (True, namespace[name]) if name in namespace else (False, None)
    where = namespace_source(obj, source)
    if isinstance(where, Namespace):
        vm.guards.add("type", where, dict)  # another one's methods would run
    if name in namespace:
        value = vm.user.wrap(namespace[name], Item(where, name))
        if name in MEMBERS and isinstance(obj, torch.nn.Module) and type(value) is dict:
            _take_writes(vm, obj, value)
        return True, value
    vm.guards.add("missing", where, name)
    return False, None


def _take_writes(vm: Interpreter, module: torch.nn.Module, members: dict[str, Any]) -> None:
    """Members that the program has set or deleted by name, in the table of them that it now looks at."""
    for key, (owner, value) in list(vm.effects.attrs.items()):
        if owner is module and key[1] in members:
            if value is DELETED:
                refuse_unsaved(module, key[1])
            del vm.effects.attrs[key]
            if value is DELETED:
                del members[key[1]]
            else:
                members[key[1]] = value


def _tables(vm: Interpreter, module: Any) -> list[tuple[bool, dict[str, Any]]]:
    """The tables of members, with whether the program has looked at one: then it is what stands for it."""
    tables, held, known = [], module.__dict__, vm.user.by_real
    for where in MEMBERS:
        real = held.get(where)
        entry = known.get(id(real))
        seen = entry is not None and type(entry.value) is dict
        tables.append((seen, entry.value if seen and entry is not None else real or {}))
    return tables


def member_table(vm: Interpreter, module: Any, name: str) -> dict[str, Any] | None:
    """What stands for the table of members that `name` is in, if the program has looked at that."""
    return next((table for seen, table in _tables(vm, module) if seen and name in table), None)


def is_member(vm: Interpreter, obj: Any, name: Any) -> bool:
    """Whether a module finds the attribute in a table of members, and not in its own dict."""
    if not isinstance(obj, torch.nn.Module) or name in obj.__dict__ or (id(obj), name) in vm.effects.moved:
        return False
    return any(name in table for _, table in _tables(vm, obj))


def refuse_unsaved(module: Any, name: str) -> None:
    """Break the graph where a buffer is deleted in a table that the program looks at: a set beside it has the names that are not saved."""
    if name in module._non_persistent_buffers_set:
        raise GraphBreak(f"a buffer that is not saved is deleted, and the buffers are looked at: {name}")


def refuses(vm: Interpreter, module: Any, name: str, value: Any) -> bool:
    """Whether `value` is nothing that can be a buffer, in the place of one."""
    return value is not None and not isinstance(value, torch.Tensor) and is_member(vm, module, name)


def refuse_former(vm: Interpreter, module: Any, name: Any) -> None:
    """Break the graph where a module's member was deleted in it and its name becomes a plain attribute's: the replay keeps one of the two."""
    if not isinstance(module, torch.nn.Module) or name in module.__dict__ or vm.is_created(module):
        return
    deleted = vm.effects.attr(module, name) == (True, DELETED) or not is_member(vm, module, name)
    if deleted and any(name in (module.__dict__.get(where) or ()) for where in MEMBERS):
        raise GraphBreak(f"a member of a module is deleted, and then set as a plain attribute: {name}")


def write_instance(vm: Interpreter, obj: Any, name: str, value: Any) -> None:
    """Set an attribute of the instance's own."""
    if name == "gauss_next":
        vm.random.python.check_attribute(obj)
    if vm.is_created(obj):
        vm.native(object.__setattr__, obj, name, value)
    elif vm.user.source_of(obj) is not None:
        vm.effects.write_attr(obj, name, value)
    elif isinstance(obj, BaseException) or vm.is_created(type(obj)):  # which C code has made
        vm.native(object.__setattr__, vm.create(obj), name, value)
    elif hasattr(type(obj), "rename") and vm.is_frontend_class(type(obj)):  # a generator
        vm.native(obj.rename, name, value)
    elif isinstance(obj, types.FunctionType):
        raise Unsupported(f"an attribute of {obj!r} is assigned: {name}")
    else:
        raise Unsupported(
            f"an attribute of an object that capture did not make is assigned: {type(obj).__name__}.{name}"
        )


def rely_on_definition(vm: Interpreter, function: types.FunctionType, part: str = "__code__") -> None:
    """Rely on a function's code, or on which object holds its defaults, where guards hold it by identity."""
    source = vm.user.source_of(function)
    held = not vm.is_created(function) and (source is None or isinstance(source, Const))
    if held and not is_library_function(vm, function):
        vm.definitions.note_function(function, part)


def wrap_class_value(vm: Interpreter, value: Any, owner: type, name: str) -> Any:
    """A plain value stored on a class."""
    if vm.is_library(owner.__module__) and is_constant(value):
        return vm.user.held(value)
    if vm.is_created(owner):
        return value
    return vm.user.wrap(value, Item(Attr(Const(owner, owner.__name__), "__dict__"), name))


def is_library_function(vm: Interpreter, function: types.FunctionType) -> bool:
    """Whether a function comes from torch or Python."""
    return vm.is_library(function.__globals__.get("__name__"))


def _is_empty(cell: types.CellType) -> bool:
    return cell == types.CellType()  # a cell with a value differs from one without, whatever the value is


_PATCHED = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, float)
_FIXED = frozenset({torch.dtype, torch.layout, torch.memory_format, float, type(None), type(NotImplemented)})
