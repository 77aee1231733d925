"""The reference interpreter for kernels of the `loop` level.

A loop nest is evaluated all at once: each loop variable becomes an axis of index tensors, a scalar becomes a tensor over
the axes of the loops around it, and only `scan` loops run one iteration after another. So a kernel takes as many torch
calls as it has operations. Lanes that a ragged loop or a mask switches off read nothing and write nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ..dialects import loop, prim
from ..dtypes import BY_NAME, dtype_of
from ..scalars import DOT, JOINT, REDUCES, SCALARS, follow, identity
from ..symbols import Dim, contiguous_strides, span, symbol
from ..syntax import line_of
from ..types import RefType
from .indices import Index, compiled, floor_div
from .tensors import InterpreterError, Machine, Rule, elementwise, filled, fits, number_of, restride

LANES = 1 << 21  # loops are cut into pieces so that no more lanes than this run at once


@dataclass
class Memory:
    """One-dimensional memory. `base` is where each lane's own part starts (scratch), `size` how much of it a lane may use."""

    flat: Tensor
    size: int
    base: Tensor | None = None


@dataclass(frozen=True)
class Lanes:
    """Where in the loop nest we are: the sizes of its axes, the variables' values, and which lanes take part.

    All tensors here and all results of `lift` have one dimension an axis.
    """

    shape: tuple[int, ...] = ()
    variables: dict[sympy.Symbol, Index] = field(default_factory=dict)
    active: Tensor | None = None

    def lift(self, value: Tensor) -> Tensor:
        """A tensor from further out, with a dimension of size 1 for each axis since."""
        return value.reshape((*value.shape, *(1,) * (len(self.shape) - value.dim())))

    def index(self, value: Dim) -> Index:
        """The value of an index expression."""
        if isinstance(value, int):
            return value
        code, names = compiled(value)
        missing = [n for n in names if n not in self.variables]
        if missing:
            raise InterpreterError(
                f"{', '.join(map(str, missing))} in {value} is neither a loop variable nor passed in"
            )
        return code(*[self.variables[n] for n in names])

    def tensor(self, value: Dim) -> Tensor:
        """The same as an int64 tensor."""
        found = self.index(value)
        return self.lift(torch.tensor(found) if isinstance(found, int) else found)

    def where(self, mask: Sequence[Dim]) -> Tensor | None:
        """The lanes that take part and for which all expressions of the mask are >= 0; None: all."""
        found = self.active
        for part in mask:
            inside = self.tensor(part) >= 0
            found = inside if found is None else found & inside
        return found


@dataclass
class Kernel:
    """A running kernel."""

    values: dict[SSAValue, Any]
    reverse: bool

    def block(self, lanes: Lanes, ops: Sequence[Operation]) -> None:
        variables = dict(lanes.variables)
        lanes = replace(lanes, variables=variables)
        for op in ops:
            if op.name not in LOOP_RULES:
                raise InterpreterError(f"{op.name} cannot stand in a loop.kernel")
            try:
                LOOP_RULES[op.name](self, lanes, op)
            except Exception as error:
                error.add_note(f"in {op.name}" + (f" from {line}" if (line := line_of(op)) else ""))
                raise

    def scalar(self, lanes: Lanes, value: SSAValue) -> Tensor:
        return lanes.lift(self.values[value])

    def memory(self, value: SSAValue) -> Memory:
        found = self.values[value]
        assert isinstance(found, Memory)
        return found


# ---- loops ------------------------------------------------------------------------------------------------------------


def _largest(value: Index) -> int:
    return value if isinstance(value, int) else int(value.max()) if value.numel() else 0


def _range(lanes: Lanes, op: Any) -> tuple[Index, Index, Index, int]:
    """start, stop, step, and the largest number of iterations that a lane makes."""
    start, stop, step = (lanes.index(v) for v in (op.get("start", 0), op["stop"], op.get("step", 1)))
    return start, stop, step, max(0, _largest(floor_div(stop - start + step - 1, step)))


