"""Eager's strides of results, where torch's own fake tensors say others: those of sizes 0 and 1 count, too, since programs see them.

Pointwise operators run over their operands in one order of dimensions, which the operands' strides decide; new results lie in that
order. The rules here are those of ATen's iterator. Symbolic sizes count as what they were in the first call: torch guards the strides
of arguments as products of sizes, and sizes of 0 and 1 are never symbolic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..torch_private.dispatch import is_in_format
from ..torch_private.fake import FakeTensorMode
from ..torch_private.functions import OpOverload
from ..values.kinds import isinstance

__all__ = ["eager_strides", "is_contiguous", "memory_order"]

aten = torch.ops.aten
Geometry = tuple[tuple[int, ...], tuple[int, ...]]  # sizes and strides


def eager_strides(mode: FakeTensorMode, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Any:
    """The result with eager's strides; itself where it has them, or where nothing is known of the operator."""
    rule = _rule(func) if type(func) is OpOverload else None
    if rule is None:
        return result
    results = result if isinstance(result, tuple) else (result,)
    tensors = [t for t in (*args, *kwargs.values(), *results) if isinstance(t, Tensor)]
    if any(t.layout is not torch.strided or None in (*_sizes(t), *_strides(t)) for t in tensors):
        return result  # sizes that only the running program knows
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
    last = _channels_last(shape) if len(shape) == 4 else None
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


def memory_order(tensor: Tensor) -> list[int]:
    """A tensor's dimensions from the outermost one in memory to the innermost."""
    return _order(_sizes(tensor), [_strides(tensor)])[::-1]


