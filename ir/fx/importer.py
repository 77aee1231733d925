"""FX → IR: a functional ATen graph becomes a module of the `aten` dialect.

Sizes that the graph computes (`sym_size`, products of sizes, ...) vanish into the sympy expressions of types and attributes;
every other call becomes one operation with the schema's argument names, eager's strides and the user's source line.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Protocol

import sympy
import torch
from torch import Tensor, fx
from xdsl.dialects.builtin import FileLineColLoc, ModuleOp
from xdsl.ir import Attribute, Block, Region, SSAValue

from ..dialects import prim
from ..dialects.aten import AtenOp, aten_op, target_name
from ..dtypes import BY_TORCH, C64, C128, F32, F64
from ..literals import Literal, print_literal
from ..symbols import Dim, contiguous_strides
from ..syntax import Op, location
from ..types import IndexType, TensorType, tensor_type
from .canonical import NotCanonical, completed
from .regions import REGIONS, Functions, import_region
from .sizes import ImportFailure, Sizes

__all__ = ["FunctionalGraph", "ImportFailure", "Imported", "import_fx", "user_line"]


class FunctionalGraph(Protocol):
    """What is imported: the functional ATen graph, and what the caller must do around a call of it.

    `graph_module` returns one flat tuple, and each of its nodes has `meta["val"]`. Placeholders may carry `meta["source_name"]`
    (what the user would call the argument) and `meta["static_input"]` (a parameter or buffer, whose identity is guarded).
    `outputs` says how each of the user's results is made: entries as in the `results` attribute of `prim.Func`, or objects
    with the fields `kind`, `index`, `size`, `stride`, `storage_offset`, `value`. `mutations`: (argument, output) pairs, or
    objects with the fields `input_index` and `output_index`.
    An attribute `effects`, if there is one, names nodes that must run even if nothing reads them.
    """

    @property
    def graph_module(self) -> fx.GraphModule: ...

    @property
    def outputs(self) -> Sequence[Any]: ...

    @property
    def mutations(self) -> Sequence[Any]: ...


@dataclass(frozen=True)
class Imported:
    """A module, and the tensors of the graph's own that are passed to it after the caller's arguments."""

    module: ModuleOp
    constants: list[Tensor]


def import_fx(functional: FunctionalGraph) -> Imported:
    """The module (level `aten`) of a functional ATen graph.

    Raises:
        ImportFailure: something in it has no form in the IR; the message names it and the user's line.
    """
    return _Importer(functional).run()


# ---- calls ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """What a registered operator's schema says, read once."""

    cls: type[AtenOp]
    names: tuple[str, ...]  # of the schema's arguments
    effect: bool


@cache
def _plan(op: torch._ops.OpOverload) -> _Plan:
    schema = op._schema
    talks = op.namespace.startswith("_c10d_functional")  # to other processes, which expect all calls in this order
    effect = talks or torch.Tag.nondeterministic_seeded in op.tags or schema.is_mutable
    return _Plan(aten_op(target_name(op)), tuple(a.name for a in schema.arguments), effect)


@dataclass
class _Arguments:
    """What a call is given: tensors with their names and eager's strides, and all else by name."""

    operands: list[SSAValue] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    strides: list[tuple[Dim, ...] | None] = field(default_factory=list)
    plain: dict[str, Literal] = field(default_factory=dict)