def _for(kernel: Kernel, lanes: Lanes, op: Any) -> None:
    start, stop, step, count = _range(lanes, op)
    if count == 0 or 0 in lanes.shape:
        return
    variable, body = symbol(str(op["var"])), list(op.block_body.ops)
    if op["kind"] == "scan":
        for k in range(count):
            value = start + step * k
            inside = replace(lanes, variables={**lanes.variables, variable: value})
            if not isinstance(stop, int) or not isinstance(value, int):
                inside = replace(inside, active=_both(lanes.active, torch.as_tensor(value < stop)))
            kernel.block(inside, body)
        return
    piece = _piece(lanes, op, count, kernel.reverse)
    pieces = range(0, count, piece)
    for first in reversed(pieces) if kernel.reverse else pieces:
        kernel.block(_axis(lanes, variable, start, stop, step, first, min(piece, count - first)), body)


def _axis(
    lanes: Lanes, variable: sympy.Symbol, start: Index, stop: Index, step: Index, first: int, count: int
) -> Lanes:
    """One more axis: iterations `first` to `first + count`."""

    def deeper(value: Index) -> Index:
        return value if isinstance(value, int) else lanes.lift(value).unsqueeze(-1)

    variables = {name: deeper(value) for name, value in lanes.variables.items()}
    line = torch.arange(first, first + count).reshape((1,) * len(lanes.shape) + (-1,))
    variables[variable] = value = deeper(start) + deeper(step) * line
    active = None if lanes.active is None else lanes.lift(lanes.active).unsqueeze(-1)
    if not all(isinstance(v, int) for v in (start, stop, step)):
        active = _both(active, value < deeper(stop))
    return Lanes((*lanes.shape, count), variables, active)


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b


