"""Foreign tensors of one capture: those in sparse layouts and quantized ones, which stand in the graph as their parts.

The program sees a stand-in, a plain fake tensor that no node knows. What is asked of it, and every call that it is given to, comes here
or to `calls`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Unsupported
from ..guards.source import Attr, Fetch, Item, Source
from ..state import Interpreter
from ..torch_private.fake import real_tensors
from ..torch_private.foreign.parts import is_foreign, noted, parts_of, structure_of, whole
from ..torch_private.foreign.plans import handle_of
from ..torch_private.functions import as_class
from ..torch_private.guards import tensor_guards
from ..values.kinds import tensors_in
from . import examples

__all__ = [
    "Foreign",
    "Foreigners",
    "given_out",
    "handle_input",
    "is_taken",
    "of_class",
    "put_together",
    "stand_in",
    "taken_in",
]


@dataclass
class Foreign:
    """One foreign tensor: what stands for it, what it is beside its parts, its sizes and parts."""

    stand_in: Tensor
    structure: tuple[Any, ...]
    size: tuple[Any, ...]
    parts: list[Tensor]
    example: Tensor = field(repr=False)  # a real one of the same structure
    source: Source | None = None
    view: bool = False  # whether eager's has the memory of another one
    rooted: bool = False  # whether gradients go through it to a foreign tensor of the caller's
    replaced: bool = False  # whether one of the caller's gets other parts behind the graph
    opened: bool = (
        False  # whether the program has asked for what no node of the graph tells of: how many values there are
    )

    @property
    def kind(self) -> str:
        """What it is, for messages."""
        return "quantized tensor" if self.structure[0] == "quantized" else f"tensor with the layout {self.structure[0]}"

    @property
    def requires_grad(self) -> bool:
        """Whether gradients go through it."""
        return any(part.requires_grad for part in self.parts)


@dataclass
class Way:
    """A way to treat wrapper tensors whose class does not say what they are made of; why a capture does not take it."""

    refused: str | None = None


class Foreigners:
    """Those of one capture, by stand-in."""

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}
        # How many sequences batch sizes are of, by the tensor, and its version then.
        self.batches: dict[int, tuple[Any, int]] = {}
        self.shelled = False  # whether there are wrapper tensors among them (`shells`)
        self.inside: list[type] = []  # the classes whose methods are being interpreted
        self.shells, self.apart = Way(), Way()

    @property
    def takes_apart(self) -> bool:
        """Whether such wrapper tensors are taken apart: gradients are wanted of them."""
        return self.shells.refused is not None and self.apart.refused is None

    def add(self, made: Any) -> Tensor:
        """Remember one; its stand-in."""
        self.known[id(made.stand_in)] = made
        return made.stand_in

    def of(self, value: Any) -> Any:
        """What a stand-in stands for."""
        return self.known.get(id(value)) if self.known else None

    def among(self, values: Any) -> bool:
        """Whether there is one among arguments."""
        return bool(self.known) and any(id(t) in self.known for t in tensors_in(values))

    def has_shells(self, values: Any) -> bool:
        """Whether there is a wrapper tensor among arguments, which only interpreted code takes for one."""
        return self.shelled and any(type(self.known.get(id(t))) not in (Foreign, NoneType) for t in tensors_in(values))


def stand_in(vm: Interpreter, size: tuple[Any, ...], example: Tensor) -> Tensor:
    """A fake tensor of these sizes that no node makes."""
    dtype = torch.float32 if example.is_quantized else example.dtype
    return torch.empty(size, dtype=dtype, device=example.device)


# ---- in and out ----


def is_taken(value: Tensor) -> bool:
    """Whether one of the caller's can come into a graph."""
    if type(value) not in (Tensor, nn.Parameter) or value.layout is torch.strided and not value.is_quantized:
        return False
    with real_tensors():
        return _is_like(value)


def _is_like(value: Tensor) -> bool:
    if value.is_meta or not is_foreign(value):
        return False
    gradients = value.requires_grad and value.layout is torch.sparse_coo and not value.is_coalesced()
    return not gradients and not value.is_conj() and not value.is_neg() and not value._is_view()


def _facts_of(value: Any) -> Any:
    """What guards ask of a foreign tensor beside the sizes and its parts."""
    if type(value) not in (Tensor, nn.Parameter) or not _is_like(value):
        return None
    return type(value), structure_of(value), len(value.shape), value.device, value.requires_grad, value.is_leaf


