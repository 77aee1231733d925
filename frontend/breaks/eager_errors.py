"""What eager says where an operator refuses fake tensors: kinds and messages of torch's fake kernels are not always those of the real ones.

The program may catch the error, or find it on its way. So the operator runs once more, on real tensors of the same kinds, all zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import GraphBreak, UserRaise
from ..torch_private.fake import FakeTensor, real_tensors
from ..torch_private.functions import OpOverload, OpOverloadPacket
from ..torch_private.symbols import hint_of
from ..values.kinds import SYMBOLIC, isinstance

__all__ = ["NotRun", "Run", "asked_of_eager", "eagers_error", "said_by_eager"]

_MOST = 1 << 26  # bytes of all tensors; more than that is not made for a message


Run = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]


def _plainly(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return function(*args, **kwargs)


def eagers_error(
    op: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception, run: Run
) -> UserRaise | GraphBreak:
    """The error that the program gets; a break where eager does not refuse the call. Sizes are what they are in this call from here on."""
    if _BY_AUTOGRAD in str(
        error
    ):  # it is autograd's, which does not ask what a tensor holds; the real ones here are no views
        return UserRaise(error)
    try:
        found = _run(op, target, args, kwargs, _number, run=run)
    except NotRun:
        return UserRaise(error)
    if found is not None:
        return UserRaise(found)
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return GraphBreak(f"eager carries out a call that only fake tensors refuse: {said}")


def said_by_eager(
    op: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], run: Run | None = None
) -> Exception | None:
    """The error of a call on zeros; None where there is none, or where it cannot be run. Nothing is guarded. `run` makes the call."""
    try:
        return _run(op, target, args, kwargs, _in_this_call, run=run or _plainly)
    except NotRun:
        return None


def asked_of_eager(
    op: str, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], most: int, draws: bool, run: Run = _plainly
) -> Exception | None:
    """The error of a call on zeros of `most` bytes, None where there is none. Raises NotRun where it cannot be run. Nothing is guarded.

    `draws`: it may draw random numbers, whose generator is set back.
    """
    return _run(op, target, args, kwargs, _in_this_call, most, draws, run)


def _in_this_call(leaf: Any) -> Any:
    """What a number is; of one that only the running program knows nothing can be asked."""
    if not isinstance(leaf, SYMBOLIC):
        return leaf
    number = hint_of(leaf)
    if number is None:
        raise NotRun
    return number


_BY_AUTOGRAD = "is a view and is being modified inplace"


_Laid = tuple[tuple[int, ...], tuple[int, ...], int]  # sizes, strides, offset


class NotRun(Exception):
    """A call that is not made with real tensors."""


def _run(
    op: str,
    target: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    number: Callable[[Any], Any],
    most: int = _MOST,
    draws: bool = True,
    run: Run = _plainly,
) -> Exception | None:
    """The error of the call on zeros, of `most` bytes; `number` gives a number for what may be a symbol."""
    if not _is_torchs(target):
        raise NotRun
    leaves, tree = pytree.tree_flatten((tuple(args), dict(kwargs)))
    fakes = [t for t in leaves if isinstance(t, Tensor)]
    if any(type(t) is not FakeTensor or t.layout != torch.strided for t in fakes):
        raise NotRun

    def plain(sizes: Sequence[Any]) -> tuple[int, ...]:
        return tuple(int(number(n)) for n in sizes)

    sizes: list[_Laid] = []
    try:
        numbers = [number(leaf) for leaf in leaves]
        for fake in fakes:
            sizes.append((plain(fake.shape), plain(fake.stride()), int(number(fake.storage_offset()))))
    except Exception:  # of sizes that values decide nothing is known
        raise NotRun from None
    elements = [_elements(shape, strides, offset) for shape, strides, offset in sizes]
    if sum(count * t.element_size() for count, t in zip(elements, fakes, strict=True)) > most:
        raise NotRun
    states = [d for d in {t.device.index for t in fakes if t.device.type == "cuda"} if d is not None]
    with real_tensors(), torch.random.fork_rng(states, enabled=draws):
        ahead = iter(zip(fakes, sizes, elements, strict=True))
        real = list[Any](numbers)
        for place in (k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)):
            real[place] = _real(*next(ahead))
        made_args, made_kwargs = pytree.tree_unflatten(real, tree)
        try:
            if op == "call_method":
                run(getattr(made_args[0], target), made_args[1:], made_kwargs)
            else:
                run(target, made_args, made_kwargs)
        except Exception as found:
            found.__traceback__ = found.__context__ = None
            return found
    return None


def _elements(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> int:
    return 1 + offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if n)


def _is_torchs(target: Any) -> bool:
    if isinstance(target, OpOverload | OpOverloadPacket):
        return str(target).startswith("aten.")
    return isinstance(target, str) or (getattr(target, "__module__", None) or "torch").partition(".")[0] in _OF_TORCH


_OF_TORCH = ("torch", "_operator")


def _number(leaf: Any) -> Any:
    if not isinstance(leaf, SYMBOLIC):
        return leaf
    return (
        float(leaf)
        if isinstance(leaf, torch.SymFloat)
        else bool(leaf)
        if isinstance(leaf, torch.SymBool)
        else int(leaf)
    )


def _real(fake: Tensor, laid: _Laid, elements: int) -> Tensor:
    shape, strides, offset = laid
    memory = torch.zeros(elements if math.prod(shape) else 0, dtype=fake.dtype, device=fake.device)
    made = torch.empty(0, dtype=fake.dtype, device=fake.device)  # no view of the memory, as autograd sees it
    made.set_(memory.untyped_storage(), offset if math.prod(shape) else 0, shape, strides)
    made = made.requires_grad_() if fake.requires_grad and fake.is_leaf else made
    made = made.conj() if fake.is_conj() else made
    return made._neg_view() if fake.is_neg() else made