def _piece(lanes: Lanes, op: Any, count: int, reverse: bool) -> int:
    """How many iterations to run at once."""
    piece = max(1, LANES // max(1, _weight(lanes, op.block_body.ops)))
    for size in lanes.shape:
        piece = max(1, piece // size)
    return max(1, min(piece, (count + 1) // 2)) if reverse else min(piece, count)


def _weight(lanes: Lanes, ops: Any) -> int:
    """The largest number of lanes that the loops among `ops` make, guessed with loop variables at 0."""
    largest = 1
    for op in ops:
        if isinstance(op, loop.For):
            flat = Lanes((), {k: v if isinstance(v, int) else 0 for k, v in lanes.variables.items()})
            inner = replace(flat, variables={**flat.variables, symbol(str(op["var"])): 0})
            try:
                count = 1 if op["kind"] == "scan" else max(1, _range(flat, op)[3])
            except InterpreterError:  # a bound that an inner loop.bind defines
                count = 1
            largest = max(largest, count * _weight(inner, op.block_body.ops))
        elif isinstance(op, loop.Local) and isinstance(op["size"], int):
            largest = max(largest, op["size"])
    return largest


# ---- memory -----------------------------------------------------------------------------------------------------------


def poison(value: Tensor) -> None:
    """Fill memory with what no program means: nan, or a number far from others."""
    if value.is_floating_point() or value.is_complex():
        value.fill_(float("nan"))
    else:
        value.fill_(True if value.dtype == torch.bool else 0x5B)


def _local(kernel: Kernel, lanes: Lanes, op: Any) -> None:
    ref = op.results[0].type
    size, count = lanes.index(op["size"]), 1
    if not isinstance(size, int):
        raise InterpreterError(f"the size of loop.local depends on a loop variable: {op['size']}")
    for n in lanes.shape:
        count *= n
    if op.get("value") is None:
        flat = torch.empty(count * size, dtype=ref.dtype.torch)
        poison(flat)
    else:
        flat = filled((count * size,), number_of(op["value"], ref.dtype), ref.dtype)
    base = (torch.arange(count) * size).reshape(lanes.shape)
    kernel.values[op.results[0]] = Memory(flat, size, base)


def _address(kernel: Kernel, lanes: Lanes, op: Any, memory: Memory, ok: Tensor | None) -> Tensor:
    """Where each lane reads or writes; somewhere in the memory for lanes that do neither.

    Raises:
        InterpreterError: a lane that takes part lies outside the memory.
    """
    index = lanes.tensor(op["index"])
    outside = (index < 0) | (index >= memory.size)
    wrong = outside if ok is None else outside & ok
    if bool(wrong.any()):
        bad = torch.broadcast_to(index, wrong.shape)[wrong]
        raise InterpreterError(
            f"{op.name} at [{op['index']}]: element {int(bad[0])} of memory of {memory.size} elements"
        )
    if ok is not None:
        index = index.clamp(0, max(0, memory.size - 1))
    return index if memory.base is None else index + lanes.lift(memory.base)


def _load(kernel: Kernel, lanes: Lanes, op: Any) -> None:
    memory = kernel.memory(op.operands[0])
    mask = op.get("mask") or ()
    ok = lanes.where(mask)
    dtype = op.results[0].type.dtype
    if memory.flat.numel() == 0:
        _address(kernel, lanes, op, memory, ok)
        kernel.values[op.results[0]] = lanes.lift(filled((), number_of(op.get("other", 0), dtype), dtype))
        return
    place = _address(kernel, lanes, op, memory, ok)
    value = memory.flat[place].to(dtype.torch)
    if place.dim() == 0:  # else what is stored there later would change it
        value = value.clone()
    if mask:
        value = torch.where(ok, value, filled((), number_of(op.get("other", 0), dtype), dtype))  # type: ignore[arg-type]
    kernel.values[op.results[0]] = value


def _selected(lanes: Lanes, ok: Tensor | None, *values: Tensor) -> list[Tensor]:
    """The values of all lanes that take part, each as one flat tensor.

    Axes along which nothing differs keep one lane: all would do the same.
    """
    broadcast: Any = torch.broadcast_shapes
    shape = broadcast(*(v.shape for v in values), () if ok is None else ok.shape)
    spread = [v.expand(shape) for v in values]
    return [v.reshape(-1) if ok is None else v[ok.expand(shape)] for v in spread]


def _written(kernel: Kernel, lanes: Lanes, op: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The memory that operand 1 is, flat, the places in it that are written to, and operand 0 for each."""
    memory = kernel.memory(op.operands[1])
    ok = lanes.where(op.get("mask") or ())
    address = _address(kernel, lanes, op, memory, ok)
    value = kernel.scalar(lanes, op.operands[0]).to(memory.flat.dtype)
    place, value = _selected(lanes, ok, address, value)
    return memory.flat, place, value


def _store(kernel: Kernel, lanes: Lanes, op: Any) -> None:
    flat, place, stored = _written(kernel, lanes, op)
    flat[place] = stored
    if not torch.equal(flat[place].nan_to_num(), stored.nan_to_num()):
        raise InterpreterError(f"{op.name} at [{op['index']}]: two iterations write different values to one element")


def _atomic(kernel: Kernel, lanes: Lanes, op: Any) -> None:
    flat, place, joined = _written(kernel, lanes, op)
    flat.index_put_((place,), joined, accumulate=True)


def _accumulate(kernel: Kernel, lanes: Lanes, op: Any) -> None:
    kind = op["kind"]
    memory = kernel.memory(op.operands[-1])
    address = _address(kernel, lanes, op, memory, lanes.active)
    if kind in ("argmax", "argmin"):
        best = kernel.memory(op.operands[2])
        value, at = (kernel.scalar(lanes, v) for v in op.operands[:2])
        _meet_position(lanes, kind, address, value, at, best.flat, memory.flat)
    elif kind in JOINT:
        value = kernel.scalar(lanes, op.operands[0])
        _meet_joint(lanes, kind, address, value, [kernel.memory(m).flat for m in op.operands[1:]])
    elif kind == DOT:
        rounded = [kernel.scalar(lanes, v).to(BY_NAME[op["dtype"]].torch) for v in op.operands[:2]]
        a, b = (x.to(memory.flat.dtype) for x in rounded)
        _meet(lanes, "sum", address, a * b, memory.flat)
    else:
        _meet(lanes, kind, address, kernel.scalar(lanes, op.operands[0]), memory.flat)


def _all_lanes(lanes: Lanes, address: Tensor, *values: Tensor) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """Lanes grouped by address: addresses [groups], and each value as [groups, lanes of the group] with its mask.

    Axes along which the address is constant are the lanes of a group; two groups may still have one address.
    """
    constant = [k for k, n in enumerate(lanes.shape) if address.shape[k] == 1 and n != 1]
    varying = [k for k in range(len(lanes.shape)) if k not in constant]
    groups = address.reshape(-1) if not varying else address.permute((*varying, *constant)).reshape(-1)

    def grouped(value: Tensor) -> Tensor:
        return value.expand(lanes.shape).permute((*varying, *constant)).reshape(len(groups), -1)

    ok = None if lanes.active is None else grouped(lanes.active)
    return groups, [grouped(v) for v in values], ok


def _meet(lanes: Lanes, kind: str, address: Tensor, value: Tensor, flat: Tensor) -> None:
    """m[address] = combine(m[address], value) over all lanes."""
    row = REDUCES[kind]
    assert row.combine is not None
    groups, (values,), ok = _all_lanes(lanes, address, value)
    if ok is not None:
        values = torch.where(ok, values, filled((), identity(kind, dtype_of(value.dtype)), dtype_of(value.dtype)))
    joined = row.torch(values, (1,)).to(value.dtype)
    for chosen in _rounds(groups):
        place = groups[chosen]
        flat[place] = elementwise(SCALARS[row.combine], [flat[place], joined[chosen].to(flat.dtype)])


def _meet_joint(lanes: Lanes, kind: str, address: Tensor, value: Tensor, flats: list[Tensor]) -> None:
    """The same for what is computed together, element after element."""
    groups, (values,), ok = _all_lanes(lanes, address, value)
    for chosen in _rounds(groups):
        place = groups[chosen]
        for k in range(values.shape[1]):
            x = values[chosen, k]
            old = [flat[place] for flat in flats]
            if kind == "max_expsum":
                most = torch.maximum(old[0], x)
                shift = torch.where(most == float("-inf"), 0.0, most)
                new = [most, old[1] * (old[0] - shift).exp() + (x - shift).exp()]
            else:
                count, total = old[0] + 1, old[1] + x
                before = old[1] / old[0].clamp(min=1)
                apart = torch.where(old[0] > 0, x - before, x - x)
                new = [count, total, old[2] + apart * (x - total / count)]
            for flat, a, b in zip(flats, old, new, strict=True):
                flat[place] = b if ok is None else torch.where(ok[chosen, k], b, a)


def _meet_position(
    lanes: Lanes, kind: str, address: Tensor, value: Tensor, at: Tensor, best: Tensor, best_at: Tensor
) -> None:
    """The same for a value with its position: nan wins, then the extreme, then the lower position."""
    groups, (values, places), ok = _all_lanes(lanes, address, value, at)
    ok = torch.ones_like(values, dtype=torch.bool) if ok is None else ok
    nan = ok & (values != values)
    dtype = dtype_of(value.dtype)
    usable = torch.where(ok & ~nan, values, filled((), identity(kind, dtype), dtype))
    extreme = usable.amax(1, keepdim=True) if kind == "argmax" else usable.amin(1, keepdim=True)
    some_nan = nan.any(1, keepdim=True)
    winners = torch.where(some_nan, nan, ok & (values == extreme))
    position = torch.where(winners, places, torch.iinfo(places.dtype).max).amin(1)
    new_value = torch.where(
        some_nan[:, 0], values.gather(1, nan.to(torch.int8).argmax(1, keepdim=True))[:, 0], extreme[:, 0]
    )
    for chosen in _rounds(groups):
        place = groups[chosen]
        new, new_at, old, old_at = new_value[chosen], position[chosen], best[place], best_at[place]
        wins = winners[chosen].any(1) & _wins(kind, new, new_at, old, old_at)
        best[place] = torch.where(wins, new, old)
        best_at[place] = torch.where(wins, new_at, old_at)


def _wins(kind: str, new: Tensor, new_at: Tensor, old: Tensor, old_at: Tensor) -> Tensor:
    beyond = new > old if kind == "argmax" else new < old
    new_nan, old_nan = new != new, old != old
    equal = (new == old) | (new_nan & old_nan)
    return (new_nan & ~old_nan) | (beyond & ~old_nan) | (equal & (new_at < old_at))


def _rounds(groups: Tensor) -> list[Tensor]:
    """Positions of groups, in rounds in which no address occurs twice."""
    order = torch.argsort(groups, stable=True)
    ordered = groups[order]
    first = torch.ones(len(groups), dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    if bool(first.all()):
        return [torch.arange(len(groups))]
    starts = torch.nonzero(first).reshape(-1)
    rank = torch.arange(len(groups)) - torch.repeat_interleave(
        starts, torch.diff(starts, append=torch.tensor([len(groups)]))
    )
    return [order[rank == r] for r in range(int(rank.max()) + 1)]


# ---- scalars ----------------------------------------------------------------------------------------------------------


def _scalar_rule(cls: type[loop.ScalarOp]) -> Callable[[Kernel, Lanes, Any], None]:
    row = cls.row
    divides = row.name in ("floordiv", "mod", "fmod")

    def run(kernel: Kernel, lanes: Lanes, op: Any) -> None:
        values = [kernel.scalar(lanes, v) for v in op.operands]
        if divides and lanes.active is not None and not values[1].is_floating_point():
            values[1] = torch.where(lanes.active, values[1], 1)  # lanes that take no part divide nothing
        kernel.values[op.results[0]] = elementwise(row, values)

    return run


def _constant(kernel: Kernel, lanes: Lanes, op: Any) -> None:
    dtype = op.results[0].type.dtype
    kernel.values[op.results[0]] = filled((), number_of(op["value"], dtype), dtype)


def _cast(kernel: Kernel, lanes: Lanes, op: Any) -> None:
    kernel.values[op.results[0]] = kernel.values[op.operands[0]].to(op.results[0].type.dtype.torch)


def _index(kernel: Kernel, lanes: Lanes, op: Any) -> None:
    kernel.values[op.results[0]] = lanes.tensor(op["value"]).to(op.results[0].type.dtype.torch)


def _bind(kernel: Kernel, lanes: Lanes, op: Any) -> None:
    value, size = kernel.scalar(lanes, op.operands[0]).to(torch.int64), lanes.tensor(op["size"])
    if op.get("wrap"):
        value = torch.where(value < 0, value + size, value)
    outside = (value < 0) | (value >= size)
    ok = lanes.where(op.get("mask") or ())
    wrong = outside if ok is None else outside & ok
    if bool(wrong.any()):
        bad = torch.broadcast_to(value, wrong.shape)[wrong]
        raise IndexError(f"index {int(bad[0])} is out of range for a dimension of size {_largest(size)}")
    # `variables` belongs to this block alone, so the name ends with it
    lanes.variables[symbol(str(op["var"]))] = torch.where(outside, 0, value)


LOOP_RULES: dict[str, Callable[[Kernel, Lanes, Any], None]] = {
    "loop.for": _for,
    "loop.local": _local,
    "loop.load": _load,
    "loop.store": _store,
    "loop.accumulate": _accumulate,
    "loop.atomic": _atomic,
    "loop.index": _index,
    "loop.bind": _bind,
    "loop.prefetch": lambda kernel, lanes, op: None,
    "loop.exchange": lambda kernel, lanes, op: None,
    "scalar.constant": _constant,
    "scalar.cast": _cast,
    **{f"scalar.{name}": _scalar_rule(cls) for name, cls in loop.SCALAR_OPS.items()},
}
follow(lambda row: LOOP_RULES.update({f"scalar.{row.name}": _scalar_rule(loop.SCALAR_OPS[row.name])}))


# ---- launches ---------------------------------------------------------------------------------------------------------


def main_function(module: ModuleOp) -> prim.Func:
    """`prim.func @main` of the module.

    Raises:
        InterpreterError: there is none.
    """
    func = find_function(module, "main")
    if func is None:
        raise InterpreterError("the module has no prim.func @main")
    return func


def find_function(module: ModuleOp, name: str) -> prim.Func | None:
    """The `prim.func` of that name, if there is one."""
    functions = (op for op in module.body.block.ops if isinstance(op, prim.Func))
    return next((func for func in functions if func["sym_name"] == name), None)


def find_kernel(machine: Machine, name: str) -> loop.Kernel:
    """`loop.kernel @name` of the module.

    Raises:
        InterpreterError: there is none.
    """
    if not machine.kernels:
        machine.kernels.update(
            {op["sym_name"]: op for op in machine.module.body.block.ops if isinstance(op, loop.Kernel)}
        )
    if name not in machine.kernels:
        raise InterpreterError(f"the module has no loop.kernel @{name}")
    return machine.kernels[name]  # type: ignore[no-any-return]


def _flat(value: Tensor) -> Tensor:
    return value.as_strided((span(value.shape, value.stride()),), (1,), value.storage_offset())


def run_kernel(machine: Machine, kernel: loop.Kernel, tensors: Sequence[Tensor], reverse: bool) -> None:
    """Run on memory; a kernel sees addresses only, so the sizes need not be those of its arguments.

    Raises:
        InterpreterError: another dtype, or less memory, than the kernel was made for.
    """
    for number, size in enumerate(kernel.members):
        given = [tensors[k] for k in kernel.places(number)]
        with _of_size(machine, size):
            _run_once(machine, kernel, given, reverse)


def _run_once(machine: Machine, kernel: loop.Kernel, tensors: Sequence[Tensor], reverse: bool) -> None:
    names = [str(s) for s in kernel.get("symbols", ())]
    lanes = Lanes((), {symbol(n): machine.number(symbol(n)) for n in names})
    state = Kernel({}, reverse)
    for arg, tensor in zip(kernel.block_body.args, tensors, strict=True):
        ref = arg.type
        assert isinstance(ref, RefType)
        flat, needed = _flat(tensor), span(machine.shape(ref), machine.strides(ref))
        if flat.dtype != ref.dtype.torch or flat.numel() < needed:
            raise InterpreterError(f"@{kernel['sym_name']} takes {ref}, not {flat.numel()} elements of {flat.dtype}")
        state.values[arg] = Memory(flat[:needed], needed)
    state.block(lanes, list(kernel.block_body.ops))


@contextmanager
def _of_size(machine: Machine, size: int | None) -> Iterator[None]:
    """What runs inside of it is for the member of a kernel that has this size."""
    if size is not None:
        machine.symbols[symbol(loop.MEMBER)] = size
    yield
    machine.symbols.pop(symbol(loop.MEMBER), None)


def _launch(machine: Machine, op: Any) -> list[Tensor]:
    """`loop.launch`."""
    kernel = find_kernel(machine, op["kernel"])
    tensors, results = launch_memory(machine, kernel, op)
    run_kernel(machine, kernel, [*tensors, *results], machine.reverse)
    return results


def launch_memory(machine: Machine, kernel: loop.Kernel, op: Any) -> tuple[list[Tensor], list[Tensor]]:
    """What a launch reads, in the layout that the kernel was made for, and memory for its results.

    Members are walked over as they lie: dense, all that one of them reads and writes alike.
    """
    inputs, results = machine.operands(op), []
    if "members" in kernel.attributes:
        recorded = op.get("strides") or (None,) * len(op.results)
        for result, strides in zip(op.results, recorded, strict=True):
            shape, dtype = machine.shape(result.type), result.type.dtype.torch
            results.append(torch.empty_strided(shape, strides or contiguous_strides(shape), dtype=dtype))
            poison(results[-1])
        return inputs, results
    refs = [a.type for a in kernel.block_body.args]
    tensors = []
    for ref, given in zip(refs, inputs, strict=False):
        assert isinstance(ref, RefType)
        strides = machine.strides(ref)
        tensors.append(given if fits(given, strides) else restride(given, strides))
    for ref in refs[len(inputs) :]:
        assert isinstance(ref, RefType)
        results.append(torch.empty_strided(machine.shape(ref), machine.strides(ref), dtype=ref.dtype.torch))
        poison(results[-1])
    if "updates" in kernel.attributes:
        results[0].copy_(tensors[kernel["updates"]].reshape(results[0].shape))
    return tensors, results


KERNEL_RULES: dict[str, Rule] = {"loop.launch": _launch}
