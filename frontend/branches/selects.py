"""Both sides of a branch are computed, and `torch.where` chooses: which sides, and what must not be told from eager's.

- A side has few operators, each cheap, none of which can fail or draws random numbers.
- What is chosen is eager's bit by bit; its sizes, strides, dtype and device are those of both sides.
- Eager gives one of two tensors, where `where` gives a third. So nothing of the three is written to, and two of them are never
  handed out (`Choices.refusal`).
- Gradients: the side that was not taken gets zeros where eager gives it nothing. These have to stay zeros: where a formula on the way
  down to what both sides share is not linear with finite factors, what the side takes from there comes through a gate, which gives zeros
  for any gradient of a side that was not taken. Both sides lead to the same leaves, so that none has a gradient of zeros where eager
  has None.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, fx

from ..graph.aside import storage_of
from ..graph.output import MUTATES
from ..graph.read_sizes import ReadSizes
from ..state import Interpreter
from ..torch_private.dtensor import is_composite
from ..values.kinds import isinstance
from ..values.tensor import tensor_class
from .memory import Atom, may_be_one
from .sides import Path, Prevented, named

__all__ = ["Choices", "gate", "needed_for", "pieces_of", "taken", "unequal", "why_not", "with_nodes"]

_Result = TypeVar("_Result")

GATE = "gate"  # marks a node of a gate
_MOST = 12  # operators of a side
# Operators, by the names of functions and methods, that are cheap and fail for no values.
_CHEAP = frozenset(
    """
    add sub mul neg abs exp exp2 expm1 log log1p log2 sin cos tan tanh sigmoid relu silu gelu softplus sqrt rsqrt square reciprocal erf
    truediv div divide true_divide multiply subtract rsub clamp clamp_min clamp_max clip maximum minimum where sign floor ceil round
    trunc isfinite isnan isinf eq ne lt le gt ge logical_and logical_or logical_not and_ or_ xor invert bitwise_and bitwise_or pos lerp
    max min sum mean amax amin any all reshape view permute transpose t unsqueeze squeeze flatten expand expand_as clone detach float double to
    zeros_like ones_like full_like full scalar_tensor masked_fill isclose nan_to_num softmax log_softmax norm getattr contiguous type_as half bfloat16
    flip roll
    """.split()  # noqa: SIM905
)
# Those whose gradient of zeros is zeros for all values of their operands, which are tensors or finite numbers.
_LINEAR = frozenset(
    """
    add sub neg relu reshape view permute transpose t unsqueeze squeeze flatten expand expand_as clone sum mean float double to where
    pos getitem select contiguous masked_fill clamp clamp_min clamp_max clip flip roll
    """.split()  # noqa: SIM905
)
_SCALED = frozenset(
    ["mul", "multiply", "truediv", "div", "divide", "true_divide"]
)  # linear where one operand is a number


def pieces_of(aside: Any, inner: Any = None) -> list[fx.Node]:
    """The nodes of a side; those of the other side are behind them."""
    later = set() if inner is None else {inner._last, *inner._nodes()}
    return [node for node in aside._nodes() if node not in later and node.op.startswith(("call", "get_attr"))]


def unequal(vm: Interpreter, path: Path, a: Tensor, b: Tensor) -> None:
    """Raises Prevented where two tensors differ in what where cannot mend."""
    for one in (a, b):
        info = vm.out.inputs.get(id(one))
        if tensor_class(vm, one) is not Tensor or info is not None and info.real.__dict__:
            raise Prevented(f"{named(path)} is more than a plain tensor")
    for what, x, y in (
        ("dtype", a.dtype, b.dtype),
        ("sizes", list(a.shape), list(b.shape)),
        ("device", a.device, b.device),
        ("strides", list(a.stride()), list(b.stride())),
        ("requires_grad", a.requires_grad, b.requires_grad),
    ):
        if x != y:
            raise Prevented(f"{named(path)} has the {what} {x} on one side and {y} on the other")


def why_not(
    vm: Interpreter, predicate: Tensor, pairs: Sequence[tuple[Tensor, Tensor]], *sides: Sequence[fx.Node]
) -> str | None:
    """Why results cannot be chosen by where; None: they can."""
    for side in sides:
        odd = next((n for n in side if not is_cheap(n)), None)
        if odd is not None:
            return f"{name_of(odd)} is computed on one side"
        if sum(GATE not in node.meta for node in side) > _MOST:
            return f"a side has more than {_MOST} operators"
    for a, b in pairs:
        if is_composite(a) or is_composite(b) or a.device != predicate.device:
            return "its value lies on another device"
        if torch.where(torch.empty((), dtype=torch.bool, device=a.device), a, b).stride() != a.stride():
            return "what is chosen has strides of its own"
        if a.requires_grad and (a.is_leaf or b.is_leaf):
            return "a leaf is one of the values"
        if a.requires_grad:
            reason = gradients_differ(vm.out.node(a), vm.out.node(b), {node for side in sides for node in side})
            if reason is not None:
                return reason
    return None


def is_cheap(node: fx.Node) -> bool:
    """Whether an operator may be computed for nothing: it has no effect, fails for no values, and costs little."""
    if node.meta.get(MUTATES) or any(map(_has_unknown_sizes, node.all_input_nodes)):
        return False
    if name_of(node) == "getitem":
        return not any(isinstance(n.meta.get("example_value"), Tensor) for n in node.all_input_nodes[1:])
    return name_of(node) in _CHEAP or name_of(node) == "pow" and _is_a_power(node)


def needed_for(last: fx.Node, before: Sequence[fx.Node]) -> list[fx.Node]:
    """Of the nodes before one, those that it is computed of; all, where some of them write to what it reads."""
    found, ahead = set[fx.Node](), [last]
    while ahead:
        if (node := ahead.pop()) not in found:
            found.add(node)
            ahead += node.all_input_nodes
    written = {m for node in before if node.meta.get(MUTATES) for one in node.all_input_nodes for m in _memories(one)}
    if any(not written.isdisjoint(_memories(node)) for node in found):
        return list(before)
    return [node for node in before if node in found]


def _memories(node: fx.Node) -> list[int]:
    value = node.meta.get("example_value")
    return [storage_of(value)] if isinstance(value, Tensor) else []


def _is_a_power(node: fx.Node) -> bool:
    """Whether a node is a float tensor to the power of a number, which no value makes fail: integers refuse some."""
    base, power = (*node.args, None, None)[:2]
    value = base.meta.get("example_value") if isinstance(base, fx.Node) else None
    floats = isinstance(value, Tensor) and value.is_floating_point() and not node.kwargs
    return floats and len(node.args) == 2 and type(power) in (int, float)


def _has_unknown_sizes(node: fx.Node) -> bool:
    """Whether a size is what values decide: the operator may fail for it."""
    value = node.meta.get("example_value")
    sizes = value.shape if isinstance(value, Tensor) else ()
    return any(isinstance(n, torch.SymInt) and ReadSizes.is_read(n) for n in sizes)


def gradients_differ(a: fx.Node, b: fx.Node, gated: Collection[fx.Node]) -> str | None:
    """What of gradients would not be eager's, if those of a side that is not taken end where the nodes `gated` take what was there."""
    first, second = ancestors(a), ancestors(b)
    for node in sorted(first ^ second):
        if node.op == "placeholder":
            return "a side alone leads to a tensor that requires gradients"
        if node not in gated and not is_linear(node):
            return f"the gradient of {name_of(node)} may not be finite on the side that is not taken"
    return None


