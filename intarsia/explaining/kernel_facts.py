"""What is known of a kernel without running it: its device, the blocks of its grid, the bytes that it has to move, and its arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy
from xdsl.ir import Block, SSAValue

from ..ir.dialects import loop
from ..ir.dtypes import BY_NAME, DType
from ..ir.symbols import Dim, FloorDiv, dim, known_equal, substitute, symbol
from ..ir.syntax import Op
from ..ir.text import parse_module
from ..ir.types import RefType, is_gpu
from ..targets.triton.emit import program_count


@dataclass(frozen=True)
class KernelFacts:
    """Facts of one kernel; what depends on sizes that change between calls is an expression in the sizes' symbols.

    Attributes:
        device: where its memory is: "cpu", "cuda:0".
        grid: how many blocks run, on a GPU; None on a CPU.
        warps: how many warps work on a block, on a GPU.
        read, written: bytes of memory that are read and written, each element counted once however often it is touched.
        operations: of its arithmetic, in about as many simple instructions as they take (`cost` of the scalar table).
        products: multiplications and additions of the products of matrices in it, which are not among these; `product_type`: in which type.
    """

    device: str
    grid: Dim | None
    warps: int | None
    read: Dim
    written: Dim
    operations: Dim = 0
    products: Dim = 0
    product_type: DType | None = None


def kernel_facts(ir: str) -> dict[str, KernelFacts]:
    """The facts of all kernels of a module at the `buffer` level, given as text."""
    if not ir:
        return {}
    return {op["sym_name"]: facts_of(op) for op in parse_module(ir).body.block.ops if isinstance(op, loop.Kernel)}


def facts_of(kernel: loop.Kernel) -> KernelFacts:
    """The facts of one kernel."""
    memories = [a for a in kernel.block_body.args if isinstance(a.type, RefType)]
    device = next((a.type.device for a in memories if isinstance(a.type, RefType)), "cpu")
    counter = _Counter(kernel)
    updated = "members" in kernel.attributes  # may read what they then write
    inputs = memories if updated else memories[: kernel["inputs"]]  # else what it reads there it has written itself
    read = dim(sum(counter.moved(a, counter.loads) for a in inputs))
    written = dim(sum(counter.moved(a, counter.stores) for a in memories))
    on_gpu = is_gpu(device)
    grid, warps = (program_count(kernel), kernel.get("warps")) if on_gpu else (None, None)
    operations: Dim = dim(counter.operations)
    if updated:
        read, written, operations = (_in_all(value, kernel) for value in (read, written, operations))
    kinds = counter.product_types
    product_type = BY_NAME[kinds[0]] if kinds else None
    return KernelFacts(device, grid, warps, read, written, operations, dim(counter.products), product_type)


def _in_all(value: Dim, kernel: loop.Kernel) -> Dim:
    """What all members of a kernel have together, of an expression in the size of one."""
    sizes = [size for size in kernel.members if size is not None]
    return dim(sum(substitute(value, {symbol(loop.MEMBER): size}) for size in sizes))


_JOINING = {"max_expsum": 24, "moments": 8, "argmax": 2, "argmin": 2}  # instructions; sums and the like take one


class _Counter:
    """Counts the points that accesses touch: as many as the loops make that the index depends on."""

    def __init__(self, kernel: loop.Kernel) -> None:
        self.trips: dict[str, Dim] = {}
        self.depends: dict[SSAValue, frozenset[str]] = {}
        self.bound: dict[str, frozenset[str]] = {}
        self.numbers: dict[str, Dim] = {}  # read from memory, and the largest that each can be
        self.loads: dict[SSAValue, list[Dim]] = {}
        self.stores: dict[SSAValue, list[Dim]] = {}
        self.operations: Dim = 0
        self.products: Dim = 0
        self.product_types: list[str] = []
        self._walk(kernel.block_body, frozenset())

    def _walk(self, block: Block, around: frozenset[str]) -> None:
        for op in block.ops:
            assert isinstance(op, Op)
            if isinstance(op, loop.For):
                name = op["var"].name
                bounds = [sympy.sympify(op[end]) for end in ("start", "stop") if op.get(end) is not None]
                outer = self._loops(*bounds)  # a chunk of an outer loop's range: the first one stands for all
                self.trips[name] = self._shared_out(op) or _trips(op, dict.fromkeys(outer, 0))
                self.bound[name] = outer | {name}
                self._walk(op.block_body, around | {name})
                continue
            self._note(op, around)
            for inner in op.regions:
                for each in inner.blocks:
                    self._walk(each, around)

    def _note(self, op: Op, around: frozenset[str]) -> None:
        times = math.prod(self.trips[name] for name in around)
        if isinstance(op, loop.Accumulate) and op["kind"] == "dot":
            self.products += 2 * times
            self.product_types.append(op["dtype"])
        elif isinstance(op, loop.Accumulate):
            self.operations += _JOINING.get(op["kind"], 1) * times
        elif isinstance(op, loop.ScalarOp):
            self.operations += op.row.cost * times
        over = frozenset[str]().union(*(self.depends.get(v, frozenset()) for v in op.operands))
        if isinstance(op, loop.Bind):
            self.bound[op["var"].name] = over
            self.numbers[op["var"].name] = dim(op["size"] - 1)
        elif isinstance(op, loop.Index):
            over = self._loops(op["value"])
        elif isinstance(op, loop.Load | loop.Store | loop.Accumulate):
            touched = self._loops(op["index"])
            points = dim(math.prod(self.trips[name] for name in touched))
            if isinstance(op, loop.Load):
                over = touched
                self.loads.setdefault(op.operands[0], []).append(points)
            for memory in () if isinstance(op, loop.Load) else _written(op):
                self.stores.setdefault(memory, []).append(points)
                if isinstance(op, loop.Accumulate):
                    self.loads.setdefault(memory, []).append(points)
            if isinstance(op, loop.Load) and isinstance(op.operands[0].owner, loop.Local):
                over = around  # whatever was put there
        for result in op.results:
            self.depends[result] = over

    def _loops(self, *indices: Dim) -> frozenset[str]:
        """The loops whose variables these expressions depend on."""
        symbols = {s.name for index in indices if isinstance(index, sympy.Expr) for s in index.free_symbols}
        return frozenset[str]().union(*(self.bound.get(name, frozenset()) for name in symbols))

    def _shared_out(self, op: loop.For) -> Dim | None:
        """The iterations of a loop whose number is read from memory: those that there can be, shared by the loops that the number depends on."""
        number = str(op["stop"])
        if number not in self.numbers or op.get("start", 0) != 0:
            return None
        every, sharing = self.numbers[number], dim(math.prod(self.trips[name] for name in self.bound[number]))
        if isinstance(every, int) and isinstance(sharing, int):
            return max(1, every // max(1, sharing))
        return dim(FloorDiv(sympy.sympify(every), sympy.sympify(sharing)))

    def moved(self, memory: SSAValue, accesses: dict[SSAValue, list[Dim]]) -> Dim:
        """The bytes of an argument that these accesses touch: never more than it has."""
        assert isinstance(memory.type, RefType)
        ref, found = memory.type, accesses.get(memory, [])
        if not found:
            return 0
        sizes = zip(ref.shape, ref.strides, strict=True)
        whole = dim(math.prod(size for size, stride in sizes if stride != 0))
        points = dim(sum(found))
        if isinstance(whole, int) and isinstance(points, int):
            return min(whole, points) * ref.dtype.bytes
        chunked = isinstance(points, sympy.Expr) and points.has(FloorDiv)  # chunks cover the whole, and some more
        fewer = whole if chunked or len(found) > 1 or any(known_equal(whole, each) for each in found) else points
        return dim(fewer * ref.dtype.bytes)


def _trips(op: loop.For, known: Mapping[str, int]) -> Dim:
    """How many iterations a loop has, with these values of the loops around it."""
    span = sympy.sympify(op["stop"]) - op.get("start", 0)
    span = span.subs({s: known[s.name] for s in span.free_symbols if s.name in known})
    step = op.get("step", 1)
    return dim(span if step == 1 else FloorDiv(span + step - 1, sympy.sympify(step)))


def _written(op: Op) -> Iterator[SSAValue]:
    """The memory operands of a store or accumulation."""
    operands: Sequence[SSAValue] = op.operands
    yield from (v for v in operands if isinstance(v.type, RefType))
