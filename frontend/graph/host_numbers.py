"""Numbers that a program reads of small tensors (`step.item()`), where they follow from the inputs of the call: read in each call, before the graph.

A tensor on a CPU that holds one number and is an input, or was computed from such a one by plain arithmetic with numbers, in place or
not, has a number that the host knows before the graph runs: a symbolic float of its own (`dynamic`). Arithmetic on the tensor is done
again on the host by torch itself, so that it rounds as the tensor does. Tensors that hold the same number at capture share one symbol,
and a guard asks in each call whether they still do: the steps of an optimizer over hundreds of parameters are one number.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from ..guards.checks import is_argument
from ..guards.emitter import Emitter
from ..guards.recompile_reason import Miss
from ..guards.source import Computed, Const, Fetch, Number, Source
from ..torch_private.fake import real_tensors
from ..torch_private.symbols import hint_of
from ..values.kinds import isinstance
from .output import MUTATES, GraphInput, OutputGraph

__all__ = ["HostNumbers", "SameNumbers", "put_number"]


@dataclass
class SameNumbers:
    """The guard that tensors of one number hold the same one; `sources` begins with the tensor that is read."""

    sources: list[Source]

    @property
    def first(self) -> bool:
        """Whether only arguments are compared."""
        return all(map(is_argument, self.sources))

    @staticmethod
    def holds(*tensors: Tensor) -> bool:
        """Whether the numbers are the same; no number is the same as NaN."""
        found = set(map(Tensor.item, tensors))
        if len(found) != 1:
            return False
        return found != {0.0} or len({math.copysign(1.0, t.item()) for t in tensors}) == 1

    def lines(self, emit: Emitter) -> None:
        """One call for all."""
        if len(self.sources) > 1:
            emit.miss_if(f"not {emit.constant(self.holds, 'same_numbers')}({', '.join(map(emit.fetch, self.sources))})")

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """The first tensor that holds another number."""
        values = [source.fetch(args) for source in self.sources]
        for source, value in zip(self.sources, values, strict=True):
            if not self.holds(values[0], value):
                expected = f"{values[0].item()}, as in {self.sources[0].name()}"
                return Miss(source.name(), expected, str(value.item()))
        return None

    def __str__(self) -> str:
        return f"one number in {len(self.sources)} tensors, as in {self.sources[0].name()}"


@dataclass
class _Known:
    """A tensor that the host can compute: where from (None: it is the same in each call), and what it holds in the call that is captured."""

    source: Source | None
    value: Tensor


@dataclass
class HostNumbers:
    """What one capture knows of the numbers in tensors.

    `source_of` says where a symbolic float of the capture comes from; `rely` adds a guard over several values.
    """

    out: OutputGraph
    source_of: Callable[[Any], Source]
    rely: Callable[[SameNumbers], None]
    groups: dict[tuple[torch.dtype, tuple[int, ...], str], SameNumbers] = field(default_factory=dict)
    members: dict[int, SameNumbers] = field(default_factory=dict)

    def read(self, tensor: Tensor) -> tuple[Source | None, float] | None:
        """What `tensor.item()` is: where it comes from (None: a constant), and the float that it is in this call.

        None where the host cannot know.
        """
        if not _is_small(tensor):
            return None
        with real_tensors(), torch.no_grad():
            known = self._known(tensor)
            if known is None:
                return None
            number = known.value.item()
        if type(number) is not float or not math.isfinite(number):
            return None
        return None if known.source is None else Fetch(Tensor.item, known.source), number

    def truth(self, tensor: Tensor) -> tuple[Source, bool] | None:
        """`bool(tensor)` of an input, or of an input compared with a number, as it is before the graph; None of anything else."""
        if not _is_one(tensor):
            return None
        compared: tuple[Any, int | float] | None = None
        if id(tensor) not in self.out.inputs:
            node = self.out.node(tensor) if self.out.is_known(tensor) and tensor._version == 0 else None
            if node is None or node.target not in _COMPARISONS or node.kwargs or len(node.args) != 2:
                return None
            given, number = node.args
            if not isinstance(given, fx.Node) or not isinstance(number, int | float):
                return None
            compared, tensor = (node.target, number), given.meta["example_value"]
        info = self.out.inputs.get(id(tensor))
        if info is None or not _is_one(tensor) or self.out.version(info) != info.version:
            return None
        with real_tensors(), torch.no_grad():
            known = self._input(info)
            value, source = known.value, known.source
            assert source is not None
            if compared is not None:
                function, number = compared
                value, source = function(value, number), Computed(function, (source, Number(number)))
            return Fetch(bool, source), bool(value)

    def _known(self, tensor: Tensor) -> _Known | None:
        info = self.out.inputs.get(id(tensor))
        if info is not None:
            known = self._input(info)
            return self._written(self.out.node(tensor), known, tensor._version - info.version)
        if not self.out.is_known(tensor):
            return None
        node = self.out.node(tensor)
        if tensor._is_view():  # all of another tensor of one number
            whole: Any = node.args[0].meta["example_value"] if node.args and isinstance(node.args[0], fx.Node) else None
            same = isinstance(whole, Tensor) and whole is tensor._base and _is_small(whole)
            return self._known(whole) if same else None
        made = self._made(node)
        return None if made is None else self._written(node, made, tensor._version)

    def _made(self, node: Any) -> _Known | None:
        """What a node that computes a tensor gives, from numbers or from another tensor that the host knows."""
        if node.op not in ("call_function", "call_method") or node.meta.get(MUTATES):
            return None
        example = node.meta["example_value"]
        if node.target in _CONSTANTS and not any(isinstance(a, fx.Node) for a in node.all_input_nodes):
            kwargs = {**node.kwargs, "requires_grad": False} if node.kwargs.get("requires_grad") else node.kwargs
            made = node.target(*node.args, **kwargs)  # type: ignore[operator]
            return _Known(None, made) if made.dtype == example.dtype and made.device.type == "cpu" else None
        if node.target is torch.full and len(node.args) == 2 and isinstance(node.args[1], fx.Node):
            number, made = node.args[1].meta["example_value"], _maker(example.dtype)
            return _Known(Computed(made, (self.source_of(number),)), made(hint_of(number)))
        rule = _COMPUTED.get(node.target)
        given = [a for a in node.args if isinstance(a, fx.Node) and isinstance(a.meta["example_value"], Tensor)]
        if rule is None or node.kwargs or len(given) != 1 or not _is_small(given[0].meta["example_value"]):
            return None
        base, place = self._known(given[0].meta["example_value"]), node.args.index(given[0])
        written = (n for n in given[0].users if n.meta.get(MUTATES) and _place(n, given[0]) is not None)
        if base is None or place > 1 or any(node < n for n in written):  # it may be another number now
            return None
        if len(node.args) == 1:
            made = rule(base.value)
            return _Known(None if base.source is None else Computed(rule, (base.source,)), made)
        return self.applied(rule, base, [a for a in node.args if a is not given[0]], place == 1)

    def applied(self, function: Any, known: _Known, args: Sequence[Any], swapped: bool = False) -> _Known | None:
        """`function(known, number)`, or with `swapped` the other way round; None where the host knows no such number."""
        if len(args) != 1:
            return None
        value = args[0].meta.get("example_value") if isinstance(args[0], fx.Node) else args[0]
        constant = getattr(value, "constant", None)
        if isinstance(value, torch.SymFloat):
            operand, number = self.source_of(value), hint_of(value)
        elif isinstance(value, Tensor) and isinstance(constant, Tensor) and _is_small(constant):
            operand, number = None, constant.item()
        elif type(value) in (int, float):
            operand, number = None, value
        else:
            return None
        made = function(number, known.value) if swapped else function(known.value, number)
        if known.source is None and operand is None:
            return _Known(None, made)
        operands = known.source or Const(known.value, "number"), operand or Number(number)
        return _Known(Computed(function, operands[::-1] if swapped else operands), made)

    # ---- what the host writes ----

    def leave_to_host(self) -> dict[Source, list[Source]]:
        """Take writes of numbers that the host knows out of a graph of a GPU, whose program has no work on a CPU then.

        By the number, the tensors that hold it behind the graph.
        """
        out = self.out
        if not any(isinstance(i.fake, Tensor) and on_gpu(i.fake) for i in out.used):
            return {}
        known: dict[fx.Node, tuple[GraphInput, _Known]] = {}
        with real_tensors(), torch.no_grad():
            for info in out.used:
                plain = isinstance(info.fake, Tensor) and _is_small(info.fake) and not info.static
                if plain and not info.requires_grad and out.version(info) != info.version:
                    found = self._known(info.fake)
                    if found is not None and found.source is not None and info.node is not None:
                        known[info.node] = info, found
        while mixed := [p for p in known if not all(_writes_only(node, known) for node in p.users)]:
            for placeholder in mixed:
                del known[placeholder]
        for node in reversed(list(dict.fromkeys(node for p in known for node in p.users))):
            out.graph.erase_node(node)
        numbers: dict[Source, list[Source]] = {}
        for placeholder, (info, found) in known.items():
            assert found.source is not None
            numbers.setdefault(Fetch(Tensor.item, found.source), []).append(info.source)
            out.graph.erase_node(placeholder)
            info.node = None
        out.used[:] = [info for info in out.used if info.node is not None]
        return numbers

    def _input(self, info: GraphInput) -> _Known:
        """An input as it is before the graph: its group's first tensor stands for it."""
        self.out.node(info.fake)  # what the graph writes to must not share its memory
        group = self.members.get(id(info.fake))
        if group is None:
            key = info.real.dtype, tuple(info.real.shape), repr(info.real.item())
            group = self.groups.get(key)
            if group is None:
                group = self.groups[key] = SameNumbers([])
                self.rely(group)
            group.sources.append(info.source)
            self.members[id(info.fake)] = group
        return _Known(group.sources[0], info.real.detach())

    def _written(self, made: fx.Node, known: _Known, versions: int) -> _Known | None:
        """What a tensor holds after the writes that the graph has made so far; all are known where there are as many as versions."""
        counted = 0
        for node in (n for n in made.users if n.meta.get(MUTATES)):
            place = _place(node, made)
            if place is None:  # it is only read there
                continue
            rule, counted = _WRITES.get(node.target), counted + 1
            found = None if rule is None else rule(self, known, place, node)
            if found is None:
                return None
            known = found
        return known if versions == counted else None


