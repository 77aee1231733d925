"""The parts of a host program that are the same for all sizes: the program does the same steps, in the same order, as without them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intarsia
from intarsia.frontend.functional.trace import functionalize
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.retarget import retarget
from intarsia.passes.analysis.machine import Machine
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.run import run_pipeline
from intarsia.passes.pipeline import default_pipeline
from intarsia.targets.build.program import generate
from intarsia.targets.host.ir import HostProgram
from intarsia.targets.host.library import Library
from intarsia.targets.host.pool import Results
from intarsia.targets.host.render import render
from intarsia.targets.host.source import HostSource
from intarsia.targets.run.load import namespace


def _growing(token: Tensor, cache: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    x = token
    for _ in range(3):
        cache = torch.cat([cache, x])
        seen = (cache @ w)[:1] + cache.sum(0, keepdim=True)
        for _ in range(4):
            seen = F.gelu(seen @ w).softmax(-1) @ w
        x = x + seen
    return x, cache


def _fixed(token: Tensor, cache: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return (token @ w @ w).exp() @ w @ w, cache


def _too_short(token: Tensor, cache: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return cache @ w, (cache + 1) @ w


def _written(token: Tensor, cache: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A part may not hold what writes to an argument: it would write to the part's copy."""
    x = token
    for _ in range(4):
        x = F.gelu(x @ w).softmax(-1) @ w
    token.mul_(2).add_(x)
    return cache @ w, x


def host(fn: Any, lengths: Sequence[int] = (3, 4, 5)) -> HostSource:
    """The host program of the function for a GPU after calls with caches of these lengths; several: it is for any."""
    found: list[HostSource] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        imported = import_fx(functionalize(gm, inputs))
        retarget(imported.module, "cuda:0")
        run_pipeline(CompileContext(Machine()), imported.module, default_pipeline(gpu=True))
        found.append(generate(imported.module, Library(-1)).host)
        return gm.forward

    fast = intarsia.compile(fn, backend=backend, fullgraph=True)
    for n in lengths:
        with torch.no_grad():
            fast(torch.randn(2, 32), torch.randn(n, 32), torch.randn(32, 32))
    return found[-1]


def steps(
    source: HostSource, rows: list[int], parts: list[Any], halves: HostProgram | None = None
) -> tuple[list[str], list[torch.Size]]:
    """The kernels and library calls of a run on the CPU, whose kernels do nothing, and the shapes of its results.

    Args:
        halves: the program as a recording and a tail, if it is to run in this way.
    """
    called: list[str] = []

    def kernel(name: str) -> Any:
        return lambda *args: called.append(name) or 0

    def operator(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            called.append(name)
            return function(*args, **kwargs)

        return call

    names = namespace(source, {name: kernel(name) for name in source.kernels}, Library(-1), Results())
    names |= {name: operator(name, names[name]) for name in (*source.operators, *source.steps)}
    names |= {"empty_strided_gpu": names["empty_strided"], "current_stream": lambda device: 0}
    exec(source.text if halves is None else render(halves), names)
    arguments = [torch.randn(n, 32) for n in rows]
    if halves is not None:
        first, second = names["make"]()
        values = first(*arguments)
        called.append("tail")
        return called, [r.shape for r in second(values, *arguments) if isinstance(r, torch.Tensor)]

    def piece(part: Any) -> Any:
        def call(*args: Any) -> Any:
            parts.append(part.__name__)
            return part(*args)

        return call

    run = names["make"](piece) if "@piece" in source.text else names["make"]()
    results = run(*arguments)
    return called, [r.shape for r in results if isinstance(r, torch.Tensor)]


@pytest.mark.parametrize(
    ("fn", "rows", "count"),
    [(_growing, [2, 7, 32], 3), (_fixed, [2, 32], 0), (_too_short, [7, 32], 0), (_written, [2, 32, 7], 1)],
)
def test_parts(fn: Any, rows: list[int], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source = host(fn)
    assert source.text.count("@piece") == count
    for part in source.text.split("@piece")[1:]:
        body = part.split("@piece")[0].split("def run(")[0]
        assert not re.search(r"\ba\d+\.data_ptr\(\), stream\)|copy_\(", body), body
    parts: list[str] = []
    found = steps(source, rows, parts)
    assert parts == [f"part{k}" for k in range(count)]
    monkeypatch.setattr("intarsia.targets.host.host.split", lambda *_: [])
    whole = host(fn)
    assert "@piece" not in whole.text
    assert steps(whole, rows, []) == found
