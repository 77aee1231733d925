"""The programs of sweep.py: a name -> a function that makes a callable and its arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Program = Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
PROGRAMS: dict[str, Program] = {}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64, "i64": torch.int64}


def values(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Normal numbers; integers from -20 to 20."""
    if dtype.is_floating_point:
        return torch.randn(*shape).to(dtype)
    return torch.randint(-20, 21, tuple(shape)).to(dtype)


def _name(word: str, shapes: Sequence[Sequence[int]], dtype: str) -> str:
    return f"{word} {'x'.join(map(str, shapes[0]))} {dtype}"


def _add(
    family: str, functions: Mapping[str, Callable[..., Any]], shapes: Sequence[Sequence[Sequence[int]]], dtypes: str
) -> None:
    """Each function in turn with one of the shapes and one of the types, so that all of these occur and the sweep stays short."""
    kinds = itertools.cycle(itertools.product(shapes, dtypes.split()))
    for word, fn in functions.items():
        these, dtype = next(kinds)
        PROGRAMS[_name(f"{family}.{word}", these, dtype)] = lambda fn=fn, these=these, dtype=dtype: (
            fn,
            tuple(values(s, DTYPES[dtype]) for s in these),
        )


def _each(family: str, functions: Mapping[str, Callable[..., Any]], shape: Sequence[int], dtypes: str) -> None:
    """Each function with each of the types."""
    for dtype in dtypes.split():
        _add(family, functions, [[shape]], dtype)


def _layer(name: str, make: Callable[[], nn.Module], shape: Sequence[int], dtype: str = "f32") -> None:
    """A module in eval mode on one input."""

    def program() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return make().eval().to(DTYPES[dtype]), (values(shape, DTYPES[dtype]),)

    PROGRAMS[_name(name, [shape], dtype)] = program


