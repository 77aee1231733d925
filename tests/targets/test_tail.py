"""Programs with large results as a recording and a tail: the same steps, those that write these results last."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intarsia.ir.dialects import loop
from intarsia.ir.symbols import substitute, symbol
from intarsia.targets.host import host as host_programs
from intarsia.targets.host import large_results
from intarsia.targets.host.library import Library
from intarsia.targets.host.pool import Results
from intarsia.targets.host.render import render
from intarsia.targets.host.source import HostSource
from intarsia.targets.run.load import namespace
from tests.targets.test_pieces import host, steps


def _body(token: Tensor, w: Tensor) -> Tensor:
    x = token
    for _ in range(3):
        x = F.gelu(x @ w).softmax(-1) @ w
    return x


def _logits(token: Tensor, cache: Tensor, w: Tensor) -> Any:
    """One product; the hidden values are a result, too, and so are views of an argument."""
    x = _body(token, w)
    return x @ cache.t(), x, w[2:].t()


def _two_steps(token: Tensor, cache: Tensor, w: Tensor) -> Any:
    """A kernel in place, on what a library gave; and something else that depends on it."""
    logits = F.gelu(_body(token, w) @ cache.t())
    return logits, logits.sum(-1)


def _in_between(token: Tensor, cache: Tensor, w: Tensor) -> Any:
    """The large result is there long before the end; nothing that comes later needs it."""
    large = (token @ w) @ cache.t()
    return _body(token + 1, w), large.view(-1)


def _read_again(token: Tensor, cache: Tensor, w: Tensor) -> Any:
    """All later steps need the large result."""
    large = (token @ w) @ w.repeat(1, 8)
    return _body(large[:, :32].contiguous(), w), large


def _changed_later(token: Tensor, cache: Tensor, w: Tensor) -> Any:
    """What the large result is made of is overwritten afterwards."""
    large = _body(token, w) @ cache.t()
    cache.mul_(2)
    return large


def _short(token: Tensor, cache: Tensor, w: Tensor) -> Any:
    return (token @ w).exp() @ cache.t()


def _written(token: Tensor, cache: Tensor, w: Tensor) -> Any:
    """An argument gets its new value at the end, before which a call that can fail must not have been put off."""
    x = _body(token, w)
    token.copy_(x)
    return x @ cache.t(), x


def _written_early(token: Tensor, cache: Tensor, w: Tensor) -> Any:
    """An argument that the tail does not read gets its new value in the middle."""
    x = _body(token, w)
    token.copy_(x.flip(0))
    return x @ cache.t()


def _random(token: Tensor, cache: Tensor, w: Tensor) -> Any:
    """Numbers are drawn in the same order."""
    large = torch.randperm(300, device=token.device)
    return large, _body(token, w), torch.randperm(4, device=token.device)


LARGE = 2 * 300 * 4  # bytes


def _stand_in(kernel: loop.Kernel) -> Any:
    """A function in place of a kernel: its results are some numbers that depend on all of its operands."""
    refs: list[Any] = [a.type for a in kernel.block_body.args]
    names = [symbol(name) for name in kernel.get("symbols", ())]

    def call(*given: Any) -> int:
        sizes = dict(zip(names, given[len(refs) : -1], strict=True))
        tensors = []
        for ref, address in zip(refs, given[: len(refs)], strict=True):
            shape, strides = ([int(substitute(d, sizes)) for d in dims] for dims in (ref.shape, ref.strides))
            extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
            memory = (ctypes.c_char * (extent * ref.dtype.bytes)).from_address(address)
            tensors.append(torch.frombuffer(memory, dtype=ref.dtype.torch).as_strided(shape, strides))
        count = kernel["inputs"]
        seed = sum(float((t.double() * (k + 1)).sum()) for k, t in enumerate(tensors[:count]))
        for k, t in enumerate(tensors[count:]):
            t.copy_(torch.cos(torch.arange(t.numel()) * 0.7 + seed + k).view(t.shape))
        return 0

    return call


def _numbers(source: HostSource, kernels: dict[str, loop.Kernel], args: Sequence[Tensor], halves: bool) -> list[Any]:
    """The results of the program as it is, or as a recording and a tail, and what became of its arguments."""
    names = namespace(source, {n: _stand_in(kernels[n]) for n in source.kernels}, Library(-1), Results())
    names |= {"empty_strided_gpu": names["empty_strided"], "current_stream": lambda device: 0}
    args = [a.clone() for a in args]
    assert source.halves is not None
    exec(render(source.halves.program) if halves else source.text, names)
    if not halves:
        return [*names["make"]()(*args), *args]
    first, second = names["make"]()
    values = first(*args)
    return [*second(values, *args), *args]


@pytest.mark.parametrize(
    ("fn", "count", "results"),
    [
        (_logits, 1, [0]),
        (_two_steps, 3, [0, 1]),
        (_in_between, 1, [1]),
        (_read_again, 0, []),
        (_changed_later, 0, []),
        (_short, 0, []),
        (_written, 0, []),
        (_written_early, 1, [0]),
        (_random, 2, [0, 2]),
    ],
)
@pytest.mark.parametrize("lengths", [(300,), (3, 4, 5)])
def test_tails(
    fn: Any, count: int, results: list[int], lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_results, "SPARED", LARGE // max(1, count))
    kernels: dict[str, loop.Kernel] = {}

    def remembered(func: Any, known: dict[str, loop.Kernel], *rest: Any) -> Any:
        kernels.update(known)
        return large_results.halves(func, known, *rest)

    monkeypatch.setattr(host_programs, "halves", remembered)
    source = host(fn, lengths)
    if not count:
        assert source.halves is None
        return
    assert source.halves is not None
    assert (source.halves.steps, list(source.halves.results)) == (count, results)
    if fn is _random:  # its calls name a device
        return
    rows = [2, 32, lengths[-1]]
    called, shapes = steps(source, rows, [], source.halves.program)
    place = called.index("tail")
    plain, wanted = steps(source, rows, [])
    assert shapes == wanted and len(called) - place - 1 == count
    assert sorted(called[:place] + called[place + 1 :]) == sorted(plain)
    left = iter(plain)
    assert all(step in left for step in called[:place])  # the others stay in their order
    args = [torch.randn(n, 32) for n in rows]
    for a, b in zip(_numbers(source, kernels, args, True), _numbers(source, kernels, args, False), strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()
