"""Calls of torch's functions and operators: a node of the graph, an answer that is asked again, or a refusal."""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree as pytree

from ..errors import GraphBreak, Unsupported
from ..foreign.packed import with_numbers
from ..guards import process_state
from ..state import Interpreter
from ..subclasses import jagged
from ..torch_private.dispatch import device_constructors
from ..torch_private.functions import RECURRENT, OpOverload, OpOverloadPacket
from ..values.kinds import isinstance
from ..values.tensor import TensorMethod
from . import tables

__all__ = ["call_operator", "check_torch_state", "is_torch_builtin", "torch_answer", "torch_call"]

_OPERATORS = (OpOverload, OpOverloadPacket)


def check_torch_state(name: str, module: str = "") -> None:
    """Refuse functions of torch that change its state."""
    reason = tables.REFUSED_TORCH.get(name)
    if reason is not None:
        raise Unsupported(reason)
    if module in tables.NATIVE_PYTHON and name not in tables.TORCH_FIXED | tables.TORCH_PURE and not _asks(name):
        raise Unsupported(f"{module}.{name} is called, which may change torch's state")


def _asks(name: str) -> bool:
    return name.startswith(tables.QUESTIONS) or name.endswith(("_enabled", "_allowed", "_available", _CAPTURING))


_CAPTURING = "isCurrentStreamCapturing"  # torch._C._cuda_..., _xpu_...


def _drops_between_layers(args: tuple[Any, ...]) -> bool:
    """Whether a recurrent layer of several is given a dropout, in training: (..., num_layers, dropout, train, bidirectional[, batch_first])."""
    places = [k for k, a in enumerate(args) if type(a) is float and type(args[k - 1]) is int]
    return any(args[k] != 0 and args[k - 1] != 1 and args[k + 1 : k + 2] == (True,) for k in places)


# A recurrent layer with gradients is traced step by step, forward and back: 40 operators a step, of which each takes a millisecond or
# more to compile. A short one is faster so, by 1.4 in a call; a long one would be compiled for minutes.
WRITTEN_OUT = 16


def _steps_with_gradients(args: tuple[Any, ...]) -> float:
    """How many steps torch.lstm and its kin take over all layers and directions if gradients are recorded, and else 0.

    Of (input, states, weights, bias, num_layers, dropout, train, bidirectional, batch_first); on packed sequences none is written out.
    """
    if len(args) != 9 or not isinstance(args[0], Tensor) or args[0].dim() != 3 or type(args[4]) is not int:
        return 0
    leaves = [args[0], *(args[1] if isinstance(args[1], list | tuple) else [args[1]]), *args[2]]
    if not torch.is_grad_enabled() or not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
        return 0
    steps = args[0].shape[1 if args[8] is True else 0]
    return steps * args[4] * (2 if args[7] is True else 1) if type(steps) is int else math.inf


def _is_on_gpu(args: tuple[Any, ...]) -> bool:
    return any(isinstance(a, Tensor) and a.is_cuda for a in args)


# Kernels that call products, which autocast reaches in eager; of fake tensors and in a graph it does not.
_CASTS_INSIDE = {"_transformer_encoder_layer_fwd", "affine_grid", "affine_grid_generator", "linalg_pinv", "pinverse"}


def _devices(args: tuple[Any, ...]) -> set[str]:
    return {a.device.type for a in args if isinstance(a, Tensor)} & {"cpu", "cuda"}


