"""Text that tensors' values are part of: f-strings, `str`, `%`, `format`, `join` of tensors and of numbers that are read of them.

Of symbolic sizes, too: text of them that is more than a message which is never shown is text of the numbers that they are in this call.

Such text is a stand-in that remembers which function of which values gives it. The values are copies, made in the graph where the program
makes the text, so that later writes do not show; a copy that nobody asks for costs nothing. Where the text leaves the graph (a result, an
attribute, a log message, a break) it is made behind it. What looks into it before, breaks the graph there. An error message that is never
raised is never made.
"""

from __future__ import annotations

import inspect
import math
import operator
import string
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import GraphBreak, Refused
from ..graph.output import OutputGraph
from ..graph.read_numbers import constant_of
from ..graph.sym_nodes import concrete
from ..state import Interpreter
from ..torch_private.dtensor import is_composite
from ..torch_private.fake import real_tensors
from .constant import is_constant
from .kinds import SYMBOLIC, isinstance
from .tensor import tensor_class

__all__ = ["Text", "Texts", "copied", "guarded_repr", "is_late", "late_format", "late_text", "looked_at"]

FORMATTED = "a tensor is formatted"
SIZE = "a size is formatted"
_DEPTH = 4
_TYPES: dict[type, tuple[Any, Any]] = {
    torch.SymInt: (0, 2**40),
    torch.SymFloat: (0.0, math.nan),
    torch.SymBool: (False, True),
}
_SIZES = (torch.SymInt, torch.SymFloat)
# What gives text of text, and fails for no text.
_METHODS = """
capitalize casefold center expandtabs ljust lower lstrip removeprefix removesuffix replace rjust rstrip strip swapcase title upper zfill
""".split()  # noqa: SIM905


class Text:
    """The text that `function(*args, **kwargs)` gives. `samples` are what it gives for two other values of the tensors.

    `hidden` says why it cannot be made behind the graph: there are only messages of it that are never shown.
    """

    __slots__ = ("args", "function", "hidden", "kwargs", "samples", "vm")

    def __init__(self, vm: Interpreter, function: Callable[..., str], args: Any, kwargs: Any, hidden: str) -> None:
        self.vm, self.function, self.args, self.kwargs, self.hidden = vm, function, args, kwargs, hidden
        with real_tensors():
            self.samples = tuple(function(*_sample(args, k), **_sample(kwargs, k)) for k in range(2))

    def made(self) -> Text:
        """Itself, where it is to be made behind the graph."""
        if self.hidden:
            raise Refused(self.hidden, "texts")
        return self

    def __add__(self, other: Any) -> Text:
        return late_text(self.vm, operator.add, (self, other), {})

    def __radd__(self, other: Any) -> Text:
        return late_text(self.vm, operator.add, (other, self), {})

    def __getattr__(self, name: str) -> Any:
        if hasattr(str, name):
            raise looked_at(self.vm)
        raise AttributeError(f"'str' object has no attribute '{name}'")


def looked_at(vm: Interpreter) -> BaseException:
    """What is raised where the program looks into such text: sizes in it are the numbers of this call then, which are guarded."""
    if vm.texts.sizes and vm.texts.refused is None:
        return Refused(SIZE, "texts")
    return GraphBreak(f"{FORMATTED}, and the text is looked at")


def _refuse(text: Text, *others: Any, **__: Any) -> Any:
    raise looked_at(text.vm)


def _method(function: Any) -> Any:
    return lambda text, *args, **kwargs: late_text(text.vm, function, (text, *args), kwargs)


for _name in _METHODS:
    setattr(Text, _name, _method(getattr(str, _name)))
for _name in (
    *"str repr format bool len iter getitem contains eq ne lt le gt ge hash int float complex index bytes fspath".split(),  # noqa: SIM905
    *"mod rmod mul rmul reduce_ex".split(),  # noqa: SIM905
):
    setattr(Text, f"__{_name}__", _refuse)