def _call(name: str, fn: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> None:
    """A function with arguments of its own."""
    PROGRAMS[name] = lambda: (fn, make())


# ---- pointwise ------------------------------------------------------------------------------------------------------

ONE: dict[str, Callable[[Tensor], Any]] = {
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "elu": F.elu,
    "hardswish": F.hardswish,
    "exp_log1p": lambda x: torch.log1p(torch.exp(-x.abs())),
    "sin_cos": lambda x: torch.sin(x) * torch.cos(x),
    "tan_atan": lambda x: torch.atan(torch.tan(x)),
    "erf": torch.erf,
    "lgamma": lambda x: torch.lgamma(x.abs() + 1),
    "pow": lambda x: x.abs() ** 1.7,
    "cube": lambda x: x**3,
    "rsqrt": lambda x: torch.rsqrt(x * x + 1e-3),
    "relu": torch.relu,
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "where": lambda x: torch.where(x > 0, x, x * 0.1),
    "round": lambda x: torch.round(x * 8) / 8,
    "nan_to_num": torch.nan_to_num,
    "add_one": lambda x: x + 1,
}
_add("point", ONE, [[(512, 1024)], [(33, 129)], [(8, 3, 64, 65)]], "f32 bf16 f64")
INTEGERS: dict[str, Callable[[Tensor], Any]] = {
    "floor_divide": lambda x: x // 7,
    "remainder": lambda x: x % 5 - 2,
    "bits": lambda x: ((x << 2) ^ (x >> 1)) & 255,
    "compare": lambda x: (x > 3) & (x < 10) | (x == -1),
    "to_float": lambda x: x.float() * 0.5,
    "mul_add": lambda x: x * x + 3 * x,
}
_add("int", INTEGERS, [[(512, 1024)], [(33, 129)]], "i64")
TWO: dict[str, Callable[..., Any]] = {
    "row": lambda x, y: x * y + 1,
    "atan2": torch.atan2,
    "maximum": lambda x, y: torch.maximum(x, y) - torch.minimum(x, y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
}
_add("broadcast", TWO, [[(512, 1024), (1024,)], [(512, 1024), (512, 1)], [(16, 1, 300), (7, 300)]], "f32 bf16 f64")
CASTS: dict[str, Callable[[Tensor], Any]] = {
    "to_bf16": lambda x: (x * 2).bfloat16(),
    "to_int": lambda x: (x * 100).int(),
    "to_f64_and_back": lambda x: (x.double() * 1.1).float(),
    "to_bool": lambda x: x > 0,
}
_add("cast", CASTS, [[(512, 1024)]], "f32")
VIEWS: dict[str, Callable[[Tensor], Any]] = {
    "transpose": lambda x: x.t().contiguous(),
    "transpose_add": lambda x: x.t() + 1,
    "permute": lambda x: x.view(16, 32, 32, 32).permute(0, 2, 3, 1).contiguous(),
    "flip": lambda x: x.flip(0, 1) * 2,
    "roll": lambda x: torch.roll(x, (3, 100), (0, 1)),
    "tril": torch.tril,
    "step": lambda x: x[::2, 1::3] * 2,
    "diagonal": lambda x: x.diagonal() + 1,
    "unfold": lambda x: x.unfold(1, 8, 8).sum(-1),
    "shifted": lambda x: x[1:, 1:] - x[:-1, :-1],
}
_add("view", VIEWS, [[(512, 1024)]], "f32 bf16")

# ---- reductions -----------------------------------------------------------------------------------------------------

for axis in (0, 1, -1, (0, 2), (1, 2), None):
    word = "all" if axis is None else str(axis).replace(" ", "")
    REDUCTIONS: dict[str, Callable[[Tensor], Any]] = {
        f"sum {word}": lambda x, axis=axis: x.sum(axis) if axis is not None else x.sum(),
        f"mean {word}": lambda x, axis=axis: x.mean(axis) if axis is not None else x.mean(),
        f"amax {word}": lambda x, axis=axis: x.amax(axis if axis is not None else ()),
        f"var {word}": lambda x, axis=axis: x.var(axis),
        f"norm {word}": lambda x, axis=axis: torch.linalg.vector_norm(x, dim=axis),
    }
    _add("reduce", REDUCTIONS, [[(32, 48, 512)], [(64, 33, 129)]], "f32 bf16 f64")
    INTEGER_REDUCTIONS: dict[str, Callable[[Tensor], Any]] = {
        f"sum {word}": lambda x, axis=axis: x.sum(axis) if axis is not None else x.sum(),
    }
    _add("reduce", INTEGER_REDUCTIONS, [[(64, 33, 129)]], "i64")
MORE_REDUCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "argmax_rows": lambda x: x.argmax(1),
    "argmin_columns": lambda x: x.argmin(0),
    "max_pair": lambda x: x.max(1),
    "min_pair_columns": lambda x: x.min(0),
    "any": lambda x: (x > 3).any(1),
    "all": lambda x: (x > -3).all(0),
    "count": lambda x: (x > 0).sum(),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "prod": lambda x: (x * 0.1 + 1).prod(1),
    "mse": lambda x: F.mse_loss(x, x.flip(0)),
    "median": lambda x: x.median(1)[0],
    "std_mean": lambda x: torch.std_mean(x, 1),
}
_add("reduce", MORE_REDUCTIONS, [[(512, 1024)], [(129, 777)]], "f32 bf16")
SCANS: dict[str, Callable[[Tensor], Any]] = {
    "cumsum_rows": lambda x: x.cumsum(1),
    "cumsum_columns": lambda x: x.cumsum(0),
    "cumprod": lambda x: (x * 0.01 + 1).cumprod(1),
    "cummax": lambda x: x.cummax(1)[0],
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "diff": lambda x: x.diff(dim=1),
}
_add("scan", SCANS, [[(512, 1024)], [(129, 777)]], "f32")
_add("scan", {"cumsum_int": lambda x: x.cumsum(1)}, [[(512, 1024)]], "i64")

# ---- norms and softmax ----------------------------------------------------------------------------------------------

for axis in (0, 1, -1):
    SOFT: dict[str, Callable[[Tensor], Any]] = {
        f"softmax {axis}": lambda x, axis=axis: torch.softmax(x, axis),
        f"log_softmax {axis}": lambda x, axis=axis: torch.log_softmax(x, axis),
    }
    _add("soft", SOFT, [[(16, 64, 512)], [(7, 33, 129)]], "f32 bf16 f64")
NORMS: dict[str, Callable[[Tensor], Any]] = {
    "layer": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms": lambda x: F.rms_norm(x, x.shape[-1:]),
    "group": lambda x: F.group_norm(x, 4),
    "instance": lambda x: F.instance_norm(x),
    "l2": lambda x: F.normalize(x, dim=-1),
    "l2_columns": lambda x: F.normalize(x, dim=1),
    "batch": lambda x: F.batch_norm(x, None, None, training=True),
}
_each("norm", NORMS, (8, 32, 24, 24), "f32 bf16")
_add("norm", {"local_response": lambda x: F.local_response_norm(x, 5)}, [[(8, 32, 24, 24)]], "f32")
_layer("norm.layer_affine", lambda: nn.LayerNorm(768), (256, 768))
_layer("norm.batch_eval", lambda: nn.Sequential(nn.BatchNorm2d(32), nn.ReLU()), (8, 32, 24, 24))
_call(
    "loss.cross_entropy",
    lambda x, y: F.cross_entropy(x, y, ignore_index=-100),
    lambda: (torch.randn(512, 1000), torch.randint(0, 1000, (512,))),
)
_call(
    "loss.cross_entropy_smooth",
    lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, reduction="none"),
    lambda: (torch.randn(64, 33, 9), torch.randint(0, 33, (64, 9))),
)
_call(
    "loss.kl_div",
    lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="batchmean"),
    lambda: (torch.randn(256, 500), torch.randn(256, 500)),
)
_call(
    "loss.bce_logits",
    F.binary_cross_entropy_with_logits,
    lambda: (torch.randn(256, 500), torch.rand(256, 500)),
)

