"""Wrapper tensors in a graph: each is made of its parts where it comes in, and taken apart where it goes out.

Between, operators run on them as eager's do: `__torch_dispatch__` of the class runs at capture and in the traces of the graph, which
see what it does with the parts. What `__tensor_flatten__` says beside the parts is a constant of a graph, and guarded.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..distributed import tensors
from ..distributed.tensors import set_grad
from ..errors import GraphBreak, Unsupported
from ..gradients.inside import check_no_leaf
from ..gradients.nodes import set_requires_grad
from ..guards.emitter import Emitter
from ..guards.source import Attr, Const, Fetch, Item, Source
from ..state import Interpreter
from ..torch_private.dispatch import storage_key
from ..torch_private.dtensor import is_composite, is_shared
from ..torch_private.fake import is_fake, real_tensors
from ..torch_private.foreign.data import Fixed, alone_in, copied, is_fixed, is_held_by_identity, is_plain_data
from ..torch_private.foreign.undeclared import has_no_memory, is_taken_apart, is_wrapper, reason_against
from ..torch_private.wrapped import (
    Built,
    Part,
    Restored,
    Taken,
    TakenOfCaller,
    Wrapped,
    count_write,
    is_wrapped,
    layout_of,
    parts_of,
)
from ..values.kinds import isinstance
from . import methods

__all__ = ["built", "counted_versions", "handed_out", "part", "taken_in"]


def taken_in(vm: Interpreter, value: Any, source: Source, check: Callable[[Tensor, str], None]) -> Tensor:
    """The stand-in for a wrapper tensor of the caller's: the wrapper of fake parts."""
    kind, name = type(value), source.name()
    with real_tensors():
        layout, parts = _taken_apart(value, name)
        for each, part_name in zip(parts, layout.names, strict=True):
            if not is_wrapped(each):
                check(each, f"{name}.{part_name}")
        whole = Wrapped(layout, parts)
    vm.guards.add("type", source, kind)
    vm.guards.add("equals", Fetch(layout, source), True)
    vm.definitions.note(kind)
    for alone in layout.alone():
        vm.user.wrap(alone, Const(alone, f"an object of {name}"))
    if not layout.jagged:
        vm.overrides.meet(kind)
    if not layout.jagged and layout.declared:
        methods.put_together(vm, layout, dict(zip(layout.names, map(_like, parts), strict=True)))
    with real_tensors():
        _put_together(whole, parts, name)
    inside = layout.leaf and vm.overrides.leaves.refused is not None and vm.overrides.through.refused is None
    if not layout.requires_grad or inside:
        whole.joined = False
        fakes = [_part(vm, p, Attr(source, n), check, layout.jagged) for p, n in zip(parts, layout.names, strict=True)]
        made: Tensor = vm.out.call_function(whole, tuple(fakes), {})
        known = dict(zip(layout.names, fakes, strict=True))
        if layout.requires_grad:
            lifted = vm.out.lift((made, True))
            vm.native(set_requires_grad, made, True)
            vm.out.record(set_requires_grad, (lifted, {}), made, True)
            vm.overrides.leaves_inside.append(made)
    else:
        taken = Fetch(TakenOfCaller(whole), source)
        with real_tensors():
            reals = taken.function(value)
        fakes = [_part(vm, each, Item(taken, at), check, layout.jagged and at > 0) for at, each in enumerate(reals)]
        before = torch.is_grad_enabled()
        set_grad(vm, True)  # it may be read where gradients are on
        made = vm.out.call_function(whole, tuple(fakes), {})
        set_grad(vm, before)
        known = {}
    vm.user.track(value, made, source)
    vm.overrides.wrap(made, value, source, known)
    return made


def _like(part: Any) -> Any:
    """A fake tensor, or wrapper of such, that looks like a real one."""
    if not is_wrapped(part):
        return torch.empty_strided(part.shape, part.stride(), dtype=part.dtype, device=part.device)
    layout = layout_of(part)
    return Wrapped(layout).made(*map(_like, parts_of(part, layout)))


