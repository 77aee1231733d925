"""The reference interpreter's rules for the tensor levels `aten`, `prim` and `kernel`, and the state that all rules share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from ..binding import ASSUMED
from ..dialects import aten, kernel, prim
from ..dtypes import DType
from ..literals import Literal
from ..packing import unpack
from ..regions import RUNS, bodies, groups
from ..scalars import REDUCES, ScalarRow, follow, identity
from ..symbols import Dim, contiguous_strides, symbol
from ..syntax import Op, line_of
from ..types import RefType, TensorType

Rule = Callable[["Machine", Any], list[Any]]  # the results of an operation


class InterpreterError(Exception):
    """The module does something that no stage may do: read outside memory or after a free, give another shape than its type."""


def _no_function(name: str) -> Callable[..., list[Tensor]]:
    raise InterpreterError(f"@{name} cannot be called here")


@dataclass
class Machine:
    """The state of one run: the values of SSA names and of size symbols, and the rule for each operation.

    With `reverse`, loops whose iterations are independent run in pieces, the last piece first.
    """

    module: ModuleOp
    rules: Mapping[str, Rule]
    reverse: bool = False
    kernels: dict[str, Any] = field(default_factory=dict)
    symbols: dict[sympy.Symbol, int] = field(default_factory=dict)
    values: dict[SSAValue, Any] = field(default_factory=dict)
    arena: Tensor | None = None  # bytes
    freed: set[SSAValue] = field(default_factory=set)
    owners: Tensor | None = None  # for each byte of the arena: the number of the allocation that took it last
    taken: dict[SSAValue, int] = field(default_factory=dict)  # of values in the arena: how many allocations there were
    allocations: int = 0
    function: Callable[[str], Callable[..., list[Tensor]]] = _no_function  # of the module, by its name

    def number(self, value: Dim) -> int:
        """The value of a dimension."""
        if isinstance(value, int):
            return value
        found = value.xreplace({s: sympy.Integer(v) for s, v in self.symbols.items()})
        if not found.is_Integer:
            raise InterpreterError(f"no argument gives a value to {', '.join(map(str, found.free_symbols))} in {value}")
        return int(found)

    def literal(self, value: Literal) -> Any:
        """A literal with its symbols replaced; lists stay tuples."""
        if isinstance(value, sympy.Expr):
            return self.number(value)
        return tuple(map(self.literal, value)) if isinstance(value, tuple) else value

    def shape(self, kind: TensorType | RefType) -> tuple[int, ...]:
        return tuple(map(self.number, kind.shape))

    def strides(self, ref: RefType) -> tuple[int, ...]:
        return tuple(map(self.number, ref.strides))

    def operands(self, op: Operation) -> list[Any]:
        return [self.read(v) for v in op.operands]

    def read(self, value: SSAValue) -> Any:
        if value in self.freed:
            raise InterpreterError(f"a value of type {value.type} is read after it was freed")
        return self.values[value]


def restride(value: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A copy of the tensor under other strides; along a stride of 0 all elements are the same."""
    result = torch.empty_strided(tuple(value.shape), strides, dtype=value.dtype)
    if 0 in value.shape:
        return result
    first = tuple(slice(0, 1) if step == 0 else slice(None) for step in strides)
    result[first].copy_(value[first])
    return result


def fits(value: Tensor, strides: Sequence[int]) -> bool:
    """Whether the elements lie as these strides say (those of dimensions of size 1 do not matter)."""
    if 0 in value.shape:
        return True
    return all(a == b or n == 1 for a, b, n in zip(value.stride(), strides, value.shape, strict=True))


def expect_type(machine: Machine, value: Any, kind: TensorType | RefType, what: str) -> None:
    """The result is what the type says."""
    shape = machine.shape(kind)
    if not isinstance(value, Tensor) or tuple(value.shape) != shape or value.dtype != kind.dtype.torch:
        found = f"{list(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else repr(value)
        raise InterpreterError(f"{what} has type {kind} (sizes {list(shape)}), found {found}")


