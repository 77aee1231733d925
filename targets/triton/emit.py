"""From loops to Triton text: loops with `block = n` become tensors of n elements along one axis, one walk writes the rest.

One `loop.kernel` becomes one function `def name(in0, ..., out0, ..., size, ...)`; of several loop nests each has a part of the grid. Program ids stand for parallel loops, the last one
fastest. Every value has one axis for each loop that is a tensor, of length 1 where it does not depend on it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import sympy
import torch
from xdsl.ir import Operation, SSAValue

from ...ir.dialects import loop
from ...ir.dtypes import BOOL, F32
from ...ir.scalars import follow
from ...ir.symbols import Dim, FloorDiv, Mod, bounds, dim, span
from ...ir.syntax import Op
from ...ir.types import RefType
from ...passes.analysis.size_names import names_of
from ..text.walk import argument_names, dtype_of, memory_of, origin
from .descriptors import descriptors
from .dot import product_in
from .grid import emit_members, emit_parts, nests_of, program_count
from .loops import loop_for
from .reductions import accumulate, exchange, fills, sum_dtype
from .text import as_tensor, constant_text, converted, full, index_text, scalar_text, triton_type
from .writer import Writer, is_one_block

PRELUDE = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\nfrom intarsia.targets.triton.language import *  # noqa: F403\n"
INT32_MAX = 2**31 - 1


def emit_module(kernels: Iterable[loop.Kernel]) -> str:
    """The text of a module with these kernels."""
    return PRELUDE + "".join("\n\n" + emit_kernel(kernel) for kernel in kernels)


def emit_kernel(kernel: loop.Kernel) -> str:
    """The text of one function; of several, where the kernel's programs are shared out between loop nests."""
    arguments, ops = argument_names(kernel), list(kernel.block_body.ops)
    comment = origin(kernel, "#")
    if "members" in kernel.attributes:
        return comment + emit_members(kernel, arguments, needs_int64(kernel), _function)
    if len(nests_of(kernel)) > 1:
        return comment + emit_parts(kernel, arguments, needs_int64(kernel), _function)
    writer = Writer(wide=needs_int64(kernel), contract=kernel.get("contract", True))
    maps = descriptors(kernel)
    if maps:
        writer.described = {each.load: each for each in maps}
        others = [*kernel.get("symbols", ()), *(each.name for each in maps)]
        return comment + _function(writer, kernel["sym_name"], arguments, others, ops)
    name, symbols, aligned = kernel["sym_name"], tuple(kernel.get("symbols", ())), _aligned(kernel)
    if not aligned:
        return comment + _function(writer, name, arguments, symbols, ops)
    # Sizes that are multiples of 16 are written so that Triton sees it: loads are then as wide as for known sizes.
    memory = list(arguments.values())
    inner = [*memory, *(f"{s} // 16 * 16" if s in aligned else s for s in symbols)]
    lines = [f"if {' and '.join(f'{s} % 16 == 0' for s in aligned)}:", f"    {name}_body({', '.join(inner)})", "else:"]
    lines.append(f"    {name}_body({', '.join([*memory, *symbols])})")
    body = _function(writer, f"{name}_body", arguments, symbols, ops)
    head = f"@triton.jit\ndef {name}({', '.join([*memory, *symbols])}):"
    return f"{comment}{body}\n\n" + "\n".join([head, *(f"    {line}" for line in lines), ""])


def _aligned(kernel: loop.Kernel) -> list[str]:
    """Size symbols such that all places that neighbours in memory begin at are multiples of 16 if these are."""
    symbols = set(kernel.get("symbols", ()))
    found: dict[frozenset[str], None] = {}  # the symbols of terms that are not multiples of 16 themselves
    for op in kernel.block_body.walk():
        values = [op["index"]] if isinstance(op, loop.Load | loop.Store) else []
        if isinstance(op, loop.For) and op["kind"] != "parallel" and op.get("block", 1) > 1:
            values = [op.get("start", 0), op["stop"]]
        for value in [v for v in values if isinstance(v, sympy.Expr)]:
            divisors = [part.args[1] for part in value.atoms(FloorDiv, Mod)]
            for term in [t for v in (value, *divisors) for t in sympy.Add.make_args(sympy.expand(v))]:
                factor, rest = term.as_coeff_Mul()
                # A size within a division says nothing.
                factors = (f.as_base_exp()[0] for f in sympy.Mul.make_args(rest))
                names = frozenset(str(f) for f in factors if f.is_Symbol) & symbols
                if names and factor % 16 != 0:
                    found[names] = None
    chosen: list[str] = []
    while left := [names for names in found if not names & set(chosen)]:
        chosen.append(max(sorted(set().union(*left)), key=lambda s: sum(s in names for names in left)))
    return chosen


