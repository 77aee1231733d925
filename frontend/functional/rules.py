"""What functionalisation knows about single operators: rules, kept composites, functional variants of writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...ir.dialects.aten import TORCHS_OWN
from ...ir.fx.functional_operators import functional_operator
from ..graph.fake_rules import CUDNN_SAMPLERS
from ..graph.fake_strides import memory_order
from ..torch_private.dispatch import decompose_composite, is_in_format
from ..torch_private.functions import RECURRENT, OpOverload
from .foreach import FOREACH, SCALING

aten = torch.ops.aten

KEPT_COMPOSITES: frozenset[OpOverload] = frozenset({aten.linear.default, aten.scaled_dot_product_attention.default})
"""Composite operators that stay whole, because a library has one call for each."""

_RECURRENT = frozenset(getattr(aten, name).input for name in RECURRENT)


def is_kept(func: OpOverload, args: Any, casts: bool) -> bool:
    """Whether a composite operator stays whole; with `casts`, autocast casts what it is made of.

    cuDNN's recurrent layers look for their weights in one piece of memory, which no tensor of a graph is.
    """
    return func in KEPT_COMPOSITES or func in _RECURRENT and not casts and args[0].device.type != "cpu"


def is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def written_arguments(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    arguments = func._schema.arguments
    given = [args[i] if i < len(args) else kwargs.get(a.name) for i, a in enumerate(arguments) if is_written(a)]
    return [g for g in given if g is not None]


@cache
def functional_variant(func: OpOverload) -> tuple[OpOverload | None, bool]:
    """The overload that returns what ``func`` writes, and whether the written arguments are left out of its call."""
    if func.namespace not in TORCHS_OWN:  # names promise nothing there
        return functional_operator(func), False
    namespace = getattr(torch.ops, func.namespace)
    name = func._schema.name.split("::")[1]
    out = [a.name for a in func._schema.arguments if is_written(a) and a.kwarg_only and a.is_out]
    plain = [(a.name, str(a.type)) for a in func._schema.arguments if a.name not in out]
    inplace = name.endswith("_") and not name.endswith("__")
    special = f"{name.removesuffix('_')}_functional"
    stems = [name.removesuffix("_") if inplace else name, special]
    if name.startswith("__i"):
        stems.append("__" + name[3:])
    for stem in stems:
        packet = getattr(namespace, stem, None)
        for overload in packet.overloads() if packet is not None else ():
            candidate = getattr(packet, overload)
            schema = candidate._schema
            same = [(a.name, str(a.type)) for a in schema.arguments] == plain
            if same and not schema.is_mutable and candidate is not func:
                return candidate, bool(out)
    return functional_operator(func), False


def with_defaults(func: OpOverload, functional: OpOverload, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """``kwargs`` with what ``func`` has defaults for and ``functional`` has not (``bernoulli_``'s probability)."""
    wanted = {a.name for a in functional._schema.arguments[len(args) :] if not a.has_default_value()}
    defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    return {name: defaults[name] for name in wanted if name in defaults} | kwargs


def draws_elsewhere(func: OpOverload, target: Tensor) -> bool:
    """Whether random numbers go into memory in another order than into what the functional operator makes.

    A CPU's go one by one, as the memory lies. A GPU's do, too, and so do those of the functional operators there, whose results lie as the
    tensor does; but `bernoulli.p` makes a contiguous one.
    """
    if torch.Tag.nondeterministic_seeded not in func.tags or not is_written(func._schema.arguments[0]):
        return False
    return not target.is_contiguous() and (target.device.type == "cpu" or func is aten.bernoulli_.float)


def drawn(functional: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a draw leaves in a tensor that is not contiguous; NotImplemented where the numbers depend on more than their order."""
    target = args[0]
    if functional._schema.name.split("::")[1] not in _ONE_BY_ONE or any(isinstance(a, Tensor) for a in args[1:]):
        return NotImplemented
    order = memory_order(target)
    memory = torch.empty([target.shape[d] for d in order], dtype=target.dtype, device=target.device)
    numbers = functional(memory, *args[1:], **kwargs)
    return aten.permute.default(numbers, [order.index(d) for d in range(target.dim())])


_ONE_BY_ONE = frozenset({"bernoulli", "uniform", "exponential", "cauchy", "log_normal", "geometric", "random"})


def _batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float, *_: Any
) -> Any:
    if any(type(n) is int and n == 0 for n in x.shape):  # eager asks no kernel then, and leaves the statistics alone
        result = aten.clone.default(x)
        for operator, operand in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
            if operand is not None:
                result = operator(result, aten.select.int(operand, 0, 0))
        return result
    if _is_cudnns(x, weight, bias, mean, var, training):
        x = _as_cudnn_takes_it(x)
    return _native_batch_norm(x, weight, bias, mean, var, training, momentum, eps)[0]


def _as_cudnn_takes_it(x: Tensor) -> Tensor:
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    form = last if is_in_format(x, last) else torch.contiguous_format
    return x if x.is_contiguous(memory_format=form) else aten.clone.default(x, memory_format=form)


def _is_cudnns(x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool) -> bool:
    """Whether eager calls cuDNN for a batch norm, which makes images contiguous, or channels last. As measured with torch 2.11."""
    given = [weight, bias] if training and mean is None and var is None else [weight, bias, mean, var]
    if not (x.is_cuda and x.dim() >= 3 and torch.backends.cudnn.enabled and x.dtype != torch.bfloat16):
        return False
    wanted = torch.float32 if x.dtype == torch.float16 else x.dtype
    known = all(isinstance(t, Tensor) and t.dtype == wanted for t in given)
    return known and bool(x.shape[0] <= (880801 if training else 65535))


def _native_batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """``native_batch_norm`` writes its running statistics without saying so in its schema."""
    if not training:
        return aten._native_batch_norm_legit_no_training.default(x, weight, bias, mean, var, momentum, eps)
    if mean is None or var is None:
        return aten._native_batch_norm_legit.no_stats(x, weight, bias, training, momentum, eps)
    return aten._native_batch_norm_legit.default(x, weight, bias, mean, var, training, momentum, eps)


def _cudnn_batch_norm(
    x: Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """What autograd makes of a batch norm on a GPU where it records; it, too, writes its running statistics without saying so."""
    results = _native_batch_norm(_as_cudnn_takes_it(x), weight, bias, mean, var, training, momentum, eps)
    return (*results[:3], aten.full.default([0], 0, dtype=torch.uint8, device=x.device))


def _cudnn_batch_norm_backward(
    x: Tensor, gradient: Tensor, weight: Any, mean: Any, var: Any, saved: Any, scale: Any, eps: float, reserve: Any
) -> Any:
    wanted = [True, True, True]
    return aten.native_batch_norm_backward.default(gradient, x, weight, mean, var, saved, scale, True, eps, wanted)


def _max_pool1d(x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Without gradients a CPU has a kernel of its own for it, whose result is contiguous."""
    made = decompose_composite(aten.max_pool1d.default, x, *args, **kwargs)
    if x.device.type != "cpu" or (x.requires_grad and torch.is_grad_enabled()):
        return made
    plain = torch.empty_like(made, memory_format=torch.contiguous_format).stride()
    return made if made.stride() == plain else aten.clone.default(made, memory_format=torch.contiguous_format)


def _zeros(size: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
    """Zeros without memory, as derivatives give them, become zeros."""
    return aten.full.default(size, 0, dtype=dtype or torch.get_default_dtype(), device=device)


def _pixel_unshuffle(x: Tensor, factor: int) -> Any:
    """Of nothing, eager gives a copy of its argument."""
    return aten.clone.default(x) if any(type(n) is int and n == 0 for n in x.shape) else NotImplemented


def _conj(x: Tensor | complex) -> Any:
    """Derivatives ask it of Python's numbers, too."""
    return (
        NotImplemented if isinstance(x, Tensor) else aten.scalar_tensor.default(x.conjugate(), dtype=torch.complex128)
    )


def _copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source


def _filled(target: Tensor, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return aten.copy.default(target, value)
    return aten.full_like.default(target, value)


def _copy_of(view: OpOverload) -> Callable[..., Any]:
    """What gives a view, as a copy of it: so bodies of loops come from torch's traces with gradients."""

    def rule(*args: Any, **kwargs: Any) -> Tensor:
        return aten.clone.default(view(*args, **kwargs), memory_format=torch.contiguous_format)  # type: ignore[no-any-return]

    return rule


_VIEWS = "alias detach t transpose permute expand view select slice squeeze unsqueeze diagonal unfold".split()  # noqa: SIM905
COPIES = {
    getattr(getattr(aten, f"{name}_copy"), overload): _copy_of(getattr(getattr(aten, name), overload))
    for name in _VIEWS
    for overload in getattr(aten, f"{name}_copy").overloads()
    if not overload.endswith("out") and overload in getattr(aten, name).overloads()
}


def _torchs_own(of: Callable[..., tuple[OpOverload, tuple[Any, ...]]]) -> Callable[..., Any]:
    """A call of cuDNN's operator as one of torch's own."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        func, given = of(*args, **kwargs)
        return func(*given)

    return rule


RULES: dict[OpOverload, Callable[..., Any]] = {
    aten.batch_norm.default: _batch_norm,
    aten.native_batch_norm.default: _native_batch_norm,
    aten.cudnn_batch_norm.default: _cudnn_batch_norm,
    aten.cudnn_batch_norm_backward.default: _cudnn_batch_norm_backward,
    aten.max_pool1d.default: _max_pool1d,
    aten.native_channel_shuffle.default: aten.channel_shuffle.default,
    aten._efficientzerotensor.default: _zeros,
    aten.pixel_unshuffle.default: _pixel_unshuffle,
    aten._conj.default: _conj,
    **{func: _torchs_own(of) for func, of in CUDNN_SAMPLERS.items()},
    **COPIES,
    **FOREACH,
    **SCALING,
}

WRITES: dict[OpOverload, Callable[..., Tensor]] = {
    aten.copy_.default: _copied,
    aten.fill_.Scalar: _filled,
    aten.fill_.Tensor: _filled,
    aten.zero_.default: lambda target: aten.full_like.default(target, 0),
}

# Lazy views whose elements a kernel would take as they lie in memory: the graph has them computed.
AS_VALUES = {aten._neg_view.default: aten.neg.default}

IDENTITIES = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.lift.default})
DETACH_ = frozenset({aten.detach_.default})
