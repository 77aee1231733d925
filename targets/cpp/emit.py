"""From loops to C++ text: a table of operations and one walk.

One `loop.kernel` becomes one function `extern "C" int name(const T* in..., T* out..., int64_t size...)` that returns 0, with 1 when
a `loop.bind` met an index outside its dimension, and with 2 when memory was lacking.
"""

from __future__ import annotations

from collections.abc import Iterable

import sympy
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from ...ir.dialects import loop
from ...ir.scalars import REDUCES, follow
from ...ir.symbols import free_symbols
from ...ir.syntax import Op
from ...ir.types import RefType
from ...passes.analysis.cost import STACK_BYTES
from ..host.kernels import Callee
from ..text.walk import argument_names, dtype_of, is_checked, memory_of, origin, parameter_names
from .forms import loop_for
from .members import write_members
from .moves import moved
from .text import constant_bits, cpp_cast, cpp_constant, cpp_index, index_text, scalar_text
from .writer import Writer

PRELUDE = '#include "intarsia_kernel.h"\n'


def emit_unit(kernels: Iterable[loop.Kernel]) -> str:
    """The text of one translation unit."""
    body = "".join("\n" + emit_kernel(kernel) for kernel in kernels)
    return PRELUDE + body


def kernels_of(module: ModuleOp) -> list[loop.Kernel]:
    """The kernels of a module, in order."""
    return [op for op in module.body.block.ops if isinstance(op, loop.Kernel)]


def parameters(kernel: loop.Kernel) -> list[str]:
    """The C++ parameters of a kernel, in the order in which they are passed."""
    written, found = _written(kernel.block_body), []
    for i, (name, argument) in enumerate(parameter_names(kernel).items()):
        constness = "const " if i < kernel.operand_count and argument not in written else ""
        found.append(f"{constness}{memory_of(argument).dtype.cpp}* {name}")
    return found + [f"int64_t {name}" for name in kernel.sizes]


def _written(block: Block) -> set[SSAValue]:
    found: set[SSAValue] = set()
    for op in block.walk():
        if isinstance(op, loop.Store | loop.Accumulate):
            found.update(v for v in op.operands if isinstance(v.type, RefType))
    return found


def emit_kernel(kernel: loop.Kernel) -> str:
    """The text of one function."""
    writer = Writer(stack=_on_stack(kernel), names=argument_names(kernel))
    writer.moved = moved(kernel.block_body)
    writer.checks, heap = is_checked(kernel.block_body), _uses_heap(kernel)
    if writer.checks:
        writer.line("int status = 0;")
    if heap:
        writer.line("const int before = im::shortages_so_far();")
    if "members" in kernel.attributes:
        write_members(writer, kernel)
    else:
        writer.operations(kernel.block_body.ops)
    codes = [*(["status"] if writer.checks else []), *(["im::lacked(before)"] if heap else [])]
    writer.line(f"return {' | '.join(codes) or '0'};")
    head = f'extern "C" int {kernel["sym_name"]}({", ".join(parameters(kernel))}) {{'
    return "\n".join([origin(kernel, "//") + head, *writer.text, "}", ""])


def callee(kernel: loop.Kernel) -> Callee:
    """A kernel as host programs call it."""
    return Callee(kernel["sym_name"], fails=is_checked(kernel.block_body) or _uses_heap(kernel))


def _uses_heap(kernel: loop.Kernel) -> bool:
    """Whether a kernel takes memory that may be lacking: scratch of unknown size, or beyond what may lie on the stack."""
    return len(_on_stack(kernel)) < len(_scratch(kernel))


def _scratch(kernel: loop.Kernel) -> list[loop.Local]:
    return [op for op in kernel.block_body.walk() if isinstance(op, loop.Local) and op["size"] != 1]


def _on_stack(kernel: loop.Kernel) -> set[Operation]:
    """The scratch that lies on the stack, small ones first: the compiler knows that nothing else points there."""
    sizes = [(_bytes(op), k, op) for k, op in enumerate(_scratch(kernel)) if isinstance(op["size"], int)]
    found: set[Operation] = set()
    left = STACK_BYTES
    for size, _, op in sorted(sizes):
        left -= size
        if left >= 0:
            found.add(op)
    return found


def _bytes(op: loop.Local) -> int:
    return int(op["size"] * memory_of(op.results[0]).dtype.bytes)


def _local(w: Writer, op: Op) -> None:
    ref, size, value = memory_of(op.results[0]), op["size"], op.get("value")
    # Reductions into bytes vectorise, into bools they do not.
    cpp = "uint8_t" if ref.dtype.kind == "bool" else ref.dtype.cpp
    start = None if value is None else cpp_constant(value, ref.dtype)
    name = w.fresh("acc" if size == 1 else "scratch")
    w.names[op.results[0]] = name
    if size == 1:
        w.line(f"{cpp} {name} = {start};" if start is not None else f"{cpp} {name};")
        return
    if op in w.stack:
        w.line(f"alignas(64) {cpp} {name}[{size}];")
    else:
        w.line(f"im::Scratch<{cpp}> {name}_memory({cpp_index(size)});")
        w.line(f"{cpp}* const {name} = {name}_memory.data;")
        w.line(f"if (!{name}) {'continue' if w.depth > 1 else 'return im::lacked_memory'};")
    if start is not None:
        w.line("#pragma omp simd")
        w.line(f"for (int64_t k = 0; k < {cpp_index(size)}; ++k) {name}[k] = {start};")


def _mask(op: Op) -> str:
    return " & ".join(f"({cpp_index(e)} >= 0)" for e in op["mask"])


