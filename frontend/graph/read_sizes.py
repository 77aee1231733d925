"""Sizes that only the running program knows: those of `nonzero`, of a boolean mask, of `unique`. They are symbols without a hint.

A graph that runs such an operator goes on. What Python decides by such a size breaks it, unless it follows from what is known of the symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import sympy
import torch
from torch import Tensor, fx

from ..breaks.eager_errors import Run
from ..errors import GraphBreak
from ..torch_private.fake import data_dependent_errors, needs_dynamic_sizes
from ..torch_private.functions import OpOverload
from ..torch_private.symbols import (
    hint_of,
    is_unknown,
    most_of,
    no_longer_pending,
    same_size,
    scalar_outputs,
    shows,
    truth_in,
    unknown_symbol,
)

__all__ = ["READS", "ReadSizes", "rely_on_narrow", "rely_on_sizes", "resizes"]

_MOST_TAKEN = 8  # conditions that one call may take for granted
READS = "reads"  # in a graph's `meta`: it has such sizes or numbers


class ReadSizes:
    """Those of one capture: which node's result shows which symbol.

    `allow` lets the fake mode make such sizes, and says whether the backend takes them.
    """

    def __init__(self, call: Run) -> None:
        self.call = call  # as the program's own line
        self.allow: Callable[[], bool] = bool
        self.node: Callable[[Tensor], fx.Node]
        self._numbers: dict[tuple[int, int], Any] = {}  # by the tensor, which the graph keeps, and its version
        self._shown: dict[sympy.Symbol, tuple[fx.Node, int | None, Any]] = {}
        # Those that are read where they are first asked for, of 0-dim tensors.
        self.late: dict[sympy.Symbol, tuple[Tensor, Any]] = {}
        self.truths: dict[sympy.Symbol, Tensor] = {}  # the truths among them, as tensors of bool
        self.asides = 0  # how many parts of the graph are being recorded, one in the other
        # By identity a part of a tensor that such a number bounds: itself, the tensor, the key, how the two lay.
        self._parts: dict[int, tuple[Tensor, Tensor, Any, Any]] = {}

    def run(self, function: Any, args: Any, kwargs: Any) -> Any:
        """`function(*args, **kwargs)`; a capture without symbols gets them with the first size that values decide."""
        named = self._shown and getattr(function, "__name__", "").startswith(("upsample", "_upsample"))
        given = (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)) if named else ()
        if any(_is_unknown(size) for tensor in given for size in tensor.shape):
            raise GraphBreak("a size that depends on a tensor's values is one of images, which eager looks at")
        try:
            return self._run(function, args, kwargs)
        except needs_dynamic_sizes():
            if not self.allow():
                raise
        return self._run(function, args, kwargs)

    def _run(self, function: Any, args: Any, kwargs: Any) -> Any:
        def versions() -> list[int]:
            given = (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and not v.is_inference())
            return [tensor._version for tensor in given]

        return with_sizes(partial(self.call, function, args, kwargs), self._env(), versions, self.is_size)

    def presumed(self, expr: Any) -> bool | None:
        """The truth of an expression of sizes that values decide, as a program mostly means it; None where it is not one truth."""
        return presumed(expr, self.is_size, self._env())

    def _env(self) -> Any:
        return next((size.node.shape_env for _, _, size in self._shown.values()), None)

    def note_part(self, tensor: Tensor, key: Any, part: Tensor) -> None:
        """`part` is `tensor[key]`."""
        if self.any() and any(map(_is_unknown, _entries(key))):
            self._parts[id(part)] = part, tensor, key, _layouts(tensor, part)

    def is_part(self, tensor: Tensor, key: Any, part: Tensor) -> bool:
        """Whether `part` is `tensor[key]`, known without a look at numbers: each look makes sizes of its own."""
        _, whole, before, layouts = self._parts.get(id(part), (None, None, None, None))
        if whole is not tensor or layouts != _layouts(tensor, part):
            return False
        pairs = zip(_entries(before), _entries(key), strict=False)
        return len(_entries(before)) == len(_entries(key)) and all(
            type(a) is type(b) and type(a) in _BASIC and (a is b or same_size(a, b)) for a, b in pairs
        )

    def kept(self) -> tuple[Any, ...]:
        """What is known by now; `put_back` forgets what came later: its nodes are those of another graph."""
        return dict(self._numbers), dict(self._shown)

    def put_back(self, kept: tuple[Any, ...]) -> None:
        self._numbers, self._shown = kept

    def bind_sizes(self, tensor: Tensor, node: fx.Node) -> None:
        """The node's result shows what its sizes are."""
        for dim, size in enumerate(tensor.shape):
            symbol = unknown_symbol(size)
            if symbol is not None:
                if symbol not in self._shown:
                    self._shown[symbol] = node, dim, size
                    shows(node, symbol, dim)
                no_longer_pending(size)

    def shown(self, symbol: sympy.Symbol) -> tuple[Tensor, str]:
        """The tensor that shows a symbol, and what of it, as Python text."""
        if symbol in self.late:
            return self.late[symbol][0], ".item()"
        node, dim, _ = self._show(symbol)
        if dim is None:
            return node.args[0].meta["example_value"], ".item()"  # type: ignore[union-attr]
        return node.meta["example_value"], f".shape[{dim}]"

    def value_of(self, out: Any, symbol: sympy.Symbol) -> Any:
        """A 0-dim tensor that holds a symbol of which only the running program knows the number; of a size the size."""
        if symbol in self.late:
            return self.late[symbol][0]
        if symbol in out.symbols:
            info, method, dim = out.symbols[symbol]
            return getattr(info.fake, method)(dim) if method else info.fake
        node, place, size = self._show(symbol)
        return node.args[0].meta["example_value"] if place is None else size  # type: ignore[union-attr]

    def is_size(self, symbol: sympy.Symbol) -> bool:
        """Whether a symbol is a size that values decide."""
        return symbol in self._shown and self._shown[symbol][1] is not None

    def least(self, size: Any) -> int:
        """The `minlength` of the `bincount` that a size is the length of; 0 where it is none."""
        symbol = unknown_symbol(size)
        node = self._shown[symbol][0] if symbol in self._shown else None
        if node is None or node.target not in (torch.bincount, "bincount"):
            return 0
        least = node.kwargs.get("minlength", node.args[2] if len(node.args) > 2 else 0)
        return least if type(least) is int else 0

    def any(self) -> bool:
        """Whether the graph has one."""
        return bool(self._shown or self.late)

    def unread(self, out: Any, outputs: Sequence[Tensor]) -> list[Tensor]:
        """What nothing reads though its operator may raise, as sizes decide: traces with gradients leave out what is no result."""
        taken = {id(t) for t in outputs}
        if not self._shown or not any(info.requires_grad for info in out.used):
            return []
        found = (n.meta.get("example_value") for n in out.graph.nodes if not n.users and _takes_unknown(n))
        return [t for t in found if isinstance(t, Tensor) and id(t) not in taken and out.is_known(t)]

    def known(self, tensor: Tensor, written: bool) -> Any:
        """The number that was read of a tensor which nobody has written to since; else None."""
        return None if written else self._numbers.get((id(tensor), tensor._version))

    def note(self, tensor: Tensor, value: Any) -> None:
        """A number that a tensor holds, as is known without a look."""
        self._numbers[id(tensor), tensor._version] = value

    def number(self, out: Any, of: Tensor, tensor: Tensor) -> Any:
        """The number in a tensor, a copy `of` another one that nobody else writes to."""
        with scalar_outputs(out.shape_env):
            value = tensor.item()
        symbol = unknown_symbol(value)
        if symbol is None:
            raise GraphBreak("a number that depends on a tensor's values")
        self._numbers[id(of), of._version] = value
        node = out.record_number("item", (out.node(tensor),), value)
        self._shown.setdefault(symbol, (node, None, value))
        shows(node, symbol, None)
        no_longer_pending(value)
        return value

    def no_float(self, value: Any) -> Any:
        """The value, which is no float that is made of such a number: operators take none."""
        if self.is_read_float(value):
            raise GraphBreak("a number that depends on a tensor's values becomes a float")
        return value

    def is_read_float(self, value: Any) -> bool:
        """Whether a value is a float that torch would make of such numbers."""
        if type(value) is not torch.SymFloat or not (self._shown or self.late):
            return False
        return any(s in self._shown or s in self.late for s in value.node.expr.free_symbols)

    @staticmethod
    def is_read(value: Any) -> bool:
        """Whether a symbolic number follows from what only the running program knows."""
        return any(map(is_unknown, value.node.expr.free_symbols))

    def _show(self, symbol: sympy.Symbol) -> tuple[fx.Node, int | None, Any]:
        if symbol not in self._shown:
            raise GraphBreak("a size that depends on a tensor's values")
        return self._shown[symbol]

    def node_of(self, symbol: sympy.Symbol, emit: Callable[..., fx.Node]) -> fx.Node:
        """A node for a symbol, which `emit` makes."""
        if symbol in self.late:
            tensor, value = self.late[symbol]
            return emit("call_method", "item", (self.node(tensor),), {}, value)
        node, dim, size = self._show(symbol)
        return node if dim is None else emit("call_method", "size", (node, dim), {}, size)


