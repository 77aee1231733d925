"""Optimizers of torch's: their Python code is traced as any; here is what of it is C code, or speaks to torch.compile."""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch
from torch import Tensor

from ..errors import GraphBreak
from ..guards import process_state
from ..guards.source import Const, Made, Number, Source
from ..operators.fused_steps import FUSED, is_left
from ..state import Interpreter
from ..torch_private.dynamo import graph_breaks
from ..torch_private.fake import real_tensors
from ..torch_private.functions import GROUP_TENSORS
from ..torch_private.wrapped import is_wrapped
from ..values.constant import is_constant
from ..values.kinds import isinstance
from .registry import Rows, Then
from .torch_calls import torch_call
from .torch_rules import data_of_numbers

__all__ = ["ROWS", "check_step"]

ROWS = Rows()


def _graph_break(vm: Interpreter, *_: Any, **__: Any) -> None:
    """Optimizers ask torch.compile for a graph of their own around each step, which ours do not need."""
    if not str(vm.frames[-1].globals.get("__name__", "")).startswith("torch.optim."):
        raise GraphBreak("torch._dynamo.graph_break() is called")


ROWS.late(lambda rows: rows.rule(*graph_breaks())(_graph_break))


OPTIMIZER = "an optimizer or scheduler of torch's runs"


def check_step(vm: Interpreter, function: types.FunctionType, args: tuple[Any, ...]) -> None:
    """Break in front of a step that cannot be part of a graph: of an optimizer that decides by values of tensors or has kernels of its
    own, or where a backend takes no numbers as inputs."""
    if function.__code__.co_qualname != _STEP or function.__globals__.get("__name__") != "torch.optim.optimizer":
        return
    if inspect.unwrap(function) in _BY_VALUES or not vm.dynamic.marks.floats:
        raise GraphBreak(OPTIMIZER)
    groups = getattr(args[0], "param_groups", ()) if args else ()
    if any(type(group) is dict and group.get("fused") for group in groups) and is_left(args[0]):
        raise GraphBreak(FUSED)
    _check_parameters(args[:1])


def _check_parameters(owner: tuple[Any, ...]) -> None:
    """Break in front of what an optimizer does with parameters that capture cannot stand in for, rather than at each of them."""
    for group in getattr(owner[0], "param_groups", ()) if owner else ():
        parameters = group.get("params", ()) if type(group) is dict else ()
        plain = (Tensor, torch.nn.Parameter)
        other = next((p for p in parameters if type(p) not in plain and not is_wrapped(p)), None)
        if isinstance(other, Tensor):
            raise GraphBreak(f"an optimizer works on parameters of a tensor subclass ({type(other).__name__})")


_STEP = "Optimizer.profile_hook_step.<locals>.wrapper"
_BY_VALUES = frozenset(inspect.unwrap(kind.step) for kind in (torch.optim.LBFGS, torch.optim.SparseAdam))


@ROWS.rule(torch.optim.Optimizer.zero_grad)
def _zero_grad(vm: Interpreter, *args: Any, **kwargs: Any) -> Then:
    """Marked as not to be compiled, for torch.compile's sake."""
    _check_parameters(args[:1])
    return Then(_ZERO_GRAD, args, kwargs, body=True)


_ZERO_GRAD: Any = inspect.unwrap(torch.optim.Optimizer.zero_grad)


# ---- states ----


def _before_the_graph(function: Any, otherwise: Any) -> Any:
    """A tensor of zeros or the like that an optimizer of torch's makes as its state comes in front of the graph, as an input of it: the
    first step's graph is then that of all others."""

    def apply(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
        frame = vm.frames[-1]
        makes = frame.code.co_name == "_init_group" and _is_of_torch(frame.globals.get("__name__"))
        plain = makes and vm.device is None and not torch.is_grad_enabled() and all(map(is_constant, kwargs.values()))
        operands = [_operand(vm, a) for a in args] if plain else [None]
        if any(operand is None for operand in operands):
            return otherwise(vm, *args, **kwargs)
        vm.out.asked = True  # the default dtype
        number = sum(isinstance(i.source, Made) for i in vm.out.inputs.values())
        source = Made(function, tuple(operands), tuple(kwargs.items()), number)  # type: ignore[arg-type]
        infos = [vm.out.inputs.get(id(a)) for a in args]
        with real_tensors():
            real = function(*(a if i is None else i.real for a, i in zip(args, infos, strict=True)), **kwargs)
        fake, info = vm.dynamic.tensor(real, source, False)
        vm.user.track(real, fake, source)
        vm.out.add_input(info)
        return fake

    return apply


def _operand(vm: Interpreter, value: Any) -> Source | None:
    info = vm.out.inputs.get(id(value)) if isinstance(value, Tensor) else None
    if info is not None:
        return Const(info.real, info.source.name()) if info.static else info.source
    if type(value) in (int, float):
        return Number(value)
    return Const(value, "size") if is_constant(value) else None


def _is_of_torch(module: Any) -> bool:
    return isinstance(module, str) and module.startswith("torch.optim.")


for _function in (torch.zeros_like, torch.ones_like, torch.full_like, torch.zeros, torch.ones):
    ROWS.rule(_function)(
        _before_the_graph(_function, lambda vm, *args, _f=_function, **kwargs: torch_call(vm, _f, args, kwargs))
    )
ROWS.rule(torch.tensor)(_before_the_graph(torch.tensor, data_of_numbers(torch.tensor)))


def _check_capture(vm: Interpreter, *_: Any) -> None:
    """Steps that cannot be recorded into a CUDA graph of the program's say so."""
    if torch.cuda.is_available() and process_state.ask(vm, torch.cuda.is_current_stream_capturing, (), {}):
        raise GraphBreak("an optimizer's step is recorded into a CUDA graph of the program's")


for _name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check"):
    if hasattr(torch.optim.Optimizer, _name):
        ROWS.rule(getattr(torch.optim.Optimizer, _name))(_check_capture)


@ROWS.rule(GROUP_TENSORS)
def _group(vm: Interpreter, lists: Any, with_indices: bool = False) -> dict[Any, Any]:
    """The tensors of several lists by device and dtype of the first list's, in the order in which C++ gives them."""
    found: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for place, tensor in enumerate(lists[0]):
        if not isinstance(tensor, Tensor):
            raise GraphBreak("tensors are grouped by device and dtype, and one of the first list is None")
        found.setdefault((tensor.device, tensor.dtype), []).append(place)
    for column in lists:
        if len(column) not in (0, len(lists[0])):
            raise GraphBreak("lists of tensors are grouped that are not of one length")
    keys = list(found)
    if len(keys) > 1:
        with real_tensors():
            keys = list(GROUP_TENSORS([[torch.empty(0, device=d, dtype=t) for d, t in keys]], False))
    vm.out.asked = True
    return {
        key: (
            [[column[i] for i in found[key]] if column else [] for column in lists],
            found[key] if with_indices else [],
        )
        for key in keys
    }
