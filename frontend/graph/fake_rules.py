"""Where torch's fake tensors say something else than eager does: operators whose results get another dtype or other strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor

from ..errors import GraphBreak
from ..torch_private.dispatch import is_in_format
from ..torch_private.fake import FakeTensorMode, fake_from_meta, is_fake, on_meta
from .fake_strides import SPECTRA, eager_strides, is_contiguous
from .read_sizes import rely_on_sizes

__all__ = ["CUDNN_SAMPLERS", "dispatch"]


def dispatch(mode: FakeTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Run one operator on fake tensors, without relying on sizes where the result of a convolution does not.

    torch asks which library eager would call, by the sizes, and from that the memory format of the result. A contiguous input
    and weight give a contiguous result in every library.
    """
    refuse = _REFUSES.get(func)
    if refuse is not None:
        refuse(*args, **(kwargs or {}))
    if mode.shape_env is not None:
        rely_on_sizes(func, args)
    if func in _OF_VIEWS:
        with mode:
            return args[0].new_empty(args[1])  # torch would compare sizes that it does not know
    if func in _SHUFFLES and any(type(n) is int and n == 0 for n in args[0].shape) and args[0].device.type == "cpu":
        if func is torch.ops.aten.pixel_unshuffle.default:
            FakeTensorMode.dispatch(mode, func, types, args, kwargs or {})  # for its checks
        func, args, kwargs = torch.ops.aten.clone.default, args[:1], {}  # eager copies nothing, in the shape of nothing
    if func in CUDNN_SAMPLERS:  # which have no fake kernels
        func, args, kwargs = *CUDNN_SAMPLERS[func](*args, **(kwargs or {})), {}
    if func in _HISTOGRAMS and (bins := _histogram(*args, **(kwargs or {}))) is not None:
        with mode:
            return tuple(args[0].new_empty([n]) for n in (bins, bins + 1))
    if func in _NEAREST and type(n := args[0].shape[0]) is int and n == 0:
        return _of_no_images(mode, func, args, kwargs or {})
    if func is torch.ops.aten.convolution.default and mode.shape_env is not None and not kwargs:
        fakes: list[Any] = [a for a in args if isinstance(a, Tensor)]
        plain = all(is_fake(a) and _has_default_strides(a) for a in fakes)
        if plain and len({a.dtype for a in fakes}) == len({a.fake_device for a in fakes}) == 1:
            with on_meta(mode):
                found = func(*args)
            return fake_from_meta(mode, found, args[0].fake_device)
    result: Any = _spectrum(mode, func, *args) if func in SPECTRA else None
    result = FakeTensorMode.dispatch(mode, func, types, args, kwargs or {}) if result is None else result
    if result is NotImplemented:  # a tensor subclass runs it on what it holds
        return result
    result = eager_strides(mode, func, args, kwargs or {}, result)
    if func is torch.ops.aten._native_multi_head_attention.default and not _of(func, "need_weights", args, kwargs):
        return (result[0], None)  # fake tensors make empty weights
    if func is _FLASH and result[1].dtype != (wanted := _sums_of(args[0].dtype)):
        with mode:
            return (result[0], result[1].to(wanted))
    if func in _BAGS and args[0].dtype == torch.bfloat16 and args[0].device.type == "cpu":
        wide = (
            tuple(_in_single(mode, a) for a in args),
            {name: _in_single(mode, a) for name, a in (kwargs or {}).items()},
        )
        counted: Any = FakeTensorMode.dispatch(mode, func, types, *wide)
        return (result[0], *counted[1:])
    if func is _DROPOUT:
        return _dropped(mode, args[0], result)
    if func in _LOSSES and result.dtype != args[0].dtype:
        with mode:
            return result.to(args[0].dtype)
    if func in _UNIQUE:
        with mode:
            dim = None if func is torch.ops.aten._unique2.default else _of(func, "dim", args, kwargs)
            first = result[0] if dim is None else _unique_lines(args[0], result[0], dim % args[0].dim())
            return (first, *(r.to(torch.int64) for r in result[1:]))  # torch 2.11 gives places the dtype of the values
    if func is _GROUP_NORM_BACKWARD:
        return _as_what_they_are_of(mode, (args[1], args[4], args[4]), result)
    if func in _RESIZES:
        return _in_the_format_of(mode, args[0], result)
    if func in _BATCH_NORMS:
        place = _BATCH_NORMS[func]
        plain = place == 0 and all(is_contiguous(a) for a in args if isinstance(a, Tensor))
        result = result if plain else _in_order(mode, args[place], result)  # images of one channel are contiguous first
    return _statistics(mode, args, result) if func in _NORMS else result


