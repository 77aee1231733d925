"""The reference interpreter: runs a module at any level with torch operations, one operation after another.

It is the oracle of the tests: slow, plain, and strict. Memory that nobody wrote is poisoned, addresses outside memory are
errors, and every operation's result is checked against its type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp

from ..dialects import prim
from ..symbols import Dim, contiguous_strides, symbol
from ..types import RefType, TensorType
from .buffers import BUFFER_RULES
from .loops import KERNEL_RULES, find_function, main_function
from .tensors import TENSOR_RULES, InterpreterError, Machine, Rule, expect_type, restride, run_block

__all__ = ["InterpreterError", "run", "run_user"]

Argument = Tensor | int | None

RULES: dict[str, Rule] = {**TENSOR_RULES, **KERNEL_RULES, **BUFFER_RULES}


def run(module: ModuleOp, args: Sequence[Argument], *, reverse: bool = False) -> list[Tensor]:
    """The values that `prim.func @main` returns, with the strides that its `result_strides` ask for.

    With `reverse`, loops whose iterations are independent run in pieces, the last piece first: a loop that only claims to be
    independent then gives another answer.

    Raises:
        InterpreterError: the module is wrong.
        IndexError: an index that the program reads from a tensor lies outside (also in eager).
    """
    return _run(module, args, reverse)[0]


def run_user(module: ModuleOp, args: Sequence[Argument], rules: Mapping[str, Rule] = RULES) -> list[Any]:
    """What the user gets: the entries of `results`, after the `mutations` have been written into the arguments.

    Args:
        rules: what runs each operation; one that looks on calls that of `RULES`.
    """
    returned, machine = _run(module, args, rules=rules)
    func = main_function(module)
    for argument, k in func.get("mutations", ()):
        target = args[argument]
        assert isinstance(target, Tensor)
        target.copy_(returned[k])
    outputs: list[Any] = []
    entries = func.get("results") or tuple(("value", k) for k in range(len(returned)))
    for kind, *rest in entries:
        outputs.append(_RESULTS[kind](machine, args, returned, outputs, *rest))
    return outputs


def _other(result: Tensor, view: Tensor) -> Tensor:
    """Another tensor over the memory of a result: one that shows all of it is no view to autograd."""
    whole = view.shape == result.shape and view.stride() == result.stride() and view.data_ptr() == result.data_ptr()
    return result.detach() if whole else view


def _view(machine: Machine, base: Tensor, sizes: Any, strides: Any, offset: Dim) -> Tensor:
    start = base.storage_offset() + machine.number(offset)
    return base.as_strided(machine.literal(sizes), machine.literal(strides), start)


_RESULTS: dict[str, Callable[..., Any]] = {
    "value": lambda m, args, returned, outputs, k: returned[k],
    "input": lambda m, args, returned, outputs, i: args[i],
    "alias": lambda m, args, returned, outputs, i, *view: _view(m, args[i], *view),
    "alias_output": lambda m, args, returned, outputs, k, *view: _other(returned[k], _view(m, returned[k], *view)),
    "output": lambda m, args, returned, outputs, j: outputs[j],
    "size": lambda m, args, returned, outputs, value: m.number(value),
    "constant": lambda m, args, returned, outputs, value: value,
    "none": lambda m, args, returned, outputs: None,
}


def _run(
    module: ModuleOp, args: Sequence[Argument], reverse: bool = False, rules: Mapping[str, Rule] = RULES
) -> tuple[list[Tensor], Machine]:
    constants = find_function(module, "constants")
    if constants is not None:
        parameters = [args[i] for i in constants["parameters"]]
        args = [*args, *_run_function(module, constants, parameters, reverse)[0]]
    return _run_function(module, main_function(module), args, reverse, rules)


def _run_function(
    module: ModuleOp, func: prim.Func, args: Sequence[Argument], reverse: bool, rules: Mapping[str, Rule] = RULES
) -> tuple[list[Tensor], Machine]:
    block = func.block_body
    if len(args) != len(block.args):
        raise InterpreterError(f"@{func['sym_name']} takes {len(block.args)} arguments, not {len(args)}")
    machine = Machine(module, rules, reverse, function=lambda name: _callable(module, name, reverse))
    _bind_symbols(machine, func, args)
    for value, given in zip(block.args, args, strict=True):
        if isinstance(value.type, TensorType | RefType):
            expect_type(machine, given, value.type, "an argument")
        machine.values[value] = given
    with torch.no_grad():
        returned = run_block(machine, list(block.ops))
        strides = func.get("result_strides") or (None,) * len(returned)
        owned: list[Tensor] = []
        for value, wanted in zip(returned, strides, strict=True):
            owned.append(_owned(machine, value, wanted, (*args, *owned)))
        return owned, machine


def _callable(module: ModuleOp, name: str, reverse: bool) -> Callable[..., list[Tensor]]:
    """A function of the module, as an operation calls it."""
    func = find_function(module, name)
    if func is None:
        raise InterpreterError(f"the module has no prim.func @{name}")

    def call(*args: Argument) -> list[Tensor]:
        returned, _ = _run_function(module, func, args, reverse)
        return [returned[k] for _, k in func["results"]]

    return call


def _bind_symbols(machine: Machine, func: prim.Func, args: Sequence[Argument]) -> None:
    for name, argument, dimension, low, high in func.get("symbols", ()):
        given: Any = args[argument]
        value = int(given) if dimension == -1 else symbol_source(given, dimension)
        if value < low or (high is not None and value > high):
            raise InterpreterError(f"{name} = {value} lies outside its range {range_text(low, high)}")
        machine.symbols[symbol(name)] = value


def range_text(low: int, high: int | None) -> str:
    """The range of a symbol in a message."""
    return f"{low} and more" if high is None else f"{low} to {high}"


def symbol_source(given: Tensor, dimension: int) -> int:
    """What the `dimension` of a symbol means for a tensor: a size, or with -2 - d the stride of dimension d."""
    return int(given.shape[dimension] if dimension >= 0 else given.stride(-2 - dimension))


def _owned(machine: Machine, value: Tensor, strides: Any, args: Sequence[Argument]) -> Tensor:
    """The returned value with the strides asked for; a copy where it has others, or is memory of an argument."""
    wanted = machine.literal(strides) if strides is not None else contiguous_strides(tuple(value.shape))
    if value.stride() == tuple(wanted) and not any(_same_memory(value, a) for a in args):
        return value
    return restride(value, tuple(wanted))


def _same_memory(a: Tensor, b: Argument) -> bool:
    if isinstance(b, Tensor) and b._is_zerotensor():  # it has none
        return False
    return isinstance(b, Tensor) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
