"""What the methods of wrapper classes do beside computing: each call is interpreted once, for what it reads and changes.

`__torch_dispatch__`, `__torch_function__` and constructors of such a class run as they are, at capture and in the traces of the graph,
and not in compiled calls. That is right where they compute from their arguments and from what does not change. So capture *follows* each
call: the interpreter runs the method beside, on a graph that nobody uses. What it reads of the program is guarded. The graph breaks where it

- changes something that the program sees, prints, or does what capture cannot follow;
- reads what the program has changed in the same call: it would read it as it was before;
- reads a tensor that it is not given.

A call like an earlier one (function, layouts, sizes, constants) is not followed again.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from ..errors import CaptureError, GraphBreak, InternalError, Unsupported, UserRaise
from ..gradients.state import Reach, VisibleState
from ..graph.output import OutputGraph
from ..guards.definitions import lookup
from ..state import Interpreter
from ..torch_private.batches import outside_transforms
from ..torch_private.dispatch import ASKED, CORRECT_ALIASING, CaptureMode
from ..torch_private.dynamo import undisabled
from ..torch_private.fake import FakeTensor, is_fake
from ..torch_private.foreign.data import copied as copied_plainly
from ..torch_private.foreign.data import is_alone
from ..torch_private.functions import MAKE_WRAPPER, NO_FUNCTION
from ..torch_private.wrapped import GradientUnlike, Layout, is_jagged, is_wrapped, may_have_gradient
from ..values.constant import is_constant, is_static
from ..values.kinds import SYMBOLIC, isinstance, namespace_of, tensors_in
from .given import alike, copied, deep, facts_of, gradient_of, leaves_in

__all__ = [
    "Methods",
    "Operator",
    "applied",
    "asked",
    "begun",
    "constructed",
    "copied_data",
    "gradient_of",
    "has_function",
    "is_followed",
    "is_fresh",
    "is_of_caller",
    "made",
    "of_function",
]


@dataclass
class _Followed:
    """A call that was followed: what it was given, and what it read."""

    given: Any
    read: dict[tuple[str, int, str], Any]
    raises: bool


class Methods:
    """Those of one capture."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.known: dict[Any, list[_Followed]] = {}
        self.asks = False  # whether one of them has a class with `__torch_function__`
        self.met = False  # whether a graph has wrapper tensors of the program's
        self.depth = 0  # how many calls are being followed
        # Why a function of autograd's is not captured as two halves: `Marks.wrapping` says which.
        self.refused: str | None = None

    def seen(self, target: Any, given: Sequence[Tensor]) -> AbstractContextManager[Any]:
        """Inside, calls of methods of wrapper classes are followed: of the tensors given, of any in a function (it may run backward)."""
        if not self.met or not isinstance(target, types.FunctionType) and not any(map(_is_of_program, given)):
            return _NOTHING
        asked = next((type(t) for t in given if _is_of_program(t) and has_function(type(t))), None)
        if asked is None or self.vm.overrides.off and is_followed(self.vm):
            return _DispatchSeen(self)
        if self.vm.overrides.off:
            raise GraphBreak(f"__torch_function__ of {asked.__qualname__} is switched off")  # in the traces it is not
        return _BothSeen(self)

    def check_backward(self) -> None:
        """Follow what backward will call, where gradients are wanted outside of the graph."""
        if not self.met:
            return
        out = self.vm.out
        wanted = {n: n.meta.get("example_value") for n in out.graph.nodes}
        wanted = {n: t for n, t in wanted.items() if isinstance(t, Tensor) and t.requires_grad}
        last = [t for n, t in wanted.items() if t.grad_fn is not None and not any(user in wanted for user in n.users)]
        last = [t for t in last if may_have_gradient(t)]
        leaves = [t for n, t in wanted.items() if n.op == "placeholder"]
        if not last or not leaves:
            return
        try:
            gradients = [gradient_of(t) for t in last]
            with _DispatchSeen(self):
                torch.autograd.grad(last, leaves, gradients, retain_graph=True, allow_unused=True)
        except CaptureError as error:
            raise Unsupported(f"in backward, {error.reason}") from None
        except GradientUnlike as error:
            raise Unsupported(f"in backward, {error}") from None
        except Exception:  # the trace of backward will raise it
            return

    def follow(self, key: Any, what: str, call: Callable[[Any], Any], given: Any, writes: bool = False) -> bool:
        """Interpret `call(given)` beside; whether it raises. Raises GraphBreak where it does more than compute from what it is given.

        `key` says what is called; `writes`: it writes to the tensors that it is given, and gets copies.
        """
        known = self.known.setdefault(key, [])
        plain = self.vm.shape_env is None and all(type(t) is FakeTensor or is_wrapped(t) for t in tensors_in(given))
        facts = facts_of((given, _modes())) if plain and not self.vm.overrides.marks(given) else None
        found = next((f for f in known if alike(f.given, facts)), None) if facts is not None else None
        if found is None:
            read: dict[tuple[str, int, str], Any] = {}
            raises = self._interpret(what, call, copied(given) if writes else given, read)
            found = _Followed(facts, read, raises)
            known.append(found)
        self._check_read(what, found.read)
        return found.raises

    def _interpret(self, what: str, call: Callable[[Any], Any], given: Any, read: Any) -> bool:
        """Fills `read`."""
        vm, outer, overrides = self.vm, self.vm.out, self.vm.overrides
        state, reach, raises = VisibleState(vm), Reach(vm, what), False
        scopes, modes, parts = len(vm.scopes), list(overrides.modes), overrides.parts
        off, roots = overrides.off, list(overrides.given_roots)
        kept = {name: getattr(vm, name) for name in _KEPT}
        reads, fixed, written = vm.effects.read, vm.user.fixed, vm.fake_mode.dispatch.written
        beside = _Beside(outer, given)
        refused = vm.checks.refused, vm.branches.refused, vm.branches.loops.refused
        why = f"{what} may not decide by a tensor's values"
        vm.out, vm.recording = beside, False
        vm.checks.refused, vm.branches.refused, vm.branches.loops.refused = None, why, why
        vm.effects.read, vm.user.fixed, vm.fake_mode.dispatch.written = read, True, None
        overrides.parts = {}
        overrides.modes.clear()
        self.depth += 1
        try:
            if self.depth > _DEEPEST:
                raise GraphBreak(f"it is called inside itself more than {_DEEPEST} times")
            call(given)
        except UserRaise:
            raises = True
        except InternalError:
            raise
        except CaptureError as error:
            raise GraphBreak(f"{what} cannot be followed: {error.reason}") from None
        finally:
            self.depth -= 1
            for scope in reversed(vm.scopes[scopes:]):
                scope._leave()
            del vm.scopes[scopes:]
            for name, value in kept.items():
                setattr(vm, name, value)
            vm.checks.refused, vm.branches.refused, vm.branches.loops.refused = refused
            vm.effects.read, vm.user.fixed, vm.fake_mode.dispatch.written = reads, fixed, written
            overrides.parts, overrides.modes[:], overrides.given_roots[:] = parts, modes, roots
            overrides.switch(off)
            outer.modes, outer.asked = outer.modes + beside.modes, outer.asked or beside.asked
            if reads is not None:
                reads.update(read)
        if state.is_changed() or reach.is_changed():
            raise GraphBreak(f"{what} changes something that the program sees")
        return raises

    def _check_read(self, what: str, read: dict[tuple[str, int, str], Any]) -> None:
        """Break where a method reads what the program has changed in this call, which happens behind the graph."""
        effects = self.vm.effects
        for kind, owner, name in read:
            changed = {
                "attribute": (owner, name) in effects.attrs,
                "global": (owner, name) in effects.globals,
                "variable": owner in effects.cells,
            }
            if changed[kind]:
                raise GraphBreak(f"{what} reads {name}, which the program changes in the same call")
        shadows = [shadow for shadow in self.vm.user.shadows if shadow.changed()]
        if not shadows:
            return
        memory = {id(each) for shadow in shadows for each in (shadow.real, shadow.copy)}
        for (kind, _, name), owner in read.items():
            value = _value(kind, name, owner)
            if _holds(value, memory, set()):
                raise GraphBreak(f"{what} reads {name}, in which the program changes something in the same call")