def _sampled(x: Tensor, grid: Tensor) -> tuple[Any, tuple[Any, ...]]:
    return torch.ops.aten.grid_sampler_2d.default, (x, grid, *_AS_CUDNN)


def _sampled_backward(x: Tensor, grid: Tensor, grad: Tensor) -> tuple[Any, tuple[Any, ...]]:
    return torch.ops.aten.grid_sampler_2d_backward.default, (grad, x, grid, *_AS_CUDNN, [True, True])


_AS_CUDNN = (0, 0, True)  # bilinear, zeros outside, corners aligned: what grid_sample leaves to cuDNN
CUDNN_SAMPLERS: dict[Any, Callable[..., tuple[Any, tuple[Any, ...]]]] = {
    torch.ops.aten.cudnn_grid_sampler.default: _sampled,
    torch.ops.aten.cudnn_grid_sampler_backward.default: _sampled_backward,
}
"""The operator of torch's own, and its arguments, for a call of one that is cuDNN's."""

_HISTOGRAMS = {torch.ops.aten.histogram.bins_tensor, torch.ops.aten.histogram.bin_ct}


def _histogram(x: Tensor, bins: Any = 100, *, range: Any = None, weight: Any = None, density: Any = False) -> Any:
    """How many bins a histogram has; None where fake tensors, which have no kernel for it, or eager refuse the call."""
    edges = [bins] if isinstance(bins, Tensor) else []
    given = [x, *edges, *([] if weight is None else [weight])]
    floats = x.dtype in (torch.float32, torch.float64) and x.device.type == "cpu"
    if not floats or any(t.dtype != x.dtype or t.device != x.device for t in given):
        return None
    if weight is not None and weight.shape != x.shape:
        return None
    if edges:
        return bins.shape[0] - 1 if bins.dim() == 1 and bins.shape[0] > 1 else None
    rising = range is None or len(range) == 2 and range[0] <= range[1]
    return bins if rising and bins > 0 else None


# Gradients of views: of the sizes that they are given.
_OF_VIEWS = {torch.ops.aten.slice_backward.default, torch.ops.aten.select_backward.default}
_UNIQUE = {
    torch.ops.aten._unique2.default,
    torch.ops.aten.unique_dim.default,
    torch.ops.aten.unique_consecutive.default,
    torch.ops.aten.unique_dim_consecutive.default,
}
_GROUP_NORM_BACKWARD = torch.ops.aten.native_group_norm_backward.default


def _unique_lines(of: Tensor, result: Tensor, dim: int) -> Tensor:
    """A CPU puts the lines that it compares behind each other in memory, whatever their dimension. Fake tensors are contiguous, and
    of too many dimensions where `dim` was negative."""
    before, after = of.shape[:dim], of.shape[dim + 1 :]
    if of.device.type != "cpu":
        return result.new_empty([*before, result.shape[dim], *after])
    return result.new_empty([result.shape[dim], *before, *after]).movedim(0, dim)


def _as_what_they_are_of(mode: FakeTensorMode, of: tuple[Tensor | None, ...], results: Any) -> Any:
    """Gradients in the dtypes of what they are the gradients of; fake tensors would take one for all, also under autocast."""
    with mode:
        return tuple(r if r is None or x is None else r.to(x.dtype) for r, x in zip(results, of, strict=True))


# Operators of batch norm, and which argument their first result is like.
_BATCH_NORMS = {
    getattr(getattr(torch.ops.aten, name), form): place
    for name, form, place in (
        ("native_batch_norm", "default", 0),
        ("_native_batch_norm_legit", "default", 0),
        ("_native_batch_norm_legit", "no_stats", 0),
        ("_native_batch_norm_legit_no_training", "default", 0),
        ("_native_batch_norm_legit_functional", "default", 0),
        ("native_batch_norm_backward", "default", 1),
    )
}


