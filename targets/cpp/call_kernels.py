"""Kernels that carry out library calls: the C++ of a `buffer.extern` with the attribute `own`.

The work is done by templates in the headers here; a kernel is the call of one with the sizes and strides of this operation.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import sympy
from xdsl.dialects.builtin import ModuleOp

from ...ir.dialects import buffer
from ...ir.symbols import Dim, dim, free_symbols
from ...ir.syntax import Op, comment_of, location_of
from ...ir.types import RefType
from ...passes.kernels.microkernel import tile_of
from ...passes.kernels.trained_attention import OWN as TRAINED
from ...passes.schedule.cpu.stream import is_streamed
from ..host.kernels import PackedOperand
from .attention import attention_body, trained_body
from .convolution import convolution_body, max_pool_body, planes_body, points_body
from .linear import PACKED, linear_body, matrices
from .text import cpp_constant, cpp_index


@dataclass(frozen=True)
class CallKernel:
    """One kernel: `extern "C" int name(pointers..., int64_t symbols...)`, which returns 2 where memory was lacking.

    Attributes:
        header: the header that its text needs.
        body: the statements.
        before: declarations that stand before it, once in a unit.
        checks: the body sets `status` to 1 where it met an index outside its dimension.
        packs: the operand whose packed copy is the last parameter.
    """

    name: str
    header: str
    body: str
    parameters: tuple[str, ...]
    symbols: tuple[str, ...]
    before: tuple[str, ...] = ()
    checks: bool = False
    packs: PackedOperand | None = None

    def text(self, lines: Iterable[str] = ()) -> str:
        """The function; `lines` are the user's."""
        places = ", ".join(dict.fromkeys(lines))
        comment = f"// from {comment_of(places)}\n" if places else ""
        start, end = (
            "  const int before = im::shortages_so_far();\n",
            f"  return {'status | ' * self.checks}im::lacked(before);\n",
        )
        return f'{comment}extern "C" int {self.name}({", ".join(self.parameters)}) {{\n{start}{self.body}{end}}}\n'


def call_kernel(op: Op) -> CallKernel:
    """The kernel of a contraction, or of a `buffer.extern` whose attribute `own` names it; operands behind those it names are results."""
    return _linear(op) if isinstance(op, buffer.Contract) else KERNELS[op["own"]](op)


def has_kernel(op: object) -> bool:
    """A contraction in registers, or a library call that a kernel carries out."""
    return isinstance(op, buffer.Contract) or (isinstance(op, buffer.Extern) and bool(op.get("own")))


def call_kernels(module: ModuleOp) -> dict[Op, CallKernel]:
    """The kernels of a module's library calls that have one."""
    return {op: call_kernel(op) for op in module.walk() if isinstance(op, Op) and has_kernel(op)}


def emit_call_unit(calls: Mapping[Op, CallKernel]) -> str:
    """The translation unit with the kernels of these calls, equal ones once."""
    kernels: dict[str, CallKernel] = {}
    lines: dict[str, list[str]] = {}
    for op, found in calls.items():
        kernels[found.name] = found
        place = location_of(op)
        lines.setdefault(found.name, []).extend([f"{place[0]}:{place[1]}"] if place else [])
    headers = sorted({k.header for k in kernels.values()})
    before = [text for text in dict.fromkeys(text for k in kernels.values() for text in k.before) if text]
    texts = [k.text(lines[name]) for name, k in kernels.items()]
    return "\n".join(["".join(f'#include "{h}"\n' for h in headers), *before, *texts])


