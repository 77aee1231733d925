"""Wrapper tensors: of a class of the program's that runs operators on other tensors (`__torch_dispatch__`). Tried with torch 2.11 and 2.13."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nested._internal import nested_tensor as jagged

from ..values.constant import is_constant
from .foreign.data import alone_in, copied, is_plain_data, is_same, states_of
from .foreign.undeclared import (
    OF_TORCH,
    flattened,
    has_no_memory,
    is_jagged,
    is_shelled,
    is_taken_apart,
    is_wrapper,
    made_again,
)
from .foreign.unlike import forget_note, note_unlike, put_notes, taken_notes, zeros
from .symbols import is_unknown

__all__ = [
    "JAGGED_OF_LISTS",
    "JAGGED_OF_PARTS",
    "Built",
    "GradientUnlike",
    "Layout",
    "Part",
    "Restored",
    "Taken",
    "TakenOfCaller",
    "Wrapped",
    "again",
    "count_write",
    "is_jagged",
    "is_ragged",
    "is_wrapped",
    "is_wrapper",
    "layout_of",
    "math_attention",
    "may_have_gradient",
    "parts_of",
    "prepare_jagged",
    "ragged_sizes",
]


def is_ragged(size: Any) -> bool:
    """Whether a size of a jagged tensor differs from row to row."""
    return isinstance(size, torch.SymInt) and bool(size.node.is_nested_int())


def ragged_sizes(mode: Any) -> None:
    """Let a fake tensor mode number the ragged sizes of its jagged tensors as eager does: no symbols, equal only to themselves."""

    def create(*, nt_tensor_id: Any = None) -> Any:
        return torch.SymInt(jagged.NestedIntNode(next(_RAGGED), 1))

    mode.create_symbolic_nested_int = create


_RAGGED = itertools.count(1 << 40)  # numbers that eager's sizes do not come to


def prepare_jagged() -> None:
    """Make, outside of any fake mode, the tensor by which torch finds its code for jagged tensors."""
    jagged._nt_view_dummy()


def math_attention() -> bool:
    """Whether attention may take its mathematical kernel, the only one that nested tensors on a CPU have."""
    return torch.backends.cuda.math_sdp_enabled()


def again(like: Any, values: Tensor) -> Any:
    """Attention's result for queries that lie like these, heads first: of values with the items first."""
    made = jagged.nested_view_from_values_offsets_lengths(
        values,
        like.offsets(),
        lengths=None,
        min_seqlen=like._maybe_min_seqlen,
        max_seqlen=like._maybe_max_seqlen,
    )
    return made.transpose(1, 2)


# What makes jagged tensors: the first functions of lists and of tensors, the others of what these are made of.
JAGGED_OF_LISTS: tuple[Any, ...] = (torch.nested.nested_tensor, torch.nested.as_nested_tensor, torch.nested.narrow)
JAGGED_OF_PARTS: tuple[Any, ...] = (
    *(
        jagged.nested_view_from_values_offsets,
        jagged.nested_view_from_values_offsets_lengths,
        torch.nested.masked_select,
    ),
)


def is_wrapped(value: Any) -> bool:
    """Whether a tensor is of such a class, or of one that does not say it, and has no memory."""
    kind = type(value)
    if kind is FakeTensor or kind is Tensor or not issubclass(kind, Tensor):
        return False
    return is_wrapper(kind) or is_shelled(kind) and is_taken_apart(kind) and has_no_memory(value)


# ---- what a wrapper tensor is beside its parts ----


