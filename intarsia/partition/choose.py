"""Forward and backward of a training graph: what is saved in between, for the memory that there is.

With `memory_budget` 1.0 products, convolutions, attention and what else is a library's are computed once; less memory is had by
computing them again, those first that take the least time for the bytes.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import fx

from ..frontend.errors import SourceLine
from ..frontend.torch_private.joint import Joint
from ..ir.fx.importer import user_line, user_module
from ..passes.analysis.cost import GPU_SAVED, SAVED
from .costs import Kind, Value, is_on_gpu, name_of, read_values
from .cut import minimum_cut
from .layouts import lying_last
from .norms import sort_statistics
from .paddings import pad_rows
from .repeat import of_formulas, recomputed, repeat

__all__ = ["Partition", "Saved", "chosen", "split"]

_STEPS = 14  # of the search for a price: layers of a model are 1/100 apart
_DEAREST = 2.0**24  # a price above which nothing is worth saving
_PARTS, _APART, _WITHIN = 16, 0.2, 0.01  # parts of forward, and how far costs of the same are apart in and within them
_DEEPEST, _ROUNDS = 4, 4  # values of a chain that backward reads; cuts until chains are as short
_LITTLE = 4096  # bytes that may as well be kept
_FREE = 2.0**-20  # of the time, where memory alone counts


@dataclass(frozen=True)
class Saved:
    """One tensor that forward saves: the operator that makes it, its type as text, its bytes, the user's line, and the module by its path."""

    name: str
    type: str
    bytes: int
    place: SourceLine | None
    module: str = ""


@dataclass
class Partition:
    """What is saved for backward.

    Attributes:
        budget: the setting `memory_budget`.
        saved: the tensors, in the order in which forward makes them; inputs, which are there anyway, are not among them.
        again: operators that backward computes again, and how many of each.
        costly: of these the products, convolutions and other calls of libraries.
        bytes: of all that is saved; sizes that are symbols count as in the call that was captured.
        most, least: what would be saved with budgets 1.0 and 0.0.
    """

    budget: float
    saved: list[Saved] = field(default_factory=list)
    again: dict[str, int] = field(default_factory=dict)
    costly: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    most: int = 0
    least: int = 0


Chosen: TypeAlias = Callable[[dict[fx.Node, Value], list[fx.Node]], set[fx.Node] | None]


def split(
    joint: Joint, budget: float = 1.0, policy: Chosen | None = None
) -> tuple[fx.GraphModule, fx.GraphModule, Partition]:
    """Forward and backward of a joint graph, and what is saved in between: by somebody's `policy`, where it gives something."""
    pad_rows(joint)
    sort_statistics(joint.graph)
    joint = joint.again()
    values, read, saved, found = chosen(joint, budget, policy)
    copied = of_formulas(values, recomputed(values, read, saved))
    if copied:
        repeat(joint.graph, joint.late, copied, values, wait=False)
        joint = joint.again()
    forward, backward = joint.halves([*saved], lying_last(joint.graph))
    return forward, backward, found


def chosen(
    joint: Joint, budget: float, policy: Chosen | None = None
) -> tuple[dict[fx.Node, Value], list[fx.Node], set[fx.Node], Partition]:
    """What is known of each value that backward could take, what it reads of them, what is saved, and that in words."""
    read = _read(joint)
    values = read_values(joint, joint.needed(read))
    plan = _Plan(joint, values, read)
    saved = plan.saved(budget)
    asked = None if policy is None else policy(values, read)
    saved = saved if asked is None else asked
    nodes = recomputed(values, read, saved)
    again = [v for n, v in values.items() if n in nodes and (v.formula or n.target is not operator.getitem)]
    again = [v for v in again if v.kind in (Kind.FUSED, Kind.REDUCED, Kind.COSTLY)]
    found = Partition(budget, most=plan.most, least=plan.least, bytes=plan.held(saved))
    found.saved = [_saved(values[n]) for n in values if n in saved and values[n].bytes]
    found.again = dict(Counter(name_of(v.node) for v in again))
    found.costly = dict(Counter(name_of(v.node) for v in again if v.kind is Kind.COSTLY))
    return values, read, saved, found


