"""Eager's strides of results, where torch's own fake tensors say others: those of sizes 0 and 1 count, too, since programs see them.

Pointwise operators run over their operands in one order of dimensions, which the operands' strides decide; new results lie in that
order. The rules here are those of ATen's iterator; they are asked only while all sizes are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from .torch_private import FakeTensorMode, OpOverload, is_in_format

__all__ = ["eager_strides"]

aten = torch.ops.aten
Geometry = tuple[tuple[int, ...], tuple[int, ...]]  # sizes and strides


def eager_strides(mode: FakeTensorMode, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Any:
    """The result with eager's strides; itself where it has them, or where nothing is known of the operator."""
    rule = _rule(func) if type(func) is OpOverload else None
    if rule is None:
        return result
    results = result if isinstance(result, tuple) else (result,)
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    if not all(_is_static(t) for t in (*tensors, *results) if t is not None):
        return result
    fitted = tuple(None if r is None else rule(mode, func, args, kwargs, r) for r in results)
    return fitted if isinstance(result, tuple) else fitted[0]


def iterator_strides(shape: Sequence[int], operands: Sequence[Geometry]) -> tuple[int, ...]:
    """The strides of a pointwise operator's new result of this shape."""
    fast = _fast(shape, operands)
    return fast if fast is not None else _ordered(shape, operands)


def _fast(shape: Sequence[int], operands: Sequence[Geometry]) -> tuple[int, ...] | None:
    """Operands of one shape that all lie alike: the result lies like them."""
    if any(sizes != tuple(shape) for sizes, _ in operands):
        return None
    if all(_is_contiguous(o) for o in operands):
        return contiguous(shape)
    last = _channels_last(shape)
    if last is not None and all(_has_strides(o, last) for o in operands):
        return last
    if len({strides for _, strides in operands}) == 1 and all(_is_dense(o) for o in operands):
        return operands[0][1]
    return None


def _ordered(shape: Sequence[int], operands: Sequence[Geometry]) -> tuple[int, ...]:
    rank = len(shape)
    spread: list[Sequence[int]] = []
    for sizes, strides in operands:
        missing = rank - len(sizes)
        kept = [0 if n == 1 != m else t for n, t, m in zip(sizes, strides, shape[missing:], strict=True)]
        spread.append([0] * missing + kept)
    order = _order(shape, spread)
    if order == list(range(rank))[::-1]:
        return contiguous(shape)
    found, running = [0] * rank, 1
    for d in order:
        found[d], running = running, running * shape[d]
    return tuple(found)


def _order(shape: Sequence[int], spread: Sequence[Sequence[int]]) -> list[int]:
    """Dimensions in the order of the first operand that tells two of them apart, the innermost one first."""

    def outside(a: int, b: int) -> int:
        """1 where dimension a belongs outside of b, -1 where inside, 0 where no operand says."""
        for strides in spread:
            if strides[a] == 0 or strides[b] == 0:
                continue
            if strides[a] != strides[b]:
                return 1 if strides[a] > strides[b] else -1
            if shape[a] > shape[b]:
                return 1
        return 0

    order = list(range(len(shape)))[::-1]
    for place in range(1, len(shape)):
        moving = place
        for before in range(place)[::-1]:
            verdict = outside(order[before], order[moving])
            if verdict < 0:
                break
            if verdict > 0:
                order[before], order[moving] = order[moving], order[before]
                moving = before
    return order


