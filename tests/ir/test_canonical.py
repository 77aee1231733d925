"""Calls of ATen operators have one form: import brings them to it, and the verifier takes no other."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from xdsl.utils.exceptions import VerifyException

from intarsia.frontend.functional.trace import functionalize
from intarsia.ir.dialects.aten import AtenOp
from intarsia.ir.fx.importer import import_fx
from intarsia.ir.interpreter.run import run_user
from intarsia.ir.text import parse_module, print_module

x = torch.randn(2, 3, 8, 8)
w = torch.randn(4, 3, 3, 3)
line = torch.randn(2, 3, 9)
box = torch.randn(1, 2, 5, 5, 5)


def calls(fn: Callable[..., Any], *inputs: Tensor) -> dict[str, AtenOp]:
    """The ATen operations of a function by name; the module verifies, and gives eager's answer."""
    graph = torch.fx.symbolic_trace(fn)
    mode = torch._subclasses.FakeTensorMode()
    found = import_fx(functionalize(graph, [mode.from_tensor(i) for i in inputs]))
    found.module.verify()
    text = print_module(found.module)
    assert print_module(parse_module(text)) == text
    results = run_user(found.module, [*(i.clone() for i in inputs), *found.constants])
    torch.testing.assert_close(results[0], fn(*inputs), equal_nan=True)
    return {op.name: op for op in found.module.walk() if isinstance(op, AtenOp)}


WINDOWS: list[tuple[Callable[..., Any], tuple[Tensor, ...], str, dict[str, Any]]] = [
    (lambda a, b: F.conv2d(a, b, padding="valid"), (x, w), "convolution.default", {"padding": (0, 0)}),
    (lambda a, b: F.conv2d(a, b, padding="same"), (x, w), "convolution.default", {"padding": (1, 1)}),
    (
        lambda a, b: F.conv2d(a, b, stride=[2], padding=[1], dilation=(2,)),
        (x, w),
        "convolution.default",
        {"stride": (2, 2), "padding": (1, 1), "dilation": (2, 2), "output_padding": (0, 0)},
    ),
    (
        lambda a: F.conv_transpose2d(a, torch.ones(3, 2, 3, 3), stride=[2], output_padding=[1], padding=[1]),
        (x,),
        "convolution.default",
        {"stride": (2, 2), "output_padding": (1, 1)},
    ),
    (lambda a: F.conv1d(a, torch.ones(2, 3, 2), stride=2), (line,), "convolution.default", {"stride": (2,)}),
    (
        lambda a: F.conv3d(a, torch.ones(2, 2, 2, 2, 2), padding=[1]),
        (box,),
        "convolution.default",
        {"padding": (1,) * 3},
    ),
    (
        lambda a: F.max_pool2d(a, [2]),
        (x,),
        "max_pool2d_with_indices.default",
        {"kernel_size": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "ceil_mode": False},
    ),
    (lambda a: F.max_pool3d(a, 2, padding=[1]), (box,), "max_pool3d_with_indices.default", {"padding": (1,) * 3}),
    (
        lambda a: F.avg_pool2d(a, (3,), padding=(1,)),
        (x,),
        "avg_pool2d.default",
        {"kernel_size": (3, 3), "stride": (3, 3), "padding": (1, 1), "count_include_pad": True},
    ),
    (lambda a: F.unfold(a, 2), (x,), "im2col.default", {"kernel_size": (2, 2), "padding": (0, 0)}),
    (lambda a: F.lp_pool2d(a, 2, (2, 2)), (x,), "avg_pool2d.default", {"stride": (2, 2)}),
]


@pytest.mark.parametrize(("fn", "inputs", "name", "wanted"), WINDOWS)
def test_lists_of_windows(
    fn: Callable[..., Any], inputs: tuple[Tensor, ...], name: str, wanted: dict[str, Any]
) -> None:
    op = calls(fn, *inputs)[f"aten.{name}"]
    assert {k: op[k] for k in wanted} == wanted


def test_dimensions_count_from_the_front() -> None:
    def fn(a: Tensor) -> Tensor:
        b = a.unsqueeze(-1).squeeze(-1).transpose(-1, -3).sum(dim=[-1, 1], keepdim=True).softmax(-4)
        c = torch.stack([a, a], -1).select(-1, 1).flip([-1]).cumsum(-2).unfold(-2, 2, 2)
        return b.sum() + torch.cat([c, c], -2).diagonal(0, -1, 1).sum(-1)

    for op in calls(fn, x).values():
        for name in ("dim", "dims", "dim0", "dim1", "dim2", "dimension"):
            value = op.get(name)
            if value is not None:
                assert all(d >= 0 for d in (value if isinstance(value, tuple) else (value,))), (op.name, name, value)


def test_dtypes_and_defaults() -> None:
    found = calls(lambda a: torch.arange(a.size(-1)) + a.sum(-1) + torch.zeros(a.size(-1)) + (a > 0).sum(-1), x)
    assert found["aten.arange.default"]["dtype"] == torch.int64
    assert found["aten.zeros.default"]["dtype"] == torch.float32
    assert found["aten.sum.dim_IntList"]["dtype"] == torch.int64
    assert found["aten.sum.dim_IntList"]["keepdim"] is False
    assert not any(value is None for op in found.values() for value in op.literals.values())


