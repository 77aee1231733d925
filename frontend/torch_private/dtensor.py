"""Tensors that several processes hold together (DTensor): taken apart and put together. Tried with torch 2.11 and 2.13."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..errors import GraphBreak
from .fake import FakeTensor, real_tensors
from .wrapped import is_wrapped, is_wrapper

__all__ = [
    "DTensorCall",
    "Layout",
    "Like",
    "Local",
    "Redistributed",
    "Restored",
    "Shared",
    "check_shared",
    "holds_others",
    "is_composite",
    "is_fact",
    "is_plain_part",
    "is_shared",
    "layout_of",
    "local_of",
    "questions",
]


def is_shared(value: Any) -> bool:
    """Whether a tensor is a DTensor; of one that is not there yet, its class is not either."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and type(value) is module.DTensor


def holds_others(kind: type) -> bool:
    """Whether tensors of a class are made of other tensors, on which the class runs operators: DTensor, what it waits for, those of the program."""
    known = kind.__module__ in ("torch.distributed.tensor", "torch.distributed._functional_collectives")
    return known or kind is not FakeTensor and is_wrapper(kind)


def is_composite(value: Any) -> bool:
    """Whether a tensor is a DTensor, or of a class of the program's that is made of other tensors."""
    return is_shared(value) or is_wrapped(value)


@dataclass(frozen=True)
class Layout:
    """How a DTensor lies on the processes: all that its local part does not say."""

    mesh: Any
    placements: tuple[Any, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool
    kind: type  # of the local part
    leaf: bool

    def has_layout(self, value: Any) -> bool:
        """Whether a DTensor lies so."""
        spec = value._spec
        same = spec.mesh is self.mesh or spec.mesh == self.mesh
        return same and layout_of(value) == self


class Like:
    """Whether a mesh, or a placement, equals the one at capture."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.__name__ = f"like {value}"

    def __call__(self, other: Any) -> bool:
        return other is self.value or type(other) is type(self.value) and bool(other == self.value)


def is_fact(value: Any) -> bool:
    """Whether a value is part of a layout: a mesh or a placement, none of which changes."""
    return isinstance(value, _facts())


@cache
def _facts() -> tuple[type, ...]:
    if not torch.distributed.is_available():
        return ()
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

    return Placement, DeviceMesh


def questions() -> list[tuple[Any, str]]:
    """The methods by which placements say what they are, with their names."""
    if not torch.distributed.is_available():
        return []
    from torch.distributed.tensor import Partial, Replicate, Shard

    names = ("is_shard", "is_replicate", "is_partial")
    bases = dict.fromkeys(base for kind in (Shard, Replicate, Partial) for base in kind.__mro__)
    found = [(vars(base)[name], name) for base in bases for name in names if name in vars(base)]
    return [(getattr(method, "__func__", method), name) for method, name in found]


def layout_of(value: Any) -> Layout:
    """The layout of a DTensor."""
    spec = value._spec
    facts = value.requires_grad, type(value._local_tensor), value.is_leaf
    return Layout(spec.mesh, tuple(spec.placements), tuple(value.shape), tuple(value.stride()), *facts)


def is_plain_part(value: Any) -> bool:
    """Whether a DTensor's local part is a tensor of torch's own, on a mesh that this process is part of."""
    part = value._local_tensor
    here = value._spec.mesh.get_coordinate() is not None
    return here and type(part) is Tensor and part.layout is torch.strided and not part.is_meta


def local_of(value: Any) -> Tensor:
    """This process's part, through which gradients flow."""
    from torch.distributed.tensor._api import _ToTorchTensor

    with torch.enable_grad():
        result: Tensor = _ToTorchTensor.apply(value, None)
    return result


def check_shared(name: str, given: Iterable[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Break the graph in front of a call that does not run on the DTensors that are given."""
    given = [t for t in given if type(t) is not FakeTensor]
    if given and (reason := _refusal(name, given, args, kwargs)):
        raise GraphBreak(reason)


def _refusal(name: str, given: Iterable[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Why a call does not run on the DTensors that are given: it writes, or draws random numbers, to each process its own; else ""."""
    composite = [t for t in given if is_composite(t)]
    if not composite:
        return ""
    kind = type(composite[0]).__qualname__
    if any(map(is_shared, composite)) and (name in _IN_PLACE or name.endswith("_") and not name.endswith("__")):
        return f"{name} writes to a {kind}"
    if kwargs.get("out") is not None:
        return f"{name} writes to a {kind}"
    if "dropout" in name:
        p, training = kwargs.get("p", args[1] if len(args) > 1 else 0.5), kwargs.get("training", args[2:3])
        nothing = p == 0 or training is False or training == (False,)
        return "" if nothing else f"{name} draws random numbers for a {kind}"
    dropped = name == _ATTENTION and (kwargs.get("dropout_p") or any(args[4:5]))
    return f"{name} draws random numbers for a {kind}" if name in _DRAWS or dropped else ""


_DRAWS = frozenset(
    "bernoulli multinomial normal poisson rand_like randn_like randint_like gumbel_softmax rrelu".split()  # noqa: SIM905
)
_ATTENTION = "scaled_dot_product_attention"


_IN_PLACE = frozenset(
    "iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift imatmul setitem".split()  # noqa: SIM905
)


def _text(fact: Any) -> str:
    groups = getattr(fact, "get_all_groups", None)  # of a mesh
    if groups is None:
        return repr(fact)
    names = [str(g.group_name) for g in groups()]
    return repr((fact.device_type, fact.mesh.tolist(), fact.get_coordinate(), names))


class DTensorCall:
    """What a graph holds for a call on DTensors whose layouts are constants."""

    def __init__(self, **facts: Any) -> None:
        self.facts = facts
        self.__name__ = type(self).__name__.lower()

    def key(self) -> str:
        """All that decides what the call does, on this process."""
        with real_tensors():
            return f"{self.__name__}({', '.join(f'{k}={_text(v)}' for k, v in self.facts.items())})"


class Shared(DTensorCall):
    """`mesh`, `placements`, `shape`, `stride`: the DTensor of local parts."""

    def __call__(self, local: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(local, **self.facts, run_check=False)


class Restored(Shared):
    """The same behind a graph, where gradients of it are wanted, whatever the mode is there."""

    def __call__(self, local: Tensor) -> Tensor:
        with torch.enable_grad():
            return super().__call__(local)


class Local(DTensorCall):
    """`grad_placements`: this process's part of a DTensor."""

    def __call__(self, value: Any) -> Tensor:
        from torch.distributed.tensor._api import _ToTorchTensor

        result: Tensor = _ToTorchTensor.apply(value, self.facts.get("grad_placements"))
        return result


class Redistributed(DTensorCall):
    """`placements`, ...: the DTensor in another layout, waited for."""

    def __call__(self, value: Any) -> Tensor:
        result: Tensor = value.redistribute(**self.facts, async_op=False)
        return result
