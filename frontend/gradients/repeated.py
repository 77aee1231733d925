"""What a function under `torch.utils.checkpoint` reads: eager calls it again in backward, and reads what is there by then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, fx

from ..errors import GraphBreak
from ..state import Interpreter
from ..torch_private.autograd_graph import is_freed
from ..values.kinds import isinstance

__all__ = ["Repeated"]

_ABSENT = object()


class Repeated:
    """One call of such a function.

    The graph computes it again from the values of the first time. So these must be what they were until backward is done:
    variables, attributes, containers and tensors that it has read, where they are older than the call.
    """

    def __init__(self, vm: Interpreter, args: Any) -> None:
        self.vm, self.args = vm, args
        self.call = vm.gradients.here(vm, "torch.utils.checkpoint is called")
        self.read: dict[tuple[str, int, str], Any] = {}
        self.tensors: list[Tensor] = []
        self.results: list[Tensor] = []
        self.values: list[list[Any]] = []
        self.versions: list[tuple[int, bool]] = []

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Note what is read meanwhile."""
        journal, nodes = self.vm.effects, self.vm.out.graph.nodes
        known, last, outer = set(self.vm.created), next(iter(reversed(nodes)), None), journal.read
        journal.read = self.read
        try:
            yield
        finally:
            journal.read = outer
            if outer is not None:
                outer.update(self.read)
        made = self.vm.created.keys() - known
        self.read = {key: owner for key, owner in self.read.items() if id(owner) not in made}
        self._note_tensors(last)

    def _note_tensors(self, last: fx.Node | None) -> None:
        """The values from outside that nodes behind the last one take."""
        inner = set[fx.Node]()
        for node in reversed(self.vm.out.graph.nodes):
            if node is last:
                break
            inner.add(node)
        for read in {read for node in inner for read in node.all_input_nodes} - inner:
            value = read.meta.get("example_value")
            if isinstance(value, Tensor):
                self.tensors.append(value)

    def close(self, results: list[Tensor]) -> None:
        """The call has given these tensors: from now on what it has read is watched."""
        self.results = [result for result in results if result.requires_grad]
        if self.results:
            self.values, self.versions = self._values(), self._versions()
            self.vm.gradients.repeated.append(self)

    def check(self) -> None:
        """Raises GraphBreak, at the call, where backward may still come and something is not as it was."""
        what = self._changed()
        if what is not None and not any(map(is_freed, self.results)):  # else backward is done
            error = GraphBreak(
                f"{what} changes after torch.utils.checkpoint, whose function reads it again in backward"
            )
            error.frames, error.split = self.call.frames, self.call.split
            raise error

    def _changed(self) -> str | None:
        names = [*(f"the {kind} '{name}'" for kind, _, name in self.read), "an argument"]
        for what, before, now in zip(names, self.values, self._values(), strict=True):
            if len(before) != len(now) or any(a is not b for a, b in zip(before, now, strict=True)):
                return what
        return "a tensor" if self.versions != self._versions() else None

    def _values(self) -> list[list[Any]]:
        values = [self._value(kind, owner, name) for (kind, _, name), owner in self.read.items()]
        return [[*_leaves(self.vm, value)] for value in (*values, self.args)]

    def _versions(self) -> list[tuple[int, bool]]:
        return [(int(tensor._version), self.vm.out.has_written(tensor)) for tensor in self.tensors]

    def _value(self, kind: str, owner: Any, name: str) -> Any:
        journal = self.vm.effects
        if kind == "variable":
            if id(owner) in journal.cells:
                return journal.cells[id(owner)][1]
            try:
                return owner.cell_contents
            except ValueError:  # it is empty
                return _ABSENT
        if kind == "global":
            return (
                journal.globals[id(owner), name][1]
                if (id(owner), name) in journal.globals
                else owner.get(name, _ABSENT)
            )
        if (id(owner), name) in journal.attrs:
            return journal.attrs[id(owner), name][1]
        try:
            return object.__getattribute__(owner, "__dict__").get(name, _ABSENT)
        except (AttributeError, TypeError):
            return _ABSENT


def _leaves(vm: Interpreter, value: Any, depth: int = 4) -> Iterator[Any]:
    """A value as the caller knows it, and what containers hold by now."""
    known = vm.user.by_value.get(id(value)) or vm.user.by_real.get(id(value))
    if known is not None:
        yield known.real
        value = known.value
    else:
        yield value
    if depth and type(value) in (list, tuple, dict, set):
        for item in [*value, *value.values()] if type(value) is dict else list(value):
            yield from _leaves(vm, item, depth - 1)
