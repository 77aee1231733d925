"""Iterators and generators that are half-way where a graph ends, and bound callables: how the entry makes them again."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import operator
import types
import weakref
from collections import OrderedDict
from typing import Any

from ..bytecode.frame import NULL, Lasti, Saved, kinds_of
from ..bytecode.generator import InterpretedGenerator
from ..bytecode.resume import free_names, generator_code
from ..calls.library import methodcaller_parts
from ..classes.rebuild import check_globals
from ..errors import Unsupported
from ..regions.rows import Grown
from ..values.held import PROXIES, reduced
from ..values.tensor import TensorMethod

__all__ = [
    "BUILDERS",
    "as_it_is",
    "generator",
    "getter",
    "is_iterator",
    "iterator",
    "method",
    "method_caller",
    "partial",
    "reference",
]

_SIDES = (iter, reversed)
_VIEWS = (dict.keys, dict.values, dict.items)
_OF_DICTS: dict[type, Any] = {type(side(view({}))): (side, view) for side in _SIDES for view in _VIEWS}
_OF_SETS: type = type(iter(set()))
_OF_ORDERED: type = type(iter(OrderedDict()))
_FRONTEND = __name__.rpartition(".entry.")[0]


def is_iterator(kind: type) -> bool:
    """Whether this is a type of iterators of Python's own, which say how far they are."""
    return hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools", "collections", "_collections")


def iterator(residual: Any, iterator: Any) -> str:
    """A half-consumed iterator of Python's own, by what it says of itself for pickling."""
    if type(iterator) in _OF_DICTS or type(iterator) in (_OF_SETS, _OF_ORDERED):
        return _of_container(residual, iterator)
    if (place := residual.vm.methods.iterators.get(id(iterator))) is not None:
        error = Unsupported(f"a {type(iterator).__name__}() asks methods of the program's, and outlives the graph")
        error.split, error.frames = place[1:]
        raise error
    try:
        made = reduced(iterator, type(iterator))
    except TypeError:
        raise Unsupported(f"an iterator of type {type(iterator).__name__} is half-way at a graph break") from None
    function = residual.emit.constant(made[0], made[0].__name__)
    name, args = residual._around(iterator, made[1])
    residual.post.append(f"{name} = {function}({', '.join(args)})")
    if len(made) > 2 and made[2] is not None:
        residual.post.append(f"{name}.__setstate__({residual.value(made[2])})")
    return name


def _of_container(residual: Any, iterator: Any) -> str:
    """An iterator of a dict or set, which for pickling would give what is left: changes of the container have to be seen later on."""
    kind = type(iterator)
    with contextlib.suppress(RuntimeError):  # it has changed its size meanwhile
        left = list(reduced(iterator, kind)[1][0])
        whole = next((v for v in gc.get_referents(iterator) if isinstance(v, dict | set | frozenset)), None)
        if whole is None:
            return str(residual._fresh(iterator, "iter(())"))
        taken = len(whole) - len(left)
        ways = [t for t, again in _ways(kind) if all(map(_same, itertools.islice(again(whole), taken, None), left))]
        if ways and (len(ways) == 1 or not left):
            name = residual._fresh(iterator, ways[0].format(residual.value(whole)))
            residual.post += [f"next({name})"] * taken
            return str(name)
    raise Unsupported("an iterator is half-way at a graph break, and what it goes through has changed")


def _ways(kind: type) -> list[tuple[str, Any]]:
    """How an iterator of this type may have been made, as text and as a function."""
    if kind is _OF_SETS:
        return [("iter({})", iter)]
    pairs = [_OF_DICTS[kind]] if kind in _OF_DICTS else [(side, view) for side in _SIDES for view in _VIEWS]
    return [(f"{s.__name__}({{}}.{v.__name__}())", functools.partial(_through, s, v)) for s, v in pairs]


def _through(side: Any, view: Any, whole: Any) -> Any:
    return side(getattr(OrderedDict if isinstance(whole, OrderedDict) else dict, view.__name__)(whole))


def _same(one: Any, other: Any) -> bool:
    if type(one) is tuple and type(other) is tuple and len(one) == len(other) == 2:
        return one[0] is other[0] and one[1] is other[1]  # pairs of a key and an item are made as they are taken
    return one is other


