"""The reference interpreter, level by level, against torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from xdsl.utils.exceptions import VerifyException

from intarsia.ir.dtypes import BY_NAME
from intarsia.ir.interpreter.run import InterpreterError, run, run_user
from intarsia.ir.scalars import SCALARS
from intarsia.ir.text import parse_module


def function(args: str, body: str, returned: str, attributes: str = "", more: str = "") -> object:
    module = parse_module(
        f"builtin.module {{\n prim.func @main() {{symbols = []{attributes}}} ({{\n ^bb0({args}):\n{body}\n"
        f" prim.return({returned})\n }})\n{more}}}"
    )
    module.verify()
    return module


X = "%x: !prim.tensor<[3, 4], f32>"


def one(body: str, *inputs: Tensor, args: str = X) -> Tensor:
    (result,) = run(function(args, body, "%r"), list(inputs))
    return result


# ---- aten, prim, kernel -----------------------------------------------------------------------------------------------

MOVEMENTS = [
    ("prim.reshape(%x) : !prim.tensor<[2, 6], f32>", lambda x: x.reshape(2, 6)),
    ("prim.permute(%x) {perm = [1, 0]} : !prim.tensor<[4, 3], f32>", lambda x: x.T),
    ("prim.slice(%x) {starts = [1, 0], steps = [1, 3]} : !prim.tensor<[2, 2], f32>", lambda x: x[1:, ::3]),
    ("prim.slice(%x) {starts = [3, 0], steps = [1, 1]} : !prim.tensor<[0, 4], f32>", lambda x: x[3:]),
    ("prim.flip(%x) {dims = [1]} : !prim.tensor<[3, 4], f32>", lambda x: x.flip(1)),
    ("prim.broadcast(%x) {dims = [0, 2]} : !prim.tensor<[3, 2, 4], f32>", lambda x: x[:, None].expand(3, 2, 4)),
    (
        "prim.pad(%x) {low = [1, -1], high = [0, 2], value = 7.0} : !prim.tensor<[4, 5], f32>",
        lambda x: torch.nn.functional.pad(x, (-1, 2, 1, 0), value=7.0),
    ),
    (
        "prim.pad(%x) {low = [-3, 0], high = [2, 0], value = 1.0} : !prim.tensor<[2, 4], f32>",
        lambda x: torch.ones(2, 4),
    ),
    ("prim.concat(%x, %x) {dim = 1} : !prim.tensor<[3, 8], f32>", lambda x: torch.cat([x, x], 1)),
    ("prim.cast(%x) : !prim.tensor<[3, 4], i32>", lambda x: x.int()),
    ("prim.cast(%x) : !prim.tensor<[3, 4], bf16>", lambda x: x.bfloat16()),
    ("prim.reduce<sum>(%x) {dims = [0]} : !prim.tensor<[4], f32>", lambda x: x.sum(0)),
    ("prim.reduce<prod>(%x) {dims = [0, 1]} : !prim.tensor<[], f32>", lambda x: x.prod()),
    ("prim.reduce<max>(%x) {dims = []} : !prim.tensor<[3, 4], f32>", lambda x: x),
    ("prim.reduce<argmin>(%x) {dims = [1]} : !prim.tensor<[3], i64>", lambda x: x.argmin(1)),
    ("prim.scan<sum>(%x) {dim = 1} : !prim.tensor<[3, 4], f32>", lambda x: x.cumsum(1)),
    ("prim.scan<max>(%x) {dim = 0} : !prim.tensor<[3, 4], f32>", lambda x: x.cummax(0)[0]),
    (
        "prim.iota() {dim = 1, start = 2, step = -3} : !prim.tensor<[2, 3], i64>",
        lambda x: torch.tensor([[2, -1, -4]] * 2),
    ),
    ("prim.full() {value = 300} : !prim.tensor<[2], u8>", lambda x: torch.tensor([44, 44], dtype=torch.uint8)),
    ("prim.full() {value = -inf} : !prim.tensor<[], f16>", lambda x: torch.tensor(-torch.inf, dtype=torch.float16)),
    (
        'aten.softmax.int(%x) {operands = ["self"], dim = 1, dtype = torch.float32} : !prim.tensor<[3, 4], f32>',
        lambda x: x.softmax(-1),
    ),
]


@pytest.mark.parametrize(("text", "expected"), MOVEMENTS, ids=[t for t, _ in MOVEMENTS])
def test_tensor_operations(text: str, expected: object) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(one(f"%r = {text}", x), expected(x))  # type: ignore[operator]


@pytest.mark.parametrize("name", list(SCALARS))
def test_scalar_rows_on_tensors_and_elements(name: str) -> None:
    row = SCALARS[name]
    kind = {"int": "i32", "i64": "i64"}.get(row.domain, "f32")
    dtype = BY_NAME[kind].torch
    values = [(torch.rand(5) * 3 + 0.1).to(dtype) for _ in range(row.arity)]
    kinds = [kind] * row.arity
    if name == "where":
        values[0], kinds[0] = torch.tensor([True, False, True, True, False]), "bool"
    result = row.result if row.result in ("bool", "i32") else kind
    args = ", ".join(f"%a{k}: !prim.tensor<[5], {d}>" for k, d in enumerate(kinds))
    names = ", ".join(f"%a{k}" for k in range(row.arity))
    expected = row.torch(*values)
    found = one(f"%r = prim.{name}({names}) : !prim.tensor<[5], {result}>", *values, args=args)
    torch.testing.assert_close(found, expected, equal_nan=True)
    refs = ", ".join(f"%m{k}: !buffer.ref<[5], [1], {d}>" for k, d in enumerate([*kinds, result]))
    loads = "\n".join(f"%a{k} = loop.load(%m{k})[i0] : !loop.scalar<{d}>" for k, d in enumerate(kinds))
    kernel = f"""loop.kernel @k() {{inputs = {row.arity}, symbols = []}} ({{
    ^bb0({refs}):
      loop.for<parallel>() {{var = i0, stop = 5}} ({{
        {loads}
        %v = scalar.{name}({names}) : !loop.scalar<{result}>
        loop.store(%v, %m{row.arity})[i0]
      }})
    }})"""
    launched = function(args, f"%r = loop.launch @k({names}) : !prim.tensor<[5], {result}>", "%r", more=kernel)
    torch.testing.assert_close(run(launched, values)[0], expected, equal_nan=True)  # type: ignore[arg-type]


def test_take_and_gather_check_their_indices() -> None:
    args = f"{X}, %i: !prim.tensor<[2], i64>"
    take = "%r = prim.take(%x, %i) {dim = 1} : !prim.tensor<[3, 2], f32>"
    wrap = "%r = prim.take(%x, %i) {dim = 1, wrap = true} : !prim.tensor<[3, 2], f32>"
    x = torch.randn(3, 4)
    assert torch.equal(one(take, x, torch.tensor([3, 0]), args=args), x[:, [3, 0]])
    assert torch.equal(one(wrap, x, torch.tensor([-1, 0]), args=args), x[:, [3, 0]])
    for text, index in ((take, [-1, 0]), (take, [4, 0]), (wrap, [-5, 0])):
        with pytest.raises(IndexError, match="out of range for a dimension of size 4"):
            one(text, x, torch.tensor(index), args=args)


def test_first_index_and_nan_win() -> None:
    x = torch.tensor([[1.0, 5.0, 5.0, 2.0], [1.0, torch.nan, 9.0, torch.nan], [-torch.inf] * 4])
    found = one("%r = prim.reduce<argmax>(%x) {dims = [1]} : !prim.tensor<[3], i64>", x)
    assert found.tolist() == [1, 1, 0]
    assert one("%r = prim.reduce<max>(%x) {dims = [1]} : !prim.tensor<[3], f32>", x)[1].isnan()


def test_fused_region() -> None:
    body = """%r = kernel.fused(%x) ({
    ^bb0(%a: !prim.tensor<[3, 4], f32>):
      %m = prim.reduce<sum>(%a) {dims = [1]} : !prim.tensor<[3], f32>
      kernel.yield(%m)
    }) : !prim.tensor<[3], f32>"""
    x = torch.randn(3, 4)
    torch.testing.assert_close(one(body, x), x.sum(1))


def test_extern_gets_the_strides_of_eager() -> None:
    text = (
        '%r = kernel.extern<aten.view.default>(%x) {operands = ["self"], size = [12], operand_strides = [none]} : '
        "!prim.tensor<[12], f32>"
    )
    x = torch.randn(4, 3).T
    assert torch.equal(one(text, x), x.reshape(12))


def test_symbols_results_and_mutations() -> None:
    module = parse_module("""builtin.module {
  prim.func @main() {result_strides = [[1, s0], none], symbols = [["s0", 0, 0, 2, 9], ["s1", 1, -1, 0, none]],
      results = [["value", 0], ["size", s0*s1], ["input", 0], ["alias", 0, [2], [4], 1], ["output", 0], ["none"]],
      mutations = [[0, 1]]} ({
  ^bb0(%x: !prim.tensor<[s0, 4], f32>, %n: !prim.size<i64>):
    %c = prim.full() {value = s1} : !prim.tensor<[s0, 4], f32>
    %r = prim.add(%x, %c) : !prim.tensor<[s0, 4], f32>
    prim.return(%r, %r)
  })
}""")
    module.verify()
    x = torch.zeros(3, 4)
    value, size, given, alias, same, nothing = run_user(module, [x, 5])
    assert value.stride() == (1, 3) and value.eq(5).all() and size == 15 and nothing is None
    assert given is x and same is value and x.eq(5).all()
    assert alias.data_ptr() == x.data_ptr() + 4 and alias.stride() == (4,)
    with pytest.raises(InterpreterError, match="s0 = 1 lies outside its range 2 to 9"):
        run(module, [torch.zeros(1, 4), 5])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "%r = prim.slice(%x) {starts = [s0, 0], steps = [1, 1]} : !prim.tensor<[3, 4], f32>",
            "the symbol 's0' is bound by no argument",
        ),
        (
            '%r = aten.sum.default(%x) {operands = ["self"], dtype = torch.float32} : !prim.tensor<[3], f32>',
            "the result of aten.sum.default",
        ),
        ("%r = loop.launch @nowhere(%x) : !prim.tensor<[3], f32>", "no loop.kernel @nowhere"),
    ],
)
def test_wrong_modules(body: str, message: str) -> None:
    with pytest.raises((InterpreterError, VerifyException), match=message):
        one(body, torch.zeros(3, 4))


def test_unknown_operator() -> None:
    with pytest.raises(LookupError, match=r"no operator is registered under the name 'aten\.nonsense\.default'"):
        one('%r = aten.nonsense.default(%x) {operands = ["self"]} : !prim.tensor<[3, 4], f32>', torch.zeros(3, 4))


# ---- loops ------------------------------------------------------------------------------------------------------------


def launch(kernel: str, result: str, *inputs: Tensor, args: str = X, reverse: bool = False) -> Tensor:
    names = ", ".join(part.split(":")[0].strip() for part in args.split(", %"))
    names = names.replace(", ", ", %")
    module = function(args, f"%r = loop.launch @k({names}) : !prim.tensor<{result}>", "%r", more=kernel)
    return run(module, list(inputs), reverse=reverse)[0]  # type: ignore[arg-type]


SOFTMAX = """loop.kernel @k() {inputs = 1, symbols = []} ({
  ^bb0(%x: !buffer.ref<[3, 4], [1, 3], f32>, %o: !buffer.ref<[3, 4], [4, 1], f32>):
    loop.for<parallel>() {var = t0, stop = 3, step = 2} ({
      loop.for<serial>() {var = i0, start = t0, stop = Min(3, t0 + 2)} ({
        %m = loop.local() {value = -inf, size = 1} : !buffer.ref<[1], [1], f32>
        %s = loop.local() {value = 0.0, size = 1} : !buffer.ref<[1], [1], f32>
        loop.for<reduce>() {var = r0, stop = 4, vector = true} ({
          %0 = loop.load(%x)[i0 + 3*r0] : !loop.scalar<f32>
          loop.accumulate<max>(%0, %m)[0]
        })
        %1 = loop.load(%m)[0] : !loop.scalar<f32>
        loop.for<reduce>() {var = r1, stop = 4} ({
          %2 = loop.load(%x)[i0 + 3*r1] : !loop.scalar<f32>
          %3 = scalar.sub(%2, %1) : !loop.scalar<f32>
          %4 = scalar.exp(%3) : !loop.scalar<f32>
          loop.accumulate<sum>(%4, %s)[0]
        })
        %5 = loop.load(%s)[0] : !loop.scalar<f32>
        loop.for<serial>() {var = j0, stop = 4} ({
          %6 = loop.load(%x)[i0 + 3*j0] : !loop.scalar<f32>
          %7 = scalar.sub(%6, %1) : !loop.scalar<f32>
          %8 = scalar.exp(%7) : !loop.scalar<f32>
          %9 = scalar.div(%8, %5) : !loop.scalar<f32>
          loop.store(%9, %o)[4*i0 + j0]
        })
      })
    })
  })"""


@pytest.mark.parametrize("reverse", [False, True])
def test_softmax_in_loops(reverse: bool) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(launch(SOFTMAX, "[3, 4], f32", x, reverse=reverse), x.softmax(1))


def loops(body: str, out: str = "[3, 4], [4, 1], f32") -> str:
    return f"""loop.kernel @k() {{inputs = 1, symbols = []}} ({{
  ^bb0(%x: !buffer.ref<[3, 4], [4, 1], f32>, %o: !buffer.ref<{out}>):
{body}
  }})"""


def test_scan_runs_in_order() -> None:
    body = """loop.for<parallel>() {var = i0, stop = 3} ({
      %s = loop.local() {value = 0.0, size = 1} : !buffer.ref<[1], [1], f32>
      loop.for<scan>() {var = r0, stop = 4} ({
        %0 = loop.load(%x)[4*i0 + r0] : !loop.scalar<f32>
        loop.accumulate<sum>(%0, %s)[0]
        %1 = loop.load(%s)[0] : !loop.scalar<f32>
        loop.store(%1, %o)[4*i0 + r0]
      })
    })"""
    x = torch.randn(3, 4)
    torch.testing.assert_close(launch(loops(body), "[3, 4], f32", x), x.cumsum(1))


def test_accumulate_into_an_array_of_lanes() -> None:
    body = """%s = loop.local() {value = 0.0, size = 4} : !buffer.ref<[4], [1], f32>
    loop.for<reduce>() {var = r0, stop = 3} ({
      loop.for<serial>() {var = i0, stop = 4} ({
        %0 = loop.load(%x)[4*r0 + i0] : !loop.scalar<f32>
        loop.accumulate<sum>(%0, %s)[FloorDiv(i0, 2)]
      })
    })
    loop.for<serial>() {var = i1, stop = 4} ({
      %1 = loop.load(%s)[i1] : !loop.scalar<f32>
      loop.store(%1, %o)[i1]
    })"""
    x = torch.randn(3, 4)
    found = launch(loops(body, "[4], [1], f32"), "[4], f32", x)
    torch.testing.assert_close(found[:2], x.reshape(3, 2, 2).sum((0, 2)))
    assert found[2:].eq(0).all()


def test_half_types_load_as_f32_and_round_when_stored() -> None:
    kernel = """loop.kernel @k() {inputs = 1, symbols = []} ({
  ^bb0(%x: !buffer.ref<[3, 4], [4, 1], bf16>, %o: !buffer.ref<[3, 4], [4, 1], f16>):
    loop.for<parallel>() {var = i0, stop = 12} ({
      %0 = loop.load(%x)[i0] : !loop.scalar<f32>
      %1 = scalar.mul(%0, %0) : !loop.scalar<f32>
      loop.store(%1, %o)[i0]
    })
  })"""
    x = torch.randn(3, 4).bfloat16()
    found = launch(kernel, "[3, 4], f16", x, args="%x: !prim.tensor<[3, 4], bf16>")
    assert torch.equal(found, (x.float() * x.float()).half())


def test_masks_and_binds() -> None:
    kernel = """loop.kernel @k() {inputs = 2, symbols = []} ({
  ^bb0(%x: !buffer.ref<[3, 4], [4, 1], f32>, %i: !buffer.ref<[2], [1], i64>, %o: !buffer.ref<[2, 6], [6, 1], f32>):
    loop.for<parallel>() {var = i0, stop = 2} ({
      %0 = loop.load(%i)[i0] : !loop.scalar<i64>
      loop.bind(%0) {var = t0, size = 3, wrap = true}
      loop.for<serial>() {var = j0, stop = 6} ({
        %1 = loop.load(%x)[4*t0 + j0 - 1] {mask = [j0 - 1, 4 - j0], other = 9.0} : !loop.scalar<f32>
        loop.store(%1, %o)[6*i0 + j0]
      })
    })
  })"""
    args = f"{X}, %i: !prim.tensor<[2], i64>"
    x = torch.randn(3, 4)
    found = launch(kernel, "[2, 6], f32", x, torch.tensor([2, -3]), args=args)
    assert torch.equal(found, torch.nn.functional.pad(x[[2, 0]], (1, 1), value=9.0))
    with pytest.raises(IndexError, match="index 3 is out of range for a dimension of size 3"):
        launch(kernel, "[2, 6], f32", x, torch.tensor([3, 0]), args=args)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%0 = loop.load(%x)[i0 + 1] : !loop.scalar<f32>\nloop.store(%0, %o)[i0]", "element 12 of memory of 12"),
        ("%0 = loop.load(%x)[i0] : !loop.scalar<f32>\nloop.store(%0, %o)[i0 - 1]", "element -1 of memory"),
        ("%0 = loop.load(%x)[i0] : !loop.scalar<f32>\nloop.store(%0, %o)[FloorDiv(i0, 2)]", "two iterations write"),
        ("%0 = loop.load(%x)[i7] : !loop.scalar<f32>\nloop.store(%0, %o)[i0]", "the symbol 'i7' is bound by no loop"),
    ],
)
def test_wrong_loops(body: str, message: str) -> None:
    kernel = loops(f"loop.for<parallel>() {{var = i0, stop = 12}} ({{\n{body}\n}})")
    with pytest.raises((InterpreterError, VerifyException), match=message):
        launch(kernel, "[3, 4], f32", torch.randn(3, 4))


def test_memory_that_nobody_wrote_is_poisoned() -> None:
    body = """loop.for<parallel>() {var = i0, stop = 11} ({
      %0 = loop.load(%x)[i0] : !loop.scalar<f32>
      loop.store(%0, %o)[i0]
    })"""
    assert launch(loops(body), "[3, 4], f32", torch.zeros(3, 4))[2, 3].isnan()


def test_a_loop_that_is_not_independent_shows_in_reverse() -> None:
    body = """loop.for<parallel>() {var = i0, stop = 3} ({
      loop.for<serial>() {var = i1, stop = 4} ({
        %0 = loop.load(%x)[4*i0 + i1] : !loop.scalar<f32>
        loop.store(%0, %o)[4*i0 + i1]
        %1 = loop.load(%o)[Max(0, 4*i0 + i1 - 1)] : !loop.scalar<f32>
        loop.store(%1, %o)[4*i0 + i1]
      })
    })"""
    x = torch.randn(3, 4)
    plain, turned = (launch(loops(body), "[3, 4], f32", x, reverse=r) for r in (False, True))
    assert not torch.equal(plain, turned.nan_to_num())


# ---- buffers ----------------------------------------------------------------------------------------------------------

DOUBLE = """loop.kernel @k() {inputs = 1, symbols = []} ({
  ^bb0(%x: !buffer.ref<[3, 4], [4, 1], f32>, %o: !buffer.ref<[3, 4], [4, 1], f32>):
    loop.for<parallel>() {var = i0, stop = 12} ({
      %0 = loop.load(%x)[i0] : !loop.scalar<f32>
      %1 = scalar.add(%0, %0) : !loop.scalar<f32>
      loop.store(%1, %o)[i0]
    })
  })"""
REF = "!buffer.ref<[3, 4], [4, 1], f32>"


def host(body: str, returned: str = "%r") -> object:
    return function(X, body, returned, more=DOUBLE)


def test_host_program() -> None:
    module = host(f"""%a = buffer.alloc() {{pool = "arena", offset = 0}} : {REF}
    buffer.launch @k(%x, %a)
    buffer.launch @k(%a, %a)
    %v = buffer.view(%a) {{offset = 4}} : !buffer.ref<[4, 2], [1, 4], f32>
    %r = buffer.extern<aten.mm.default>(%a, %v) {{operands = ["self", "mat2"]}} : !buffer.ref<[3, 2], [2, 1], f32>
    buffer.free(%a)
    buffer.copy(%r, %r)""")
    x = torch.randn(3, 4)
    torch.testing.assert_close(run(module, [x])[0], (4 * x) @ (4 * x)[1:].T)  # type: ignore[arg-type]


def test_a_place_given_away_too_early_shows() -> None:
    module = host(f"""%a = buffer.alloc() {{pool = "arena", offset = 0}} : {REF}
    buffer.launch @k(%x, %a)
    %b = buffer.alloc() {{pool = "arena", offset = 16}} : {REF}
    buffer.launch @k(%x, %b)
    %r = buffer.alloc() {{pool = "output"}} : {REF}
    buffer.launch @k(%a, %r)""")
    with pytest.raises(InterpreterError, match="read after its memory was given to another one"):
        run(module, [torch.randn(3, 4)])  # type: ignore[arg-type]


def test_a_place_given_away_shows_through_views_and_in_place() -> None:
    start = f"""%a = buffer.alloc() {{pool = "arena", offset = 0}} : {REF}
    buffer.launch @k(%x, %a)
    %v = buffer.extern<aten.diagonal.default>(%a) {{operands = ["self"], offset = 0, dim1 = 0, dim2 = 1}} : !buffer.ref<[3], [5], f32>
    %b = buffer.alloc() {{pool = "arena", offset = 0, in_place = true}} : {REF}
    """
    end = '%r = buffer.extern<aten.exp.default>(%v) {operands = ["self"]} : !buffer.ref<[3], [1], f32>'
    for body in (start + f"buffer.launch @k(%a, %b)\n{end}", start + f"buffer.launch @k(%b, %b)\n{end}"):
        with pytest.raises(InterpreterError, match="read after its memory was given to another one"):
            run(host(body), [torch.randn(3, 4)])  # type: ignore[arg-type]
    fine = start.replace("%b =", end + "\n    %b =") + "buffer.launch @k(%a, %b)"
    x = torch.randn(3, 4)
    torch.testing.assert_close(run(host(fine), [x])[0], (2 * x).diagonal().exp())  # type: ignore[arg-type]


def test_freed_memory_of_a_library_is_poisoned() -> None:
    module = host("""%a = buffer.extern<aten.exp.default>(%x) {operands = ["self"]} : !buffer.ref<[3, 4], [4, 1], f32>
    %r = buffer.view(%a) {offset = 0} : !buffer.ref<[4], [1], f32>
    buffer.free(%a)""")
    assert run(module, [torch.zeros(3, 4)])[0].isnan().all()  # type: ignore[arg-type]


def test_reading_after_free() -> None:
    module = host(f"""%a = buffer.alloc() {{pool = "arena", offset = 0}} : {REF}
    buffer.launch @k(%x, %a)
    %r = buffer.view(%a) {{offset = 0}} : {REF}
    buffer.free(%a)""")
    assert run(module, [torch.zeros(3, 4)])[0].isnan().all()  # type: ignore[arg-type]
    module = host(f"""%r = buffer.alloc() {{pool = "arena", offset = 0}} : {REF}
    buffer.free(%r)""")
    with pytest.raises(InterpreterError, match="read after it was freed"):
        run(module, [torch.zeros(3, 4)])  # type: ignore[arg-type]


def test_copy_mutates_the_argument() -> None:
    module = host(f"""%r = buffer.alloc() {{pool = "output"}} : {REF}
    buffer.launch @k(%x, %r)
    buffer.copy(%r, %x)""")
    x = torch.ones(3, 4)
    run(module, [x])  # type: ignore[arg-type]
    assert x.eq(2).all()