def presumed(expr: Any, is_size: Callable[[Any], bool], env: Any) -> bool | None:
    """The truth of an expression of sizes, for all but 0 and 1, or for 1 of those that are at most that; None where it is not one truth."""
    if not isinstance(expr, sympy.logic.boolalg.Boolean) or not expr.free_symbols:
        return None
    if not all(map(is_size, expr.free_symbols)):
        return None

    def meant(symbol: sympy.Symbol) -> sympy.Expr:
        one = env is not None and most_of(env, symbol) == 1
        return sympy.S.One if one else 2 + sympy.Dummy(integer=True, nonnegative=True)

    many = expr.xreplace({symbol: meant(symbol) for symbol in expr.free_symbols})
    return bool(many) if many in (sympy.true, sympy.false) else None


def with_sizes(
    call: Callable[[], Any], env: Any, state: Callable[[], Any], is_size: Callable[[Any], bool] = is_unknown
) -> Any:
    """`call()`, an operator; what it asks of sizes that values decide is taken for granted where `presumed` knows it.

    It is called again then, if `state()` says that the first time has changed nothing. Without an environment of symbols there are none.
    """
    if env is None:
        return call()
    before = state()
    for _ in range(_MOST_TAKEN):
        try:
            return call()
        except data_dependent_errors() as error:
            asked = getattr(error, "cond", None)
            known = presumed(asked, is_size, env)
            if known is None or state() != before:
                raise
            torch._check(truth_in(env, asked if known else sympy.Not(asked)))
    return call()