def _part(vm: Interpreter, part: Tensor, source: Source, check: Callable[[Tensor, str], None], sized: bool) -> Tensor:
    """The stand-in for one of the tensors that a wrapper tensor is made of."""
    known = vm.user.by_real.get(id(part))
    if known is not None:
        found: Tensor = vm.user.wrap(part, source)
        return found
    if is_wrapped(part):
        return taken_in(vm, part, source, check)
    fake, info = vm.dynamic.tensor(part, source, not sized, False)  # sizes that the layout has are numbers
    info.static, info.temporary = False, part.requires_grad
    vm.out.add_input(info)
    vm.user.arg_tensors.append(info)
    vm.user.track(part, fake, source)
    return fake


def _put_together(whole: Wrapped, parts: list[Any], name: str) -> None:
    kind = whole.layout.kind.__qualname__
    try:
        again = parts_of(whole.made(*parts), whole.layout)
    except Exception as error:
        raise Unsupported(f"{name}, a {kind}, cannot be put together again: {type(error).__name__}: {error}") from None
    if not whole.layout.jagged and not all(map(_is_same, parts, again)):
        raise Unsupported(f"{name}, a {kind}, cannot be put together again: its class makes it of other tensors")


def _is_same(part: Tensor, again: Tensor) -> bool:
    """Whether one tensor has the memory of the other, or, where that can be seen, its values: constructors may copy."""
    if part is again:
        return True
    if is_wrapped(part):
        return all(map(_is_same, *(parts_of(t, layout_of(t)) for t in (part, again))))
    if is_composite(part):
        return True  # a DTensor's class is torch's
    if (part.layout, part.dtype, part.shape) != (again.layout, again.dtype, again.shape):
        return False
    if part.layout is not torch.strided or part.is_quantized:
        return True
    places = [(storage_key(t), t.storage_offset(), t.stride()) for t in (part, again)]
    return places[0] == places[1] or not is_fake(part) and bool(torch.allclose(part, again, 0, 0, equal_nan=True))


def _taken_apart(value: Any, name: str) -> tuple[Any, list[Any]]:
    kind = type(value).__qualname__
    _check_undeclared(value, name)
    try:
        layout = layout_of(value)
        parts = parts_of(value, layout)
    except Exception as error:
        raise Unsupported(f"__tensor_flatten__ of {name}, a {kind}, raised {type(error).__name__}: {error}") from None
    if not all(isinstance(n, str) for n in layout.names) or not all(isinstance(p, Tensor) for p in parts):
        raise Unsupported(f"__tensor_flatten__ of {name}, a {kind}, names something else than tensors")
    if not layout.fix():
        raise Unsupported(f"{name}, a {kind}, has a size that depends on values")
    if any(p.requires_grad for p in parts):
        raise Unsupported(f"{name}, a {kind}, is made of tensors that require gradients themselves")
    if not is_plain_data(layout.context):
        raise Unsupported(f"__tensor_flatten__ of {name}, a {kind}, gives a context that is no plain data")
    for held, found in layout.attributes.items():
        if not is_plain_data(found) and not is_held_by_identity(found):
            raise Unsupported(f"{held} of {name}, a {kind}, is no plain data: whether it changes cannot be seen")
    return layout, parts


def _check_undeclared(value: Any, name: str) -> None:
    """Refuse what cannot be made again of the tensors among its attributes, where its class does not say what it is made of."""
    kind = type(value)
    if is_wrapper(kind):
        return
    if not has_no_memory(value) or not is_taken_apart(kind):
        raise Unsupported(
            f"{name} is a tensor subclass ({kind.__qualname__}) that sees operators and has memory of its own"
        )
    if (why := reason_against(value)) is not None:
        raise Unsupported(
            f"{name}, a {kind.__qualname__} (a wrapper tensor whose class has no __tensor_flatten__), {why}"
        )


def _check_arriving(vm: Interpreter, value: Tensor, layout: Any) -> None:
    """Refuse where a gradient that arrives from outside is seen not to look like the tensor, as the graph of backward takes it to do."""
    kind = layout.kind.__qualname__
    with torch.no_grad(), vm.overrides.methods.seen(torch.ones_like, [value]):
        made = torch.ones_like(value)
    if not _looks_like(made, value):
        raise Unsupported(
            f"a {kind} that requires gradients is given out, and its gradients may be of another class or look otherwise"
        )