def _modes() -> list[Any]:
    """What of the thread's state a method may ask for."""
    autocast = [torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) for device in ("cpu", "cuda")]
    return [torch.is_grad_enabled(), torch.get_default_dtype(), *autocast]


_NOTHING = nullcontext()
_DEEPEST = 16
_KEPT = ("out", "recording", "current_error", "carried", "raised_at")


def _value(kind: str, name: str, owner: Any) -> Any:
    """What a name that was read holds, without running any code of the program's."""
    try:
        if kind == "variable":
            return owner.cell_contents
        if kind == "global":
            return owner.get(name)
        return lookup(owner, name)[0] if isinstance(owner, type) else (namespace_of(owner) or {}).get(name)
    except ValueError:  # an empty cell
        return None


def _holds(value: Any, memory: set[int], seen: set[int]) -> bool:
    """Whether one of these objects is a value, or is held in it."""
    if id(value) in memory:
        return True
    if id(value) in seen or type(value) not in (list, tuple, dict, set, frozenset):
        return False
    seen.add(id(value))
    items = [*value, *value.values()] if type(value) is dict else value
    return any(_holds(item, memory, seen) for item in items)


class _Beside(OutputGraph):
    """The graph of a call that is followed. Nobody runs it: what the call is given, and what comes from that, it takes as it comes."""

    def __init__(self, outer: OutputGraph, given: Any) -> None:
        super().__init__(outer.fake_mode, outer._whence)
        self.outer = outer
        self.fresh: list[Tensor] = []  # wrapper tensors that are being made
        self.items_of, self.number_in, self.overrides = outer.items_of, outer.number_in, outer.overrides
        self.inputs, self.symbols = outer.inputs, outer.symbols
        self.given = {id(each) for tensor in tensors_in(given) for each in deep(tensor)}
        numbers = (value for value in leaves_in(given) if isinstance(value, SYMBOLIC))
        self.given_symbols = {symbol for number in numbers for symbol in number.node.expr.free_symbols}

    def add_input(self, info: Any) -> None:
        """Inputs are those of the whole capture."""
        self.outer.add_input(info)

    def is_known(self, fake: Any) -> bool:
        """Every fake tensor is."""
        return super().is_known(fake) or isinstance(fake, Tensor) and (is_fake(fake) or is_wrapped(fake))

    def node(self, fake: Tensor) -> Any:
        """A placeholder for a tensor that no node made."""
        if id(fake) not in self._node_of:
            if id(fake) not in self.given and (id(fake) in self.inputs or not self.is_known(fake)):
                raise GraphBreak("it reads a tensor that it is not given")
            self._node_of[id(fake)] = self._new_placeholder(f"given_{len(self._node_of)}")
            self._alive.append(fake)
        return self._node_of[id(fake)]

    def sym_node(self, value: Any) -> Any:
        """Sizes of tensors, and numbers that the call is given: others are fixed where the method runs as it is."""
        for symbol in value.node.expr.free_symbols:
            known = self.symbols.get(symbol)
            if symbol not in self.given_symbols and known is not None and not known[1]:
                raise GraphBreak("it reads a number that changes between calls")
        return self._new_placeholder("size")