def test_a_norm_over_all_keeps_its_dimension() -> None:
    calls(lambda a: torch.norm_except_dim(a, 2, -1), w)


def test_a_zero_dimensional_tensor() -> None:
    calls(lambda a: a.sum().cumsum(-1).softmax(-1).unsqueeze(-1), x)


def test_lists_written_in_any_way_are_one_call() -> None:
    """Random ways to write the same window: as a number, a list of one, or one number a dimension."""
    rng = random.Random(0)
    for _ in range(12):
        ways = [rng.choice([n, [n], (n, n)]) for n in (rng.randint(1, 2), rng.randint(0, 1), rng.randint(1, 2))]
        stride, padding, dilation = ways

        def convolved(a: Tensor, b: Tensor) -> Tensor:
            return F.conv2d(a, b, None, stride, padding, dilation)  # noqa: B023

        found = calls(convolved, x, w)["aten.convolution.default"]
        same = [(n, n) if isinstance(n, int) else tuple(n) * (2 // len(n)) for n in ways]
        assert [found[k] for k in ("stride", "padding", "dilation")] == same


TEXT = """
prim.func @main() {{symbols = []}} ({{
^bb0(%x: !prim.tensor<[2, 3, 8, 8], f32>, %w: !prim.tensor<[4, 3, 3, 3], f32>):
  %0 = {call}
  prim.return(%0)
}})
"""
CONV = '(%x, %w) {operands = ["input", "weight"], stride = [1, 1], padding = [0, 0], dilation = [1, 1], transposed = false, output_padding = [0, 0], groups = 1} : !prim.tensor<[2, 4, 6, 6], f32>'
SUM = 'aten.sum.dim_IntList(%x) {operands = ["self"], dim = [3], keepdim = false, dtype = torch.float32} : !prim.tensor<[2, 3, 8], f32>'
WRONG = [
    (CONV.replace("padding = [0, 0], d", "padding = [0], d"), "padding = [0] is not canonical; write [0, 0]"),
    (CONV.replace("stride = [1, 1]", "stride = [1]"), "stride = [1] is not canonical; write [1, 1]"),
    (CONV.replace("dilation = [1, 1], ", ""), "the argument 'dilation' is missing"),
]


@pytest.mark.parametrize("head", ["aten.convolution.default", "kernel.extern<aten.convolution.default>"])
@pytest.mark.parametrize(("call", "message"), WRONG)
def test_calls_and_library_calls_are_checked(head: str, call: str, message: str) -> None:
    parse_module(TEXT.format(call=head + CONV)).verify()
    with pytest.raises(VerifyException) as error:
        parse_module(TEXT.format(call=head + call)).verify()
    assert f"aten.convolution.default: {message}" in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (SUM.replace("[3]", "[-1]", 1), "dim = [-1] is not canonical; write [3]"),
        (SUM.replace(", dtype = torch.float32", ""), "the argument 'dtype' is missing; here it is torch.float32"),
        (SUM.replace("keepdim = false", "keepdim = false, keep_dim = true"), "has no argument 'keep_dim'; did you mean 'keepdim'?"),
        (SUM.replace('"self"', '"sefl"'), "has no argument 'sefl' for a tensor; did you mean 'self'?"),
        (
            'aten._to_copy.default(%x) {operands = ["self"], dtype = torch.float32, non_blocking = false} : !prim.tensor<[2, 3, 8, 8], f32, "cuda:0">',
            "the argument 'device' is missing; here it is device(\"cuda:0\")",
        ),
        ("aten.convolution.default" + CONV.replace("groups", "bias = none, groups"), "bias = none is not canonical; leave it out"),
        (
            'aten.conv2d.padding(%x, %w) {operands = ["input", "weight"], stride = [1, 1], padding = "same", dilation = [1, 1], groups = 1}'
            " : !prim.tensor<[2, 4, 8, 8], f32>",
            'padding = "same" is a name; write aten.convolution.default with numbers',
        ),
    ],
)  # fmt: skip
def test_what_is_not_canonical_is_refused(call: str, message: str) -> None:
    parse_module(TEXT.format(call=SUM)).verify()
    with pytest.raises(VerifyException) as error:
        parse_module(TEXT.format(call=call)).verify()
    assert message in str(error.value)


def test_all_ways_of_one_entry_in_compiled_code() -> None:
    """What a program writes as one number reaches kernels as one a dimension."""
    import intarsia

    nets = [
        torch.nn.Conv2d(16, 16, 3, stride=[s], padding=p, dilation=[d]).eval()
        for s, p, d in itertools.product((1, 2), ([1], "valid"), (1, 2))
    ]
    nets += [torch.nn.Conv2d(16, 16, 3, padding=(1,), groups=16).eval(), torch.nn.Conv2d(16, 32, 1, stride=(2,)).eval()]
    image = torch.randn(2, 16, 12, 12)

    def program(image: Tensor) -> list[Tensor]:
        return [net(image) for net in nets]

    with torch.no_grad():
        for a, b in zip(intarsia.compile(program)(image), program(image), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