def _looks_like(gradient: Tensor, value: Tensor) -> bool:
    if not is_wrapped(value):
        return not is_wrapped(gradient)
    layout, found = layout_of(value), layout_of(gradient) if type(gradient) is type(value) else None
    if found is None or not found.agrees(layout, strides=False):
        return False
    return all(map(_looks_like, parts_of(gradient, found), parts_of(value, layout)))


def handed_out(vm: Interpreter, value: Tensor) -> tuple[list[Tensor], Any]:
    """The parts of a wrapper tensor, or DTensor, that the graph made, and what makes it of them."""
    if is_shared(value):
        one, whole = tensors.handed_out(vm, value)
        return [one], whole
    check_no_leaf(vm, value)
    layout, parts = _taken_apart(value, "a result")
    if not all(methods.is_of_caller(vm, alone) for alone in layout.alone()):
        raise Unsupported(f"a {layout.kind.__qualname__} is given out that holds an object which the call has made")
    root = value if value._base is None else value._base
    if layout.requires_grad and any(root is r for r in vm.overrides.given_roots):
        raise Unsupported(f"two {layout.kind.__qualname__}s that share memory and require gradients are given out")
    vm.overrides.given_roots.append(root)
    if layout.requires_grad and not layout.declared:
        _check_arriving(vm, value, layout)
    made = Wrapped(layout, parts, fixed=True)
    _put_together(made, parts, "a result")
    if not layout.requires_grad:
        return [part(vm, value, name) for name in layout.names], made
    before = torch.is_grad_enabled()
    set_grad(vm, True)
    _, *found = vm.out.call_function(Taken(made), (value,), {})
    set_grad(vm, before)
    return found, Restored(made)


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


def built(vm: Interpreter, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """`cls(...)` of a wrapper class: its methods run at capture and in the traces of the graph."""
    vm.definitions.note(cls)
    vm.overrides.meet(cls)
    if methods.is_followed(vm):
        return methods.made(vm, cls, args, kwargs)  # type: ignore[no-any-return]
    args, kwargs = tuple(map(vm.materialize, args)), {k: vm.materialize(v) for k, v in kwargs.items()}
    methods.constructed(vm, cls, args, kwargs)
    every = (*enumerate(args), *kwargs.items())
    fixed = {place: _constant(vm, value, cls) for place, value in every if is_fixed(value)}
    rest = tuple(value for place, value in enumerate(args) if place not in fixed)
    named = {name: value for name, value in kwargs.items() if name not in fixed}
    made: Tensor = vm.out.call_function(Built(cls, fixed), rest, named)
    if type(made) is not cls or not vm.out.is_known(made):
        raise GraphBreak(f"a {cls.__qualname__} is made, and is something else")
    return made


def _constant(vm: Interpreter, value: Any, cls: Any) -> Any:
    """What a wrapper tensor is made with beside tensors and constants: one of the caller's is guarded, data that the call has made copied."""
    known = vm.user.by_real.get(id(value))
    changed = any(owner == id(value) for owner, _ in vm.effects.attrs)
    if known is not None and known.real is value and known.value is value and not changed:
        vm.guards.add("equals", Fetch(Fixed(value), known.source), True)
        return copied(value)
    if not vm.is_created(value) or alone_in(value) or type(value) is types.FunctionType:
        raise GraphBreak(f"a {cls.__qualname__} is made with an object which the call has made or changed")
    names = vm.effects.names(value, list(vars(value)))
    made = object.__new__(type(value))
    vars(made).update({name: vm.materialize(vm.load_attr(value, name)) for name in names})
    if not is_plain_data(made):
        raise GraphBreak(f"a {cls.__qualname__} is made with an object which holds more than plain data")
    return copied(made)


def counted_versions(vm: Interpreter, emit: Emitter) -> list[str]:
    """Statements that count the writes to wrapper tensors of the caller's: the graph writes to what they are made of."""
    return [f"{emit.constant(count_write, 'count_write')}({emit.fetch(w.source)})" for w in vm.overrides.written()]
