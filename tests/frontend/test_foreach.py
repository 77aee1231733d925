"""Operators on lists of tensors are captured tensor by tensor."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import intarsia
from intarsia.frontend.functional.foreach import FOREACH
from intarsia.frontend.functional.trace import functionalize

SHAPES = ((4, 5), (7,), (1,), ())
NUMBERS = [1.5, 0.5, 2.0, 0.25]


def argument(kind: str, name: str, shift: float) -> Any:
    if kind == "List[Tensor]":
        return [torch.rand(shape) + shift for shape in SHAPES]
    if name == "scalars" and kind == "Tensor":
        return torch.tensor(NUMBERS)
    return {"number": 2.0, "List[number]": NUMBERS, "Tensor": torch.tensor(1.5)}[kind]


@pytest.mark.parametrize("func", FOREACH, ids=lambda f: f._schema.name[6:] + "." + f._schema.overload_name)
def test_the_rule_of_every_overload(func: Any) -> None:
    shift = -0.1 if any(word in str(func) for word in ("acos", "asin")) else 0.5
    wanted = [a for a in func._schema.arguments if not a.kwarg_only and str(a.type) in TAKEN]
    ours = [argument(str(a.type), a.name, shift if a.name == "self" else 0.5) for a in wanted]
    eager = copy.deepcopy(ours)
    named = {"alpha": 3} if "alpha" in [a.name for a in func._schema.arguments] else {}
    expected = func(*eager, **named)
    found = FOREACH[func](*ours, **named)
    if found is NotImplemented:
        assert isinstance(ours[-1], Tensor)  # numbers that are known in the call alone
        return
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours, eager)


TAKEN = ("List[Tensor]", "number", "List[number]", "Tensor")


def test_a_chain_is_one_kernel_a_tensor() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        graphs.append(functionalize(graph, inputs).graph_module.graph)
        return graph.forward

    def average(means: list[Tensor], values: list[Tensor]) -> None:
        torch._foreach_mul_(means, 0.9)
        torch._foreach_add_(means, values, alpha=0.1)
        torch._foreach_copy_(values, means)

    with torch.no_grad():
        intarsia.compile(average, fullgraph=True, backend=backend)(
            [torch.ones(3), torch.ones(2, 2)], [torch.ones(3), torch.ones(2, 2)]
        )
    names = [str(n.target) for n in graphs[0].nodes if n.op == "call_function"]
    assert sorted(set(names)) == ["aten.add.Tensor", "aten.mul.Tensor"] and len(names) == 4


def test_a_step_of_adam_over_lists() -> None:
    def step(
        params: list[Tensor], grads: list[Tensor], first: list[Tensor], second: list[Tensor], number: float
    ) -> Tensor:
        torch._foreach_lerp_(first, grads, 0.1)
        torch._foreach_mul_(second, 0.99)
        torch._foreach_addcmul_(second, grads, grads, 0.01)
        root = torch._foreach_sqrt(second)
        torch._foreach_div_(root, (1 - 0.99**number) ** 0.5)
        torch._foreach_add_(root, 1e-8)
        torch._foreach_addcdiv_(params, first, root, -0.1 / (1 - 0.9**number))
        return torch.stack(torch._foreach_norm(grads)).norm()

    ours = [[torch.rand(shape) for shape in SHAPES[:2]] for _ in range(4)]
    eager = copy.deepcopy(ours)
    with torch.no_grad():
        fast = intarsia.compile(step, fullgraph=True, options={"verify_each": True})
        for number in (1.0, 2.0):
            torch.testing.assert_close(fast(*ours, number), step(*eager, number))
            torch.testing.assert_close(ours, eager)