def with_nodes(vm: Interpreter, run: Callable[[], _Result]) -> tuple[_Result, list[fx.Node]]:
    """What `run` gives, and the nodes that it records; there is a node in front of them."""
    last = next(iter(reversed(vm.out.graph.nodes)))
    result, nodes, node = run(), list[fx.Node](), last.next
    while node.op != "root":
        nodes.append(node)
        node = node.next
    return result, nodes


def gate(vm: Interpreter, takes: Tensor, sides: Iterable[Sequence[fx.Node]]) -> list[Tensor]:
    """Let no gradient out of the side that is not taken: zeros, whatever comes. `takes` says whether it is the second.

    What goes through a gate: eager may save it for backward, and the graph saves another tensor.
    """
    gated: list[Tensor] = []
    for first, side in zip((True, False), sides, strict=True):
        if all(map(is_linear, side)):
            continue
        gates: dict[fx.Node, fx.Node] = {}
        for outer in dict.fromkeys(n for node in side for n in node.all_input_nodes if n not in side):
            value = outer.meta.get("example_value")
            if isinstance(value, Tensor) and value.requires_grad:
                same = vm.out.call_method("detach", (value,), {})
                made = vm.out.call_function(torch.where, (takes, *((value, same) if first else (same, value))), {})
                gates[outer] = vm.out.node(made)
                gated.append(value)
                for node in (vm.out.node(same), gates[outer]):
                    side[0].prepend(node)
                    node.meta[GATE] = True
        for node in side:
            for outer, through in gates.items():
                node.replace_input_with(outer, through)
    return gated