class _Facts:
    """The guard that a foreign tensor is as one was, but for its sizes and parts.

    torch's own check, in C++, sees the class, the dtype, the device, the dispatch keys (of which the kind of the layout, conjugates and
    inference mode are) and the number of dimensions. What else there is to know is asked one by one.
    """

    def __init__(self, value: Tensor) -> None:
        self.facts = _facts_of(value)
        structure, leaf = self.facts[1], self.facts[-1]
        any_size = [[None] * value.dim()]
        check = tensor_guards([value], any_size, any_size).check
        layout, rows = value.layout, structure[0] in ("torch.sparse_csr", "torch.sparse_csc")

        def quick(given: Any) -> bool:
            if not check(given) or given.layout is not layout or given.is_leaf is not leaf or given._is_view():
                return False
            return rows and rank == 2 or structure_of(given) == structure

        rank = value.dim()
        self.quick = quick
        self.__name__ = "facts"

    def __call__(self, value: Any) -> bool:
        """Whether no question is answered otherwise."""
        return self.quick(value)


def _parts_with_gradients(value: Tensor) -> list[Tensor]:
    if not value.requires_grad:
        return noted(value, parts_of(value))
    with torch.enable_grad():
        return parts_of(value)


def taken_in(vm: Interpreter, value: Tensor, source: Source) -> Tensor:
    """The stand-in for a foreign tensor of the caller's, whose parts are inputs of the graph."""
    with real_tensors():
        reals, structure, facts = _parts_with_gradients(value), structure_of(value), _Facts(value)
    vm.guards.add("equals", Fetch(facts, source), True)
    sizes = Attr(source, "shape")
    size = tuple(vm.user.wrap(n, Item(sizes, d)) for d, n in enumerate(value.shape))
    where = Fetch(_parts_with_gradients, source)
    parts = [_part(vm, part, Item(where, k)) for k, part in enumerate(reals)]
    with real_tensors():
        example = examples.put_together(structure, tuple(min(n, 4) for n in value.shape), value.device)
    made = Foreign(stand_in(vm, size, example), structure, size, parts, example, source, rooted=value.requires_grad)
    vm.user.track(value, made.stand_in, source)
    return vm.foreign.add(made)  # type: ignore[no-any-return]


def _part(vm: Interpreter, part: Tensor, source: Source) -> Tensor:
    with real_tensors():  # over the same memory, as no fake tensor is a view of a foreign one
        place = part.storage_offset(), part.shape, part.stride()
        plain = torch.empty(0, dtype=part.dtype, device=part.device)
        plain = plain.set_(part.untyped_storage(), *place).requires_grad_(part.requires_grad)  # type: ignore[call-overload]
    fake, info = vm.dynamic.tensor(plain, source, False, False)
    info.real, info.static, info.temporary = part, False, part.requires_grad
    vm.out.add_input(info)
    vm.user.arg_tensors.append(info)
    vm.user.track(part, fake, source)
    return fake


def handle_input(vm: Interpreter, value: Any, source: Source) -> tuple[Tensor, Tensor]:
    """The handle of an object as an input of the graph: fake and real."""
    where = Fetch(handle_of, source)
    with real_tensors():
        real = handle_of(value)
    known = vm.user.by_real.get(id(real))
    if known is not None:
        return known.value, real
    fake, info = vm.dynamic.tensor(real, where, True, False)
    info.static = False
    vm.out.add_input(info)
    vm.user.arg_tensors.append(info)
    vm.user.track(real, fake, where)
    return fake, real


class Whole:
    """The foreign tensor behind a graph, of its parts."""

    def __init__(self, structure: tuple[Any, ...]) -> None:
        self.structure = structure
        self.__name__ = "whole"

    def __call__(self, size: tuple[int, ...], *parts: Tensor) -> Tensor:
        with torch.enable_grad():
            made = whole(self.structure, size, list(parts))
            return (
                made.clone() if made.requires_grad else made
            )  # autograd keeps the first one, which nobody may write to


def given_out(residual: Any, known: Any) -> str:
    """The expression that gives a foreign tensor behind the graph: the caller's, or one that is put together of its parts."""
    if type(known) is not Foreign:
        return known.given_out(residual)  # type: ignore[no-any-return]
    if known.source is not None:
        return residual.emit.fetch(known.source)  # type: ignore[no-any-return]
    if known.view:
        raise Unsupported(f"a view of a {known.kind} is given out")
    # Eager's gradient of the caller's may have another layout, or other places, behind it.
    if known.rooted and known.requires_grad:
        raise Unsupported(f"a {known.kind} is given out through which gradients go to one of the caller's")
    return residual._fresh(known.stand_in, put_together(residual, known))  # type: ignore[no-any-return]


def put_together(residual: Any, known: Foreign) -> str:
    """The expression that makes one of its parts."""
    size = "".join(f"{residual.value(n)}, " for n in known.size)
    parts = ", ".join(map(residual.value, known.parts))
    whole = residual.emit.constant(Whole(known.structure), "whole")
    return f"{whole}(({size}), {parts})"


def of_class(residual: Any, tensor: Tensor, kind: type) -> str:
    """The expression that gives a tensor of a class of the program's behind the graph, without its attributes."""
    plain: str = residual._plain(tensor)
    if residual.vm.foreign.of(tensor) is not None:
        return plain
    emit = residual.emit
    return f"{emit.constant(as_class, 'as_class')}({plain}, {emit.constant(kind, kind.__name__)})"
