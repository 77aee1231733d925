"""Hooks on saved tensors: `saved_tensors_hooks` and `save_on_cpu` in the captured code, while autograd runs on fake tensors.

Each tensor that is saved is packed and unpacked by the program's functions, which are interpreted once for tensors that look alike.
What they compute becomes two small graphs. The graph sets hooks that run them where the program sets its own (`Saving`): whoever
runs the graph under autograd (eager, AOTAutograd, the trace of a graph that takes gradients itself) has them in backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ..calls.contexts import Scope
from ..calls.registry import Rows
from ..errors import CaptureError, GraphBreak, UserRaise
from ..guards import process_state
from ..state import Interpreter
from ..torch_private.autograd_graph import (
    ALLOW_HOOKS,
    FORBID_HOOKS,
    POP_HOOKS,
    PUSH_HOOKS,
    WHY_FORBIDDEN,
    hooks_on_saving,
    pop_hooks,
    push_hooks,
)
from ..torch_private.fake import is_fake
from ..values.kinds import isinstance
from .nodes import WHOLE
from .state import VisibleState

__all__ = ["ROWS", "Saving"]

ROWS = Rows()
WHAT = "hooks on saved tensors are set"


@dataclass(frozen=True)
class _Graph:
    """What a hook computes, of values of the graph around it (by place) and of what it is given."""

    module: fx.GraphModule
    read: tuple[int, ...]


@dataclass
class Saving:
    """Sets hooks on what is saved for backward: for tensors of known looks a graph that packs, and one that unpacks.

    A call takes the values that the graphs read.
    """

    plans: dict[Any, tuple[_Graph, _Graph] | None] = field(default_factory=dict)  # None: the tensor is kept as it is
    __name__ = __qualname__ = "hooks_on_saving"

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __call__(self, *values: Any) -> None:
        def pack(tensor: Tensor) -> Any:
            plan = self.plan(tensor)
            if plan is None:
                return None, tensor
            return plan[1], plan[0].module(*(values[k] for k in plan[0].read), tensor)

        def unpack(packed: Any) -> Any:
            graph, kept = packed
            return kept if graph is None else graph.module(*(values[k] for k in graph.read), *kept)[0]

        push_hooks(pack, unpack)

    def plan(self, tensor: Tensor) -> tuple[_Graph, _Graph] | None:
        """What is done with a tensor. Where torch traces, others are leaves than in eager, and strides may differ.

        Raises:
            RuntimeError: capture has not seen a tensor like it.
        """
        own = looks(tensor)
        for count in (len(own), _GEOMETRY, _SHAPE):
            found = [plan for key, plan in self.plans.items() if key[:count] == own[:count]]
            if len({_text(plan) for plan in found}) == 1:
                return found[0]
        raise RuntimeError(f"a tensor of {tensor.dtype}{list(tensor.shape)} is saved that capture has not seen")


def _text(plan: tuple[_Graph, _Graph] | None) -> Any:
    return None if plan is None else tuple((str(g.module.graph), g.read) for g in plan)


_SHAPE, _GEOMETRY = 3, 4  # how much of what a hook can tell those have in common


def looks(tensor: Tensor) -> Any:
    """What a hook can tell of a tensor without its values."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return tensor.dtype, tensor.device, shape, strides, tensor.requires_grad, tensor.is_leaf


