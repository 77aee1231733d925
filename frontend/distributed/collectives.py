"""Calls by which processes talk (`dist.all_reduce` and its like) as operators of the graph, in the program's order.

Each call is an operator that gives a new tensor, the wait for it, and a write to the tensor that the program named. What such a
call takes is said beside it; all others break the graph, and eager answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..calls.registry import Rows, Then
from ..errors import GraphBreak
from ..guards import process_state
from ..state import Interpreter
from ..torch_private.distributed import RESOLVE_GROUP, WORLD, default_group, group_facts, group_rank
from ..torch_private.dtensor import questions
from ..values.kinds import isinstance
from .tensors import asked, from_local

__all__ = ["ROWS", "Finished"]

ROWS = Rows()


class Finished:
    """What a call with `async_op=True` gives: the graph has waited for the result where it is first read."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True


def _group(vm: Interpreter, group: Any) -> tuple[str, int, int]:
    """Name of a group of processes, how many they are, the place of this one; with guards that ask again."""
    facts = process_state.ask(vm, group_facts, (group,), {})
    if facts is None:
        raise GraphBreak("processes talk in a group that this one is not part of")
    name, size, rank = facts
    return name, size, rank


def _operator(name: str) -> Any:
    return getattr(torch.ops._c10d_functional, name).default


def _reduction(op: Any) -> str:
    kind = op.op if isinstance(op, dist.ReduceOp) and hasattr(op, "op") else op
    name = next((n for n in _REDUCTIONS if kind == getattr(dist.ReduceOp, n)), None)
    if name is None:
        raise GraphBreak("processes talk about a reduction that is no plain one")
    return name.lower()


_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def _check(*tensors: Any) -> None:
    """What collectives take here: tensors without gaps, real, that autograd does not follow."""
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise GraphBreak("processes talk about something that is no tensor")
        if tensor.is_complex() or not tensor.is_contiguous():
            raise GraphBreak("processes talk about a tensor that is complex or has gaps")
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise GraphBreak("processes talk about a tensor that autograd follows")


def _told(vm: Interpreter, name: str, *args: Any) -> Tensor:
    """The result of a collective, waited for."""
    made = vm.out.call_function(_operator(name), args, {})
    result: Tensor = vm.out.call_function(_operator("wait_tensor"), (made,), {})
    return result


def _write(vm: Interpreter, target: Tensor, result: Tensor) -> None:
    if target.numel() != result.numel() or target.dtype != result.dtype:
        raise GraphBreak("processes talk about a result that has other sizes than the tensor for it")
    if tuple(target.shape) != tuple(result.shape):
        result = vm.out.call_method("view", (result, tuple(target.shape)), {})
    vm.out.call_method("copy_", (target, result), {})


def _rule(*functions: Any) -> Callable[[Any], Any]:
    """A rule whose call may be asynchronous: `apply` gets the group's facts behind the arguments."""

    def add(apply: Callable[..., None]) -> Any:
        @ROWS.rule(*functions)
        def call(vm: Interpreter, *args: Any, async_op: Any = False, **kwargs: Any) -> Any:
            if type(async_op) is not bool:
                raise GraphBreak("processes talk, and whether they wait is no constant")
            apply(vm, *args, **kwargs)
            return vm.create(Finished()) if async_op else None

        return call

    return add