def _function(
    w: Writer, name: str, arguments: Mapping[SSAValue, str], others: Iterable[str], ops: Sequence[Operation]
) -> str:
    """The text of a function of these operations; `arguments` are memory."""
    w.names.update(arguments)
    w.axes = _axes(ops)
    w.shared = _shared(ops)
    w.sizes = names_of(size for a in arguments if isinstance(a.type, RefType) for size in a.type.shape)
    w.operations(ops)
    used = set(re.findall(r"\bsize\d+\b", "\n".join(w.text)))
    sizes = [f"    {n} = {index_text(size, {})}" for n, size in w.sizes.sizes.items() if n.name in used]
    head = f"@triton.jit\ndef {name}({', '.join([*arguments.values(), *others])}):"
    return "\n".join([head, *sizes, *(w.text or ["    pass"]), ""])


def needs_int64(kernel: loop.Kernel) -> bool:
    """Whether an element's number may not fit into 32 bits. Symbolic sizes are taken to fit; a launch checks that."""
    refs = [a.type for a in kernel.block_body.args if isinstance(a.type, RefType)]
    extents = [dim(span(ref.shape, ref.strides)) for ref in refs]
    grid = program_count(kernel)
    return any(isinstance(e, int) and e > INT32_MAX for e in (*extents, grid))


def _axes(ops: Iterable[Operation]) -> dict[loop.For, int]:
    """The axis of each loop that is a tensor: parallel loops first; those within a row share one."""
    found: dict[loop.For, int] = {}
    inner = []
    for op in (each for outer in ops for each in outer.walk()):
        if isinstance(op, loop.For) and op.get("block", 1) > 1:
            if op["kind"] == "parallel":
                found[op] = len(found)
            else:
                inner.append(op)
    last = len(found)
    return found | {op: last - 1 if product_in(op) is not None else last for op in inner}


def _local(w: Writer, op: Op) -> None:
    """A register, or what one block of a loop within the row stores: a tensor, too."""
    assert isinstance(op, loop.Local)
    if op["size"] != 1 and not all(isinstance(use.operation, loop.Load | loop.Store) for use in op.results[0].uses):
        raise TypeError(f"no Triton text for scratch of {op['size']} elements")
    w.locals[op.results[0]] = op


def _load(w: Writer, op: Op) -> None:
    memory = op.operands[0]
    if memory in w.locals:
        rows = frozenset(each.op["var"].name for each in w.open if each.op["kind"] == "parallel")
        w.names[op.results[0]] = w.names[memory]
        w.spans[op.results[0]] = w.spans.get(memory, rows) | w.index_spans(op["index"])
        return
    ref, dtype = memory_of(memory), dtype_of(op.results[0])
    spans = w.index_spans(op["index"], *op.get("mask", ()))
    masks = w.masks(spans) + w.conditions(op)
    address = _address(w, memory, op["index"])
    whole = spans | _rows_beside(w, spans)
    if whole != spans or masks and w.axes_of(spans) != w.axes_of(w.index_spans(op["index"])):
        address = f"tl.broadcast_to({address}, {w.shape_of(whole)})"  # a mask is not larger than the addresses

    def text(other: object) -> str:
        mask = f", mask={' & '.join(masks)}, other={constant_text(other, ref.dtype, exact=False)}" if masks else ""
        loaded = f"tl.load({address}{mask})"
        return converted(loaded, ref.dtype, dtype) if ref.dtype != dtype and op not in w.raw else loaded

    others = [op["other"]] if op.get("mask") else fills(op, ref.dtype)
    other = next((o for o in others if text(o) in w.known), others[0])  # what was read before is not read again
    w.fills[op.results[0]] = other
    w.value(op, text(other), whole)