def ancestors(node: fx.Node) -> set[fx.Node]:
    """A node and all that its gradient comes to."""
    found: set[fx.Node] = set()
    ahead = [node]
    while ahead:
        one = ahead.pop()
        value = one.meta.get("example_value")
        if one in found or isinstance(value, Tensor) and not value.requires_grad:
            continue
        found.add(one)
        ahead += one.all_input_nodes
    return found


def is_linear(node: fx.Node) -> bool:
    """Whether zeros that arrive at a node go on as zeros."""
    name = name_of(node)
    if name in _SCALED:
        given = node.args
        numbers = [v for v in (given if name == "mul" else given[1:]) if type(v) is int or type(v) is float]
        return len(given) == 2 and any(1e-30 < abs(number) < 1e30 for number in numbers)
    if name in ("add", "sub") and len(node.args) + len(node.kwargs) > 2:  # alpha
        return False
    return name in _LINEAR and not isinstance(node.meta.get("example_value"), tuple)


def name_of(node: fx.Node) -> str:
    """The operator, by the name of its function or method; that of an attribute for what reads one."""
    target: Any = node.target
    if isinstance(target, str):
        return target
    name: str = getattr(target, "__name__", str(target))
    return name.strip("_") if name.startswith("__") else name


def taken(vm: Interpreter, predicate: Tensor) -> Tensor:
    """Whether the first side is taken, as a truth without dimensions."""
    made: Tensor = vm.out.call_function(torch.ne, (predicate, 0), {})
    return vm.out.call_method("reshape", (made, ()), {}) if made.dim() else made


