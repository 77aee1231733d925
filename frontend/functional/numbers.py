"""Numbers that are known only when the program runs (a learning rate): operators on them become operators on 0-dim tensors.

Eager computes with a Python number in the dtype of the tensors that it meets, in single precision at least. A 0-dim tensor
of that dtype is the same number, and does not raise the dtype of the result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..graph.sym_nodes import FUNCTIONS, applied
from ..torch_private.symbols import exact_of

__all__ = ["has_number", "with_tensors"]

aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)


def has_number(values: Any) -> bool:
    """Whether a symbolic float is among the arguments of an operator."""
    if isinstance(values, list | tuple):
        return any(map(has_number, values))
    if isinstance(values, dict):
        return any(map(has_number, values.values()))
    return isinstance(values, torch.SymFloat)


def with_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any) -> Any:
    """The same call with tensors for its symbolic floats, or NotImplemented; `expected` is what the call itself gives.

    Runs operators: to be called where these are recorded.
    """
    rule = _RULES.get(func)
    if rule is None or not isinstance(expected, Tensor):
        return NotImplemented
    tensors = [a for a in args if isinstance(a, Tensor)]
    if expected.dtype.is_complex or any(t.dtype.is_complex for t in tensors):
        return NotImplemented
    dtypes = [t.dtype for t in tensors if t.is_floating_point()] or [torch.get_default_dtype()]
    compute = torch.float64 if torch.float64 in dtypes else torch.float32

    def number(value: Any) -> Any:
        if isinstance(value, torch.SymFloat) and value.node.expr.is_number:
            value = exact_of(value)
        if isinstance(value, torch.SymFloat) and not value.node.expr.is_Symbol:
            return _computed(value.node.expr, value.node.shape_env).to(compute)
        if isinstance(value, torch.SymFloat | torch.SymInt | int | float):
            return aten.scalar_tensor.default(value, dtype=compute, device=expected.device)
        return value.to(compute) if isinstance(value, Tensor) and value.dtype in _HALVES else value

    try:
        result = rule(number, *args, **kwargs)
    except _NoTensor:
        return NotImplemented
    if not isinstance(result, Tensor):
        return NotImplemented
    if result.dtype != expected.dtype:
        result = result.to(expected.dtype)
    return result if result.shape == expected.shape else NotImplemented


class _NoTensor(Exception):
    """An expression that no operator computes."""


def _computed(expr: Any, shape_env: Any) -> Tensor:
    """Arithmetic of floats over sizes, on 0-dim tensors of float64, which are Python's floats."""
    if expr.is_Symbol and not expr.is_integer:
        hint = float(shape_env.backed_var_to_val[expr])
        given = shape_env.create_symfloatnode(expr, hint=hint)
        return aten.scalar_tensor.default(given, dtype=torch.float64)  # type: ignore[no-any-return]
    if expr.is_number:
        return aten.scalar_tensor.default(float(expr), dtype=torch.float64)  # type: ignore[no-any-return]
    if expr.is_integer:
        size = shape_env.create_symintnode(expr, hint=int(expr.xreplace(shape_env.backed_var_to_val)))
        return aten.scalar_tensor.default(size, dtype=torch.float64)  # type: ignore[no-any-return]
    _, function = FUNCTIONS.get(type(expr).__name__, (None, None))
    if function is None:
        raise _NoTensor
    return applied(function, [_computed(a, shape_env) for a in expr.args], lambda f, *xs: f(*xs))  # type: ignore[no-any-return]


Number = Callable[[Any], Any]


def _binary(tensor_overload: Any) -> Callable[..., Any]:
    def rule(t: Number, x: Any, y: Any) -> Any:
        return tensor_overload(t(x), t(y))

    return rule


def _with_alpha(combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def rule(t: Number, x: Any, y: Any, alpha: Any = 1) -> Any:
        return combine(t(x), t(y) if type(alpha) is int and alpha == 1 else t(y) * t(alpha))

    return rule


_SUB = _with_alpha(operator.sub)


def _clamp(t: Number, x: Any, low: Any = None, high: Any = None) -> Any:
    return aten.clamp.Tensor(t(x), None if low is None else t(low), None if high is None else t(high))


def _full(t: Number, size: Any, value: Any, **kwargs: Any) -> Any:
    made = t(value).to(kwargs.get("dtype") or torch.get_default_dtype())
    return made.expand(size).clone(memory_format=torch.contiguous_format)


def _full_like(t: Number, x: Any, value: Any, **kwargs: Any) -> Any:
    if kwargs.get("memory_format") not in (None, torch.preserve_format) or kwargs.get("dtype"):
        return NotImplemented
    return aten.where.self(aten.zeros_like.default(x, dtype=torch.bool), x, t(value).to(x.dtype))


def _where(t: Number, condition: Any, x: Any, y: Any) -> Any:
    return aten.where.self(condition, t(x), t(y))


_RULES: dict[Any, Callable[..., Any]] = {
    aten.mul.Tensor: _binary(aten.mul.Tensor),
    aten.div.Tensor: _binary(aten.div.Tensor),
    aten.add.Tensor: _with_alpha(operator.add),
    aten.sub.Tensor: _SUB,
    aten.rsub.Scalar: lambda t, x, y, alpha=1: _SUB(t, y, x, alpha),
    aten.pow.Tensor_Scalar: _binary(aten.pow.Tensor_Tensor),
    aten.pow.Scalar: _binary(aten.pow.Tensor_Tensor),
    aten.addcmul.default: lambda t, x, a, b, value=1: t(x) + t(value) * t(a) * t(b),
    aten.addcdiv.default: lambda t, x, a, b, value=1: t(x) + t(value) * t(a) / t(b),
    aten.lerp.Scalar: lambda t, x, y, w: aten.lerp.Tensor(t(x), t(y), t(w)),
    aten.clamp.default: _clamp,
    aten.clamp_min.default: lambda t, x, low: _clamp(t, x, low),
    aten.clamp_max.default: lambda t, x, high: _clamp(t, x, None, high),
    aten.full.default: _full,
    aten.full_like.default: _full_like,
    aten.where.ScalarOther: _where,
    aten.where.ScalarSelf: _where,
    aten.masked_fill.Scalar: lambda t, x, mask, value: aten.where.self(mask, t(value), t(x)),
    aten.leaky_relu.default: lambda t, x, slope=0.01: aten.where.self(t(x) > 0, t(x), t(x) * t(slope)),
    **{
        getattr(aten, name).Scalar: _binary(getattr(aten, name).Tensor) for name in ("lt", "le", "gt", "ge", "eq", "ne")
    },
}