def run_block(machine: Machine, ops: Sequence[Operation]) -> list[Any]:
    """Run operations in order; the values of the terminator's operands."""
    for op in ops:
        if isinstance(op, prim.Return | kernel.Yield):
            return machine.operands(op)
        rule = machine.rules.get(op.name) or (_aten if op.name.startswith("aten.") else None)
        if rule is None:
            raise InterpreterError(f"{op.name} cannot be run here")
        try:
            results = rule(machine, op)
        except Exception as error:
            error.add_note(f"in {op.name}" + (f" from {line}" if (line := line_of(op)) else ""))
            raise
        if isinstance(op, Op) and "binds" in op.attributes:
            results = bind_late(machine, op, results)
        for value, result in zip(op.results, results, strict=True):
            if isinstance(value.type, TensorType | RefType) and value.uses:
                expect_type(machine, result, value.type, f"the result of {op.name}")
            machine.values[value] = result
    return []


def bind_late(machine: Machine, op: Op, results: list[Any]) -> list[Any]:
    """Give the names that a call binds their numbers, and check what is assumed of them; the results that are tensors."""
    for name, which, dimension in op["binds"]:
        machine.symbols[symbol(name)] = int(results[which] if dimension == -1 else results[which].shape[dimension])
    for relation, *sides in op.get("assumes", ()):
        left, right = map(machine.number, sides)
        if not {"le": left <= right, "eq": left == right, "ne": left != right}[relation]:
            raise InterpreterError(f"{op.get('target', op.name)}: {left} {ASSUMED[relation]} {right} does not hold")
    return results if op.results else []


# ---- library calls ----------------------------------------------------------------------------------------------------


def call(machine: Machine, op: Op, target: str, values: list[Any]) -> list[Tensor]:
    """Call the registered operator; the tensors among its results, in order."""
    if op.get("packed"):
        values = [values[0], unpack(values[1], op["packed"]), *values[2:]]
    if op.get("empty_rows"):
        return [_attention_of_products(machine, op, values)]
    if called := bodies(op):
        return list(RUNS[target][0](*map(machine.function, called), *groups(op, values)))
    args, kwargs = aten.call_arguments(op, values, target)
    if "device" in kwargs:
        kwargs["device"] = "cpu"  # where all programs run here
    result = aten.overload(target)(*_numbers(machine, args), **{k: _numbers(machine, v) for k, v in kwargs.items()})
    flat = result if isinstance(result, list | tuple) else (result,)
    if op.get("returned"):  # the others are None, or what no one asked for
        flat = [flat[position] for position in op["returned"]]
    numbers = "binds" in op.attributes and not op.results
    tensors = [t for t in flat if isinstance(t, Tensor) or numbers]
    if op.regions:
        tensors = run_region(machine, op, [tensors[0], *(values[k] for k in kernel.read_by_region(op))])
    return tensors


def _attention_of_products(machine: Machine, op: Op, values: list[Any]) -> Tensor:
    """scaled_dot_product_attention as two products: nan where a row has no score above -inf, half types rounded once."""
    given = dict(zip(op["operands"], values, strict=True))
    q, k, v = (given[name] for name in ("query", "key", "value"))
    wide = q.dtype if q.dtype == torch.float64 else torch.float32
    if op.get("enable_gqa"):
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
    scores = torch.matmul(q.to(wide), k.to(wide).transpose(-1, -2)) * op["scale"]
    mask = given.get("attn_mask")
    if op.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    if op.regions:
        read = [
            scores.to(prim.tensor(op.block_body.args[0]).dtype.torch),
            *(values[k] for k in kernel.read_by_region(op)),
        ]
        (scores,) = (found.to(wide) for found in run_region(machine, op, read))
    return torch.matmul(torch.softmax(scores, -1), v.to(wide)).to(q.dtype)


