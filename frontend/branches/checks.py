"""Checks: an `if` or `assert` on a tensor of which one side raises, whatever happens on the way.

Capture goes on with the other side, and the graph gives one truth more: whether a check has failed. The entry asks it behind the graph,
in front of all effects. Where one has failed, nothing has happened that the program can see, and CPython runs the call: it raises what
it raises, with its message, its lines, and what the program did before. So a check is right whatever its side does, as long as the
call can be run again (`refusal`). All checks of a graph are read at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from ..entry.nature import calls_of, has_no_effect
from ..errors import GraphBreak, Refused
from ..regions.capture import ENDS, EXACT, WITHIN
from ..state import ASSERTED, EITHER, Interpreter
from ..torch_private.dtensor import is_composite
from ..torch_private.regions import WHILE_LOOP
from ..values.kinds import isinstance
from .asked import number_asked
from .flow import always_raises
from .random_state import devices_of
from .written import unkept

if TYPE_CHECKING:
    from ..entry.residual import Residual

__all__ = ["CHECK", "Checks"]

CHECK = "control flow depends on a tensor's value"


class Checks:
    """Those of one capture. `refused` says why there may be none; None: nothing is against them."""

    def __init__(self, refused: str | None = "") -> None:
        self.refused = refused
        self.flags: list[Tensor] = []  # each true where its check has failed
        self.relied: set[Any] = set()  # truths that are checked, as expressions
        self.begun: set[int] = set()  # those of checks behind which the graph gives what eager does, but for identity

    def takes(self, vm: Interpreter, tensor: Tensor) -> bool:
        """Whether a check of this tensor may be one of the graph's."""
        return (
            self.refused is None
            and (vm.side is None or vm.side.takes_checks)
            and not vm.out.inside
            and vm.out.is_known(tensor)
            and not is_composite(tensor)
        )

    def decide(self, vm: Interpreter, tensor: Tensor, target: int | None, likely: bool | None = None) -> bool | None:
        """The truth of a tensor: at the conditional jump to `target` that the innermost frame is in, or elsewhere.

        None where not one of the two ways leads to a `raise`. Raises GraphBreak where it is asked for by anything but a jump, unless
        it is `likely` one of the two.
        """
        if target == ASSERTED:
            return self.expect(vm, tensor, True)
        if target is None:
            known = number_asked(vm, tensor)
            if known is None and likely is not None:
                return self.expect(vm, tensor, likely)
            if known is None:
                raise GraphBreak(CHECK)
            return bool(known)
        if target == EITHER:
            return None
        frame = vm.frames[-1]
        at = frame.ip - 1
        jumps = frame.program.instructions[at].op == "POP_JUMP_IF_TRUE"
        raises = {jumps: always_raises(frame.code, target), not jumps: always_raises(frame.code, at + 1)}
        if raises[True] == raises[False]:
            return None
        return self.expect(vm, tensor, raises[False])

    def presumed(self, vm: Interpreter, tensor: Tensor, true: int, false: int) -> bool | None:
        """The truth of a part of a condition that leads to a `raise` if all parts hold: as if it did not hold; None: it is no such part.

        For parts that cannot be joined and sides that cannot be captured: where this part alone holds, the check fails for nothing.
        """
        code = vm.frames[-1].code
        raises = {True: always_raises(code, true, false), False: always_raises(code, false, true)}
        if raises[True] == raises[False] or not self.takes(vm, tensor):
            return None
        return self.expect(vm, tensor, raises[False])

    def expect(self, vm: Interpreter, tensor: Tensor, truth: bool) -> bool:
        """Go on as if this were the tensor's truth."""
        if not self.takes(vm, tensor):
            known = number_asked(vm, tensor)
            if known is not None:
                return bool(known)
            raise GraphBreak(f"{CHECK}, and {self.refused}" if self.refused else CHECK)
        flag = vm.out.call_function(torch.eq if truth else torch.ne, (tensor, 0), {})
        self.failed(vm, vm.out.call_method("reshape", (flag, ()), {}) if flag.dim() else flag)
        return truth

    def is_new(self, vm: Interpreter, expr: Any) -> bool:
        """Whether nothing checks the truth of an expression yet, from here on for the whole call."""
        if vm.side is not None or vm.out.inside:
            return True
        new = expr not in self.relied
        self.relied.add(expr)
        return new

    def failed(self, vm: Interpreter, flag: Tensor) -> None:
        """Note a check, of the side of a branch that runs or of the call."""
        (self.flags if vm.side is None else vm.side.flags).append(flag)

    def gates(self, vm: Interpreter) -> list[Tensor]:
        """Whether a check that comes before here has failed: one truth for each, those of the sides and rounds around included."""
        found, side = list(self.flags), vm.side
        while side is not None:
            found, side = [*found, *side.flags], side.outer
        return found

    def begins(self, vm: Interpreter, condition: Tensor) -> bool:
        """Check that a loop runs a round; False where there can be no check."""
        if self.refused is not None:
            return False
        self.flags.append(vm.out.call_function(torch.logical_not, (condition,), {}))
        self.begun.add(id(self.flags[-1]))
        return True

    def only_begun(self) -> bool:
        """Whether there are no checks but that loops run a round."""
        return all(id(flag) in self.begun for flag in self.flags)

    def finish(self, vm: Interpreter, body: Residual) -> tuple[int, ...]:
        """Which results of the graph say that a check has failed: one for each device."""
        if not self.flags:
            return ()
        reason = refusal(vm, self.flags, self.only_begun())
        if reason:
            raise Refused(reason)
        found: dict[torch.device, Tensor] = {}
        for flag in self.flags:
            known = found.get(flag.device)
            found[flag.device] = flag if known is None else vm.out.call_function(torch.logical_or, (known, flag), {})
        first = len(body.outputs)
        body.outputs += found.values()
        return tuple(range(first, len(body.outputs)))


