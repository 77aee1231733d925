"""Calls of torch's that are given foreign tensors or make them: one library call of the graph each (`torch_private/foreign/`).

What a call gives is found by trying it on small real tensors. A size of a result that is the same for two assignments of the symbols is a
number, one that agrees with a size of an argument in both is that size, and any other is known only to the running program; the program
checks all of them.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..errors import GraphBreak
from ..guards.source import Fetch
from ..state import Interpreter
from ..torch_private.fake import real_tensors
from ..torch_private.foreign.operators import call_operator
from ..torch_private.foreign.parts import is_laid_as
from ..torch_private.foreign.parts import text_of as named
from ..torch_private.foreign.plans import called, function_of
from ..torch_private.functions import OpOverload, OpOverloadPacket
from ..torch_private.symbols import is_unknown
from ..values.kinds import isinstance
from . import packed, shells, writes
from .examples import assignments, number
from .results import Planner, Try
from .tensors import Foreign, Foreigners, handle_input

__all__ = ["foreigners", "load"]

# Functions and methods that make foreign tensors of plain ones, and those on packed sequences, whose sizes values decide.
_MAKE = ("to_sparse", "quantize_per_", "sparse_", "_sparse_coo", "_sparse_csr", "_make_per_", "sparse_compressed")
_QUANTIZED = "quantized"
_OF_OBJECTS = ("quantized.", "aten.quantized_lstm", "aten.quantized_gru")  # operators that take packed weights

_ANSWERS = frozenset(  # what follows from the structure
    """
    sparse_dim dense_dim is_coalesced qscheme q_per_channel_axis is_floating_point is_complex is_signed element_size get_device
    is_sparse is_quantized type is_conj is_neg
    """.split()  # noqa: SIM905
)
_OF_SIZES = frozenset(["size", "dim", "ndimension", "numel", "nelement", "__len__"])
_PARTS = {  # methods that give a part, by the kind of tensor
    "torch.sparse_coo": {"_indices": 0, "_values": 1, "indices": 0, "values": 1},
    "torch.sparse_csr": {"crow_indices": 0, "col_indices": 1, "values": 2},
    "torch.sparse_bsr": {"crow_indices": 0, "col_indices": 1, "values": 2},
    "torch.sparse_csc": {"ccol_indices": 0, "row_indices": 1, "values": 2},
    "torch.sparse_bsc": {"ccol_indices": 0, "row_indices": 1, "values": 2},
}


def foreigners(vm: Interpreter) -> Foreigners:
    """Those of a capture that begins; its graph leaves calls on them to us."""
    made = vm.out.foreign = Foreigners()
    vm.out.elsewhere = functools.partial(_made_of, vm)
    return made


def _made_of(vm: Interpreter, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives that is one of these; NotImplemented for others."""
    if vm.foreign.shelled and (made := shells.call(vm, op, target, args, kwargs)) is not NotImplemented:
        return made
    if vm.foreign.batches and id(args[0] if args else None) in vm.foreign.batches:
        make = functools.partial(getattr(vm.out, op), target, args, kwargs)
        made = packed.first_of(vm, target, args, make)
        if made is not NotImplemented:
            return made
    if target is torch.nn.functional.ctc_loss:
        target, args, kwargs = packed.loss(*args, **kwargs)
    return _call(vm, op, target, args, kwargs) if _concerns(vm, target, args, kwargs) else NotImplemented


