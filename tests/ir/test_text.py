"""Text: every operation prints and parses back to the same text, with its types, attributes, regions and location."""

from __future__ import annotations

from io import StringIO

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.printer import Printer

from intarsia.ir.dialects import buffer, kernel, loop, prim
from intarsia.ir.dtypes import BY_NAME, F32
from intarsia.ir.symbols import symbol
from intarsia.ir.syntax import Op, location, location_of
from intarsia.ir.text import parse_module, print_module
from intarsia.ir.types import IndexType, LiteralAttr, TensorType, ref_type, scalar_type, tensor_type

TENSORS = """builtin.module {
  prim.func @main() {arg_names = ["self.w", "x", "rows", "n"], arg_strides = [[1, s0], none, none, none], arg_static = [true, false, false, false], result_strides = [none, [1, s0]], symbols = [["s0", 0, 0, 2, none], ["s1", 3, -1, 0, 8]], results = [["value", 0], ["input", 1], ["alias", 0, [s0], [4], 0], ["alias_output", 1, [4], [1], s0], ["output", 0], ["size", 2*s0], ["constant", 1.5], ["none"]], mutations = [[1, 0]]} ({
  ^bb0(%0: !prim.tensor<[s0, 4], f32>, %1: !prim.tensor<[s0, 4], f32>, %2: !prim.tensor<[3], i64>, %3: !prim.size<i64>):
    %4 = aten.addmm.default(%0, %1, %1) {operands = ["self", "mat1", "mat2"], beta = 1, alpha = 1, strides = [[1, s0]], operand_strides = [[1, s0], none, none], effect = true} : !prim.tensor<[s0, 4], f32> loc("model.py":12:0)
    %5, %6 = aten.max.dim(%1) {operands = ["self"], dim = 1, keepdim = false} : !prim.tensor<[s0], f32>, !prim.tensor<[s0], i64>
    %7 = prim.cast(%1) : !prim.tensor<[s0, 4], bf16>
    %8 = prim.full() {value = nan} : !prim.tensor<[], f64>
    %9 = prim.iota() {dim = 0, start = 0, step = s0} : !prim.tensor<[s0], i64>
    %10 = prim.broadcast(%5) {dims = [1]} : !prim.tensor<[4, s0], f32>
    %11 = prim.reshape(%1) : !prim.tensor<[4*s0], f32>
    %12 = prim.permute(%1) {perm = [1, 0], strides = [[s0, 1]]} : !prim.tensor<[4, s0], f32>
    %13 = prim.slice(%1) {starts = [0, 1], steps = [1, 2]} : !prim.tensor<[s0, 2], f32>
    %14 = prim.flip(%1) {dims = [0, 1]} : !prim.tensor<[s0, 4], f32>
    %15 = prim.pad(%1) {low = [1, 0], high = [s0, -1], value = -inf} : !prim.tensor<[2*s0 + 1, 3], f32>
    %16 = prim.concat(%1, %1) {dim = 0} : !prim.tensor<[2*s0, 4], f32>
    %17 = prim.take(%1, %2) {dim = 1, wrap = true} : !prim.tensor<[s0, 3], f32>
    %18 = prim.gather(%5, %6) {dim = 0} : !prim.tensor<[s0], f32>
    %19 = prim.reduce<sum>(%1) {dims = [0, 1]} : !prim.tensor<[], f32>
    %20 = prim.scan<prod>(%1) {dim = 1} : !prim.tensor<[s0, 4], f32>
    %21 = kernel.extern<aten.mm.default>(%1, %12) {operands = ["self", "mat2"], operand_strides = [none, [1, 4]]} : !prim.tensor<[s0, s0], f32>
    %22, %23 = kernel.fused(%1) ({
    ^bb0(%24: !prim.tensor<[s0, 4], f32>):
      %25 = prim.neg(%24) : !prim.tensor<[s0, 4], f32> loc("a b.py":3:0)
      kernel.yield(%25, %24)
    }) : !prim.tensor<[s0, 4], f32>, !prim.tensor<[s0, 4], f32>
    %24 = loop.launch @k0(%1) : !prim.tensor<[s0], f32>
    %25 = prim.scatter<sum>(%5, %6, %5) {dim = 0, wrap = true} : !prim.tensor<[s0], f32>
    %26 = prim.contract(%1, %12) {maps = [[d0, 2*d2 - 1], [d2, d1]], reduced = [4], padded = true, tf32 = true} : !prim.tensor<[s0, s0], f32>
    %27 = prim.bag<sum>(%1, %6, %6, %6, %5) {padding = 1} : !prim.tensor<[s0, 4], f32>
    %28 = kernel.contract(%1, %5) {choice = "tile 64x32x128x4x5x1"} ({
    ^bb0(%29: !prim.tensor<[s0, 4], f32>, %30: !prim.tensor<[s0], f32>):
      %31 = prim.contract(%29, %30) {maps = [[d1, d0], [d1]], reduced = [s0]} : !prim.tensor<[4], f32>
      kernel.yield(%31)
    }) : !prim.tensor<[4], f32>
    %29 = prim.after(%1, %28) : !prim.tensor<[s0, 4], f32>
    prim.return(%22, %23)
  })
}
"""

