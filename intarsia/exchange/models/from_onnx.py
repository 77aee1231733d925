"""ONNX as a front end: a model becomes a graph of torch functions, which Intarsia compiles as any other.

    model = intarsia.from_onnx("model.onnx", sizes={"batch": 4})
    fast = intarsia.compile(model)

What depends on no input is computed while the model is read (shapes, above all). Operators that are not taken are errors that name operator,
node and opset. Nothing of the file is executed; it needs the package `onnx` to be read.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from ...frontend.torch_private.regions import COND
from ...ir.syntax import comment_of, visible
from ..as_module import LineTracer
from ..errors import ExchangeError
from .onnx_calls import CALLS
from .onnx_regions import REGIONS

OPSETS = range(13, 21)
LARGEST_FILE = (1 << 31) - 1  # which protobuf cannot exceed
MOST_ELEMENTS = 1 << 31
MOST_NODES = 200_000  # loops written out
MOST_DEEP = 40  # graphs inside of operators
_DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool,
    10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip


def from_onnx(path: str | Path, sizes: Mapping[str, int] | None = None) -> fx.GraphModule:
    """A model as a torch module that takes the model's inputs, in order, and gives its outputs.

    Args:
        path: the file. Weights in files beside it are read, too.
        sizes: numbers for sizes that have names in the model.

    Raises:
        ExchangeError: the file cannot be read, or an operator is not taken; names operator, node and opset.
    """
    onnx = _onnx()
    where = str(path)
    try:
        if Path(path).stat().st_size > LARGEST_FILE:
            raise ExchangeError(f"'{visible(where)}' has more than {LARGEST_FILE:,} bytes")
        model = onnx.load(where)
    except ExchangeError:
        raise
    except OSError as error:
        raise ExchangeError(f"cannot read '{visible(where)}': {error.strerror or error}") from None
    except Exception as error:  # protobuf's DecodeError, onnx's ValidationError, and what else a broken file makes
        said = visible(str(error).splitlines()[0][:200]) if str(error) else type(error).__name__
        raise ExchangeError(f"'{visible(where)}' is no model of ONNX: {said}") from None
    opsets = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    opset = opsets[0] if opsets else 0
    if opset not in OPSETS:
        raise ExchangeError(f"'{visible(where)}' has opset {opset or 'none'}; {OPSETS[0]} to {OPSETS[-1]} are taken")
    try:
        return _Model(onnx, opset, where, dict(sizes or {})).graph_module(model.graph)
    except RecursionError:
        raise ExchangeError(f"'{visible(where)}' is nested too deeply") from None


def _onnx() -> Any:
    try:
        import onnx
    except ImportError:
        raise ExchangeError("ONNX models are read with the package onnx: pip install onnx") from None
    return onnx


@dataclass(frozen=True)
class Known:
    """A value: of the graph (a proxy) or a tensor that is known, and what it is like (a tensor without memory)."""

    value: Any
    like: Tensor

    @property
    def constant(self) -> Tensor | None:
        return self.value if isinstance(self.value, Tensor) else None


@dataclass
class Call:
    """One node for its rule."""

    where: str
    attributes: dict[str, Any]
    given: list[Known | None]
    values: list[Any]
    outputs: int
    make: Callable[..., Any]

    def fail(self, message: str) -> Any:
        """Raise an error that names the node."""
        raise ExchangeError(f"{self.where}: {message}")

    def get(self, name: str, *default: Any) -> Any:
        """An attribute."""
        if name not in self.attributes and not default:
            self.fail(f"the attribute '{name}' is missing")
        return self.attributes.get(name, *default)

    def has(self, k: int) -> bool:
        """Whether input k is given."""
        return k < len(self.given) and self.given[k] is not None

    def _input(self, k: int) -> Known:
        found = self.given[k] if k < len(self.given) else None
        return found if found is not None else self.fail(f"input {k} is missing")

    def shape(self, k: int) -> tuple[int, ...]:
        """Of input k."""
        return tuple(self._input(k).like.shape)

    def dtype(self, k: int) -> torch.dtype:
        """Of input k."""
        return self._input(k).like.dtype

    def known(self, k: int) -> Tensor | None:
        """The tensor that input k is in every call, or None."""
        return self._input(k).constant

    def integers(self, k: int) -> list[int]:
        """An input that has to be known."""
        found = self._input(k).constant
        if found is None:
            self.fail(f"input {k} has to be known, and is computed from the model's inputs")
            raise AssertionError
        return [int(n) for n in found.reshape(-1).tolist()]

    def number(self, k: int) -> Any:
        """One number that has to be known."""
        found = self._input(k).constant
        if found is None or found.numel() != 1:
            return self.fail(f"input {k} has to be one number that is known")
        return found.item()

    def axis(self, value: int) -> int:
        """Counted from the front."""
        rank = len(self.shape(0))
        if not -rank <= value < rank:
            self.fail(f"axis {value} of a tensor of {rank} dimensions")
        return value % rank

    def dtype_numbered(self, number: int) -> torch.dtype:
        """ONNX's number of a dtype."""
        return _DTYPES.get(number) or self.fail(f"dtype {number} is not taken")