_BASIC = (int, torch.SymInt, type(None), type(...))


def _entries(key: Any) -> list[Any]:
    """What is in a key, slices by their parts."""
    entries = list(key) if type(key) is tuple else [key]
    return [part for e in entries for part in ((..., e.start, e.stop, e.step) if type(e) is slice else (e,))]


def _layouts(*tensors: Tensor) -> list[Any]:
    """How tensors lie in memory, by expressions."""
    numbers = [n for t in tensors for n in (*t.shape, *t.stride(), t.storage_offset())]
    return [n if type(n) is int else n.node.expr for n in numbers] + [t.untyped_storage()._cdata for t in tensors]


# What operators rely on: torch decides by rules of its own what it cannot know (such a size is not 1); what it does not ask for itself is asked for here.


def rely_on_sizes(func: Any, args: Any) -> None:
    """Note what an operator takes for granted of the sizes of its first argument."""
    if not args or not isinstance(args[0], Tensor):
        return
    if func in _SELECTS and _is_unknown(args[2]):
        torch._check(args[2] >= 0)
        torch._check(args[2] < args[0].shape[args[1]])
    if func is torch.ops.aten.repeat.default and torch.is_grad_enabled() and args[0].requires_grad:
        for repeats in filter(_is_unknown, args[1]):  # autograd's formula asks
            torch._check(repeats > 1)
    unknown = [n for n in args[0].shape if _is_unknown(n)]
    unlike = _unlike(func) if unknown and isinstance(func, OpOverload) else None
    if unlike is not None and len(args) > 1 and _has_dimensions(func):
        dims = [args[1]] if type(args[1]) is int else args[1] or range(args[0].dim())
        unknown = [n for n in (args[0].shape[d] for d in dims) if _is_unknown(n)]
    for size in unknown if unlike is not None else ():
        torch._check(size != unlike)