def is_late(vm: Interpreter, value: Any, depth: int = 0) -> bool:
    """Whether a value, written as text, shows what only the running program knows, or a size."""
    kind = type(value)
    if isinstance(value, Tensor) or kind is Text:
        return True
    if kind in SYMBOLIC:
        return vm.dynamic.late(value) is not None or vm.out.read.is_read(value) or _may_be_hidden(vm, value)
    if depth < _DEPTH and kind in (list, tuple, dict, torch.Size):
        items = [*value, *value.values()] if kind is dict else value
        return any(is_late(vm, item, depth + 1) for item in items)
    return False


def _may_be_hidden(vm: Interpreter, value: Any) -> bool:
    """Whether text of a size may be left to a message that is never shown: else the size is the number that it is in this call."""
    if vm.out.inside or vm.side is not None or vm.exporting or vm.defaults.watches:
        return False
    return type(value) in _SIZES and vm.texts.refused is None


def _holds_text(value: Any, depth: int = 0) -> bool:
    """Whether such text is among the arguments of a call."""
    kind = type(value)
    if kind is Text:
        return True
    if depth < _DEPTH and kind in (list, tuple, dict):
        return any(_holds_text(item, depth + 1) for item in ([*value, *value.values()] if kind is dict else value))
    return False


def late_text(vm: Interpreter, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What stands for `function(*args, **kwargs)`, which gives text and looks at nothing else. Raises GraphBreak where nothing can."""
    known = constant_of(args[0]) if function is format else None
    if known is not None and args[0].dim() == 0 and tensor_class(vm, args[0]) is Tensor:
        return vm.native(format, known, *args[1:])
    if vm.out.inside or vm.side is not None or vm.exporting or vm.defaults.watches:
        raise GraphBreak(FORMATTED)
    copies = _Copies(vm, numbers=function is format)
    try:
        taken, named = copies.of(args), copies.of(kwargs)
        if copies.hidden and vm.texts.refused is not None:
            raise GraphBreak(copies.hidden)
        text = Text(vm, function, taken, named, copies.hidden)
    except Exception as error:
        if _holds_size((args, kwargs)) and vm.texts.refused is None:
            raise Refused(SIZE, "texts") from None
        if isinstance(error, GraphBreak):
            raise
        raise GraphBreak(FORMATTED) from None  # eager raises, too, for some values at least
    vm.texts.any = True
    vm.texts.sizes |= copies.sizes
    return text


def _holds_size(value: Any, depth: int = 0) -> bool:
    """Whether a size is among the arguments of a call."""
    kind = type(value)
    items = [*value.values()] if kind is dict else value if kind in (list, tuple, torch.Size) else ()
    return kind in _SIZES or depth < _DEPTH and any(_holds_size(item, depth + 1) for item in items)


def late_format(vm: Interpreter, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same for `str.format` and `str.format_map`, whose templates may ask for more than text."""
    template = args[0] if isinstance(function, types.MethodDescriptorType) else function.__self__
    try:
        fields = [field or "" for _, field, _, _ in string.Formatter().parse(template)]
    except (TypeError, ValueError):
        raise GraphBreak(FORMATTED) from None
    if any("." in field or "[" in field for field in fields):
        raise GraphBreak(FORMATTED)
    return late_text(vm, function, args, kwargs)


def copied(vm: Interpreter, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values that are written as text later, as they are now: tensors that nobody else writes to in place of the program's."""
    copies = _Copies(vm, numbers=False)
    made = tuple(copies.of(value, 1) if isinstance(value, Tensor) else value for value in values)
    if copies.hidden:
        raise GraphBreak(copies.hidden)
    return made


class Texts:
    """Those of one capture. `refused` is not None where there may be none that is hidden."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.any = self.sizes = False
        self.refused: str | None = None
        self.copies: list[fx.Node] = []
        self.running: set[tuple[int, int]] = set()  # the guards of `__repr__` that are being asked, with their objects

    def check(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Break at a function of C that fails where it is given what stands for text."""
        if self.any and _holds_text((args[1:] if function is getattr else args, kwargs)):
            raise looked_at(self.vm) from None

    def sweep(self, out: OutputGraph, outputs: list[Tensor]) -> None:
        """Take the copies that nobody asks for out of the graph."""
        wanted = set(map(out.node, outputs)) if self.copies else set()
        for node in reversed(self.copies):
            if not node.users and node not in wanted:
                out.graph.erase_node(node)


def guarded_repr(vm: Interpreter, guard: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`__repr__` behind a guard of Python's library: of an object that holds itself it is "..." inside of its own text."""
    known = inspect.getclosurevars(guard).nonlocals
    if len(args) != 1 or kwargs:
        return vm.call(known["user_function"], args, kwargs)
    asked, running = (id(guard), id(args[0])), vm.texts.running
    if asked in running:
        return known.get("fillvalue", "...")
    running.add(asked)
    try:
        return vm.call(known["user_function"], args, kwargs)
    finally:
        running.discard(asked)


class _Copies:
    """The arguments of a function that makes text, as they are now. With `numbers`, a tensor of one number may be written as that."""

    def __init__(self, vm: Interpreter, numbers: bool) -> None:
        self.vm, self.numbers, self.hidden, self.sizes = vm, numbers, "", False

    def of(self, value: Any, depth: int = 0) -> Any:
        kind = type(value)
        if isinstance(value, Tensor):
            return self._tensor(value, depth)
        if kind is Text:
            self.hidden = self.hidden or value.hidden
            return value
        if kind in SYMBOLIC:
            if not is_late(self.vm, value):
                return concrete(value)
            if self.vm.dynamic.late(value) is None and not self.vm.out.read.is_read(value):
                self.hidden, self.sizes = self.hidden or SIZE, True
            self.vm.dynamic.check_type(value)
            return value
        if kind in (list, tuple, torch.Size) and depth < _DEPTH:
            return kind([self.of(item, depth + 1) for item in value])
        if kind is dict and depth < _DEPTH and all(map(is_constant, value)):
            return {key: self.of(item, depth + 1) for key, item in value.items()}
        if not is_constant(value):
            raise GraphBreak(FORMATTED)
        return value

    def _tensor(self, tensor: Tensor, depth: int) -> Tensor:
        """A copy that nobody else writes to."""
        vm, out = self.vm, self.vm.out
        plain = out.is_known(tensor) and not is_composite(tensor) and id(tensor) not in vm.overrides.known
        if not plain or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise GraphBreak(FORMATTED)
        number = self.numbers and depth == 1 and tensor.dim() == 0
        if tensor_class(vm, tensor) is not Tensor or tensor.requires_grad and not number:
            self.hidden = f"{FORMATTED} that is a parameter, or has a gradient's function"
        with torch.no_grad():
            for step in ("detach", "clone") if tensor.requires_grad else ("clone",):
                tensor = out.call_method(step, (tensor,), {})
                vm.texts.copies.append(out.node(tensor))
        return tensor


def _sample(value: Any, which: int) -> Any:
    """Another value of the same kind: 0 for numbers, or one that few formats take."""
    kind = type(value)
    if isinstance(value, Tensor):
        shape = [n if type(n) is int else 2 for n in value.shape]
        number = value.is_floating_point() or value.is_complex()
        fill = (0, math.nan if number else 1 if value.dtype is torch.bool else torch.iinfo(value.dtype).max)[which]
        return torch.full((), fill, dtype=value.dtype).expand(shape)
    if kind is Text:
        return value.samples[which]
    if kind in SYMBOLIC:
        return _TYPES[kind][which]
    if kind in (list, tuple, torch.Size):
        return kind([_sample(item, which) for item in value])
    if kind is dict:
        return {key: _sample(item, which) for key, item in value.items()}
    return value