@dataclass
class _Importer:
    functional: FunctionalGraph
    sizes: Sizes = field(default_factory=Sizes)
    values: dict[fx.Node, Any] = field(default_factory=dict)  # SSA value, or {result number: SSA value}
    constants: list[Tensor] = field(default_factory=list)
    functions: Functions = field(default_factory=Functions)

    def run(self) -> Imported:
        gm = self.functional.graph_module
        self.effects = frozenset(getattr(self.functional, "effects", ()))
        self.arguments = [n for n in gm.graph.nodes if n.op == "placeholder"]
        self._bind_symbols()
        self.types: list[Attribute] = []
        self.arg_names: list[str] = []
        self.arg_strides: list[Any] = []
        self.arg_static: list[bool] = []
        self.numbers: list[int] = []
        self.block = Block()
        for node in self.arguments:
            name = str(node.meta.get("source_name", node.name))
            self.values[node] = self._argument(node.meta["val"], name, bool(node.meta.get("static_input", False)), node)
        rules = {"placeholder": lambda node: None, "get_attr": self._attribute, "call_function": self._call}
        for node in gm.graph.nodes:
            if node.op == "output":
                returned = node
            else:
                rules.get(node.op, self._unknown)(node)
        return self._finish(returned)

    # ---- arguments ----

    def _bind_symbols(self) -> None:
        for position, node in enumerate(self.arguments):
            value = node.meta["val"]
            if isinstance(value, Tensor):
                for d, size in enumerate(value.shape):
                    self.sizes.bind(size, position, d)
            else:
                self.sizes.bind(value, position, -1)
        for position, node in enumerate(self.arguments):  # last: most strides follow from sizes
            if isinstance(node.meta["val"], Tensor):
                for d, stride in enumerate(node.meta["val"].stride()):
                    self.sizes.bind(stride, position, -2 - d)

    def _argument(self, value: Any, name: str, static: bool, node: fx.Node | None) -> SSAValue:
        kind: Attribute = IndexType.get_type()
        strides = None
        if isinstance(value, torch.SymFloat):
            kind = self._number_type(node)
            self.numbers.append(len(self.block.args))
        if isinstance(value, Tensor):
            kind = tensor = self._type(value, node)
            strides = self._exact_strides(value, tensor)
        self.arg_names.append(name)
        self.arg_static.append(static)
        self.arg_strides.append(strides)
        return self.block.insert_arg(kind, len(self.block.args))

    def _attribute(self, node: fx.Node) -> None:
        value = self.functional.graph_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, Tensor | fx.GraphModule):
            self.values[node] = self._constant(value, node) if isinstance(value, Tensor) else value
        else:
            raise self._failure(f"the attribute {node.target} is a {type(value).__name__}, not a tensor", node)

    def _constant(self, value: Tensor, node: fx.Node | None) -> SSAValue:
        """A tensor of the graph's own: a number if it was made during capture and nobody else holds it, else an argument."""
        if node is not None and node.meta.get("literal") and value.dim() == 0 and value.device.type in ("cpu", "cuda"):
            kind = self._type(value, node)
            if kind.dtype not in (C64, C128):
                full = {
                    "operands": (),
                    "size": (),
                    "fill_value": value.item(),
                    "dtype": value.dtype,
                    "device": value.device,
                }
                return self._append(aten_op("aten.full.default").make([], [kind], full), node).results[0]
        for known, arg in zip(self.constants, self.block.args[len(self.arguments) :], strict=True):
            if known is value:
                return arg
        self.constants.append(value)
        return self._argument(value, node.name if node else f"constant{len(self.constants)}", True, node)

    # ---- types ----

    def _type(self, value: Tensor, node: fx.Node | None) -> TensorType:
        dtype = BY_TORCH.get(value.dtype)
        if dtype is None:
            raise self._failure(f"dtype {value.dtype} is not supported", node)
        if value.layout is not torch.strided:
            raise self._failure(f"layout {value.layout} is not supported", node)
        size = self.sizes.dim
        return tensor_type([s if type(s) is int else size(s) for s in value.shape], dtype, _device_name(value.device))

    def _exact_strides(self, value: Tensor, kind: TensorType) -> tuple[Dim, ...] | None:
        strides = tuple(self.sizes.stride(s) for s in value.stride())
        return None if strides == contiguous_strides(kind.shape) else strides

    def _strides(self, value: Tensor, kind: TensorType) -> tuple[Dim, ...] | None:
        """Eager's strides, None when the elements lie as in a contiguous tensor (strides of sizes 0 and 1 do not matter)."""
        exact = self._exact_strides(value, kind)
        if exact is None or 0 in kind.shape:
            return None
        usual = contiguous_strides(kind.shape)
        differ = any(a != b and size != 1 for a, b, size in zip(exact, usual, kind.shape, strict=True))
        return exact if differ else None

    # ---- calls ----

    def _unknown(self, node: fx.Node) -> None:
        raise self._failure(f"a graph of functional operators has no {node.op} ({node.target})", node)

    def _call(self, node: fx.Node) -> None:
        target, value = node.target, node.meta.get("val")
        if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten" and target in _SIZE_READS:
            return
        if target is torch.ops.aten._local_scalar_dense.default and isinstance(value, torch.SymInt):
            self._operator(node, target, value)
            return
        if _is_number(value):
            self._check_number(node)
            return
        if target is torch.ops.aten.scalar_tensor.default and _is_float(node.args[0]):
            self._number(node)
            return
        if target is _GETITEM and isinstance(node.args[0], fx.Node) and isinstance(self.values.get(node.args[0]), dict):
            self.values[node] = self.values[node.args[0]].get(node.args[1])
            return
        if target in REGIONS:
            import_region(self, node, _Arguments())
        elif isinstance(target, torch._ops.OpOverload):
            self._operator(node, target, value)
        else:
            raise self._failure(f"{target} is not a registered operator", node)

    def _number_type(self, node: fx.Node | None) -> TensorType:
        """What a number that the caller passes is to the program: on the device, and of the dtype, of all who read it, else float64."""
        readers = [] if node is None else list(node.users)
        alone = all(r.target is torch.ops.aten.scalar_tensor.default for r in readers)
        kinds = {self._type(r.meta["val"], None) for r in readers} if alone else set()
        devices, dtypes = {kind.device for kind in kinds}, {kind.dtype for kind in kinds}
        if len(devices) != 1 or not dtypes <= {F32, F64}:
            return tensor_type([], F64, "cpu")
        return tensor_type([], dtypes.pop() if len(dtypes) == 1 else F64, devices.pop())

    def _number(self, node: fx.Node) -> None:
        """A number that the caller passes, as a 0-dim tensor."""
        given = self.values.get(node.args[0])  # type: ignore[arg-type]
        if not isinstance(given, SSAValue) or not isinstance(given.type, TensorType):
            raise self._failure(f"{node.args[0]} is not a number that the caller passes", node)
        number = node.meta["val"]
        if given.type == self._type(number, node):
            self.values[node] = given
            return
        attrs = {"operands": ("self",), "dtype": number.dtype, "device": number.device, "non_blocking": False}
        op = aten_op("aten._to_copy.default").make([given], [self._type(number, node)], attrs)
        self.values[node] = self._append(op, node).results[0]

    def _check_number(self, node: fx.Node) -> None:
        """Numbers that come out of tensors (`item`) are not known when the program is compiled."""
        if isinstance(node.target, torch._ops.OpOverload) and any(
            isinstance(a, fx.Node) and isinstance(a.meta.get("val"), Tensor) for a in node.all_input_nodes
        ):
            raise self._failure(f"{node.target} makes a number from a tensor's values", node)

    def _operator(self, node: fx.Node, target: torch._ops.OpOverload, value: Any) -> None:
        plan = _plan(target)
        given = dict(zip(plan.names, node.args, strict=False)) | dict(node.kwargs)
        call = _Arguments()
        for name in plan.names:
            if name in given:
                self._take(name, given[name], node, call)
        tensors = (value,) if isinstance(value, Tensor) else tuple(value) if isinstance(value, list | tuple) else ()
        binds, assumes = self._late(tensors or (value,), node)
        kinds: dict[int, TensorType] = {}
        strides: list[Any] = []
        for position, tensor in enumerate(tensors):
            if isinstance(tensor, Tensor):
                kinds[position] = self._type(tensor, node)
                strides.append(self._strides(tensor, kinds[position]))
        attrs = {"operands": tuple(call.names), **self._completed(target, call, tuple(kinds.values()), node)}
        if any(s is not None for s in strides):
            attrs["strides"] = tuple(strides)
        if any(s is not None for s in call.strides):
            attrs["operand_strides"] = tuple(call.strides)
        if len(kinds) < len(tensors):
            attrs["returned"] = tuple(kinds)
        if binds:
            attrs |= {"binds": binds, **({"assumes": assumes} if assumes else {})}
        if plan.effect or binds or node.name in self.effects:
            attrs["effect"] = True
        op = self._append(plan.cls.make(call.operands, tuple(kinds.values()), attrs), node)
        results = dict(zip(kinds, op.results, strict=True))
        self.values[node] = results[0] if isinstance(value, Tensor) else results

    def _late(self, values: Sequence[Any], node: fx.Node) -> tuple[Any, Any]:
        """The rows of `binds` and `assumes` for what a call gives."""
        try:
            return self.sizes.bind_late(values)
        except ImportFailure as error:
            raise self._failure(str(error), node) from None

    def _completed(
        self, target: torch._ops.OpOverload, call: _Arguments, results: Sequence[TensorType], node: fx.Node
    ) -> dict[str, Literal]:
        kinds = dict(zip(call.names, map(prim.tensor, call.operands), strict=True))
        try:
            return completed(target, kinds, results, call.plain)
        except NotCanonical as why:
            raise self._failure(f"{target}: {why}", node) from None

    def _take(self, name: str, value: Any, node: fx.Node, call: _Arguments) -> None:
        """One argument of a call: a tensor, a list with tensors in it, or a literal."""
        if isinstance(value, fx.Node) and isinstance(value.meta["val"], Tensor):
            given = self._value(value, node)
            call.operands.append(given)
            call.names.append(name)
            call.strides.append(self._strides(value.meta["val"], prim.tensor(given)))
        elif isinstance(value, list | tuple) and any(
            isinstance(v, fx.Node) and isinstance(v.meta["val"], Tensor) for v in value
        ):
            for position, item in enumerate(value):
                if item is not None:
                    self._take(f"{name}.{position}", item, node, call)
        else:
            call.plain[name] = self._literal(value, node)

    def _value(self, value: fx.Node, node: fx.Node) -> SSAValue:
        found = self.values.get(value)
        if not isinstance(found, SSAValue):
            raise self._failure(f"{value} is not a tensor that the graph computes", node)
        return found

    def _literal(self, value: Any, node: fx.Node) -> Literal:
        if isinstance(value, fx.Node):
            value = value.meta["val"]
        if isinstance(value, list | tuple):
            return tuple(self._literal(v, node) for v in value)
        if isinstance(value, torch.SymInt):
            return self._size(value, node)
        if isinstance(value, torch.SymFloat | torch.SymBool):
            expr = value.node.expr
            if expr.is_number or expr in (sympy.true, sympy.false):
                return float(expr) if isinstance(value, torch.SymFloat) else bool(expr)
            raise self._failure(
                f"an argument that depends on sizes and is not an integer ({expr}) is not supported", node
            )
        try:
            print_literal(value)
        except TypeError as error:
            raise self._failure(str(error), node) from None
        return value

    def _size(self, value: Any, node: fx.Node | None) -> Dim:
        try:
            return self.sizes.dim(value)
        except ImportFailure as error:
            raise self._failure(str(error), node) from None

    def _append(self, op: Op, node: fx.Node | None) -> Op:
        place = user_line(node.meta.get("stack_trace")) if node is not None else None
        if place is not None:
            op.location = place
        self.block.add_op(op)
        return op

    # ---- results ----

    def _finish(self, node: fx.Node) -> Imported:
        returned = node.args[0] if isinstance(node.args[0], list | tuple) else (node.args[0],)
        kept = [i for i, v in enumerate(returned) if isinstance(v, fx.Node) and isinstance(v.meta["val"], Tensor)]
        position = {old: new for new, old in enumerate(kept)}
        values = [self._value(returned[i], node) for i in kept]  # type: ignore[arg-type]
        strides = [self._exact_strides(returned[i].meta["val"], v.type) for i, v in zip(kept, values, strict=True)]  # type: ignore[union-attr,arg-type]
        results = []
        for spec in self.functional.outputs:
            entry = self._result(spec, position)
            if entry[0] == "value" and not isinstance(spec, list | tuple):
                strides[entry[1]] = self._described_strides(spec, values[entry[1]].type)  # type: ignore[arg-type]
            results.append(entry)
        mutations = tuple(
            (m[0], position[m[1]]) if isinstance(m, list | tuple) else (m.input_index, position[m.output_index])
            for m in self.functional.mutations
        )
        self.block.add_op(prim.Return.make(values))
        attrs: dict[str, Literal] = {
            "sym_name": "main",
            "arg_names": tuple(self.arg_names),
            "arg_strides": tuple(self.arg_strides),
            "arg_static": tuple(self.arg_static),
            "result_strides": tuple(strides),
            "symbols": tuple(self.sizes.bound.values()),
            **({"size_hints": tuple(self.sizes.hints.items())} if self.sizes.hints else {}),
            "results": tuple(results),
            "mutations": mutations,
            **({"numbers": tuple(self.numbers)} if self.numbers else {}),
        }
        main = prim.Func.make([], [], attrs, [Region(self.block)])
        return Imported(ModuleOp([main, *self.functions.made]), self.constants)

    def _described_strides(self, spec: Any, kind: TensorType) -> tuple[Dim, ...] | None:
        """Of a result: programs see the strides of what is empty, too."""
        exact = tuple(self.sizes.dim(s) for s in spec.stride)
        return None if exact == contiguous_strides(kind.shape) else exact

    def _result(self, spec: Any, position: dict[int, int]) -> tuple[Literal, ...]:
        """One entry of `results`; numbers of graph outputs become numbers of returned values."""
        if isinstance(spec, list | tuple):
            moved = spec[0] in ("value", "alias_output")
            return (spec[0], position[spec[1]], *spec[2:]) if moved else tuple(spec)
        rule = _RESULT_RULES.get(spec.kind)
        if rule is None:
            raise ImportFailure(f"a result of the kind '{spec.kind}' is not supported")
        return rule(self, spec, position)

    def _result_view(self, spec: Any, k: int) -> tuple[Literal, ...]:
        sizes = tuple(self.sizes.dim(s) for s in spec.size)
        strides = tuple(self.sizes.dim(s) for s in spec.stride)
        return (spec.kind, k, sizes, strides, self.sizes.dim(spec.storage_offset))

    def _result_constant(self, spec: Any, _: dict[int, int]) -> tuple[Literal, ...]:
        if spec.value is None:
            return ("none",)
        if isinstance(spec.value, Tensor):
            arg = self._constant(spec.value, None)
            return ("input", list(self.block.args).index(arg))  # type: ignore[arg-type]
        try:
            print_literal(spec.value)
        except TypeError:
            raise ImportFailure(f"a result of type {type(spec.value).__name__} is not supported") from None
        return ("constant", spec.value)

    def _failure(self, message: str, node: fx.Node | None) -> ImportFailure:
        place = user_line(node.meta.get("stack_trace")) if node is not None else None
        where = f" ({place.filename.data}:{place.line.data})" if place is not None else ""
        return ImportFailure(message + where)


