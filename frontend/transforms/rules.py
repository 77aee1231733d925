"""Calls of torch.func's transforms: those that give a function (vmap, grad, jacrev, ...), those that run one (vjp, jvp, linearize)."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from ..calls.registry import Rows
from ..errors import GraphBreak, Unsupported
from ..graph.output import MUTATES, OutputGraph
from ..guards.source import Attr, Item
from ..state import Interpreter
from ..torch_private.functions import SET_GRAD_MODE
from ..torch_private.guards import transforms_questions
from ..values.kinds import isinstance, tensors_in
from ..values.namespaces import load_cell, rely_on_definition
from .inner import Below, Inside, is_tracked

__all__ = ["ROWS", "Transformed", "made_before"]

ROWS = Rows()

_VMAPS = (torch.vmap, torch.func.vmap)
_LOOPS = (*_VMAPS, torch.func.functionalize)  # take no derivatives


class Transformed:
    """`transform(function, **options)`, not called yet."""

    def __init__(self, vm: Interpreter, transform: Any, function: Any, options: dict[str, Any]) -> None:
        self.vm, self.transform, self.function, self.options = vm, transform, function, options

    def text(self, residual: Any) -> str:
        """The call in residual code."""
        transform = residual.emit.constant(self.transform, "transform")
        return f"{transform}({residual.value(self.function)}, **{residual.value(self.options)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        def run(inside: Inside) -> Any:
            result = self.transform(inside, **options)(*args, **kwargs)
            if inside.draws and options.get("chunk_size") is not None and options.get("randomness") == "same":
                raise GraphBreak(
                    "random numbers are drawn that are the same in all chunks of vmap"
                )  # torch sets the seed
            if alone and any(graph.transforms for graph in inside.graphs):
                raise GraphBreak("torch.func.functionalize is called around another transform")
            return result

        alone = self.transform is torch.func.functionalize
        if alone and self.vm.out.inside:
            raise GraphBreak("torch.func.functionalize is called inside another transform")
        options = _materialized(self.vm, self.options)
        args, kwargs = _materialized(self.vm, args), _materialized(self.vm, kwargs)
        batches = self.transform not in (torch.func.grad, torch.func.grad_and_value, torch.func.functionalize)
        asks = self.transform in _VMAPS and options.get("chunk_size") is None
        return _run(self.vm, self.function, run, self.transform not in _LOOPS, batches, asks)


def _materialized(vm: Interpreter, value: Any) -> Any:
    return pytree.tree_map(vm.materialize, value)


def _run(
    vm: Interpreter,
    function: Any,
    run: Callable[[Inside], Any],
    differentiates: bool = True,
    batches: bool = False,
    asks: bool = False,
) -> Any:
    """`run` with the function as torch may call it; `asks`: of what torch calls itself, a function mode sees questions alone."""

    def with_function(below: Below) -> Any:
        inside = Inside(vm, function, below, differentiates, batches)
        result = run(inside)
        if inside.draws and vm.out.batched:  # torch has other compositions of random operators inside of vmap
            raise GraphBreak("random numbers are drawn in a transform of torch.func inside of vmap")
        return result

    if differentiates:
        _check_mode(vm)
    return _recorded(vm, with_function, asks)


def _check_mode(vm: Interpreter) -> None:
    """Transforms that take derivatives leave inference mode: their results are ordinary tensors."""
    if vm.inference or vm.inferred.on:
        raise GraphBreak("a derivative is taken in inference mode, of which its result is no tensor")


def _recorded(vm: Interpreter, run: Callable[[Below], Any], asks: bool = False) -> Any:
    """What `run` gives, with the operators below the transform in the graph."""

    def transformed() -> Any:
        out.transforms = True
        with Below(out) as below:
            try:
                result = run(below)
            except RuntimeError as error:
                if vm.shape_env is None or not any(words in str(error) for words in _NO_SYMBOLS):
                    raise
                raise GraphBreak("a size that changes between calls meets a transform of torch.func") from None
        if below.zeros:
            _check_zeros(out, before, result)
        return result

    out = vm.out
    vm.overrides.check_alone("a transform of torch.func", asks, wrappers=True)
    before = set(out.graph.nodes)
    return vm.native(transformed)


_NO_SYMBOLS = (
    "with symbolic sizes",
    "isIntList()",
    "only concrete integers",
)  # what C++ says that takes numbers for sizes


def _check_zeros(out: OutputGraph, before: set[fx.Node], result: Any) -> None:
    """Of derivatives that are known to be zero nothing is recorded: break where a result would not depend on what it does in eager."""
    if not out.inside and not is_tracked([info.fake for info in out.inputs.values()]):
        return
    for leaf in tensors_in((result,)):
        if out.is_known(leaf) and (out.inside or leaf.requires_grad) and not _depends(out, out.node(leaf), before):
            raise GraphBreak("the result of a transform of torch.func has a gradient that is known to be zero")


# What torch makes bases of and fills up with: only the shape is read.
_NO_VALUES = frozenset(
    getattr(torch.ops.aten, name).default for name in ("new_zeros", "zeros_like", "ones_like", "new_ones", "new_empty")
)


def _depends(out: OutputGraph, node: fx.Node, before: set[fx.Node]) -> bool:
    """Whether a node is computed of tensors that require gradients, among those that were there before; inside, of any argument."""
    seen, waiting = {node}, [node]
    while waiting:
        node = waiting.pop()
        example = node.meta.get("example_value")
        if node.op == "placeholder" or node in before and not out.inside:
            if not isinstance(example, torch.SymInt) if out.inside else _requires_grad(example):
                return True
            continue
        if node.target in _NO_VALUES or isinstance(example, int | torch.SymInt):
            continue
        new = [n for n in node.all_input_nodes if n not in seen]
        seen.update(new)
        waiting += new
    return False


def _requires_grad(example: Any) -> bool:
    return isinstance(example, Tensor) and example.requires_grad


class Derivative:
    """A function that torch made of the tensors of this capture."""

    def text(self, residual: Any) -> str:
        """It cannot be made again in residual code."""
        raise Unsupported("the function that vjp or linearize gave is returned, stored or used behind a graph break")


class Pullback(Derivative):
    """What torch.func.vjp gives: the gradients of the inputs, of those of the outputs."""

    def __init__(self, vm: Interpreter, function: Any) -> None:
        self.vm, self.function = vm, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = _materialized(self.vm, args), _materialized(self.vm, kwargs)
        _check_mode(self.vm)
        return _recorded(self.vm, lambda _: self.function(*args, **kwargs))


def _is_plain(graph: OutputGraph) -> bool:
    """Whether torch's own tracing in torch.func.linearize follows all of a function."""
    marked = any(node.target is SET_GRAD_MODE or node.meta.get(MUTATES) for node in graph.graph.nodes)
    return not marked and not graph.transforms


