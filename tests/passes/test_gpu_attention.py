"""Attention on a GPU, written out or not: one call with the operands that its kernel takes, and what eager gives. The interpreter runs the modules here."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

import intarsia
from intarsia.frontend.functional.trace import functionalize
from intarsia.ir.dialects import buffer, kernel
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.interpreter.run import run_user
from intarsia.ir.retarget import retarget
from intarsia.ir.text import parse_module
from intarsia.ir.types import RefType
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.run import run_pipeline
from intarsia.passes.pipeline import default_pipeline
from intarsia.targets.host import library_attention

ATTENTION = "aten.scaled_dot_product_attention.default"
B, H, S, D = 2, 4, 24, 16
Attention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _for_gpu(fn: Attention, args: tuple[Tensor, ...]) -> tuple[ModuleOp, list[Tensor]]:
    """The program after the passes at level prim, as for a GPU, and what the interpreter makes of it."""
    made: list[ModuleOp] = []
    results: list[Tensor] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        module = import_fx(functionalize(graph, inputs)).module
        retarget(module, "cuda:0")
        run_pipeline(CompileContext(), module, default_pipeline(gpu=True, until="attention"))
        made.append(module)
        results.extend(run_user(module, inputs))
        return graph.forward

    with torch.no_grad():
        intarsia.compile(fn, backend=backend, fullgraph=True)(*args)
    return made[0], results


def _calls(module: ModuleOp) -> list[kernel.Extern]:
    return [op for op in module.walk() if isinstance(op, kernel.Extern)]


def _operands(dtype: torch.dtype, heads: int = H) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    q = torch.randn(B, H, S, D).to(dtype)
    k, v = (torch.randn(B, heads, S, D).to(dtype) for _ in range(2))
    return q, k, v, (torch.randn(B, 1, S, S) * 2).to(dtype)


def _added(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    weights = torch.matmul(q, k.transpose(2, 3)) * 0.25 + m
    return torch.matmul(F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype), v).transpose(1, 2).contiguous()


def _batched(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    q, k, v = (x.reshape(B * H, S, D) for x in (q * 0.25, k, v))
    weights = (torch.bmm(q, k.transpose(1, 2)).view(B, H, S, S) + m).view(B * H, S, S).softmax(-1)
    return torch.bmm(weights, v).view(B, H, S, D).transpose(1, 2).reshape(B, S, H * D)


def _einsum(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    weights = (torch.einsum("bhid,bhjd->bhij", q, k) * 0.25).float().softmax(-1).type_as(q)
    return torch.einsum("bhij,bhjd->bihd", weights, v)


def _baddbmm(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    q, k = q.reshape(B * H, S, D), k.reshape(B * H, S, D)
    bias = m.expand(B, H, S, S).reshape(B * H, S, S)
    weights = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=0.25).view(B, H, S, S).softmax(-1)
    return weights @ v


def _filled(number: float) -> Attention:
    def attention(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        scores = (q @ k.transpose(-2, -1) / math.sqrt(D)).masked_fill(m > 1.0, number)
        return scores.softmax(-1) @ v

    return attention


def _repeated(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    k, v = (x[:, :, None].expand(B, 2, 2, S, D).reshape(B, H, S, D) for x in (k, v))
    return _added(q, k, v, m)


def _tril(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * 0.25
    return scores.masked_fill(torch.tril(torch.ones(S, S)) == 0, float("-inf")).softmax(-1) @ v


def _triu(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    above = torch.full((S, S), float("-inf"), dtype=q.dtype).triu(1)
    return (q @ k.transpose(-2, -1) * 0.25 + above).softmax(-1) @ v


def _where(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    open_ = torch.arange(S)[:, None] >= torch.arange(S)[None]
    scores = q @ k.transpose(-2, -1) * 0.25
    return torch.where(open_, scores, torch.finfo(q.dtype).min).softmax(-1) @ v


def _upper(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    shut = torch.ones(S, S, dtype=torch.bool).triu(diagonal=1)
    return (q @ k.transpose(-2, -1) * 0.25).masked_fill(shut, float("-inf")).softmax(-1) @ v


def _windows(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    """Windows of shifted images: a bias for all of them, a mask for each window of an image."""
    q, k, v = (x.expand(2, *x.shape).reshape(2 * B, *x.shape[1:]) for x in (q * 0.25, k, v))
    scores = q @ k.transpose(-2, -1) + m[:1].tanh().expand(1, H, S, S)
    scores = (scores.view(2, B, H, S, S) + m.view(B, 1, S, S).unsqueeze(0)).view(-1, H, S, S)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(2 * B, S, H * D)


WRITTEN = {
    "added": _added,
    "batched": _batched,
    "einsum": _einsum,
    "baddbmm": _baddbmm,
    "filled": _filled(-1e9),
    "filled_inf": _filled(float("-inf")),
    "repeated": _repeated,
    "windows": _windows,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", WRITTEN)
def test_written_out(name: str, dtype: torch.dtype) -> None:
    args = _operands(dtype, 2 if name == "repeated" else H)
    if name == "filled" and dtype == torch.float16:
        pytest.skip("-1e9 is no float16")
    module, (found,) = _for_gpu(WRITTEN[name], args)
    assert [op["target"] for op in _calls(module)] == [ATTENTION]
    expected = WRITTEN[name](*(a.float() for a in args))
    bound = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(found.float(), expected, atol=bound, rtol=bound)


@pytest.mark.parametrize("fn", [_tril, _triu, _where, _upper])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_triangles(fn: Attention, dtype: torch.dtype) -> None:
    args = _operands(dtype)
    module, (found,) = _for_gpu(fn, args)
    (call,) = _calls(module)
    assert call.get("is_causal") is True and list(call["operands"]) == ["query", "key", "value"]
    bound = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(found.float(), fn(*(a.float() for a in args)), atol=bound, rtol=bound)


@pytest.mark.parametrize("number", [float("-inf"), torch.finfo(torch.bfloat16).min])
def test_rows_without_anything_open(number: float) -> None:
    """-inf gives nan, the least number gives the mean of all values: as the program has it, not as a library does."""
    q, k, v, m = _operands(torch.bfloat16)
    m[0, :, 3] = number
    m[1, :, :, 5] = number
    _, (found,) = _for_gpu(_added, (q, k, v, m))
    expected = _added(q, k, v, m)
    assert bool(expected[0, 3].isnan().all()) == (number == float("-inf"))
    torch.testing.assert_close(found, expected, atol=3e-2, rtol=3e-2, equal_nan=True)


def test_rows_shut_by_a_number_in_float16() -> None:
    """float16 has no number beside which a score vanishes: the program's own operations give the mean of the values of such rows."""
    q, k, v, m = _operands(torch.float16)
    shut = torch.zeros(S, S, dtype=torch.bool)
    shut[3] = True

    def filled(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        scores = 8.0 * (q @ k.transpose(-2, -1))
        return scores.masked_fill(m[0, 0] < 0, torch.finfo(q.dtype).min).softmax(-1) @ v

    m[0, 0] = torch.where(shut, -1.0, 1.0)
    _, (found,) = _for_gpu(filled, (q, k, v, m))
    torch.testing.assert_close(found[:, :, 3], v.float().mean(2).half(), atol=3e-3, rtol=3e-3)


def test_what_stays_written() -> None:
    """Weights that are returned, a factor behind a mask, heads of odd sizes, random dropout, a mask with more digits than the operands."""
    q, k, v, m = _operands(torch.bfloat16)

    def returned(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        weights = (q @ k.transpose(-2, -1)).softmax(-1)
        return weights @ v, weights

    def behind(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return ((q @ k.transpose(-2, -1) + m) * 0.5).softmax(-1) @ v

    def odd(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return (q[..., :15] @ k[..., :15].transpose(-2, -1)).softmax(-1) @ v[..., :15]

    def wide(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return ((q @ k.transpose(-2, -1)).float() + m.float().exp()).softmax(-1).to(q.dtype) @ v

    def negative(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1) * -1.0).softmax(-1) @ v

    for fn in (returned, behind, odd, wide, negative):
        assert ATTENTION not in [op["target"] for op in _calls(_for_gpu(fn, (q, k, v, m))[0])], fn.__name__


def test_masks_of_truth_values_stay_small() -> None:
    """Numbers of the query's dtype before they are spread; 24 keys begin at 16 bytes, 21 are part of 24."""
    q, k, v, m = _operands(torch.bfloat16)
    for keys in (S, 21):

        def attention(q: Tensor, k: Tensor, v: Tensor, m: Tensor, keys: int = keys) -> Tensor:
            mask = (m[:, :, :1, :keys] > -1).expand(B, H, S, keys)
            return F.scaled_dot_product_attention(q, k[:, :, :keys], v[:, :, :keys], mask)

        module, (found,) = _for_gpu(attention, (q, k, v, m))
        (call,) = _calls(module)
        assert "[2, 1, 1, " in str(call.operands[3].type) and "bf16" in str(call.operands[3].type)
        assert ("prim.pad" in {op.name for op in module.walk()}) == (keys == 21)
        torch.testing.assert_close(found, attention(q, k, v, m), atol=3e-2, rtol=3e-2)


def test_heads_are_shared() -> None:
    args = _operands(torch.bfloat16, 2)

    def attention(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), is_causal=True)

    module, (found,) = _for_gpu(attention, args)
    (call,) = _calls(module)
    assert call.get("enable_gqa") is True and call["backend"] == "cudnn"
    torch.testing.assert_close(found, attention(*args), atol=3e-2, rtol=3e-2)


def test_the_fast_path_of_multi_head_attention() -> None:
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = torch.randn(B, S, 32)

    def attention(x: Tensor) -> Tensor:
        return layer(x, x, x, need_weights=False)[0]  # type: ignore[no-any-return]

    module, (found,) = _for_gpu(attention, (x,))
    assert [op["target"] for op in _calls(module)] == ["aten.linear.default", ATTENTION, "aten.linear.default"]
    torch.testing.assert_close(found, attention(x), atol=1e-5, rtol=1e-5)


def _packed(q: Tensor, k: Tensor, v: Tensor, m: Tensor, window: int = 0) -> Tensor:
    """Positions from which packed sequences would be seen: there is one."""
    place = torch.arange(S).expand(B, S)
    sequence = (torch.diff(place, prepend=place[:, :1] - 1, dim=-1) != 1).cumsum(-1)
    open_ = (sequence[:, :, None] == sequence[:, None]) & (place[:, :, None] >= place[:, None])
    if window:
        open_ = open_ & (place[:, :, None] - place[:, None] < window)
    return F.scaled_dot_product_attention(q, k, v, open_[:, None])


def test_masks_that_are_known_by_their_numbers() -> None:
    args = _operands(torch.float32)
    module, (found,) = _for_gpu(_packed, args)
    (call,) = _calls(module)
    assert call.get("is_causal") is True and list(call["operands"]) == ["query", "key", "value"]
    torch.testing.assert_close(found, _packed(*args), atol=1e-5, rtol=1e-5)

    def twice(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return _packed(q, k, v, m, 3) + _packed(k, q, v, m, 3)

    module, (found,) = _for_gpu(twice, args)
    first, second = _calls(module)
    assert first.operands[3] is second.operands[3]  # a window stays a mask, which the layers share
    torch.testing.assert_close(found, twice(*args), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, S])
def test_triangles_of_another_height(rows: int) -> None:
    """What is open is known before the operations that say so stand in the program."""
    q, k, v, m = _operands(torch.float32)

    def fn(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        shut = torch.ones(rows, S, dtype=torch.bool).triu(1)
        return (q @ k.transpose(2, 3) * 0.25).masked_fill(shut, -math.inf).softmax(-1) @ v

    args = (q[:, :, :rows], k, v, m)
    module, (found,) = _for_gpu(fn, args)
    assert len(_calls(module)) == 1
    torch.testing.assert_close(found, fn(*args))


MASKS: dict[
    str, Callable[[Tensor], Tensor]
] = {  # from (keys, rows, heads) numbers: (1, heads, rows, keys) in many layouts
    "stored with heads innermost": lambda n: (n * 2).permute(2, 1, 0)[None],
    "an argument with heads innermost": lambda n: n.permute(2, 1, 0)[None],
    "of each head, for all rows": lambda n: n[:, :1].permute(2, 1, 0)[None],
    "rows of a wider one": lambda n: n.permute(2, 1, 0).contiguous()[None, :, :, 1:],
    "rows of a wider argument": lambda n: n.reshape(H, S, -1)[None, :, :, :-1],
    "keys that are no multiple of 8": lambda n: (n * 2).permute(2, 1, 0)[None, :, :, :-1],
    "one key": lambda n: (n * 2).permute(2, 1, 0)[None, :, :, :1],
}


@pytest.mark.parametrize("expand", [False, True], ids=["shared", "expanded"])
@pytest.mark.parametrize("name", MASKS)
def test_libraries_read_masks_whose_rows_begin_at_16_bytes(name: str, expand: bool) -> None:
    """cuDNN's kernel asks for nothing and stops the process's use of the GPU."""
    keys = 88 + (name in ("rows of a wider one", "rows of a wider argument"))
    numbers = torch.randn(keys, S, H, dtype=torch.bfloat16)

    def fn(q: Tensor, k: Tensor, v: Tensor, n: Tensor) -> Tensor:
        mask = MASKS[name](n)
        k, v = k[:, :, : mask.shape[3]], v[:, :, : mask.shape[3]]
        return F.scaled_dot_product_attention(q, k, v, mask.expand(B, -1, S, -1) if expand else mask)

    q, k, v = (torch.randn(B, H, n, D, dtype=torch.bfloat16) for n in (S, keys, keys))
    with torch.no_grad():
        lowered = intarsia.lower(fn, q, k, v, numbers, target="triton:sm_90")
    calls = [op for op in parse_module(lowered.ir()).walk() if isinstance(op, buffer.Extern) and op.get("backend")]
    assert len(calls) == 1
    mask = calls[0].operands[3].type
    assert isinstance(mask, RefType)
    *steps, last = (t for s, t in zip(mask.shape, mask.strides, strict=True) if s != 1 and t != 0)
    assert (last == 1 or mask.shape[3] == 1) and all(cast(int, t) % 8 == 0 for t in steps)


@pytest.mark.parametrize("begin", [0, 1, 8])
def test_operands_of_libraries_begin_at_16_bytes(begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are copied where they do not: eager's own call would end in an error of the driver, too."""
    seen: list[Tensor] = []

    def call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, causal: bool, scale: float) -> Tensor:
        seen.extend((q, k, v, mask))
        return F.scaled_dot_product_attention(q, k, v, mask)

    monkeypatch.setitem(library_attention.BACKENDS, "efficient", call)
    memory = torch.randn(4 * B * H * S * S + 8, dtype=torch.bfloat16)
    given = [memory[begin:][: B * H * S * n].view(B, H, S, n) for n in (D, D, D, S)]
    found = library_attention.Attention("efficient", False, None, True, False)(*given)
    assert torch.equal(found, F.scaled_dot_product_attention(*given))
    assert all(t.data_ptr() % 16 == 0 for t in seen) and len(seen) == 4
    assert all((t.data_ptr() == g.data_ptr()) == (begin % 8 == 0) for t, g in zip(seen, given, strict=True))