def _saved(value: Value) -> Saved:
    meta = value.node.meta
    line = user_line(meta.get("stack_trace"))
    place = None if line is None else SourceLine(line.filename.data, line.line.data, "")
    shape = ", ".join(map(str, meta["val"].shape))
    kind = f"{str(meta['val'].dtype).removeprefix('torch.')}[{shape}]"
    return Saved(name_of(value.node), kind, value.bytes, place, user_module(meta.get("nn_module_stack")))


def _read(joint: Joint) -> list[fx.Node]:
    """What backward reads of forward, or gives as it is."""
    wanted = [*joint.gradients, *joint.kept_late]
    read = {n for n in wanted if isinstance(n, fx.Node) and n not in joint.late}
    for node in joint.needed(wanted) & joint.late:
        read.update(n for n in node.all_input_nodes if n not in joint.late)
    return [n for n in joint.graph.nodes if n in read]


class _Plan:
    """Choices for one joint graph."""

    def __init__(self, joint: Joint, values: dict[fx.Node, Value], read: Iterable[fx.Node]) -> None:
        self.joint, self.values, self.read = joint, values, list(read)
        self.price = GPU_SAVED if any(map(is_on_gpu, values)) else SAVED
        self.factor = {n: _factor(i / len(values)) for i, n in enumerate(values)}
        self.most = self.least = 0
        self.kept = set[fx.Node]()  # what is not computed again, so that chains are short

    def held(self, saved: Iterable[fx.Node]) -> int:
        """The bytes that are saved."""
        return sum(self.values[n].bytes for n in saved)

    def saved(self, budget: float) -> set[fx.Node]:
        """The nodes whose values are saved; `most` and `least` are known afterwards, with budget 1.0 `most` alone."""
        fastest = self._cut(self.price, costly=False, apart=False)
        for _ in range(_ROUNDS):
            deep = self._deep(fastest) if budget >= 1.0 else ()
            if not deep:
                break
            self.kept.update(deep)
            fastest = self._cut(self.price, costly=False, apart=False)
        self.most = self.held(fastest)
        if budget >= 1.0:
            return fastest
        best = self._cut(1.0, costly=True, time=_FREE)
        self.least = self.held(best)
        limit = self.least + budget * (self.most - self.least)
        low, high = self.price, _DEAREST  # the price of a byte: as low as the limit allows
        for _ in range(_STEPS if limit > self.least else 0):
            price = (low * high) ** 0.5
            found = self._cut(price, costly=True)
            if self.held(found) <= limit:
                high, best = price, found
            else:
                low = price
        return best

    def _deep(self, saved: set[fx.Node]) -> list[fx.Node]:
        """What to save in long chains that are computed again.

        Backward reads the end of a chain first: all that it reads of the chain itself, later, would lie in memory from then on.
        """
        nodes, read, depth = recomputed(self.values, self.read, saved), set(self.read), dict[fx.Node, int]()
        sources = {s for n in nodes for s in self.values[n].sources}
        found = []
        for node, value in self.values.items():
            if node in nodes:
                depth[node] = max((depth.get(s, 0) for s in value.sources), default=0)
                depth[node] += node in read and value.bytes > _LITTLE
                if depth[node] > _DEEPEST and node in sources and value.save is not None:
                    depth[node] = 0
                    found.append(node)
        return found

    def _cut(self, price: float, *, costly: bool, time: float = 1.0, apart: bool = True) -> set[fx.Node]:
        """What is saved where a byte that is held costs as much as `price` bytes that are moved; equal layers differ if `apart`."""

        def save(value: Value) -> float | None:
            return None if value.save is None or value.marked else time * value.save + price * value.bytes

        def again(value: Value) -> float | None:
            if (
                value.again is None
                or value.node in self.kept
                or (value.kind is Kind.COSTLY and not (costly or value.marked))
            ):
                return None
            return time * value.again * (self.factor[value.node] if apart else 1.0)

        return minimum_cut(self.values, self.read, save, again)


def _factor(place: float) -> float:
    """What the cost of a computation is multiplied by that stands at `place` of forward, from 0 to 1.

    Equal layers would all be saved at one price, or none of them. So parts of forward differ, such that those that are saved at any
    price lie evenly: what is computed again at one time, and lies in memory then, is what stands between two of them.
    """
    part = int(place * _PARTS)
    reverse = int(f"{part:0{_PARTS.bit_length() - 1}b}"[::-1], 2) / _PARTS
    return 1.0 + _APART * reverse + _WITHIN * place
