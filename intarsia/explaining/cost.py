"""What a program has to do, step by step, without running it: bytes, operations, and the time that a machine's limits leave it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from xdsl.dialects.builtin import ModuleOp

from ..ir.dialects import buffer, loop
from ..ir.interpreter.loops import main_function
from ..ir.symbols import Dim
from ..ir.syntax import Op, line_of
from ..ir.types import RefType
from ..passes.analysis.sizes import hint
from ..targets.cpp.call_kernels import call_kernel, has_kernel
from ..targets.host.kernels import is_step
from ..targets.measure.limits import Limits
from .call_facts import CallFacts, call_facts
from .kernel_facts import KernelFacts, facts_of


@dataclass(frozen=True)
class Work:
    """What one step of a program has to do, with sizes that are known.

    Attributes:
        op: the step, at the `buffer` level.
        name: of the kernel, or of the library's operator with the sizes of its operands.
        lines: the user's lines that it computes (`file:line`).
        bytes: of memory that it has to read and write, each element once.
        operations: two for each number that is multiplied in products of matrices, else about one for each simple instruction.
        products: those of them that products of matrices take, in `dtype`; 0 and None without such.
    """

    op: Op
    name: str
    lines: tuple[str, ...]
    bytes: int
    operations: int
    products: int = 0
    dtype: torch.dtype | None = None

    def least(self, copy: float, product: float) -> dict[str, float]:
        """Seconds at a machine's limits, bytes and operations a second (0: not known), by what bounds the step."""
        found = {"copy": self.bytes / copy} if copy else {}
        return found | ({"product": self.products / product} if self.products and product else {})


def works(module: ModuleOp, sizes: Mapping[str, int]) -> Iterator[Work]:
    """The steps of `@main`, in order. `sizes`: what its symbols are, as `hint` guesses where they are not named."""
    kernels = {op["sym_name"]: op for op in module.body.block.ops if isinstance(op, loop.Kernel)}
    facts: dict[str, KernelFacts] = {}

    def number(value: Dim) -> int:
        return hint(value, sizes)

    for op in main_function(module).block_body.ops:
        if not isinstance(op, Op) or not is_step(op):
            continue
        if isinstance(op, buffer.Launch):
            name, kernel = op["kernel"], kernels[op["kernel"]]
            known = facts.get(name) or facts.setdefault(name, facts_of(kernel))
            wanted = CallFacts(known.read, known.written, known.products, known.product_type)
            operations, lines = number(known.operations) + number(known.products), tuple(kernel.get("lines", ()))
        else:
            assert isinstance(op, buffer.Extern | buffer.Contract | buffer.Copy)
            wanted, lines = call_facts(op), ()
            name, operations = _call_name(op, sizes), number(wanted.products)
        lines = lines or tuple(filter(None, [line_of(op)]))
        dtype = None if wanted.dtype is None else wanted.dtype.torch
        moved = number(wanted.read) + number(wanted.written)
        yield Work(op, name, lines, moved, operations, number(wanted.products), dtype)


def _call_name(op: buffer.Extern | buffer.Contract | buffer.Copy, known: Mapping[str, int]) -> str:
    """`aten.mm 32x64 64x16`; of a kernel of our own its name."""
    if isinstance(op, buffer.Copy):
        target, operands = "copy into an argument", list(op.operands[:1])
    elif has_kernel(op):
        return call_kernel(op).name
    else:
        target, operands = str(op["target"]).removesuffix(".default"), list(op.operands)
    shapes = [v.type.shape for v in operands if isinstance(v.type, RefType)]
    sizes = ["x".join(str(hint(n, known)) for n in shape) for shape in shapes]
    shown = " ".join(size or "1" for size in sizes[:3])
    return f"{target} {shown}{' ...' if len(sizes) > 3 else ''}".rstrip()


@dataclass(frozen=True)
class Cost:
    """What a program costs by the plan; nothing of it is measured but the machine's limits.

    Attributes:
        bytes: of memory that its steps have to read and write.
        operations: of its arithmetic, as in `Work`.
        peak_memory: most bytes in use at once beyond the inputs.
        seconds: the least that its steps take at the machine's limits: no step is faster than its bytes and its products allow, and what
            starts a step takes no time. None where the limits are not known: code for a GPU that is not here.
        steps: the steps, with what each has to do.
        limits: bytes a second of large copies, and operations a second of large products by type, that `seconds` was reckoned with.
    """

    bytes: int
    operations: int
    peak_memory: int
    seconds: float | None
    steps: tuple[Work, ...]
    limits: Mapping[str, float]

    def __str__(self) -> str:
        least = "not known" if self.seconds is None else f"{self.seconds * 1e6:,.3g} us"
        return (
            f"{self.bytes:,} bytes moved, {self.operations:,} operations, {self.peak_memory:,} bytes in use at once; "
            f"at the machine's limits {least}"
        )


def cost_of(module: ModuleOp, sizes: Mapping[str, int], peak: int, limits: Limits | Mapping[str, float] | None) -> Cost:
    """The cost of a program. `limits`: those of the machine, or numbers: "copy", and "float32" and its like for products."""
    steps = tuple(works(module, sizes))
    known: dict[str, float] = {}
    if limits is not None:
        types = dict.fromkeys(step.dtype for step in steps if step.dtype is not None)
        names = {dtype: str(dtype).removeprefix("torch.") for dtype in types}
        if isinstance(limits, Limits):
            known = {"copy": limits.copies(), **{names[dtype]: limits.products(dtype) for dtype in types}}
        else:
            known = dict(limits)
    seconds = None
    if known.get("copy"):
        product = {step.dtype: known.get(str(step.dtype).removeprefix("torch."), 0.0) for step in steps}
        seconds = sum(max(step.least(known["copy"], product[step.dtype]).values()) for step in steps)
    whole, operations = sum(step.bytes for step in steps), sum(step.operations for step in steps)
    return Cost(whole, operations, peak, seconds, steps, known)