class Region:
    """One `with` block of the program's."""

    def __init__(self, vm: Interpreter, pack: Any, unpack: Any) -> None:
        self.vm, self.pack, self.unpack = vm, pack, unpack
        self.call = vm.gradients.here(vm, WHAT)
        self.target, self.values = Saving(), list[Any]()
        self.node = vm.out.mark(self.target, ())
        push_hooks(self._packed, lambda kept: kept)
        self.scope = Scope(vm, pop_hooks)

    def leave(self) -> None:
        """The block ends: the node of its beginning takes what the graphs read."""
        self.scope()
        out = self.vm.out
        if all(plan is None for plan in self.target.plans.values()):
            out.graph.erase_node(self.node)
            return
        nodes = [out.node(value) for value in self.values]
        late = [n for n in nodes if n.op != "placeholder" and not n < self.node]
        if late:
            raise self.refused("they read what is computed in the block")
        self.node.args = tuple(nodes)
        out.mark(pop_hooks, ())
        out.meta[WHOLE] = True

    def refused(self, why: str) -> GraphBreak:
        """The break at the beginning of the block."""
        error = GraphBreak(f"{WHAT}, and {why}")
        error.frames, error.split = self.call.frames, self.call.split
        return error

    def _packed(self, tensor: Tensor) -> Tensor:
        """Autograd saves a fake tensor: it is kept as it is, the program's functions are interpreted."""
        if not is_fake(tensor):
            self.target.plans.setdefault(looks(tensor), None)
            return tensor
        if tensor.layout is not torch.strided or any(isinstance(n, torch.SymInt) for n in tensor.shape):
            raise self.refused("a tensor is saved whose sizes change between calls, or that is sparse")
        key = looks(tensor)
        if key not in self.target.plans:
            try:
                self.target.plans[key] = self._plan(tensor)
            except (CaptureError, UserRaise) as error:
                why = (
                    error.reason if isinstance(error, CaptureError) else f"{type(error.value).__name__}: {error.value}"
                )
                raise self.refused(why) from None
        return tensor

    def _plan(self, tensor: Tensor) -> tuple[_Graph, _Graph] | None:
        vm, out = self.vm, self.vm.out
        state = VisibleState(vm, around="hooks on saved tensors")
        with out.beside([tensor]) as aside:
            packed = vm.materialize(vm.call(self.pack, (tensor,), {}))
            if packed is tensor:
                kept: list[Any] = [tensor]
            else:
                leaves, _ = pytree.tree_flatten(packed)
                kept = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
                if not all(isinstance(leaf, _CONSTANTS) for leaf in leaves if not isinstance(leaf, Tensor)):
                    raise GraphBreak("a packed tensor is an object that is more than tensors and constants")
            self._check(aside, state)
            first = self._graph(aside, kept)
        asked = len(vm.guards.parts)
        with out.beside(kept) as aside:
            again = vm.materialize(vm.call(self.unpack, (packed,), {}))
            self._check(aside, state)
            if any(part.kind == "equals" for part in list(vm.guards.parts.values())[asked:]):
                raise GraphBreak("unpacking reads what may be something else by then")
            if not isinstance(again, Tensor) or looks(again)[:_SHAPE] != looks(tensor)[:_SHAPE]:
                raise GraphBreak("unpacking gives another tensor than was packed")
            if again is tensor:
                return None
            second = self._graph(aside, [again])
        return first, second

    def _check(self, aside: Any, state: VisibleState) -> None:
        if state.is_changed():
            raise GraphBreak("they change something that the program sees")
        if aside.writes():
            raise GraphBreak("they write to a tensor that they have not made")

    def _graph(self, aside: Any, results: Sequence[Tensor]) -> _Graph:
        module, read = aside.finish(results)
        places = []
        for value in read:
            known = [k for k, v in enumerate(self.values) if v is value]
            places.append(known[0] if known else len(self.values))
            self.values += [] if known else [value]
        return _Graph(module, tuple(places))


_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout, torch.Size)


@ROWS.rule(PUSH_HOOKS)
def _push(vm: Interpreter, pack: Any, unpack: Any) -> None:
    gradients = vm.gradients
    if gradients.forbidden is not None:
        raise UserRaise(RuntimeError(gradients.forbidden))
    if process_state.ask(vm, WHY_FORBIDDEN, (), {}) is not None or not vm.dynamic.marks.gradients:
        raise GraphBreak(WHAT)
    if not gradients.regions:
        gradients.watched = hooks_on_saving()
    gradients.regions.append(Region(vm, pack, unpack))


@ROWS.rule(POP_HOOKS)
def _pop(vm: Interpreter) -> None:
    if not vm.gradients.regions:
        raise GraphBreak("hooks on saved tensors are taken back that were set before this graph")
    vm.gradients.regions.pop().leave()


@ROWS.rule(FORBID_HOOKS)
def _forbid(vm: Interpreter, message: str) -> None:
    if vm.gradients.regions:
        raise GraphBreak("hooks on saved tensors are forbidden where some are set")
    if vm.gradients.forbidden is None:
        vm.gradients.forbidding = vm.gradients.here(vm, "hooks on saved tensors are forbidden")
    vm.gradients.forbidden = message


@ROWS.rule(ALLOW_HOOKS)
def _allow(vm: Interpreter) -> None:
    if vm.gradients.forbidden is None:
        raise GraphBreak("hooks on saved tensors are allowed that were forbidden before this graph")
    vm.gradients.forbidden = None


@ROWS.rule(WHY_FORBIDDEN)
def _why_forbidden(vm: Interpreter) -> Any:
    if vm.gradients.forbidden is not None:
        return vm.gradients.forbidden
    return process_state.ask(vm, WHY_FORBIDDEN, (), {})