class Layout:
    """What a wrapper tensor is beside the tensors that it is made of."""

    def __init__(self, value: Any) -> None:
        self.declared = is_wrapper(type(value))
        names, context = value.__tensor_flatten__() if self.declared else flattened(value)
        self.kind, self.names, self.context = type(value), tuple(names), copied(context)
        self.jagged = is_jagged(self.kind)
        self.lasting = self.jagged or is_constant(context)
        self.attributes = {} if self.jagged else _attributes(value, self.names)  # these follow from its parts
        self.states = states_of([self.context, self.attributes])
        with torch._C.DisableTorchFunctionSubclass():  # what we ask is no call of the program's
            self.facts = (tuple(value.shape), tuple(value.stride()), value.dtype, value.device)
            self.requires_grad = bool(value.requires_grad)
            self.leaf = bool(value.is_leaf)
        self.__name__ = f"layout of {self.kind.__name__}"

    def __call__(self, value: Any) -> bool:
        """Whether another tensor has this layout."""
        other = Layout(value)
        return other.requires_grad == self.requires_grad and (other.leaf or not self.leaf) and self.agrees(other)

    def fix(self) -> bool:
        """Make sizes and strides numbers, which are guarded; False where a size depends on values."""
        if self.jagged:
            return True
        numbers = [n for fact in self.facts[:2] for n in fact if isinstance(n, torch.SymInt)]
        if any(is_unknown(symbol) for n in numbers for symbol in n.node.expr.free_symbols):
            return False
        shape, stride, *others = self.facts
        self.facts = (tuple(map(int, shape)), tuple(map(int, stride)), *others)
        return True

    def agrees(self, other: Layout, strides: bool = True) -> bool:
        """Whether two layouts differ in nothing but in whether gradients are wanted, or in strides."""
        if (self.kind, self.names) != (other.kind, other.names):
            return False
        mine, others = (self.facts, other.facts) if not self.jagged else (_unnamed(self.facts), _unnamed(other.facts))
        if mine != others and (strides or mine[:1] + mine[2:] != others[:1] + others[2:]):
            return False
        same = is_same(self.attributes, other.attributes) and is_same(self.context, other.context)
        return same and is_same(self.states, other.states)

    def alone(self) -> list[Any]:
        """The objects that a tensor holds which are equal to themselves alone."""
        return alone_in([self.context, self.attributes])


def _unnamed(facts: Any) -> Any:
    """Sizes and strides without the names of ragged ones: what is as large as what, the parts say."""
    return tuple(tuple(map(_name, fact)) if isinstance(fact, tuple) else fact for fact in facts)


def _name(size: Any) -> Any:
    return ("ragged", size.node.nested_int_coeff()) if is_ragged(size) else size


