"""Operators on lists of tensors (`torch._foreach_*`), tensor by tensor, so that what follows one another joins in one kernel for each tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..torch_private.functions import OpOverload
from ..values.kinds import isinstance

aten = torch.ops.aten

_UNARY = """abs acos asin atan ceil clone cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 max neg reciprocal round rsqrt sigmoid
sign sin sinh sqrt tan tanh trunc zero"""
_OTHERS = "add addcdiv addcmul clamp_max clamp_min copy div lerp maximum minimum mul norm pow sub"
_CLAMPS = {"maximum": "clamp_min", "minimum": "clamp_max"}  # `maximum` takes no number, and writes to nothing
_NAMED = {"alpha": "alpha", "value": "value", "dtype": "dtype", "memory_format": "memory_format"}


def _each(stem: str, func: OpOverload) -> Callable[..., Any]:
    """The rule of one overload. Numbers that are elements of a tensor leave it to the library."""
    schema = func._schema
    written = schema.name.endswith("_")
    names = [a.name for a in schema.arguments[1:]]
    named = {**_NAMED, "scalars": "value"} if stem in ("addcdiv", "addcmul") else _NAMED
    tensors = all("Tensor" in str(a.type) for a in schema.arguments[1:])
    name = (stem if tensors and not written else _CLAMPS.get(stem, stem)) + ("_" if written else "")

    def run(self: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        if isinstance(given.get("scalars"), Tensor):
            return NotImplemented
        found = []
        for i, x in enumerate(self):
            one = {k: v[i] if isinstance(v, list | tuple) else v for k, v in given.items()}
            plain = [v for k, v in one.items() if k not in named]
            found.append(_call(x, name, plain, {named[k]: v for k, v in one.items() if k in named}))
        return None if written else found

    return run


def _call(x: Tensor, name: str, plain: Sequence[Any], named: dict[str, Any]) -> Tensor:
    if name == "norm":
        return torch.linalg.vector_norm(x, *plain, **named)  # type: ignore[no-any-return]
    return getattr(x, name)(*plain, **named)  # type: ignore[no-any-return]


def _rules() -> Iterator[tuple[OpOverload, Callable[..., Any]]]:
    for stem in (*_UNARY.split(), *_OTHERS.split()):
        for name in (f"_foreach_{stem}", f"_foreach_{stem}_"):
            packet = getattr(aten, name, None)
            for overload in packet.overloads() if packet is not None else ():
                func = getattr(packet, overload)
                of_lists = str(func._schema.arguments[0].type) == "List[Tensor]"
                if of_lists and not any(a.is_out for a in func._schema.arguments) and name not in _UNUSED:
                    yield func, _each(stem, func)


_UNUSED = ("_foreach_zero", "_foreach_copy")  # nothing calls these: their results are their operands' copies


FOREACH: dict[OpOverload, Callable[..., Any]] = dict(_rules())


# ---- scaled gradients ----


def _unscale(self: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """Divide gradients by their scale in place, and note in `found_inf` whether one is not finite."""
    for gradient in self:
        bad = torch.logical_not(torch.isfinite(gradient)).any()
        found_inf.copy_(torch.where(bad, torch.ones_like(found_inf), found_inf))
        gradient.mul_(inv_scale)


def _update_scale(
    self: Tensor, growth_tracker: Tensor, found_inf: Tensor, growth: float, backoff: float, interval: int
) -> Tensor:
    """A smaller scale where a gradient was not finite, a larger one after `interval` steps in a row without."""
    bad = found_inf != 0
    steps = growth_tracker + 1
    due = steps == interval
    grown = (self.double() * growth).to(self.dtype)
    larger = torch.where(torch.isfinite(grown), grown, self)
    smaller = (self.double() * backoff).to(self.dtype)
    growth_tracker.copy_(torch.where(bad | due, torch.zeros_like(steps), steps))
    self.copy_(torch.where(bad, smaller, torch.where(due, larger, self)))
    return self


SCALING: dict[OpOverload, Callable[..., Any]] = {
    aten._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    aten._amp_update_scale_.default: _update_scale,
}
