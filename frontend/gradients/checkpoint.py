"""`torch.utils.checkpoint`: the function is part of the graph, its nodes are marked to be computed again in backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint as checkpoints

from ..calls.registry import Rows
from ..errors import GraphBreak
from ..state import Interpreter
from ..values.kinds import isinstance, tensors_in
from .state import VisibleState

__all__ = ["ROWS"]

ROWS = Rows()


@ROWS.rule(checkpoints.checkpoint)
def _checkpoint(
    vm: Interpreter,
    function: Any,
    *args: Any,
    use_reentrant: Any = None,
    context_fn: Any = checkpoints.noop_context_fn,
    determinism_check: Any = "default",
    debug: Any = False,
    early_stop: Any = True,
    preserve_rng_state: Any = True,
    **kwargs: Any,
) -> Any:
    """Random numbers that are drawn inside are saved, so that both computations see the same."""
    if use_reentrant is None or context_fn is not checkpoints.noop_context_fn or debug:
        raise GraphBreak("torch.utils.checkpoint is called with options that capture does not follow")
    if not torch.is_grad_enabled():  # nothing is computed again
        return vm.call(function, args, kwargs)
    if use_reentrant and not any(isinstance(a, Tensor) and a.requires_grad for a in args):
        raise GraphBreak("torch.utils.checkpoint with use_reentrant=True is given no tensor that requires gradients")
    if not preserve_rng_state:
        raise GraphBreak("torch.utils.checkpoint with preserve_rng_state=False draws other numbers in backward")
    state = VisibleState(vm)
    with vm.out.computed_again():
        result = vm.call(function, args, kwargs)
    if state.is_changed():
        raise GraphBreak("a function under torch.utils.checkpoint changes something, which eager does twice")
    vm.out.keep(list(tensors_in(result)))
    return result
