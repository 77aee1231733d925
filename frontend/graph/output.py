"""The FX graph being built: fake tensors stand for values, every node knows its line in the user's program."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from ..breaks.asked_of_eager import ask_eager
from ..breaks.eager_errors import eagers_error
from ..breaks.refused_numbers import check_unknown
from ..bytecode.frame import Whence
from ..calls.tables import has_tensor, is_answer, is_guarded, nodes_in
from ..errors import GraphBreak, InternalError, Overridden, Unsupported, UserRaise
from ..functional.overlap import is_folded
from ..guards.sameness import is_numpy_number
from ..guards.source import Source
from ..torch_private.autograd_graph import is_leaf
from ..torch_private.dtensor import check_shared, is_composite
from ..torch_private.fake import FakeTensor, FakeTensorMode, data_dependent_errors, is_fake, unsupported_fake_errors
from ..torch_private.symbols import exact_of
from ..torch_private.wrapped import Wrapped, is_ragged, is_wrapped
from ..values.kinds import SYMBOLIC, isinstance, tensors_in
from .aside import Aside, module_of
from .aside import storage_of as _storage
from .call_numbers import Numbers, has_float, has_late, is_differentiated, with_inputs, with_tensors
from .read_sizes import READS, ReadSizes
from .recompute import RECOMPUTE
from .sym_nodes import FUNCTIONS, applied
from .writes import WrapperWrites, count_writes, in_place_view, statistics_written

__all__ = ["GRAD_MODE", "INFERENCE", "MUTATES", "TEMPORARY", "GraphInput", "OutputGraph"]

# In a node's `meta`: whether gradients were on; whether the call writes; whether it is a view made in inference mode of what was not.
GRAD_MODE, MUTATES, INFERENCE = "grad_mode", "mutates", "inference"

TEMPORARY = "temporary"  # in a placeholder's `meta`: whether nobody else holds what the graph is given


@dataclass
class GraphInput:
    """One value that a graph may take: its fake, where it comes from, whether guards hold it by identity."""

    source: Source
    fake: Any
    real: Any
    static: bool
    node: fx.Node | None = None
    version: int = 0
    requires_grad: bool = False  # of the fake, before the program runs
    grad_fn: Any = None
    history: Any = None  # the autograd node of the fake, or of what it is a view of, before the program runs
    replaced: bool = False  # whether the program has given it another memory (`.data = ...`)
    temporary: bool = False  # whether nobody else holds the tensor that the graph is given
    says: bool | None = None  # what the program says of it before it uses it: whether it requires gradients
    # Sizes, strides, offset before the program runs.
    geometry: tuple[tuple[Any, ...], tuple[Any, ...], Any] = ((), (), 0)

    @property
    def required(self) -> bool:
        """Whether the graph is given a tensor that requires gradients."""
        return self.requires_grad if self.says is None else self.says

    def example(self) -> Any:
        """The fake as it was before the program ran: the same memory, the gradient state of the beginning.

        `meta["differentiated"]` of the placeholder says whether the program wrote to it in a way that autograd sees.
        """
        changed = isinstance(self.fake, Tensor) and (
            _history(self.fake) is not self.history or self.fake.requires_grad != self.required
        )
        if self.node is not None:
            self.node.meta["differentiated"] = changed
        if not changed:
            return self.fake
        leaf = self.fake.detach().requires_grad_(self.required)
        with torch.enable_grad():
            return leaf if self.grad_fn is None else leaf.view_as(leaf)


class OutputGraph:
    """Records torch calls as FX nodes while running them on fake tensors, once.

    `node_of` maps a fake tensor (by identity; `_alive` keeps it) to the node that made it. A placeholder appears
    when its tensor is first used.
    """

    overrides: Any = None  # `subclasses.overrides.Overrides` of the capture
    inside = differentiated = batched = False  # whether transforms of torch.func run it, those of gradients, of batches
    transforms = False  # whether it calls transforms
    foreign: Any = None  # `foreign.tensors.Foreigners` of the capture

    def __init__(self, fake_mode: FakeTensorMode, whence: Whence) -> None:
        self.fake_mode = fake_mode
        self.shape_env = fake_mode.shape_env
        self.graph = fx.Graph()
        self.inputs: dict[int, GraphInput] = {}
        self.used: list[GraphInput] = []
        self.symbols: dict[sympy.Symbol, tuple[GraphInput, str, int]] = {}
        # Of an object of the caller's derived from list.
        self.items_of: Callable[[Any], list[Any] | None] = lambda _: None
        self._whence = whence
        self._node_of: dict[int, fx.Node] = {}
        self._alive: list[Any] = []
        self._first: fx.Node | None = None
        self._sym_nodes: dict[sympy.Expr, Any] = {}
        self._names: set[str] = set()
        self.numbers: Numbers | None = None
        self.casts: Any = None  # `modes.autocast.Casts`, where autocast is on
        self.read = ReadSizes(whence.run)  # of results that are as large as values say
        self.read.node = self.node
        self.new_leaf: Callable[[str], None] | None = None  # told of leaves that calls make
        self.number_in: Callable[[Tensor], Any] = lambda _: None  # what a tensor holds, where the host knows
        self.settled: Callable[..., Any] = lambda *_: None  # arguments with numbers for what guards may ask for
        # A call that is given foreign tensors, or makes one.
        self.elsewhere: Callable[..., Any] = lambda *_: NotImplemented
        self.modes = 0  # how often the program has set the grad mode, or asked for it
        self.asked = False  # whether the program asked torch for something that no tensor tells: the grad mode, the default dtype
        self.meta: dict[str, Any] = {}  # of the graph module
        self.modules: dict[str, fx.GraphModule] = {}  # that nodes name
        self._again: Any = None  # the mark of what is to be computed again in backward
        self.size = 0  # nodes recorded so far, placeholders not counted
        # Storages that calls wrote to: `.data` and its views count versions of their own.
        self._written: set[int] = set()
        self.writes: list[int] = []  # the same, one for each write
        self.statistics: set[int] = set()  # storages that norms write to, which count no version of them
        self.ended: list[OutputGraph] = []  # those of functions inside transforms that have returned
        self._break = data_dependent_errors()
        self._refused = unsupported_fake_errors()

    def takes_gradients(self) -> bool:
        """Whether what runs now is differentiated, as far as is known by now."""
        return torch.is_grad_enabled() and bool(self.fake_mode.dispatch.tracked)  # type: ignore[attr-defined]

    # ---- inputs ----

    def add_input(self, info: GraphInput) -> None:
        """Declare a value that the graph may take; it becomes a placeholder when it is used."""
        self._alive.append(info.fake)
        self.inputs[id(info.fake)] = info
        if isinstance(info.fake, Tensor):
            info.version, info.grad_fn, info.history = info.fake._version, info.fake.grad_fn, _history(info.fake)
            info.requires_grad = info.fake.requires_grad
            info.geometry = tuple(info.fake.shape), tuple(info.fake.stride()), info.fake.storage_offset()
            if info.fake.layout is torch.strided and is_folded(info.fake):
                self.fake_mode.dispatch.folded.add(_storage(info.fake))  # type: ignore[attr-defined]
            for dim, size in enumerate(info.fake.shape):
                self._bind(size, info, "size", dim)
            for dim, stride in enumerate(info.fake.stride()):
                self._bind(stride, info, "stride", dim)
        elif isinstance(info.fake, torch.SymInt | torch.SymFloat):
            self._bind(info.fake, info, "", 0)

    def _bind(self, size: Any, info: GraphInput, method: str, dim: int) -> None:
        if isinstance(size, torch.SymInt | torch.SymFloat) and isinstance(size.node._expr, sympy.Symbol):
            self.symbols.setdefault(size.node._expr, (info, method, dim))

    def replace(self, info: GraphInput) -> None:
        """Behind here the input has another memory, which the graph does not know under its name."""
        self._node_of.pop(id(info.fake), None)
        info.replaced = True

    def _placeholder(self, info: GraphInput) -> fx.Node:
        if info.replaced:
            raise GraphBreak("a tensor is used whose .data was assigned")
        if info.node is None:
            info.node = self._new_placeholder(self._name_for(info.source.name()))
            info.node.meta.update(example_value=info.fake, source=info.source, static_input=info.static)
            info.node.meta[TEMPORARY] = info.temporary
            self.used.append(info)
            self.fake_mode.dispatch.tracked |= info.requires_grad  # type: ignore[attr-defined]
            if isinstance(info.fake, Tensor):
                self._node_of[id(info.fake)] = info.node
        return info.node

    def _new_placeholder(self, name: str) -> fx.Node:
        with self.graph.inserting_before(self._first) if self._first is not None else nullcontext():
            return self.graph.placeholder(name)

    def _name_for(self, path: str) -> str:
        stem = "".join(c if c.isalnum() else "_" for c in path).strip("_").lower() or "arg"
        stem = f"p_{stem}" if stem[0].isdigit() else stem
        name, count = stem, 0
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name

    @staticmethod
    def version(info: GraphInput) -> int:
        """How often the input has been written to."""
        return int(info.fake._version)

    def has_written(self, tensor: Tensor) -> bool:
        """Whether a call has written to the memory of a tensor."""
        return _storage(tensor) in self._written

    def is_written(self, info: GraphInput) -> bool:
        """Whether the graph writes to the input's memory, also through a tensor that does not share its version."""
        if not isinstance(info.fake, Tensor):
            return False
        return self.version(info) != info.version or _storage(info.fake) in self._written

    # ---- values to nodes ----

    def node(self, fake: Tensor) -> fx.Node:
        """The node of a fake tensor."""
        known = self._node_of.get(id(fake))
        if known is not None:
            return known
        info = self.inputs.get(id(fake))
        if info is not None:
            return self._placeholder(info)
        if self.is_foreign(fake):
            raise GraphBreak(f"a {self.foreign.of(fake).kind} is used where a graph takes plain tensors only")
        if not is_fake(fake):
            raise Unsupported("a tensor that capture has not seen being made (global, or a constant inside a library)")
        if any(id(fake) in graph._node_of for graph in self.ended):
            raise GraphBreak("a tensor that was made inside a transform of torch.func is used outside of it")
        raise InternalError("a tensor that no node of the graph made")

    def is_known(self, fake: Any) -> bool:
        """Whether the fake tensor is an input or was made by a node."""
        return id(fake) in self._node_of or id(fake) in self.inputs

    def concerns(self, value: Any) -> bool:
        """Whether a tensor of this capture is among the arguments."""
        return any(self.is_known(tensor) or self.is_foreign(tensor) for tensor in tensors_in(value))

    def is_foreign(self, value: Any) -> bool:
        """Whether a value stands for a foreign tensor, of which the graph has the parts."""
        return self.foreign is not None and self.foreign.of(value) is not None

    def lift(self, value: Any) -> Any:
        """`value` as an argument of a node: tensors and symbolic numbers become nodes, containers are rebuilt."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if isinstance(value, Tensor):
            return self.node(value)
        if kind is torch.SymBool:
            if self.read.is_read(value):
                raise GraphBreak("a truth that depends on a tensor's values")
            return bool(value)  # a relation between sizes: which way it goes is guarded
        if isinstance(value, SYMBOLIC):
            return self.sym_node(value)
        if kind in (list, tuple, range):
            return (list if kind is range else kind)(self.lift(v) for v in value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return kind(*(self.lift(v) for v in value))
        if isinstance(value, list | tuple):
            if self.items_of(value) is not None:
                raise Unsupported(f"a torch function is given a {kind.__name__} of the caller's inside a container")
            return tuple(self.lift(v) for v in value) if isinstance(value, tuple) else [self.lift(v) for v in value]
        if isinstance(value, dict):
            return {k: self.lift(v) for k, v in value.items()}
        if kind is slice:
            return slice(self.lift(value.start), self.lift(value.stop), self.lift(value.step))
        if isinstance(value, _GRAPH_CONSTANTS):
            # a number of NumPy's writes itself otherwise
            return float.__pos__(value) if isinstance(value, float) else value
        if hasattr(kind, "__torch_function__"):
            raise Overridden(f"a torch function is given an object of type {kind.__name__}")
        if kind is type and value in _DTYPES:
            return _DTYPES[value]
        if isinstance(value, type) or callable(value):
            name = getattr(value, "__qualname__", None) or type(value).__name__
            raise Unsupported(f"a torch function is given the Python object {name}")
        if type(value).__module__ == "numpy":
            if is_numpy_number(value) and value.dtype.kind in "iuf":  # torch takes it for the Python number
                return value.item()
            raise GraphBreak("a NumPy value meets a tensor")  # bools are floats to some arguments, bools to others
        raise Unsupported(f"a torch function is given an object of type {kind.__name__}")

    def sym_node(self, value: Any) -> Any:
        """The node (or plain number) for a symbolic number, rebuilt from its expression over the bound symbols."""
        if is_ragged(value):
            return self._ragged(value)
        expr = value.node.expr
        if expr.is_Integer:
            return int(expr)
        return self._expr_node(expr, value)

    def _ragged(self, value: Any) -> fx.Node:
        """The node for a ragged size of a jagged tensor."""
        for tensor in self._alive:
            if isinstance(tensor, Tensor) and tensor.layout is torch.jagged and self.is_known(tensor):
                for dim, size in enumerate(tensor.shape):
                    if is_ragged(size) and bool(size == value):
                        return self._emit("call_method", "size", (self.node(tensor), dim), {}, value)
        raise GraphBreak("a ragged size of a jagged tensor that this graph does not know")

    def _expr_node(self, expr: sympy.Expr, example: Any) -> Any:
        if expr.is_zero and isinstance(example, torch.SymFloat):
            return exact_of(example)
        if expr not in self._sym_nodes:
            self._sym_nodes[expr] = self._build_expr(expr, example)
        return self._sym_nodes[expr]

    def _build_expr(self, expr: sympy.Expr, example: Any) -> Any:
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if isinstance(expr, sympy.Number):
            return float(expr)
        if isinstance(expr, sympy.Symbol):
            if expr not in self.symbols:
                return self.read.node_of(expr, self._emit)
            info, method, dim = self.symbols[expr]
            base = self._placeholder(info)
            if not method:
                return base
            return self._emit("call_method", method, (base, dim), {}, getattr(info.fake, method)(dim))
        function, _ = FUNCTIONS.get(type(expr).__name__, (None, None))
        if function is None or expr.is_Boolean:
            raise Unsupported(f"symbolic sizes: no rule for {type(expr).__name__} in {expr}")
        return applied(function, [self._expr_node(arg, None) for arg in expr.args], self.sym_call)

    def sym_call(self, function: Any, *args: Any) -> Any:
        """A node for arithmetic over symbolic numbers, folded when every operand is plain."""
        if not any(isinstance(a, fx.Node) for a in args):
            return function(*args)
        examples = [a.meta["example_value"] if isinstance(a, fx.Node) else a for a in args]
        return self._emit("call_function", function, args, {}, function(*examples))

    # ---- recording ----

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a torch function on fake tensors and record it when its result or effect is a tensor's."""
        return self._call("call_function", target, args, kwargs, target)

    def call_method(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same for `args[0].name(*args[1:])`."""
        return self._call("call_method", name, args, kwargs, getattr(args[0], name))

    def watch(self, around: Callable[..., Any]) -> None:
        """From here on `around(call, op, target, args, kwargs, function)` makes each call, by `call` if it has nothing else to do."""
        vars(self)["_call"] = partial(around, self._call)

    def _call(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], function: Any) -> Any:
        made = self.elsewhere(op, target, args, kwargs)
        if made is not NotImplemented:
            return made
        if any(isinstance(kwargs.get(name), Tensor) for name in _NUMBERS):  # eager reads the number in the tensor
            held = [n for n in _NUMBERS if isinstance(kwargs.get(n), Tensor) and kwargs[n].dim() == 0]
            found = {n: self.number_in(kwargs[n]) for n in held}
            kwargs = {**kwargs, **{n: number for n, number in found.items() if number is not None}}
        if target == "new" and any(type(size) is torch.Size for size in (*args[1:], *kwargs.values())):
            # A graph has a tuple in its place, of which `new` would take the numbers for what the tensor holds.
            return self._call(op, "new_empty", args, kwargs, args[0].new_empty)
        name = target if isinstance(target, str) else getattr(target, "__name__", "").partition(".")[0]
        if self.casts is not None:
            self.casts.note(name, tensors_in((args, kwargs)))
        if self.numbers is not None:
            check_unknown(self.numbers.vm, name, args, kwargs)
        if self.numbers is not None and has_float((args, kwargs)):
            differentiated = self.inside or is_differentiated(args, kwargs)
            late = has_late(args, kwargs, self.numbers)
            if late or differentiated and any(self.numbers.is_float(a) for a in (*args, *kwargs.values())):
                call = self.call_function if op == "call_function" else self.call_method
                result = with_tensors(call, self.call_function, self.numbers.late, target, args, kwargs)
                if result is not NotImplemented:
                    return result
            args, kwargs = with_inputs((args, kwargs), self.numbers, differentiated)
        if any(isinstance(a, list) and type(a) is not list for a in (*args, *kwargs.values())):
            args = tuple(map(self._plain_list, args))
            kwargs = {k: self._plain_list(v) for k, v in kwargs.items()}
        try:
            lifted = self.lift(args), self.lift(kwargs)
        except Overridden:
            if self.overrides is None:
                raise
            return self.overrides.by_object(getattr(Tensor, target) if op == "call_method" else target, args, kwargs)
        run_args = args[1:] if op == "call_method" else args
        given = list(tensors_in((args, kwargs)))
        ask_eager(op, target, name, args, kwargs, given, self._whence.run)
        if name in _DRAWS and given and given[0].device.type == "cpu" and not given[0].is_contiguous():
            raise GraphBreak(f"{name} draws random numbers into memory that is not contiguous")
        if name in _DRAWS_INSIDE and torch.is_grad_enabled() and given and not given[0].is_contiguous():
            raise GraphBreak(f"{name}, with gradients, draws random numbers into memory that is not contiguous")
        if given and id(given[0]) in self.inputs and name != "detach_" and in_place_view(name):
            raise GraphBreak(f"{name} changes the sizes or strides of a tensor of the caller's")
        if op == "call_function" and any(getattr(target, "overloadpacket", target) is p for p in _REMAKES):
            raise GraphBreak(f"{target} makes its argument another tensor")
        watch = None
        if others := [t for t in given if type(t) is not FakeTensor]:
            check_shared(name, others, args, kwargs)
            if wrappers := [t for t in others if is_wrapped(t)]:
                if in_place_view(name):
                    raise GraphBreak(f"{name} changes the sizes or strides of a {type(wrappers[0]).__qualname__}")
                watch = WrapperWrites(self.fake_mode.dispatch, wrappers)
        versions, wanted = [t._version for t in given], [t.requires_grad for t in given]
        try:
            with nullcontext() if self.overrides is None else self.overrides.methods.seen(target, given):
                result = self.read.run(function, run_args, kwargs)
        except self._break as error:
            asked = target if type(error).__name__ == "DataDependentOutputException" else None
            if again := self.settled(args, kwargs, asked):
                args, kwargs = again
                function = getattr(args[0], target) if op == "call_method" else function
                return self._call(op, target, args, kwargs, function)
            what = "the size of the result" if type(error).__name__ == "DynamicOutputShapeException" else "the result"
            raise GraphBreak(f"{what} of {_called(target)} depends on a tensor's values") from None
        except self._refused as error:
            raise Unsupported(f"{_called(target)} cannot run on fake tensors: {_first_line(error)}") from None
        except (GraphBreak, Unsupported, InternalError, UserRaise):
            raise
        except Exception as error:
            if (kind := next((type(t).__name__ for t in given if is_composite(t)), "")) or isinstance(target, Wrapped):
                raise GraphBreak(f"{_called(target)} cannot run on {kind}s here: {_first_line(error)}") from None
            raise eagers_error(op, target, args, kwargs, error, self._whence.run) from None
        count_writes(name, args, kwargs)
        self.statistics |= set(map(_storage, statistics_written(name, target, args, kwargs)))
        written = [_storage(t) for t, version in zip(given, versions, strict=True) if t._version != version]
        self.writes += written
        self._written.update(written)
        stored = watch.done(name) if watch is not None else set()
        self._written |= stored
        self._refuse_new_leaves(target, [(t, w) for t, w in zip(given, wanted, strict=True) if is_leaf(t)], result)
        return self._record(op, target, lifted, result, bool(written or stored))

    def _refuse_new_leaves(self, target: Any, leaves: list[tuple[Tensor, bool]], result: Any) -> None:
        """A graph's tensors require gradients because others do: where a call says so of one, it runs between two graphs."""
        changed = [(t, before) for t, before in leaves if t.requires_grad != before and is_leaf(t)]
        for tensor, before in changed:
            tensor.requires_grad_(before)
        made = (t for t in tensors_in(result) if t.requires_grad and is_leaf(t) and not self.is_known(t))
        new = any(not t._is_view() for t in made)
        if new and not changed and self.new_leaf is not None:
            self.new_leaf(f"{_called(target)} makes a tensor that requires gradients")
        elif changed or new:
            raise GraphBreak(f"{_called(target)} says of a tensor whether it requires gradients")

    def _plain_list(self, value: Any) -> Any:
        return value if (items := self.items_of(value)) is None else items

    def record(self, target: Any, lifted: tuple[Any, Any], result: Any, mutated: bool) -> Any:
        """A node for a call of a function that has been run, with its arguments as nodes."""
        return self._record("call_function", target, lifted, result, mutated)

    def record_number(self, method: str, args: tuple[Any, ...], value: Any) -> fx.Node:
        """A node for a number that a method of a tensor gives."""
        return self._emit("call_method", method, args, {}, value)

    def check(self, expr: sympy.Expr) -> None:
        """A node that says what holds for numbers that only the running program knows."""
        function, _ = FUNCTIONS.get(type(expr).__name__, (None, None))
        if function is None:
            raise Unsupported(f"symbolic sizes: no rule for {type(expr).__name__} in {expr}")
        made = applied(function, [self._expr_node(arg, None) for arg in expr.args], self.sym_call)
        self._emit("call_function", torch._check, (made,), {}, None).meta[MUTATES] = True

    def rename(self, target: Any, lifted: tuple[Any, Any], result: Tensor) -> Tensor:
        """From here on the known tensor `result` is what a call of `target` gives."""
        self._emit("call_function", target, *lifted, result)
        return result

    def _record(self, op: str, target: Any, lifted: tuple[Any, Any], result: Any, mutated: bool) -> Any:
        """Add the node for a call that has been run; a result without tensors is a constant and adds none."""
        if isinstance(result, Tensor):
            wrapped = is_wrapped(result)
            if result.layout is not torch.strided and not wrapped:
                raise Unsupported(f"{_called(target)} makes a tensor with the layout {result.layout}")
            if result.dtype in _QUANTIZED or result.is_nested and not wrapped:
                raise Unsupported(f"{_called(target)} makes a quantized or nested tensor")
            known = self.is_known(result)
            if mutated or not known:
                self._emit(op, target, *lifted, result, rebind=not known).meta[MUTATES] = mutated
            return result
        given = any(True for _ in nodes_in(lifted))
        if not mutated and not given:
            self.asked = True
        if given and not mutated and is_answer(result) and not is_guarded(op, target):
            raise GraphBreak(f"{_called(target)} asks a tensor for what guards do not cover")
        if result is None and not mutated and not any(True for _ in nodes_in(lifted)):
            if isinstance(target, types.FunctionType):
                return None
            raise Unsupported(f"{_called(target)} is called for an effect that no tensor shows")
        if result is None or mutated:
            node = self._emit(op, target, *lifted, result)
            node.meta[MUTATES] = mutated
            if result is not None and has_tensor(result):
                self._unpack(node, result)
            return result
        if isinstance(result, list | tuple) and not isinstance(result, torch.Size) and has_tensor(result):
            node = self._emit(op, target, *lifted, result)
            self._unpack(node, result)
        return result

    def _unpack(self, node: fx.Node, result: Iterable[Any]) -> None:
        for index, item in enumerate(result):
            if isinstance(item, Tensor):
                if not self.is_known(item):
                    self._emit("call_function", operator.getitem, (node, index), {}, item)
            elif isinstance(item, list | tuple) and has_tensor(item):
                self._unpack(self._emit("call_function", operator.getitem, (node, index), {}, item), item)

    def _emit(self, op: str, target: Any, args: Any, kwargs: Any, example: Any, rebind: bool = True) -> fx.Node:
        self.size += 1
        if target is operator.pow and str(args[0])[0] == "-":  # fx writes `-1 ** k`, which is `-(1 ** k)`
            target = torch.pow if isinstance(example, Tensor) else pow
        node = self.graph.create_node(op, target, tuple(args), dict(kwargs))
        node.meta |= {"example_value": example, **self._whence(), GRAD_MODE: torch.is_grad_enabled()}
        if self._again is not None:
            node.meta[RECOMPUTE] = self._again
        if self._first is None:
            self._first = node
        if isinstance(example, Tensor) and rebind:
            self._node_of[id(example)] = node
            self._alive.append(example)
            if self.shape_env is not None and example.layout is torch.strided:
                self.read.bind_sizes(example, node)
        return node

    def mark(self, target: Any, args: tuple[Any, ...]) -> fx.Node:
        """A node for a change of thread state (grad mode, autocast) that has already been made."""
        return self._emit("call_function", target, args, {}, None)

    def attribute(self, name: str, module: fx.GraphModule) -> fx.Node:
        """A node that stands for a graph module, which a call of a higher-order operator is given."""
        path = f"{name}_{len(self.modules)}"
        self.modules[path] = module
        return self._emit("get_attr", path, (), {}, None)

    def beside(self, given: Sequence[Tensor]) -> Aside:
        """A graph of its own for what is recorded in a `with` block, a function of new tensors and of what it reads."""
        if self.overrides is not None:
            self.overrides.check_alone("a graph beside the main one")
        return Aside(self, given)

    @contextmanager
    def computed_again(self, mark: Any) -> Iterator[None]:
        """What is recorded meanwhile is not saved for backward, but computed there again, as the mark says."""
        if self.overrides is not None and self.overrides.modes:
            self.overrides.check_alone("a checkpoint")
        before, self._again = self._again, mark
        try:
            yield
        finally:
            self._again = before

    def keep(self, results: list[Tensor]) -> None:
        """These values may be saved for backward, unless they stand in a larger part that is computed again."""
        for result in results:
            node = self._node_of.get(id(result))
            if node is not None and self._again is None:
                node.meta.pop(RECOMPUTE, None)

    def finish(self, outputs: list[Tensor]) -> fx.GraphModule:
        """Close the graph over the output tensors."""
        self.graph.output(tuple(self.node(t) for t in outputs))
        module = module_of(self.graph, self.modules)
        module.graph._codegen = fx.graph.CodeGen()
        module.meta.update(self.meta)
        if self.read.any():
            module.meta[READS] = True
        return module


_NUMBERS = ("alpha", "value")  # arguments that are numbers in every operator

# What gives a tensor other memory, or, itself, a place in autograd's graph.
_REMAKES = (torch.ops.aten.set, torch.ops.aten.lift, torch.ops.aten.lift_fresh)

_DRAWS = frozenset(
    ["bernoulli_", "normal_", "uniform_", "exponential_", "cauchy_", "log_normal_", "geometric_", "random_"]
)

_DRAWS_INSIDE = frozenset(["alpha_dropout", "alpha_dropout_"])  # taken apart where gradients are traced


def _history(tensor: Tensor) -> Any:
    """The autograd node that a recorded write changes: of a view that of its base, as its own is made anew after any write."""
    return tensor.grad_fn if tensor._base is None else tensor._base.grad_fn


def _called(target: Any) -> str:
    return f"Tensor.{target}" if isinstance(target, str) else getattr(target, "__name__", str(target))


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32)


_GRAPH_CONSTANTS = (
    *(int, float, bool, str, bytes, complex, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_DTYPES: dict[type, torch.dtype] = {int: torch.int64, float: torch.float64, bool: torch.bool}  # as torch reads them
_PLAIN = {*_GRAPH_CONSTANTS, type(None), type(Ellipsis)} - {torch.Size}
