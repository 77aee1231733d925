"""Lists whose length values decide, as the rounds of a loop make them: rows of one tensor, and how many of them there are.

`Grown` stands for such a list. What it is asked for is given by operators on the rows (its length, an item at its end, `torch.stack`,
`torch.cat`, `torch.tensor` of numbers, a `for` over its tensors), and it grows by `append`, `extend` and `+=`. The graph breaks at
everything else, in front of which the entry makes the list of the rows: each item in memory of its own, as eager's.

A row is a plain tensor, or a number as a tensor without dimensions. All rows have one dtype, device, shape and strides, without gaps, and
all or none require gradients. What a row is a copy of must not be written to afterwards, and must not be given out beside the list: `stands`
is the memory that items are in eager, of which `Choices` knows what it shares.
"""

from __future__ import annotations

import builtins
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..branches.memory import may_be_one
from ..calls.registry import row_of
from ..errors import GraphBreak
from ..graph.aside import storage_of
from ..state import ASSERTED, Interpreter
from ..torch_private.dtensor import is_composite
from ..values.kinds import isinstance
from ..values.tensor import tensor_class
from .capture import WITHIN, result_like, same

__all__ = ["Grown", "Rows", "among", "answer", "rows_of"]

SLACK = 8  # rows for what is appended behind the loop
_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}


