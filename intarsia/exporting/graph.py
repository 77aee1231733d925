"""`intarsia.export`: a function as one FX graph that is called as the function is, and what it relies on.

    graph_module, guards = intarsia.export(fn)(x, y)

Capture gives a graph of tensors and a description of where they come from; `export` puts the arguments' and the result's nesting
around it. Parameters and buffers are attributes of the graph module, the very objects of the original.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn

from ..compile import callable_of, check_function
from ..explaining.explanation import GuardInfo, guards_of
from ..frontend.entry.capture import Capture, ProgramRaised, capture
from ..frontend.entry.entry import Message
from ..frontend.entry.parameters import Parameters
from ..frontend.errors import CaptureError, SourceLine
from ..frontend.functional.spec import FunctionalGraph
from ..frontend.functional.trace import functionalize
from ..frontend.graph.sym_nodes import SymNodes
from ..frontend.guards.checks import SizeCheck
from ..frontend.guards.source import Arg, Attr, Item, Source
from .check import ArgumentCheck, check_arguments
from .codegen import ExportedModule, SignatureCodeGen
from .shapes import SameSizes, dynamic_sizes

__all__ = ["ExportError", "Exported", "ExportedGuards", "export"]


class ExportError(CaptureError, ValueError):
    """The function is not one graph: names the user's line, the reason, and what to do."""

    heading = "cannot be exported"
    default_advice = "move it out of the exported function"


class ExportedGuards(tuple[GuardInfo, ...]):
    """What the graph relies on; `str()` has one line for each. The graph module checks what concerns its arguments at every call."""

    def __str__(self) -> str:
        rows = (f"{g.text}{f'    # {g.place.filename}:{g.place.lineno}' if g.place else ''}" for g in self)
        return "\n".join(rows)


class Exported(NamedTuple):
    """What `export` gives; unpacks as `graph_module, guards`."""

    graph_module: fx.GraphModule
    guards: ExportedGuards


def export(
    fn: Any,
    aten_graph: bool = False,
    decomposition_table: Mapping[Any, Callable[..., Any]] | None = None,
    dynamic: bool | None = None,
    dynamic_shapes: Any = None,
    strict: bool = True,
) -> Callable[..., Exported]:
    """Make one graph of a function or module: `export(fn)(*args, **kwargs)`. Nothing is run; the arguments are not changed.

    Args:
        fn: a function or an `nn.Module`, compiled or not.
        aten_graph: the graph holds functional ATen operators instead of the torch functions that the program calls; writes to
            arguments and buffers stand at its end as `copy_`.
        decomposition_table: with `aten_graph`, functions by operator (`torch.ops.aten.gelu.default`) to trace in its place.
        dynamic: True: sizes and numbers among the arguments are symbols; otherwise those of the example hold, unless
            `intarsia.mark_dynamic` says so for a dimension.
        dynamic_shapes: which sizes are symbols, as `torch.export.export` takes it: by argument, a mapping from dimensions to a
            `torch.export.Dim`, a name, `Dim.DYNAMIC` or `Dim.AUTO`. Sizes of one name must be equal in each call.
        strict: for the sake of programs written for torch.export; both are the same, as the program is read and not run.

    Returns:
        A callable that gives an `Exported`. Its graph module is called like `fn` and returns what `fn` returns, nested in the same
        way; other sizes, types or constants than those relied on are a ValueError. Log messages and warnings of `fn` are left out.

    Raises:
        TypeError: `fn` cannot be called.
        ValueError: a `decomposition_table` without `aten_graph`.
        ExportError: a graph break, or an effect on Python objects; names the user's line. What `fn` itself raises is raised.
    """
    fn = callable_of(fn)
    if not callable(fn):
        raise TypeError(f"intarsia.export takes a function or an nn.Module, not {type(fn).__name__}: {fn!r:.80}")
    if decomposition_table is not None and not aten_graph:
        raise ValueError("export: a decomposition_table is applied to ATen operators: pass aten_graph=True as well")
    if not isinstance(aten_graph, bool):
        raise TypeError(
            "export takes the example arguments in a call of their own: intarsia.export(fn)(*args, **kwargs)"
        )
    runtime = getattr(fn, "_intarsia_runtime", None)  # functools.wraps puts it on functions around, too
    compiled = runtime is not None and runtime.is_made(getattr(fn, "__func__", fn))
    target = getattr(fn, "__dict__", {}).get("_orig_mod") or (fn._intarsia_target if compiled else fn)
    check_function(target)

    def call(*args: Any, **kwargs: Any) -> Exported:
        try:
            with dynamic_sizes(_bound(target, args, kwargs), dynamic_shapes or {}) as same:
                made = capture(target, args, kwargs, dynamic=dynamic, exporting=True)
            values = made.parameters.bind(args, kwargs)
            exported = _Export(target, made, values).run(aten_graph, decomposition_table)
            if any(len(places) > 1 for places in same.places.values()):
                _check_names(exported.graph_module, same, made.parameters.signature)
            return exported
        except ProgramRaised as raised:
            raise raised.value from None
        except ExportError as error:
            error.frames = error.frames or _definition(target)
            raise
        except CaptureError as error:
            made_of = ExportError(error.reason, error.advice)
            made_of.frames = error.frames
            made_of.heading = error.heading
            raise made_of from None

    return call


