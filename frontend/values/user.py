"""The user's own values as capture first meets them: wrapped by source, guarded, known by identity from then on."""

from __future__ import annotations

import contextvars
import functools
import types
from typing import Any

import torch
from torch import Tensor, nn

from ..calls.visibility import is_opaque_type
from ..distributed.tensors import taken_in
from ..errors import Unsupported
from ..foreign.tensors import is_taken
from ..foreign.tensors import taken_in as foreign_taken_in
from ..graph.output import GraphInput
from ..guards.definitions import lookup
from ..guards.sameness import is_value_type
from ..guards.source import Attr, Const, Fetch, Item, Source
from ..state import Interpreter, Tracked
from ..subclasses.tensors import taken_in as subclassed
from ..subclasses.tensors import takes
from ..torch_private.dtensor import is_shared
from ..torch_private.guards import is_functorch_wrapped
from .constant import has_identity, is_bound, is_constant, is_single, is_static, plain_value
from .container import LazyDict, Shadow, list_items, shadow_of
from .kinds import isinstance
from .lazy import Unread

__all__ = ["UserState"]

# What is asked of a module itself when it is called, unguarded.
_MANY_KEYS = 32
_MODULE_MARKS = ("_intarsia_disabled", "_compiled_call_impl")
_STATE_TYPES = (contextvars.ContextVar,)