_RESULT_RULES: dict[str, Callable[[_Importer, Any, dict[int, int]], tuple[Literal, ...]]] = {
    "value": lambda self, spec, position: ("value", position[spec.index]),
    "input": lambda self, spec, position: ("input", spec.index),
    "output": lambda self, spec, position: ("output", spec.index),
    "alias": lambda self, spec, position: self._result_view(spec, spec.index),
    "alias_output": lambda self, spec, position: self._result_view(spec, position[spec.index]),
    "symint": lambda self, spec, position: ("size", self.sizes.dim(spec.value)),
    "constant": _Importer._result_constant,
}

_GETITEM = operator.getitem
_SIZE_READS = frozenset(
    {
        torch.ops.aten.sym_size.int,
        torch.ops.aten.sym_size.default,
        torch.ops.aten.sym_stride.int,
        torch.ops.aten.sym_stride.default,
        torch.ops.aten.sym_numel.default,
        torch.ops.aten.sym_storage_offset.default,
    }
)


def _is_float(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta["val"], torch.SymFloat)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | bool | torch.SymInt | torch.SymFloat | torch.SymBool)


@lru_cache(maxsize=64)
def _device_name(device: torch.device) -> str:
    return str(device)


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = os.path.dirname(torch.__file__) + os.sep


@lru_cache(maxsize=4096)
def user_line(stack_trace: str | None) -> FileLineColLoc | None:
    """The innermost line of a stack trace that is not torch's own."""
    frames = user_frames(stack_trace)
    return location(*frames[-1]) if frames else None


def user_module(module_stack: Mapping[str, Any] | None) -> str:
    """The path of the innermost module of a node's stack, inside of the one that was compiled: "" for that one itself, and outside of it."""
    path = [*module_stack][-1] if module_stack else ""
    return path.removeprefix("self.") if path.startswith("self.") else ""


def user_frames(stack_trace: str | None) -> list[tuple[str, int]]:
    """The lines of a stack trace that are not torch's own, as (file, line), outermost first."""
    frames = _FRAME.findall(stack_trace or "")
    return [(filename, int(line)) for filename, line in frames if not filename.startswith(_TORCH)]