def _in_order(mode: FakeTensorMode, value: Tensor, results: Any) -> Any:
    """The first result without gaps in the memory format that torch sees in the input: on a CPU whatever else the input's strides are.
    Fake tensors would keep these."""
    first = results[0]
    if first is None or first.device.type != "cpu" or value.dim() < 2:
        return results
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(value.dim(), torch.contiguous_format)
    form = last if is_in_format(value, last) else torch.contiguous_format
    with mode:
        return (torch.empty_like(first, memory_format=form), *results[1:])


_RESIZES = {
    getattr(getattr(torch.ops.aten, name), form)
    for name in (
        *(f"{kind}{n}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for n in (2, 3)),
        "upsample_bilinear2d",
        "upsample_trilinear3d",
    )
    for form in ("default", "vec")
}


def _in_the_format_of(mode: FakeTensorMode, value: Tensor, result: Tensor) -> Tensor:
    """The result of an interpolation in the memory format of its input, which eager keeps on every device. Of few channels on a GPU
    fake tensors would be contiguous: torch plans such kernels so, but its eager calls give something else."""
    last = torch.channels_last if value.dim() == 4 else torch.channels_last_3d
    if not is_in_format(value, last):
        return result
    with mode:
        return torch.empty_like(result, memory_format=last)


_NEAREST = {
    getattr(torch.ops.aten, f"{kind}{n}d").default
    for kind in ("upsample_nearest", "_upsample_nearest_exact")
    for n in (1, 2, 3)
}


def _of_no_images(mode: FakeTensorMode, func: Any, args: Any, kwargs: Any) -> Tensor:
    """An interpolation of no image, which torch's fake tensors refuse: as that of one."""
    value = args[0]
    with mode:
        one = value.new_empty((1, *value.shape[1:]))
        made: Any = FakeTensorMode.dispatch(mode, func, (), (one, *args[1:]), kwargs)
        result: Tensor = made.new_empty((0, *made.shape[1:]))
    return result if value.dim() == 3 else _in_the_format_of(mode, value, result)


_DROPOUT = torch.ops.aten.native_dropout.default


def _dropped(mode: FakeTensorMode, value: Tensor, results: Any) -> Any:
    """A new tensor, also where nothing is dropped; of nothing, the mask is in the type of the input."""
    kept, mask = results
    with mode:
        kept = torch.empty_like(kept) if kept is value else kept
        mask = mask.to(value.dtype) if any(type(n) is int and n == 0 for n in value.shape) else mask
    return (kept, mask)


# Eager has a fast kernel for sums of bfloat16 rows as for those of float32, which gives fewer bookkeeping results.
_BAGS = (torch.ops.aten._embedding_bag.default, torch.ops.aten._embedding_bag_forward_only.default)


def _in_single(mode: FakeTensorMode, value: Any) -> Any:
    with mode:
        return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _sums_of(dtype: torch.dtype) -> torch.dtype:
    """The type that sums of a CPU's attention are kept in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


_NORMS = {
    getattr(torch.ops.aten, name).default
    for name in ("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit")
}


def _statistics(mode: FakeTensorMode, args: Any, results: Any) -> Any:
    """The results of a normalisation with statistics in the type of its weight: a CPU's, where the input is in a half type and the
    weight is not. Fake tensors would have them in the type of the input."""
    kept = next((a.dtype for a in args[1:] if isinstance(a, Tensor)), None)
    if not isinstance(results, tuple) or kept in (None, results[0].dtype) or args[0].device.type != "cpu":
        return results
    with mode:
        return (results[0], *(r.to(kept) if r.numel() else r for r in results[1:]))


def _of(func: Any, name: str, args: Sequence[Any], kwargs: Any) -> Any:
    """The argument of that name."""
    place, argument = next((k, a) for k, a in enumerate(func._schema.arguments) if a.name == name)
    return args[place] if place < len(args) else (kwargs or {}).get(name, argument.default_value)


def _spectrum(mode: FakeTensorMode, func: Any, x: Tensor, dim: Sequence[int], norm: int, more: Any) -> Tensor | None:
    """Sizes and type of a Fourier transform on a CPU: torch 2.11 fails on some, whose strides it gets wrong."""
    if x.device.type != "cpu" or any(isinstance(n, torch.SymInt) for n in (*x.shape, more)) or not dim:
        return None
    shape, name = list(x.shape), func._schema.name
    dtype = x.dtype if name.endswith("c2c") else x.dtype.to_complex() if name.endswith("r2c") else x.dtype.to_real()
    if name.endswith("c2r"):
        shape[dim[-1]] = more
    elif name.endswith("r2c") and more:
        shape[dim[-1]] = shape[dim[-1]] // 2 + 1
    with mode:
        return torch.empty(shape, dtype=dtype)


_LOSSES = {torch.ops.aten.soft_margin_loss.default}  # of the dtype of their input, whatever the target has

_SHUFFLES = {
    getattr(torch.ops.aten, name).default for name in ("pixel_unshuffle", "channel_shuffle", "native_channel_shuffle")
}


# ---- what eager refuses and fake tensors take: a check raises, and the program gets eager's own error -------------------


def _norm_of_mixed_types(x: Tensor, *others: Any, mixes: bool = False, **_: Any) -> None:
    """The parameters are of the input's type; on a CPU, and where a kernel `mixes` types, also all float32 and the input of a half type."""
    given = [o.dtype for o in others if isinstance(o, Tensor)]
    if x.device.type not in ("cpu", "cuda") or all(d == x.dtype for d in given):
        return
    mixed = x.dtype in (torch.float16, torch.bfloat16) and all(d == torch.float32 for d in given)
    if not mixed or not (mixes or x.device.type == "cpu"):
        raise RuntimeError(f"a norm of {x.dtype} with parameters of {given}")


def _scatter_of_another_size(view: Any) -> Any:
    """A source of `view`'s shape only: it is not broadcast."""

    def check(x: Tensor, source: Tensor, *args: Any, **kwargs: Any) -> None:
        if (wanted := view(x, *args, **kwargs).shape) != source.shape:
            raise RuntimeError(f"a source of {tuple(source.shape)} for a place of {tuple(wanted)}")

    return check


def _batch_norm_of_other_channels(x: Tensor, *others: Any, **_: Any) -> None:
    """Eager reads the first of a longer weight or of longer statistics: fake tensors broadcast."""
    _norm_of_mixed_types(x, *others, mixes=True)
    if any(isinstance(o, Tensor) and o.shape != x.shape[1:2] for o in others):
        raise RuntimeError(f"a batch norm of {x.shape[1:2]} channels with parameters of another shape")


def _bits_of_numbers(*operands: Any, **_: Any) -> None:
    """Bits are those of integers and booleans."""
    given = [o for o in operands if isinstance(o, Tensor | int | float | complex)]
    found = torch.result_type(given[0], given[-1])
    if found.is_floating_point or found.is_complex:
        raise NotImplementedError(f"bits of {found}")


def _product_of_mixed_types(*operands: Any, **_: Any) -> None:
    """Eager converts neither operand of a product of matrices: fake tensors give the result the type of the first."""
    left, right = operands[-2:]
    if left.dtype != right.dtype and "meta" not in (left.device.type, right.device.type):
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {left.dtype} != {right.dtype}")


def _difference_of_booleans(left: Any, right: Any, *_: Any, **__: Any) -> None:
    """Differences of numbers alone: fake tensors take booleans for numbers."""
    kinds = [x.dtype is torch.bool if isinstance(x, Tensor) else type(x) is bool for x in (left, right)]
    if any(kinds):
        what = "two bool tensors" if all(kinds) else "a bool tensor"
        words = (
            "use the `^` or `logical_xor()`"
            if all(kinds)
            else "If you are trying to invert a mask, use the `~` or `logical_not()`"
        )
        raise RuntimeError(
            f"Subtraction, the `-` operator, with {what} is not supported{', ' if all(kinds) else '. '}{words} operator instead."
        )


def _loss_of_mixed_types(x: Any, target: Any, *_: Any, **__: Any) -> None:
    """Eager computes the loss of logits in place, in the type of the target."""
    if x.dtype != target.dtype:
        raise RuntimeError(f"a loss of logits of {x.dtype} with a target of {target.dtype}")


def _other_gradient(grad: Any, output: Any, dim: int, dtype: torch.dtype) -> None:
    """A gradient of the output's shape; on a CPU the type asked for is that of the gradient."""
    if grad.shape != output.shape or (grad.device.type == "cpu" and dtype != grad.dtype):
        raise RuntimeError(
            f"a gradient of {grad.dtype}{list(grad.shape)} of an output of {list(output.shape)} in {dtype}"
        )


def _softmax_of_no_dimension(x: Any, dim: int, *_: Any, **__: Any) -> None:
    """Of nothing, too: fake tensors ask for the dimension only where there are elements."""
    rank = max(x.dim(), 1)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, {rank - 1}], but got {dim})")


