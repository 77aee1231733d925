"""Programs of operators that are kernels on a GPU and library calls on a CPU, with odd sizes and half types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton_programs import Program, graphs_of

Made = tuple[Callable[..., Any], list[Tensor]]


def image(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


def special(*shape: int) -> Tensor:
    """Numbers of which some are nan or infinite, and some rows are all -inf."""
    x = torch.randn(shape)
    x[torch.rand(shape) < 0.1] = float("nan")
    x[torch.rand(shape) < 0.1] = float("-inf")
    x[:, 0] = float("-inf")
    return x


def last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def last3(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last_3d)


POOLS: dict[str, Callable[[], Made]] = {
    "max": lambda: (lambda x: F.max_pool2d(x.relu(), 3, 2, 1) + 1, [image(2, 3, 7, 9)]),
    "max_nan": lambda: (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), [special(2, 3, 7, 9)]),
    "max_overlap": lambda: (lambda x: F.max_pool2d(x, 2, 1, return_indices=True), [special(1, 2, 5, 6)]),
    "max_dilated": lambda: (
        lambda x: F.max_pool2d(x, (2, 3), (3, 2), (1, 1), (2, 1), ceil_mode=True, return_indices=True),
        [special(2, 3, 9, 10)],
    ),
    "max_ceil": lambda: (lambda x: F.max_pool2d(x, 2, ceil_mode=True), [image(2, 3, 7, 9, dtype=torch.bfloat16)]),
    "max_last": lambda: (lambda x: F.max_pool2d(x, 3, 2, 1), [last(image(2, 5, 7, 9, dtype=torch.float16))]),
    "max_large": lambda: (lambda x: F.max_pool2d(x, 5, 3, 2), [special(1, 2, 7, 9)]),
    "max_1d": lambda: (lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True), [special(2, 3, 11)]),
    "max_3d": lambda: (lambda x: F.max_pool3d(x, 2, padding=1, return_indices=True), [special(1, 2, 5, 4, 6)]),
    "avg": lambda: (lambda x: F.avg_pool2d(x, 2).exp(), [image(2, 3, 7, 9)]),
    "avg_padded": lambda: (lambda x: F.avg_pool2d(x, 3, 2, 1), [image(2, 3, 7, 9, dtype=torch.bfloat16)]),
    "avg_inside": lambda: (
        lambda x: F.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True, count_include_pad=False),
        [image(2, 3, 8, 9)],
    ),
    "avg_ceil": lambda: (lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), [image(2, 3, 8, 10, dtype=torch.float64)]),
    "avg_divisor": lambda: (lambda x: F.avg_pool2d(x, 3, divisor_override=5), [last(image(2, 4, 8, 9))]),
    "avg_large": lambda: (lambda x: F.avg_pool2d(x, 5, padding=1), [image(1, 2, 9, 7)]),
    "avg_lines": lambda: (lambda x: F.avg_pool2d(x.relu(), 7, 1, 3).exp(), [image(2, 3, 20, 17, dtype=torch.bfloat16)]),
    "avg_lines_inside": lambda: (
        lambda x: F.avg_pool2d(x, (6, 5), (2, 3), (3, 1), ceil_mode=True, count_include_pad=False),
        [image(1, 2, 19, 18)],
    ),
    "max_lines": lambda: (lambda x: F.max_pool2d(x, 9, 1, 4), [last(special(1, 4, 12, 17))]),
    "max_lines_dilated": lambda: (lambda x: F.max_pool2d(x, (6, 5), 2, 2, (2, 3)), [special(2, 1, 23, 21)]),
    "avg_lines_3d": lambda: (lambda x: F.avg_pool3d(x, 5, 2, 2), [image(1, 2, 9, 7, 8)]),
    "avg_1d": lambda: (lambda x: F.avg_pool1d(x, 5, 2, 2), [image(2, 3, 13)]),
    "avg_3d": lambda: (lambda x: F.avg_pool3d(x, 2, 1), [image(2, 3, 4, 5, 3)]),
    "lp": lambda: (lambda x: F.lp_pool2d(x, 2, 2), [image(2, 3, 6, 8)]),
    "adaptive_even": lambda: (lambda x: F.adaptive_avg_pool2d(x, 2), [image(1, 2, 12, 14, dtype=torch.float16)]),
    "adaptive": lambda: (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), [image(1, 2, 7, 9)]),
    "adaptive_larger": lambda: (lambda x: F.adaptive_avg_pool2d(x, (5, 4)), [image(1, 2, 3, 3)]),
    "adaptive_long": lambda: (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), [image(1, 2, 31, 27)]),
    "adaptive_max": lambda: (lambda x: F.adaptive_max_pool2d(x, 3), [special(1, 2, 7, 5)]),
    "adaptive_1d": lambda: (lambda x: F.adaptive_avg_pool1d(x, 4), [image(1, 3, 11)]),
    "adaptive_3d": lambda: (lambda x: F.adaptive_max_pool3d(x, (2, 3, 1)), [image(1, 2, 4, 5, 3)]),
}

RESIZES: dict[str, Callable[[], Made]] = {
    "nearest": lambda: (lambda x: F.interpolate(x, scale_factor=2).relu(), [image(2, 3, 5, 7)]),
    "nearest_odd": lambda: (lambda x: F.interpolate(x, size=(13, 4)), [image(2, 3, 5, 7, dtype=torch.bfloat16)]),
    "nearest_factor": lambda: (lambda x: F.interpolate(x, scale_factor=(2.7, 0.4)), [image(2, 3, 5, 7)]),
    "nearest_inexact": lambda: (lambda x: F.interpolate(x, size=(47, 3)), [image(1, 1, 41, 5)]),
    "nearest_exact": lambda: (lambda x: F.interpolate(x, size=(9, 11), mode="nearest-exact"), [image(2, 3, 5, 7)]),
    "nearest_1d": lambda: (lambda x: F.interpolate(x, scale_factor=3), [image(2, 3, 5)]),
    "nearest_3d": lambda: (lambda x: F.interpolate(x, size=(4, 7, 5)), [last3(image(2, 3, 3, 5, 6))]),
    "linear": lambda: (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), [image(2, 3, 7)]),
    "bilinear": lambda: (lambda x: F.interpolate(x.relu(), scale_factor=2, mode="bilinear"), [image(2, 3, 5, 7)]),
    "bilinear_odd": lambda: (
        lambda x: F.interpolate(x, size=(13, 4), mode="bilinear"),
        [last(image(2, 5, 5, 7, dtype=torch.float16))],
    ),
    "nearest_last": lambda: (lambda x: F.interpolate(x, size=(9, 3)), [last(image(2, 3, 5, 7))]),
    "bilinear_last": lambda: (lambda x: F.interpolate(x, size=(4, 9), mode="bilinear"), [last(image(2, 3, 5, 7))]),
    "bilinear_corners": lambda: (
        lambda x: F.interpolate(x, size=(13, 1), mode="bilinear", align_corners=True),
        [image(2, 3, 5, 7)],
    ),
    "bilinear_factor": lambda: (lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), [image(2, 3, 5, 7)]),
    "bilinear_again": lambda: (
        lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True),
        [image(2, 3, 5, 7, dtype=torch.float64)],
    ),
    "trilinear": lambda: (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), [image(1, 2, 3, 2, 4)]),
    "bicubic": lambda: (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), [image(2, 3, 5, 7)]),
    "bicubic_smaller": lambda: (lambda x: F.interpolate(x, size=(5, 4), mode="bicubic"), [image(1, 3, 9, 11)]),
    "bicubic_corners": lambda: (
        lambda x: F.interpolate(x, size=(4, 9), mode="bicubic", align_corners=True),
        [image(2, 3, 5, 7, dtype=torch.bfloat16)],
    ),
}
PADS: dict[str, Callable[[], Made]] = {
    "reflect": lambda: (lambda x: F.pad(x, (2, 1, 0, 3), mode="reflect") * 2, [image(2, 3, 5, 7)]),
    "reflect_1d": lambda: (lambda x: F.pad(x, (4, 3), mode="reflect"), [image(3, 5, dtype=torch.bfloat16)]),
    "reflect_3d": lambda: (lambda x: F.pad(x, (1, 2, 1, 0, 2, 2), mode="reflect"), [image(1, 2, 3, 4, 5)]),
    "replicate": lambda: (lambda x: F.pad(x, (2, 1, 0, 3), mode="replicate"), [last(image(2, 3, 5, 7))]),
    "replicate_less": lambda: (lambda x: F.pad(x, (-1, 6), mode="replicate"), [image(2, 3, 5)]),
    "replicate_3d": lambda: (lambda x: F.pad(x, (1, 2, 1, 0, 2, 2), mode="replicate"), [image(1, 2, 3, 4, 5)]),
    "circular": lambda: (lambda x: F.pad(x, (2, 1, 0, 3), mode="circular"), [image(2, 3, 5, 7)]),
}


def many(dtype: torch.dtype) -> Tensor:
    """Numbers of all sizes that float8 has, and beyond: halfway between two of them, too."""
    exact = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    exact = exact[exact.isfinite()].sort()[0]
    ends = torch.tensor([447.0, 464.0, 464.1, 480.0, 57344.0, 61439.0, 61440.0, 1e9, float("inf"), float("nan")])
    return torch.cat([exact, (exact[1:] + exact[:-1]) / 2, ends, -ends, torch.randn(200) * 20])


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FLOAT8: dict[str, Callable[[], Made]] = {
    "e4m3": lambda: (lambda x: (x.to(E4M3), x.to(E4M3).float() * 2, x.to(E4M3).bfloat16()), [many(E4M3)]),
    "e5m2": lambda: (lambda x: (x.to(E5M2), x.to(E5M2).float() * 2, x.to(E5M2).half()), [many(E5M2)]),
    "read": lambda: (
        lambda a, b: (a.float() + b.float(), a.to(E5M2), F.pad(b, (1, 2)), b.to(torch.int32)),
        [torch.arange(256, dtype=torch.uint8).view(E4M3), (torch.randn(256) * 9).to(E5M2)],
    ),
    "scaled": lambda: (
        lambda x: (x * (448 / x.abs().amax(1, keepdim=True))).to(E4M3),
        [image(5, 33)],
    ),
    "views": lambda: (
        lambda a, i: (a.t().contiguous(), torch.cat([a, a], 1), a[1:, ::2].clone(), a[i]),
        [image(3, 7).to(E4M3), torch.tensor([2, 0])],
    ),
}


def numbers(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


def unique(high: int, count: int) -> Tensor:
    return torch.randperm(high)[:count]


SCATTERS: dict[str, Callable[[], Made]] = {
    "index_add": lambda: (
        lambda x, i, y: x.index_add(0, i, y.exp(), alpha=2),
        [image(7, 5), numbers(7, 9), image(9, 5)],
    ),
    "index_add_columns": lambda: (
        lambda x, i, y: x.index_add(1, i, y).relu(),
        [image(7, 5), numbers(5, 9).int(), image(7, 9)],
    ),
    "scatter_add": lambda: (
        lambda i, y: torch.zeros(7, 5, device=y.device).scatter_add(0, i, y) * 2,
        [numbers(7, 9, 4), image(10, 4)],
    ),
    "scatter": lambda: (
        lambda x, i, y: x.relu().scatter(1, i, y),
        [image(7, 5, dtype=torch.bfloat16), torch.stack([unique(5, 3) for _ in range(7)]), image(7, 3).bfloat16()],
    ),
    "scatter_value": lambda: (lambda x, i: x.scatter(1, i, 1.5), [image(7, 5), numbers(5, 6, 2)]),
    "index_put": lambda: (lambda x, i, y: x.index_put((i - 4,), y), [image(9, 5), unique(9, 6), image(6, 5)]),
    "index_put_add": lambda: (
        lambda x, i, y: torch.zeros_like(x).index_put((i,), y, accumulate=True),
        [image(9, 5), numbers(9, 2, 6), image(2, 6, 1)],
    ),
    "index_put_two": lambda: (
        lambda x, i, j, y: torch.ops.aten.index_put(x, [None, i, j], y, True),
        [image(3, 4, 5, 2), numbers(4, 3, 1), numbers(5, 6), image(3, 6, 2)],
    ),
    "index_copy": lambda: (lambda x, i, y: x.index_copy(1, i, y), [image(3, 7, 2), unique(7, 4), image(3, 4, 2)]),
    "index_fill": lambda: (lambda x, i: x.index_fill(1, i, -1.0) + x, [image(3, 7), unique(7, 4)]),
    "index_add_again": lambda: (
        lambda x, i, y: x.index_add(0, i, y).index_add(0, i + 1, y * 2),
        [numbers(9, 8, 3), numbers(7, 5), numbers(9, 5, 3)],
    ),
    "scatter_reduce": lambda: (
        lambda x, i, y: (x.scatter_reduce(0, i, y, "sum"), x.scatter_reduce(0, i, y, "sum", include_self=False)),
        [image(7, 5), numbers(7, 4, 5), image(6, 5)],
    ),
    "scatter_mean": lambda: (
        lambda x, i, y: (x.scatter_reduce(0, i, y, "mean"), x.scatter_reduce(0, i, y, "mean", include_self=False) + 1),
        [image(7, 5), numbers(7, 9, 5), image(9, 5)],
    ),
    "scatter_sum_integers": lambda: (
        lambda x, i: x.scatter_reduce(1, i, x, "sum"),
        [numbers(9, 3, 5), numbers(5, 3, 4)],
    ),
    "one_hot": lambda: (lambda i: F.one_hot(i, 7).float(), [numbers(7, 5)]),
}


def grid(*shape: int) -> Tensor:
    """Places in an image and around it."""
    return torch.rand(*shape, 2) * 2.6 - 1.3


SEARCHES: dict[str, Callable[[], Made]] = {
    "bucketize": lambda: (
        lambda x, e: (torch.bucketize(x, e), torch.bucketize(x, e, right=True, out_int32=True)),
        [special(5, 9), torch.tensor([-1.5, -1.0, 0.0, 0.0, 0.25, 2.0, float("inf")])],
    ),
    "searchsorted": lambda: (
        lambda x, e: (torch.searchsorted(e, x), torch.searchsorted(e, x, side="right")),
        [numbers(9, 40), torch.tensor([1, 3, 3, 3, 7])],
    ),
    "cummax": lambda: (lambda x: (x.cummax(1)[0] + 1, x.cummin(0)[0]), [special(5, 33)]),
    "unfold": lambda: (lambda x: F.unfold(x, (2, 3), padding=1, stride=(2, 1)), [image(2, 3, 5, 6)]),
    "unfold_dilated": lambda: (lambda x: F.unfold(x, 3, dilation=2).relu(), [last(image(1, 4, 7, 8)).bfloat16()]),
    "fold": lambda: (lambda x: F.fold(x, (5, 6), (2, 3), padding=1, stride=(2, 1)) * 2, [image(2, 18, 18)]),
    "fold_dilated": lambda: (
        lambda x: F.fold(x, (7, 8), 2, dilation=2, stride=3),
        [image(1, 8, 4, dtype=torch.bfloat16)],
    ),
    "fold_apart": lambda: (lambda x: F.fold(x.exp(), (6, 8), (3, 2), stride=(3, 2)), [image(2, 12, 8)]),
    "grid": lambda: (lambda x, g: F.grid_sample(x, g, align_corners=False), [image(2, 3, 5, 6), grid(2, 4, 3)]),
    "grid_border": lambda: (
        lambda x, g: F.grid_sample(x, g, padding_mode="border", align_corners=True),
        [last(image(2, 3, 5, 6)), grid(2, 4, 3)],
    ),
    "grid_nearest": lambda: (
        lambda x, g: F.grid_sample(x, g, mode="nearest", align_corners=False),
        [image(2, 3, 5, 6), grid(2, 7, 3)],
    ),
}


def bag(mode: str, dtype: torch.dtype = torch.float32, **options: Any) -> Callable[[], Made]:
    """An embedding bag whose bags have different lengths; some have none."""

    def fn(w: Tensor, i: Tensor, o: Tensor) -> Tensor:
        return F.embedding_bag(i, w, o, mode=mode, **options).exp()

    return lambda: (fn, [image(11, 9, dtype=dtype), numbers(11, 40).int(), torch.tensor([0, 3, 3, 20, 21, 40]).int()])


BAGS: dict[str, Callable[[], Made]] = {
    "sum": bag("sum"),
    "mean_padded": bag("mean", padding_idx=3),
    "max_last": bag("max", torch.bfloat16, include_last_offset=True),
    "mean": bag("mean", torch.float16, include_last_offset=True),
    "max_padded": bag("max", padding_idx=0),
    "sum_one": lambda: (
        lambda w, i: F.embedding_bag(i, w, torch.zeros(1, dtype=torch.int64, device=i.device), mode="sum"),
        [image(7, 20, dtype=torch.float64), numbers(7, 70)],
    ),
    "equal_max": lambda: (
        lambda w, i: F.embedding_bag(i, w, mode="max", padding_idx=1),
        [image(3, 40), numbers(3, 5, 2)],
    ),
    "equal_mean": lambda: (lambda w, i: F.embedding_bag(i, w), [image(9, 33, dtype=torch.bfloat16), numbers(9, 6, 7)]),
    "weighted": lambda: (
        lambda w, i, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s, padding_idx=2),
        [image(8, 70), numbers(8, 30), torch.tensor([0, 0, 4, 29]), image(30)],
    ),
    "weighted_equal": lambda: (
        lambda w, i, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s),
        [image(8, 5), numbers(8, 4, 6), image(4, 6)],
    ),
    "tables": lambda: (  # one launch for those whose text is one
        lambda u, v, w, i, o: [
            F.embedding_bag(i, t, o, mode=m) for t, m in ((u, "sum"), (v, "mean"), (w, "sum"), (v, "sum"))
        ],
        [image(8, 16), image(8, 16), image(8, 20, dtype=torch.bfloat16), numbers(8, 30), torch.tensor([0, 9, 12, 12])],
    ),
    "narrow": lambda: (
        lambda w, i, o: F.embedding_bag(i, w, o),
        [image(8, 1), numbers(8, 30), torch.tensor([0, 9, 12])],
    ),
}


def windows(x: Tensor) -> Tensor:
    """Windows of 2 by 4 of images whose channels come last."""
    b, h, w, c = x.shape
    return x.view(b, h // 2, 2, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 8, c)


ROLLS: dict[str, Callable[[], Made]] = {
    "norm": lambda: (
        lambda x, w, b: windows(F.layer_norm(x, (6,), w, b).roll((-1, -2), (1, 2))),
        [image(2, 4, 8, 6), image(6), image(6)],
    ),
    "softmax": lambda: (lambda x: x.softmax(1).roll(3, 0), [image(5, 70, dtype=torch.bfloat16)]),
    "back": lambda: (
        lambda x, y: F.layer_norm(
            x + y.view(2, 2, 2, 2, 4, 6).transpose(2, 3).reshape(x.shape).roll((1, 3), (1, 2)), (6,)
        ),
        [image(2, 4, 8, 6), image(8, 8, 6)],
    ),
    "pointwise": lambda: (lambda x: x.exp().roll((1, -2), (0, 2)) + x, [image(3, 5, 7)]),
    "along": lambda: (lambda x: (x - x.sum(1, True)).roll(2, 1), [image(3, 20)]),  # the reduction mixes what is rolled
    "one": lambda: (lambda x, y: (x.sum(2, True) + y).roll(1, 1), [image(3, 4, 20), image(3, 1, 5)]),
}

SPECIAL: dict[str, Callable[[], Made]] = {
    "numbers": lambda: (
        lambda x: (x.nan_to_num(), x.isposinf(), x.signbit(), F.celu(x), F.hardshrink(x), F.softshrink(x)),
        [special(5, 33)],
    ),
    "pairs": lambda: (
        lambda x, y: (torch.xlogy(x, y), torch.logaddexp(x, y), torch.fmax(x, y), x.frac().nansum()),
        [special(5, 33), image(5, 33)],
    ),
    "integers": lambda: (lambda i: (i % 7, i // 7, i.count_nonzero(0)), [numbers(99, 5, 9) - 50]),
    "logits": lambda: (
        lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"),
        [image(7, 5), torch.rand(7, 5)],
    ),
    "segmentation": lambda: (
        lambda x, t: F.cross_entropy(x, t, ignore_index=1, reduction="none"),
        [image(2, 4, 3, 5), numbers(4, 2, 3, 5)],
    ),
}

FAMILIES: dict[str, dict[str, Callable[[], Made]]] = {
    "rolls": ROLLS,
    "pools": POOLS,
    "resizes": RESIZES,
    "pads": PADS,
    "float8": FLOAT8,
    "scatters": SCATTERS,
    "searches": SEARCHES,
    "bags": BAGS,
    "special": SPECIAL,
}


def operators(family: str, every: int = 1) -> Iterator[Program]:
    """Every so many of the programs of a family, captured on the CPU."""
    for name, make in list(FAMILIES[family].items())[::every]:
        torch.manual_seed(0)
        fn, args = make()
        ((module, inputs),) = graphs_of(fn, args)
        yield Program(name, module, inputs)
