"""Packed sequences: rows of sequences of different lengths, and recurrent layers on them, as library calls.

How many rows there are, values decide. How many sequences, the padded tensor says, and the first of the batch sizes, which the program reads.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import GraphBreak
from ..state import Interpreter
from ..values.kinds import isinstance

__all__ = ["UNKNOWN", "first_of", "is_packed", "loss", "noted", "results_of", "with_numbers"]

_RECURRENT = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}  # how many states each has
UNKNOWN: Any = object()  # in a shape: a size that values decide


def is_packed(name: str, args: tuple[Any, ...]) -> bool:
    """Whether a call packs or unpacks sequences, is a recurrent layer on packed ones, or a loss that asks for their lengths."""
    if name in ("_pack_padded_sequence", "_pad_packed_sequence"):
        return len(args) in (3, 5)
    if name == "ctc_loss":
        return len(args) == 7 and all(isinstance(a, Tensor) for a in args[:4]) and type(args[5]) is int
    if name not in _RECURRENT or len(args) != 9:
        return False
    return isinstance(args[1], Tensor) and args[1].dim() == 1 and isinstance(args[3], list | tuple)


def loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """`torch.nn.functional.ctc_loss` as a call of C's: the function, and its arguments."""
    ways = {"none": 0, "mean": 1, "sum": 2}
    if reduction not in ways:
        raise GraphBreak(f"ctc_loss is given the reduction {reduction!r}")
    args = log_probs, targets, input_lengths, target_lengths, blank, ways[reduction], zero_infinity
    return torch.ctc_loss, args, {}


def results_of(vm: Interpreter, name: str, args: tuple[Any, ...]) -> list[tuple[Any, Tensor | None, Any]]:
    """Of each result its shape, the argument whose dtype and device it has (None: integers of the CPU), and the order of its dimensions."""
    if name == "_pack_padded_sequence":
        rows, lengths, first = args
        if rows.dim() < 2 or lengths.device.type != "cpu" or lengths.dtype != torch.int64:
            raise GraphBreak("_pack_padded_sequence is given lengths, or rows, that eager refuses")
        return [((UNKNOWN, *rows.shape[2:]), rows, None), ((UNKNOWN,), None, None)]
    if name == "ctc_loss":
        rows, *_, reduction, _ = args
        alone = reduction or rows.dim() != 3
        return [(() if alone else (rows.shape[1],), rows, None)]
    if name == "_pad_packed_sequence":
        rows, batches, first, _, most = args
        count = _count(vm, batches)
        steps = batches.shape[0] if type(most) is int and most <= 0 else most
        shape = (count, steps) if first else (steps, count)
        order = [1, 0, *range(2, rows.dim() + 1)] if first else None
        return [((*shape, *rows.shape[1:]), rows, order), ((count,), None, None)]
    rows, _, states, *_, both = args
    states = list(states) if isinstance(states, list | tuple) else [states]
    if len(states) != _RECURRENT[name] or any(s.dim() != 3 for s in states):
        raise GraphBreak(f"{name} is given states that eager refuses")
    width = states[0].shape[2] * (2 if both else 1)
    return [((rows.shape[0], width), rows, None), *((tuple(s.shape), s, None) for s in states)]


def noted(vm: Interpreter, name: str, args: tuple[Any, ...], results: list[Tensor]) -> None:
    """Remember how many sequences there are, which batch sizes say."""
    if name == "_pack_padded_sequence":
        vm.foreign.batches[id(results[1])] = args[0].shape[0 if args[2] else 1], results[1]._version


def first_of(vm: Interpreter, target: Any, args: tuple[Any, ...], call: Callable[[], Any]) -> Any:
    """`batch_sizes[0]`: the number of sequences."""
    if target not in (operator.getitem, "__getitem__") or len(args) != 2 or type(args[1]) is not int or args[1] != 0:
        return NotImplemented
    known = vm.foreign.batches.pop(id(args[0]))
    made = call()
    vm.foreign.batches[id(args[0])] = known
    count = _count(vm, args[0])
    if count is not UNKNOWN:
        vm.out.read.note(made, count)
    return made


def _count(vm: Interpreter, batches: Tensor) -> Any:
    """How many sequences there are, unless somebody has written to the batch sizes."""
    count, version = vm.foreign.batches.get(id(batches), (UNKNOWN, 0))
    return UNKNOWN if version != batches._version or vm.out.has_written(batches) else count


def with_numbers(vm: Interpreter, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a function that makes tensors, with numbers for sizes that are tensors of one integer."""
    if name not in _MAKERS:
        return args, kwargs

    def number(value: Any) -> Any:
        if isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value):
            return type(value)(map(number, value)) if type(value) in (list, tuple) else value
        whole = isinstance(value, Tensor) and value.dim() == 0 and not value.is_floating_point()
        return vm.call_tensor_method(value, "item", (), {}) if whole and value.dtype is not torch.bool else value

    sizes = args[:1] if name == "full" else args
    kwargs = {**kwargs, "size": number(kwargs["size"])} if "size" in kwargs else kwargs
    return (*map(number, sizes), *args[len(sizes) :]), kwargs


_MAKERS = frozenset(["zeros", "ones", "empty", "rand", "randn", "full"])
