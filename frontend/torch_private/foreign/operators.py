"""Library calls on tensors that the IR cannot hold: quantized ones and those in sparse layouts.

Such a *foreign* tensor stands in a graph as its *parts*, which are plain tensors: integers, scale and zero point; indices and values. A call
of torch's on one is one operator here, `call(tensors, sizes, what)`: it puts foreign arguments together, calls the function that `what` names
and takes the results apart. Its derivative calls the function again. `what` is JSON, and says of each result what was planned: where
a call gives something else it raises `Unlike`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from ....ir.dialects.aten import DIRECT
from .parts import constant, is_foreign
from .plans import plan_of, planned_in, read

__all__ = ["NAMESPACE", "as_called", "call_operator"]

NAMESPACE = "intarsia_foreign"
_LIBRARY: list[torch.library.Library] = []  # a Library takes its operators away when it is collected


def call_operator() -> Any:
    """`call(Tensor[] tensors, SymInt[] sizes, str what) -> Tensor[]`."""
    return torch.ops.intarsia_foreign.call.default


def _run(tensors: list[Tensor], sizes: list[int], what: str) -> list[Tensor]:
    with as_called():
        return _run_directly(tensors, sizes, what)


def _run_directly(tensors: list[Tensor], sizes: list[int], what: str) -> list[Tensor]:
    """The operator on real tensors, as a host program calls it: torch's dispatcher does nothing for it."""
    if torch.is_grad_enabled():
        with torch.no_grad():
            return _run_directly(tensors, sizes, what)
    plan = plan_of(what)
    value = plan.call(tensors, sizes)
    if plan.is_plain(value):
        return [_laid(_own(value, tensors), plan.results[4])]
    held, made = list(tensors), list[Tensor]()
    for part, planned, _ in plan.taken(value, tensors, sizes):
        part = _own(part, held)
        held.append(part)
        made.append(_laid(part, planned[4]))
    return made


def _own(part: Tensor, held: list[Tensor]) -> Tensor:
    """A result as one of an operator, which shares no memory with others."""
    copied = part.requires_grad or _shares(part, held)
    return part.detach().clone(memory_format=torch.preserve_format) if copied else part


def _shares(part: Tensor, held: list[Tensor]) -> bool:
    """Whether a tensor shares memory with others; of tensors without any, torch is asked."""
    memory = part.untyped_storage().data_ptr()
    if memory == 0:
        return any(_SHARES(part, each) for each in held)
    for each in held:  # noqa: SIM110
        if each.untyped_storage().data_ptr() == memory:
            return True
    return False


_SHARES: Any = torch._C._is_alias_of  # type: ignore[attr-defined]


def _laid(part: Tensor, order: Any) -> Tensor:
    """A result in the strides that were planned."""
    if order is None:
        return part.contiguous()
    back = [order.index(d) for d in range(len(order))]
    return part.permute(order).contiguous().permute(back)


def _like(tensors: list[Tensor], sizes: list[Any], what: str) -> list[Tensor]:
    """Fake results, of the sizes that were planned."""
    fresh: dict[int, Any] = {}

    def size(given: Any) -> Any:
        if isinstance(given, list) and given[0] == "unknown":
            if given[1] not in fresh:
                fresh[given[1]] = torch.library.get_ctx().new_dynamic_size()
            return fresh[given[1]]
        return read(given, sizes)

    made = []
    for planned in planned_in(plan_of(what).results):
        _, shape, dtype, device, order = planned
        shape = [size(n) for n in shape]
        order = range(len(shape)) if order is None else order
        like = torch.empty([shape[d] for d in order], dtype=constant(dtype), device=constant(device))
        made.append(like.permute([list(order).index(d) for d in range(len(shape))]))
    return made


def _first(given: list[Tensor], needed: list[int], grads: list[Tensor], sizes: Any, what: str, again: bool) -> Any:
    """Gradients of a call, recorded themselves if it is to be differentiated `again`."""
    plan = plan_of(what)
    found = plan.taken(plan.call(given, sizes), given, sizes)
    floats = [(part, of) for part, _, of in found if part.is_floating_point() or part.is_complex()]
    pairs = [_with_gradient(part, of, g) for (part, of), g in zip(floats, grads, strict=True)]
    pairs = [(one, g) for one, g in pairs if one.requires_grad]
    wanted = [given[k] for k in needed]
    if not wanted or not pairs:
        return [torch.zeros_like(t) for t in wanted]
    ones, gs = zip(*pairs, strict=True)
    results = torch.autograd.grad(ones, wanted, gs, allow_unused=True, create_graph=again)
    return [_plain(g, t) for g, t in zip(results, wanted, strict=True)]


def _plain(gradient: Tensor | None, of: Tensor) -> Tensor:
    if gradient is None:
        return torch.zeros_like(of)
    return gradient.to_dense() if is_foreign(gradient) else gradient


def _differentiated(tensors: list[Tensor], needed: list[int], grads: list[Tensor], sizes: list[int], what: str) -> Any:
    """Gradients of the tensors at the places `needed`, of those of the floating results, in order."""
    given = [t.detach().requires_grad_(k in needed) for k, t in enumerate(tensors)]
    with as_called(), torch.enable_grad():
        results = _first(given, needed, grads, sizes, what, False)
    return [torch.empty_like(tensors[k]).copy_(g) for k, g in zip(needed, results, strict=True)]