def _numbers(machine: Machine, value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(machine, v) for v in value]
    return machine.number(value) if isinstance(value, sympy.Expr) else value


def _aten(machine: Machine, op: Any) -> list[Tensor]:
    return call(machine, op, op.name, machine.operands(op))


def _kernel_extern(machine: Machine, op: Any) -> list[Tensor]:
    """Operands are brought to the strides that eager gives the library: operators on views depend on them."""
    values = machine.operands(op)
    if op.get("own"):  # takes any view
        return call(machine, op, op["target"], values)
    wanted = op.get("operand_strides") or (None,) * len(values)
    return call(machine, op, op["target"], [_with_strides(machine, v, s) for v, s in zip(values, wanted, strict=True)])


def _with_strides(machine: Machine, value: Tensor, strides: Any) -> Tensor:
    wanted = contiguous_strides(tuple(value.shape)) if strides is None else machine.literal(strides)
    return value if fits(value, wanted) else restride(value, tuple(wanted))


# ---- prim -------------------------------------------------------------------------------------------------------------


def elementwise(row: ScalarRow, values: Sequence[Tensor]) -> Tensor:
    """One row of the scalar table on tensors of one shape."""
    dtype = values[-1].dtype
    if dtype not in _WIDENED or row.name == "where":
        found: Tensor = row.torch(*values)
        return found
    # torch has few operations on these: compute in int64, which agrees modulo 2**n, and wrap.
    wide: Tensor = row.torch(*[v.to(torch.int64) for v in values])
    return wide if row.result == "bool" else wide.to(dtype)


_WIDENED = (torch.uint16, torch.uint32, torch.uint64)


def number_of(value: Literal, dtype: DType) -> int | float | complex | bool:
    """A literal as a number that fits the dtype."""
    if dtype.kind == "bool":
        return bool(value)
    return value if dtype.kind in ("float", "complex") else int(value)


def filled(shape: tuple[int, ...], value: Any, dtype: DType) -> Tensor:
    """A tensor of one value; integers wrap."""
    if dtype.kind in ("int", "uint"):
        return torch.full(shape, _wrapped(value, 64, True), dtype=torch.int64).to(dtype.torch)
    return torch.full(shape, value, dtype=dtype.torch)