class Rows:
    """What a list holds.

    Attributes:
        first: its items in front of the loop.
        kind: Tensor, or what its numbers are.
        buffer: the rows; `count` are in use, `most` at the most.
        waiting: rows of the side of a branch that runs, which are written behind the branch.
        most_each: how many may be written in a round that runs; None: it is none of this list's.
        presumed: of how many rows a check is asked for in a round, as nothing bounds the rounds.
        sources: what was appended in a round, and how much had been written to before that.
    """

    def __init__(self, vm: Interpreter, first: Sequence[Any], row: Any) -> None:
        self.vm, self.first = vm, list(first)
        self.kind: Any = Tensor if isinstance(row, Tensor) else vm.type_of(row)
        self.device = row.device if isinstance(row, Tensor) else None
        self.like: Tensor | None = result_like(row) if isinstance(row, Tensor) else None
        self.tracked = isinstance(row, Tensor) and row.requires_grad
        self.buffer: Any = None
        self.stands = torch.empty(())
        self.count: Any = 0
        self.least = self.most = self.each = 0
        self.repeats = False  # whether two of its items may be one tensor
        self.presumed: int | None = None
        self.most_each: int | None = None
        self.waiting: list[Tensor] = []
        self.sources: list[tuple[int, Tensor]] = []

    def reserve(self, more: int, device: torch.device) -> None:
        """Memory for this many rows behind those that there may be, and a few."""
        out, needed = self.vm.out, self.most + more + SLACK
        if self.buffer is not None and self.buffer.shape[0] >= needed - SLACK:
            return
        more = max(more, 0 if self.buffer is None else self.buffer.shape[0])
        self.device = self.device or device
        shape = () if self.like is None else tuple(self.like.shape)
        dtype = _DTYPES[self.kind] if self.like is None else self.like.dtype
        new = self.buffer is None or self.most == 0
        with torch.no_grad() if not self.tracked or new else torch.enable_grad():
            options = {"dtype": dtype, "device": self.device}
            made = out.call_function(torch.zeros, ((needed if new else more + SLACK, *shape),), options)
            self.buffer = made if new else out.call_function(torch.cat, ([self.buffer, made],), {})

    def row(self, value: Any) -> Tensor:
        """A value as a row. Raises GraphBreak where it is unlike the others."""
        from ..branches.truths import as_tensor  # which imports rules of calls

        vm = self.vm
        if self.like is None:
            made = None
            if not isinstance(value, Tensor) and vm.type_of(value) is self.kind:
                made = as_tensor(vm, value, self.kind, self.device)  # type: ignore[arg-type]
            if made is None:
                raise GraphBreak(f"a {vm.type_of(value).__name__} is appended to a list of other items in a loop")
            return made
        if reason := unfit(vm, value) or (None if vm.out.is_known(value) else "a tensor that is not known"):
            raise GraphBreak(f"{reason} is appended to a list in a loop")
        for what, x, y in (
            ("dtype", self.like.dtype, value.dtype),
            ("shape", list(self.like.shape), list(value.shape)),
            ("strides", list(self.like.stride()), list(value.stride())),
            ("device", self.like.device, value.device),
            ("requires_grad", self.tracked, value.requires_grad),
        ):
            if not same(x, y):
                raise GraphBreak(f"tensors with the {what} {x} and {y} are appended to one list in a loop")
        if self.tracked and not torch.is_grad_enabled():
            raise GraphBreak("a tensor that requires gradients is appended to a list in a loop, without them")
        return value  # type: ignore[no-any-return]

    def append(self, value: Any) -> None:
        """A value more."""
        self.extend([value])

    def extend(self, values: Sequence[Any]) -> None:
        """Values more: all of them, or none where the graph breaks."""
        vm = self.vm
        if vm.side is None and vm.out.read.asides or vm.out.inside:
            raise GraphBreak("a function that an operator is given appends to a list whose length values decide")
        rows = [self.row(value) for value in values]
        if vm.side is not None and not vm.side.is_round:
            self.waiting += rows
            return
        if vm.side is None:
            self.behind(rows)
        self.put(rows, len(rows))
        self.least += len(rows) if vm.side is None else 0

    def behind(self, rows: Sequence[Tensor]) -> None:
        """Get ready for rows that no round appends."""
        choices = self.vm.branches.choices
        self.reserve(len(rows), self.device or torch.device("cpu"))
        for row in rows if self.kind is Tensor else ():
            self.repeats |= may_be_one(choices.memory_of(row), choices.memory_of(self.stands))
            choices.note(self.stands, row)

    def put(self, rows: Sequence[Tensor], number: Any) -> None:
        """Write rows behind those that are in use, of which so many count then."""
        from ..branches.truths import as_tensor, tensor_of_truth
        from ..values.operators import set_item_of

        vm = self.vm
        if vm.side is None:
            self.most += len(rows)
        elif self.most_each is None or self.each + len(rows) > self.most_each:
            raise vm.branches.lists.wanting(self)
        elif self.presumed is not None:
            full = tensor_of_truth(vm, self.count >= self.presumed)
            if isinstance(full, Tensor):
                vm.side.flags.append(full)
                vm.branches.lists.full.append(full)
        for k, row in enumerate(rows):
            at = self.count + k
            index = None if vm.side is None else as_tensor(vm, at, int, self.buffer.device)
            if index is None or type(at) is int or index.device != self.buffer.device:
                set_item_of(vm, self.buffer, at, row)
                continue
            index, row = vm.out.call_method("reshape", (index, (1,)), {}), vm.out.call_method("unsqueeze", (row, 0), {})
            vm.out.call_method("index_copy_", (self.buffer, 0, index, row), {})  # for a number, a GPU would wait
            next(iter(reversed(vm.out.graph.nodes))).meta[WITHIN] = True
        if vm.side is not None:
            self.each += len(rows)
            self.sources += [(len(vm.out.writes), row) for row in rows]
        self.count = self.count + number

    def zeros(self) -> Tensor:
        """A row that does not count."""
        shape, dtype = ((), _DTYPES[self.kind]) if self.like is None else (tuple(self.like.shape), self.like.dtype)
        made: Tensor = self.vm.out.call_function(torch.full, (shape, 0), {"dtype": dtype, "device": self.device})
        return made

    def check(self) -> None:
        """Raises GraphBreak where a round writes to what it has appended."""
        if any(storage_of(row) in self.vm.out.writes[at:] for at, row in self.sources):
            raise GraphBreak("a tensor is written to that a loop has appended to a list")

    # ---- what it is asked for ----

    @property
    def length(self) -> Any:
        """How many items there are."""
        return len(self.first) + self.count

    def some(self) -> None:
        """Check that it is not empty: eager raises an error of its own."""
        if not self.first and self.least == 0:
            self.vm.decision(self.count > 0, ASSERTED)

    def all(self, tensor: bool = True) -> Tensor:
        """A new tensor of all items, one a row."""
        vm = self.vm
        if tensor and self.kind is not Tensor:
            raise GraphBreak("an operator is given a list of numbers whose length values decide")
        if self.waiting:
            raise GraphBreak("a list is read on the side of a branch that has appended to it")
        if self.least:
            torch._check(self.count >= self.least)
        with torch.enable_grad() if self.tracked and torch.is_grad_enabled() else torch.no_grad():
            used = vm.out.call_function(torch.narrow, (self.buffer, 0, 0, self.count), {})
            if not self.first:
                return vm.out.call_method("clone", (used,), {})  # type: ignore[no-any-return]
            rows = [self.row(item) for item in self.first]
            before = vm.out.call_function(torch.stack, (rows,), {})
            return vm.out.call_function(torch.cat, ([before, used],), {})  # type: ignore[no-any-return]

    def last(self, back: int) -> Any:
        """The item at `-back`."""
        from ..branches.truths import number_in

        vm = self.vm
        if self.waiting or back > len(self.first) + self.least and not (back == 1 and not self.first):
            raise GraphBreak("an item is taken of a list whose length values decide, which may have none there")
        self.some()
        rows = self.all(tensor=False) if self.first else self.buffer
        at = self.length - back
        made = vm.out.call_method("clone", (vm.out.call_function(torch.select, (rows, 0, at), {}),), {})
        if self.kind is not Tensor:
            number = number_in(vm, made, self.kind)
            if number is None:
                raise GraphBreak("a number of a list whose length values decide is read where no number may be")
            return number
        self.note(made)
        return made

    def note(self, made: Tensor) -> None:
        """Note of a copy of items that it stands for them."""
        for item in (self.stands, *(item for item in self.first if isinstance(item, Tensor))):
            self.vm.branches.choices.note(made, item)