# ---- indexing -------------------------------------------------------------------------------------------------------


def _places(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape)


for kind in ("f32", "bf16", "i64"):
    dtype_of = DTYPES[kind]
    INDEXED: dict[str, tuple[Callable[..., Any], Callable[[torch.dtype], tuple[Any, ...]]]] = {
        "index_select": (
            lambda x, i: x.index_select(0, i),
            lambda d: (values((1000, 256), d), _places(1000, 2000)),
        ),
        "index_select_columns": (lambda x, i: x[:, i], lambda d: (values((256, 1000), d), _places(1000, 500))),
        "gather": (lambda x, i: x.gather(1, i), lambda d: (values((512, 512), d), _places(512, 512, 300))),
        "advanced": (
            lambda x, i, j: x[i, j],
            lambda d: (values((300, 300), d), _places(300, 9000), _places(300, 9000)),
        ),
        "index_add": (
            lambda x, i, y: x.index_add(0, i, y),
            lambda d: (values((500, 128), d), _places(500, 1000), values((1000, 128), d)),
        ),
        "scatter": (
            lambda x, i, y: x.scatter(1, i, y),
            lambda d: (values((300, 300), d), torch.rand(300, 300).argsort(1), values((300, 300), d)),
        ),
        "scatter_add": (
            lambda x, i, y: x.scatter_add(1, i, y),
            lambda d: (values((300, 300), d), _places(300, 300, 200), values((300, 200), d)),
        ),
        "index_put": (
            lambda x, i, y: x.index_put((i,), y),
            lambda d: (values((500, 128), d), torch.randperm(500)[:100], values((100, 128), d)),
        ),
        "index_put_add": (
            lambda x, i, y: x.index_put((i,), y, accumulate=True),
            lambda d: (values((500, 128), d), _places(500, 1000), values((1000, 128), d)),
        ),
        "index_copy": (
            lambda x, i, y: x.index_copy(1, i, y),
            lambda d: (values((300, 300), d), torch.randperm(300)[:100], values((300, 100), d)),
        ),
        "masked_fill": (
            lambda x, m: x.masked_fill(m, 3),
            lambda d: (values((512, 512), d), torch.rand(512, 512) > 0.5),
        ),
        "slice_write": (
            lambda x, y: torch.slice_scatter(x, y, 1, 10, 138),
            lambda d: (values((512, 512), d), values((512, 128), d)),
        ),
        "topk": (lambda x: x.topk(5, 1)[0], lambda d: (values((128, 1000), d),)),
        "sort": (lambda x: x.sort(1)[0], lambda d: (values((128, 1000), d),)),
    }
    for index_word, (fn, make_index) in INDEXED.items():
        _call(f"index.{index_word} {kind}", fn, lambda make=make_index, d=dtype_of: make(d))