def _kernel(word: str, header: str, body: str, op: Op, dims: Iterable[Dim]) -> CallKernel:
    given = len(op["operands"]) if isinstance(op, buffer.Extern) else len(op.operands) - 1
    symbols = tuple(sorted(s.name for s in free_symbols(tuple(d for d in dims if isinstance(d, sympy.Expr)))))
    pointers = [
        f"const {r.dtype.cpp}* in{i}" if i < given else f"{r.dtype.cpp}* out{i - given}"
        for i, r in enumerate(v.type for v in op.operands)
        if isinstance(r, RefType)
    ]
    parameters = (*pointers, *(f"int64_t {s}" for s in symbols))
    name = f"{word}_{hashlib.sha256(repr((body, parameters)).encode()).hexdigest()[:8]}"
    return CallKernel(name, header, body, parameters, symbols)


def _attention(op: Op) -> CallKernel:
    body, dims, before = attention_body(op)
    return replace(_kernel("attention", "intarsia_attention.h", body, op, dims), before=(before,))


def _trained(op: Op) -> CallKernel:
    body, dims = trained_body(op)
    return _kernel("attention", "intarsia_attention.h", body, op, dims)


def _convolution(op: Op) -> CallKernel:
    body, dims, before = convolution_body(op)
    header = "intarsia_winograd.h" if "im::winograd" in body else "intarsia_convolution.h"
    return replace(_kernel("convolution", header, body, op, dims), before=(before,))


def _max_pool(op: Op) -> CallKernel:
    body, dims = max_pool_body(op)
    return _kernel("max_pool", "intarsia_convolution.h", body, op, dims)


def _planes(op: Op) -> CallKernel:
    body, dims = planes_body(op)
    return _kernel("depthwise", "intarsia_planes.h", body, op, dims)


def _points(op: Op) -> CallKernel:
    body, dims = points_body(op)
    return _kernel("points", "intarsia_planes.h", body, op, dims)


def _rows(op: Op) -> CallKernel:
    x, weight = (v.type for v in op.operands[:2])
    assert isinstance(x, RefType) and isinstance(weight, RefType)
    outer, inner = weight.shape
    rows = math.prod(int(n) for n in x.shape[:-1])  # type: ignore[arg-type]  # static: `own-kernels` takes no others
    bias = "in2" if "bias" in op["operands"] else f"static_cast<const {x.dtype.cpp}*>(nullptr)"
    body = f"  im::rows_product<{rows}>(in0, in1, {bias}, out0, {cpp_index(inner)}, {cpp_index(outer)});\n"
    return _kernel("rows", "intarsia_rows.h", body, op, [inner, outer])


def _linear(op: buffer.Contract) -> CallKernel:
    body, before = linear_body(op)
    made = replace(_kernel("linear", "intarsia_linear.h", body, op, []), before=before)
    found, out = matrices(op), op.operands[-1].type
    if found.packed is None:
        return made
    assert isinstance(out, RefType)
    packs = PackedOperand(found.packed, found.transposed, tile_of(op)[1])
    return replace(made, parameters=(*made.parameters, f"const {out.dtype.cpp}* {PACKED}"), packs=packs)


def _index_add(op: Op) -> CallKernel:
    x, source = op.operands[0].type, op.operands[2].type
    assert isinstance(x, RefType) and isinstance(source, RefType)
    at = op["dim"]
    sizes = [dim(math.prod(x.shape[:at])), x.shape[at], source.shape[at], dim(math.prod(x.shape[at + 1 :]))]
    alpha = cpp_constant(op.get("alpha", 1), x.dtype.compute)
    streams = str(is_streamed(x)).lower()
    values = ", ".join(cpp_index(n) for n in sizes)
    body = f"  const int status = im::index_add<{streams}>(im::IndexAdd{{{values}}}, in0, in1, in2, {alpha}, out0);\n"
    return replace(_kernel("index_add", "intarsia_scatter.h", body, op, sizes), checks=True)


KERNELS: dict[str, Callable[[Op], CallKernel]] = {
    "rows": _rows,
    "index_add": _index_add,
    "attention": _attention,
    "convolution": _convolution,
    "max_pool": _max_pool,
    "planes": _planes,
    "points": _points,
    TRAINED: _trained,
}