def unfit(vm: Interpreter, value: Any) -> str | None:
    """Why a value cannot be a row; None: it can."""
    if not isinstance(value, Tensor):
        return f"a {vm.type_of(value).__name__}"
    plain = value.layout is torch.strided and tensor_class(vm, value) is Tensor and not is_composite(value)
    if not plain or vm.overrides.concern((value,)):
        return "a tensor that is not plain"
    if torch.empty_like(value).stride() != value.stride() or value.is_conj() or value.is_neg():
        return "a tensor with gaps between its elements"
    if vm.inferred.on or vm.inferred.holds(value):
        return "a tensor made in inference mode"
    if value.requires_grad and value.is_leaf:
        return "a leaf that requires gradients"
    return None


def _breaks(name: str) -> Callable[..., Any]:
    def method(self: Any, *_: Any, **__: Any) -> Any:
        raise GraphBreak(f"a list whose length values decide is asked for `{name}`")

    method.__name__ = name
    return method


class Grown:
    """Stands for a list whose length values decide."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def append(self, value: Any, /) -> None:
        """`list.append`."""
        self._rows.append(value)

    def extend(self, values: Any, /) -> None:
        """`list.extend`, by the items of a list or tuple."""
        if type(values) not in (list, tuple):
            raise GraphBreak("a list whose length values decide is extended by something else than a list")
        self._rows.extend([*values])

    def __getitem__(self, key: Any) -> Any:
        if type(key) is int and key < 0:
            return self._rows.last(-key)
        if type(key) is int and key < len(self._rows.first):
            return self._rows.first[key]
        raise GraphBreak("an item is taken of a list whose length values decide, not from its end")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "constant":
            raise AttributeError(name)
        raise GraphBreak(f"a list whose length values decide is asked for `{name}`")

    __hash__ = None  # type: ignore[assignment]
    for _name in ("eq", "ne", "lt", "le", "gt", "ge", "bool", "len", "iter", "reversed", "contains", "add", "radd"):
        locals()[f"__{_name}__"] = _breaks(f"__{_name}__")
    for _name in ("iadd", "mul", "rmul", "imul", "setitem", "delitem", "repr", "str", "format", "reduce_ex", "sizeof"):
        locals()[f"__{_name}__"] = _breaks(f"__{_name}__")
    for _name in ("clear", "copy", "count", "index", "insert", "pop", "remove", "reverse", "sort"):
        locals()[_name] = _breaks(_name)
    del _name


def among(values: Sequence[Any]) -> bool:
    """Whether such a list is among these, or in a list or tuple of them."""
    for value in values:
        if type(value) is Grown or type(value) in (list, tuple) and any(type(item) is Grown for item in value):
            return True
    return False


def answer(vm: Interpreter, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What a call of C code gives that is given such a list; NotImplemented where it is none.

    Raises GraphBreak where that cannot be said by operators on rows.
    """
    rule = _RULES.get(function) if isinstance(function, types.BuiltinFunctionType | type) else None
    if rule is not None and args and type(args[0]) is Grown:
        return rule(vm, args[0], *args[1:], **kwargs)
    if isinstance(function, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType):
        raise GraphBreak(f"a list whose length values decide is given to {function.__name__}")
    torch_own = isinstance(function, types.FunctionType) and (function.__module__ or "").startswith("torch.")
    if torch_own or isinstance(function, types.FunctionType) and row_of(function) is not None:  # as copy.copy
        raise GraphBreak(f"a list whose length values decide is given to {function.__name__}")
    return NotImplemented