def generator(residual: Any, generator: InterpretedGenerator) -> str:
    """A suspended generator of the program's, as a real one that is suspended at the same `yield`."""
    frame = generator.frame
    if generator.finished:
        return residual._fresh(generator, "iter(())")
    fast = {n: v for n, v in frame.fast.items() if v is not NULL}
    boxed = {*frame.code.co_cellvars, *frame.code.co_freevars}
    names = tuple(n for n in fast if not (n in boxed and isinstance(fast[n], types.CellType)))
    cells = {n: residual.cell(v) for n, v in fast.items() if n not in names}
    started = generator.started
    stack = frame.stack if started else []
    layout = tuple(kinds_of(stack))
    code = generator_code(frame.code, frame.ip - 1 if started else 0, names, layout, started)
    values = [residual.value(fast[n]) for n in names] + [
        residual.value(v.now if type(v) is Saved else v) for v in stack if v is not NULL and type(v) is not Lasti
    ]
    closure = ", ".join(
        cells.get(n) or f"{residual.emit.constant(types.CellType, 'CellType')}()" for n in free_names(code)
    )
    make = residual.emit.constant(types.FunctionType, "FunctionType")
    check_globals(residual.vm, frame.globals)
    parts = f"{residual.emit.constant(code, 'code')}, {residual.emit.constant(frame.globals, 'globals')}"
    function = f"{make}({parts}, {frame.code.co_name!r}, None, ({closure}{',' if closure else ''}))"
    name = residual._fresh(generator, f"{function}({', '.join(values)})")
    names_now = generator.__name__, generator.__qualname__
    if names_now != (frame.code.co_name, frame.code.co_qualname):
        residual.post.append(f"{name}.__name__, {name}.__qualname__ = {names_now!r}")
    if started:
        residual.post.append(f"{name}.send(None)")
    return name


def method(residual: Any, value: types.MethodType) -> str:
    """A method that is bound to an object."""
    if residual.vm.is_frontend_class(
        type(value.__self__)
    ):  # a stand-in: what stands there afterwards has a method of that name
        return f"{residual.value(value.__self__)}.{value.__func__.__name__}"
    return _called(residual, value, types.MethodType, value.__func__, value.__self__)


def partial(residual: Any, value: functools.partial[Any]) -> str:
    """A function with some of its arguments, and attributes of its own."""
    name = _called(residual, value, functools.partial, value.func, *value.args, **value.keywords)
    residual.own_attributes(value, name)
    return name


def getter(residual: Any, value: Any) -> str:
    """An itemgetter or attrgetter, which says what it takes."""
    kind, parts = value.__reduce__()
    return _called(residual, value, kind, *parts)


def method_caller(residual: Any, value: Any) -> str:
    """A methodcaller."""
    kind, args, keywords = methodcaller_parts(value)
    return _called(residual, value, kind, *args, **keywords)


def reference(residual: Any, value: Any) -> str:
    """A weak reference or proxy; a reference with a callback is an object of its own."""
    refers = type(value) is weakref.ReferenceType
    if id(value) in residual.vm.effects.dead:
        kind = "reference" if refers else "proxy of a callable" if type(value) is weakref.CallableProxyType else "proxy"
        return _called(residual, value, _dead, kind)
    if not refers:
        return str(residual._object(value))
    return _again(residual, value) or _called(residual, value, weakref.ref, value())


class _Gone:
    """What nothing holds."""


class _CallableGone(_Gone):
    def __call__(self) -> None: ...


def _dead(kind: str) -> Any:
    """A weak reference or proxy to an object that is gone."""
    if kind == "reference":
        return weakref.ref(_Gone())
    return weakref.proxy(_Gone() if kind == "proxy" else _CallableGone())


def as_it_is(residual: Any, value: Any) -> str:
    """A function or class that was there before the call; what stands for a function of Python's library during capture is made as that."""
    made = _again(residual, value)
    of_capture = type(value) is types.FunctionType and value.__closure__ and str(value.__module__).startswith(_FRONTEND)
    if made is None and of_capture:  # it knows the capture
        raise Unsupported(
            f"a function that stands for one of Python's library ({value.__qualname__}) is returned or stored"
        )
    return residual.emit.constant(value, getattr(value, "__name__", "obj")) if made is None else made


def _again(residual: Any, value: Any) -> str | None:
    """Made by its recipe, where it has one."""
    recipe = residual.vm.recipes.get(id(value))
    return None if recipe is None else _called(residual, value, recipe[0], *recipe[1], **recipe[2])


def _called(residual: Any, value: Any, kind: Any, /, *args: Any, **keywords: Any) -> str:
    parts = [*map(residual.value, args), *(f"{k}={residual.value(v)}" for k, v in keywords.items())]
    return str(residual._fresh(value, f"{residual.emit.constant(kind, kind.__name__)}({', '.join(parts)})"))


def _grown(residual: Any, value: Grown) -> str:
    """A list whose length values decide, made of its rows."""
    function, *parts = residual.vm.branches.lists.give(value)
    texts = [residual.value(part) for part in parts]
    return residual._fresh(value, f"{residual.emit.constant(function, function.__name__)}({', '.join(texts)})")


BUILDERS: dict[type, Any] = {
    Grown: _grown,
    InterpretedGenerator: generator,
    TensorMethod: lambda residual, value: f"{residual.value(value.__self__)}.{value.__name__}",
    functools.partial: partial,
    **dict.fromkeys((operator.itemgetter, operator.attrgetter), getter),
    operator.methodcaller: method_caller,
    types.MethodType: method,
    **dict.fromkeys((weakref.ReferenceType, *PROXIES), reference),
}