def _attributes(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """What a wrapper tensor holds beside its parts: `__torch_dispatch__` of its class may read it."""
    held = object.__getattribute__(value, "__dict__")
    found = {k: v for k, v in held.items() if k not in names and k not in OF_TORCH}
    return {k: copied(v) if is_plain_data(v) else v for k, v in found.items()}


def count_write(tensor: Tensor) -> None:
    """Count that what a wrapper tensor is made of was written to; one that is a view of it counts with it."""
    with torch._C.DisableTorchFunctionSubclass():
        if not tensor.is_inference() and (tensor._base is None or type(tensor._base) is type(tensor)):
            torch.autograd.graph.increment_version(tensor)


def layout_of(value: Any) -> Layout:
    """The layout of a wrapper tensor."""
    return Layout(value)


def parts_of(value: Any, layout: Layout) -> list[Any]:
    """The tensors that a wrapper tensor is made of."""
    return [getattr(value, name) for name in layout.names]


# ---- what graphs hold ----


class GradientUnlike(RuntimeError):
    """A gradient of a wrapper tensor is not made as the tensor is."""


class Wrapped:
    """The wrapper tensor of other tensors, with a layout that is a constant of the graph.

    Where it requires gradients (`joined`) it is given one tensor more in front of its parts, its carrier, which is None or looks like it:
    gradients that are wrapper tensors of its class arrive at the parts, plain ones at the carrier. `gradient` is the layout of the
    former, `fixed` whether that was assumed, before any has come.
    """

    def __init__(self, layout: Layout, parts: Sequence[Tensor] = (), fixed: bool = False) -> None:
        self.layout, self.joined, self.fixed = layout, layout.requires_grad, fixed
        self.facts = [_facts(p) for p in parts] if not layout.jagged else []
        self.strict = not layout.jagged  # whether strides have to be those of the layout
        self.gradient = layout if fixed else None
        self.flowing = [not layout.jagged or name == "_values" for name in layout.names]
        self.__name__ = f"wrapped_{layout.kind.__name__}"

    def __call__(self, *parts: Any) -> Any:
        if not self.joined:
            return self.made(*(p.detach() if p.requires_grad else p for p in parts))
        return _Joined.apply(self, *(parts if len(parts) > len(self.layout.names) else (None, *parts)))

    def made(self, *parts: Tensor) -> Any:
        """The tensor, without a history."""
        layout = self.layout
        shape, stride = layout.facts[:2]
        inner = dict(zip(layout.names, parts, strict=True))
        if not layout.declared:
            return made_again(layout.kind, inner, layout.attributes, layout.context, layout.facts)
        context = layout.context if layout.lasting else copied(layout.context)  # the program may change it
        made = layout.kind.__tensor_unflatten__(inner, context, torch.Size(shape), stride)  # type: ignore[attr-defined]
        if type(made) is not layout.kind or not Layout(made).agrees(layout, self.strict):
            raise TypeError(
                f"{layout.kind.__qualname__}.__tensor_unflatten__ does not give back what __tensor_flatten__ took apart"
            )
        if made.requires_grad and (self.joined or not layout.requires_grad):
            if not self.joined:
                raise TypeError(
                    f"{layout.kind.__qualname__}.__tensor_unflatten__ makes a tensor that requires gradients"
                )
            made.requires_grad_(False)
        return made

    def of_gradient(self, gradient: Any) -> Wrapped | None:
        """How a gradient that has arrived is taken apart; None of a plain tensor."""
        kind = self.layout.kind.__qualname__
        if not is_wrapped(gradient):
            if self.fixed:
                raise GradientUnlike(f"the gradient of a {kind} that a compiled function made is a plain tensor")
            return None
        found = Layout(gradient)
        parts = parts_of(gradient, found) if found.kind is self.layout.kind else []
        if self.layout.jagged and parts and "_lengths" not in (*found.names, *self.layout.names):
            if found.context["ragged_idx"] != self.layout.context["ragged_idx"]:
                raise GradientUnlike(f"the gradient of a {kind} is ragged in another dimension")
            made = Wrapped(found, fixed=True)
            made.joined = True
            return made
        if (
            found.names != self.layout.names
            or [_facts(p) for p in parts] != self.facts
            or not all(_flows(p) for p in parts)
        ):
            raise GradientUnlike(
                f"the gradient of a {kind} is made of other tensors than it: {found.kind.__qualname__}"
            )
        if self.fixed and self.gradient is not None and not self.gradient.agrees(found, strides=False):
            raise GradientUnlike(
                f"the gradient of a {kind} has other metadata than the {kind}, which the compiled graph took for it"
            )
        if not self.fixed:
            self.gradient = found
        made = Wrapped(found, parts, fixed=True)
        made.joined = True
        return made

    def of_gradients(self, parts: Sequence[Any], others: Sequence[Any]) -> Any:
        """The gradient whose parts these are; of `others` what no gradients have."""
        if self.layout.jagged:
            made = Wrapped(self.layout)
            made.joined = torch.is_grad_enabled()
            gradient = made(*(o if p is None else p for p, o in zip(parts, others, strict=True)))
            return gradient if made.joined else gradient.requires_grad_(False)
        if self.gradient is None:
            raise RuntimeError(f"a gradient of a {self.layout.kind.__qualname__} that no graph has made")
        given = [_zeros(facts) if p is None else p for p, facts in zip(parts, self.facts, strict=True)]
        made = Wrapped(self.gradient)
        made.facts, made.joined, made.strict = self.facts, torch.is_grad_enabled(), False
        return made(*given)


class Restored:
    """The wrapper tensor behind a graph, where gradients of it are wanted, whatever the mode is there."""

    def __init__(self, whole: Wrapped) -> None:
        self.whole = whole
        self.__name__ = whole.__name__

    def __call__(self, *parts: Any) -> Any:
        with torch.enable_grad():
            return self.whole(*parts)


def _facts(part: Tensor) -> tuple[Any, ...]:
    return type(part) if is_wrapped(part) else None, tuple(part.shape), part.dtype, part.device


def _zeros(facts: tuple[Any, ...]) -> Tensor:
    kind, shape, dtype, device = facts
    if kind is not None:
        raise RuntimeError(f"no gradient arrives for a part that is a {kind.__qualname__}")
    return torch.zeros(shape, dtype=dtype, device=device)


def _flows(part: Tensor) -> bool:
    """Whether tensors of this type have gradients."""
    return part.dtype.is_floating_point or part.dtype.is_complex


def may_have_gradient(value: Any) -> bool:
    """Whether a gradient made as the tensor is can arrive at it: not at a wrapper tensor that is partly made of integers."""
    return not is_wrapped(value) or all(map(_flows, parts_of(value, layout_of(value))))


class Taken:
    """A wrapper tensor that requires gradients, taken apart: its carrier and its parts, through which gradients flow to it."""

    def __init__(self, whole: Wrapped) -> None:
        self.whole = whole
        self.__name__ = f"taken_{whole.layout.kind.__name__}"

    def __call__(self, value: Any) -> Any:
        with torch.enable_grad():
            return _Apart.apply(self.whole, value)


class TakenOfCaller(Taken):
    """The same in a source: sources of two captures are compared. A graph has one for each tensor, which are not equal."""

    def __eq__(self, other: object) -> bool:
        """Whether two captures take tensors apart in one way: what one learned of the sizes of parts, the next one uses."""
        return isinstance(other, TakenOfCaller) and self._way() == other._way()

    def __hash__(self) -> int:
        return hash(self._way())

    def _way(self) -> tuple[Any, ...]:
        return self.whole.layout.kind, self.whole.layout.names


class _Apart(torch.autograd.Function):
    """A wrapper tensor to its carrier and parts; `_Joined` is the way back, and each is the other's derivative."""

    takes_apart = True

    @staticmethod
    def forward(ctx: Any, whole: Wrapped, value: Any) -> Any:
        ctx.whole = whole
        ctx.set_materialize_grads(False)
        shape = () if whole.layout.jagged else value.shape
        carrier = torch.empty_strided(shape, (0,) * len(shape), dtype=value.dtype, device=value.device)
        parts = [getattr(value, name) for name in whole.layout.names]
        parts = [p.detach() if f else p for p, f in zip(parts, whole.flowing, strict=True)]
        ctx.others = parts if whole.layout.jagged else ()
        ctx.mark_non_differentiable(*(p for p, f in zip(parts, whole.flowing, strict=True) if not f or not _flows(p)))
        return (carrier, *parts)

    @staticmethod
    def backward(ctx: Any, carried: Any, *parts: Any) -> Any:
        if (notes := taken_notes(ctx)) is not None:
            instead = notes.pop(ctx.whole, None)
            put_notes(ctx, notes)
            if instead is not None:
                return None, instead
        if carried is not None or all(p is None for p in parts):
            return None, carried
        return None, ctx.whole.of_gradients(parts, ctx.others)


class _Joined(torch.autograd.Function):
    """Carrier and parts to the wrapper tensor."""

    takes_apart = False

    @staticmethod
    def forward(ctx: Any, whole: Wrapped, carrier: Any, *parts: Any) -> Any:
        ctx.whole = whole
        ctx.set_materialize_grads(False)
        return whole.made(*(p.detach() for p in parts))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        nothing = (None,) * len(ctx.whole.layout.names)
        if gradient is None:
            return (None, None, *nothing)
        if (collected := getattr(ctx, "collected", None)) is not None:
            collected[ctx.whole] = gradient
            return (None, *zeros(ctx))
        try:
            whole = ctx.whole.of_gradient(gradient)
        except GradientUnlike:
            if not note_unlike(ctx, gradient):
                raise
            return (None, *zeros(ctx))
        if ctx.whole.fixed:
            forget_note(ctx)
        if whole is None:
            return (None, gradient, *nothing)
        if torch.is_grad_enabled():
            parts = dict(zip(whole.layout.names, _Apart.apply(whole, gradient)[1:], strict=True))
            names = zip(ctx.whole.layout.names, ctx.whole.flowing, strict=True)
            return (None, None, *(parts[name] if f else None for name, f in names))
        if whole.layout.jagged:
            return (None, None, *(gradient._values if f else None for f in ctx.whole.flowing))
        return (None, None, *parts_of(gradient, whole.layout))


class Part:
    """One of the tensors that a wrapper tensor is made of, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.__name__ = f"part_{name}"

    def __call__(self, value: Any) -> Any:
        return getattr(value, self.name)


class Built:
    """A call of a wrapper class; `fixed`: the arguments that are constants of the graph, by place or name."""

    def __init__(self, kind: type, fixed: dict[Any, Any]) -> None:
        self.kind, self.fixed = kind, fixed
        self.__name__ = f"made_{kind.__name__}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = iter(args)
        places = range(len(args) + sum(isinstance(place, int) for place in self.fixed))
        whole = [self.fixed[place] if place in self.fixed else next(given) for place in places]
        return self.kind(*whole, **kwargs, **{k: v for k, v in self.fixed.items() if isinstance(k, str)})
