"""Wrapper tensors in a graph: each is made of its parts where it comes in, and taken apart where it goes out.

Between, operators run on them as eager's do: `__torch_dispatch__` of the class runs at capture and in the traces of the graph, which
see what it does with the parts. What `__tensor_flatten__` says beside the parts is a constant of a graph, and guarded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..distributed import tensors
from ..errors import GraphBreak, Unsupported
from ..guards.source import Attr, Fetch, Source
from ..state import Interpreter
from ..torch_private.dtensor import is_shared
from ..torch_private.fake import real_tensors
from ..torch_private.wrapped import Part, Wrapped, layout_of, parts_of
from ..values.constant import is_constant, is_static
from ..values.kinds import isinstance

__all__ = ["handed_out", "part", "taken_in"]


def taken_in(vm: Interpreter, value: Any, source: Source, check: Callable[[Tensor, str], None]) -> Tensor:
    """The stand-in for a wrapper tensor of the caller's: the wrapper of fake parts."""
    kind, name = type(value), source.name()
    with real_tensors():
        layout, parts = _taken_apart(value, name)
        for each, part_name in zip(parts, layout.names, strict=True):
            check(each, f"{name}.{part_name}")
        _put_together(layout, parts, name)
    vm.guards.add("type", source, kind)
    vm.guards.add("equals", Fetch(layout, source), True)
    vm.definitions.note(kind)
    fakes = []
    for each, part_name in zip(parts, layout.names, strict=True):
        fake, info = vm.dynamic.tensor(each, Attr(source, part_name), True)  # its sizes are numbers: the layout's are
        info.static = False
        vm.out.add_input(info)
        vm.user.arg_tensors.append(info)
        fakes.append(fake)
    made: Tensor = vm.out.call_function(Wrapped(layout), tuple(fakes), {})
    vm.user.track(value, made, source)
    vm.overrides.wrap(made, value, source, dict(zip(layout.names, fakes, strict=True)))
    return made


def _put_together(layout: Any, parts: list[Any], name: str) -> None:
    try:
        Wrapped(layout)(*parts)
    except Exception as error:
        raise Unsupported(f"{name} cannot be put together again: {type(error).__name__}: {error}") from None


def _taken_apart(value: Any, name: str) -> tuple[Any, list[Any]]:
    kind = type(value).__qualname__
    try:
        layout = layout_of(value)
        parts = parts_of(value, layout)
    except Exception as error:
        raise Unsupported(f"__tensor_flatten__ of {name}, a {kind}, raised {type(error).__name__}: {error}") from None
    if not all(isinstance(n, str) for n in layout.names) or not all(isinstance(p, Tensor) for p in parts):
        raise Unsupported(f"__tensor_flatten__ of {name}, a {kind}, names something else than tensors")
    if value.requires_grad or any(p.requires_grad for p in parts):
        raise Unsupported(f"{name}, a {kind}, requires gradients")
    if not _is_plain(layout.context):
        raise Unsupported(f"__tensor_flatten__ of {name}, a {kind}, gives a context that is no plain data")
    return layout, parts


def _is_plain(context: Any) -> bool:
    if type(context) in (list, tuple):
        return all(map(_is_plain, context))
    if type(context) is dict:
        return all(map(_is_plain, (*context, *context.values())))
    return is_constant(context) or is_static(context)


def handed_out(vm: Interpreter, value: Tensor) -> tuple[list[Tensor], Any]:
    """The parts of a wrapper tensor, or DTensor, that the graph made, and what makes it of them."""
    if is_shared(value):
        one, whole = tensors.handed_out(vm, value)
        return [one], whole
    layout, parts = _taken_apart(value, "a result")
    _put_together(layout, parts, "a result")
    return [part(vm, value, name) for name in layout.names], Wrapped(layout)


def part(vm: Interpreter, value: Tensor, name: str) -> Tensor:
    """`value.name` where that is one of the tensors that the wrapper is made of."""
    known = vm.overrides.parts.get(id(value), {})
    if name not in known:
        made = vm.out.call_function(Part(name), (value,), {})
        if not isinstance(made, Tensor) or not vm.out.is_known(made):
            raise GraphBreak(f"{name} of a {type(value).__qualname__} is no tensor")
        known = vm.overrides.parts.setdefault(id(value), {})
        known[name] = made
    return known[name]  # type: ignore[no-any-return]
