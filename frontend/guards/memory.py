"""Which inputs of a graph may share memory: nothing that the program writes to is seen through another input.

One rule for arguments, parameters, buffers and globals, among themselves too; capture and the guard of later calls ask the same
question. Memory is compared by its extent, because two storages may lie over one piece of it (NumPy arrays).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..errors import Unsupported
from ..graph.output import GraphInput
from .checks import has_symbols, is_argument
from .emitter import Emitter
from .recompile_reason import Miss
from .source import Source

__all__ = ["Memory"]

_Span = tuple[int, int]


def _span(tensor: Tensor) -> _Span:
    """The addresses of a tensor's storage; (0, 0) where it has none."""
    storage = tensor.untyped_storage()
    start = storage.data_ptr()
    return (start, start + storage.nbytes()) if start else (0, 0)


def _meets(span: _Span, others: Sequence[_Span]) -> bool:
    start, end = span
    return any(start < other_end and other_start < end for other_start, other_end in others)


def _apart(written: Sequence[_Span], read: Sequence[_Span]) -> bool:
    """Whether no piece of memory that is written meets another one."""
    if len(written) + len(read) <= _FEW:
        return not any(_meets(s, written[:at]) or _meets(s, read) for at, s in enumerate(written))
    ordered = sorted((*((s, True) for s in written), *((s, False) for s in read)))
    end, written_end = 0, 0  # of what began earlier
    for (start, stop), writes in ordered:
        if start < (end if writes else written_end) and start < stop:
            return False
        end = max(end, stop)
        written_end = max(written_end, stop) if writes else written_end
    return True


_FEW = 6  # that are compared one by one sooner than sorted


@dataclass
class _Held:
    """Tensors that guards hold by identity: their memory may be given up for other memory (`.data = `), which is rare."""

    tensors: tuple[Tensor, ...]
    addresses: list[int] = field(default_factory=list)
    spans: list[_Span] = field(default_factory=list)

    def moved(self) -> bool:
        """Whether one has other memory than when this was asked last."""
        addresses = [*map(Tensor.data_ptr, self.tensors)]
        if addresses == self.addresses:
            return False
        self.addresses, self.spans = addresses, [_span(t) for t in self.tensors]
        return True


@dataclass
class Memory:
    """The guard: what the program writes to shares memory with no other input.

    `written` and `read` are inputs that differ from call to call; `held` are those that guards hold by identity, `changed` those of
    them that the program writes to.
    """

    written: list[Source]
    read: list[Source]
    held: _Held
    changed: _Held
    fixed: bool = (
        False  # whether the guards fix all sizes and strides: then what lies where it lay is as far apart as it was
    )
    addresses: list[int] = field(default_factory=list)  # of what differs from call to call, where the rule held last

    @staticmethod
    def of(inputs: Sequence[GraphInput], written: Sequence[GraphInput]) -> Memory | None:
        """The guard for a graph over these tensors, None where it writes to none of them or has no other.

        Raises:
            Unsupported: it does not hold for the call that is captured.
        """
        if not written or len(inputs) < 2:
            return None
        places = {id(info) for info in written}
        groups: dict[tuple[bool, bool], list[GraphInput]] = {}
        for info in inputs:
            groups.setdefault((info.static, id(info) in places), []).append(info)

        def held(written: bool) -> _Held:
            return _Held(tuple(i.real for i in groups.get((True, written), ())))

        def sources(written: bool) -> list[Source]:
            return [i.source for i in groups.get((False, written), ())]

        fixed = not any(map(has_symbols, inputs))
        memory = Memory(sources(True), sources(False), held(False), held(True), fixed)
        others = [(info, _span(info.real)) for info in inputs if id(info) not in places]
        spans = [_span(info.real) for info in written]
        if _apart(spans, [span for _, span in others]):
            return memory
        for info, span in zip(written, spans, strict=True):
            for other, found in others:
                if _meets(span, [found]):
                    names = info.source.name(), other.source.name()
                    error = Unsupported(f"{names[0]} is written to, and {names[1]} shares its memory")
                    error.guards = [_Shared(memory)]  # type: ignore[attr-defined]
                    raise error
            others.append((info, span))
        return memory

    @property
    def first(self) -> bool:
        """Whether only arguments are compared."""
        return not (self.held.tensors or self.changed.tensors) and all(map(is_argument, (*self.written, *self.read)))

    def holds(self, written: Sequence[Tensor], read: Sequence[Tensor]) -> bool:
        """Whether the inputs of a call are as far apart as the rule says."""
        held, changed = self.held, self.changed
        moved = bool(changed.tensors or written) and changed.moved() | held.moved()
        if moved and changed.tensors and not _apart(changed.spans, held.spans):
            changed.addresses = []  # asked again in the next call
            return False
        addresses = [*map(Tensor.data_ptr, written), *map(Tensor.data_ptr, read)] if self.fixed else []
        if addresses and addresses == self.addresses and not moved:
            return True
        apart = self._are_apart(written, read)
        self.addresses = addresses if apart else []
        return apart

    def _are_apart(self, written: Sequence[Tensor], read: Sequence[Tensor]) -> bool:
        writes, held, changed = [_span(t) for t in written], self.held.spans, self.changed.spans
        if not writes and not changed:
            return True
        reads = [_span(t) for t in read]
        return _apart(writes, (*reads, *held, *changed)) and (not changed or not reads or _apart(changed, reads))

    def text(self, emit: Emitter) -> str:
        """One call for all."""
        written, read = ("".join(f"{emit.fetch(s)}, " for s in sources) for sources in (self.written, self.read))
        return f"{emit.constant(self.holds, 'memory_ok')}(({written}), ({read}))"

    def lines(self, emit: Emitter) -> None:
        """Miss where it does not hold."""
        emit.miss_if(f"not {self.text(emit)}")

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """Name the inputs."""
        groups = [[s.fetch(args) for s in sources] for sources in (self.written, self.read)]
        if self.holds(*groups):
            return None
        names = ", ".join(s.name() for s in (*self.written, *self.read)) or "parameters and buffers"
        return Miss(names, "tensors in different memory", "tensors that share memory, one of which is written")

    def __str__(self) -> str:
        names = ", ".join(s.name() for s in (*self.written, *self.read))
        more = f" and {len(self.held.tensors) + len(self.changed.tensors)} that are held" if self.held.tensors else ""
        return f"what is written to shares no memory: {names}{more}"


@dataclass
class _Shared:
    """The guard of calls that were refused because the rule does not hold."""

    memory: Memory

    @property
    def first(self) -> bool:
        """Whether only arguments are compared."""
        return self.memory.first

    def lines(self, emit: Emitter) -> None:
        """Miss where it does hold."""
        emit.miss_if(self.memory.text(emit))

    def explain(self, args: Mapping[str, Any]) -> Miss | None:
        """The opposite of the rule's."""
        if self.memory.explain(args) is not None:
            return None
        return Miss("what is written to", "tensors that share memory", "tensors in different memory")

    def __str__(self) -> str:
        return "what is written to shares memory with another tensor"