class Linear(Derivative):
    """The function that torch.func.linearize gives: the derivative at these inputs, as a function of the direction."""

    def __init__(self, vm: Interpreter, inside: Inside, function: Any, primals: tuple[Any, ...]) -> None:
        self.vm, self.function, self.primals = vm, function, primals
        leaves, self.spec = pytree.tree_flatten(primals)
        self.facts = [(t.shape, t.device, t.dtype) for t in leaves]
        self.read = [(t, t._version) for t in (*leaves, *inside.around)]

    def __call__(self, *tangents: Any) -> Any:
        tangents = _materialized(self.vm, tangents)
        leaves, spec = pytree.tree_flatten(tangents)
        fit = spec == self.spec and all(isinstance(t, Tensor) for t in leaves)
        if not fit or [(t.shape, t.device, t.dtype) for t in leaves] != self.facts:
            raise GraphBreak(
                "the function of torch.func.linearize is called with tangents that are not like the primals"
            )
        if any(t._version != version for t, version in self.read):
            raise GraphBreak(
                "the function of torch.func.linearize is called after what it was made of has been written to"
            )
        _check_mode(self.vm)

        def derivative(_: Below) -> Any:
            # Eager's tangents have the primals' layout, and share memory with nothing that the caller has.
            alike = [torch.empty_like(primal) for primal in pytree.tree_leaves(self.primals)]
            own = [t.clone() if self.vm.out.inside else a.copy_(t) for a, t in zip(alike, leaves, strict=True)]
            return torch.func.jvp(self.function, self.primals, pytree.tree_unflatten(own, spec))[1]

        return _recorded(self.vm, derivative)