class Operator(_Beside):
    """The graph of a method that is given a call of an operator, and may do nothing but make it."""

    def is_known(self, fake: Any) -> bool:
        """What the method is given and has made."""
        return id(fake) in self._node_of or id(fake) in self.given

    def is_call_alone(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
        """Whether nothing was computed but this call of an operator, and this is what it gives."""
        made = [n for n in self.graph.nodes if n.op != "placeholder" and n.target is not operator.getitem]
        if len(made) != 1 or made[0].target is not function:
            return False
        if (made[0].args, made[0].kwargs) != (self.lift(args), self.lift(kwargs)):
            return False
        several = type(result) in (tuple, list)
        found = [self._node_of.get(id(r)) if isinstance(r, Tensor) else r for r in (result if several else [result])]
        if not several:
            return found == made
        places = [n.args[1] if isinstance(n, fx.Node) and n.args[:1] == (made[0],) else n for n in found]
        return all(p is None or p == k for k, p in enumerate(places)) and len(places) == len(
            made[0].meta["example_value"]
        )


# ---- where calls are seen ----


def _is_of_program(value: Any) -> bool:
    return is_wrapped(value) and not is_jagged(type(value))


def has_function(kind: type) -> bool:
    """Whether a class has a `__torch_function__` of its own."""
    found, owner = lookup(kind, "__torch_function__")
    return found is not NO_FUNCTION and owner not in Tensor.__mro__


class _Seen:
    """What both modes do: follow the methods of all classes that are asked about a call, then let torch make it."""

    methods: Methods

    def make(
        self, name: str, function: Any, kinds: Any, args: tuple[Any, ...], kwargs: dict[str, Any], writes: bool
    ) -> Any:
        vm, given = self.methods.vm, (tuple(args), kwargs)
        asked = dict.fromkeys(type(t) for t in tensors_in(given) if _is_of_program(t))
        raises = [
            self._follow(
                (kind, name, function),
                f"{name} of {kind.__qualname__}, for {getattr(function, '__name__', function)},",
                partial(_called, vm, kind, name, function, tuple(kinds)),
                given,
                writes,
            )
            for kind in asked
            if name == "__torch_dispatch__" or has_function(kind)
        ]
        result = function(*args, **kwargs)
        if any(raises):
            raise GraphBreak(f"{name} of {next(iter(asked)).__qualname__} raises when it is followed")
        return result

    def _follow(self, *call: Any) -> bool:
        with outside_transforms():
            return self.methods.follow(*call)


def of_function(vm: Interpreter, tensor: Tensor, function: Any) -> None:
    """Follow `__torch_function__` of a wrapper tensor's class, where an attribute of the tensor is read."""
    kind, name = type(tensor), "__torch_function__"
    if vm.overrides.off < 1 and _is_of_program(tensor) and has_function(kind):
        what = f"{name} of {kind.__qualname__}, for {function.__self__.__name__},"
        call = partial(_called, vm, kind, name, function, (kind,))
        vm.overrides.methods.follow((kind, name, function.__self__), what, call, ((tensor,), {}))


def asked(vm: Interpreter, tensor: Tensor, function: Any, *values: Any) -> Any:
    """What `__torch_function__` of a wrapper tensor's class makes of a question about it that no node of the graph answers."""
    kind = type(tensor)
    method = undisabled(vm.load_attr(kind, "__torch_function__"))
    return vm.call(method, (function, (kind,), (tensor, *values), {}), {})


def _called(vm: Interpreter, kind: type, name: str, function: Any, kinds: tuple[type, ...], given: Any) -> None:
    method = undisabled(vm.load_attr(kind, name))
    vm.call(method, (function, kinds, tuple(given[0]), dict(given[1])), {})


class _DispatchSeen(CaptureMode, _Seen):
    """Follows each operator that comes to a wrapper tensor."""

    def __init__(self, methods: Methods) -> None:
        super().__init__()
        self.methods = methods

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in ASKED:
            return func(*args, **kwargs)
        return self.make("__torch_dispatch__", func, types, args, kwargs, func._schema.is_mutable)


class _FunctionsSeen(TorchFunctionMode, _Seen):
    """Follows each call of torch of which `__torch_function__` of a wrapper class is asked."""

    def __init__(self, methods: Methods) -> None:
        super().__init__()
        self.methods = methods

    def __torch_function__(self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        return self.make("__torch_function__", function, kinds, args, kwargs, "out" in kwargs or _writes(function))


class _BothSeen:
    """Both modes."""

    def __init__(self, methods: Methods) -> None:
        self.modes = _DispatchSeen(methods), _FunctionsSeen(methods)

    def __enter__(self) -> None:
        for mode in self.modes:
            mode.__enter__()

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self.modes):
            mode.__exit__(*error)


def _writes(function: Any) -> bool:
    """Whether a function of torch's writes to its arguments, as far as its name says."""
    name = getattr(function, "__name__", "").partition(".")[0]
    return (
        name in ("__setitem__", "__set__") or name.endswith("_") and not name.endswith("__") or name.startswith("__i")
    )


# ---- making wrapper tensors ----


class Applied:
    """A call of an autograd function that is given wrapper tensors: torch runs both halves as they are."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.__name__ = f"applied_{kind.__name__}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kind.apply(*args, **kwargs)


def applied(vm: Interpreter, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any], seen: Callable[..., Any]) -> Any:
    """Follow `cls.apply(...)` (by `seen`), then make the call."""
    what = f"the autograd function {cls.__qualname__}"
    if vm.is_created(cls):  # it may hold what this capture made
        raise GraphBreak(f"{what} is given wrapper tensors, and defined inside the captured code")
    args, kwargs = tuple(map(vm.materialize, args)), {k: vm.materialize(v) for k, v in kwargs.items()}
    vm.definitions.note(cls)
    vm.overrides.meet(Tensor)
    if vm.overrides.methods.follow((cls, "apply"), what, lambda given: seen(vm, cls, *given), (args, kwargs)):
        raise GraphBreak(f"{what} raises when it is followed")
    return vm.out.call_function(Applied(cls), args, kwargs)


def constructed(vm: Interpreter, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Follow `cls(...)`."""
    what = f"the constructor of {cls.__qualname__}"
    if vm.overrides.methods.follow((cls, "__new__"), what, lambda given: made(vm, cls, *given), (args, kwargs)):
        raise GraphBreak(f"{what} raises when it is followed")


def made(vm: Interpreter, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`cls(...)` in a method that is followed: step by step."""
    new = lookup(cls, "__new__")[0]
    tensor = vm.call(getattr(new, "__func__", new), (cls, *args), kwargs)
    if isinstance(tensor, cls):
        vm.call(lookup(cls, "__init__")[0], (tensor, *args), kwargs)
    vm.out.fresh[:] = [t for t in vm.out.fresh if t is not tensor]  # type: ignore[attr-defined]
    return tensor


def is_fresh(vm: Interpreter, tensor: Tensor) -> bool:
    """Whether a wrapper tensor is being made by a constructor that is followed."""
    return isinstance(vm.out, _Beside) and any(t is tensor for t in vm.out.fresh)


def is_followed(vm: Interpreter) -> bool:
    """Whether a method is being followed."""
    return isinstance(vm.out, _Beside)


def copied_data(vm: Interpreter, value: Any) -> Any:
    """A copy of plain data that a wrapper tensor holds: whether the method changes it is asked when it runs as it is."""
    made = copied_plainly(value)
    waiting = [made]
    while waiting:
        each = waiting.pop()
        if is_alone(each):
            if not is_of_caller(vm, each):
                raise GraphBreak("it reads an object of a wrapper tensor that another method has made")
            continue
        if is_constant(each) or is_static(each) or type(each) is types.FunctionType:
            continue
        vm.create(each)
        waiting += each.values() if type(each) is dict else each if type(each) in (list, tuple) else vars(each).values()
    return made


def is_of_caller(vm: Interpreter, alone: Any) -> bool:
    """Whether an object was there before the call, and is known by where it was found."""
    known = vm.user.by_real.get(id(alone))
    return known is not None and known.real is alone and known.value is alone


def put_together(vm: Interpreter, layout: Layout, parts: dict[str, Tensor]) -> None:
    """Follow `__tensor_unflatten__` of a class."""
    kind, (shape, stride, *_) = layout.kind, layout.facts

    def call(given: Any) -> None:
        size = torch.Size(given[2])
        vm.call(vm.load_attr(kind, "__tensor_unflatten__"), (given[0], copied_data(vm, given[1]), size, given[3]), {})

    what = f"__tensor_unflatten__ of {kind.__qualname__}"
    if vm.overrides.methods.follow((kind, what), what, call, (parts, layout.context, shape, stride)):
        raise GraphBreak(f"{what} raises when it is followed")


def aliasing_corrected(vm: Interpreter, *args: Any, **kwargs: Any) -> Any:
    """`return_and_correct_aliasing(...)`, a helper of torch's for methods of wrapper tensors, in one that is followed."""
    if not is_followed(vm):
        raise GraphBreak("return_and_correct_aliasing is called outside of a wrapper tensor's methods")
    return vm.native(CORRECT_ALIASING, *map(vm.materialize, args), **vm.materialize(kwargs))


def begun(vm: Interpreter, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor._make_wrapper_subclass(...)` in a constructor that is followed."""
    if type(vm.out) is not _Beside:
        raise Unsupported("a wrapper tensor is made inside the captured code, not by a call of its class")
    made: Tensor = vm.native(MAKE_WRAPPER, *map(vm.materialize, args), **vm.materialize(kwargs))
    vm.out.fresh.append(made)
    return made