_call("index.one_hot", lambda i: F.one_hot(i, 100).float(), lambda: (_places(100, 1000),))
_call("index.embedding", F.embedding, lambda: (_places(1000, 8, 128), torch.randn(1000, 256)))
_call("index.embedding_bag", F.embedding_bag, lambda: (_places(1000, 64, 20), torch.randn(1000, 64)))
_call("index.bucketize", torch.bucketize, lambda: (torch.randn(50_000), torch.linspace(-2, 2, 40)))
_call("index.searchsorted", torch.searchsorted, lambda: (torch.linspace(-2, 2, 1000), torch.randn(50_000)))
_call("index.nonzero_free_count", lambda x: (x > 1).sum(1), lambda: (torch.randn(512, 512),))

# ---- joining, splitting, padding ------------------------------------------------------------------------------------

JOINS: dict[str, Callable[[Tensor], Any]] = {
    "cat_rows": lambda x: torch.cat([x, x * 2], 0),
    "cat_columns": lambda x: torch.cat([x, x.relu(), x[:, :7]], 1),
    "cat_plain": lambda x: torch.cat([x, x], 1),
    "stack_last": lambda x: torch.stack([x, -x], -1),
    "stack_first": lambda x: torch.stack([x, x + 1], 0),
    "split": lambda x: [p * 2 for p in x.split(100, 1)],
    "chunk_glu": lambda x: F.glu(x, -1),
    "repeat": lambda x: x.repeat(2, 2),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 0),
    "pad_zero": lambda x: F.pad(x, (1, 2, 3, 4)),
    "pad_reflect": lambda x: F.pad(x[None], (3, 4), mode="reflect"),
    "pad_replicate": lambda x: F.pad(x[None], (3, 4), mode="replicate"),
    "pad_circular": lambda x: F.pad(x[None], (3, 4), mode="circular"),
    "rotate_half": lambda x: torch.cat([-x[..., 512:], x[..., :512]], -1),
}
_each("join", JOINS, (512, 1024), "f32 bf16")

# ---- images ---------------------------------------------------------------------------------------------------------

