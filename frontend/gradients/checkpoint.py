"""`torch.utils.checkpoint`: the function is part of the graph, its nodes are marked to be computed again in backward."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint as checkpoints

from ..calls.registry import Rows
from ..errors import GraphBreak
from ..graph.recompute import Choice
from ..state import Interpreter
from ..torch_private.functions import OpOverload, chooser_of
from ..values.kinds import isinstance, tensors_in
from .repeated import Repeated
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
    if use_reentrant and (kwargs or context_fn is not checkpoints.noop_context_fn):
        raise GraphBreak("torch.utils.checkpoint with use_reentrant=True is given what it does not take")
    if not torch.is_grad_enabled():  # nothing is computed again
        return vm.call(function, args, kwargs)
    if use_reentrant and not any(isinstance(a, Tensor) and a.requires_grad for a in args):
        raise GraphBreak("torch.utils.checkpoint with use_reentrant=True is given no tensor that requires gradients")
    mark = _mark(vm, context_fn)
    state, drawn = VisibleState(vm, around="torch.utils.checkpoint"), vm.fake_mode.dispatch
    before, drawn.draws = drawn.draws, False
    repeated = Repeated(vm, (function, args, kwargs))
    try:
        with vm.out.computed_again(mark), repeated.reading():
            result = vm.call(function, args, kwargs)
        if drawn.draws and not preserve_rng_state:
            raise GraphBreak("torch.utils.checkpoint with preserve_rng_state=False draws other numbers in backward")
    finally:
        drawn.draws = drawn.draws or before
    if state.is_changed():
        raise GraphBreak("a function under torch.utils.checkpoint changes something, which eager does twice")
    results = list(tensors_in(result))
    if use_reentrant and any(t.is_floating_point() and not t.requires_grad for t in results):
        raise GraphBreak("torch.utils.checkpoint with use_reentrant=True, a result of which has no gradient")
    vm.out.keep(results)
    repeated.close(results)
    return result


def _mark(vm: Interpreter, context_fn: Any) -> Any:
    """What the nodes get: the program may choose operators whose values are saved (`create_selective_checkpoint_contexts`).

    Its function only says what takes memory, so nothing of it is guarded.
    """
    if context_fn is checkpoints.noop_context_fn:
        return checkpoints.CheckpointPolicy.PREFER_RECOMPUTE
    made = vm.listed(vm.call(context_fn, (), {})) if vm.is_created(context_fn) else [*vm.native(context_fn)]
    if len(made) == 2:
        if all(type(manager) is nullcontext for manager in made):
            return checkpoints.CheckpointPolicy.PREFER_RECOMPUTE
        choice = made[0].choice if isinstance(made[0], _Chosen) and made[0] is made[1] else chooser_of(*made)
        if choice is not None:
            return Choice(choice)
    raise GraphBreak("torch.utils.checkpoint is called with contexts that capture does not know")


class _Chosen:
    """Both contexts of a selective checkpoint that are made in the captured code."""

    def __init__(self, choice: Any) -> None:
        self.choice = choice


@ROWS.rule(checkpoints.create_selective_checkpoint_contexts)
def _selective(vm: Interpreter, policy_fn_or_list: Any, allow_cache_entry_mutation: Any = False) -> Any:
    policy = policy_fn_or_list
    if vm.type_of(policy) is list:
        chosen = frozenset(vm.listed(policy))
        if not all(isinstance(operator, OpOverload) for operator in chosen):
            vm.native(checkpoints.create_selective_checkpoint_contexts, list(chosen))  # mostly an error
        made = vm.create(_Chosen(lambda context, operator, *args, **kwargs: operator in chosen))
    elif vm.is_created(policy) and getattr(policy, "__closure__", ()) is not None:
        raise GraphBreak("a policy of torch.utils.checkpoint reads what is made in the captured code")
    else:
        made = vm.create(_Chosen(policy))
    return made, made
