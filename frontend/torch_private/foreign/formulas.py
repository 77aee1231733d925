"""Backward formulas of custom operators that read values: one operator of the backward graph each.

`torch.library.register_autograd` takes any Python for an operator's backward. AOTAutograd traces it with fake tensors, which have no
values for `offsets.tolist()`. Such a formula is then run as it is, by `backward(tensors, given, arriving, what)`: it sets up the formula's
context from the forward operator's inputs and outputs and calls it with the gradients that arrive. Those that the set-up keeps are saved
for it; of the others it gets tensors that look like them, so that a program may write to them, as in eager.
The rest of both graphs is compiled as always.

Tried with torch 2.11 and 2.13: `torch._library.custom_ops.OPDEFS`, and `_backward_fn` and `_setup_context_fn` of what stands there.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from traceback import walk_tb
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx

from ..fake import data_dependent_errors
from ..symbols import scalar_outputs

__all__ = ["with_opaque_formulas"]

NAMESPACE = "intarsia_custom"
_LIBRARY: list[torch.library.Library] = []  # a Library takes its operators away when it is collected
_PLAIN = (bool, int, float, str, type(None))  # what JSON holds; a tensor or size is a dict with its place
_KNOWN = (*_PLAIN, torch.SymInt, torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format)


def with_opaque_formulas(graph: fx.Graph, env: Any, trace: Callable[[], Any]) -> Any:
    """What `trace` gives for the graph; where a custom operator's formula needs values, once more with that as one operator."""
    names = frozenset[str]()
    while True:
        try:
            with _opaque(graph, env, names):
                return trace()
        except data_dependent_errors() as error:
            more = _that_fail(graph, error) - names
            if not more:
                raise
            names |= more


def _that_fail(graph: fx.Graph, error: BaseException) -> frozenset[str]:
    """The custom operators of the graph in whose registered backward, or its set-up, `error` was raised."""
    codes = {frame.f_code for frame, _ in walk_tb(error.__traceback__)}
    return frozenset(
        name
        for name, of in _defined_in(graph).items()
        if any(getattr(f, "__code__", None) in codes for f in (of._backward_fn, of._setup_context_fn))
    )


@contextmanager
def _opaque(graph: fx.Graph, env: Any, names: frozenset[str]) -> Iterator[None]:
    """What this thread traces has the registered backward of these operators as one operator; in the others no value is a symbol."""
    thread = threading.get_ident()
    with ExitStack() as stack:
        for name, definition in _defined_in(graph).items():
            set_up, formula = definition._setup_context_fn, definition._backward_fn

            def put(definition: Any = definition, set_up: Any = set_up, formula: Any = formula) -> None:
                definition._setup_context_fn, definition._backward_fn = set_up, formula

            stack.callback(put)
            one = name in names
            definition._setup_context_fn = _here(
                thread, _saving(name, set_up) if one else _without_values(set_up, env), set_up
            )
            definition._backward_fn = _here(thread, _called if one else _without_values(formula, env), formula)
        yield


def _without_values(function: Any, env: Any) -> Any:
    """A formula that is traced: numbers that it reads from tensors would be symbols that a backward graph cannot hold."""
    if function is None or env is None:
        return function

    def traced(*args: Any, **kwargs: Any) -> Any:
        with scalar_outputs(env, False):
            return function(*args, **kwargs)

    return traced


def _defined_in(graph: fx.Graph) -> dict[str, Any]:
    """The custom operators of the graph that have a registered backward, by name."""
    found = {}
    for node in graph.nodes:
        name = _name(node.target) if node.op == "call_function" else ""
        definition = _definition(name) if name else None
        if definition is not None:
            found[name] = definition
    return found


def _here(thread: int, traced: Any, plain: Any) -> Any:
    def function(*args: Any, **kwargs: Any) -> Any:
        of = traced if threading.get_ident() == thread else plain
        return None if of is None else of(*args, **kwargs)

    return function