POOLS: dict[str, Callable[[Tensor], Any]] = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_indices": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max_ceil": lambda x: F.max_pool2d(x, 2, ceil_mode=True),
    "avg": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_one": lambda x: F.avg_pool2d(x, 2),
    "adaptive_avg": lambda x: F.adaptive_avg_pool2d(x, 7),
    "adaptive_avg_one": lambda x: F.adaptive_avg_pool2d(x, 1),
    "adaptive_max": lambda x: F.adaptive_max_pool2d(x, 5),
    "max_1d": lambda x: F.max_pool1d(x.flatten(2), 4),
    "lp": lambda x: F.lp_pool2d(x, 2, 2),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear_corners": lambda x: F.interpolate(x, size=(50, 41), mode="bilinear", align_corners=True),
    "bicubic": lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    "nearest_exact": lambda x: F.interpolate(x, size=(41, 50), mode="nearest-exact"),
    "down_area": lambda x: F.interpolate(x, size=14, mode="area"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "unfold": lambda x: F.unfold(x, 3, padding=1),
}
_each("image", POOLS, (4, 16, 28, 28), "f32 bf16")
_call(
    "cast.float8",
    lambda x: (x.to(torch.float8_e4m3fn), x.to(torch.float8_e5m2).float() * 2),
    lambda: (torch.randn(512, 1024),),
)
_add("image", {"avg_3d": lambda x: F.avg_pool3d(x[:, None], 2)}, [[(4, 16, 28, 28)]], "f32")
_each("image_last", {k: POOLS[k] for k in ("max", "avg", "nearest", "bilinear")}, (2, 8, 15, 17), "f32 f64")
_call(
    "image.grid_sample",
    lambda x, g: F.grid_sample(x, g, align_corners=False),
    lambda: (torch.randn(2, 8, 32, 32), torch.rand(2, 24, 24, 2) * 2 - 1),
)
CONVOLUTIONS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "3x3": (lambda: nn.Conv2d(32, 64, 3, padding=1), (2, 32, 28, 28)),
    "1x1": (lambda: nn.Conv2d(64, 128, 1, bias=False), (2, 64, 28, 28)),
    "stem": (lambda: nn.Conv2d(3, 32, 7, 2, 3), (1, 3, 112, 112)),
    "patch": (lambda: nn.Conv2d(3, 192, 16, 16), (1, 3, 112, 112)),
    "depthwise": (lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64), (2, 64, 28, 28)),
    "depthwise_7": (lambda: nn.Conv2d(96, 96, 7, padding=3, groups=96), (1, 96, 28, 28)),
    "grouped": (lambda: nn.Conv2d(64, 64, 3, padding=1, groups=4), (2, 64, 28, 28)),
    "dilated": (lambda: nn.Conv2d(32, 32, 3, padding=2, dilation=2), (2, 32, 28, 28)),
    "transposed": (lambda: nn.ConvTranspose2d(32, 16, 2, 2), (2, 32, 28, 28)),
    "transposed_3": (lambda: nn.ConvTranspose2d(32, 16, 3, 2, 1, 1), (2, 32, 14, 14)),
    "one_dimension": (lambda: nn.Conv1d(80, 128, 3, padding=1), (1, 80, 500)),
    "depthwise_one": (lambda: nn.Conv1d(128, 128, 5, padding=2, groups=128), (1, 128, 500)),
    "three_dimensions": (lambda: nn.Conv3d(4, 8, 3, padding=1), (1, 4, 12, 24, 24)),
    "small": (lambda: nn.Conv2d(8, 8, 3, padding=1), (1, 8, 9, 9)),
    "odd": (lambda: nn.Conv2d(5, 7, (2, 3), (1, 2), (0, 1)), (3, 5, 13, 11)),
    "reflect": (lambda: nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"), (1, 16, 28, 28)),
    "norm_relu": (
        lambda: nn.Sequential(nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
        (2, 32, 28, 28),
    ),
    "silu": (lambda: nn.Sequential(nn.Conv2d(32, 64, 1), nn.SiLU()), (2, 32, 28, 28)),
}
for word, (make, size) in CONVOLUTIONS.items():
    for kind in ("f32", "bf16") if word in ("3x3", "1x1", "depthwise", "stem", "norm_relu", "transposed") else ("f32",):
        _layer(f"conv.{word}", make, size, kind)
_layer("conv.3x3", lambda: nn.Conv2d(8, 16, 3, padding=1), (2, 8, 14, 14), "f64")
_call(
    "conv.weight_given",
    lambda x, w: F.conv2d(x, w, padding=1).relu(),
    lambda: (torch.randn(2, 16, 28, 28), torch.randn(32, 16, 3, 3)),
)

# ---- products -------------------------------------------------------------------------------------------------------

for rows, inner, outer in (
    (1, 768, 768),
    (1, 1024, 4096),
    (7, 33, 129),
    (128, 768, 768),
    (128, 768, 3072),
    (512, 64, 64),
):
    for kind in ("f32", "bf16"):
        _layer(f"linear.{outer}", lambda i=inner, o=outer: nn.Linear(i, o), (rows, inner), kind)
_layer("linear.gelu", lambda: nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)), (4, 32, 256))
_layer("linear.no_bias", lambda: nn.Linear(300, 300, bias=False), (64, 300), "f64")
PRODUCTS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(128, 256), (256, 192)]),
    "mm_transposed": (lambda x, y: x @ y.t(), [(128, 256), (192, 256)]),
    "mv": (torch.mv, [(512, 512), (512,)]),
    "outer": (torch.outer, [(512,), (700,)]),
    "dot": (torch.dot, [(100_000,), (100_000,)]),
    "bmm": (torch.bmm, [(16, 64, 64), (16, 64, 32)]),
    "bmm_tiny": (torch.bmm, [(200, 4, 4), (200, 4, 4)]),
    "batched_vector": (lambda x, y: x @ y, [(16, 1, 64), (16, 64, 128)]),
    "broadcast": (torch.matmul, [(4, 8, 33, 17), (17, 9)]),
    "addmm": (torch.addmm, [(192,), (128, 256), (256, 192)]),
    "baddbmm": (lambda c, x, y: torch.baddbmm(c, x, y, beta=0.5), [(8, 32, 16), (8, 32, 64), (8, 64, 16)]),
    "einsum": (lambda x, y: torch.einsum("bhqd,bhkd->bhqk", x, y), [(2, 4, 64, 32), (2, 4, 48, 32)]),
    "relu": (lambda x, y: (x @ y).relu() + 1, [(64, 64), (64, 64)]),
    "cdist": (torch.cdist, [(64, 16), (80, 16)]),
}
for word, (fn, sizes) in PRODUCTS.items():
    for kind in ("f32", "bf16") if word in ("mm", "bmm", "batched_vector", "mv", "einsum") else ("f32",):
        _call(
            f"product.{word} {kind}", fn, lambda sizes=sizes, kind=kind: tuple(values(s, DTYPES[kind]) for s in sizes)
        )
