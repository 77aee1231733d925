"""A captured graph whose results need gradients: its halves, as `training` splits it, each looked at as a graph of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx

from ..config import Config
from ..graph_compiler import GraphFunction, Report
from ..passes.core.base import Pass
from ..testing import Verdict, copied, same
from ..training import compile_training

# Is given a half with its example inputs, and gives the function that stands for it.
OfHalf = Callable[[fx.GraphModule, Sequence[Any], str], GraphFunction]


def compared_with_eager(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    values: Sequence[Any],
    config: Config,
    passes: Sequence[Pass | type[Pass]],
    of_half: OfHalf,
) -> Verdict:
    """Whether the halves, run as `of_half` says, give the results and gradients of the graph in eager.

    The results get gradients of random numbers, which are the same in both.

    Raises:
        Exception: what the graph raises in eager.
    """

    def compile_half(
        graph: fx.GraphModule, inputs: Sequence[Any], _: Config, __: Any, name: str
    ) -> tuple[GraphFunction, Report]:
        return of_half(graph, inputs, name), Report(half=name)

    wanted = _with_gradients(gm, values)
    gold = _golden(gm, values)
    made = compile_training(gm, example_inputs, config, tuple(passes), compile_half=compile_half)
    return same(wanted, _with_gradients(made, values), gold, name="")


def _with_gradients(function: Callable[..., Any], values: Sequence[Any], wide: bool = False) -> dict[str, Any]:
    """The results of a call with copies of the inputs, what the inputs are afterwards, and their gradients."""
    leaves = [_leaf(v) for v in copied(list(values), wide)]
    # A program may write to what it is given; autograd forbids that of leaves.
    given = [v.clone() if isinstance(v, Tensor) and v.requires_grad else v for v in leaves]
    torch.manual_seed(0)
    with torch.enable_grad():
        results = pytree.tree_leaves(function(*given))
    roots = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    inputs = [v for v in leaves if isinstance(v, Tensor) and v.requires_grad]
    torch.manual_seed(1)
    weights = [torch.randn(r.shape).to(r) for r in roots]
    found = torch.autograd.grad(roots, inputs, weights, allow_unused=True) if roots and inputs else ()
    plain = [r.detach() if isinstance(r, Tensor) else r for r in results]
    after = [v.detach() if isinstance(v, Tensor) else v for v in given]
    return {"result": plain, "input": after, "gradient": list(found)}


def _leaf(value: Any) -> Any:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _golden(gm: fx.GraphModule, values: Sequence[Any]) -> dict[str, Any] | None:
    """The same in float64; None where eager cannot."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _with_gradients(copy.deepcopy(gm).double(), values, wide=True)
    except Exception:  # float64 is a help, never a condition
        return None
    finally:
        torch.set_default_dtype(default)