def _bound(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(Parameters.of(target).bind(args, kwargs))


def _check_names(gm: nn.Module, same: SameSizes, signature: inspect.Signature) -> None:
    """Check in each call that sizes of one name are equal."""

    def check(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        same.check(bound.arguments)

    gm.register_forward_pre_hook(check, with_kwargs=True)


def _definition(target: Any) -> tuple[SourceLine, ...]:
    function = target.forward if isinstance(target, nn.Module) else target
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return () if code is None else (SourceLine(code.co_filename, code.co_firstlineno, code.co_qualname),)


class _Export:
    """One export: the new graph, its placeholders (one for each leaf of the arguments) and attributes."""

    def __init__(self, target: Any, made: Capture, values: dict[str, Any]) -> None:
        self.made, self.values = made, values
        self.graph, self.root = fx.Graph(), nn.Module()
        self.leaves, self.in_spec = pytree.tree_flatten(tuple(values.values()))
        self.names = _leaf_names(values)
        self.places = {source: i for i, (source, _) in enumerate(_leaf_sources(values))}
        self.owned = _dotted_names(target)
        self.attributes: dict[int, fx.Node] = {}
        self.placeholders: list[fx.Node] = []
        self.sizes = next((c for c in made.guards.extra if isinstance(c, SizeCheck)), None)

    def run(self, aten_graph: bool, table: Mapping[Any, Callable[..., Any]] | None) -> Exported:
        if self.made.changes:
            raise ExportError(
                f"the function changes {', '.join(self.made.changes[:4])}: a graph of tensors has no such effect",
                "return the new value instead, or write into a tensor in place",
            )
        self.placeholders = [self.graph.placeholder(name) for name in self.names]
        for leaf, node in zip(self.leaves, self.placeholders, strict=True):
            node.meta["val"] = leaf if not isinstance(leaf, Tensor) else torch.empty_like(leaf, device="meta")
        inputs = [self._input(i, s) for i, s in enumerate(self.made.inputs)]
        results = self._aten(inputs, table) if aten_graph else self._torch(inputs)
        leaves, out_spec = pytree.tree_flatten(self._result(), is_leaf=_is_size)  # else it comes back as a tuple
        nodes = [self._result_leaf(leaf, results) for leaf in leaves]
        plain = out_spec == pytree.tree_structure(tuple(range(len(leaves))))
        if out_spec.is_leaf():
            self.graph.output(nodes[0])
        else:
            self.graph.output(tuple(nodes))
        signature = self.made.parameters.signature
        spec = None if out_spec.is_leaf() or plain else out_spec
        flat = len(self.leaves) == len(self.values) and all(
            pytree.tree_structure(v).is_leaf() for v in self.values.values()
        )
        self.graph.set_codegen(SignatureCodeGen(signature, self.in_spec, spec, flat))
        self.graph.lint()
        gm = ExportedModule(self.root, self.graph)
        check = ArgumentCheck.of(self.made, self.places, self.sizes)
        gm.register_forward_pre_hook(check_arguments(check, signature), with_kwargs=True)
        return Exported(gm, ExportedGuards(guards_of(self.made.guards)))

    # ---- inputs ----

    def _input(self, index: int, source: Source) -> fx.Node:
        """The node of one input of the captured graph: an argument's leaf, or an attribute."""
        example = self.made.example_inputs[index]
        at = self.places.get(source)
        if at is not None:
            node = self.placeholders[at]
            node.meta = {**self._old[index].meta, "val": example}
            return node
        value = source.fetch(self.values)
        if not isinstance(value, Tensor):
            if isinstance(example, torch.SymInt | torch.SymFloat | torch.SymBool):
                raise ExportError(
                    f"the graph depends on the number {source.name()}, which is no argument of its own",
                    f"pass it as an argument, or export with dynamic=False: its value {value!r} is then part of the graph",
                )
            return self._attribute(value, source.name())
        same = next((i for i, leaf in enumerate(self.leaves) if leaf is value), None)
        if same is not None:
            node = self.placeholders[same]
            node.meta = {**self._old[index].meta, "val": example}
            return node
        node = self._attribute(value, source.name())
        node.meta.setdefault("val", example)
        return node

    @property
    def _old(self) -> list[fx.Node]:
        return self.made.graph_module.graph.find_nodes(op="placeholder")

    def _attribute(self, value: Any, name: str) -> fx.Node:
        """The node that reads `value` from the module, under the name it has in the original."""
        known = self.attributes.get(id(value))
        if known is None:
            path = self.owned.get(id(value)) or self._free(_path(name))
            _set(self.root, path, value)
            known = self.attributes[id(value)] = self.graph.get_attr(path)
        return known

    def _free(self, path: str) -> str:
        taken = {n.target for n in self.graph.nodes if n.op == "get_attr"} | set(self.owned.values())
        number, free = 0, path
        while free in taken or any(str(t).startswith(f"{free}.") for t in taken):
            number += 1
            free = f"{path}_{number}"
        return free

    # ---- the graph ----

    def _torch(self, inputs: list[fx.Node]) -> list[Any]:
        """The nodes of the captured graph's results."""
        return self._copy(self.made.graph_module, inputs)

    def _aten(self, inputs: list[fx.Node], table: Mapping[Any, Callable[..., Any]] | None) -> list[Any]:
        _refuse_lost_gradients(self.made)
        functional = functionalize(self.made.graph_module, self.made.example_inputs, decompositions=dict(table or {}))
        flat = self._copy(functional.graph_module, inputs)
        for mutation in functional.mutations:
            self.graph.call_function(
                torch.ops.aten.copy_.default, (inputs[mutation.input_index], flat[mutation.output_index])
            )
        results: list[Any] = []
        for spec in functional.outputs:
            results.append(self._output(functional, spec, flat, inputs, results))
        return results

    def _output(
        self, functional: FunctionalGraph, spec: Any, flat: list[Any], inputs: list[fx.Node], results: list[Any]
    ) -> Any:
        match spec.kind:
            case "value" | "symint":
                return flat[spec.index]
            case "input":
                return inputs[spec.index]
            case "output":
                return results[spec.index]
            case "constant":
                if isinstance(spec.value, Tensor):
                    return self._attribute(spec.value, "constant")
                return spec.value
        numbers = (*spec.size, *spec.stride, spec.storage_offset)
        if not all(isinstance(n, int) or getattr(n, "is_Integer", False) for n in numbers):
            raise ExportError(
                "a result is a view of an argument with symbolic sizes", "export with dynamic=False, or return a clone"
            )
        base = inputs[spec.index] if spec.kind == "alias" else flat[spec.index]
        offset: Any = int(spec.storage_offset)
        if spec.kind == "alias":  # counted from where the argument begins, which may be anywhere in its memory
            start = self.graph.call_function(torch.ops.aten.sym_storage_offset.default, (base,))
            offset = self.graph.call_function(operator.add, (start, offset)) if offset else start
        return self.graph.call_function(
            torch.ops.aten.as_strided.default,
            (base, [int(s) for s in spec.size], [int(s) for s in spec.stride], offset),
        )

    def _copy(self, gm: fx.GraphModule, inputs: list[fx.Node]) -> list[Any]:
        """Copy a graph behind the new placeholders; the nodes of its results."""
        new: dict[fx.Node, Any] = dict(zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=True))
        for node in gm.graph.nodes:
            if node.op == "placeholder":
                continue
            if node.op == "output":
                return list(fx.node.map_arg(node.args[0], new.__getitem__))
            if node.op == "get_attr":
                value = gm
                for part in str(node.target).split("."):
                    value = getattr(value, part)
                new[node] = self._attribute(value, str(node.target))
                new[node].meta.update(node.meta)
                continue
            copied = self.graph.node_copy(node, new.__getitem__)
            if node.op == "call_module":
                copied.target = self._free(str(node.target))
                _set(self.root, copied.target, gm.get_submodule(str(node.target)))
            if "example_value" in copied.meta:
                copied.meta.setdefault("val", copied.meta["example_value"])
            new[node] = copied
        raise ValueError("graph without output")

    # ---- the result ----

    def _result(self) -> Any:
        """What the function returns for the example, its tensors stood for by markers."""
        outputs = self.made.graph_module.graph.find_nodes(op="output")[0].args[0]
        self.markers = [torch.empty(0) for _ in outputs]
        # Numbers that depend on sizes are computed with symbols, so that they are not taken for constants.
        names: dict[str, Any] = {}
        if self.sizes is not None:
            for symbol, source, place in self.sizes.bindings:
                hint = eval(f"value{place}", {"value": source.fetch(self.values)})
                names[self.sizes.symbol_text(symbol)] = self.sizes.number(symbol, hint)
        effects = [effect for effect in self.made.entry.effects if not isinstance(effect, Message)]
        entry = replace(self.made.entry, effects=[*(f"{n} = symbol_{n}" for n in names), *effects])
        namespace = {
            **self.made.namespace,
            "graph": lambda *_: self.markers,
            "MISS": _MISS,
            **{f"symbol_{n}": v for n, v in names.items()},
        }
        exec(compile(entry.text(), "<intarsia export>", "exec"), namespace)
        result = namespace["entry"](*self.values.values())
        if result is _MISS:
            raise ExportError(f"a fresh capture fails its own guards: {self.made.guards.explain(self.values)}")
        return result

    def _result_leaf(self, leaf: Any, results: list[Any]) -> Any:
        if isinstance(leaf, Tensor):
            for i, marker in enumerate(self.markers):
                if leaf is marker:
                    return results[i]
            for i, given in enumerate(self.leaves):
                if leaf is given:
                    return self.placeholders[i]
            if type(leaf) is nn.Parameter and id(leaf) not in self.owned and leaf.numel() == 0:
                raise ExportError("the function returns a Parameter that it makes", "return a plain tensor")
            return self._attribute(leaf, "result")
        if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self._number(leaf)
        if _is_size(leaf):
            sizes = [self._number(n) if isinstance(n, torch.SymInt) else n for n in leaf]
            return self.graph.call_function(torch.Size, (sizes,))
        if leaf is None or isinstance(leaf, int | float | complex | str | bytes | torch.dtype | torch.device):
            return leaf
        raise ExportError(
            f"the result holds an object of type {type(leaf).__module__}.{type(leaf).__qualname__}, which is no nesting of tensors",
            "return tuples, lists or dicts, or register the type with torch.utils._pytree.register_pytree_node",
        )

    def _number(self, value: Any) -> Any:
        """The node that computes a number from the arguments' sizes."""
        assert self.sizes is not None
        numbers = SymNodes(self.graph)
        for symbol, source, place in self.sizes.bindings:
            if symbol not in value.node.expr.free_symbols:
                continue
            at = self.places.get(source)
            if at is None:
                raise ExportError(f"a result depends on a size of {source.name()}, which is no argument of its own")
            found = re.fullmatch(r"\.(\w+)(?:\(\))?(?:\[(\d+)\])?", place)
            node = self.placeholders[at]
            if found is not None:
                method = "size" if found[1] == "shape" else found[1]
                node = self.graph.call_method(method, (node, *([int(found[2])] if found[2] else [])))
            numbers.nodes[symbol] = node
        return numbers.node_for(value)


_MISS = object()


def _is_size(value: Any) -> bool:
    return type(value) is torch.Size


def _refuse_lost_gradients(made: Capture) -> None:
    """Functional graphs are for inference: `detach` is an identity there."""
    needed = any(isinstance(x, Tensor) and x.requires_grad for x in made.example_inputs)
    if not (torch.is_grad_enabled() and needed):
        return
    for node in made.graph_module.graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op.startswith("call") and name in ("detach", "detach_", "_set_grad_enabled", "set_grad_enabled"):
            error = ExportError(
                f"{name} in an ATen graph would not stop gradients",
                "export under torch.no_grad(), or without aten_graph=True",
            )
            found = re.findall(r'File "(.+)", line (\d+), in (.+)', node.meta.get("stack_trace") or "")
            error.frames = tuple(SourceLine(f, int(n), q) for f, n, q in found)
            raise error


def _leaf_sources(values: Mapping[str, Any]) -> Iterator[tuple[Source, Any]]:
    """Where each leaf of the arguments is found."""
    for name, value in values.items():
        for path, leaf in pytree.tree_flatten_with_path(value)[0]:
            source: Source = Arg(name)
            for key in path:
                if isinstance(key, pytree.SequenceKey):
                    source = Item(source, key.idx)
                elif isinstance(key, pytree.MappingKey):
                    source = Item(source, key.key)
                elif isinstance(key, pytree.GetAttrKey):
                    source = Attr(source, key.name)
                else:
                    source = Item(source, str(key))
            yield source, leaf


def _leaf_names(values: Mapping[str, Any]) -> list[str]:
    """Names for the leaves: the argument's own where it is one."""
    out: list[str] = []
    for name, value in values.items():
        leaves, spec = pytree.tree_flatten(value)
        if spec.is_leaf():
            out.append(name)
            continue
        paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(value)[0]]
        for path in paths:
            stem = name + "_" + re.sub(r"\W+", "_", path).strip("_")
            number, free = 0, stem
            while free in out or free in values:
                number += 1
                free = f"{stem}_{number}"
            out.append(free)
    return out