def _step_of_mixed_types(x: Any, values: Any, **_: Any) -> None:
    """Eager converts neither operand."""
    if x.dtype != values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")


def _channels_in_blocks(x: Tensor, factor: int) -> None:
    """A number of channels that makes whole blocks: also of nothing."""
    if x.dim() >= 3 and factor > 0 and type(x.shape[-3]) is int and x.shape[-3] % (factor * factor):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of upscale_factor, "
            f"but input.size(-3)={x.shape[-3]} is not divisible by {factor * factor}"
        )


_REFUSES = {
    func: _batch_norm_of_other_channels if "batch" in func.name() else _norm_of_mixed_types for func in _NORMS
} | {
    getattr(torch.ops.aten, f"{name}_scatter").default: _scatter_of_another_size(view)
    for name, view in (
        ("slice", torch.ops.aten.slice.Tensor),
        ("select", torch.ops.aten.select.int),
        ("diagonal", torch.ops.aten.diagonal.default),
        ("as_strided", torch.ops.aten.as_strided.default),
    )
}


def _most_of_nothing(x: Tensor, *dim: Any, **named: Any) -> None:
    """No element, no greatest one: where only some dimensions are reduced, one of them is empty."""
    found = dim[:1] or [n for name, n in named.items() if name == "dim"]
    sizes = [x.shape[found[0]]] if found and x.dim() else x.shape
    if any(type(n) is int and n == 0 for n in sizes):
        raise IndexError("a reduction of nothing that has no identity")


