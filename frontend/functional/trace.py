"""Torch-level FX graph → functional ATen FX graph: one trace over fake tensors, mutation removed.

A dispatch mode below autograd sees every operator that the graph runs on fake tensors.  Each is executed once for its
metadata (so sizes, strides and aliasing are eager's own) and recorded as a node.  Storages are tracked: a write to a tensor
becomes a new value of its base, and views made earlier are rebuilt from that base when they are next read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx

from ..errors import Unsupported, lines_of
from ..gradients.nodes import asks_autograd, has_gradients
from ..graph.fake_dispatch import new_fake_mode
from ..graph.read_sizes import rely_on_narrow, with_sizes
from ..graph.recompute import RECOMPUTE
from ..graph.sym_nodes import SymNodes, concrete
from ..graph.value_errors import partly_read, raises_on_values
from ..modes.unheard import unheard
from ..torch_private.autograd import recording
from ..torch_private.dispatch import (
    CaptureMode,
    autocast_keys,
    below_autograd,
    casting,
    decompose_composite,
    is_composite,
    python_dispatcher,
    storage_key,
    uncast,
)
from ..torch_private.dtensor import holds_others
from ..torch_private.fake import fake_mode_of, is_fake
from ..torch_private.functions import OpOverload
from ..torch_private.graphs import lazy_graph_module
from ..torch_private.symbols import same_again, scalar_outputs
from .again import LATE, compute_again
from .device_numbers import LIFTED, place_numbers
from .numbers import has_number, with_tensors
from .regions import REGIONS
from .renamed import rename
from .results import Results, is_read_alike, same_geometry
from .rules import (
    AS_VALUES,
    IDENTITIES,
    RULES,
    TORCHS_OWN,
    WRITES,
    drawn,
    draws_elsewhere,
    functional_variant,
    is_kept,
    is_written,
    with_defaults,
    written_arguments,
)
from .spec import FunctionalGraph, Mutation, Storage, Value, View
from .view_inverse import filled, invert_view, reaches_beyond

aten = torch.ops.aten

_META_KEYS = ("stack_trace", "nn_module_stack", "source_fn_stack", RECOMPUTE)


def functionalize(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    decompositions: Mapping[OpOverload, Callable[..., Any]] | None = None,
) -> FunctionalGraph:
    """Trace ``gm`` (torch functions, methods, modules) to a functional ATen graph, for inference.

    ``example_inputs`` are fake or real tensors, SymInts and numbers, one for each placeholder; with symbolic sizes,
    new guards are left in their ShapeEnv.  Every node has ``meta["val"]``, every node that came from a torch-level node
    has its ``stack_trace``.  Raises ``Unsupported`` for what cannot be expressed, such as a resized input.
    """
    made = (node.meta.get("example_value") for node in gm.graph.nodes)
    fake_mode = fake_mode_of(example_inputs) or fake_mode_of(made) or new_fake_mode(None)
    with_autograd = has_gradients(gm.graph)
    tracer = (TracerWithAutograd if with_autograd else Tracer)(gm, fake_mode, dict(decompositions or {}))
    with ExitStack() as stack:
        for state in (recording(gm.graph),) if with_autograd else (torch.no_grad(), below_autograd()):
            stack.enter_context(state)
        if fake_mode.shape_env is not None:
            stack.enter_context(python_dispatcher())
            stack.enter_context(scalar_outputs(fake_mode.shape_env))  # those that capture let through
        stack.enter_context(fake_mode)
        tracer.bind_inputs(example_inputs)
        functional = tracer.finish(tracer.interpret())
    place_numbers(functional.graph_module, fake_mode)
    return functional


class Tracer(CaptureMode):
    trains = False  # whether the graph computes gradients

    def __init__(self, gm: fx.GraphModule, fake_mode: Any, decompositions: dict[OpOverload, Callable[..., Any]]):
        super().__init__()
        self.gm = gm
        self.fake_mode = fake_mode
        self.decompositions = decompositions
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[int, Value] = {}  # by id of the fake tensor, which the value of `alive` keeps alive
        self.alive: list[Any] = []
        self.storages: dict[int, Storage] = {}
        self.inputs: list[Any] = []
        self._sharing: dict[int, list[int]] | None = None
        self.bound: dict[int, int] = {}  # id of a fake input -> the place where it is first passed
        self.symbols = SymNodes(self.graph)
        self.effects, self.writes = list[fx.Node](), 0  # calls that do something; how often a storage was written to
        self.current: fx.Node | None = None
        self.autocast = frozenset[str]()  # the keys of autocast that cast what the operator at hand is composed of

    # ---- inputs -------------------------------------------------------------------------------------------------

    def bind_inputs(self, example_inputs: Sequence[Any]) -> None:
        placeholders = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        if len(placeholders) != len(example_inputs):
            raise ValueError(f"{len(placeholders)} placeholders, but {len(example_inputs)} example inputs")
        for index, (old, example) in enumerate(zip(placeholders, example_inputs, strict=True)):
            node = self.graph.placeholder(old.name)
            self._copy_meta(old, node)
            node.meta["static_input"] = old.meta.get("static_input", False) and not self._is_trained(example)
            if "source" in old.meta or "source_name" in old.meta:  # the second in the half of a training graph
                node.meta["source_name"] = old.meta.get("source_name") or old.meta["source"].name()
            if isinstance(example, Tensor):
                fake = example if is_fake(example) else self.fake_mode.from_tensor(example)
                node.meta["val"] = fake
                example = self._bind_tensor(fake, node, index)
            else:
                node.meta["val"] = example
                self.symbols.bind(example, node)
            self.inputs.append(example)
        for node in (n for n in self.graph.nodes if isinstance(n.meta["val"], Tensor)):
            self.symbols.bind_sizes(node.meta["val"], node)

    def _is_trained(self, example: Any) -> bool:
        """Whether an optimizer will write the tensor before the next call: a host's weight of which no packed copy is kept."""
        return self.trains and isinstance(example, Tensor) and example.requires_grad and example.device.type == "cpu"

    def _bind_tensor(self, fake: Tensor, node: fx.Node, index: int) -> Tensor:
        """The tensor to run the graph on: an alias of the caller's, whose metadata thus never changes."""
        earlier = self.bound.setdefault(id(fake), index)
        if earlier != index:
            other = self.inputs[earlier]
            self.storages[storage_key(other)].input_index = earlier
            return other  # type: ignore[no-any-return]  # the same object passed twice stays one object
        alias = fake.detach()
        value = Value(alias, node)
        self._remember(alias, value)
        known = self.storages.get(storage_key(alias))
        if known is None:
            known = self.storages[storage_key(alias)] = Storage(value, input_index=index, origin=node)
        value.storage = known
        return alias

    # ---- running the torch-level graph ----------------------------------------------------------------------------

    @unheard()
    def interpret(self) -> Any:
        env: dict[fx.Node, Any] = {}
        inputs = iter(self.inputs)
        for node in self.gm.graph.nodes:
            self.current = node
            if node.op == "placeholder":
                env[node] = next(inputs)
            elif node.op == "get_attr":
                env[node] = self._attribute(str(node.target))
            elif node.op == "output":
                return fx.node.map_arg(node.args[0], env.__getitem__)
            else:
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
                env[node] = self._run_node(node, args, kwargs)
        raise ValueError("graph without output")

    def _done(self) -> Any:
        return len(self.effects), self.writes

    def _run_node(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.autocast = autocast_keys()
        try:
            function: Any = node.target
            if function in REGIONS:
                return REGIONS[function](self, *args, **kwargs)
            if node.op == "call_method":
                function, args = getattr(args[0], function), args[1:]
            elif node.op == "call_module":
                function = self.gm.get_submodule(function)
            with self:
                result = with_sizes(partial(function, *args, **kwargs), self.fake_mode.shape_env, self._done)
            if "val" in node.meta:  # of a trace with gradients
                self.symbols.rename(same_again(result, node.meta["val"]))
            return result
        except Unsupported:
            raise
        except Exception as error:
            first = (str(error).strip() or "no message").splitlines()[0]
            raise self.unsupported(f"{node.target} cannot be traced: {type(error).__name__}: {first}") from error

    def _attribute(self, name: str) -> Any:
        value = operator.attrgetter(name)(self.gm)
        return self._constant(value, name) if isinstance(value, Tensor) else value

    def _constant(self, real: Tensor, name: str | None = None, lifted: bool = False) -> Tensor:
        """A tensor known at compile time, as a get_attr node; ``name`` when it is an attribute that lives on, ``lifted`` when nobody has it."""
        for known in self.storages.values() if name else ():
            if known.constant == name:
                return known.base.val
        fake = real if is_fake(real) else self.fake_mode.from_tensor(real, static_shapes=True)
        flat = (name or f"_constant{len(self.alive)}").replace(".", "_")
        self.root.register_buffer(flat, real)  # not detached: that would be an operator of the trace
        node = self.note(self.graph.get_attr(flat), fake)
        node.meta[LIFTED] = lifted
        self._fresh(fake, node, constant=name)
        return fake

    # ---- operators ------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(holds_others, types)):
            return NotImplemented  # a tensor subclass runs it on what it holds, which arrives here again
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if not isinstance(func, OpOverload):
            raise self.unsupported(f"{func} is not an operator")
        rule = self.decompositions.get(func) or RULES.get(func)
        if rule is not None:
            with self:
                result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func in IDENTITIES:
            return self._identity(func, args, kwargs)
        if func is aten.as_strided.default:
            args, kwargs = self._from_the_base(*args, **kwargs), {}
        if is_composite(func) and not is_kept(func, args, bool(self.autocast)):
            return self._composed(func, args, kwargs)
        if func._schema.is_mutable:
            return self._mutating(func, args, kwargs)
        if func is not aten.scalar_tensor.default and has_number((args, kwargs)):
            expected = func(*args, **kwargs)
            with self:
                result = with_tensors(func, args, kwargs, expected)
            if result is not NotImplemented:
                return result
            args, kwargs = concrete((args, kwargs))
        return self._record(func, args, kwargs)[0]

    def _composed(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """Run a composite operator as eager does: where autocast does not cast its arguments, it casts those of its parts."""
        if func is aten.narrow.default:
            rely_on_narrow(*args, **kwargs)
        keys, self.autocast = self.autocast, uncast(func, self.autocast)
        try:
            with casting(self.autocast), self:
                return decompose_composite(func, *args, **kwargs)
        finally:
            self.autocast = keys

    def _record(self, func: OpOverload, args: Any, kwargs: Any) -> tuple[Any, fx.Node]:
        """Run a functional operator or view on fakes and append its node: the result, and that node."""
        node_args, node_kwargs = self._to_nodes((args, kwargs))
        result = func(*args, **kwargs)
        node = self.note(self.graph.call_function(AS_VALUES.get(func, func), node_args, node_kwargs), result)
        acts = not func._schema.returns or func.namespace not in TORCHS_OWN
        if acts or torch.Tag.nondeterministic_seeded in func.tags:
            self.effects.append(node)
        if isinstance(result, Tensor):
            self._bind_result(result, node, func, args, kwargs, None)
        elif isinstance(result, (tuple, list)):
            for index, item in enumerate(result):
                if isinstance(item, Tensor) and id(item) not in self.values:
                    part = self.note(self.graph.call_function(operator.getitem, (node, index)), item)
                    self._bind_result(item, part, func, args, kwargs, index, tuple(result))
        else:
            self.symbols.bind(result, node)
        return result, node

    def _bind_result(
        self,
        result: Tensor,
        node: fx.Node,
        func: OpOverload,
        args: Any,
        kwargs: Any,
        index: int | None,
        pieces: tuple[Any, ...] = (),
    ) -> None:
        if id(result) in self.values:  # the operator gave back its own argument
            return
        storage = self.storages.get(storage_key(result))
        if storage is None:
            self._fresh(result, node)
            if torch.Tag.dynamic_output_shape in func.tags:
                self.symbols.bind_sizes(result, node)
            return
        parent = self.values.get(id(args[0])) if args and isinstance(args[0], Tensor) else None
        view = View(func, tuple(args[1:]), dict(kwargs), index, pieces)
        if parent is None or parent.storage is not storage:
            raise self.unsupported(f"{func} returns a view of something that is not its first argument")
        value = Value(result, node, storage, storage.version, parent, view)
        self._remember(result, value)
        self.symbols.bind_unknown(result, node)

    def inner(self, gm: fx.GraphModule, given: Sequence[Any]) -> FunctionalGraph:
        """The functional graph of a function that an operator of this graph is given."""
        if self.trains:
            raise self.unsupported("a graph that takes gradients itself has an operator that takes functions")
        tracer = Tracer(gm, self.fake_mode, self.decompositions)
        tracer.bind_inputs(given)
        functional = tracer.finish(tracer.interpret())
        place_numbers(functional.graph_module, self.fake_mode)
        return functional

    def record_region(self, target: Any, args: tuple[Any, ...], results: tuple[Tensor, ...], effect: bool) -> None:
        """A node for an operator that takes functions, whose results are new memory."""
        node = self.note(self.graph.call_function(target, self._to_nodes(args)), results)
        self.effects += [node] if effect else []
        for index, item in enumerate(results):
            self._fresh(item, self.note(self.graph.call_function(operator.getitem, (node, index)), item))

    def _from_the_base(self, tensor: Tensor, size: Any, stride: Any, storage_offset: Any = None) -> tuple[Any, ...]:
        """The arguments of `as_strided` on the tensor that has the memory: it may reach what a view of that does not show.

        An argument of the program has the caller's memory, where the offset counts.
        """
        storage = self.value(tensor).storage
        base = storage.base.val
        offset = tensor.storage_offset() if storage_offset is None else storage_offset
        same, given = is_read_alike(base, tensor), storage.input_index is not None
        beyond = reaches_beyond(base, tensor.itemsize, size, stride, offset)
        if beyond or given and (base.storage_offset() != 0 or not same):
            storage.shown_beyond = True
            self._check_within(storage)
        if storage.constant is not None or not same:
            return tensor, size, stride, storage_offset
        return base, size, stride, offset if given else offset - base.storage_offset()

    def _check_within(self, storage: Storage) -> None:
        """A value that replaces an argument's contents has its elements only, not what lies between and behind them."""
        if storage.shown_beyond and (storage.version or storage.input_index is None):
            raise self.unsupported("as_strided shows memory beyond the elements of a tensor that is written to")

    def _identity(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """``detach``, ``alias``, ``lift_fresh``: a new tensor object with the same contents, or the same object."""
        tensor = args[0]
        if not is_fake(tensor):
            return self._constant(tensor, lifted=func is aten.lift_fresh.default)
        self._current_node(tensor)
        result = func(*args, **kwargs)
        if result is not tensor and id(result) not in self.values:
            parent = self.values[id(tensor)]
            self._remember(result, Value(result, parent.node, parent.storage, parent.version, parent))
        return result

    # ---- mutation -------------------------------------------------------------------------------------------------

    def _mutating(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        if torch.Tag.inplace_view in func.tags:
            return rename(self, func, args, kwargs)
        written = written_arguments(func, args, kwargs)
        targets = pytree.tree_leaves(written)
        shapes = [(t.shape, t.stride()) for t in targets]
        for tensor in targets:
            self._check_writable(func, tensor)
        if func in WRITES:
            with self:
                new_values = [WRITES[func](*args, **kwargs)]
        else:
            functional, drops_written = functional_variant(func)
            if functional is None:
                raise self.unsupported(f"{func} writes to its argument and has no functional variant")
            if func.namespace not in TORCHS_OWN:
                self._check_alone(func, targets, args, kwargs)
            if drops_written:
                names = {a.name for a in func._schema.arguments if is_written(a)}
                kwargs_in = {k: v for k, v in kwargs.items() if k not in names}
            else:
                kwargs_in = kwargs
            call = (functional, args, with_defaults(func, functional, args, kwargs_in))
            with self:
                result = drawn(*call) if draws_elsewhere(func, args[0]) else functional(*args, **call[2])
            if result is NotImplemented:
                raise self.unsupported(f"{func} draws into memory that is not contiguous, in an order of its own")
            leaves = [result] if isinstance(result, Tensor) else pytree.tree_leaves(result)
            new_values = leaves[len(leaves) - len(targets) :]
            kept = leaves[: len(leaves) - len(targets)]
        returned = func(*args, **kwargs)  # eager's own checks and metadata
        for tensor, shape in zip(targets, shapes, strict=True):
            if (tensor.shape, tensor.stride()) != shape:
                self._resized(func, tensor, shape[0])
        for tensor, new in zip(targets, new_values, strict=True):
            self._write(tensor, new)
        if func in WRITES or not kept:
            return returned
        # Results that are not the written arguments were computed by the functional variant.
        fresh = iter(kept)
        written_ids = {id(t) for t in targets}
        results = [r if id(r) in written_ids else next(fresh) for r in pytree.tree_leaves(returned)]
        return results[0] if isinstance(returned, Tensor) else tuple(results)

    def _check_alone(self, func: OpOverload, written: list[Tensor], args: Any, kwargs: Any) -> None:
        """A written argument is copied for the functional variant: nothing else that the operator is given may be the same memory."""
        given = [storage_key(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if any(given.count(storage_key(t)) > 1 for t in written):
            raise self.unsupported(f"{func} writes to an argument that shares memory with another")

    def _check_writable(self, func: OpOverload, tensor: Tensor) -> None:
        value = self.value(tensor)
        if value.storage.constant is not None:
            raise self.unsupported(f"{func} writes to the graph's constant {value.storage.constant}")
        if value.storage.input_index is None:  # fresh memory
            return
        sharing = self._inputs_of().get(id(value.storage), ())
        if len(sharing) > 1 and len({id(self.inputs[i]) for i in sharing}) > 1:
            raise self.unsupported(f"{func} writes to memory that inputs {sharing} share")

    def _inputs_of(self) -> dict[int, list[int]]:
        """The inputs over each memory, which stays theirs."""
        if self._sharing is None:
            self._sharing = {}
            for i, tensor in enumerate(self.inputs):
                if isinstance(tensor, Tensor):
                    self._sharing.setdefault(id(self.values[id(tensor)].storage), []).append(i)
        return self._sharing

    def _resized(self, func: OpOverload, tensor: Tensor, old_shape: torch.Size) -> None:
        """``out=`` may resize an empty tensor, which is a rebirth: nothing else can see the new memory."""
        value = self.values[id(tensor)]
        others = [v for v in self.values.values() if v.storage is value.storage and v is not value]
        empty = 0 in old_shape and all(0 in v.val.shape for v in others) and not value.node.users
        if value.storage.input_index is not None or not empty:
            raise self.unsupported(f"{func} resizes a tensor from {tuple(old_shape)} to {tuple(tensor.shape)}")
        value.parent = value.view = None
        value.storage = self.storages[storage_key(tensor)] = Storage(value)

    def _write(self, tensor: Tensor, new: Tensor) -> None:
        """From here on the contents of ``tensor`` are those of ``new``, in eager's dtype and strides."""
        value = self.value(tensor)
        node = self._current_node(new)
        if not same_geometry(tensor, new) or tensor.dtype != new.dtype or tensor.device != new.device:
            old = self._current_node(tensor)
            node = self.note(self.graph.call_function(aten.copy.default, (old, node)), tensor)
        self._set_contents(value, node)

    def _set_contents(self, value: Value, node: fx.Node) -> None:
        """Write through the chain of views to the base; other views of it become stale by version."""
        storage = value.storage
        chain = [(value, node)]
        while value.parent is not None:
            parent = value.parent
            if value.view is not None:
                view = value.view
                try:
                    func, args = invert_view(view.func, view.args, view.kwargs, view.index, parent.val, value.val)
                except NotImplementedError as error:
                    raise self.unsupported(str(error)) from None
                arguments = self._to_nodes(args)
                before = self.refresh(parent)
                node = self.note(self.graph.call_function(func, filled(arguments, before, node)), parent.val)
            value = parent
            chain.append((value, node))
        storage.version += 1
        self.writes += 1
        self._check_within(storage)
        for member, contents in chain:
            member.node, member.version = contents, storage.version

    # ---- values ---------------------------------------------------------------------------------------------------

    def _remember(self, tensor: Tensor, value: Value) -> None:
        self.values[id(tensor)] = value
        self.alive.append(tensor)

    def _fresh(self, tensor: Tensor, node: fx.Node, constant: str | None = None) -> None:
        value = Value(tensor, node)
        value.storage = self.storages[storage_key(tensor)] = Storage(value, constant=constant)
        self._remember(tensor, value)

    def value(self, tensor: Tensor) -> Value:
        value = self.values.get(id(tensor))
        if value is not None:
            return value
        if not is_fake(tensor):
            tensor_fake = self._constant(tensor)
            value = self.values[id(tensor)] = self.values[id(tensor_fake)]
            self.alive.append(tensor)
            return value
        raise self.unsupported("a tensor reached an operator without passing through the graph")

    def _current_node(self, tensor: Tensor) -> fx.Node:
        return self.refresh(self.value(tensor))

    def refresh(self, value: Value) -> fx.Node:
        """The node of the tensor's present contents, rebuilt from its base if that was written since."""
        if value.version == value.storage.version:
            return value.node
        if value.parent is None:
            raise self.unsupported("memory was written through a tensor that does not derive from its base")
        base = self.refresh(value.parent)
        if value.view is None:
            value.node = base
        else:
            view = value.view
            args, kwargs = self._to_nodes((view.args, view.kwargs))
            node = self.graph.call_function(AS_VALUES.get(view.func, view.func), (base, *args), kwargs)
            if view.index is None:
                self.note(node, value.val)
            else:
                node = self.note(node, view.pieces)  # the sizes of those in front say where this one begins
                node = self.note(self.graph.call_function(operator.getitem, (node, view.index)), value.val)
            value.node = node
        value.version = value.storage.version
        return value.node

    def _to_nodes(self, tree: Any) -> Any:
        if isinstance(tree, Tensor):
            return self._current_node(tree)
        if isinstance(tree, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self.symbols.node_for(tree)
        if isinstance(tree, (list, tuple)):
            return (type(tree) if type(tree) in (list, tuple) else tuple)(self._to_nodes(t) for t in tree)
        if isinstance(tree, dict):
            return {k: self._to_nodes(v) for k, v in tree.items()}
        return tree

    def note(self, node: fx.Node, val: Any) -> fx.Node:
        node.meta["val"] = val
        if self.current is not None:
            self._copy_meta(self.current, node)
            if self.trains and asks_autograd(self.current):
                node.meta[LATE] = True
        return node

    @staticmethod
    def _copy_meta(old: fx.Node, new: fx.Node) -> None:
        for key in _META_KEYS:
            if key in old.meta:
                new.meta[key] = old.meta[key]

    def unsupported(self, reason: str) -> Unsupported:
        error = Unsupported(reason)
        error.frames = tuple(lines_of(self.current.meta.get("stack_trace") if self.current is not None else None))
        return error

    # ---- outputs --------------------------------------------------------------------------------------------------

    def finish(self, result: Any) -> FunctionalGraph:
        leaves, tree = pytree.tree_flatten(result)
        self.current = None
        results = Results(self, leaves)
        outputs = tuple(results.specify(i) for i in range(len(leaves)))
        mutations = tuple(
            Mutation(storage.input_index, results.emit(results.detached(storage.base)))
            for storage in self.storages.values()
            if storage.input_index is not None and self.refresh(storage.base) is not storage.origin
        )
        if self.trains:
            compute_again(self.graph, self.gm.graph)
        self.graph.output(tuple(results.nodes)).meta["val"] = tuple(n.meta["val"] for n in results.nodes)
        self._sweep()
        graph_module = lazy_graph_module(self.root, self.graph)
        unused = tuple(i for i, n in enumerate(n for n in self.graph.nodes if n.op == "placeholder") if not n.users)
        effects = tuple(n.name for n in self.effects)
        return FunctionalGraph(graph_module, outputs, mutations, tree, unused, effects)

    def _sweep(self) -> None:
        """Remove nodes that nothing reads, save those with an effect: a draw, an assertion, an error that depends on values."""
        self.effects += self.symbols.relied_on()
        keep = set(self.effects)
        for node in reversed(self.graph.nodes):
            unread = not node.users and node.op not in ("placeholder", "output") and node not in keep
            if unread and not raises_on_values(node):
                self.graph.erase_node(node)
        self.effects += partly_read(self.graph.nodes, keep)


class TracerWithAutograd(Tracer):
    """The trace of a graph that takes gradients itself: autograd records, and its operators arrive here as well."""

    trains = True

    def _bind_tensor(self, fake: Tensor, node: fx.Node, index: int) -> Tensor:
        """An input is a leaf: what it was made of lies outside of the graph."""
        bound = super()._bind_tensor(fake, node, index)
        return bound.requires_grad_() if fake.requires_grad else bound

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with below_autograd():
            return super().__torch_dispatch__(func, types, args, kwargs)