def _nothing() -> None:
    """Stands for a function where only the transform is looked at."""


_NAMES = ("vmap", "grad", "grad_and_value", "jacrev", "jacfwd", "functionalize")
_CODES = {id(t(_nothing).__code__): t for t in (getattr(torch.func, name) for name in _NAMES)}


def made_before(vm: Interpreter, function: types.FunctionType) -> Transformed | None:
    """A function that a transform gave before the program ran, as one that it gives now; None for other functions."""
    transform = _CODES.get(id(function.__code__))
    if transform is None:
        return None
    rely_on_definition(vm, function)
    source, options = vm.user.source_of(function), dict[str, Any]()
    for place, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)):
        if source is not None and vm.user.source_of(cell) is None:
            vm.user.track(cell, cell, Item(Attr(source, "__closure__"), place))
        if name in inspect.signature(transform).parameters:
            options[name] = load_cell(vm, cell, name)
        elif name == "reapply_views":
            options["remove"] = "mutations" if load_cell(vm, cell, name) else "mutations_and_views"
    return Transformed(vm, transform, options.pop("func"), options)


def _transform(transform: Any) -> Callable[..., Any]:
    signature = inspect.signature(transform)

    def apply(vm: Interpreter, *args: Any, **options: Any) -> Any:
        vm.native(transform, *args, **options)  # calls that torch refuses
        given = signature.bind(*args, **options).arguments
        function = given.pop(next(iter(signature.parameters)))
        return Transformed(vm, transform, function, given)

    return apply


for _name in (*_NAMES, "hessian"):
    ROWS.rule(getattr(torch.func, _name))(_transform(getattr(torch.func, _name)))
ROWS.rule(torch.vmap)(_transform(torch.vmap))


@ROWS.rule(*transforms_questions())
def _is_active(vm: Interpreter) -> bool:
    """Around a captured call there is no transform: it would run in eager."""
    return bool(vm.out.inside)


@ROWS.rule(torch.func.jvp)
def _jvp(vm: Interpreter, func: Any, primals: Any, tangents: Any, *, strict: Any = False, has_aux: Any = False) -> Any:
    primals, tangents = _materialized(vm, primals), _materialized(vm, tangents)
    return _run(vm, func, lambda inside: torch.func.jvp(inside, primals, tangents, strict=strict, has_aux=has_aux))


@ROWS.rule(torch.func.vjp)
def _vjp(vm: Interpreter, func: Any, *primals: Any, has_aux: Any = False) -> Any:
    primals = _materialized(vm, primals)
    value, pullback, *aux = _run(vm, func, lambda inside: torch.func.vjp(inside, *primals, has_aux=has_aux))
    return (value, Pullback(vm, pullback), *aux)


@ROWS.rule(torch.func.linearize)
def _linearize(vm: Interpreter, func: Any, *primals: Any) -> Any:
    primals = _materialized(vm, primals)
    if not all(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(primals)):
        raise GraphBreak("torch.func.linearize is called with primals that are no tensors")
    if vm.out.inside:
        raise GraphBreak("torch.func.linearize is called inside another transform")

    def run(inside: Inside) -> Any:
        value = inside(*primals)
        derivative = inside.captured(*primals)  # eager calls the function twice, too
        if inside.draws or not all(map(_is_plain, inside.graphs)):
            what = "draws random numbers, writes to tensors, sets the grad mode or calls another transform"
            raise GraphBreak(f"torch.func.linearize is called with a function that {what}")
        if is_tracked([*pytree.tree_leaves(primals), *inside.around]):
            raise GraphBreak("torch.func.linearize is called, and gradients are wanted of what it is given")
        return value, Linear(vm, inside, derivative, primals)

    return _run(vm, func, run)
