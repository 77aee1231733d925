"""`torch.utils.checkpoint`: the function is part of the graph, its nodes are marked to be computed again in backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint as checkpoints

from ..calls.registry import Rows
from ..errors import GraphBreak
from ..graph.recompute import Choice
from ..state import Interpreter
from ..torch_private.functions import chooser_of
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
    if use_reentrant is None or debug:
        raise GraphBreak("torch.utils.checkpoint is called with options that capture does not follow")
    if not torch.is_grad_enabled():  # nothing is computed again
        return vm.call(function, args, kwargs)
    if use_reentrant and not any(isinstance(a, Tensor) and a.requires_grad for a in args):
        raise GraphBreak("torch.utils.checkpoint with use_reentrant=True is given no tensor that requires gradients")
    mark = _mark(vm, context_fn)
    state, results = VisibleState(vm), vm.fake_mode.dispatch
    before, results.draws = results.draws, False
    try:
        with vm.out.computed_again(mark):
            result = vm.call(function, args, kwargs)
        if results.draws and not preserve_rng_state:
            raise GraphBreak("torch.utils.checkpoint with preserve_rng_state=False draws other numbers in backward")
    finally:
        results.draws = results.draws or before
    if state.is_changed():
        raise GraphBreak("a function under torch.utils.checkpoint changes something, which eager does twice")
    vm.out.keep(list(tensors_in(result)))
    return result


def _mark(vm: Interpreter, context_fn: Any) -> Any:
    """What the nodes get: the program may choose operators whose values are saved (`create_selective_checkpoint_contexts`).

    Its function only says what takes memory, so nothing of it is guarded.
    """
    if context_fn is checkpoints.noop_context_fn:
        return checkpoints.CheckpointPolicy.PREFER_RECOMPUTE
    if not vm.is_created(context_fn):
        forward, backward = vm.native(context_fn)
        choice = chooser_of(forward, backward)
        if choice is not None:
            return Choice(choice)
    raise GraphBreak("torch.utils.checkpoint is called with contexts that capture does not know")
