"""Memory that a library call's result shares with its operand is neither overwritten nor given away while either is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from xdsl.dialects.builtin import ModuleOp

from intarsia.frontend.functional.trace import functionalize
from intarsia.ir.dialects import kernel, prim
from intarsia.ir.dialects.aten import may_share, shares, writes_to
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.interpreter.run import InterpreterError, run
from intarsia.ir.text import parse_module
from intarsia.passes.analysis import aliases
from intarsia.passes.analysis.aliases import Aliases
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.run import run_pipeline
from intarsia.passes.pipeline import default_pipeline

a = torch.randn(6, 4) * 0.3
w = torch.randn(6, 3)


def distances(view: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A kernel reads a product and a view of it, and its result could take the product's place."""

    def program(a: Tensor, w: Tensor) -> Tensor:
        k = a @ a.t() + 0.1
        d = view(k)
        return torch.exp(2 * k - d[:, None] - d[None]) @ w

    return program


def chained(a: Tensor, w: Tensor) -> Tensor:
    """The first view dies, a view of the view lives on; other values look for a place meanwhile."""
    k = a @ a.t() + 0.1
    d = k.as_strided((6, 6), (1, 6)).diagonal()
    y = torch.exp(k * 2) @ w
    z = torch.tanh(y @ w.t()) @ w
    return z * d[:, None] + y


def unfolded(a: Tensor, w: Tensor) -> Tensor:
    k = torch.sigmoid(a @ a.t())
    windows = k.unfold(0, 3, 1)
    return torch.exp(k[:4] @ w) + windows.sum(1)[:, :3] + windows.amax(-1)[:, 3:]


def several(a: Tensor, w: Tensor) -> Tensor:
    """Two reads of the same value in one kernel, one of them through a reshape that is a library call for the layout."""
    k = torch.tanh(a @ a.t())
    d = k.diagonal(1)
    e = k.diagonal(-1)
    return (k * 3 + 1)[:5, :5] @ (k[1:, 1:] * d[:, None] - e)


PROGRAMS = {
    "diagonal": distances(lambda k: k.diagonal()),
    "as_strided": distances(lambda k: k.as_strided((6,), (7,))),
    "unfold": distances(lambda k: k.unfold(0, 2, 5)[0].sum(-1)),
    "chained": chained,
    "unfolded": unfolded,
    "several": several,
}


def lowered(program: Callable[..., Any], *inputs: Tensor) -> ModuleOp:
    """The program at the `buffer` level."""
    mode = FakeTensorMode()
    imported = import_fx(functionalize(torch.fx.symbolic_trace(program), [mode.from_tensor(x) for x in inputs]))
    run_pipeline(CompileContext(), imported.module, default_pipeline(), verify_each=True)
    return imported.module


@pytest.mark.parametrize("name", PROGRAMS)
def test_in_place_results_and_views(name: str) -> None:
    module = lowered(PROGRAMS[name], a, w)
    torch.testing.assert_close(run(module, [a, w])[0], PROGRAMS[name](a, w))


def test_a_plan_that_looks_at_operands_alone_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter finds a place that was given away, for the reason it gives, not by a tolerance."""
    monkeypatch.setattr(Aliases, "counts", lambda self, values: Counter(values))
    with pytest.raises(InterpreterError, match="overwrites in another place|given to another one"):
        run(lowered(PROGRAMS["diagonal"], a, w), [a, w])


def test_a_plan_that_forgets_library_views_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    known = aliases.shared_operands

    def forgetful(op: Any, result: Any) -> Any:
        return () if isinstance(op, kernel.Extern) else known(op, result)

    monkeypatch.setattr(aliases, "shared_operands", forgetful)
    with pytest.raises(InterpreterError, match="overwrites in another place|given to another one"):
        run(lowered(chained, a, w), [a, w])


def call(target: str, operands: str, results: int, arguments: int = 1) -> kernel.Extern:
    kinds = ", ".join(["!prim.tensor<[4, 4], f32>"] * results)
    names = ", ".join(f"%r{k}" for k in range(results))
    given = ", ".join(f"%x{k}" for k in range(arguments))
    args = ", ".join(f"%x{k}: !prim.tensor<[4, 4], f32>" for k in range(arguments))
    text = f"prim.func @main() {{symbols = []}} ({{\n^bb0({args}):\n  {names} = kernel.extern<{target}>({given}) {{operands = {operands}}} : {kinds}\n  prim.return(%r0)\n}})"
    (func,) = (op for op in parse_module(text).walk() if isinstance(op, prim.Func))
    return next(op for op in func.block_body.ops if isinstance(op, kernel.Extern))


def test_schemas_say_who_shares() -> None:
    assert may_share(call("aten.diagonal.default", '["self"]', 1)) == [(0,)]
    assert may_share(call("aten.split.Tensor", '["self"]', 3)) == [(0,), (0,), (0,)]
    assert may_share(call("aten.mm.default", '["self", "mat2"]', 1, 2)) == [()]
    assert may_share(call("aten.unsafe_split.Tensor", '["self"]', 2)) == [(0,), (0,)]
    assert may_share(call("aten._unsafe_view.default", '["self"]', 1)) == [(0,)]
    assert writes_to(call("aten.index_put_.default", '["self", "indices.0", "values"]', 1, 3)) == [0]


def test_results_of_one_call_that_are_views_of_different_operands() -> None:
    library = torch.library.Library("aliases_test", "DEF")
    library.define("both(Tensor(a) x, Tensor(b) y) -> (Tensor(b), Tensor(a), Tensor)")
    library.define("either(Tensor(a) x, Tensor(a) y) -> Tensor(a)")
    both = call("aten.ops.aliases_test.both.default", '["x", "y"]', 3, 2)
    assert may_share(both) == [(1,), (0,), ()]
    either = call("aten.ops.aliases_test.either.default", '["x", "y"]', 1, 2)
    found = Aliases.of(either.parent)  # type: ignore[arg-type]
    assert found.roots(either.results[0]) == tuple(either.operands)
    assert found.last_uses(either.parent) == dict.fromkeys(either.operands, 1)  # type: ignore[arg-type]


def test_the_list_of_hidden_views_is_short() -> None:
    assert shares("aten.clone.default") == ((),)
    assert shares("aten.max_pool2d_with_indices.default") == ((), ())