def torch_call(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of torch's: one node, or a constant when no tensor is involved."""
    name = getattr(function, "__name__", "")
    if function in _WITH_RULES and args and isinstance(args[0], Tensor):
        return vm.call_tensor_method(args[0], name, args[1:], kwargs)
    if name in RECURRENT and _drops_between_layers(args):
        raise GraphBreak(f"{name} drops out between its layers, which torch's traces leave out")
    if name in RECURRENT and (steps := _steps_with_gradients(args)) > WRITTEN_OUT:
        many = "any number of" if steps == math.inf else steps
        raise GraphBreak(
            f"{name} with gradients over {many} steps is one call of a library's, whose derivative no graph holds"
        )
    if name in RECURRENT and torch.is_autocast_enabled("cuda") and _is_on_gpu(args):
        raise GraphBreak(
            f"{name} under autocast on a GPU is float16 by a rule of its own, whatever autocast's dtype is"
        )
    if name in _CASTS_INSIDE and any(torch.is_autocast_enabled(d) for d in _devices(args)):
        raise GraphBreak(f"{name} under autocast casts inside of its own kernels, which no operator of a graph does")
    if function is F.scaled_dot_product_attention and len(args) > 2:
        made = jagged.attention(vm, *args, **kwargs)
        if made is not NotImplemented:
            return made
    if vm.foreign.among((args, kwargs)):
        return vm.out.call_function(function, tuple(map(vm.materialize, args)), kwargs)
    check_torch_state(name)
    if name.startswith(tables.STATE_CHANGES) and not any(isinstance(a, Tensor) for a in args):
        raise Unsupported(f"torch's state is changed ({name})")
    args = tuple(map(vm.materialize, args))
    device = vm.device or vm.defaults.placed()
    if device is not None and kwargs.get("device") is None and function in device_constructors():
        kwargs = {**kwargs, "device": device}
    args, kwargs = with_numbers(vm, name, args, kwargs)
    for value in (*args, *kwargs.values()):
        if isinstance(value, types.FunctionType | types.MethodType | TensorMethod):
            raise Unsupported(f"torch.{name} takes a Python function")
    if name in tables.TORCH_THREAD or name in tables.TORCH_PURE or name in tables.TORCH_FIXED:
        vm.out.asked = True  # the answer may depend on the thread's state, which is guarded then
        vm.out.modes += name == "is_grad_enabled"
        return vm.native(function, *args, **kwargs)
    if not is_operator(function):
        return torch_answer(vm, function, args, kwargs)
    method = _OTHER_NAMES.get(function)
    if method is not None and args and isinstance(args[0], Tensor):
        return vm.out.call_method(method, args, kwargs)
    if kwargs.get("out") is not None:
        check_out(vm, function, args, kwargs, ["out"])
    return vm.out.call_function(function, args, kwargs)


# Methods of tensors in Python that are no nodes of a graph.
_WITH_RULES = frozenset({Tensor.backward, Tensor.register_hook})

# Methods of tensors in Python that are found by other names than they have (`__ipow__` is called `pow_`).
_OTHER_NAMES = {f: n for n, f in vars(Tensor).items() if isinstance(f, types.FunctionType) and f.__name__ != n}


def is_operator(function: Any) -> bool:
    """Whether a function of torch's computes with tensors, makes them or asks for their facts; others look at the state of the process."""
    if not isinstance(function, types.BuiltinFunctionType):
        return not getattr(function, "__name__", "").startswith(tables.QUESTIONS)
    owner = function.__self__
    if owner is None:
        return True
    return isinstance(owner, types.ModuleType) and owner.__name__ in tables.OPERATOR_MODULES


def torch_answer(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function of torch's that makes no tensor: the facts of one, or a question to the process that is asked again in every call."""
    leaves = pytree.tree_leaves((args, kwargs))
    name = function.__name__
    fixed = name.endswith(_CAPTURING) and not torch.accelerator.is_available()  # it raises then, whenever it is asked
    if fixed or any(isinstance(leaf, Tensor) for leaf in leaves):
        return vm.native_recorded(function, *map(vm.materialize, args), **kwargs)
    if not _asks(name):
        raise GraphBreak(f"{getattr(function, '__module__', 'torch')}.{name} is called, which capture does not know")
    return process_state.ask(vm, function, args, kwargs)


def check_out(
    vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outs: Sequence[str]
) -> None:
    """Break where `out=` would be resized: the guards of an input are those of its size before the call."""
    given = [t for name in outs for t in (kwargs[name] if isinstance(kwargs[name], tuple | list) else (kwargs[name],))]
    rest = {k: v for k, v in kwargs.items() if k not in outs}
    if isinstance(function, _OPERATORS):  # one that cannot be called without them: copies, resized for us
        rest |= pytree.tree_map_only(Tensor, torch.empty_like, {name: kwargs[name] for name in outs})
    with torch.no_grad():
        made = vm.native(function, *args, **rest)
    for out, result in zip(given, made if isinstance(made, tuple | list) else (made,), strict=False):
        if isinstance(out, Tensor) and isinstance(result, Tensor) and out.shape != result.shape:
            raise GraphBreak("a tensor given as out= is resized")


def is_torch_builtin(function: Any, owner: Any) -> bool:
    """Whether a C function belongs to torch."""
    module = getattr(function, "__module__", None) or ""
    if module.startswith("torch"):
        return True
    where = owner.__name__ if isinstance(owner, types.ModuleType) else getattr(owner, "__module__", None) or ""
    return str(where).startswith("torch") or isinstance(owner, Tensor)


def call_operator(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    places = _enumerated(function)
    given = [args[p] if isinstance(p, int) and p < len(args) else kwargs.get(n) for p, n in places]
    # A number that stands for none crashes torch wherever a mode sees it.
    if any(type(value) is int for value in given):
        raise GraphBreak(f"{function} is given a number for a dtype, layout or memory format")
    args = tuple(map(vm.materialize, args))
    if outs := [name for name in _outs(function) if kwargs.get(name) is not None]:
        check_out(vm, function, args, kwargs, outs)
    return vm.out.call_function(function, args, kwargs)


@functools.cache
def _outs(function: Any) -> frozenset[str]:
    """The names by which an operator is given the tensors that it puts its results into."""
    if isinstance(function, OpOverload):
        return frozenset(a.name for a in function._schema.arguments if a.is_out and a.kwarg_only)
    return frozenset().union(*(_outs(getattr(function, name)) for name in function.overloads()))


@functools.cache
def _enumerated(function: Any) -> list[tuple[int | None, str]]:
    """The arguments of an operator that are no numbers, though eager takes numbers for them: place and name."""
    if not isinstance(function, OpOverload):
        return [(None, name) for name in ("dtype", "layout", "memory_format")]
    arguments = enumerate(function._schema.arguments)
    return [(p, a.name) for p, a in arguments if str(a.type) != str(a.real_type)]