class UserState:
    """What capture knows of the objects that existed before it."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.by_real: dict[int, Tracked] = {}
        self.by_value: dict[int, Tracked] = {}
        self.shadows: list[Shadow] = []
        self.fixed = False  # whether numbers that are read now are taken as they are
        self.arg_tensors: list[GraphInput] = []
        self.appended: list[Unread] = []
        self.given: list[Any] = []  # of a piece: what it was given, in frames that live as long as it
        self.appending: Any = None  # the frame whose next instruction asks what it loads now for `append`
        self._facts: set[tuple[int, Source]] = set()
        # That have an identity and were there before the capture.
        self.constants: dict[int, tuple[Any, Source | None]] = {}
        # Where constants were found that equal ones may replace.
        self.places: dict[int, tuple[Any, dict[Source, None]]] = {}
        self.same_tables: set[int] = set()  # stand-ins of sets that are kept as these are
        self.keys: dict[
            int, tuple[Any, bool]
        ] = {}  # the caller's objects that are keys; whether a guard says which each is
        self.opaque: dict[int, str] = {}  # the caller's objects that keep what they are in C
        self.iterators: dict[int, Any] = {}  # the caller's that items were taken from (`breaks.iterators.TakenApart`)
        self.items: dict[int, list[Any]] = {}  # what the caller's objects that derive from list hold
        vm.out.items_of = self.items_of

    def track(self, real: Any, value: Any, source: Source) -> None:
        """Remember that `value` stands for `real`."""
        entry = Tracked(real, value, source)
        self.by_real[id(real)] = entry
        self.by_value[id(value)] = entry
        if value is not real and not isinstance(value, Tensor | LazyDict):
            self.shadows.append(Shadow(real, value, source))

    def release(self) -> None:
        """Let go of the caller's values: what a capture leaves behind waits for the garbage collector."""
        for known in (
            *(self.by_real, self.by_value, self.shadows, self.arg_tensors, self.given),
            *(self.appended, self.iterators, self.items, self.constants, self.places, self.keys),
        ):
            known.clear()  # type: ignore[attr-defined]

    def source_of(self, value: Any) -> Source | None:
        """Where a value on the stack came from, for values of the user's."""
        entry = self.by_value.get(id(value))
        return None if entry is None else entry.source

    def note_unread(self, unread: Unread) -> None:
        """A list is appended to before it is read: other ways to the same list have to read it first."""
        self.vm.guards.add("type", unread.source, list)
        self.by_real[id(unread.value)] = Tracked(unread.value, unread, unread.source)
        self.appended.append(unread)

    def forget_unread(self, unread: Unread) -> None:
        """The list is read now."""
        del self.by_real[id(unread.value)]
        self.appended.remove(unread)

    def held(self, value: Any, source: Source | None = None) -> Any:
        """`value`; a constant that was there before the capture is that object in each call, and no new one."""
        if source is not None and not is_single(value):
            self.places.setdefault(id(value), (value, {}))[1][source] = None
        if has_identity(value) and (source is not None or id(value) not in self.constants):
            self.constants.setdefault(id(value), (value, source))
            if type(value) is tuple:
                for i, item in enumerate(value):
                    self.held(item, None if source is None else Item(source, i))
            elif type(value) is frozenset:
                for item in value:
                    self.held(item)
        return value

    def real(self, value: Any) -> Any:
        """The caller's object that a value on the stack stands for; what capture made is itself."""
        entry = self.by_value.get(id(value))
        return value if entry is None else entry.real

    def sources(self, value: Any) -> list[Source]:
        """Where the caller's object that a value stands for was found: a constant at all of its places."""
        entry = self.by_value.get(id(value))
        found = [] if entry is None else [entry.source]
        return [*found, *self.places.get(id(self.real(value)), (None, {}))[1]]

    def is_iterator(self, value: Any) -> bool:
        """Whether taking an item from `value` would consume an iterator that capture did not make."""
        entry = self.by_value.get(id(value))
        return entry is not None and entry.real is value and lookup(type(value), "__next__")[1] is not None

    def tell_apart(self, key: Any, pinned: bool = False) -> None:
        """Guard which of the caller's objects that are keys are one object; `pinned`: a guard says already which this one is."""
        known = self.by_value.get(id(key))
        if known is None or known.real is not key or id(key) in self.keys:
            return
        pinned = pinned or isinstance(known.source, Const)
        if not pinned and len(self.keys) > _MANY_KEYS:
            self.vm.guards.add("is", known.source, key)
            pinned = True
        for other, other_pinned in self.keys.values():
            if not (pinned and other_pinned) and type(other) is type(key):
                self.vm.guards.add("other", known.source, self.by_value[id(other)].source)
        self.keys[id(key)] = key, pinned

    def items_of(self, value: Any) -> list[Any] | None:
        """The items of an object of the caller's that derives from list, each guarded; for reading only."""
        if id(value) not in self.opaque or not isinstance(value, list):
            return None
        items = self.items.get(id(value))
        if items is None:
            entry = self.by_value[id(value)]
            source = Fetch(list_items, entry.source)
            self.vm.guards.add("length", source, list.__len__(value))
            raw = list_items(value)
            items = self.items[id(value)] = [self.wrap(item, Item(source, i)) for i, item in enumerate(raw)]
            self.by_value[id(items)] = Tracked(value, items, entry.source)
        return items

    def wrap(self, value: Any, source: Source) -> Any:
        """Bring a value of the user's onto the stack, with the guards that pin down what it is."""
        guards = self.vm.guards
        kind = type(value)
        if is_constant(value):
            if (kind is int or kind is float) and not self.fixed:
                symbolic = self.vm.dynamic.number(value, source)
                if symbolic is not None:
                    return symbolic
            if kind not in (tuple, torch.Size) or not self.vm.dynamic.opens(source):
                guards.add("equals", source, value)
                return self.held(value, source)
        known = self.by_real.get(id(value))
        if known is not None:
            if type(known.value) is Unread and not self._is_appended_to():
                known.value.read()
                known = self.by_real[id(value)]
            self._same_object(known, source)
            return known.value
        if kind is list and self._is_appended_to():
            self.vm.unread = True
            return Unread(self.vm, value, source)
        if isinstance(value, Tensor):
            return self._tensor(value, source)
        if isinstance(value, nn.Module):
            if source.leads_through(self.vm.dynamic.marks.modules):
                return self._one_of_many(value, source)
            guards.add("is", source, value)
            self.track(value, value, Const(value, source.name()))
            return value
        if kind is types.FunctionType:
            return self._function(value, source)
        if kind is types.MethodType:
            guards.add("type", source, kind)
            function = self.wrap(value.__func__, Attr(source, "__func__"))
            return types.MethodType(function, self.wrap(value.__self__, Attr(source, "__self__")))
        if kind is functools.partial:
            return self._partial(value, source)
        if is_bound(value):
            return self._bound(value, source)
        if is_static(value):
            guards.add("is", source, value)
            return value
        self.vm.definitions.note(kind)
        shadow = shadow_of(self.vm, value, source)
        if shadow is not None:
            self._freeze(shadow)
            if type(shadow) is LazyDict:
                self.track(value, shadow, source)
            return shadow
        return self._object(value, source)

    def _one_of_many(self, module: nn.Module, source: Source) -> nn.Module:
        """A module in whose place another one was in an earlier call, as the layers of a loop that breaks are: an object of its class."""
        self.vm.guards.add("type", source, type(module))
        self.vm.definitions.note(type(module))
        for name in _MODULE_MARKS:
            if name not in module.__dict__:
                self.vm.guards.add("missing", Attr(source, "__dict__"), name)
            else:
                self.vm.guards.add("is", source, module)
        self.track(module, module, source)
        return module

    def _is_appended_to(self) -> bool:
        return self.appending is not None and self.appending is self.vm.frames[-1]

    def _same_object(self, known: Tracked, source: Source) -> None:
        if known.source == source:
            return
        if isinstance(known.source, Const):
            self.vm.guards.add("is", source, known.real)
        else:
            self.vm.guards.add("alias", source, known.source)

    def _freeze(self, copy: Any) -> None:
        for shadow in self.shadows:
            if shadow.copy is copy:
                shadow.freeze()

    def _function(self, value: Any, source: Source) -> Any:
        root = source.root()
        if isinstance(root, Const) and not value.__closure__:
            self.vm.guards.add("is", source, value)
            self.track(value, value, Const(value, source.name()))
            return value
        self.vm.guards.add("type", source, types.FunctionType)
        self.vm.guards.add("is", Attr(source, "__code__"), value.__code__)
        self.track(value, value, source)
        return value

    def _bound(self, value: Any, source: Source) -> Any:
        """A C method of an object, such as `items.append`: the same method of what stands for the object."""
        self.vm.guards.add("type", source, type(value))
        self.vm.guards.add("equals", Attr(source, "__name__"), value.__name__)
        owner = self.wrap(value.__self__, Attr(source, "__self__"))
        return self.vm.load_attr(owner, value.__name__)

    def _partial(self, value: Any, source: Source) -> Any:
        self.vm.guards.add("type", source, functools.partial)
        function = self.wrap(value.func, Attr(source, "func"))
        args = self.wrap(value.args, Attr(source, "args"))
        keywords = self.wrap(value.keywords, Attr(source, "keywords"))
        made = functools.partial(function, *args, **keywords)
        vars(made).update(vars(value))  # read, and guarded, as those of any other object
        self.by_real[id(value)] = Tracked(value, made, source)
        self.by_value[id(made)] = self.by_real[id(value)]
        return made

    def _object(self, value: Any, source: Source) -> Any:
        if is_value_type(value):
            self.vm.guards.add("equals", source, value)
            self.track(value, value, source)
            return value
        self.vm.guards.add("type", source, type(value))
        if isinstance(value, torch.Generator):
            return self.vm.random.take(value, source)
        if isinstance(value, int | float | complex | str | bytes):  # of a class of its own, but it never changes
            self.vm.guards.add("equals", Fetch(plain_value, source), plain_value(value))
            self.track(value, value, source)
            return value
        if is_opaque_type(type(value)) and not hasattr(type(value), "__next__") and not self.of_library(source):
            self.opaque[id(value)] = source.name()
        self.track(value, value, source)
        return value

    def of_library(self, source: Source) -> bool:
        """Whether the value hangs on a module of torch's or Python's, which is not expected to change."""
        root = source.root()
        namespace = root.value if isinstance(root, Const) else None
        name = namespace.get("__name__") if isinstance(namespace, dict) else getattr(namespace, "__name__", None)
        return isinstance(name, str) and self.vm.is_library(name)

    # ---- tensors ----

    def _tensor(self, value: Tensor, source: Source) -> Tensor:
        if is_shared(value):
            if _is_module_tensor(source):
                self.vm.guards.add("is", source, value)
            return taken_in(self.vm, value, source)
        kind = type(value)
        if is_taken(value):
            if _is_module_tensor(source):
                self.vm.guards.add("is", source, value)
            return foreign_taken_in(self.vm, value, source)
        try:
            if kind is not Tensor and kind is not nn.Parameter and takes(kind):
                if _is_module_tensor(source):
                    self.vm.guards.add("is", source, value)
                return subclassed(self.vm, value, source, check_tensor)
            check_tensor(value, source.name())
        except Unsupported:
            self.vm.guards.add("refused", source, check_tensor)
            raise
        static = _is_module_tensor(source)
        if static:
            self.vm.guards.add("is", source, value)
        fake, info = self.vm.dynamic.tensor(value, source, static)
        self.track(value, fake, source)
        self.vm.out.add_input(info)
        if not static:
            self.arg_tensors.append(info)
        return fake


