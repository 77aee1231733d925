"""A class that the program has made inside the graph and that outlives it: how the entry makes another one in each call."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import enum
import inspect
import types
from typing import Any

import torch

from ..errors import Unsupported
from ..state import Interpreter
from ..values.constant import is_constant
from ..values.kinds import isinstance
from .bare import bare_class, written_slots
from .making import functions_of

__all__ = ["check_globals", "escapes", "is_signature", "made_again"]

_STRUCTURE = ("__module__", "__slots__")  # what `type.__new__` has to know
_OF_ABSTRACT = ("_abc_impl", "__abstractmethods__")


def escapes(vm: Interpreter, cls: type, why: str) -> Unsupported:
    """The break in front of a class that the entry cannot make again."""
    return _placed(vm, cls, Unsupported(f"a class is defined inside the captured code that outlives it, and {why}"))


def check_globals(vm: Interpreter, names: dict[str, Any]) -> None:
    """Raise Unsupported, in front of the `exec`, for a function or generator that outlives the graph and has these globals."""
    if vm.is_created(names):
        raise _placed(vm, names, Unsupported("a function that exec has defined outlives the graph"))


def _placed(vm: Interpreter, cls: Any, error: Unsupported) -> Unsupported:
    """The break at the statement that makes the class."""
    if error.split is None and id(cls) in vm.definitions.made:
        error.split, error.frames = vm.definitions.made[id(cls)]
    return error


def is_signature(vm: Interpreter, value: Any) -> bool:
    """Whether this is the signature of a function, with defaults and annotations that are the same in each call: it never changes."""
    if type(value) is not inspect.Signature:
        return False
    parts = [
        value.return_annotation,
        *(p for each in value.parameters.values() for p in (each.default, each.annotation)),
    ]
    return all(_is_lasting(vm, part) for part in parts)


def _is_lasting(vm: Interpreter, value: Any) -> bool:
    kind = type(value)
    named = isinstance(value, type) or kind in (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
    return not vm.is_created(value) and (named or is_constant(value) or kind.__module__ in ("typing", "types"))


def made_again(residual: Any, value: Any) -> str | None:
    """The expression of a class, or of a descriptor around functions, that capture has made; None of anything else."""
    vm: Interpreter = residual.vm
    if isinstance(value, type):
        if not vm.is_created(value):
            return None
        try:
            return _class(residual, value)
        except Unsupported as error:
            raise _placed(vm, value, error) from None
    if not isinstance(value, staticmethod | classmethod | property) or not any(map(vm.is_created, functions_of(value))):
        return None
    kind, parts = type(value), [getattr(value, "__func__", None)]
    if isinstance(value, property):
        text = value.__doc__ if value.__doc__ != getattr(value.fget, "__doc__", None) else None
        if value.__doc__ is None and getattr(value.fget, "__doc__", None) is not None:
            raise Unsupported("a property whose text was taken away outlives the captured code")
        parts = [value.fget, value.fset, value.fdel, text]
    if kind not in (staticmethod, classmethod, property):
        raise Unsupported(f"a {kind.__qualname__} around a function that was made inside the captured code outlives it")
    return str(residual._fresh(value, f"{kind.__name__}({', '.join(map(residual.value, parts))})"))


def _class(residual: Any, cls: type) -> str:
    vm, emit = residual.vm, residual.emit
    recipe, contents = vm.recipes.get(id(cls)), dict(vars(cls))
    if recipe is None:
        return _empty(residual, cls, contents)
    function, args, kwargs, of, before, behind = recipe
    given = [*map(residual.value, args), *(f"{k}={residual.value(v)}" for k, v in kwargs.items())]
    maker = emit.constant(function, function.__name__)
    made = None if of is None else _empty(residual, of, before)
    text = f"{maker}({', '.join([*([made] if made else []), *given])})"
    if of is cls:
        residual.post.append(text)
    else:
        made = residual._fresh(cls, text)
    if any(name not in contents for name in behind):
        raise escapes(vm, cls, f"names are deleted in it behind {function.__name__}")
    put = emit.constant(type.__setattr__, "set_in_class")
    for name, held in contents.items():
        if name not in behind or held is not behind[name]:
            residual.post.append(f"{put}({made}, {name!r}, {residual.value(held)})")
    return str(made)


def _empty(residual: Any, cls: type, contents: dict[str, Any]) -> str:
    """It is made with all its names, in their order, but empty: what it holds may refer to it."""
    vm, emit = residual.vm, residual.emit
    if issubclass(type(cls), enum.EnumMeta):
        raise escapes(vm, cls, "it is an enumeration")
    if issubclass(cls, torch.autograd.Function):
        raise escapes(vm, cls, "it is a function of autograd's")
    if "_abc_impl" in contents and _abc._get_dump(cls)[0]:
        raise escapes(vm, cls, "other classes are registered with it")
    if "__name__" in contents:
        raise escapes(vm, cls, "its instances have a __name__ of their own")
    if not is_constant(contents.get("__slots__")) or not is_constant(contents.get("__module__")):
        raise escapes(vm, cls, "its __slots__ are no constants")
    names, added = list(contents), written_slots(cls)
    own = names[: next((i for i, name in enumerate(names) if name in added), len(names))]
    pairs = [f"{n!r}: {residual.value(contents[n]) if n in _STRUCTURE else None}" for n in own if n not in _OF_ABSTRACT]
    pairs.append(f"'__qualname__': {cls.__qualname__!r}")
    bases = "".join(f"{residual.value(base)}, " for base in cls.__bases__)
    parts = f"{residual.value(type(cls))}, {cls.__name__!r}, ({bases}), {{{', '.join(pairs)}}}"
    made = residual._fresh(cls, f"{emit.constant(bare_class, 'bare_class')}({parts})")
    put = emit.constant(type.__setattr__, "set_in_class")
    for name in names:
        if name not in added and name not in _STRUCTURE and name not in _OF_ABSTRACT:
            residual.post.append(f"{put}({made}, {name!r}, {residual.value(contents[name])})")
    if "_abc_impl" in contents:
        residual.post.append(f"{emit.constant(_abc._abc_init, 'make_abstract')}({made})")
    return str(made)