def _rows_beside(w: Writer, spans: frozenset[str]) -> frozenset[str]:
    """The rows of a program, for a load that is the same for all of them (a weight): loaded once for each, it lies among the threads as they do.

    Loaded once, it would lie otherwise, and Triton would move it, or what it meets, through shared memory.
    """
    if len(w.open) != 2 or w.rank != 2 or w.open[0].op["kind"] != "parallel" or w.open[1].op["kind"] == "parallel":
        return frozenset()
    rows, line = (each.op for each in w.open)
    held = rows in w.axes and line in w.axes and is_one_block(line) and spans == {line["var"].name}
    return frozenset([rows["var"].name]) if held else frozenset()


def _address(w: Writer, memory: SSAValue, index: Dim) -> str:
    """Where an element lies. Places that are a number apart share what is computed, and the number becomes part of the instruction."""
    if index == 0:
        return w.names[memory]
    apart, rest = sympy.sympify(index).as_coeff_Add()
    if (memory, rest) not in w.shared:
        return f"{w.names[memory]} + {w.term(index)}"
    first = w.hold("p", f"{w.names[memory]} + {w.term(dim(rest))}")
    return f"{first} {'-' if apart < 0 else '+'} {abs(apart)}" if apart else first


MOST_SHARED = 3  # places


def _shared(ops: Iterable[Operation]) -> frozenset[tuple[SSAValue, sympy.Expr]]:
    """Memories, and places in them up to a number, that many loads or stores have."""
    found: Counter[tuple[SSAValue, sympy.Expr]] = Counter()
    for op in (each for outer in ops for each in outer.walk()):
        if isinstance(op, loop.Load | loop.Store):
            rest = sympy.sympify(op["index"]).as_coeff_Add()[1]
            if rest != 0:
                found[op.operands[op.memory], rest] += 1
    return frozenset(place for place, count in found.items() if count > MOST_SHARED)


def _store(w: Writer, op: Op) -> None:
    value, memory = op.operands
    dtype = memory_of(memory).dtype
    if memory in w.locals:
        _keep(w, value, memory, op["index"])
        return
    spans = w.index_spans(op["index"], *op.get("mask", ()))
    masks = w.masks(spans | w.spans.get(value, frozenset())) + w.conditions(op)
    address = _address(w, memory, op["index"])
    text = w.names[value]
    if dtype_of(value) != dtype:
        text = converted(as_tensor(value, text), dtype_of(value), dtype)
    if w.rank:  # addresses and values have the same shape
        text = w.spread(as_tensor(value, text), w.spans.get(value, frozenset()))
        address = w.spread(address, spans)
    w.line(f"tl.store({address}, {text}{', mask=' + ' & '.join(masks) if masks else ''})")


def _keep(w: Writer, value: SSAValue, memory: SSAValue, index: Dim) -> None:
    """Scratch of the elements of one block: other loops over as many read them by their own variables."""
    around = w.open[-1].op if w.open else None
    if around is None or index != around["var"] or around not in w.axes or not is_one_block(around):
        raise TypeError("no Triton text for scratch that is not stored by one block of a loop")
    w.names[memory] = as_tensor(value, w.names[value])
    w.spans[memory] = w.spans.get(value, frozenset()) - {around["var"].name}


def _atomic(w: Writer, op: Op) -> None:
    value, memory = op.operands
    spans = w.index_spans(op["index"]) | w.spans.get(value, frozenset())
    masks = w.masks(spans)
    address = _address(w, memory, op["index"])
    text = as_tensor(value, w.names[value])
    if w.rank:
        text, address = w.spread(text, w.spans.get(value, frozenset())), w.spread(address, w.index_spans(op["index"]))
    if op["kind"] != "sum":
        raise TypeError(f"no Triton text for atomics of kind {op['kind']}")
    w.line(f'tl.atomic_add({address}, {text}{", mask=" + " & ".join(masks) if masks else ""}, sem="relaxed")')