def _without_gaps(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    order, found, running = _order(shape, [strides]), [0] * len(shape), 1
    for d in order:
        found[d], running = running, running * max(shape[d], 1)
    return tuple(found)


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a new contiguous tensor."""
    return tuple(prod(max(n, 1) for n in shape[d + 1 :]) for d in range(len(shape)))


def _channels_last(shape: Sequence[int]) -> tuple[int, ...] | None:
    """The strides of images (of 4 dimensions) and volumes (of 5) in channels last."""
    if len(shape) not in (4, 5):
        return None
    order = (0, *range(2, len(shape)), 1)
    inner = contiguous([shape[d] for d in order])
    return tuple(inner[order.index(d)] for d in range(len(shape)))


def _has_strides(operand: Geometry, wanted: Sequence[int]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(*operand, wanted, strict=True))


def _is_contiguous(operand: Geometry) -> bool:
    return 0 in operand[0] or _has_strides(operand, contiguous(operand[0]))


def is_contiguous(tensor: Tensor) -> bool:
    """Whether a fake tensor was contiguous in the first call, as far as capture knows; adds no guard."""
    sizes, strides = _sizes(tensor), _strides(tensor)
    return None not in (*sizes, *strides) and _is_contiguous((sizes, strides))


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
            operands.append((_sizes(value), _strides(value)))
        elif isinstance(value, int | float | complex) and (
            str(argument.type) == "Tensor" or argument.name in _NUMBERS.get(func.overloadpacket, ())
        ):
            operands.append(((), ()))
    operands += [(_sizes(v), _strides(v)) for v in kwargs.values() if isinstance(v, Tensor)]
    return _with_strides(mode, result, iterator_strides(_sizes(result), operands))


def _like(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """As the first argument lies; where that has gaps, without them in the same order."""
    given = args[0]
    operand = _sizes(given), _strides(given)
    if kwargs.get("memory_format") not in (None, torch.preserve_format) or operand[0] != _sizes(result):
        return result
    return _with_strides(mode, result, operand[1] if _is_dense(operand) else _without_gaps(*operand))


def _contiguous(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    return _with_strides(mode, result, contiguous(_sizes(result)))


def _on_cpu(rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The rule where the result is on a CPU; another device's kernels differ."""

    def chosen(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
        return rule(mode, func, args, kwargs, result) if result.device.type == "cpu" else result

    return chosen


def _in_format(place: int) -> Callable[..., Tensor]:
    """A result in the memory format that torch reads from an argument."""

    def rule(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
        given = args[place]
        form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(given.dim())
        last = _channels_last(_sizes(result)) if result.dim() == given.dim() else None
        if form is None or last is None or not is_in_format(given, form):
            return _contiguous(mode, func, args, kwargs, result)
        return _with_strides(mode, result, last)

    return rule


def _batch_norm(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """Contiguous, or channels last where the images are and nothing else has gaps."""
    if result.dim() < 2:  # statistics
        return result
    plain = all(_is_contiguous((_sizes(a), _strides(a))) for a in args[1:5] if isinstance(a, Tensor))
    given = _sizes(args[0]), _strides(args[0])
    last = _channels_last(given[0])
    if plain and not _is_contiguous(given) and last is not None and _has_strides(given, last):
        return _with_strides(mode, result, last)
    return _contiguous(mode, func, args, kwargs, result)


def _group_norm(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    plain = result.dim() != args[0].dim() or 0 in _sizes(result)  # statistics, or nothing
    return (_contiguous if plain else _in_format(0))(mode, func, args, kwargs, result)


def _convolution(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """Of no images or no channels: the input times a number, seen in another shape."""
    shape = _sizes(args[0])
    if 0 not in shape[:2]:
        return result
    strides = iterator_strides(shape, [(shape, _strides(args[0])), ((), ())])
    return _with_strides(mode, result, strides if shape == _sizes(result) else contiguous(_sizes(result)))


def _attention(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """As the queries lie; the sums as the fake tensor says."""
    return _like(mode, func, args, {}, result) if result.dim() == 4 else result


def _turned(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """A half turn is a flip, a quarter turn one that is seen the other way round."""
    value, k = args[0], args[1] if len(args) > 1 else kwargs.get("k", 1)
    first, second = (args[2] if len(args) > 2 else kwargs.get("dims", (0, 1)))[:2]
    if k % 4 == 0 or 0 not in _sizes(result):
        return result
    operand = _sizes(value), _strides(value)
    strides = list(operand[1] if _is_dense(operand) else _without_gaps(*operand))
    if k % 2:
        strides[first], strides[second] = strides[second], strides[first]
    return _with_strides(mode, result, strides)


def _of_nothing(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    return _contiguous(mode, func, args, kwargs, result) if 0 in _sizes(result) else result


def _like_of(place: int) -> Callable[..., Tensor]:
    """As an argument lies, where the result is of its shape."""
    return lambda mode, func, args, kwargs, result: _like(mode, func, args[place:], {}, result)


def _with_logits(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """Computed in place in one minus the targets."""
    if _sizes(args[1]) != _sizes(result):
        return result
    if 0 in _sizes(result):
        return _like(mode, func, args[1:], {}, result)
    return _pointwise(mode, aten.rsub.Scalar, (args[1], 1), {}, result)


def _read_by_index(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """Read by one index: an iterator over it and the tensor, of which the dimension that is indexed has no stride."""
    given, shape = [(k, i) for k, i in enumerate(args[1]) if i is not None], _sizes(result)
    if len(given) != 1 or given[0][1].dtype in (torch.bool, torch.uint8):
        return result
    ((place, index),) = given
    strides = _strides(args[0])
    behind = strides[place + 1 :]
    sizes = (*[1] * place, *_sizes(index), *[1] * len(behind))
    twin = torch.empty_strided(_sizes(index), _strides(index), device="meta").reshape(sizes)
    lies = contiguous(sizes) if 0 in sizes else twin.stride()
    operands = [(shape, (*strides[:place], *[0] * index.dim(), *behind)), (sizes, lies)]
    return _with_strides(mode, result, _ordered(shape, operands))


SPECTRA = (aten._fft_c2c.default, aten._fft_r2c.default, aten._fft_c2r.default)


def _transformed(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """Of a Fourier transform by MKL: dimensions that are not transformed are outside, each group in the order of the input."""
    value, dims = args[0], [d % args[0].dim() for d in args[1]]
    if result.device.type != "cpu" or not torch.backends.mkl.is_available() or not dims or 0 in _sizes(result):
        return result
    strides = _strides(value)
    if func is aten._fft_c2r.default and len(dims) > 1:  # complex first, in all dimensions but the last
        strides = _in_order_of(_sizes(value), _transform_order(strides, dims[:-1]))
        dims = dims[-1:]
    last = dims.pop() if func is aten._fft_r2c.default else None
    return _with_strides(mode, result, _in_order_of(_sizes(result), _transform_order(strides, dims, last)))


def _transform_order(strides: Sequence[int], dims: Sequence[int], last: int | None = None) -> list[int]:
    """From the outermost dimension to the innermost."""
    inner = [*sorted(dims, key=lambda d: -strides[d]), *([] if last is None else [last])]
    others = list(range(len(strides)))
    low, high = 0, len(others) - 1
    while True:  # as C++ partitions: what is transformed changes places with the last that is not
        while low <= high and others[low] not in inner:
            low += 1
        while low <= high and others[high] in inner:
            high -= 1
        if low > high:
            return [*sorted(others[:low], key=lambda d: -strides[d]), *inner]
        others[low], others[high] = others[high], others[low]


def _in_order_of(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    inner = contiguous([shape[d] for d in order])
    return tuple(inner[order.index(d)] for d in range(len(shape)))


def _of_lines(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """What interpolation of one dimension becomes where sizes are symbols; images get their format behind it."""
    return _contiguous(mode, func, args, kwargs, result) if result.dim() == 3 else result


def _is_infinite(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """Of complex numbers: absolute values of the real parts, compared to a number."""
    if not args[0].is_complex():
        return _pointwise(mode, func, args, kwargs, result)
    shape = _sizes(result)
    magnitudes = iterator_strides(shape, [(shape, tuple(2 * n for n in _strides(args[0])))])
    return _with_strides(mode, result, iterator_strides(shape, [(shape, magnitudes), ((), ())]))


def _absolute(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    return (_like if args[0].is_complex() else _pointwise)(mode, func, args, kwargs, result)


def _angle(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    return (_contiguous if args[0].is_complex() else _pointwise)(mode, func, args, kwargs, result)


def _ldexp(mode: FakeTensorMode, func: OpOverload, args: Any, kwargs: Any, result: Tensor) -> Tensor:
    """The powers of two are contiguous."""
    value, power = args
    operands = [(_sizes(value), _strides(value)), (_sizes(power), contiguous(_sizes(power)))]
    return _with_strides(mode, result, iterator_strides(_sizes(result), operands))


def _with_strides(mode: FakeTensorMode, result: Tensor, strides: Sequence[int]) -> Tensor:
    if _strides(result) == tuple(strides):
        return result
    exact: Sequence[Any] | None = strides
    if any(isinstance(n, torch.SymInt) for n in result.shape):
        exact = _as_products(result, strides)
    if exact is None:
        return result
    with mode:
        return torch.empty_strided(result.shape, exact, dtype=result.dtype, device=result.device)


def _as_products(result: Tensor, strides: Sequence[int]) -> list[Any] | None:
    """The strides of a gapless tensor as products of its symbolic sizes; None where they are none."""
    sizes, found, hint, running = _sizes(result), list[Any](strides), 1, 1
    for d in sorted(range(len(sizes)), key=lambda d: (strides[d], sizes[d], -d)):
        if strides[d] != hint:
            return None
        found[d] = running
        hint, running = hint * sizes[d], running * result.shape[d]
    return found


def _hint(size: Any) -> Any:
    return (size.node.hint if size.node.has_hint() else None) if isinstance(size, torch.SymInt) else size


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    return tuple(map(_hint, tensor.shape))


def _strides(tensor: Tensor) -> tuple[int, ...]:
    return tuple(map(_hint, tensor.stride()))


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
    aten.clone.default: None,  # fakes say what eager does
    aten.leaky_relu.default: _pointwise,  # torch 2.11 does not say that it is one
    **dict.fromkeys(
        (
            *(aten.masked_fill.Scalar, aten.masked_fill.Tensor, aten.tril.default, aten.triu.default),
            *(aten.prod.dim_int, aten._log_softmax.default, aten._transformer_encoder_layer_fwd.default),
            *(aten.poisson.default, aten._standard_gamma.default, aten.isin.Tensor_Tensor),
        ),
        _on_cpu(_contiguous),
    ),
    aten.binary_cross_entropy_with_logits.default: _on_cpu(_with_logits),
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
    **{
        getattr(aten, f"{kind}_pad{n}d").default: _on_cpu(_in_format(0))
        for kind in ("reflection", "replication")
        for n in (2, 3)
    },
    aten.channel_shuffle.default: _on_cpu(_in_format(0)),
    aten.native_channel_shuffle.default: _on_cpu(_in_format(0)),
    aten.native_group_norm.default: _on_cpu(_group_norm),
    **{
        getattr(aten, f"rrelu{form}").default: _on_cpu(_contiguous)
        for form in ("", "_with_noise", "_with_noise_functional")
    },
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten.diag_embed.default: _contiguous,
    aten.rot90.default: _turned,
    aten.convolution.default: _convolution,
    aten.isinf.default: _is_infinite,
    aten.index.Tensor: _on_cpu(_read_by_index),
    aten.binary_cross_entropy.default: _on_cpu(_like_of(0)),
    aten.binary_cross_entropy_backward.default: _on_cpu(_like_of(1)),
    **dict.fromkeys(SPECTRA, _transformed),
    **dict.fromkeys((aten.deg2rad.default, aten.rad2deg.default), _like),
    **{
        getattr(getattr(aten, name), form): _on_cpu(_contiguous)
        for name in ("upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_linear1d")
        for form in ("default", "vec")
    },
    aten.pixel_shuffle.default: _on_cpu(_of_nothing),
    aten._unsafe_index.Tensor: _on_cpu(_of_lines),
    aten.amin.default: _of_nothing,
    aten.amax.default: _of_nothing,
    aten.max_unpool2d.default: _on_cpu(_in_format(0)),
    aten.native_layer_norm.default: _on_cpu(_contiguous),
    aten.log_sigmoid_forward.default: _on_cpu(_contiguous),
    aten.native_dropout_backward.default: _pointwise,
    aten.abs.default: _absolute,
    aten.angle.default: _angle,
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