LOOPS = """builtin.module {
  loop.kernel @k0() {inputs = 1, symbols = ["s0"], lines = ["model.py:3"]} ({
  ^bb0(%0: !buffer.ref<[s0, 4], [1, s0], bf16>, %1: !buffer.ref<[s0], [1], f32>, %2: !buffer.ref<[s0], [1], i64>):
    loop.for<parallel>() {var = i0, stop = s0, step = 8} ({
      loop.for<serial>() {var = i1, start = i0, stop = Min(s0, i0 + 8), vector = true, unroll = 4, grain = 16} ({
        %3 = loop.local() {value = -inf, size = 1} : !buffer.ref<[1], [1], f32>
        %4 = loop.local() {size = 1} : !buffer.ref<[1], [1], i64>
        loop.for<reduce>() {var = r0, stop = 4} ({
          %5 = loop.load(%0)[i1 + r0*s0] {mask = [r0 - 1, 3 - r0], other = 0.0} : !loop.scalar<f32>
          %6 = loop.index() {value = r0} : !loop.scalar<i64>
          loop.accumulate<argmax>(%5, %6, %3, %4)[0]
          loop.accumulate<sum>(%5, %3)[FloorDiv(r0, 4)]
          loop.atomic<sum>(%5, %1)[r0]
        })
        loop.exchange(%3, %1, %2) {count = 4}
        %7 = loop.load(%3)[0] : !loop.scalar<f32>
        %8 = scalar.constant() {value = 2.0} : !loop.scalar<f32>
        %9 = scalar.cast(%8) : !loop.scalar<f64>
        loop.store(%7, %1)[i1] {mask = [i1 - 1]}
        %10 = loop.load(%2)[i1] : !loop.scalar<i64>
        loop.prefetch(%0)[4*i0] {count = 4}
        loop.bind(%10) {var = t0, size = 4, wrap = true}
      })
    })
  })
}
"""

BUFFERS = """builtin.module {
  prim.func @main() {symbols = [["s0", 0, 0, 2, none]]} ({
  ^bb0(%0: !prim.tensor<[s0, 4], f32>):
    %1 = buffer.alloc() {pool = "arena", offset = 64*s0} : !buffer.ref<[s0, 4], [4, 1], f32>
    buffer.launch @k0(%0, %1)
    %2 = buffer.view(%1) {offset = 1} : !buffer.ref<[4, s0], [1, 4], f32>
    %3 = buffer.extern<aten.mm.default>(%2, %1) {operands = ["self", "mat2"]} : !buffer.ref<[4, 4], [4, 1], f32>
    buffer.contract(%3, %3, %3) {choice = "registers 14x32"} ({
    ^bb0(%4: !prim.tensor<[4, 4], f32>, %5: !prim.tensor<[4, 4], f32>):
      %6 = prim.contract(%4, %5) {maps = [[d0, d2], [d1, d2]], reduced = [4]} : !prim.tensor<[4, 4], f32>
      kernel.yield(%6)
    })
    buffer.copy(%1, %0)
    buffer.free(%3)
    prim.return(%3)
  })
}
"""