def _bind(w: Writer, op: Op) -> None:
    var, size = op["var"].name, w.index(op["size"])
    text = w.names[op.operands[0]]
    if op.get("wrap"):
        text = w.hold("t", f"tl.where({text} < 0, {text} + {size}, {text})")
    spans = w.spans.get(op.operands[0], frozenset())
    if op.get("inside"):
        narrow = not w.wide and dtype_of(op.operands[0]).bytes > 4
        w.bound[var] = (w.hold("t", f"{text}.to(tl.int32)") if narrow else text, spans)
        return
    inside = f"({text} >= 0) & ({text} < {size})"
    allowed = [f"({c} == 0)" for c in [*w.masks(spans), *w.conditions(op)]]
    w.line(f'tl.device_assert({" | ".join([f"({inside})", *allowed])}, "index out of range")')
    w.bound[var] = (w.hold("t", f"tl.where({inside}, {text}, 0)"), spans)


def _prefetch(w: Writer, op: Op) -> None:
    """Blocks are prefetched by the hardware's other programs."""


def _index(w: Writer, op: Op) -> None:
    if op.results[0].uses and all(_is_condition(use.operation) for use in op.results[0].uses):
        return
    spans = w.index_spans(op["value"])
    far = not w.wide and dtype_of(op.results[0]).bytes == 8 and not _fits(w, op["value"])
    text = w.far_index(op["value"]) if far else w.index(op["value"])
    if not spans:
        w.value(op, full("[]", text, dtype_of(op.results[0])), spans)
    else:
        w.value(op, f"({text}).to(tl.{triton_type(dtype_of(op.results[0]))})", spans)


def _fits(w: Writer, value: Dim) -> bool:
    """Whether a number that is no place in memory is known to fit into 32 bits."""
    low, high = bounds(value, {each.op["var"]: (0, dim(each.op["stop"] - 1)) for each in w.open})
    return isinstance(low, int) and isinstance(high, int) and low >= -INT32_MAX and high <= INT32_MAX


def _is_condition(op: Operation) -> bool:
    """Whether an operation asks that an index expression that varies is not negative."""
    if not isinstance(op, loop.ScalarOp) or op.row.name != "ge":
        return False
    index, zero = (v.owner for v in op.operands)
    varies = isinstance(index, loop.Index) and isinstance(index["value"], sympy.Expr)
    return varies and isinstance(zero, loop.Constant) and zero["value"] == 0


def _constant(w: Writer, op: Op) -> None:
    dtype = dtype_of(op.results[0])
    value = op["value"]
    if isinstance(value, sympy.Expr) and not value.is_number:
        text = full("[]", w.index(value), dtype)
    else:
        text = constant_text(value, dtype)
    w.names[op.results[0]] = text
    w.spans[op.results[0]] = frozenset()


def _cast(w: Writer, op: Op) -> None:
    source, target = dtype_of(op.operands[0]), dtype_of(op.results[0])
    for use in op.results[0].uses:
        target = sum_dtype(use.operation) if isinstance(use.operation, loop.Accumulate) else target
    text = as_tensor(op.operands[0], w.names[op.operands[0]])
    if source == target:
        expression = text
    elif target.kind == "bool":
        expression = f"{text} != 0"
    else:
        expression = converted(text, source, target)
    w.value(op, expression, w.operand_spans(op))


def _scalar(w: Writer, op: Op) -> None:
    assert isinstance(op, loop.ScalarOp)
    if _is_condition(op):
        value = op.operands[0].owner["value"]  # type: ignore[index]
        w.value(op, w.condition(value), w.index_spans(value))
        return
    if op.row.name in _WITH_ONE and op.results[0].uses and all(_one_plus(u.operation) for u in op.results[0].uses):
        return
    function = _one_plus(op)
    if function is not None:
        argument = function.operands[0]
        w.value(op, f"one_plus_{function.row.name}({w.names[argument]})", w.spans.get(argument, frozenset()))
        return
    names = [w.names[v] for v in op.operands]
    if op.row.name in _OF_TENSORS or all(isinstance(v.owner, loop.Constant) for v in op.operands):
        names = [as_tensor(v, n) for v, n in zip(op.operands, names, strict=True)]
    dtype = dtype_of(op.operands[-1])
    if op.row.name == "exp" and any(_is_kept(w, use.operation) for use in op.results[0].uses):
        w.value(op, f"exp_of_sum({names[0]})", w.operand_spans(op))
        return
    exact = op.row.name == "div" and dtype.name == "f32" and not (w.contract and not _is_rounded(op.results[0]))
    text = _exact_quotient(w, op, names) if exact else scalar_text(op.row.name, names, dtype)
    w.value(op, text, w.operand_spans(op))