def _writes_only(node: fx.Node, placeholders: Mapping[fx.Node, Any]) -> bool:
    """Whether a node does nothing but write to some of these."""
    first = node.args[0] if node.args else None
    written = first if isinstance(first, list | tuple) else [first]
    return bool(node.meta.get(MUTATES)) and not node.users and all(w in placeholders for w in written)


def on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor is a GPU's."""
    return tensor.is_cuda


def put_number(tensors: Sequence[Tensor], number: float) -> None:
    """Write a number into tensors of one number."""
    for tensor in tensors:
        tensor.fill_(number)


def _is_small(tensor: Tensor) -> bool:
    """Whether a tensor holds one floating-point number on a CPU."""
    return tensor.is_floating_point() and _is_one(tensor)


def _is_one(tensor: Tensor) -> bool:
    """Whether a tensor holds one number on a CPU, of any kind."""
    return tensor.device.type == "cpu" and tensor.dim() <= 1 and _numbers(tensor) == 1


def _numbers(tensor: Tensor) -> int:
    count = 1
    for size in tensor.shape:
        count = count * size if type(size) is int else 2
    return count


def _place(node: fx.Node, written: Any) -> int | None:
    """Where the tensor is among those that a call writes to: 0 of a call that writes to its first argument."""
    first = node.args[0] if node.args else None
    if isinstance(first, list | tuple):
        found = [i for i, item in enumerate(first) if item is written]
        return found[0] if len(found) == 1 else None
    return 0 if first is written else None