_REFUSES |= {
    getattr(getattr(torch.ops.aten, name), form): _most_of_nothing
    for name, form in (
        *((name, "dim") for name in ("max", "min", "median", "nanmedian")),
        *((name, "default") for name in ("max", "min", "mode")),
    )
}
_REFUSES |= {
    getattr(getattr(torch.ops.aten, f"bitwise_{name}"), form): _bits_of_numbers
    for name in ("and", "or", "xor")
    for form in ("Tensor", "Scalar", "Scalar_Tensor")
}


def _shuffle_by_views(x: Tensor, groups: int) -> None:
    """On a GPU channels are shuffled by views, which memory of another order does not have."""
    if x.device.type == "cuda" and groups > 0 and x.numel() and x.shape[1] % groups == 0:
        x.view(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


_REFUSES[torch.ops.aten.channel_shuffle.default] = _shuffle_by_views
_REFUSES |= {
    **{
        getattr(getattr(torch.ops.aten, n), f): _difference_of_booleans
        for n in ("sub", "rsub")
        for f in ("Tensor", "Scalar")
    },
    torch.ops.aten.binary_cross_entropy_with_logits.default: _loss_of_mixed_types,
    torch.ops.aten._softmax.default: _softmax_of_no_dimension,
    torch.ops.aten._log_softmax.default: _softmax_of_no_dimension,
    torch.ops.aten._softmax_backward_data.default: _other_gradient,
    torch.ops.aten._log_softmax_backward_data.default: _other_gradient,
    torch.ops.aten.heaviside.default: _step_of_mixed_types,
    torch.ops.aten.pixel_shuffle.default: _channels_in_blocks,
}


def _transform_in_another_order(x: Tensor, dim: Sequence[int], *_: Any, **__: Any) -> None:
    """On a GPU, compiled transforms along dimensions that do not ascend differed from eager's (torch 2.11, H200); nothing says why yet."""
    if x.is_cuda and sorted(places := [d % x.dim() for d in dim]) != places:
        raise GraphBreak("a Fourier transform along dimensions that do not ascend, on a GPU")


_REFUSES |= dict.fromkeys(SPECTRA, _transform_in_another_order)
_REFUSES |= {getattr(torch.ops.aten, name).default: _product_of_mixed_types for name in ("mm", "mv", "addmm")}


def _has_default_strides(tensor: Tensor) -> bool:
    """Whether the strides, those of dimensions of size 1 included, are the ones of a new tensor; adds no guard."""
    running: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        wanted, found = (s.node.expr if isinstance(s, torch.SymInt) else s for s in (running, stride))
        if sympy.expand(wanted - found) != 0:
            return False
        running = running * size
    return True
