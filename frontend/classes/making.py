"""Class statements inside captured code, and calls of metaclasses: the steps of CPython, each interpreted.

The class is a real one, which capture makes once; what belongs to it is read without guards, as of any object that capture has made.
Where it outlives the graph, the entry makes another in each call (`rebuild`).
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import abc
import builtins
import collections
import types
from typing import Any

import torch
from torch import Tensor

from ..breaks.breaks import restart_point
from ..bytecode.frame import Frame
from ..calls.registry import Rows
from ..errors import GraphBreak, Unsupported, UserRaise
from ..guards.definitions import MISSING, lookup
from ..state import Interpreter
from ..values import object as objects
from ..values import operators
from ..values.kinds import isinstance
from .bare import bare_class, finder

__all__ = ["ROWS", "call_metaclass", "functions_of", "note_class", "note_functions", "note_made"]

ROWS = Rows()
_ABSENT = object()


@ROWS.rule(builtins.__build_class__)
def _build_class(vm: Interpreter, body: Any, name: Any, /, *given: Any, **kwargs: Any) -> Any:
    if not isinstance(body, types.FunctionType) or not isinstance(name, str):
        raise GraphBreak("__build_class__ is called by the program")
    bases = _bases(vm, given)
    meta = kwargs.pop("metaclass", _ABSENT)
    if meta is _ABSENT:
        meta = type(bases[0]) if bases else type
    if isinstance(meta, type):
        meta = _most_derived(meta, bases)
    namespace = _prepared(vm, meta, name, bases, kwargs)
    frame = Frame(body, dict(zip(body.__code__.co_freevars, body.__closure__ or (), strict=True)))
    frame.names = namespace
    cell = vm.resume(frame, None)[1]
    if len(bases) != len(given) or any(a is not b for a, b in zip(bases, given, strict=True)):
        operators.set_item(vm, namespace, "__orig_bases__", given)
    made = vm.call(meta, (name, bases, namespace), kwargs)
    if isinstance(made, type) and isinstance(cell, types.CellType):
        _check_cell(cell, name, made)
    return made


def _bases(vm: Interpreter, given: tuple[Any, ...]) -> tuple[Any, ...]:
    found: list[Any] = []
    for base in given:
        entries = NotImplemented if isinstance(base, type) else _entries(vm, base, given)
        if entries is NotImplemented:
            found.append(base)
        elif not isinstance(entries, tuple):
            raise UserRaise(TypeError("__mro_entries__ must return a tuple"))
        else:
            found += entries
    return tuple(found)


def _entries(vm: Interpreter, base: Any, given: tuple[Any, ...]) -> Any:
    """What stands for something that is no class among the bases."""
    try:
        method = objects.load_attr(vm, base, "__mro_entries__")
    except UserRaise as raised:
        if isinstance(raised.value, AttributeError):
            return NotImplemented
        raise
    native = type(base).__module__ in ("typing", "types") or getattr(base, "__module__", None) == "typing"
    return vm.native(method, given) if native else vm.call(method, (given,), {})


def _most_derived(meta: type, bases: tuple[Any, ...]) -> type:
    for base in bases:
        kind = type(base)
        if issubclass(meta, kind):
            continue
        if not issubclass(kind, meta):
            text = "metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass of the metaclasses"
            raise UserRaise(TypeError(f"{text} of all its bases"))
        meta = kind
    return meta


def _prepared(vm: Interpreter, meta: Any, name: str, bases: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(meta, type) and lookup(meta, "__prepare__")[1] is type:
        return {}
    try:
        prepare = objects.load_attr(vm, meta, "__prepare__")
    except UserRaise as raised:
        if isinstance(raised.value, AttributeError):
            return {}
        raise
    namespace = vm.call(prepare, (name, bases), kwargs)
    if finder(type(namespace), "__getitem__") is None:
        shown = meta.__name__ if isinstance(meta, type) else "<metaclass>"
        text = f"{shown}.__prepare__() must return a mapping, not {vm.type_of(namespace).__name__}"
        raise UserRaise(TypeError(text))
    return namespace


def _check_cell(cell: types.CellType, name: str, made: type) -> None:
    """Whether the metaclass has handed `__classcell__` on, and made this class."""
    try:
        held = cell.cell_contents
    except ValueError:
        text = f"__class__ not set defining {name!r} as {made!r}. Was __classcell__ propagated to type.__new__?"
        raise UserRaise(RuntimeError(text)) from None
    if held is not made:
        raise UserRaise(TypeError(f"__class__ set to {held!r} defining {name!r} as {made!r}"))


def call_metaclass(vm: Interpreter, meta: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`type.__call__(meta, ...)`: what makes a class."""
    if meta is type and len(args) == 1 and not kwargs:
        return vm.type_of(args[0])
    made = vm.call(objects.load_attr(vm, meta, "__new__"), (meta, *args), kwargs)
    if isinstance(made, type) and issubclass(type(made), meta):
        init = lookup(type(made), "__init__")[0]
        if isinstance(init, types.FunctionType):
            result = vm.call(init, (made, *args), kwargs)
            if result is not None:
                text = f"__init__() should return None, not '{vm.type_of(result).__name__}'"
                raise UserRaise(TypeError(text))
        elif init is not type.__init__:
            raise GraphBreak(f"{meta.__qualname__}.__init__ is no function")
        elif len(args) not in (1, 3):
            vm.native(type.__init__, made, *args)
    return made