_SELECTS = (torch.ops.aten.select.int, torch.ops.aten.select_copy.int)


def rely_on_narrow(self: Any, dim: Any, start: Any, length: Any) -> None:
    """Note what `narrow` takes for granted of a start that only the running program knows: eager raises elsewhere, or counts from the end."""
    if not isinstance(self, Tensor) or type(dim) is not int or not (_is_unknown(start) or _is_unknown(length)):
        return
    size = self.shape[dim]
    for holds in (start >= 0, length >= 0, start <= size - length, start + length <= size):
        torch._check(holds)


def interpolate(given: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """torch's, of a tensor with such sizes: it becomes operators that take images of nothing before fake tensors see it."""
    for size in given.shape:
        if _is_unknown(size):
            torch._check(size != 0)
    return torch.nn.functional.interpolate(given, *args, **kwargs)


def resizes(tensor: Any) -> Any:
    """What `torch.nn.functional.interpolate` is for this tensor."""
    if not isinstance(tensor, Tensor) or not any(map(_is_unknown, tensor.shape)):
        return torch.nn.functional.interpolate
    if torch.is_grad_enabled() and tensor.requires_grad:  # the joint graph is of operators that take anything
        raise GraphBreak("images of a size that depends on a tensor's values are resized, with gradients")
    return interpolate


def _takes_unknown(node: fx.Node) -> bool:
    """Whether an operator is given a tensor of such a size."""
    given = (n.meta.get("example_value") for n in node.all_input_nodes)
    return any(_is_unknown(size) for t in given if isinstance(t, Tensor) for size in t.shape)


def _is_unknown(value: Any) -> bool:
    return isinstance(value, torch.SymInt) and hint_of(value) is None


@cache
def _unlike(func: OpOverload) -> int | None:
    """The size that an operator takes no unknown size for."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace != "aten":
        return None
    if name == "squeeze":
        return 1
    return 0 if name in _REDUCTIONS or name.removeprefix("_").startswith(_SPATIAL) else None


@cache
def _has_dimensions(func: OpOverload) -> bool:
    """Whether an operator's second argument is the dimensions that it looks at."""
    return func._schema.arguments[1].name == "dim"


# They raise where there is nothing to look at, or divide by how much there is.
_REDUCTIONS = frozenset(
    ["max", "min", "median", "nanmedian", "mode", "kthvalue", "amax", "amin", "aminmax", "argmax", "argmin"]
)
_SPATIAL = (
    *("adaptive_", "avg_pool", "max_pool", "fractional_", "upsample_", "reflection_pad", "replication_pad"),
    *("convolution", "grid_sampler", "im2col", "col2im", "pixel_", "var", "std", "native_batch", "native_group"),
    *("cudnn_", "batch_norm", "channel_shuffle", "histc", "multinomial", "random", "randint", "cdist", "pdist"),
)