def _name(target: Any) -> str:
    """`namespace::name` of an operator, and nothing of another function."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name
    return target.name().partition(".")[0] if isinstance(target, torch._ops.OpOverload) else _of_definition(target)


def _of_definition(target: Any) -> str:
    name = getattr(target, "_qualname", "")
    return name if isinstance(name, str) and _definition(name) is target else ""


def _definition(name: str) -> Any:
    """What `torch.library.custom_op` made, if it has a backward."""
    from torch._library.custom_ops import OPDEFS

    found = OPDEFS.get(name)
    return found if found is not None and found._backward_fn is not None else None


# ---- while it is traced


def _saving(name: str, set_up: Any) -> Any:
    """The set-up that saves what the formula's own keeps, and marks what that marks.

    Where the formula's own needs values, too, nobody knows what it marks: its error is that of the trace.
    """

    def saved(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        leaves, structure = pytree.tree_flatten((inputs, output, keyword_only_inputs))
        held = [*map(sys.getrefcount, leaves)]
        kept = _Context(ctx.needs_input_grad, ctx)
        _set_up(set_up, kept, inputs, output, keyword_only_inputs)
        read = kept.read_of(leaves)
        del kept
        if [*map(sys.getrefcount, leaves)] != held:  # it keeps some elsewhere
            read = None
        text, tensors, ctx.intarsia_sizes = _as_text(leaves, read)
        ctx.save_for_backward(*tensors)
        ctx.intarsia_what = name, text, structure, inputs
        ctx.intarsia_grads = [isinstance(leaf, Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves(inputs)]

    return saved


def _set_up(function: Any, ctx: Any, inputs: Any, output: Any, keywords: Any) -> None:
    if function is not None:
        named = {"inputs": inputs, "output": output} | ({"keyword_only_inputs": keywords} if keywords else {})
        function(ctx=ctx, **named)


def _as_text(leaves: Sequence[Any], read: set[int] | None) -> tuple[list[Any], list[Tensor], list[Any]]:
    """What stands for the leaves, and the tensors and sizes that it names by their places.

    Numbers and texts stand for themselves; types, devices and layouts by name; tensors that are not in `read` (None: all are) by how they
    look.
    """
    tensors, sizes = list[Tensor](), list[Any]()

    def size(number: Any) -> Any:
        if not isinstance(number, torch.SymInt):
            return int(number)
        sizes.append(number)
        return {"size": len(sizes) - 1}

    def text(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and read is not None and id(leaf) not in read and leaf.layout == torch.strided:
            shape, strides = [*map(size, leaf.shape)], [*map(size, leaf.stride())]
            return {"like": [shape, strides, text(leaf.dtype), text(leaf.device)]}
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
            return {"tensor": len(tensors) - 1}
        if isinstance(leaf, torch.SymInt):
            return size(leaf)
        if isinstance(leaf, torch.dtype | torch.layout | torch.memory_format):
            return {"torch": str(leaf).removeprefix("torch.")}
        if isinstance(leaf, torch.device):
            return {"device": str(leaf)}
        if type(leaf) in _PLAIN:
            return leaf
        raise NotImplementedError(
            f"a custom operator's argument of type {type(leaf).__name__} in a backward that reads values"
        )

    return [text(leaf) for leaf in leaves], tensors, sizes


def _called(ctx: Any, *grads: Any) -> Any:
    name, leaves, structure, inputs = ctx.intarsia_what
    arriving, of_grads = pytree.tree_flatten(grads, is_leaf=lambda g: g is None)
    present = [g for g in arriving if g is not None]
    needed = [k for k, wanted in enumerate(ctx.intarsia_grads) if wanted]
    what = {
        "name": name,
        "leaves": leaves,
        "structure": pytree.treespec_dumps(structure),
        "gradients": pytree.treespec_dumps(of_grads),
        "arrived": [g is not None for g in arriving],
    }
    operator = torch.ops.intarsia_custom.backward
    found = operator(list(ctx.saved_tensors), ctx.intarsia_sizes, needed, present, json.dumps(what))
    by_place = dict(zip(needed, found, strict=True))
    flat, of_inputs = pytree.tree_flatten(inputs)
    results = pytree.tree_unflatten([by_place.get(k) for k in range(len(flat))], of_inputs)
    return results if len(results) != 1 else results[0]


# ---- in the call


class _Context:
    """Stands for the `ctx` of a formula and its set-up; while it is traced, `traced` is told what they mark."""

    def __init__(self, needs_input_grad: tuple[Any, ...], traced: Any = None) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self._traced = traced

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def read_of(self, leaves: Sequence[Any]) -> set[int] | None:
        """The identities of the tensors among `leaves` that are kept here; None where something else is that may come of any."""
        there = {id(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        held = {name: value for name, value in vars(self).items() if name not in ("needs_input_grad", "_traced")}
        kept = pytree.tree_leaves(held)
        tensors = {id(leaf) for leaf in kept if isinstance(leaf, Tensor)}
        others = (leaf for leaf in kept if not isinstance(leaf, Tensor))
        return tensors if tensors <= there and all(type(leaf) in _KNOWN for leaf in others) else None

    def mark_non_differentiable(self, *tensors: Any) -> None:
        if self._traced is not None:
            self._traced.mark_non_differentiable(*tensors)

    def set_materialize_grads(self, value: bool) -> None:
        if self._traced is not None:
            self._traced.set_materialize_grads(value)


class _Plan:
    """What `backward` is told in its text."""

    def __init__(self, what: str) -> None:
        found = json.loads(what)
        self.name, self.arrived = found["name"], found["arrived"]
        self._leaves, self._structure = found["leaves"], pytree.treespec_loads(found["structure"])
        self._gradients = pytree.treespec_loads(found["gradients"])

    def call_of(self, tensors: list[Tensor], sizes: Any) -> tuple[Any, Any, Any]:
        """Arguments, results and keyword-only arguments of the forward operator."""
        leaves = [_read(leaf, tensors, sizes) for leaf in self._leaves]
        inputs, output, keywords = pytree.tree_unflatten(leaves, self._structure)
        return inputs, output, keywords

    def gradients(self, arrived: list[Tensor]) -> Any:
        """The gradients as the formula takes them, None for those that do not arrive."""
        given = iter(arrived)
        return pytree.tree_unflatten([next(given) if there else None for there in self.arrived], self._gradients)


_plan = cache(_Plan)  # one for each place of a program, for all its calls


def _run(tensors: list[Tensor], sizes: list[int], needed: list[int], arrived: list[Tensor], what: str) -> list[Tensor]:
    """Gradients of the inputs at the places `needed`: zeros where the formula gives None."""
    plan = _plan(what)
    definition = _definition(plan.name)
    inputs, output, keywords = plan.call_of(tensors, sizes)
    flat, of_inputs = pytree.tree_flatten(inputs)
    ctx = _Context(pytree.tree_unflatten([k in needed for k in range(len(flat))], of_inputs))
    _set_up(definition._setup_context_fn, ctx, inputs, output, keywords)
    found = definition._backward_fn(ctx, *plan.gradients(arrived))
    found = found if isinstance(found, tuple) else (found,)
    gradients = pytree.tree_leaves(found, is_leaf=lambda g: g is None)
    if len(gradients) != len(flat):
        raise RuntimeError(
            f"the backward of {plan.name} gives {len(gradients)} gradients for {len(flat)} arguments\n"
            "  what to do: return one for each argument, None where there is none"
        )
    return [_own(gradients[k], flat[k]) for k in needed]


def _own(gradient: Tensor | None, of: Tensor) -> Tensor:
    return torch.zeros_like(of) if gradient is None else torch.empty_like(of).copy_(gradient)


def _read(leaf: Any, tensors: list[Tensor], sizes: list[int]) -> Any:
    if not isinstance(leaf, dict):
        return leaf
    ((kind, value),) = leaf.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "size":
        return sizes[value]
    if kind == "like":
        shape, strides = ([_read(number, tensors, sizes) for number in numbers] for numbers in value[:2])
        dtype, device = (_read(part, tensors, sizes) for part in value[2:])
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return torch.device(value) if kind == "device" else getattr(torch, value)


def _like(tensors: list[Tensor], sizes: Any, needed: list[int], arrived: list[Tensor], what: str) -> list[Tensor]:
    flat = pytree.tree_leaves(_plan(what).call_of(tensors, sizes)[0])
    return [torch.empty_like(flat[k]) for k in needed]


def _register() -> None:
    library = torch.library.Library(NAMESPACE, "DEF")
    unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)  # it looks at values
    arguments = "Tensor[] tensors, SymInt[] sizes, int[] needed, Tensor[] arrived, str what"
    library.define(f"backward({arguments}) -> Tensor[]", tags=(unsafe,) if unsafe else ())
    library.impl("backward", _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::backward", _like, lib=library)

    def again(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("a second gradient through a custom operator's backward that reads values")

    torch.library.register_autograd(f"{NAMESPACE}::backward", again, lib=library)
    _LIBRARY.append(library)


_register()