def _rows() -> str:
    """A module with one operation of each row of the scalar table, on tensors and on elements."""
    lines = ["builtin.module {", "  prim.func @main() ({"]
    tensors, scalars = [], []
    kinds = {"float": "f32", "int": "i32", "any": "f64", "i64": "i64"}
    for k, (name, cls) in enumerate(prim.ELEMENTWISE.items()):
        dtypes = [kinds[cls.row.domain]] * cls.row.arity
        if name == "where":
            dtypes[0] = "bool"
        result = cls.row.result_dtype([BY_NAME[d] for d in dtypes]).name
        names = ", ".join(f"%{d}" for d in dtypes)
        tensors.append(f"    %t{k} = prim.{name}({names}) : !prim.tensor<[2], {result}>")
        scalars.append(f"    %t{k} = scalar.{name}({names}) : !loop.scalar<{result}>")
    used = ("f32", "i32", "i64", "f64", "bool")
    lines.append("  ^bb0(" + ", ".join(f"%{d}: !prim.tensor<[2], {d}>" for d in used) + "):")
    lines += [*tensors, "    prim.return()", "  })", "  loop.kernel @k() {inputs = 0} ({"]
    lines.append("  ^bb0(" + ", ".join(f"%{d}: !loop.scalar<{d}>" for d in used) + "):")
    return "\n".join([*lines, *scalars, "  })", "}"])


@pytest.mark.parametrize("text", [TENSORS, LOOPS, BUFFERS], ids=["tensors", "loops", "buffers"])
def test_text_is_stable(text: str) -> None:
    module = parse_module(text)
    module.verify()
    assert print_module(module) == text
    assert print_module(module.clone()) == text


def test_every_scalar_row() -> None:
    module = parse_module(_rows())
    module.verify()
    text = print_module(module)
    assert print_module(parse_module(text)) == text


def test_every_operation_is_tried() -> None:
    seen = {op.name for text in (TENSORS, LOOPS, BUFFERS, _rows()) for op in parse_module(text).walk()}
    every = (*prim.OPS, *kernel.OPS, *loop.LOOP_OPS, *loop.SCALAR_DIALECT_OPS, *buffer.OPS)
    assert {op.name for op in every} - seen == set()


def test_clone_keeps_locations() -> None:
    op = next(op for op in parse_module(TENSORS).clone().walk() if op.name == "aten.addmm.default")
    assert location_of(op) == ("model.py", 12)


def test_attributes_are_python_values() -> None:
    op = prim.Full.make([], [tensor_type([2], F32)], {"value": [1, [2.0, None]]}, loc=location("m.py", 3))
    assert op["value"] == (1, (2.0, None)) and op.get("nothing", 7) == 7
    op["value"] = True
    assert op.literals == {"value": True} and location_of(op) == ("m.py", 3)


def test_a_type_as_text_is_what_the_printer_writes() -> None:
    shape = (4, 2 * symbol("s0") + 1)
    types = [tensor_type(shape, F32), tensor_type((), F32, "cuda:1"), ref_type(shape, None, F32)]
    for one in (*types, scalar_type(F32), IndexType.get_type(), LiteralAttr(("a", 1.0, None))):
        written = StringIO()
        Printer(written).print_attribute(one)
        assert str(one) == written.getvalue()


def test_types_compare_by_what_they_say() -> None:
    assert tensor_type([2, 3], F32) == tensor_type((2, 3), F32) != tensor_type([3, 2], F32)
    assert tensor_type([2], F32, "cuda:0") != tensor_type([2], F32)
    assert ref_type([2, 3], None, F32) == ref_type([2, 3], (3, 1), F32)
    assert isinstance(tensor_type([2], F32), TensorType) and LiteralAttr(1) == LiteralAttr(1)
    text = 'builtin.module {\n  prim.func @main() ({\n  ^bb0(%0: !prim.tensor<[2], f32, "cuda:0">):\n    prim.return(%0)\n  })\n}\n'
    assert print_module(parse_module(text)) == text


def test_large_modules_are_quick() -> None:
    """5,000 operations: the work must stay linear (generous limits, so that a busy machine passes)."""
    import time

    func = parse_module(
        'builtin.module {\n prim.func @main() {symbols = [["s0", 0, 0, 2, none]]} ({\n'
        " ^bb0(%0: !prim.tensor<[s0, 4], f32>):\n prim.return(%0)\n })\n}"
    )
    block = next(op for op in func.walk() if isinstance(op, Op)).block_body
    value = block.args[0]
    for _ in range(5000):
        op = prim.elementwise("add", value, block.args[0])
        block.insert_op_before(op, block.last_op)  # type: ignore[arg-type]
        value = op.results[0]
    assert isinstance(func, ModuleOp)
    spent = []
    for work in (func.verify, func.clone, lambda: print_module(func), lambda: parse_module(print_module(func))):
        start = time.process_time()
        work()
        spent.append(time.process_time() - start)
    assert all(s < limit for s, limit in zip(spent, (1.5, 1.5, 3, 15), strict=True)), spent