def _length(vm: Interpreter, value: Grown) -> Any:
    return value._rows.length + len(value._rows.waiting)


def _type(vm: Interpreter, value: Grown) -> type:
    return list


def _isinstance(vm: Interpreter, value: Grown, kinds: Any) -> bool:
    plain = type(kinds) is type or type(kinds) is tuple and all(type(kind) is type for kind in kinds)
    if not plain:
        raise GraphBreak("a list whose length values decide is given to isinstance")
    return builtins.isinstance([], kinds)


def _stack(vm: Interpreter, value: Grown, dim: Any = 0) -> Tensor:
    """`torch.stack`: the rows, along any dimension."""
    rows = value._rows
    _check_joined(rows, torch.stack, dim, 1)
    rows.some()
    made = rows.all()
    if dim % made.dim() == 0:
        return made
    made = vm.out.call_function(torch.movedim, (made, 0, dim), {})
    return _laid_out(vm, made)


def _cat(vm: Interpreter, value: Grown, dim: Any = 0) -> Tensor:
    """`torch.cat`: the rows, whose dimension of the same number goes with that of the rows."""
    rows = value._rows
    _check_joined(rows, torch.cat, dim, 0)
    rows.some()
    made = rows.all()
    dim = dim % (made.dim() - 1)
    if dim:
        made = vm.out.call_function(torch.movedim, (made, 0, dim), {})
    made = vm.out.call_function(torch.flatten, (made, dim, dim + 1), {})
    return _laid_out(vm, made) if dim else made


def _laid_out(vm: Interpreter, tensor: Tensor) -> Tensor:
    """A copy with the strides of a new tensor, in dimensions of one element, too."""
    return vm.out.call_method("clone", (tensor,), {"memory_format": torch.contiguous_format})  # type: ignore[no-any-return]


def _check_joined(rows: Rows, function: Any, dim: Any, more: int) -> None:
    """Raises GraphBreak where torch refuses to join rows, or lays the result out in another way than one behind the other."""
    if rows.like is None or type(dim) is not int:
        raise GraphBreak("a list whose length values decide is joined along something else than a dimension")
    count = rows.like.dim() + more
    if not -count <= dim < count:
        raise GraphBreak("a list whose length values decide is joined along a dimension that there is none of")
    with torch.no_grad():
        made = function([torch.empty_strided(rows.like.shape, rows.like.stride(), dtype=rows.like.dtype)] * 2, dim)
    if not made.is_contiguous():
        raise GraphBreak("a list whose length values decide is joined to a tensor with strides of its own")


def _tensor(vm: Interpreter, value: Grown, *, dtype: Any = None) -> Tensor:
    """`torch.tensor` of numbers."""
    rows = value._rows
    wanted = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}.get(rows.kind)
    if wanted is None or dtype not in (None, wanted) or vm.device is not None or vm.defaults.placed() is not None:
        raise GraphBreak("torch.tensor is given a list whose length values decide")
    rows.some()
    made = vm.out.call_method("cpu", (rows.all(tensor=False),), {})
    return vm.out.call_method("to", (made, wanted), {})  # type: ignore[no-any-return]


def _extended(vm: Interpreter, value: Grown, values: Any) -> Grown:
    value.extend(values)
    return value


_RULES: dict[Any, Any] = {
    operator.iadd: _extended,
    len: _length,
    type: _type,
    builtins.isinstance: _isinstance,
    torch.stack: _stack,
    torch.tensor: _tensor,
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), _cat),
}


def rows_of(first: list[Any], buffer: Tensor, count: int) -> list[Any]:
    """The list of tensors, each in memory of its own, behind those in front of the loop."""
    return [*first, *(row.clone() for row in buffer[:count].unbind())]


def numbers_of(first: list[Any], buffer: Tensor, count: int) -> list[Any]:
    """The list of numbers."""
    return [*first, *buffer[:count].tolist()]