class _Model:
    """A model, or one side of a branch in it, on its way to a graph."""

    def __init__(self, onnx: Any, opset: int, path: str, sizes: dict[str, int]) -> None:
        self.onnx, self.opset, self.path, self.sizes = onnx, opset, path, sizes
        self.count = self.depth = 0
        self.graph = fx.Graph()
        self.tracer = LineTracer(self.graph)
        self.root = torch.nn.Module()
        self.values: dict[str, Known] = {}
        self.nodes: dict[int, Any] = {}  # of tensors that are known, by id

    def graph_module(self, graph: Any) -> fx.GraphModule:
        weights = {w.name for w in graph.initializer}
        inputs = [i for i in graph.input if i.name not in weights]
        for value in inputs:
            self._argument(value)
        results = [self.node_of(known) for known in self.computed(graph)]
        self.graph.output(results[0] if len(results) == 1 else tuple(results))
        made = fx.GraphModule(self.root, self.graph, "ONNX")
        made.meta["inputs"] = [self.values[i.name].like for i in inputs]
        return made

    def computed(self, graph: Any) -> list[Known]:
        """What a graph gives, its weights and nodes put into ours."""
        for weight in graph.initializer:
            tensor = self._tensor(weight, f"the weight '{visible(weight.name[:80])}'")
            self.values[weight.name] = Known(tensor, tensor.to("meta"))
        for number, node in enumerate(graph.node):
            self.count += 1
            if self.count > MOST_NODES:
                raise ExchangeError(f"'{visible(self.path)}': more than {MOST_NODES:,} nodes, loops written out")
            self._node(number, node)
        for value in graph.output:
            if value.name not in self.values:
                raise ExchangeError(f"the output '{visible(value.name[:80])}' is computed by no node")
        return [self.values[value.name] for value in graph.output]

    def inside(self, graph: Any, given: dict[str, Known]) -> list[Known]:
        """What a graph inside of an operator gives for these values; its names are its own."""
        if self.depth == MOST_DEEP:
            raise ExchangeError(f"'{visible(self.path)}': graphs are nested too deeply")
        outer, self.values = self.values, self.values | given
        self.depth += 1
        try:
            return self.computed(graph)
        finally:
            self.values = outer
            self.depth -= 1

    def node_of(self, known: Known) -> fx.Node:
        return self.of_graph(known.value).node

    def side(self, graph: Any, captured: Sequence[str]) -> tuple[fx.GraphModule, list[Tensor]]:
        """A side of a branch as a graph of its own, which takes the values captured, and what its results are like."""
        inner = _Model(self.onnx, self.opset, self.path, self.sizes)
        inner.count, inner.depth = self.count, self.depth
        inner.values = {name: known for name, known in self.values.items() if known.constant is not None}
        for name in captured:
            proxy = fx.Proxy(inner.graph.placeholder(f"input_{len(inner.graph.nodes)}"), inner.tracer)
            inner.values[name] = Known(proxy, self.values[name].like)
        made = inner.inside(graph, {})
        self.count = inner.count
        inner.graph.output(tuple(inner.of_graph(known.value).clone().node for known in made))
        return fx.GraphModule(inner.root, inner.graph, "Side"), [known.like for known in made]

    def chosen(self, which: Any, sides: Sequence[fx.GraphModule], captured: Sequence[str]) -> Any:
        """A call of torch's cond."""
        names = [f"side_{self.count}_{k}" for k in range(2)]
        for name, module in zip(names, sides, strict=True):
            setattr(self.root, name, module)
        attributes = [fx.Proxy(self.graph.create_node("get_attr", name), self.tracer) for name in names]
        return self.make(COND, which.reshape(()), *attributes, tuple(self.values[n].value for n in captured))

    def _argument(self, value: Any) -> None:
        kind = value.type.tensor_type
        name = visible(value.name[:80])
        if kind.elem_type not in _DTYPES or not value.type.HasField("tensor_type"):
            raise ExchangeError(f"the input '{name}': its dtype {kind.elem_type} is not taken")
        shape = []
        for d in kind.shape.dim:
            size = d.dim_value if d.HasField("dim_value") else self.sizes.get(d.dim_param)
            if size is None:
                known = (
                    f"from_onnx(path, sizes={{{d.dim_param[:40]!r}: 4}}); in passes-opt --sizes {d.dim_param[:40]}=4"
                )
                raise ExchangeError(f"the input '{name}' has a size with a name; say what it is: {visible(known)}")
            shape.append(int(size))
        if min(shape, default=1) < 0 or math.prod(shape) > MOST_ELEMENTS:
            raise ExchangeError(f"the input '{name}' has the shape {shape}")
        proxy = fx.Proxy(self.graph.placeholder(f"input_{len(self.values)}"), self.tracer)
        self.values[value.name] = Known(proxy, torch.empty(shape, dtype=_DTYPES[kind.elem_type], device="meta"))

    def _tensor(self, weight: Any, what: str) -> Tensor:
        if weight.data_type not in _DTYPES:
            raise ExchangeError(f"{what}: dtype {weight.data_type} is not taken")
        try:
            if math.prod(weight.dims) > MOST_ELEMENTS or min(weight.dims, default=1) < 0:
                raise ValueError(f"the shape {list(weight.dims)}")
            if weight.data_type == 16:
                found = self.onnx.numpy_helper.to_array(weight).astype("float32")
                return torch.from_numpy(found.copy()).to(torch.bfloat16)
            return torch.from_numpy(self.onnx.numpy_helper.to_array(weight).copy())
        except Exception as error:  # a broken file has fewer bytes than its shape says, in one of many ways
            said = visible(str(error).splitlines()[0][:200]) if str(error) else type(error).__name__
            raise ExchangeError(f"{what} cannot be read: {said}") from None

    def of_graph(self, value: Any) -> Any:
        """The value as one of the graph: a tensor that is known becomes a buffer."""
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self.nodes:
            name = f"weight_{len(self.nodes)}"
            self.root.register_buffer(name, value)
            self.nodes[id(value)] = fx.Proxy(self.graph.create_node("get_attr", name), self.tracer)
        return self.nodes[id(value)]

    def make(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, args, kwargs)

    def _node(self, number: int, node: Any) -> None:
        name = visible(node.name[:80]) or f"number {number}"
        where = f"the node '{name}' ({visible(node.op_type[:60])}, opset {self.opset})"
        if node.domain not in ("", "ai.onnx"):
            raise ExchangeError(f"{where}: the domain {visible(node.domain[:60])} is not taken")
        attributes = {}
        for a in node.attribute:
            holds_graphs = a.type == 10 or (a.type == 5 and node.op_type not in REGIONS)
            if holds_graphs or a.ref_attr_name:
                raise ExchangeError(f"{where}: the operator is not taken: it holds a graph")
            found = self.onnx.helper.get_attribute_value(a)
            if a.type == 4:
                found = self._tensor(found, where)
            attributes[a.name] = found.decode("utf-8", "replace") if isinstance(found, bytes) else _plain(found)
        for name in node.input:
            if name and name not in self.values:
                raise ExchangeError(f"{where}: its input '{visible(name[:80])}' is computed by no node before it")
        given = [self.values[n] if n else None for n in node.input]
        names = [n for n in node.output if n]
        self.tracer.trace = f'  File "{comment_of(self.path)}", line {number + 1}, in node\n    {node.op_type[:60]}\n'
        try:
            made = self._made(node.op_type, where, attributes, given, len(names))
        except ExchangeError:
            raise
        except Exception as error:
            said = visible(str(error).splitlines()[0][:200]) if str(error) else type(error).__name__
            raise ExchangeError(f"{where} does not fit its inputs: {said}") from None
        for k, out in enumerate(names):
            if out in self.values:
                raise ExchangeError(f"{where}: '{visible(out[:80])}' is computed twice")
            if k >= len(made):
                raise ExchangeError(f"{where}: its result {k} is not taken")
            self.values[out] = made[k]

    def _made(
        self, kind: str, where: str, attributes: dict[str, Any], given: Sequence[Known | None], outputs: int
    ) -> list[Known]:
        if kind == "Constant":
            found = next((_constant(v, n) for n, v in attributes.items() if n.startswith("value")), None)
            if found is None:
                raise ExchangeError(f"{where}: a constant of this form is not taken")
            return [Known(found, found.to("meta"))]
        if kind in ("Shape", "Size") and given and given[0] is not None:
            shape = list(given[0].like.shape)
            shape = shape[attributes.get("start", 0) : attributes.get("end", len(shape))] if kind == "Shape" else shape
            tensor = torch.tensor(shape if kind == "Shape" else math.prod(shape), dtype=torch.int64)
            return [Known(tensor, tensor.to("meta"))]
        if kind in REGIONS:
            return REGIONS[kind](self, where, attributes, given)
        rule = CALLS.get(kind)
        if rule is None:
            raise ExchangeError(f"{where}: the operator is not taken")
        known = [g for g in given if g is not None]

        def run(values: list[Any], make: Callable[..., Any]) -> list[Any]:
            found = rule(Call(where, attributes, list(given), values, outputs, make))
            return list(found) if isinstance(found, list | tuple) else [found]

        with torch.device("meta"):
            likes = run([g and g.like for g in given], operator.call)
        if sum(like.numel() for like in likes) > MOST_ELEMENTS:
            raise ExchangeError(f"{where}: its results are too large")
        if all(g.constant is not None for g in known):
            values = run([g and g.constant for g in given], operator.call)
        else:
            values = run([g and self.of_graph(g.value) for g in given], self.make)
        return [Known(v, like) for v, like in zip(values, likes, strict=True)]


def _plain(found: Any) -> Any:
    return (
        [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in found]
        if isinstance(found, list) or type(found).__module__.startswith("google")
        else found
    )


def _constant(value: Any, name: str) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    kinds = {
        "value_float": torch.float32,
        "value_floats": torch.float32,
        "value_int": torch.int64,
        "value_ints": torch.int64,
    }
    return torch.tensor(value, dtype=kinds[name]) if name in kinds else None