_call("product.mm i64", torch.mm, lambda: (values((32, 40), torch.int64), values((40, 24), torch.int64)))
_call("product.bmm f64", torch.bmm, lambda: (values((4, 32, 32), torch.float64), values((4, 32, 32), torch.float64)))

# ---- attention ------------------------------------------------------------------------------------------------------


def written(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As in models that write it out."""
    weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
    return weights @ v


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """With a causal mask that is added."""
    mask = torch.full((q.shape[2], k.shape[2]), float("-inf"), device=q.device).triu(1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype))


ATTENTION: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "plain": (F.scaled_dot_product_attention, (1, 12, 128, 64), (1, 12, 128, 64)),
    "causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (1, 8, 256, 64),
        (1, 8, 256, 64),
    ),
    "mask": (masked, (2, 4, 64, 32), (2, 4, 64, 32)),
    "grouped": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (1, 8, 64, 64),
        (1, 2, 64, 64),
    ),
    "decode": (F.scaled_dot_product_attention, (1, 16, 1, 64), (1, 16, 129, 64)),
    "cross": (F.scaled_dot_product_attention, (2, 4, 17, 40), (2, 4, 33, 40)),
    "written": (written, (1, 8, 128, 64), (1, 8, 128, 64)),
    "written_long": (written, (1, 4, 512, 32), (1, 4, 512, 32)),
    "tiny": (F.scaled_dot_product_attention, (1, 2, 4, 8), (1, 2, 4, 8)),
    "windows": (F.scaled_dot_product_attention, (64, 3, 49, 32), (64, 3, 49, 32)),
}
for word, (fn, q_size, k_size) in ATTENTION.items():
    for kind in ("f32", "bf16", "f64") if word in ("plain", "decode", "written") else ("f32", "bf16"):
        _call(
            f"attention.{word} {kind}",
            fn,
            lambda q=q_size, k=k_size, d=DTYPES[kind]: (values(q, d), values(k, d), values(k, d)),
        )