class Choices:
    """What was chosen in a capture."""

    def __init__(self) -> None:
        self.may_be: dict[int, frozenset[Atom]] = {}  # by memory that was chosen: that which it is in eager
        self.made = 0  # how many choices there are
        self._alive: list[Tensor] = []
        # What a loop gives, what it is in eager where there is no round, and the condition of the first one.
        self.unless: list[tuple[Tensor, Tensor, Tensor, int]] = []
        self.gated: list[tuple[int, Tensor]] = []  # what goes through gates, behind so many writes
        # By identity what where chose: itself, the truth by which, and the two.
        self.pairs: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        # What the entry gives out in the place of one of these, by memory: what it chose is what is left of it.
        self.picked: dict[int, tuple[Tensor, frozenset[Atom]]] = {}

    def choose(self, vm: Interpreter, first: Tensor, pairs: Iterable[tuple[Tensor, ...]]) -> list[Tensor]:
        """What is behind the branch for each pair, if a truth says whether the first side is taken."""
        out, choice = vm.out, self.new()
        known: dict[tuple[int, int], Tensor] = {}
        for a, b in (pairs := list(pairs)):
            if (id(a), id(b)) not in known:
                made = a if a is b else out.call_function(torch.where, (first, a, b), {})
                known[id(a), id(b)] = made
                if made is not a:
                    self.note_either(made, first, a, b, choice)
        return [known[id(a), id(b)] for a, b in pairs]

    def new(self) -> int:
        """A name for a choice."""
        self.made += 1
        return self.made

    def note_either(self, made: Tensor, first: Tensor, a: Tensor, b: Tensor, choice: int) -> None:
        """`made` stands for `a` where a choice goes its first way, as the truth `first` says, else for `b`."""
        self.pairs[id(made)] = made, first, a, b
        self.note(made, a, (choice, 0))
        self.note(made, b, (choice, 1))

    def note(self, made: Tensor, other: Tensor, *ways: tuple[int, int]) -> None:
        """`made` stands for `other` where choices go these ways."""
        self._alive += [made, other]
        found = self.may_be.get(_memory(other)) or {(_memory(other), frozenset[tuple[int, int]]())}
        self._add(made, *((m, before.union(ways)) for m, before in found))

    def note_shared(self, first: Tensor, second: Tensor) -> None:
        """These two stand for one tensor, or for two."""
        self._alive += [first, second]
        both = (-self.new(), frozenset[tuple[int, int]]())  # memory that only eager has
        for tensor in (first, second):
            self._add(tensor, both)

    def _add(self, made: Tensor, *atoms: Atom) -> None:
        memory = _memory(made)
        self.may_be[memory] = self.may_be.get(memory, frozenset()).union(atoms)

    def note_first(self, made: Tensor, before: Tensor, condition: Tensor, loop: int) -> None:
        """`made` stands for `before` where a condition does not hold: where this loop has no round."""
        self._alive += [made, before]
        self._add(made, (_memory(made), frozenset()))
        self.unless.append((made, before, condition, loop))

    def pick(self, vm: Interpreter, tensor: Tensor) -> tuple[Tensor, list[Tensor | None]] | None:
        """How the entry gives out one of the caller's tensors, or what was computed: the truth that says which; None for what was computed.

        None where neither of the two is of the caller's memory: nobody can tell what was computed from one that eager has.
        """
        made, takes, *both = self.pairs.get(id(tensor), (None, None))
        if made is not tensor or takes is None or vm.exporting or not vm.out.is_known(tensor):
            return None
        given = {
            _memory(i.fake) for i in vm.out.inputs.values() if isinstance(i.fake, Tensor) and not is_composite(i.fake)
        }
        atoms = [self.memory_of(one) for one in both]
        callers = [not given.isdisjoint(m for m, _ in found) for found in atoms]
        known = vm.out.inputs.keys() | {id(one) for one in both if vm.out.is_known(one)}
        if not any(callers) or any(c and id(one) not in known for c, one in zip(callers, both, strict=True)):
            return None
        left = frozenset[Atom]().union(*(found for found, is_given in zip(atoms, callers, strict=True) if not is_given))
        self.picked[_memory(tensor)] = tensor, left
        return takes, [one if is_given else None for one, is_given in zip(both, callers, strict=True)]

    def memory_of(self, tensor: Tensor) -> frozenset[Atom]:
        """The memory that a tensor's may be in eager."""
        return self._relation().get(memory := _memory(tensor), frozenset([(memory, frozenset())]))

    def is_written(self, vm: Interpreter) -> bool:
        """Whether the graph, or the part of it that is being made, writes to a tensor that is one or another in eager."""
        return _concerns(self._relation(), vm.out._written)

    def is_one_of(self, tensor: Tensor) -> bool:
        """Whether a tensor's memory is one or another in eager."""
        return _concerns(self._relation(), {_memory(tensor)})

    def identity(self, vm: Interpreter, left: Tensor, right: Tensor) -> Any:
        """`left is right` in eager: True, False, or a truth of the graph where values choose; None where loops or lists do."""
        if left is right:
            return True
        for one, other in ((left, right), (right, left)):
            made, takes, first, second = self.pairs.get(id(one), (None, None, one, one))
            if made is one:
                found = self.identity(vm, first, other), self.identity(vm, second, other)
                if None in found or found[0] is found[1]:
                    return found[0] if found[0] is found[1] else None
                return vm.out.call_function(torch.where, (takes, *found), {})
        return None if self.are_among(left, right) else False

    def are_among(self, left: Any, right: Any) -> bool:
        """Whether two tensors may be one in eager."""
        if not self.may_be or not isinstance(left, Tensor) or not isinstance(right, Tensor):
            return False
        return _memory(left) != _memory(right) and may_be_one(self.memory_of(left), self.memory_of(right))

    def _relation(self) -> dict[int, frozenset[Atom]]:
        """What was chosen, with what loops give where there is no round."""
        without: dict[int, frozenset[Atom]] = {}

        def complete(found: frozenset[Atom]) -> frozenset[Atom]:
            return found.union(*(((o, w | ways) for o, w in without.get(m, ())) for m, ways in found))

        for made, before, _, loop in self.unless:
            other = _memory(before)
            found = complete(self.may_be.get(other, frozenset([(other, frozenset())])))
            without[_memory(made)] = frozenset((memory, ways | {(loop, -1), (-loop, 0)}) for memory, ways in found)
        return {memory: complete(found) for memory, found in self.may_be.items()} if without else self.may_be

    def refusal(self, vm: Interpreter, results: Sequence[Tensor]) -> str | None:
        """Why what was chosen can be told from what eager gives; None: it cannot."""
        if any(storage_of(tensor) in vm.out.writes[count:] for count, tensor in self.gated):
            return "a tensor is written to of which one side of a branch takes gradients"  # eager may raise in backward
        if any((known := self.picked.get(_memory(t))) is not None and known[0] is not t for t in results):
            return "a view is given out of a tensor that is one of two, by a tensor's value"
        reason = self._refusal(vm, results, self._relation())
        if reason is None or self._refusal(vm, results, self.may_be) is not None:
            return reason
        # Not where each loop runs a round.
        begun = {id(condition): condition for _, _, condition, _ in self.unless}
        return None if all(vm.checks.begins(vm, condition) for condition in begun.values()) else reason

    def _refusal(self, vm: Interpreter, results: Sequence[Tensor], relation: dict[int, frozenset[Atom]]) -> str | None:
        if not relation:
            return None
        if _concerns(relation, vm.out._written):
            return "a tensor is written to that is one of two, by a tensor's value"
        inputs = [i.fake for i in vm.out.inputs.values() if isinstance(i.fake, Tensor) and not is_composite(i.fake)]
        seen = dict.fromkeys(map(_memory, (*inputs, *results)))
        relation = relation | {memory: left for memory, (_, left) in self.picked.items()}
        found = [relation[m] if m in relation else frozenset([(m, frozenset[tuple[int, int]]())]) for m in seen]
        if any(m in relation and may_be_one(a, b) for k, m in enumerate(seen) for a, b in _pairs(found, k)):
            return "a tensor is given out that is one of two, by a tensor's value"
        return None


def _pairs(found: list[frozenset[Atom]], place: int) -> list[tuple[frozenset[Atom], frozenset[Atom]]]:
    return [(found[place], other) for k, other in enumerate(found) if k != place]


def _concerns(relation: dict[int, frozenset[Atom]], memory: Collection[int]) -> bool:
    """Whether something of this memory is one or another in eager."""
    for made, atoms in relation.items():
        among = {m for m, _ in atoms}
        if among != {made} and (made in memory or not among.isdisjoint(memory)):
            return True
    return False


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