SHARED_DIVISOR = 16  # elements for each of the divisor's from which on its reciprocal pays


def _exact_quotient(w: Writer, op: Op, names: Sequence[str]) -> str:
    """The quotient of float32 that eager gives on a GPU, where numbers are divided by through their reciprocals."""
    divisor = op.operands[1].owner
    if isinstance(divisor, loop.Constant) and isinstance(divisor["value"], int | float) and divisor["value"] != 0:
        inverse = torch.tensor(float(divisor["value"])).reciprocal().item()
        return scalar_text("mul", [names[0], constant_text(inverse, F32)], F32)
    counts = [math.prod(w.axes_of(w.spans.get(v, frozenset())).values()) for v in op.operands]
    function = "quotient" if counts[0] >= SHARED_DIVISOR * counts[1] else "tl.div_rn"
    return f"{function}({', '.join(names)})"


def _is_kept(w: Writer, op: Operation) -> bool:
    """Whether an operation stores to scratch of a row. Exponentials there are weights of a mean: subnormal ones may be 0, in half the instructions."""
    return isinstance(op, loop.Store) and op.operands[op.memory] in w.locals


_ROUNDS = ("round", "floor", "ceil", "trunc", "floordiv", "mod", "fmod")


def _is_rounded(value: SSAValue) -> bool:
    """Whether a number is made a whole one: its last place then decides, as where a tensor is quantized."""
    seen: set[SSAValue] = set()
    stack = [value]
    while stack:
        for use in stack.pop().uses:
            op = use.operation
            if isinstance(op, loop.ScalarOp) and op.row.name in _ROUNDS:
                return True
            if (
                isinstance(op, loop.ScalarCast)
                and dtype_of(op.results[0]).is_integer
                and dtype_of(op.results[0]) != BOOL
            ):
                return True
            if isinstance(op, loop.ScalarOp | loop.ScalarCast) and op.results[0] not in seen:
                seen.add(op.results[0])
                stack.append(op.results[0])
    return False


_WITH_ONE = ("erf", "tanh")  # the sum with 1, which the gelus need, costs a third of the function


def _one_plus(op: Operation) -> loop.ScalarOp | None:
    """The function of float32 of which an operation is the sum with 1."""
    if not isinstance(op, loop.ScalarOp) or op.row.name != "add" or dtype_of(op.operands[0]).name != "f32":
        return None
    for one, other in (op.operands, reversed(op.operands)):
        found = other.owner
        if isinstance(one.owner, loop.Constant) and one.owner["value"] == 1 and isinstance(found, loop.ScalarOp):
            return (
                found
                if found.row.name in _WITH_ONE and not isinstance(found.operands[0].owner, loop.Constant)
                else None
            )
    return None


# Their functions ask operands for their dtypes.
_OF_TENSORS = ("floordiv", "mod", "sigmoid", "sign", "sqrt", "pow", "shl", "shr", "tanh", "philox")


Writer.table = {
    "loop.for": loop_for,
    "loop.local": _local,
    "loop.load": _load,
    "loop.store": _store,
    "loop.accumulate": accumulate,
    "loop.exchange": exchange,
    "loop.atomic": _atomic,
    "loop.bind": _bind,
    "loop.prefetch": _prefetch,
    "loop.index": _index,
    "scalar.constant": _constant,
    "scalar.cast": _cast,
    **{f"scalar.{name}": _scalar for name in loop.SCALAR_OPS},
}
follow(lambda row: Writer.table.update({f"scalar.{row.name}": _scalar}))  # type: ignore[attr-defined]
