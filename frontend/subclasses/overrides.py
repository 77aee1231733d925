"""`__torch_function__`: which calls of torch a class or a mode of the program's is asked about, and in which order.

A tensor of a class of the program's is a plain fake tensor that is marked with its class. Where such a tensor is among the arguments of
a call, or a mode is active, torch itself says which function its `__torch_function__` is given and with which arguments: the call runs
under a mode of ours, which catches it. The method is then interpreted like any other function, and what it calls comes back here.
"""

from __future__ import annotations

import builtins
import math
import operator
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..bytecode import exceptions
from ..errors import CaptureError, GraphBreak, Unsupported, UserRaise
from ..guards.definitions import lookup
from ..guards.source import Source
from ..state import Interpreter
from ..torch_private.autograd_graph import is_leaf
from ..torch_private.dispatch import DispatchMode
from ..torch_private.dtensor import is_shared
from ..torch_private.functions import NO_FUNCTION, WITHOUT_SUBCLASSES
from ..torch_private.wrapped import is_wrapped
from ..values.kinds import SYMBOLIC, c_name, isinstance, tensors_in
from .dispatch_modes import run_below
from .methods import Methods, has_function

__all__ = ["Marked", "Overrides"]


@dataclass
class Refusal:
    """Why a capture does not go one way."""

    refused: str | None = None


_NOT_GIVEN: Any = object()


@dataclass
class Marked:
    """A tensor of a class of the program's: the class and, of one of the caller's, the real tensor and where it came from."""

    tensor: Tensor
    kind: type
    real: Tensor | None = None
    source: Source | None = None
    wrapper: bool = (
        False  # whether the class runs operators on other tensors, as eager does: torch asks its method itself
    )


class _Catch(TorchFunctionMode):
    """Hands each call of torch that C code, or torch's own Python code, makes to those that override it."""

    def __init__(self, overrides: Overrides, keywords: bool, slot: bool) -> None:
        super().__init__()
        self.slot = slot  # whether a special method is called, whose result C checks
        self.keywords = keywords  # whether a call without keywords passes on that there are none
        self.overrides = overrides
        self.caught = False

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = _NOT_GIVEN) -> Any:
        self.caught = True
        vm = self.overrides.vm
        recording, vm.recording = vm.recording, False
        try:
            spelled = bool(kwargs) or self.keywords or not isinstance(function, _OF_C)
            given = None if kwargs is _NOT_GIVEN or not spelled else kwargs
            python = isinstance(function, types.FunctionType)
            result = self.overrides.dispatch(function, args, given, bool(kinds) or python)
            if self.slot and isinstance(result, SYMBOLIC):
                raise _Symbol(result)
            return result
        except UserRaise as raised:
            vm.carried = exceptions.note(raised.value)
            raise raised.value from None
        finally:
            vm.recording = recording


# Special methods whose results C checks.
_SLOTS = frozenset("__bool__ __int__ __float__ __complex__ __index__ __len__ __contains__".split())  # noqa: SIM905


def _is_checked(function: Any) -> bool:
    """Whether C checks what `function` of a tensor gives: a type, or a special method."""
    return isinstance(function, type) or getattr(function, "__name__", "") in _SLOTS


class _Symbol(CaptureError):
    """What a special method gives that stands for a number or a truth: past C code that takes no other than its own kind."""

    def __init__(self, value: Any) -> None:
        super().__init__("a special method gives a symbol")
        self.value = value


def _named(vm: Interpreter, raised: UserRaise, args: tuple[Any, ...]) -> BaseException:
    """What C code raises that says the classes of its operands: those that the program knows, not those of what stands for them."""
    text = str(raised.value)
    if type(raised.value) is not TypeError or not text.startswith("unsupported operand type") or "Fake" not in text:
        return raised
    kinds = " and ".join(f"'{c_name(vm.type_of(value))}'" for value in args)
    return UserRaise(TypeError(f"{text.rpartition(': ')[0]}: {kinds}"))