def _without_gaps(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    order, found, running = _order(shape, [strides]), [0] * len(shape), 1
    for d in order:
        found[d], running = running, running * max(shape[d], 1)
    return tuple(found)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a new contiguous tensor."""
    return tuple(prod(max(n, 1) for n in shape[d + 1 :]) for d in range(len(shape)))


def _channels_last(shape: Sequence[int]) -> tuple[int, ...] | None:
    if len(shape) != 4:
        return None
    n, c, h, w = shape
    return (
        (h * w * c, 1, w * c, c)
        if 0 not in shape
        else torch.empty(shape, device="meta").to(memory_format=torch.channels_last).stride()
    )


def _has_strides(operand: Geometry, wanted: Sequence[int]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(*operand, wanted, strict=True))


def _is_contiguous(operand: Geometry) -> bool:
    return 0 in operand[0] or _has_strides(operand, contiguous(operand[0]))


def _is_dense(operand: Geometry) -> bool:
    running = 1
    for n, t in sorted(((n, t) for n, t in zip(*operand, strict=True) if n != 1), key=lambda pair: pair[1]):
        if t != running:
            return 0 in operand[0]
        running *= n
    return True


# ---- rules: the mode, the operator, its arguments, and a result to be fitted ------------------------------------------


def _pointwise(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    operands: list[Geometry] = []
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if isinstance(value, Tensor):
            operands.append((tuple(value.shape), value.stride()))
        elif isinstance(value, int | float | complex) and (
            str(argument.type) == "Tensor" or argument.name in _NUMBERS.get(func.overloadpacket, ())
        ):
            operands.append(((), ()))
    operands += [(tuple(v.shape), v.stride()) for v in kwargs.values() if isinstance(v, Tensor)]
    return _with_strides(mode, result, iterator_strides(result.shape, operands))


def _like(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """As the first argument lies; where that has gaps, without them in the same order."""
    given = args[0]
    if kwargs.get("memory_format") not in (None, torch.preserve_format) or given.shape != result.shape:
        return result
    operand = tuple(given.shape), given.stride()
    return _with_strides(mode, result, operand[1] if _is_dense(operand) else _without_gaps(*operand))


def _contiguous(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    return _with_strides(mode, result, contiguous(result.shape))


def _on_cpu(rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The rule where the result is on a CPU; another device's kernels differ."""

    def chosen(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
        return rule(mode, func, args, kwargs, result) if result.device.type == "cpu" else result

    return chosen


def _in_format(place: int) -> Callable[..., Tensor]:
    """A result in the memory format that torch reads from an argument."""

    def rule(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
        given = args[place]
        last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(given.dim())
        if last is None or result.dim() != given.dim() or not is_in_format(given, last):
            return _contiguous(mode, func, args, kwargs, result)
        with mode:
            return torch.empty_like(result, memory_format=last)

    return rule


def _batch_norm(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """Contiguous, or channels last where the images are and nothing else has gaps."""
    if result.dim() < 2:  # statistics
        return result
    plain = all(a.is_contiguous() for a in args[1:5] if isinstance(a, Tensor))
    if plain and not args[0].is_contiguous() and args[0].dim() in (4, 5):
        last = torch.channels_last if args[0].dim() == 4 else torch.channels_last_3d
        if args[0].is_contiguous(memory_format=last):
            with mode:
                return torch.empty_like(result, memory_format=last)
    return _contiguous(mode, func, args, kwargs, result)


def _absolute(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    return (_like if args[0].is_complex() else _pointwise)(mode, func, args, kwargs, result)


def _ldexp(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """The powers of two are contiguous."""
    value, power = args
    operands = [(tuple(value.shape), value.stride()), (tuple(power.shape), contiguous(power.shape))]
    return _with_strides(mode, result, iterator_strides(result.shape, operands))


def _with_strides(mode: FakeTensorMode, result: Tensor, strides: Sequence[int]) -> Tensor:
    if result.stride() == tuple(strides):
        return result
    with mode:
        return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device)


def _is_static(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and all(type(n) is int for n in (*tensor.shape, *tensor.stride()))


# Operators whose numbers, of these names, become operands of the iterator.
_NUMBERS: dict[Any, tuple[str, ...]] = {
    getattr(aten, name): ("other", "self")
    for name in (
        *("add", "sub", "mul", "div", "rsub", "remainder", "fmod", "floor_divide", "eq", "ne", "lt", "le", "gt", "ge"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "copysign"),
        *("__and__", "__or__", "__xor__", "__lshift__", "__rshift__"),
    )
}

_NORMS = ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training")
_RULES: dict[OpOverload, Callable[..., Tensor] | None] = {
    **dict.fromkeys(
        (
            *(getattr(aten, f"{name}_like").default for name in ("zeros", "ones", "full", "rand", "randn", "randint")),
            *(aten.randint_like.low_dtype, aten.fill.Scalar, aten.fill.Tensor, aten.flip.default, aten.frexp.Tensor),
            *(aten.hardtanh.default, aten.nan_to_num.default, aten.sort.default, aten.sort.stable),
            *(aten._prelu_kernel.default,),
        ),
        _like,
    ),
    **dict.fromkeys(
        (
            *(aten.pow.Scalar, aten.sum.dim_IntList, aten.col2im.default, aten._log_softmax_backward_data.default),
            *(getattr(aten, f"{name}_loss_backward").default for name in ("smooth_l1", "mse", "huber")),
            *(aten.normal.Tensor_Tensor, aten.glu_backward.default, aten.mvlgamma.default),
            *(aten.nll_loss2d_forward.default,),
        ),
        _contiguous,
    ),
    **dict.fromkeys(
        (aten.clone.default, aten.masked_fill.Scalar, aten.masked_fill.Tensor)
    ),  # fakes say what eager does
    **{
        getattr(aten, name).default: _on_cpu(_batch_norm)
        for name in (*_NORMS, "_native_batch_norm_legit_functional", "_batch_norm_with_update")
    },
    aten._native_batch_norm_legit.no_stats: _on_cpu(_batch_norm),
    **{
        getattr(aten, f"{kind}_pad{n}d_backward").default: _on_cpu(_in_format(1))
        for kind in ("reflection", "replication")
        for n in (2, 3)
    },
    **{getattr(aten, f"{kind}_pad3d").default: _on_cpu(_in_format(0)) for kind in ("reflection", "replication")},
    aten.channel_shuffle.default: _on_cpu(_in_format(0)),
    aten.max_unpool2d.default: _on_cpu(_in_format(0)),
    aten.native_layer_norm.default: _on_cpu(_contiguous),
    aten.log_sigmoid_forward.default: _on_cpu(_contiguous),
    aten.native_dropout_backward.default: _pointwise,
    aten.abs.default: _absolute,
    aten.ldexp.Tensor: _ldexp,
}


@cache
def _rule(func: OpOverload) -> Callable[..., Tensor] | None:
    if func in _RULES:
        return _RULES[func]
    if func.namespace != "aten" or func._schema.is_mutable:
        return None
    aliases = any(r.alias_info is not None for r in func._schema.returns)
    return _pointwise if torch.Tag.pointwise in func.tags and not aliases else None