def _twice(
    tensors: list[Tensor], needed: list[int], grads: list[Tensor], again: list[Tensor], sizes: list[int], what: str
) -> Any:
    """Gradients of what `_differentiated` is given: of the tensors at the places `needed`, then of the gradients."""
    given = [t.detach().requires_grad_(k in needed) for k, t in enumerate(tensors)]
    leaves = [g.detach().requires_grad_() for g in grads]
    wanted = [*(given[k] for k in needed), *leaves]
    with as_called(), torch.enable_grad():
        found = _first(given, needed, leaves, sizes, what, True)
        pairs = [(one, g) for one, g in zip(found, again, strict=True) if one.requires_grad]
        results: Any = [None] * len(wanted)
        if pairs:
            ones, gs = zip(*pairs, strict=True)
            results = torch.autograd.grad(ones, wanted, gs, allow_unused=True)
    return [torch.empty_like(t).copy_(_plain(g, t)) for g, t in zip(results, wanted, strict=True)]


def _with_gradient(part: Tensor, of: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """A result and its gradient: of values that stand at a place twice, the gradient of what is at that place."""
    if of.layout is not torch.sparse_coo or of.is_coalesced():
        return part, gradient
    dense = torch.zeros(of.shape, dtype=gradient.dtype, device=gradient.device)
    return of, dense.index_put(tuple(of._indices()), gradient)


def as_called() -> AbstractContextManager[Any]:
    """Inside of an operator, run calls as a program's are: autograd records, and sees writes. Tried with 2.13.

    Without, `torch.sparse.softmax` of a tensor that is not coalesced has no values.
    """
    key, inside, left_out = (
        torch._C.DispatchKey,
        torch._C._dispatch_tls_local_include_set(),
        torch._C._dispatch_tls_local_exclude_set(),
    )
    for each in (key.AutogradFunctionality, key.AutogradOther, key.AutogradNestedTensor, key.ADInplaceOrView):
        left_out = left_out.remove(each)
    return torch._C._ForceDispatchKeyGuard(inside, left_out)


def _nothing(numbers: list[Any]) -> Any:
    """The gradient of a list of numbers, in the form that torch asks for."""
    return None if numbers else []


def _register() -> None:
    library = torch.library.Library(NAMESPACE, "DEF")
    unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)  # it may look at values
    tags = tuple(t for t in (torch.Tag.dynamic_output_shape, unsafe) if t is not None)
    library.define("call(Tensor[] tensors, SymInt[] sizes, str what) -> Tensor[]", tags=tags)
    library.define("backward(Tensor[] tensors, int[] needed, Tensor[] grads, SymInt[] sizes, str what) -> Tensor[]")
    library.define(
        "backward_again(Tensor[] tensors, int[] needed, Tensor[] grads, Tensor[] again, SymInt[] sizes, str what) -> Tensor[]"
    )
    library.impl("backward_again", _twice, "CompositeExplicitAutograd")
    library.impl("call", _run, "CompositeExplicitAutograd")
    DIRECT[f"aten.ops.{NAMESPACE}.call.default"] = _run_directly
    library.impl("backward", _differentiated, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::call", _like, lib=library)
    torch.library.register_fake(
        f"{NAMESPACE}::backward",
        lambda tensors, needed, *_: [torch.empty_like(tensors[k]) for k in needed],
        lib=library,
    )

    torch.library.register_fake(
        f"{NAMESPACE}::backward_again",
        lambda tensors, needed, grads, *_: [torch.empty_like(t) for t in (*(tensors[k] for k in needed), *grads)],
        lib=library,
    )

    def set_up(ctx: Any, inputs: Any, output: Any) -> None:
        tensors, sizes, what = inputs
        ctx.needed = [k for k, t in enumerate(tensors) if t.requires_grad]
        ctx.save_for_backward(*tensors)
        ctx.sizes, ctx.what = sizes, what
        ctx.floats = [t.is_floating_point() or t.is_complex() for t in output]

    def backward(ctx: Any, grads: Any) -> Any:
        tensors = list(ctx.saved_tensors)
        given = [g for g, floats in zip(grads, ctx.floats, strict=True) if floats]
        found = torch.ops.intarsia_foreign.backward(tensors, ctx.needed, given, ctx.sizes, ctx.what)
        found = dict(zip(ctx.needed, found, strict=True))
        return [found.get(k) for k in range(len(tensors))], _nothing(ctx.sizes), None

    def set_up_again(ctx: Any, inputs: Any, output: Any) -> None:
        tensors, ctx.needed, grads, ctx.sizes, ctx.what = inputs
        ctx.count = len(tensors)
        ctx.save_for_backward(*tensors, *grads)

    def backward_again(ctx: Any, again: Any) -> Any:
        saved = list(ctx.saved_tensors)
        tensors, grads = saved[: ctx.count], saved[ctx.count :]
        found = torch.ops.intarsia_foreign.backward_again(tensors, ctx.needed, grads, again, ctx.sizes, ctx.what)
        firsts = dict(zip(ctx.needed, found, strict=False))
        given = [firsts.get(k) for k in range(ctx.count)]
        return given, _nothing(ctx.needed), list(found[len(ctx.needed) :]), _nothing(ctx.sizes), None

    torch.library.register_autograd(f"{NAMESPACE}::call", backward, setup_context=set_up, lib=library)
    torch.library.register_autograd(f"{NAMESPACE}::backward", backward_again, setup_context=set_up_again, lib=library)
    _LIBRARY.append(library)


_register()