def _concerns(vm: Interpreter, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if vm.foreign.among((args, kwargs)):
        return True
    if isinstance(target, OpOverload | OpOverloadPacket):
        return str(target).startswith(_OF_OBJECTS)
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name.startswith(_MAKE) and not name.endswith("_") or packed.is_packed(name, args) and not kwargs


def _call(vm: Interpreter, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call as a node of the graph, or the answer that follows from what is known."""
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    first = vm.foreign.of(args[0]) if args else None
    if first is not None:
        answer = _answer(vm, first, name, args, kwargs)
        if answer is not NotImplemented:
            return answer
    text = f"attribute {target}" if op == "attribute" else function_of(target)
    what = f"{name} of a foreign tensor" if first is None else f"{name} of a {first.kind}"
    if text is None:
        raise GraphBreak(f"{what} is called, which no library call of a graph does")
    writing = _writes(target, name)
    if kwargs.get("out") is not None or writing and not writes.is_followed(vm, first, name, args):
        raise GraphBreak(f"{what} is called, which writes to its argument")
    if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
        raise GraphBreak(f"{what} is called under autocast")
    if vm.out.inside or vm.overrides.modes:
        raise GraphBreak(f"{what} is called inside a transform or a mode")
    if writing:
        return writes.written(vm, _Call(vm, what, text, args, kwargs, writes=True), first)
    return _Call(vm, what, text, args, kwargs).made()


def _writes(target: Any, name: str) -> bool:
    """Whether a call writes to its first argument, as its name says: `mul_`, `__imul__`, `operator.imul`, an item that is set."""
    if getattr(target, "__module__", None) == "_operator":
        name = f"__{name}__"
    return name in _WRITES or name.endswith("_") and not name.endswith("__")


_WRITES = frozenset(
    """
    __setitem__ __delitem__ __iadd__ __isub__ __imul__ __imatmul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__
    __ilshift__ __irshift__ __iconcat__
    """.split()  # noqa: SIM905
)


def _answer(vm: Interpreter, known: Foreign, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a foreign tensor says of itself, without a call."""
    alone = len(args) == 1 and not kwargs
    if name in _OF_SIZES:
        return vm.native(getattr(known.stand_in, name), *args[1:], **kwargs)
    if not alone:
        return NotImplemented
    kind, _, *rest = known.structure
    if name in _ANSWERS:
        with real_tensors():
            return getattr(known.example, name)()
    if name == "_nnz" and kind != _QUANTIZED:
        known.opened = True
        return known.parts[0].shape[1] if kind == "torch.sparse_coo" else known.parts[1].shape[-1]
    if name in _PARTS.get(kind, {}):
        if kind == "torch.sparse_coo" and not name.startswith("_") and not rest[1]:
            return NotImplemented  # eager's error
        part = known.parts[_PARTS[kind][name]]
        return vm.out.call_method(
            "detach" if name == "_values" else "view_as", (part, *([] if name == "_values" else [part])), {}
        )
    if kind == _QUANTIZED:
        if name == "int_repr":
            return vm.out.call_method("clone", (known.parts[0],), {})
        if name in ("q_scale", "q_zero_point") and rest[0] is None:
            if rest[1] is not None:
                return rest[1][name == "q_zero_point"]
            if known.source is not None:
                found = getattr(Tensor, name)
                with real_tensors():
                    number = found(vm.user.real(known.stand_in))
                return vm.user.wrap(number, Fetch(found, known.source))
            return vm.call_tensor_method(known.parts[1 if name == "q_scale" else 2], "item", (), {})
        if name in ("q_per_channel_scales", "q_per_channel_zero_points") and rest[0] is not None:
            return vm.out.call_method("view_as", (known.parts[1 if "scales" in name else 2],) * 2, {})
    return NotImplemented


@dataclass
class _Call:
    """One call: its arguments as text, tensors and sizes."""

    vm: Interpreter
    what: str
    text: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    writes: bool = False  # whether the function writes to its first argument, of which it is given a copy
    tensors: list[Tensor] = field(default_factory=list)
    sizes: list[Any] = field(default_factory=list)
    objects: dict[int, Any] = field(default_factory=dict)
    foreign: list[Foreign] = field(default_factory=list)
    tries: list[Try] = field(default_factory=list)

    def made(self) -> Any:
        """The results."""
        args, kwargs = [self.text_of(a) for a in self.args], {k: self.text_of(v) for k, v in self.kwargs.items()}
        if self.writes:
            args[0] = ["copy", args[0]]
        self.written = {"call": self.text, "args": args, "kwargs": kwargs}
        name = self.text.rpartition(".")[2]
        if packed.is_packed(name, self.args):
            made = self._packed(name)
            packed.noted(self.vm, name, self.args, made)
            return tuple(made) if len(made) > 1 else made[0]
        tries = self.tries = self._tried()
        self._check_gradients(tries[0])
        planner = Planner(self.vm, self.what, self, tries)
        with real_tensors():
            results, build = planner.planned([t.result for t in tries])
        new: Iterator[Tensor] = iter(())
        if planner.made or not planner.kept:
            what = json.dumps({**self.written, "results": results})
            new = iter(self.vm.out.call_function(call_operator(), (self.tensors, self.sizes, what), {}))
        return build(new)

    @property
    def name(self) -> str:
        """What is called."""
        return self.text.rpartition(" ")[2].rpartition(".")[2]

    def _check_gradients(self, tried: Try) -> None:
        """Break where eager's gradient of a foreign tensor of the caller's is not made of parts as it is: a dense one, or of other places."""
        rooted = [known for known in self.foreign if known.rooted]
        if not rooted or not torch.is_grad_enabled() or self.name == "detach":
            return
        floats = {self._place(p) for known in rooted for p in known.parts if p.requires_grad}
        with real_tensors(), torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            given = [t.detach().requires_grad_(k in floats) for k, t in enumerate(tried.tensors)]
            sizes = [number(n, tried.given) for n in self.sizes]
            result, foreign = called(json.dumps({**self.written, "results": ["list"]}), given, sizes)
            made = [t for t in tree_leaves(result) if isinstance(t, Tensor) and t.requires_grad]
            wanted = [t for t in foreign if t.requires_grad]
            try:
                arriving = [t.detach() for t in made]
                found = torch.autograd.grad(made, wanted, arriving, allow_unused=True) if made else []
            except (RuntimeError, NotImplementedError):  # eager says so in backward
                raise GraphBreak(f"{self.what} is called, and has no gradient") from None
            same = all(g is None or is_laid_as(g, t) for g, t in zip(found, wanted, strict=bool(made)))
        if not same:
            raise GraphBreak(f"{self.what} is called, whose gradient has other places than the tensor")

    def _packed(self, name: str) -> list[Tensor]:
        """The results of a call on packed sequences, whose sizes are known by rule."""
        found = packed.results_of(self.vm, name, self.args)
        texts: list[Any] = []
        for shape, like, order in found:
            sizes = [
                ["unknown", len(texts) * 8 + d] if n is packed.UNKNOWN else self.text_of(n) for d, n in enumerate(shape)
            ]
            dtype, device = (torch.int64, torch.device("cpu")) if like is None else (like.dtype, like.device)
            texts.append(["tensor", sizes, named(dtype), named(device), order])
        if name == "_pad_packed_sequence" and found[1][0][0] is packed.UNKNOWN:
            texts[1][1][0] = texts[0][1][0 if self.args[2] else 1]
        what = json.dumps({**self.written, "results": ["tuple", *texts] if len(texts) > 1 else texts[0]})
        return list(self.vm.out.call_function(call_operator(), (self.tensors, self.sizes, what), {}))

    # ---- arguments ----

    def text_of(self, value: Any) -> Any:
        """An argument as the operator reads it."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        known = self.vm.foreign.of(value)
        if known is not None:
            self.foreign.append(known)
            size = [self.text_of(n) for n in known.size]
            return ["foreign", known.structure, size, [self._place(p) for p in known.parts]]
        if isinstance(value, Tensor):
            return ["tensor", self._place(value)]
        if isinstance(value, torch.SymInt):
            self.sizes.append(value)
            return ["size", len(self.sizes) - 1]
        if isinstance(value, torch.SymFloat) and (late := self.vm.dynamic.late(value)) is not None:
            return ["number", self._place(late)]
        if isinstance(value, torch.SymFloat):
            return float(value)
        if isinstance(value, torch.ScriptObject):
            return ["object", self._handle(value)]
        if isinstance(value, torch.dtype | torch.layout | torch.device | torch.memory_format | torch.qscheme):
            return ["constant", named(value)]
        if isinstance(value, tuple | list):
            return ["tuple" if isinstance(value, tuple) else "list", *map(self.text_of, value)]
        if type(value) is slice:
            return ["slice", *map(self.text_of, (value.start, value.stop, value.step))]
        if value is ...:
            return ["ellipsis"]
        raise GraphBreak(f"{self.what} is given an object of type {type(value).__name__}")

    def _place(self, tensor: Tensor) -> int:
        for place, known in enumerate(self.tensors):
            if known is tensor:
                return place
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _handle(self, value: Any) -> int:
        source = self.vm.user.source_of(value)
        if source is None:
            raise GraphBreak(f"{self.what} is given an object that capture has not seen")
        fake, real = handle_input(self.vm, value, source)
        place = self._place(fake)
        self.objects[place] = real
        return place

    # ---- the call, tried ----

    def all_sizes(self) -> list[Any]:
        """The sizes of all arguments."""
        return [*(n for t in self.tensors for n in t.shape), *(n for f in self.foreign for n in f.size), *self.sizes]

    def _tried(self) -> list[Try]:
        found = assignments(self.all_sizes())
        try:
            return [Try(self, given) for given in found]
        except GraphBreak:
            if len(found) == 1:
                raise
        for size in self.all_sizes():  # sizes that the call does not take: numbers, which are guarded
            if isinstance(size, torch.SymInt) and not any(map(is_unknown, size.node.expr.free_symbols)):
                int(size)
        self.sizes = [int(n) if isinstance(n, torch.SymInt) and n.node.expr.is_number else n for n in self.sizes]
        found = assignments(self.all_sizes())
        return [Try(self, given) for given in found]


# ---- attributes ----

_FACTS = frozenset(
    "dtype layout is_sparse is_sparse_csr is_quantized is_mkldnn is_nested is_complex itemsize is_cuda is_cpu".split()  # noqa: SIM905
)
_SIZES = frozenset(["shape", "ndim", "device"])
_COMPUTED = frozenset(["T", "mT", "H", "mH"])


def load(vm: Interpreter, known: Any, name: str) -> Any:
    """An attribute of a foreign tensor; NotImplemented for methods."""
    if type(known) is not Foreign:
        return shells.load(vm, known, name)
    if name in _FACTS:
        return getattr(known.example, name)
    if name == "requires_grad":
        return known.requires_grad
    if name in _SIZES:
        return NotImplemented
    if name in _COMPUTED:
        return _call(vm, "attribute", name, (known.stand_in,), {})
    if name == "__class__" or callable(getattr(Tensor, name, None)):
        return NotImplemented
    raise GraphBreak(f"{name} of a {known.kind} is read, which may be the program's own")
