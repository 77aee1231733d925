"""FX → IR: what is imported runs in the interpreter and gives eager's answers, aliases and mutations."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from intarsia.frontend.functional.trace import functionalize
from intarsia.ir.fx.importer import Imported, ImportFailure, import_fx, user_line
from intarsia.ir.fx.sizes import _joined
from intarsia.ir.interpreter.run import main_function, run_user
from intarsia.ir.syntax import location_of
from intarsia.ir.text import parse_module, print_module


def fake(x: Tensor, mode: FakeTensorMode, name: str, dynamic: tuple[int, ...]) -> Tensor:
    dims = [DimDynamic.DUCK if d in dynamic else DimDynamic.STATIC for d in range(x.dim())]
    return mode.from_tensor(x, symbolic_context=StatelessSymbolicContext(dims), source=ConstantSource(name))


def imported(fn: Callable[..., Any], *inputs: Tensor, dynamic: tuple[int, ...] = ()) -> Imported:
    """The module of a function, with these dimensions of all inputs symbolic; its text is checked on the way."""
    mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None)
    given = [fake(x, mode, f"x{i}", dynamic) if dynamic else mode.from_tensor(x) for i, x in enumerate(inputs)]
    found = import_fx(functionalize(fx.symbolic_trace(fn), given))
    found.module.verify()
    text = print_module(found.module)
    assert print_module(parse_module(text)) == text
    return found


def check(
    fn: Callable[..., Any], *inputs: Tensor, dynamic: tuple[int, ...] = (), other: tuple[Tensor, ...] = ()
) -> str:
    """Compare with eager on copies of the inputs, and on `other` inputs; the module's text."""
    found = imported(fn, *inputs, dynamic=dynamic)
    for arguments in (inputs, other) if other else (inputs,):
        ours, eagers = (
            [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) for x in arguments] for _ in "ab"
        )
        wanted = pytree.tree_leaves(fn(*eagers))
        results = run_user(found.module, [*ours, *found.constants])
        assert len(results) == len(wanted)
        for a, b in zip((*results, *ours), (*wanted, *eagers), strict=True):
            assert type(a) is type(b)
            if isinstance(a, Tensor):
                torch.testing.assert_close(a, b, equal_nan=True)
                assert a.stride() == b.stride()
            else:
                assert a == b
        assert aliases((*results, *ours)) == aliases((*wanted, *eagers))
    return print_module(found.module)


def aliases(values: Any) -> list[list[bool]]:
    keys = [v.untyped_storage().data_ptr() if isinstance(v, Tensor) else i for i, v in enumerate(values)]
    return [[a == b for b in keys] for a in keys]


def test_one_call() -> None:
    text = check(lambda x, y: torch.addmm(x, y, y, beta=2), torch.randn(3, 3), torch.randn(3, 3))
    assert 'aten.addmm.default(%0, %1, %1) {operands = ["self", "mat1", "mat2"], beta = 2, alpha = 1}' in text


def test_several_results_and_strides() -> None:
    def fn(x: Tensor) -> Any:
        parts, largest = x.t().split(2), torch.max(x.t(), 1)
        return parts[0], parts[2], largest[0], largest[1]

    text = check(fn, torch.randn(4, 6))
    assert '["alias", 0, [2, 4], [1, 6], 4]' in text and "operand_strides = [[1, 6]]" in text


def test_lists_of_tensors() -> None:
    text = check(lambda x, i: (torch.cat([x, x]), x[:, i]), torch.randn(3, 4), torch.tensor([1, 0]))
    assert '["tensors.0", "tensors.1"]' in text and '["self", "indices.1"]' in text


def test_mutations_and_aliases() -> None:
    def fn(x: Tensor, y: Tensor) -> Any:
        x.add_(1)
        y[0].mul_(2)
        z = x * y
        return z, z.t(), x, y[1], None, x.shape[0], z[0]

    text = check(fn, torch.randn(3, 3), torch.randn(3, 3))
    assert '["input", 0]' in text and '["alias", 1, [3], [1], 3]' in text and '["constant", 3]' in text


def test_channels_last() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    text = check(lambda x: (x + 1, x.contiguous(), x.permute(0, 2, 3, 1)), x)
    assert "arg_strides = [[60, 1, 15, 3]]" in text and "torch.contiguous_format" in text