def check_tensor(value: Tensor, name: str) -> None:
    """Refuse tensors that capture cannot stand in for."""
    if type(value) not in (Tensor, nn.Parameter) and not isinstance(value, nn.Buffer):
        raise Unsupported(f"{name} is a tensor subclass ({type(value).__name__})")
    if value.is_meta:
        raise Unsupported(
            f"{name} is on the meta device: it has no data", "load or initialise the weights (module.to_empty) first"
        )
    if value.layout is not torch.strided:
        raise Unsupported(f"{name} has the layout {value.layout}; only strided tensors are compiled")
    if value._is_view() and value._base is not None and value._base.layout not in (torch.strided, torch.jagged):
        raise Unsupported(f"{name} is a part of a tensor with the layout {value._base.layout}")
    if value.is_quantized:
        raise Unsupported(f"{name} is quantized")
    if value.is_nested:
        raise Unsupported(f"{name} is a nested tensor")
    if value.retains_grad and value.grad is not None and value.grad.shape != value.shape:
        raise Unsupported(f"{name} keeps a gradient of other sizes than its own")
    if is_functorch_wrapped(value):
        raise Unsupported(f"{name} is inside a functorch transform (vmap, grad)")
    if value.is_neg() or value.is_conj():
        raise Unsupported(f"{name} is a lazy conjugate or negation")


def _is_module_tensor(source: Source) -> bool:
    if not isinstance(source, Item) or not isinstance(source.base, Item):
        return False
    where = source.base
    return (
        where.key in ("_parameters", "_buffers") and isinstance(where.base, Attr) and isinstance(where.base.base, Const)
    )
