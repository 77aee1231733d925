"""Iterators and generators that are half-way where a graph ends: how the entry makes them again."""

from __future__ import annotations

import types
from typing import Any

from ..bytecode.frame import NULL, Lasti, Saved, kinds_of
from ..bytecode.generator import InterpretedGenerator
from ..bytecode.resume import free_names, generator_code
from ..classes.rebuild import check_globals
from ..errors import Unsupported
from ..values.held import reduced

__all__ = ["generator", "iterator"]


def iterator(residual: Any, iterator: Any) -> str:
    """A half-consumed iterator of Python's own, by what it says of itself for pickling."""
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
