"""Types of tensors that eager's kernels refuse and fake tensors take: a floor of bools, an order of complex numbers, a softmax of integers.

A kernel of ours would compute something, and of a result that nobody reads nothing would be heard. So eager is asked, once for each kind of
call, with zeros.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import UserRaise
from ..torch_private.functions import OpOverload, OpOverloadPacket
from ..torch_private.symbols import hint_of
from ..values.kinds import SYMBOLIC, isinstance
from .eager_errors import NotRun, Run, asked_of_eager

__all__ = ["check_types"]

_MOST = 1 << 22  # bytes of all tensors that are made to ask


def check_types(
    op: str, target: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], given: Sequence[Tensor], run: Run
) -> bool:
    """Raise eager's error where it refuses the types of the tensors, or a number for them, in this call, which `run` makes.

    Whether eager has run it now, and has warned of what it warns of.
    """
    if (
        name in _TAKE_ALL
        or _DRAW.search(name)
        or not any(_may_be_refused(name, t.dtype) for t in given)
        or not _is_known(target)
    ):
        return False
    leaves = pytree.tree_leaves((tuple(args), dict(kwargs)))
    if any(isinstance(leaf, torch.Generator) for leaf in leaves):
        return False
    said = _said((op, target, len(args), tuple(kwargs), tuple(map(_kind, leaves))))
    if asks := not said:
        try:
            found = asked_of_eager(op, target, args, kwargs, _MOST, draws=False, run=run)
        except NotRun:  # another call of this kind may be: this one is too large, say
            return False
        if isinstance(found, Warning):  # the program's filters make an error of it, in this call
            raise UserRaise(found)
        said.append(found)
    error = said[0]
    if error is None or not (isinstance(error, NotImplementedError) or _OF_TYPES.search(str(error))):
        return asks
    for number in leaves:
        if isinstance(number, SYMBOLIC):
            _ = bool(number == hint_of(number))  # a guard: another number may be taken
    raise UserRaise(type(error)(*error.args))


@cache
def _said(call: tuple[Any, ...]) -> list[Exception | None]:
    """Where eager's answer to calls of one kind stands once it was asked."""
    return []


def _may_be_refused(name: str, dtype: torch.dtype) -> bool:
    """Whether kernels of an operator may lack this type: those for floats exist nearly everywhere."""
    if dtype in (torch.float16, torch.bfloat16):
        return name.startswith("linalg_") or name in _OF_LAPACK or name in _OF_INTEGERS
    return not dtype.is_floating_point or name in _OF_INTEGERS


def _is_known(target: Any) -> bool:
    """Whether a call has no effect but on its tensors, so that it may run once more."""
    if isinstance(target, OpOverload | OpOverloadPacket):
        return str(target).startswith("aten.")
    if isinstance(target, str) or isinstance(target, types.BuiltinFunctionType | types.MethodDescriptorType):
        return True
    return getattr(target, "__module__", None) in ("torch.nn.functional", "torch.functional", "torch._jit_internal")


def _kind(leaf: Any) -> Any:
    """What of an argument may decide whether types are refused; there are no kernels for nothing, so that empty tensors differ."""
    if isinstance(leaf, Tensor):
        empty = any(type(n) is int and n == 0 for n in leaf.shape)
        return leaf.dtype, leaf.device, empty, leaf.dim(), leaf.requires_grad
    value = hint_of(leaf) if isinstance(leaf, SYMBOLIC) else leaf
    return type(leaf), value if isinstance(value, _PLAIN) else None


_PLAIN = (int, float, complex, str, torch.dtype, torch.device)
_OF_TYPES = re.compile(r"dtype|complex|[Bb]ool|float|type|low precision|Integers to negative", re.IGNORECASE)
_OF_LAPACK = {
    *("det", "logdet", "slogdet", "inverse", "pinverse", "qr", "svd", "cholesky", "cholesky_solve", "lu_solve"),
    *("cholesky_inverse", "lu_unpack", "triangular_solve", "geqrf", "ormqr", "orgqr", "matrix_exp", "cdist", "polar"),
}
# What may draw random numbers: another thread may draw meanwhile, so that the generator is not set back.
_DRAW = re.compile(
    "dropout|bernoulli|multinomial|normal|rand|rrelu|uniform|exponential|cauchy|geometric|poisson|binomial|gamma"
    "|dirichlet|scaled_dot_product|lstm|gru|rnn"
)
_OF_INTEGERS = {"gcd", "gcd_", "lcm", "lcm_", "bincount"}
# What moves elements, makes tensors, or asks for indices that fake tensors look at, too.
_TAKE_ALL = {
    *("view", "reshape", "expand", "expand_as", "permute", "transpose", "t", "squeeze", "unsqueeze", "flatten", "to"),
    *("contiguous", "clone", "detach", "size", "dim", "numel", "stride", "getitem", "setitem", "cat", "stack", "split"),
    *("chunk", "unbind", "repeat", "narrow", "select", "movedim", "view_as", "reshape_as", "type_as", "float", "long"),
    *(
        "int",
        "bool",
        "double",
        "half",
        "type",
        "item",
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "new_zeros",
    ),
    *("new_ones", "new_empty", "new_full", "new_tensor", "eq", "ne", "masked_fill", "where", "copy_", "fill_", "zero_"),
    *(
        "embedding",
        "gather",
        "index_select",
        "index_copy",
        "index_add",
        "index_put",
        "index_put_",
        "scatter",
        "scatter_",
    ),
    *("take", "take_along_dim", "unflatten", "tensor_split", "broadcast_to", "broadcast_tensors", "cpu", "cuda"),
}