def refusal(vm: Interpreter, flags: list[Tensor], ends: bool) -> str | None:
    """Why a call cannot be run again once its graph has run, or the graph cannot go on behind a check that fails; None: it can.

    `ends`: its loops end all the same.
    """
    inside = vm.gradients
    if not all(map(vm.out.is_known, flags)):
        return "backward is to do the check"
    if (written := unkept(vm)) is not None:
        return written
    if any(info.says is not None for info in vm.out.inputs.values()):
        return "the program says of a tensor of the caller's whether it requires gradients"
    if inside.hooks or inside.attached or inside.regions:
        return "hooks of the program's see the gradients"
    if any(is_composite(info.fake) or isinstance(info.fake, torch.Generator) for info in vm.out.used):
        return "the graph works on shards, or draws of a generator of the caller's"
    nodes = calls_of(vm)
    unknown = next((n for n in nodes if not has_no_effect(n)), None)
    if not ends and any(n.target is WHILE_LOOP and ENDS not in n.meta for n in nodes):
        return "a loop of the graph may not end where a check fails"
    if unknown is not None:
        return f"{unknown.name} may have an effect"
    if devices_of(vm.out.graph):
        unsafe = next((n for n in _behind(vm, flags) if _stops_device(n)), None)
        if unsafe is not None:
            return f"{unsafe.name}, behind it, stops the GPU for values that the check keeps away"
    return None


def _behind(vm: Interpreter, flags: list[Tensor]) -> list[fx.Node]:
    """The calls that may see values which no call of eager's does, as a check has failed: those behind the first one, with the graphs that they name.

    So do the rounds of a loop which holds a check, but not those of one that does in each round what eager does (`EXACT`).
    """
    nodes, modules = list(vm.out.graph.nodes), vm.out.modules
    first = vm.out.node(flags[0])
    ahead = list(dict.fromkeys(vm.out.node(flag) for flag in flags if flag is not None))
    found, seen = nodes[nodes.index(first) if first in nodes else 0 :], set[fx.Node]()
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += node.all_input_nodes
            if (
                node.op == "call_function"
                and EXACT not in node.meta
                and any(_is_graph(n) for n in node.all_input_nodes)
            ):
                found.append(node)
    named = [modules[str(n.target)] for node in found for n in node.all_input_nodes if _is_graph(n)]
    inner = [one.graph for module in named for one in module.modules() if isinstance(one, fx.GraphModule)]
    return [n for n in (*found, *(n for graph in inner for n in graph.nodes)) if n.op.startswith("call")]


def _is_graph(node: fx.Node) -> bool:
    return node.op == "get_attr" and not isinstance(node.meta.get("example_value"), Tensor)


def _stops_device(node: fx.Node) -> bool:
    """Whether a kernel of a GPU stops the process's use of it for some values: an index outside, a probability that is none."""
    if WITHIN in node.meta:
        return False
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name in ("getitem", "__getitem__", "setitem"):
        keys: list[fx.Node] = []
        fx.map_arg(node.args[1], keys.append)
        return any(isinstance(key.meta.get("example_value"), Tensor) for key in keys)
    return any(word in name for word in _STOPS)


_STOPS = ["index", "gather", "scatter", "embedding", "take", "put", "nll", "cross_entropy", "margin", "bernoulli"]
_STOPS += ["multinomial", "unpool", "ctc", "one_hot", "repeat_interleave", "bincount", "assert", "dropout_p"]