def _in_place(function: Any) -> Any:
    def rule(numbers: HostNumbers, known: _Known, place: int, node: fx.Node) -> _Known | None:
        return numbers.applied(function, known, node.args[1:]) if not node.kwargs else None

    return rule


def _foreach(function: Any) -> Any:
    def rule(numbers: HostNumbers, known: _Known, place: int, node: fx.Node) -> _Known | None:
        args = [a[place] if isinstance(a, list | tuple) else a for a in node.args[1:]]
        plain = all(name == "alpha" and value == 1 for name, value in node.kwargs.items())
        return numbers.applied(function, known, args) if plain else None

    return rule


@functools.cache
def _maker(dtype: torch.dtype) -> Callable[[float], Tensor]:
    def tensor_of(number: float) -> Tensor:
        return torch.tensor(number, dtype=dtype)

    return tensor_of


_CONSTANTS = (torch.tensor, torch.as_tensor, torch.zeros, torch.ones, torch.full)
_NAMES = ("add", "sub", "mul", "div")
_COMPUTED: dict[Any, Any] = {
    **{name: getattr(torch, name) for name in _NAMES},
    **{getattr(torch, name): getattr(torch, name) for name in _NAMES},
    **{"clone": torch.clone, torch.clone: torch.clone, "detach": torch.detach},
    **{f: f for f in (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg)},
}
_COMPARISONS = frozenset(
    getattr(module, name) for module in (operator, torch) for name in ("eq", "ne", "lt", "le", "gt", "ge")
)
_WRITES: dict[Any, Any] = {
    **{f"{name}_": _in_place(getattr(torch, name)) for name in _NAMES},
    **{getattr(torch, f"_foreach_{name}_"): _foreach(getattr(torch, name)) for name in _NAMES},
    operator.iadd: _in_place(torch.add),
    operator.isub: _in_place(torch.sub),
    operator.imul: _in_place(torch.mul),
    operator.itruediv: _in_place(torch.div),
}