@ROWS.rule(type.__new__)
def _new(vm: Interpreter, meta: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`type.__new__`, with the program's code that it calls."""
    plain = len(args) == 3 and isinstance(meta, type) and issubclass(meta, type)
    name, bases, namespace = args if plain else (None, None, None)
    namespace = vm.materialize(namespace)
    if (
        not plain
        or not isinstance(name, str)
        or type(bases) is not tuple
        or not all(isinstance(base, type) for base in bases)
        or not isinstance(namespace, dict)
    ):
        if len(args) == 1 and not kwargs and meta is type:
            return vm.type_of(args[0])
        vm.native(type.__new__, meta, *args)  # which refuses them
        raise GraphBreak("type.__new__ is called with arguments of another kind")
    winner = _most_derived(meta, bases)
    if winner is not meta and (new := lookup(winner, "__new__")[0]) is not type.__dict__["__new__"]:
        return vm.call(getattr(new, "__func__", new), (winner, name, bases, namespace), kwargs)
    _check(vm, winner, bases)
    contents = dict(dict.items(namespace))
    contents.setdefault("__module__", vm.frames[-1].globals.get("__name__"))
    made = note_class(vm, vm.native(_made, winner, name, bases, contents))
    for key, value in contents.items():
        setter = objects.lookup(type(value), "__set_name__")[0] if key in vars(made) else MISSING
        if setter is not MISSING:
            _set_name(vm, setter, value, made, key)
    raw, owner = lookup(made, "__init_subclass__", made)
    if owner is object:
        if kwargs:
            vm.native(super(made, made).__init_subclass__, **kwargs)
    else:
        assert owner is not None
        vm.call(objects.bind(vm, raw, owner, made, made, "__init_subclass__", is_class=True), (), kwargs)
    return made


def _made(*args: Any) -> Any:
    try:
        return bare_class(*args)
    except TypeError as error:
        if "__bases__ assignment" in str(error):
            raise Unsupported(
                f"a class is made whose bases cannot be told without __init_subclass__: {error}"
            ) from None
        raise


def _set_name(vm: Interpreter, setter: Any, value: Any, made: type, name: str) -> None:
    try:
        vm.call(setter, (value, made, name), {})
    except UserRaise as raised:
        text = f"Error calling __set_name__ on '{type(value).__name__}' instance {name!r} in '{made.__name__}'"
        if hasattr(raised.value, "add_note") and _NOTES:
            raised.value.add_note(text)
            raise
        error = RuntimeError(text)
        error.__cause__ = error.__context__ = raised.value
        raise UserRaise(error) from None


_NOTES = builtins.__dict__.get("PythonFinalizationError") is not None or "__type_params__" in vars(type)


def _check(vm: Interpreter, meta: type, bases: tuple[type, ...]) -> None:
    """What of a class has a meaning of its own to capture, or runs the program's code out of its sight."""
    if objects.find_method(meta, "mro") is not None:
        raise GraphBreak(f"a class is made whose order {meta.__qualname__}.mro() decides")
    for base in bases:
        if issubclass(base, Tensor | torch.jit.ScriptModule):
            raise Unsupported("a class of tensors or of TorchScript is defined inside the captured code")
        if vm.is_frontend_class(base):
            raise Unsupported("a class is derived from one of capture's own")


def note_class(vm: Interpreter, made: Any) -> Any:
    """Note a class that capture has made, with where capture can begin again in front of it."""
    vm.definitions.made[id(made)] = restart_point(vm), tuple(vm.places())
    for base in vm.definitions.before(made):
        vm.definitions.note(base)
    return vm.create(made)


# ---- metaclasses of Python's own ----


@ROWS.rule(abc.ABCMeta.__new__)
def _new_abstract(vm: Interpreter, meta: Any, name: Any, bases: Any, namespace: Any, /, **kwargs: Any) -> Any:
    for value in dict.values(vm.materialize(namespace)):
        if objects.find_method(type(value), "__getattr__") or objects.find_method(type(value), "__getattribute__"):
            raise GraphBreak(f"an abstract class asks a {type(value).__qualname__} whether it is abstract")
    made = _new(vm, meta, name, bases, namespace, **kwargs)
    vm.native(_abc._abc_init, made)
    return made


@ROWS.rule(abc.ABCMeta.register)
def _register(vm: Interpreter, cls: Any, subclass: Any) -> Any:
    if not vm.is_created(cls):
        raise GraphBreak("a class is registered with an abstract class of the caller's")
    return vm.native(abc.ABCMeta.register, cls, subclass)


@ROWS.rule(type.__subclasses__)
def _subclasses(vm: Interpreter, cls: Any) -> Any:
    if not vm.is_created(cls):
        raise GraphBreak("the classes that derive from one of the caller's are listed")
    found = vm.native(type.__subclasses__, cls)
    return [one for one in found if id(one) not in vm.effects.dead]  # they are held weakly


@ROWS.rule(type(torch.autograd.Function).__init__)
def _init_function(vm: Interpreter, cls: Any, name: Any, bases: Any, namespace: Any) -> Any:
    """The class of backward's nodes, which nobody but autograd looks at."""
    if not vm.is_created(cls):
        raise GraphBreak("a class of autograd's functions is set up again")
    return vm.native(type(torch.autograd.Function).__init__, cls, name, bases, vm.materialize(namespace))


# ---- classes that functions of Python's own make ----


@ROWS.rule(collections.namedtuple)
def _namedtuple(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
    kwargs.setdefault("module", vm.frames[-1].globals.get("__name__", "__main__"))
    args, kwargs = tuple(map(vm.materialize, args)), {k: vm.materialize(v) for k, v in kwargs.items()}
    return note_made(vm, vm.native(collections.namedtuple, *args, **kwargs), collections.namedtuple, args, kwargs)


def note_made(
    vm: Interpreter,
    made: Any,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    given: Any = None,
    before: Any = None,
) -> Any:
    """Note a class that a function of Python's own has made; another call makes another one.

    With `given` it was made of this class, which is changed, and `before` is what that held.
    """
    if made is not given:
        note_class(vm, made)
    note_functions(vm, made)
    vm.recipes[id(made)] = (function, args, kwargs, given, before, dict(vars(made)))
    return made


def note_functions(vm: Interpreter, made: type) -> None:
    """The functions of a class that Python's own code has made are capture's."""
    for value in vars(made).values():
        for function in functions_of(value):
            vm.create(function)
            for cell in function.__closure__ or ():
                vm.create(cell)


def functions_of(value: Any) -> list[types.FunctionType]:
    """The functions in a descriptor of Python's own."""
    if isinstance(value, staticmethod | classmethod):
        return functions_of(value.__func__)
    if isinstance(value, property):
        return [f for part in (value.fget, value.fset, value.fdel) for f in functions_of(part)]
    return [value] if isinstance(value, types.FunctionType) else []
