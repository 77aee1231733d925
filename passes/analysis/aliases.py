"""Who shares memory with whom: what plans for memory, moves of calls and recordings ask.

Values of the tensor algebra do not change, so that sharing matters only where memory is given to a value, written to or given back:
`plan-buffers`, `layout`, `hoist`, `written_arguments`, the host program and CUDA graphs. Views share their operand's memory; a library call's
results share what its schema says (`Tensor(a) self -> Tensor(a)`), whether they do in a given call or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeGuard

from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ...ir.dialects import buffer, kernel, prim
from ...ir.dialects.aten import begins_talk, is_wait, may_share, overload, writes_to
from ...ir.symbols import Dim
from .strides import is_view, view_of


def shared_operands(op: Operation, result: SSAValue) -> tuple[SSAValue, ...]:
    """The operands whose memory a result of an operation may be."""
    if is_view(op) or isinstance(op, buffer.View):
        return (op.operands[0],)
    if isinstance(op, kernel.Extern | buffer.Extern) and not op.get("own"):
        return tuple(op.operands[k] for k in may_share(op)[op.results.index(result)])
    return ()


def makes_memory(op: kernel.Extern | buffer.Extern) -> bool:
    """Whether no result of a library call can be memory of an operand."""
    return not any(may_share(op))


def counts_from_storage(op: Operation) -> TypeGuard[kernel.Extern]:
    """Whether a library call counts from where the storage of its first operand begins, wherever the operand itself lies in it."""
    if not isinstance(op, kernel.Extern) or op.get("own"):
        return False
    return any(argument.name == "storage_offset" for argument in overload(op["target"])._schema.arguments)


def written_operands(op: kernel.Extern | buffer.Extern) -> list[SSAValue]:
    """The operands that a library call writes to."""
    out = op.operands[len(op["operands"]) :]  # of kernels of our own
    return [*(op.operands[k] for k in writes_to(op)), *out]


@dataclass
class Aliases:
    """The memory behind each value of a function.

    A value's root is the value that memory was given to: an argument, or the result of a kernel or a library call. A result that may be memory
    of several operands has one root and keeps the others alive.

    Attributes:
        counted: the roots in which a library call counts from the beginning of the storage: it has to begin where they do.
    """

    counted: set[SSAValue] = field(default_factory=set)
    _roots: dict[SSAValue, tuple[SSAValue, ...]] = field(default_factory=dict)
    _joined: dict[SSAValue, SSAValue] = field(default_factory=dict)

    @classmethod
    def of(cls, block: Block) -> Aliases:
        """What a function's operations say."""
        found = cls()
        for op in block.ops:
            found.add(op)
        return found

    def add(self, op: Operation) -> None:
        """Take note of an operation's results; those of its operands are known."""
        for result in op.results:
            roots = dict.fromkeys(r for v in shared_operands(op, result) for r in self.roots(v))
            if roots:
                self._roots[result] = tuple(roots)
        if counts_from_storage(op) and self.start(op) is None:
            self.counted |= set(self.roots(op.operands[0]))

    def start(self, op: kernel.Extern) -> tuple[SSAValue, Dim] | None:
        """Where in memory of ours the result of `aten.as_strided` begins, which counts from the beginning of a storage.

        Our memory begins where its value does; that of an argument does not.
        """
        if op["target"] != "aten.as_strided.default":
            return None
        view, start = view_of(op.operands[0]), op.get("storage_offset")
        if view is None or isinstance(view.base, BlockArgument) or self.root(view.base) is not view.base:
            return None
        if prim.tensor(view.base).dtype != prim.tensor(op.results[0]).dtype:
            return None
        return view.base, view.offset if start is None else start

    def join(self, value: SSAValue, root: SSAValue) -> None:
        """A plan gives the memory of `root`, which is a root, to `value`, which has none of its own any more."""
        self._joined[value] = root

    def roots(self, value: SSAValue) -> tuple[SSAValue, ...]:
        """All values whose memory this may be."""
        return tuple(dict.fromkeys(map(self._final, self._roots.get(value, (value,)))))

    def root(self, value: SSAValue) -> SSAValue:
        """The value whose memory this value is, or is a view of."""
        return self.roots(value)[0]

    def _final(self, value: SSAValue) -> SSAValue:
        while value in self._joined:
            value = self._joined[value]
        return value

    def counts(self, values: Iterable[SSAValue]) -> Counter[SSAValue]:
        """By root: how many of the values may be its memory."""
        return Counter(root for v in values for root in self.roots(v))

    def last_uses(self, block: Block) -> dict[SSAValue, int]:
        """By root: the number of the last operation that reads it, or a view of it.

        What processes send is read until they wait for the answer: without a wait, to the end.
        """
        found: dict[SSAValue, int] = {}
        sent: dict[SSAValue, list[SSAValue]] = {}  # by result: what is read meanwhile
        number = 0
        for number, op in enumerate(block.ops):
            for operand in op.operands:
                found |= dict.fromkeys(self.roots(operand), number)
            if not isinstance(op, kernel.Extern | buffer.Extern):
                continue
            if is_wait(op):
                for value in sent.pop(op.operands[0], ()):
                    found |= dict.fromkeys(self.roots(value), number)
            elif begins_talk(op):
                sent |= {result: list(op.operands) for result in op.results}
        for value in (v for values in sent.values() for v in values):
            found |= dict.fromkeys(self.roots(value), number)
        return found


__all__ = ["Aliases", "makes_memory", "shared_operands", "written_operands"]