def _dotted_names(target: Any) -> dict[int, str]:
    """Names of a module's own parameters and buffers."""
    owner = target if isinstance(target, nn.Module) else getattr(target, "__self__", None)
    if not isinstance(owner, nn.Module):
        return {}
    named = [*owner.named_parameters(remove_duplicate=False), *owner.named_buffers(remove_duplicate=False)]
    out: dict[int, str] = {}
    for name, value in named:
        out.setdefault(id(value), name)
    return out


def _path(name: str) -> str:
    """A dotted attribute name from the name of a source: `__main__['model'].0.weight` -> `model.0.weight`."""
    name = re.sub(r"^[\w.]+\['(\w+)'\]", r"\1", name)
    parts = [re.sub(r"\W+", "_", part).strip("_") or "value" for part in name.removeprefix("self.").split(".")]
    return ".".join(parts)


def _set(root: nn.Module, path: str, value: Any) -> None:
    """Put `value` at a dotted name, with empty modules on the way."""
    *owners, last = path.split(".")
    for part in owners:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    if isinstance(value, nn.Parameter):
        root.register_parameter(last, value)
    elif isinstance(value, nn.Module):
        root.add_module(last, value)
    elif isinstance(value, Tensor):
        root.register_buffer(last, value)
    else:
        setattr(root, last, value)
