"""`torch.inference_mode` inside captured code.

Capture itself never runs in it, because tensors made in it count no versions. Gradients are off instead, and the memory that is made
meanwhile is noted: results over it become inference tensors behind the graph, and what autograd refuses of them outside breaks the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import GraphBreak
from ..graph.output import INFERENCE
from ..guards.emitter import Emitter
from ..state import Interpreter
from ..torch_private.autograd_graph import is_leaf
from ..torch_private.dispatch import storage_key
from ..values.kinds import tensors_in

__all__ = ["Inference", "as_inference"]


class Inference:
    """Whether inference mode is on where capture stands, though the call began outside of it, and what was made in it."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.on = self.watches = False
        self.made: set[int] = set()  # memory, by `storage_key`

    def switch(self, on: bool) -> None:
        """Go into inference mode, or out of it."""
        self.on = on
        if on and not self.watches:
            self.watches = True
            self.vm.out.watch(self._call)

    def holds(self, tensor: Tensor) -> bool:
        """Whether the tensor is an inference tensor: its memory was made in inference mode."""
        return bool(self.made) and storage_key(tensor) in self.made

    def _call(
        self, call: Any, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], function: Any
    ) -> Any:
        given = list(tensors_in((args, kwargs)))
        return (
            self._inside(call(op, target, args, kwargs, function), given)
            if self.on
            else self._outside(given, lambda: call(op, target, args, kwargs, function))
        )

    def _inside(self, result: Any, given: list[Tensor]) -> Any:
        there = {storage_key(tensor) for tensor in given}
        for tensor in tensors_in(result):
            if tensor.requires_grad and is_leaf(tensor) and tensor.grad_fn is None and storage_key(tensor) not in there:
                raise GraphBreak("a tensor that is made in inference mode is told to require gradients")
            if storage_key(tensor) not in there:
                self.made.add(storage_key(tensor))
            elif self.vm.out.is_known(tensor):
                self.vm.out.node(tensor).meta[INFERENCE] = True
        return result

    def _outside(self, given: list[Tensor], call: Any) -> Any:
        held = [tensor for tensor in given if self.holds(tensor)]
        if held and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            raise GraphBreak("a tensor made in inference mode is used where gradients are recorded")
        before = [(tensor._version, tensor.requires_grad) for tensor in held]
        result = call()
        if before != [(tensor._version, tensor.requires_grad) for tensor in held]:
            raise GraphBreak("a tensor made in inference mode is changed outside of it")
        return result

    def statements(self, outputs: list[Tensor], emit: Emitter) -> list[str]:
        """What makes inference tensors of the graph's results, right behind the graph."""
        made = [at for at, tensor in enumerate(outputs) if self.holds(tensor)]
        return [f"out{at} = {emit.constant(as_inference, 'as_inference')}(out{at})" for at in made]


def as_inference(tensor: Tensor) -> Tensor:
    """An inference tensor over the same memory."""
    with torch.inference_mode():
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        made = made.conj() if tensor.is_conj() else made
        return made._neg_view() if tensor.is_neg() else made