def _load(w: Writer, op: Op) -> None:
    text, dtype = w.element(op.operands[0], op["index"]), dtype_of(op.results[0])
    if dtype.kind == "bool":
        text = f"im::truth({text})"
    if op.results[0] in w.moved:
        text = f"{text}.bits"
        if op.get("mask"):
            text = f"({_mask(op)}) ? {text} : {constant_bits(op.get('other', 0), w.moved[op.results[0]])}"
    elif op.get("mask"):
        text = f"({_mask(op)}) ? {dtype.cpp}({text}) : {cpp_constant(op.get('other', 0), dtype)}"
    w.value(op, text)


def _store(w: Writer, op: Op) -> None:
    dtype, source = memory_of(op.operands[1]).dtype, dtype_of(op.operands[0])
    text, target = w.names[op.operands[0]], w.streams.get(op) or w.element(op.operands[1], op["index"])
    if op.operands[0] in w.moved:
        target = f"{target}.bits"
    elif dtype != source:
        text = cpp_cast(text, source, dtype)
    guard = f"if ({_mask(op)}) " if op.get("mask") else ""
    known = dtype.kind == "bool" and not loop.is_register(op.operands[1])
    w.line(f"{guard}im::put({target}, {text});" if known else f"{guard}{target} = {text};")


def _accumulate(w: Writer, op: Op) -> None:
    kind = op["kind"]
    if kind in ("argmax", "argmin"):
        value, at = w.names[op.operands[0]], w.names[op.operands[1]]
        best, best_at = (w.element(m, op["index"]) for m in op.operands[2:])
        w.line(
            f"if (im::arg_{kind[3:]}_wins({value}, {at}, {best}, {best_at})) {{ {best} = {value}; {best_at} = {at}; }}"
        )
        return
    target, value = w.element(op.operands[1], op["index"]), w.names[op.operands[0]]
    combine = REDUCES[kind].combine
    assert combine is not None
    memory = op.operands[1]
    if isinstance(memory.owner, loop.Local) and memory_of(memory).dtype.kind == "bool":
        value = f"uint8_t({value})"
    w.line(f"{target} = {_SCALAR_TEXT[combine].format(target, value)};")


def _bind(w: Writer, op: Op) -> None:
    var, size = op["var"], cpp_index(op["size"])
    w.line(f"int64_t {var} = {w.names[op.operands[0]]};")
    if op.get("inside"):
        return
    if op.get("wrap"):
        w.line(f"{var} += {var} < 0 ? {size} : 0;")
    w.line(f"const bool {var}_outside = ({var} < 0) | ({var} >= {size});")
    guard = f" & {_mask(op)}" if op.get("mask") else ""
    w.line(f"status |= {var}_outside{guard};")
    w.line(f"{var} = {var}_outside ? 0 : {var};")


def _prefetch(w: Writer, op: Op) -> None:
    start = index_text(sympy.sympify(op["index"]), 1)
    w.line(f"im::prefetch({w.names[op.operands[0]]} + {start}, {cpp_index(op['count'])});")


def _index(w: Writer, op: Op) -> None:
    w.value(op, f"static_cast<{dtype_of(op.results[0]).cpp}>({cpp_index(op['value'])})")


def _constant(w: Writer, op: Op) -> None:
    w.names[op.results[0]] = cpp_constant(op["value"], dtype_of(op.results[0]))  # written where it is used


def _cast(w: Writer, op: Op) -> None:
    source, result = op.operands[0], op.results[0]
    if result in w.moved:
        w.names[result] = w.names[source]
        return
    w.value(op, cpp_cast(w.names[source], dtype_of(source), dtype_of(result)))


def _scalar(w: Writer, op: Op) -> None:
    assert isinstance(op, loop.ScalarOp)
    text = scalar_text(op.row, dtype_of(op.results[0]))
    if w.near and op.row.name in ("sin", "cos"):
        text = text.replace("(", "_small(", 1)
    names = [w.names[v] for v in op.operands]
    half = w.moved.get(op.results[0])
    if half is not None:
        text = "{0} ^ 0x8000" if op.row.name == "neg" else text
        constants = [v.owner["value"] if isinstance(v.owner, loop.Constant) else None for v in op.operands]
        names = [
            n if c is None or k == 0 else constant_bits(c, half)
            for k, (n, c) in enumerate(zip(names, constants, strict=True))
        ]
    w.value(op, text.format(*names))


_SCALAR_TEXT = {name: cls.row.cpp for name, cls in loop.SCALAR_OPS.items()}


Writer.table = {
    "loop.for": loop_for,
    "loop.local": _local,
    "loop.load": _load,
    "loop.store": _store,
    "loop.accumulate": _accumulate,
    "loop.bind": _bind,
    "loop.prefetch": _prefetch,
    "loop.index": _index,
    "scalar.constant": _constant,
    "scalar.cast": _cast,
    **{f"scalar.{name}": _scalar for name in loop.SCALAR_OPS},
}
follow(lambda row: Writer.table.update({f"scalar.{row.name}": _scalar}))  # type: ignore[attr-defined]


def uses(kernel: loop.Kernel) -> set[str]:
    """Names of the size symbols that a kernel's text mentions."""
    found: set[str] = set()
    for op in kernel.block_body.walk():
        assert isinstance(op, Op)
        for value in op.literals.values():
            items = value if isinstance(value, tuple) else (value,)
            found |= {s.name for s in free_symbols(i for i in items if isinstance(i, sympy.Expr))}
    return found