if dist.is_available():

    @_rule(dist.all_reduce)
    def _all_reduce(vm: Interpreter, tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        _check(tensor)
        kind, (name, _, _) = _reduction(op), _group(vm, group)
        _write(vm, tensor, _told(vm, "all_reduce", tensor, kind, name))

    @_rule(dist.broadcast)
    def _broadcast(vm: Interpreter, tensor: Any, src: Any = None, group: Any = None, group_src: Any = None) -> None:
        _check(tensor)
        name, _, _ = _group(vm, group)
        root = process_state.ask(vm, group_rank, (group, src, group_src), {})
        _write(vm, tensor, _told(vm, "broadcast", tensor, root, name))

    @_rule(dist.all_gather_into_tensor)
    def _all_gather_into(vm: Interpreter, output_tensor: Any, input_tensor: Any, group: Any = None) -> None:
        _check(output_tensor, input_tensor)
        name, size, _ = _group(vm, group)
        _check_rows(output_tensor, input_tensor, size)
        _write(vm, output_tensor, _told(vm, "all_gather_into_tensor", input_tensor, size, name))

    @_rule(dist.all_gather)
    def _all_gather(vm: Interpreter, tensor_list: Any, tensor: Any, group: Any = None) -> None:
        parts = list(tensor_list)
        _check(*parts, tensor)
        name, size, _ = _group(vm, group)
        if len(parts) != size or not tensor.dim() or any(tuple(p.shape) != tuple(tensor.shape) for p in parts):
            raise GraphBreak("processes talk about parts of different sizes")
        result = _told(vm, "all_gather_into_tensor", tensor, size, name)
        for part, found in zip(parts, vm.out.call_method("chunk", (result, size), {}), strict=True):
            _write(vm, part, found)

    @_rule(dist.reduce_scatter_tensor)
    def _reduce_scatter_tensor(
        vm: Interpreter, output: Any, input: Any, op: Any = dist.ReduceOp.SUM, group: Any = None
    ) -> None:
        _check(output, input)
        kind, (name, size, _) = _reduction(op), _group(vm, group)
        _check_rows(input, output, size)
        flat = vm.out.call_method("view", (input, (-1,)), {})
        _write(vm, output, _told(vm, "reduce_scatter_tensor", flat, kind, size, name))

    @_rule(dist.reduce_scatter)
    def _reduce_scatter(
        vm: Interpreter, output: Any, input_list: Any, op: Any = dist.ReduceOp.SUM, group: Any = None
    ) -> None:
        parts = list(input_list)
        _check(output, *parts)
        kind, (name, size, _) = _reduction(op), _group(vm, group)
        if len(parts) != size or any(tuple(p.shape) != tuple(output.shape) for p in parts):
            raise GraphBreak("processes talk about parts of different sizes")
        flat = vm.out.call_function(torch.cat, ([vm.out.call_method("view", (p, (-1,)), {}) for p in parts],), {})
        _write(vm, output, _told(vm, "reduce_scatter_tensor", flat, kind, size, name))

    @_rule(dist.all_to_all_single)
    def _all_to_all_single(
        vm: Interpreter,
        output: Any,
        input: Any,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        group: Any = None,
    ) -> None:
        _check(output, input)
        name, size, _ = _group(vm, group)
        if output_split_sizes or input_split_sizes or not input.dim() or input.shape[0] % size:
            raise GraphBreak("processes exchange parts of different sizes")
        each = [input.shape[0] // size] * size
        _write(vm, output, _told(vm, "all_to_all_single", input, each, each, name))


def _resolve(function: Any) -> None:
    @ROWS.rule(function)
    def resolve(vm: Interpreter, group: Any, tag: Any = "") -> Any:
        """The functional collectives' question for a group: its name, which a graph can hold."""
        if isinstance(group, dist.ProcessGroup):
            return _group(vm, group)[0]
        return Then(function, (group, tag), {}, body=True)


@ROWS.late
def _of_sharded(rows: Rows) -> None:
    if dist.is_available():
        from torch.distributed.tensor import DTensor

        rows.rule(DTensor.from_local)(from_local)
    for method, name in questions():
        rows.rule(method)(asked(name))


for _question in RESOLVE_GROUP:
    _resolve(_question)


@ROWS.rule(*WORLD)
def _world(vm: Interpreter, cls: Any) -> Any:
    return process_state.ask(vm, default_group, (), {})


def _check_rows(all_parts: Tensor, part: Tensor, size: int) -> None:
    """Parts of all processes lie one behind the other, along the first dimension or along one of their own."""
    behind = part.dim() > 0 and tuple(all_parts.shape) == (size * part.shape[0], *part.shape[1:])
    if not part.dim() or all_parts.dtype != part.dtype or not behind and tuple(all_parts.shape) != (size, *part.shape):
        raise GraphBreak("processes talk about a result that has other sizes than the tensor for it")