def _wrapped(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def _full(machine: Machine, op: Any) -> Tensor:
    kind = op.type
    return filled(machine.shape(kind), number_of(machine.literal(op["value"]), kind.dtype), kind.dtype)


def _iota(machine: Machine, op: Any) -> Tensor:
    kind, d = op.type, op["dim"]
    shape = machine.shape(kind)
    start, step = machine.literal(op["start"]), machine.literal(op["step"])
    exact = torch.int64 if kind.dtype.is_integer else torch.float64
    line: Tensor = (torch.arange(shape[d], dtype=exact) * step + start).to(kind.dtype.torch)
    return line.reshape([-1 if k == d else 1 for k in range(len(shape))]).expand(shape)


def _broadcast(machine: Machine, op: Any, x: Tensor) -> Tensor:
    shape = machine.shape(op.type)
    placed = [1] * len(shape)
    for k, d in enumerate(op["dims"]):
        placed[d] = x.shape[k]
    return x.reshape(placed).expand(shape)


def _slice(machine: Machine, op: Any, x: Tensor) -> Tensor:
    for d, count in enumerate(machine.shape(op.type)):
        start, step = machine.number(op["starts"][d]), machine.number(op["steps"][d])
        last = start + (count - 1) * step
        if count and not (start >= 0 and last < x.shape[d]):
            raise InterpreterError(f"prim.slice reads elements {start} to {last} of a dimension of size {x.shape[d]}")
        x = x.narrow(d, start, last - start + 1) if count else x.narrow(d, 0, 0)
        x = x[(slice(None),) * d + (slice(None, None, step),)]
    return x


def _pad(machine: Machine, op: Any, x: Tensor) -> Tensor:
    dtype = op.type.dtype
    result = filled(machine.shape(op.type), number_of(machine.literal(op["value"]), dtype), dtype)
    target = result
    for d, (low, high) in enumerate(zip(machine.literal(op["low"]), machine.literal(op["high"]), strict=True)):
        skip, place = max(0, -low), max(0, low)
        count = max(0, x.shape[d] - skip - max(0, -high))
        x, target = x.narrow(d, min(skip, x.shape[d]), count), target.narrow(d, min(place, target.shape[d]), count)
    target.copy_(x)
    return result


def _take(machine: Machine, op: Any, x: Tensor, index: Tensor) -> Tensor:
    d = op["dim"]
    rows = checked_index(index, x.shape[d], op.get("wrap", False))
    shape = (*x.shape[:d], *index.shape, *x.shape[d + 1 :])
    return x.index_select(d, rows.reshape(-1)).reshape(shape)


def checked_index(index: Tensor, size: int, wrap: bool) -> Tensor:
    """The index as int64, negative ones wrapped when `wrap`.

    Raises:
        IndexError: one lies outside 0 <= index < size.
    """
    rows = index.to(torch.int64)
    if wrap:
        rows = torch.where(rows < 0, rows + size, rows)
    if rows.numel() and not (int(rows.min()) >= 0 and int(rows.max()) < size):
        raise IndexError(f"index {int(rows.min())} or {int(rows.max())} is out of range for a dimension of size {size}")
    return rows


def _gather(machine: Machine, op: Any, x: Tensor, index: Tensor) -> Tensor:
    return torch.gather(x, op["dim"], checked_index(index, x.shape[op["dim"]], op.get("wrap", False)))


def _scatter(machine: Machine, op: Any, x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    rows = checked_index(index, x.shape[op["dim"]], op.get("wrap", False))
    combine = torch.scatter_add if op["kind"] == "sum" else torch.scatter
    return combine(x, op["dim"], rows, source)


def _reduce(machine: Machine, op: Any, x: Tensor) -> Tensor:
    joined: Tensor = REDUCES[op["kind"]].torch(x, op["dims"])
    return joined.to(op.type.dtype.torch)


def _bag(machine: Machine, op: Any) -> list[Tensor]:
    table, index, start, count, *scale = machine.operands(op)
    dtype = op.type.dtype
    rows = table.index_select(0, checked_index(index, table.shape[0], False)).to(dtype.torch)
    if scale:
        rows = rows * scale[0].to(dtype.torch).reshape(-1, *[1] * (rows.dim() - 1))
    kept = torch.ones_like(index, dtype=torch.bool) if op.get("padding") is None else index != op["padding"]
    result = filled(machine.shape(op.type), identity(op["kind"], dtype), dtype)
    for row, first, length in zip(result, start.tolist(), count.tolist(), strict=True):
        some = rows[first : first + length][kept[first : first + length]]
        if some.shape[0]:
            row.copy_(REDUCES[op["kind"]].torch(some, (0,)))
    return [result]


def _contract(machine: Machine, op: Any) -> list[Tensor]:
    sizes = (*machine.shape(op.type), *machine.literal(op["reduced"]))
    given: list[Any] = []
    for value, index in zip(machine.operands(op), op["maps"], strict=True):
        x, used = _spread(machine, value.to(op.type.dtype.torch), index, sizes, op.get("padded", False))
        given += [x, used]
    return [torch.einsum(*given, list(range(op.type.rank)))]


_ARITHMETIC = {"FloorDiv": lambda a, b: a // b, "Mod": lambda a, b: a % b}


def _spread(
    machine: Machine, x: Tensor, index: Sequence[Dim], sizes: Sequence[int], padded: bool
) -> tuple[Tensor, list[int]]:
    """An operand over the dimensions of the iteration that it depends on, and which these are."""
    names = prim.axes(len(sizes))
    if all(place in names for place in index) and len(set(index)) == len(index):
        return x, [names.index(place) for place in index]
    used = [k for k, name in enumerate(names) if any(name in getattr(e, "free_symbols", ()) for e in index)]
    shape = [sizes[k] for k in used]
    if 0 in x.shape or 0 in shape:
        return x.new_zeros(shape), used
    grid = torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij")
    known = {s: n for s, n in machine.symbols.items() if s not in names}
    places, inside = [], torch.ones(shape, dtype=torch.bool)
    for place, size in zip(index, x.shape, strict=True):
        expr = sympy.sympify(place).subs(known)
        at = sympy.lambdify([names[k] for k in used], expr, modules=[_ARITHMETIC])(*grid)
        at = torch.as_tensor(at).expand(shape)
        inside &= (at >= 0) & (at < size)
        places.append(at.clamp(0, size - 1))
    if not padded and not bool(inside.all()):
        raise IndexError(f"{index} lies outside of an operand of sizes {list(x.shape)}")
    return torch.where(inside, x[tuple(places)], 0), used


_SCANS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, d: x.cumsum(d, dtype=x.dtype),
    "prod": lambda x, d: x.cumprod(d, dtype=x.dtype),
    "max": lambda x, d: x.cummax(d)[0],
    "min": lambda x, d: x.cummin(d)[0],
}


def _scan(machine: Machine, op: Any, x: Tensor) -> Tensor:
    return _SCANS[op["kind"]](x, op["dim"])


def _fused(machine: Machine, op: Any) -> list[Tensor]:
    return run_region(machine, op, [machine.read(v) for v in op.operands])


def run_region(machine: Machine, op: Any, values: Sequence[Any]) -> list[Tensor]:
    """What the region of an operation yields for these arguments."""
    machine.values |= dict(zip(op.block_body.args, values, strict=True))
    return run_block(machine, list(op.block_body.ops))


def _concat(machine: Machine, op: Any, *values: Tensor) -> Tensor:
    shape = list(values[0].shape)
    shape[op["dim"]] = sum(v.shape[op["dim"]] for v in values)
    result = torch.empty(shape, dtype=values[0].dtype)
    start = 0
    for v in values:
        result.narrow(op["dim"], start, v.shape[op["dim"]]).copy_(v)
        start += v.shape[op["dim"]]
    return result


# Operations of one result, from the values of their operands.
def _of_row(machine: Any, op: Any, *values: Tensor) -> Tensor:
    return elementwise(op.row, values)


_OF_VALUES: dict[str, Callable[..., Tensor]] = {
    "cast": lambda m, op, x: x.to(op.type.dtype.torch),
    "full": _full,
    "iota": _iota,
    "broadcast": _broadcast,
    "reshape": lambda m, op, x: x.reshape(m.shape(op.type)),
    "permute": lambda m, op, x: x.permute(op["perm"]),
    "after": lambda m, op, x, *after: x,
    "slice": _slice,
    "flip": lambda m, op, x: x.flip(op["dims"]),
    "pad": _pad,
    "concat": _concat,
    "take": _take,
    "gather": _gather,
    "scatter": _scatter,
    "reduce": _reduce,
    "scan": _scan,
    **dict.fromkeys(prim.ELEMENTWISE, _of_row),
}


def _of_values(rule: Callable[..., Tensor]) -> Rule:
    return lambda machine, op: [rule(machine, op, *machine.operands(op))]


TENSOR_RULES: dict[str, Rule] = {
    **{f"prim.{name}": _of_values(rule) for name, rule in _OF_VALUES.items()},
    "prim.bag": _bag,
    "prim.contract": _contract,
    "kernel.fused": _fused,
    "kernel.contract": _fused,
    "kernel.extern": _kernel_extern,
}
follow(lambda row: TENSOR_RULES.update({f"prim.{row.name}": _of_values(_of_row)}))
