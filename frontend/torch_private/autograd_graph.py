"""autograd's graph behind a tensor: its leaves, whether it was freed, what hooks there are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import BackwardHook

from .fake import is_leaf as is_leaf
from .fake import real_tensors


def nodes_behind(tensors: Sequence[Tensor], ends: Collection[Any] = ()) -> Iterator[Any]:
    """The nodes that backward from these tensors may reach, each once; what lies behind `ends` is left out."""
    todo = [torch.autograd.graph.get_gradient_edge(t).node for t in tensors if t.requires_grad]
    seen: set[Any] = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        if node in ends:
            continue
        todo += [following for following, _ in node.next_functions if following is not None]


def leaf_of(node: Any) -> Tensor | None:
    """The leaf whose gradient a node accumulates."""
    return node.variable if type(node).__name__ == "AccumulateGrad" else None


def is_freed(tensor: Tensor) -> bool:
    """Whether backward from here would meet what an earlier one has freed."""
    return any(_is_freed(node) for node in nodes_behind([tensor]))


def _is_freed(node: Any) -> bool:
    kind: Any = type(node)
    for name in _saved(kind):
        try:
            getattr(node, name)
        except RuntimeError as error:
            if "backward through the graph a second time" in str(error):
                return True
    return False


@cache
def _saved(kind: type) -> list[str]:
    """The attributes of a node by which the tensors that it saves are read; sizes are not among them."""
    names = dir(kind)
    return [n for n in names if n.startswith("_saved_") and f"_raw{n}" in names] + ["saved_tensors"] * (
        "saved_tensors" in names
    )


def has_leaf_hooks(tensor: Tensor) -> bool:
    """Whether something of the program's looks at the gradient of a leaf, or takes it, before or when `.grad` is set."""
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None)) or is_held(tensor)


def tensor_hooks(tensor: Tensor) -> tuple[Any, ...]:
    """What `register_hook` was given."""
    return tuple((tensor._backward_hooks or {}).values())


def accumulated_hooks(tensor: Tensor) -> tuple[Any, ...]:
    """What `register_post_accumulate_grad_hook` was given."""
    return tuple((getattr(tensor, "_post_accumulate_grad_hooks", None) or {}).values())


# Where a leaf keeps its hooks, and how they are read.
HOOKS_OF_LEAVES = ("_backward_hooks", tensor_hooks), ("_post_accumulate_grad_hooks", accumulated_hooks)
APPLY_ON_TENSORS = (
    BackwardHook._apply_on_tensors
)  # gives a module's inputs, or outputs, a node of their own for its hooks


def is_held(tensor: Tensor) -> bool:
    """Whether C++ may take a leaf's gradient away (DDP).

    What it adds to the node that accumulates is not listed anywhere: with processes that talk to each other, a node that somebody
    holds counts as such.
    """
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and _is_held(tensor)


def _is_held(tensor: Tensor) -> bool:
    if not tensor.is_leaf or not tensor.requires_grad:
        return False

    def metadata() -> dict[str, Any]:
        node: Any = torch.autograd.graph.get_gradient_edge(tensor).node
        return node.metadata  # type: ignore[no-any-return]

    with real_tensors():  # the answer is a real tensor's, and torch looks at a view of it
        metadata()["intarsia"] = True  # a node that nobody holds is gone after this line
        return bool(metadata().pop("intarsia", False))


def hooks_on_saving() -> bool:
    """Whether hooks of the program's are given what is saved for backward."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


SAVING = torch._C._autograd  # the functions that hooks on saved tensors are set and taken back with
PUSH_HOOKS, POP_HOOKS = SAVING._push_saved_tensors_default_hooks, SAVING._pop_saved_tensors_default_hooks
FORBID_HOOKS, ALLOW_HOOKS = SAVING._saved_tensors_hooks_disable, SAVING._saved_tensors_hooks_enable
WHY_FORBIDDEN = SAVING._saved_tensors_hooks_get_disabled_error_message


class _Own(threading.local):
    def __init__(self) -> None:
        self.traced: list[
            bool
        ] = []  # for each of our hooks that are set, whether torch's tracers passed hooks over before


_OWN = _Own()


def push_hooks(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> None:
    """Set hooks of our own on what is saved for backward, on this thread, also where torch traces."""
    PUSH_HOOKS(pack, unpack)
    _OWN.traced.append(SAVING._saved_tensors_hooks_set_tracing(False))


def pop_hooks() -> None:
    """Take the last ones back."""
    POP_HOOKS()
    SAVING._saved_tensors_hooks_set_tracing(_OWN.traced.pop())


class _Kept:
    """What stands for a tensor that was saved: the tensor, then what the program's hook makes of it."""

    def __init__(self, value: Any) -> None:
        self.value = value


def after_the_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function; the program's hooks see what it saves when it has done all, its writes too.

    What a hook raises is the program's own (a checkpoint ends its second computation so): it is marked with `of_program`.
    """

    def call(*args: Any) -> Any:
        hooks = SAVING._top_saved_tensors_default_hooks(True)
        if hooks is None:
            return function(*args)
        saved, (pack, unpack) = list[_Kept](), hooks

        def keep(tensor: Tensor) -> _Kept:
            saved.append(_Kept(tensor))
            return saved[-1]

        PUSH_HOOKS(keep, lambda kept: unpack(kept.value))
        try:
            results = function(*args)
        finally:
            POP_HOOKS()
        try:
            with torch.no_grad():
                for kept in saved:
                    kept.value = pack(kept.value)
        except BaseException as error:
            error.of_program = True  # type: ignore[attr-defined]
            raise
        finally:
            saved.clear()  # autograd may hold `keep`
        return results

    return call


def hook_keeper() -> Callable[[], None]:
    """What takes back hooks of our own that are set from now on and still are, as a graph was left by an exception.

    A tracer that passes hooks over has left, too, and says so no more.
    """
    before = len(_OWN.traced)

    def restore() -> None:
        while before < len(_OWN.traced):
            POP_HOOKS()
            _OWN.traced.pop()

    return restore


class _NotArriving(threading.local):
    """Of the call of a backward half that this thread is about to make: which of the gradients that it takes do not arrive."""

    now: frozenset[int] = frozenset()  # no context variable: torch calls backward in a context of its own

    def taken(self) -> frozenset[int]:
        """They, once."""
        missing, self.now = self.now, frozenset()
        return missing


NOT_ARRIVING = _NotArriving()


def set_versions(tensors: list[Tensor], versions: list[int]) -> None:
    """Say how often tensors were written to (torch 2.11 to 2.13)."""
    torch._C._autograd._unsafe_set_version_counter(tuple(tensors), tuple(versions))
