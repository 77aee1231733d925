"""`while_loop`, `scan` and `map`: a function that is called again and again, captured once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_true
from torch.utils import _pytree as pytree

from ..calls.registry import Rows, Then
from ..entry.nature import may_draw
from ..errors import GraphBreak
from ..state import Interpreter
from ..torch_private.regions import CALLS, DRAWS_ONCE_A_ROUND, MAP, MOVES_RESULTS, SCAN, WHILE_LOOP
from ..values.kinds import isinstance
from .capture import Body, captured, emit, is_tracked, over, read_by, result_like, rule, same, single, unlike
from .rounds import differentiated, tracked_like, with_history

__all__ = ["ROWS"]

ROWS = Rows()


@ROWS.rule(CALLS["nested_compile_region"])
def _nested_region(vm: Interpreter, function: Any, *args: Any, **kwargs: Any) -> Any:
    """The calls are parts of the graph; kernels that are the same in all of them are compiled once."""
    return Then(function, args, kwargs)


@ROWS.rule(CALLS["while_loop"])
@rule
def _while_loop(vm: Interpreter, cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    return _looped(vm, cond_fn, body_fn, carried_inputs, ())


@ROWS.rule(WHILE_LOOP)
@rule
def _while_loop_of_a_graph(vm: Interpreter, cond_fn: Any, body_fn: Any, carried_inputs: Any, more: Any = ()) -> Any:
    """The operator itself, as graphs call it: both functions take `more` behind what is carried."""
    return _looped(vm, cond_fn, body_fn, carried_inputs, tuple(vm.materialize(more)))


def _looped(vm: Interpreter, cond_fn: Any, body_fn: Any, carried_inputs: Any, more: tuple[Any, ...]) -> Any:
    vm.need_symbols()  # AOTAutograd counts the rounds by a symbol
    carried = vm.materialize(carried_inputs)
    leaves, tree = _leaves("while_loop", carried)
    if type(carried) is not tuple:
        raise GraphBreak("while_loop carries something else than a tuple")
    condition = _Loop(vm, "the condition of while_loop", leaves)
    asked = condition.capture(lambda given: (cond_fn, (*pytree.tree_unflatten(given, tree), *more)))
    tracked = [is_tracked([t]) for t in leaves]
    while True:  # until what takes gradients in one round does so in the next
        body = _Loop(vm, "the body of while_loop", leaves, tracked=tracked)
        again = body.capture(lambda given: (body_fn, (*pytree.tree_unflatten(given, tree), *more)))
        later = [a or is_tracked([t]) for a, t in zip_longest(tracked, again.results)][: len(tracked)]
        if later == tracked:
            break
        tracked = later
    if len(asked.results) != 1 or asked.results[0].shape != () or asked.results[0].dtype != torch.bool:
        raise GraphBreak("the condition of while_loop gives something else than one truth value")
    found = unlike(leaves, again.results)
    if found or not _same_nesting(again.tree, tree):
        raise GraphBreak(f"the body of while_loop does not give what it is given: {found or 'another nesting'}")
    read = read_by(asked, again)
    vm.out.modes += 1
    if is_tracked([*leaves, *read]):
        made = differentiated(vm, asked, again, leaves, read)
    else:
        made = emit(vm, WHILE_LOOP, (single(over(asked, read)), over(again, read), leaves, read), again.results)
    return pytree.tree_unflatten(made, tree)


@ROWS.rule(CALLS["scan"])
@rule
def _scan(vm: Interpreter, combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    init, xs = vm.materialize(init), vm.materialize(xs)
    leaves, tree = _leaves("scan", init)
    items, nesting = _leaves("scan", xs)
    if type(dim) is not int or type(reverse) is not bool or any(item.dim() == 0 for item in items):
        raise GraphBreak("scan is given a dimension that there is none of")
    dim = dim % items[0].dim() if -items[0].dim() <= dim < items[0].dim() else -1
    if dim < 0 or any(item.dim() <= dim for item in items):
        raise GraphBreak("scan is given a dimension that there is none of")
    if dim:
        items = [vm.call(torch.movedim, (item, dim, 0), {}) for item in items]
    if reverse:
        items = [vm.call(torch.flip, (item, [0]), {}) for item in items]
    _check_lengths("scan", items)

    def arguments(given: list[Tensor]) -> tuple[Any, tuple[Any, ...]]:
        first, rest = given[: len(leaves)], given[len(leaves) :]
        return combine_fn, (pytree.tree_unflatten(first, tree), pytree.tree_unflatten(rest, nesting))

    body = _Loop(vm, "the function of scan", leaves, items).capture(arguments)
    if not DRAWS_ONCE_A_ROUND and any(map(may_draw, body.module.graph.nodes)):
        raise GraphBreak(
            "the function of scan draws random numbers, and this torch's scan calls it once more than there are rounds"
        )
    parts = pytree.tree_unflatten(body.results, body.tree)
    if type(parts) is not tuple or len(parts) != 2:
        raise GraphBreak("the function of scan gives something else than what is carried and a result")
    carry, found = pytree.tree_flatten(parts[0])
    if not _same_nesting(found, tree) or (differs := unlike(leaves, carry)):
        raise GraphBreak(f"the function of scan does not carry on what it is given: {differs or 'another nesting'}")
    given, spread = pytree.tree_flatten(parts[1])
    read = read_by(body)
    vm.out.modes += 1
    stacked = [_stacked(items[0].shape[0], y) for y in given]
    tracked = is_tracked([*leaves, *items, *read])
    starts = with_history(vm, leaves, read) if tracked else leaves
    made = emit(vm, SCAN, (over(body, read), starts, items, read), [*carry, *stacked], tracked)
    last, out = made[: len(leaves)], list(made[len(leaves) :])
    if reverse:
        out = [vm.call(torch.flip, (y, [0]), {}) for y in out]
    if dim and MOVES_RESULTS:
        out = [vm.call(torch.movedim, (y, 0, dim), {}) if dim < y.dim() else y for y in out]
    return pytree.tree_unflatten(last, tree), pytree.tree_unflatten(out, spread)


@ROWS.rule(CALLS["map"])
@rule
def _map(vm: Interpreter, f: Any, xs: Any, *args: Any) -> Any:
    items, nesting = _leaves("map", vm.materialize(xs))
    _check_lengths("map", items)
    if not all(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves([vm.materialize(a) for a in args])):
        raise GraphBreak("map is given something else than tensors")

    def arguments(given: list[Tensor]) -> tuple[Any, tuple[Any, ...]]:
        return f, (pytree.tree_unflatten(given, nesting), *args)

    body = _Loop(vm, "the function of map", (), items).capture(arguments)
    read, stacked = read_by(body), [_stacked(items[0].shape[0], y) for y in body.results]
    vm.out.modes += 1
    made = emit(vm, MAP, (over(body, read), items, read), stacked, is_tracked([*items, *read]))
    return pytree.tree_unflatten(made, body.tree)


class _Loop:
    """A function of what is carried, then of slices."""

    def __init__(
        self,
        vm: Interpreter,
        what: str,
        carried: Sequence[Tensor],
        items: Sequence[Tensor] = (),
        tracked: Sequence[bool] = (),
    ) -> None:
        if vm.out.inside:
            raise GraphBreak(f"{what} is called inside a transform of torch.func")
        self.vm, self.what = vm, what
        likes = [tracked_like if takes else result_like for takes in (*tracked, *(False for _ in carried))]
        self.given = [*(like(t) for like, t in zip(likes, carried, strict=False)), *map(_slice, items)]

    def capture(self, arguments: Any) -> Body:
        """Its graph; `arguments` says what is called with what, of the tensors that the graph takes."""
        function, args = arguments(self.given)
        return captured(self.vm, self.what, function, args, self.given)


def _slice(item: Tensor) -> Tensor:
    """A new fake tensor that lies as a slice of this one."""
    return torch.empty_strided(tuple(item.shape[1:]), item.stride()[1:], dtype=item.dtype, device=item.device)


def _stacked(length: Any, part: Tensor) -> Tensor:
    return torch.empty((length, *part.shape), dtype=part.dtype, device=part.device)


def _leaves(what: str, value: Any) -> tuple[list[Tensor], pytree.TreeSpec]:
    leaves, tree = pytree.tree_flatten(value)
    if not leaves or not all(isinstance(leaf, Tensor) for leaf in leaves):
        raise GraphBreak(f"{what} is given something else than tensors")
    return leaves, tree


def _same_nesting(found: pytree.TreeSpec, wanted: pytree.TreeSpec) -> bool:
    """Whether two nestings are the same, or both one tensor, alone or as a tuple of one."""
    return found == wanted or found == pytree.tree_structure(0) and wanted == pytree.tree_structure((0,))


def _check_lengths(what: str, items: Sequence[Tensor]) -> None:
    if any(item.dim() == 0 or not same(item.shape[0], items[0].shape[0]) for item in items) or guard_or_true(
        items[0].shape[0] == 0
    ):
        raise GraphBreak(f"{what} is given nothing, or tensors of different lengths")