class Overrides:
    """Of one capture: the tensors of classes of the program's, its modes, and what of this is switched off."""

    def __init__(self, vm: Interpreter, load: Callable[..., Any], store: Callable[..., Any]) -> None:
        self.vm, self.load, self.store = vm, load, store  # what reads and writes attributes (`tensors`)
        self.known: dict[int, Marked] = {}
        self.parts: dict[
            int, dict[str, Tensor]
        ] = {}  # what wrapper tensors are made of, as far as they were taken apart
        self.begun: dict[
            int, tuple[Any, ...]
        ] = {}  # of wrapper tensors of the caller's: version, history, whether gradients are wanted
        self.given_roots: list[Tensor] = []  # wrapper tensors that are results, of views what they are views of
        self.methods = Methods(vm)
        self.leaves, self.through = Refusal(), Refusal()  # why backward leads to leaves in the graph, why it does not
        self.leaves_inside: list[Tensor] = []  # those of the caller's that require gradients in the graph alone
        self.modes: list[Any] = []  # the program's, outermost first
        self.off = 0  # 1: classes are not asked; 2: modes are not, either
        self.active = False  # whether anything may be asked at all
        self._none_asked: Any = None  # what keeps torch from asking classes, while it does
        self._asked = False  # whether any class has a `__torch_function__`

    # ---- what is known ----

    def mark(self, tensor: Tensor, kind: type, real: Tensor | None = None, source: Source | None = None) -> Tensor:
        """Note that a fake tensor is one of a class of the program's."""
        self.known[id(tensor)] = Marked(tensor, kind, real, source)
        self._asked = self._asked or _is_asked(kind)
        self._update()
        return tensor

    def wrap(self, tensor: Tensor, real: Tensor, source: Source, parts: dict[str, Tensor]) -> None:
        """Note that a tensor is a wrapper tensor of the caller's, with its parts."""
        self.known[id(tensor)] = Marked(tensor, type(tensor), real, source, True)
        self.parts[id(tensor)] = parts
        self.begun[id(tensor)] = tensor._version, tensor.grad_fn, tensor.requires_grad

    def meet(self, kind: type) -> None:
        """Note that the graph has wrapper tensors of a class of the program's, whose methods torch itself calls."""
        self.methods.met = True
        self.methods.asks = self.methods.asks or has_function(kind)
        self._update()

    def written(self) -> list[Marked]:
        """The wrapper tensors of the caller's that the program writes to."""
        found = [
            self.known[key] for key, (version, *_) in self.begun.items() if self.known[key].tensor._version != version
        ]
        for known in found:
            now = known.tensor.grad_fn, known.tensor.requires_grad
            if now != self.begun[id(known.tensor)][1:]:
                raise Unsupported(f"a write to a {known.kind.__qualname__} of the caller's is recorded for gradients")
        return found

    def kind_of(self, tensor: Tensor) -> type | None:
        """The class of the program's that a tensor is of."""
        known = self.known.get(id(tensor))
        return None if known is None else known.kind

    def is_of_caller(self, tensor: Tensor) -> bool:
        """Whether a tensor is a wrapper tensor of the caller's."""
        known = self.known.get(id(tensor))
        return known is not None and known.wrapper and known.real is not None

    def place_of(self, tensor: Tensor) -> tuple[Tensor, Source] | None:
        """Of a wrapper tensor, or DTensor, of the caller's: the tensor itself, and where it was found."""
        known = self.known.get(id(tensor))
        if known is not None and known.wrapper and known.real is not None and known.source is not None:
            return known.real, known.source
        entry = self.vm.user.by_value.get(id(tensor)) if is_shared(tensor) else None
        return None if entry is None else (entry.real, entry.source)

    def leaves_of_caller(self) -> list[Tensor]:
        """What stands for the wrapper tensors of the caller's that have no history."""
        return [k.tensor for k in self.known.values() if k.wrapper and k.real is not None and is_leaf(k.real)]

    def marks(self, values: Any) -> bool:
        """Whether a tensor among values is a plain one that stands for one of a class of the program's."""
        known = (self.known.get(id(t)) for t in tensors_in(values))
        return any(k is not None and not k.wrapper for k in known)

    def is_marked(self, tensor: Tensor) -> bool:
        """Whether a tensor is one of a class of the program's, or a mode sees what is done with it."""
        return id(tensor) in self.known or self.off < 2 and bool(self.modes) or is_wrapped(tensor)

    def push(self, mode: Any) -> None:
        """A mode is entered."""
        self.modes.append(mode)
        self._update()

    def pop(self) -> None:
        """The innermost mode is left."""
        self.modes.pop()
        self._update()

    def switch(self, off: int) -> int:
        """Switch classes (1), or modes too (2), off; what was off before."""
        before, self.off = self.off, off
        self._update()
        return before

    def _update(self) -> None:
        self.active = self.off < 2 and bool(self.modes) or self.off < 1 and self._asked
        really = self.off > 0 and self.methods.met  # torch asks the classes of wrapper tensors itself
        if really and self._none_asked is None:
            self._none_asked = WITHOUT_SUBCLASSES()
            self._none_asked.__enter__()
        elif not really and self._none_asked is not None:
            self._none_asked.__exit__(None, None, None)
            self._none_asked = None

    @contextmanager
    def without_classes(self) -> Iterator[None]:
        """Inside, no class is asked."""
        before = self.switch(max(self.off, 1))
        try:
            yield
        finally:
            self.switch(before)

    def concern(self, values: Any) -> bool:
        """Whether a mode, or the class of a tensor among the arguments, is asked about a call."""
        if not self.active:
            return False
        if self.modes and self.off < 2:
            return True
        known = [k for t in tensors_in(values) if (k := self.known.get(id(t))) is not None] if self.off < 1 else []
        return any(_is_asked(k.kind) for k in known if not k.wrapper)

    def own(self, tensor: Any, name: str) -> Callable[..., Any] | None:
        """A special method that a class of the program's defines for its tensors (`__len__`), bound: it stands before torch's."""
        kind = self.kind_of(tensor) if self.known else None
        if kind is None and is_wrapped(tensor):
            kind = type(tensor)
        if kind is None:
            return None
        raw, owner = lookup(kind, name)
        if owner is None or owner in Tensor.__mro__:
            return None
        if not isinstance(raw, types.FunctionType):
            raise GraphBreak(f"{name} of a {kind.__qualname__} is no plain method")
        return types.MethodType(raw, tensor)

    def of_builtin(self, function: Any, args: tuple[Any, ...]) -> Any:
        """What a built-in function gives that asks a special method of the program's for its tensor; `NotImplemented`: it asks none."""
        if not self.known and not self.methods.met or not args:
            return NotImplemented
        name = getattr(function, "__name__", "").strip("_")
        if name not in _ASKING:
            return NotImplemented
        if function is not getattr(_ASKING[name], name, None) and function is not getattr(operator, name, None):
            return NotImplemented
        if isinstance(args[0], Tensor) and (own := self.own(args[0], f"__{name}__")) is not None:
            if isinstance(function, type) or name in ("index", "divmod"):
                raise GraphBreak(f"__{name}__ is a method of {self.vm.type_of(args[0]).__qualname__}")
            result = self.vm.call(own, args[1:], {})
            if result is not NotImplemented:
                return result
            raise GraphBreak(f"__{name}__ of a {self.vm.type_of(args[0]).__qualname__} does not take its operand")
        other = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else None
        if other is not None and self.own(other, f"__r{name}__") is not None:
            raise GraphBreak(f"__r{name}__ is a method of {self.vm.type_of(other).__qualname__}")
        return NotImplemented

    def check_methods(self, function: Any, args: tuple[Any, ...]) -> None:
        """Break where torch's Python code may call a method on its tensor that the tensor's class defines anew."""
        module = getattr(function, "__module__", None) or ""
        if not self.known or type(function) is not types.FunctionType or not module.startswith("torch."):
            return
        for tensor in args:
            kind = self.kind_of(tensor) if isinstance(tensor, Tensor) else None
            if kind is None or self.vm.foreign.of(tensor) is not None:  # of wrapper tensors torch's code is interpreted
                continue
            own = [vars(base) for base in kind.__mro__ if base not in Tensor.__mro__]
            for name in function.__code__.co_names:
                if not name.startswith("__") and hasattr(Tensor, name) and any(name in held for held in own):
                    raise GraphBreak(f"{function.__name__} of torch calls {name}, a method of {kind.__qualname__}")

    # ---- calls ----

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch's, where what it calls is overridden; `NotImplemented` where nobody was asked."""
        vm = self.vm
        try:
            with _Catch(self, self._spreads(), _is_checked(function)) as catch:
                result = vm.native(
                    function, *map(vm.materialize, args), **{k: vm.materialize(v) for k, v in kwargs.items()}
                )
        except _Symbol as symbol:
            return symbol.value
        except UserRaise as raised:
            raise _named(vm, raised, args) from None
        if catch.caught:
            return result
        if any(not vm.out.is_known(t) for t in tensors_in(result)):
            name = getattr(function, "__name__", function)
            raise Unsupported(f"{name} makes a tensor, and does not ask __torch_function__")
        return NotImplemented

    def check_alone(self, what: str, asks: bool = False, wrappers: bool = False) -> None:
        """Break where something else than torch's plain operators is called in what torch runs in a way of its own.

        `asks`: it asks for facts of its tensors alone, which torch's own modes (that for masks of `flex_attention`) leave as they are.
        `wrappers`: torch itself calls the methods of wrapper tensors in it, each operator of which is followed.
        """
        seen_by = [m for m in self.modes if not (asks and type(m).__module__.partition(".")[0] == "torch")]
        held = self.methods.asks if wrappers else bool(self.parts)
        if seen_by or held or any(not known.wrapper for known in self.known.values()):
            seen = "a torch function mode, or dispatch mode," if seen_by else "tensors of a class of the program's"
            raise GraphBreak(f"{what} meets {seen}")

    def _spreads(self) -> bool:
        """Whether the program's call is spelled `f(*args, **kwargs)`: C code is given a dict then, even if it is empty."""
        frame = self.vm.frames[-1]
        instruction = frame.program.instructions[frame.ip - 1]
        return instruction.op == "CALL_FUNCTION_EX" and bool(instruction.arg)

    def by_object(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call whose meaning an object gives that is no tensor."""
        result = self.run(function, args, kwargs)
        if result is NotImplemented:
            name = getattr(function, "__name__", function)
            raise Unsupported(f"{name} is given an object with __torch_function__, and does not ask it")
        return result

    def method(self, tensor: Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`tensor.name(*args)` where it is overridden; else `NotImplemented`."""
        found = getattr(Tensor, name, None)
        if name in _NEVER or not callable(found) or not self.concern((tensor, args, kwargs)):
            return NotImplemented
        return self.run(found, (tensor, *args), kwargs)

    def dispatch(self, function: Any, args: Any, kwargs: Any, with_plain: bool = False) -> Any:
        """Ask the modes, innermost first, then the classes of the arguments; `kwargs` may be None: they are not given then."""
        vm = self.vm
        found = self.overloaded((args, kwargs))
        kinds: tuple[Any, ...] = tuple(found)
        if with_plain:  # as torch counts where a mode is active
            given = dict.fromkeys(vm.type_of(t) for t in tensors_in((args, kwargs or {})))
            kinds = tuple(given) if self.modes and self.off < 2 and not found else kinds
        given_on = (function, kinds, args) if kwargs is None else (function, kinds, args, kwargs)
        asked = False
        if self.modes and self.off < 2:
            asked = True
            mode = self.modes[-1]
            self.pop()
            try:
                if isinstance(mode, DispatchMode):
                    return run_below(vm, mode, function, tuple(args), dict(kwargs or {}))
                result = vm.call(vm.load_attr(mode, "__torch_function__"), given_on, {})
            finally:
                self.push(mode)
            if result is not NotImplemented:
                return result
        for kind, value in found.items():
            asked = True
            owner = kind if isinstance(value, Tensor) else value
            result = vm.call(vm.load_attr(owner, "__torch_function__"), given_on, {})
            if result is not NotImplemented:
                return result
        if asked:
            raise GraphBreak(f"no __torch_function__ takes {getattr(function, '__name__', function)}")
        return vm.call(function, tuple(args), dict(kwargs or {}))

    def overloaded(self, values: Any) -> dict[type, Any]:
        """The classes that are asked about a call, with the first argument of each: from left to right, derived classes first."""
        found: list[tuple[type, Any]] = []
        if self.off:
            return {}
        for value in _leaves(values):
            kind = self.kind_of(value) if isinstance(value, Tensor) and not is_wrapped(value) else type(value)
            if kind is None or any(kind is k for k, _ in found) or not self._is_overloaded(kind, value):
                continue
            at = next((i for i, (k, _) in enumerate(found) if issubclass(kind, k)), len(found))
            found.insert(at, (kind, value))
        return dict(found)

    def _is_overloaded(self, kind: type, value: Any) -> bool:
        if isinstance(value, Tensor):
            if is_wrapped(value) and objects_method(kind):
                raise GraphBreak(f"a {kind.__qualname__} meets other __torch_function__")
            raw = lookup(kind, "__torch_function__")[0]
            if raw is NO_FUNCTION:
                return False
        elif not hasattr(kind, "__torch_function__"):
            return False
        else:
            raw = lookup(kind, "__torch_function__")[0]
        if not isinstance(raw, classmethod | staticmethod):
            raise GraphBreak(f"__torch_function__ of {kind.__qualname__} is no class method")
        return True

    @contextmanager
    def left(self) -> Iterator[None]:
        """Inside, nothing is overridden: for what capture itself asks."""
        before = self.switch(2)
        try:
            yield
        finally:
            self.switch(before)


# Built-in functions that ask their operand's class for a special method of their name, and where they stand.
_ASKING: dict[str, Any] = {
    **dict.fromkeys(("abs", "round", "pow", "divmod", "int", "float", "complex"), builtins),
    **dict.fromkeys(("floor", "ceil", "trunc"), math),
    "index": operator,
}

_OF_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)

# Methods that torch never asks `__torch_function__` about.
_NEVER = frozenset(["as_subclass", "_make_subclass", "__torch_function__", "__torch_dispatch__", "__class__"])


def objects_method(kind: type) -> bool:
    """Whether a class has a `__torch_function__` of its own."""
    return lookup(kind, "__torch_function__")[1] is not Tensor and _is_asked(kind)


def _is_asked(kind: type) -> bool:
    return lookup(kind, "__torch_function__")[0] is not NO_FUNCTION


def _leaves(values: Any) -> Iterable[Any]:
    for value in values.values() if isinstance(values, dict) else values or ():
        if type(value) in (list, tuple, dict) or isinstance(value, tuple) and not isinstance(value, torch.Size):
            yield from _leaves(value)
        elif not isinstance(value, type | types.ModuleType):
            yield value