def test_symbolic_sizes() -> None:
    def fn(x: Tensor) -> Any:
        n = x.shape[0]
        return x.reshape(n * 2, -1), x.new_zeros(n // 3, n % 3), x.sum() / n, x.flatten(), n * 4 + 1

    text = check(fn, torch.randn(5, 4), dynamic=(0,), other=(torch.randn(8, 4),))
    name = text.split('symbols = [["')[1].split('"')[0]
    assert f"FloorDiv({name}, 3)" in text and f"Mod({name}, 3)" in text and f'["size", 4*{name} + 1]' in text


def test_symbolic_strides() -> None:
    check(
        lambda x, y: (torch.cat([x, y], 1).transpose(0, 1), x[1:, ::2] + 1, x.repeat(2, 3)),
        torch.randn(4, 6),
        torch.randn(4, 6),
        dynamic=(0, 1),
        other=(torch.randn(3, 7), torch.randn(3, 7)),
    )


def test_random_operators_have_an_effect() -> None:
    text = print_module(imported(lambda x: torch.rand_like(x) + x, torch.randn(3)).module)
    assert "effect = true" in text


def test_constants_become_arguments() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.arange(6.0).reshape(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.table + torch.tensor(2.0)

    model = Model()
    mode = FakeTensorMode()
    x = torch.randn(4, 2)
    found = import_fx(functionalize(fx.symbolic_trace(model), [mode.from_tensor(x)]))
    torch.testing.assert_close(run_user(found.module, [x, *found.constants])[0], model(x))
    assert all(main_function(found.module)["arg_static"][1:])


def test_arguments_keep_their_names() -> None:
    gm = fx.symbolic_trace(lambda a, b: a + b)
    graph = functionalize(gm, [torch.randn(2), torch.randn(2)])
    first = next(iter(graph.graph_module.graph.nodes))
    first.meta |= {"source_name": "self.layer.weight", "static_input": True}
    func = main_function(import_fx(graph).module)
    assert func["arg_names"] == ("self.layer.weight", "b") and func["arg_static"] == (True, False)


def test_locations() -> None:
    trace = (
        '  File "/home/me/model.py", line 7, in forward\n    y = f(x)\n'
        + f'  File "{torch.__file__}", line 3, in f\n    x\n'
    )
    place = user_line(trace)
    assert place is not None and (place.filename.data, place.line.data) == ("/home/me/model.py", 7)
    assert user_line(None) is None and user_line("nonsense") is None
    graph = functionalize(fx.symbolic_trace(lambda x: torch.neg(x)), [torch.randn(2)])
    for node in graph.graph_module.graph.nodes:
        node.meta["stack_trace"] = trace
    op = next(o for o in import_fx(graph).module.walk() if o.name == "aten.neg.default")
    assert location_of(op) == ("/home/me/model.py", 7)


def plain(fn: Callable[..., Any], *vals: Any, outputs: Any = (("value", 0),)) -> SimpleNamespace:
    """A hand-made functional graph of one call."""
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(len(vals))]
    call = graph.call_function(fn, tuple(nodes))
    graph.output((call,))
    for node, val in zip(nodes, vals, strict=True):
        node.meta["val"] = val
    call.meta |= {"val": vals[0], "stack_trace": 'File "user.py", line 9, in f\n'}
    return SimpleNamespace(graph_module=fx.GraphModule({}, graph), outputs=outputs, mutations=())


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            plain(torch.ops.aten.neg.default, torch.zeros(2, dtype=torch.float8_e8m0fnu)),
            "float8_e8m0fnu is not supported",
        ),
        (plain(torch.ops.aten.neg.default, torch.zeros(2).to_sparse()), "layout torch.sparse_coo is not supported"),
        (plain(torch.neg, torch.zeros(2)), r"is not a registered operator \(user.py:9\)"),
        (
            plain(torch.ops.aten.neg.default, torch.zeros(2), outputs=(SimpleNamespace(kind="gift"),)),
            "kind 'gift' is not supported",
        ),
    ],
    ids=["dtype", "layout", "function", "result"],
)
def test_what_cannot_be_imported(graph: SimpleNamespace, message: str) -> None:
    with pytest.raises(ImportFailure, match=message):
        import_fx(graph)


def test_numbers_from_tensors_are_refused() -> None:
    graph = plain(torch.ops.aten.item.default, torch.zeros(()))
    call = next(n for n in graph.graph_module.graph.nodes if n.op == "call_function")
    call.meta["val"] = 1.0
    with pytest.raises(ImportFailure, match=r"makes a number from a tensor's values \(user.py:9\)"):
        import_fx(graph)


def test_equal_or_less_is_one_relation():
    a, b, c = sympy.symbols("a b c", integer=True)
    for less in (a < b, b < a, b > a):
        assert _joined(sympy.Or(sympy.Eq(a, b), less, evaluate=False)) == sympy.Le(less.lts, less.gts)
    for other in (sympy.Or(sympy.Eq(a, b), a < c), sympy.Or(a < b, b < c), sympy.Or(sympy.Ne(a, b), a < c), a < b):
        assert _joined(other) is other
