"""`torch.cov` and `torch.corrcoef` as the operators that they consist of: what eager asks of weights are checks of the graph here."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

from ..calls.registry import Rows
from ..calls.torch_calls import torch_call
from ..errors import GraphBreak
from ..state import Interpreter
from ..torch_private.fake import is_fake
from ..torch_private.symbols import hint_of
from ..values.tensor import tensor_class

__all__ = ["METHODS", "ROWS"]

ROWS = Rows()


def _is_plain(vm: Interpreter, given: Any, correction: Any, fweights: Any, aweights: Any) -> bool:
    """Whether eager refuses nothing of a call but by values of weights, and divides by more than nothing where there are none."""
    plain = [t for t in (given, fweights, aweights) if t is not None]
    if not all(
        is_fake(t) and tensor_class(vm, t) in (Tensor, torch.nn.Parameter) and t.layout is torch.strided for t in plain
    ):
        return False
    if (
        given.dim() > 2
        or given.dtype is torch.bool
        or type(correction) not in (int, torch.SymInt)
        or len({t.device for t in plain}) > 1
    ):
        return False
    if any(hint_of(n) is None for n in given.shape):
        return False
    count = given.shape[-1] if given.dim() else 1
    for weights, floats in ((fweights, False), (aweights, True)):
        if weights is not None and (weights.dim() > 1 or weights.numel() != count or count == 0):
            return False
        if weights is not None and (weights.is_floating_point() is not floats or weights.is_complex()):
            return False
        if weights is not None and weights.dtype is torch.bool:
            return False
    return len(plain) > 1 or bool(count - correction > 0)


def _cov(vm: Interpreter, given: Any, *, correction: Any = 1, fweights: Any = None, aweights: Any = None) -> Any:
    if not _is_plain(vm, given, correction, fweights, aweights):
        return torch_call(
            vm, torch.cov, (given,), {"correction": correction, "fweights": fweights, "aweights": aweights}
        )

    def call(function: Any, *args: Any) -> Any:
        return vm.call(function, args, {})

    def expect(condition: Any) -> None:
        if not vm.checks.expect(vm, condition, True):
            raise GraphBreak("the result of cov depends on a tensor's values")

    rows = call(torch.reshape, given, (1, -1)) if given.dim() < 2 else given
    weights = [w for w in (fweights, aweights) if w is not None]
    for each in weights:
        expect(call(torch.all, call(torch.ge, each, 0)))
    count: Any = rows.shape[1]
    w = None
    if weights:
        w = weights[0] if len(weights) == 1 else call(operator.mul, *weights)
        count = call(torch.sum, w)
        expect(call(torch.ne, count, 0))
    mean = call(operator.truediv, call(torch.sum, rows if w is None else call(operator.mul, rows, w), 1), count)
    if aweights is not None and correction != 0:
        share = call(operator.truediv, call(torch.sum, call(operator.mul, w, aweights)), count)
        factor = call(operator.sub, count, call(operator.mul, share, correction))
    else:
        factor = call(operator.sub, count, correction)
    if weights:
        expect(call(torch.gt, factor, 0))
    apart = call(operator.sub, rows, call(torch.unsqueeze, mean, 1))
    other = apart if w is None else call(operator.mul, apart, w)
    other = call(torch.t, other)
    product = call(torch.mm, apart, call(torch.conj, other) if other.is_complex() else other)
    return call(torch.squeeze, call(operator.truediv, product, factor))


def _corrcoef(vm: Interpreter, given: Any) -> Any:
    if not _is_plain(vm, given, 1, None, None) or given.is_complex():
        return torch_call(vm, torch.corrcoef, (given,), {})
    found = _cov(vm, given)
    if found.dim() == 0:
        return vm.call(operator.truediv, (found, found), {})
    deviation = vm.call(torch.sqrt, (vm.call(torch.diagonal, (found,), {}),), {})
    for dim in (1, 0):
        found = vm.call(operator.truediv, (found, vm.call(torch.unsqueeze, (deviation, dim), {})), {})
    return vm.call(torch.clamp, (found, -1, 1), {})


METHODS = {"cov": _cov, "corrcoef": _corrcoef}


def _row(rule: Any, function: Any) -> Any:
    def apply(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
        kwargs = {"given" if k == "input" else k: v for k, v in kwargs.items()}
        if len(args) + ("given" in kwargs) != 1 or not kwargs.keys() <= {"given", "correction", "fweights", "aweights"}:
            return torch_call(vm, function, args, kwargs)
        return rule(vm, *args, **kwargs)

    return apply


ROWS.rule(torch.cov)(_row(_cov, torch.cov))
ROWS.rule(torch.corrcoef)(_row(_corrcoef, torch.corrcoef))
