"""Malformed text: each error names file, line and column, shows the line with a caret, and says what is wrong."""

from __future__ import annotations

import re

import pytest
from xdsl.utils.exceptions import ParseError, VerifyException

from intarsia.ir.text import parse_module

BEFORE = """builtin.module {
  prim.func @main() {symbols = []} ({
  ^bb0(%x: !prim.tensor<[4, s0], f32>, %i: !prim.tensor<[4, s0], i64>, %b: !prim.tensor<[4, s0], bool>):
"""
AFTER = "    prim.return(%x)\n  })\n}\n"

# text of line 4, column of the caret's text in it, part of the message
SYNTAX = [
    ("%1 = prim.neg(%x) : !prim.tensor<[4, s0], f31>", "[4", "unknown dtype 'f31'"),
    ("%1 = prim.neg(%x) : !prim.tensor<[4, 1.5], f32>", "[4", "'1.5' is not an integer or an expression over symbols"),
    ("%1 = prim.neg(%x) : !prim.tensor<[4, -2], f32>", "[4", "the size -2 is negative"),
    (f"%1 = prim.neg(%x) : !prim.tensor<[4, {2**63}], f32>", "[4", "sizes: a number of 19 digits does not fit 64 bits"),
    (f"%1 = prim.neg(%x) : !prim.tensor<[4, {'9' * 400}], f32>", "[4", "a number of 400 digits does not fit 64 bits"),
    ("%1 = prim.neg(%x) : !prim.tensor<4, f32>", "4, f", "expected sizes in square brackets"),
    ("%1 = prim.neg(%x) : !prim.tensor<[4]>", "[4", "expected !prim.tensor<[sizes], dtype>"),
    ("%1 = prim.neg(%x) : !prim.tensor<[4, FloorDiv(s0, 0)], f32>", "FloorDiv", "division by zero"),
    ("%1 = prim.neg(%x) : !buffer.ref<[4], [1, 1], f32>", "[4", "1 sizes but 2 strides"),
    ("%1 = prim.neg(%x) : !buffer.ref<[4], f32>", "[4", "expected !buffer.ref<[sizes], [strides], dtype>"),
    ("%1 = prim.neg(%x) : !loop.scalar<f33>", "f33", "unknown dtype 'f33'"),
    ("%1 = prim.neg(%x) : !prim.size<i32>", "i32", "expected !prim.size<i64>"),
    ("%1 = prim.neg(%x) : !prim.tensr<[4], f32>", "<[4", "'prim.tensr' is not registered"),
    ("%1 = prim.neg(%x : !prim.tensor<[4], f32>", ": !", "Expected ')'"),
    ("%1 = prim.neg(%x) : ", None, ""),
    ("%1 = prim.neg %x : !prim.tensor<[4], f32>", "%x", "Expected '('"),
    ("%1 = prim.neg(%y) : !prim.tensor<[4, s0], f32>", "%y", "SSA value used before assignment"),
    ("%x = prim.neg(%x) : !prim.tensor<[4, s0], f32>", "%x", "already defined"),
    ("%1, %2 = prim.neg(%x) : !prim.tensor<[4, s0], f32>", "%1", "was given 2 to bind"),
    ("%1 = prim.bogus(%x) : !prim.tensor<[4], f32>", "(", "prim.bogus is not registered"),
    ("%1 = prim.permute(%x) {perm = [1, 0} : !prim.tensor<[4], f32>", "{", "'{' is never closed by '}'"),
    ("%1 = prim.permute(%x) {perm = [1 0]} : !prim.tensor<[4], f32>", "1 0", "Perhaps you forgot a comma"),
    ("%1 = prim.permute(%x) {perm [1, 0]} : !prim.tensor<[4], f32>", "perm [", "expected `name = value`"),
    ("%1 = prim.permute(%x) {perm = } : !prim.tensor<[4], f32>", None, "not a value"),
    ("%1 = prim.full() {value = foo()} : !prim.tensor<[4], f32>", "foo", "not a value: foo()"),
    ("%1 = prim.full() {value = 1 / 2} : !prim.tensor<[4], f32>", "1 / 2", "not a value: 1 / 2"),
    ('%1 = prim.full() {value = "a" + 1} : !prim.tensor<[4], f32>', '"a"', "has no value"),
    ("%1 = prim.full() {value = 1, value = 2} : !prim.tensor<[4], f32>", "value = 2", "'value' is given twice"),
    ('%1 = prim.full() {value = "abc} : !prim.tensor<[4], f32>', "{", "'{' is never closed by '}'"),
    ("%1 = prim.full() {value = torch.float8} : !prim.tensor<[4], f32>", "torch.float8", "not a value: torch.float8"),
    ("%1 = prim.reduce<sum(%x) {dims = [0]} : !prim.tensor<[4], f32>", "<", "'<' is never closed by '>'"),
    ("%1 = loop.load(%x)[4*] : !loop.scalar<f32>", None, "not a value"),
    ("loop.launch k0(%x)", "k0", ""),
    ("%1 = prim.neg(%x) : !prim.tensor<[4, s0], f32> loc(3)", None, "Unexpected location"),
]


@pytest.mark.parametrize(("line", "caret", "message"), SYNTAX, ids=[line for line, _, _ in SYNTAX])
def test_syntax(line: str, caret: str | None, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_module(f"{BEFORE}    {line}\n{AFTER}", "some.ir")
    text = str(caught.value)
    place = re.match(r"some\.ir:(\d+):(\d+)\n(.*)\n( *)\^", text)
    assert place is not None, text
    assert message in text
    shown = place.group(3)
    assert shown in f"{BEFORE}    {line}\n{AFTER}".splitlines()[int(place.group(1)) - 1]
    assert len(place.group(4)) == int(place.group(2)) - 1
    if caret is not None:
        assert int(place.group(1)) == 4
        column = int(place.group(2)) - 1 - 4
        assert line[column:].startswith(caret), f"the caret stands at {line[column:]!r}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ""),
        ("builtin.module {", "in block definition"),
        ("hello", ""),
        ("builtin.module {\n  prim.func main() ({\n  })\n}", "expect symbol name"),
        ("builtin.module {\n  prim.func @main() {symbols = [} ({\n  })\n}", "never closed"),
    ],
)
def test_files_that_are_no_modules(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_module(text, "some.ir")
    assert "some.ir:" in str(caught.value)
    assert message in str(caught.value)


VERIFY = [
    ("%1 = prim.neg(%x, %x) : !prim.tensor<[4, s0], f32>", "prim.neg takes 1 operands, not 2"),
    ("%1, %2 = prim.neg(%x) : !prim.tensor<[4, s0], f32>, !prim.tensor<[4, s0], f32>", "gives 1 results, not 2"),
    ("%1 = prim.neg(%x) : !prim.tensor<[4], f32>", "has another shape than the result"),
    ("%1 = prim.neg(%x) : !prim.tensor<[4, s0], f64>", "the result is f64, not f32"),
    ("%1 = prim.neg(%x) : !loop.scalar<f32>", "expected a tensor"),
    ("%1 = prim.add(%x, %i) : !prim.tensor<[4, s0], f32>", "operands differ in dtype: f32, i64"),
    ("%1 = prim.lt(%x, %x) : !prim.tensor<[4, s0], f32>", "the result is f32, not bool"),
    ("%1 = prim.where(%x, %x, %x) : !prim.tensor<[4, s0], f32>", "the condition is f32, not bool"),
    ("%1 = prim.cast(%x) : !prim.tensor<[s0, 4], f16>", "changes the shape"),
    ("%1 = prim.full() : !prim.tensor<[4], f32>", "needs the attribute 'value'"),
    ("%1 = prim.iota() {dim = 1, start = 0, step = 1} : !prim.tensor<[4], i64>", "dim 1"),
    ("%1 = prim.broadcast(%x) {dims = [1, 0]} : !prim.tensor<[s0, 4], f32>", "do not fit"),
    ("%1 = prim.broadcast(%x) {dims = [0, 1]} : !prim.tensor<[4, 7], f32>", "does not become dimension 1"),
    ("%1 = prim.reshape(%x) : !prim.tensor<[4, s0, 2], f32>", "has 4*s0 elements"),
    ("%1 = prim.reshape(%x) : !prim.tensor<[4*s0], i64>", "dtype"),
    ("%1 = prim.permute(%x) {perm = [0, 0]} : !prim.tensor<[4, s0], f32>", "perm [0, 0] does not fit"),
    ("%1 = prim.permute(%x) {perm = [1, 0]} : !prim.tensor<[4, s0], f32>", "not !prim.tensor<[s0, 4], f32>"),
    ("%1 = prim.slice(%x) {starts = [0], steps = [1]} : !prim.tensor<[4], f32>", "disagree about the rank"),
    ("%1 = prim.slice(%x) {starts = [2, 0], steps = [1, 1]} : !prim.tensor<[3, s0], f32>", "element 4 lies outside"),
    ("%1 = prim.slice(%x) {starts = [2, 0], steps = [0, 1]} : !prim.tensor<[2, s0], f32>", "step"),
    ("%1 = prim.flip(%x) {dims = [2]} : !prim.tensor<[4, s0], f32>", "dims [2] do not fit"),
    ("%1 = prim.pad(%x) {low = [1, 0], high = [0, 0], value = 0.0} : !prim.tensor<[4, s0], f32>", "the result is"),
    ("%1 = prim.concat(%x, %x) {dim = 0} : !prim.tensor<[4, s0], f32>", "does not fit the result"),
    ("%1 = prim.concat() {dim = 0} : !prim.tensor<[4, s0], f32>", "needs an operand"),
    ("%1 = prim.concat(%x, %i) {dim = 0} : !prim.tensor<[8, s0], f32>", "dtype"),
    ("%1 = prim.concat(%x) {dim = 2} : !prim.tensor<[4, s0], f32>", "dim 2"),
    ("%1 = prim.take(%x, %x) {dim = 0} : !prim.tensor<[4, s0, s0], f32>", "the index is f32, not an integer"),
    ("%1 = prim.take(%x, %i) {dim = 0} : !prim.tensor<[4, s0], f32>", "the result is"),
    ("%1 = prim.gather(%x, %i) {dim = 0} : !prim.tensor<[4], f32>", "another shape than the index"),
    ("%1 = prim.reduce<mean>(%x) {dims = [0]} : !prim.tensor<[s0], f32>", "unknown kind 'mean'"),
    ("%1 = prim.reduce<sum>(%x) {dims = [1, 0]} : !prim.tensor<[], f32>", "do not fit"),
    ("%1 = prim.reduce<sum>(%x) {dims = [0]} : !prim.tensor<[4], f32>", "the result is"),
    ("%1 = prim.reduce<argmax>(%x) {dims = [0]} : !prim.tensor<[s0], f32>", "not !prim.tensor<[s0], i64>"),
    ("%1 = prim.reduce<any>(%x) {dims = [0]} : !prim.tensor<[s0], f32>", "bool"),
    ("%1 = prim.scan<any>(%x) {dim = 0} : !prim.tensor<[4, s0], f32>", "unknown kind 'any'"),
    ("%1 = kernel.fused(%x) : !prim.tensor<[4, s0], f32>", "one region of one block"),
    ("%1 = kernel.extern(%x) : !prim.tensor<[4, s0], f32>", "needs the attribute 'target'"),
    ("%1 = aten.neg.default(%x) {operands = []} : !prim.tensor<[4, s0], f32>", "names 0 operands but has 1"),
    ("%1 = loop.load(%x)[0] : !loop.scalar<f32>", "operand 0 is not memory"),
    ("%1 = scalar.neg(%x) : !loop.scalar<f32>", "expected a scalar"),
    ('%1 = buffer.alloc() {pool = "heap"} : !buffer.ref<[4], [1], f32>', "unknown pool 'heap'"),
    (
        "loop.for<sideways>() {var = i0, stop = 4} ({\n%1 = loop.index() {value = 0} : !loop.scalar<i64>\n})",
        "unknown kind 'sideways'",
    ),
    (
        'loop.for<serial>() {var = i0, stop = 4, form = "round"} ({\n%1 = loop.index() {value = 0} : !loop.scalar<i64>\n})',
        "unknown form 'round'",
    ),
    ("%1 = prim.neg(%x) {strides = 3} : !prim.tensor<[4, s0], f32>", "strides"),
]


@pytest.mark.parametrize(("line", "message"), VERIFY, ids=[line for line, _ in VERIFY])
def test_verifier(line: str, message: str) -> None:
    module = parse_module(f"{BEFORE}    {line}\n{AFTER}")
    with pytest.raises(VerifyException) as caught:
        module.verify()
    assert message in str(caught.value)


FUNCTIONS = [
    ("{arg_names = []}", "arg_names has 0 entries for 1 arguments"),
    ("{result_strides = []}", "result_strides has 0 entries for 1 returned values"),
    ("{arg_strides = [[1, 1, 1]]}", "arg_strides has [1, 1, 1] for"),
    ('{symbols = [["s0", 3, 0, 0, none]]}', "argument 3"),
    ('{symbols = [["s0", 0, 2, 0, none]]}', "dimension 2"),
    ('{symbols = [["s0", 0]]}', "[name, argument, dimension, lower, upper]"),
    ('{results = [["value", 2]]}', "returned value 2"),
    ('{results = [["input", 2]]}', "argument 2"),
    ('{results = [["gift", 2]]}', "unknown kind 'gift'"),
    ("{mutations = [[0, 1]]}", "returned value 1"),
]


@pytest.mark.parametrize(("attributes", "message"), FUNCTIONS, ids=[a for a, _ in FUNCTIONS])
def test_functions(attributes: str, message: str) -> None:
    text = f"""builtin.module {{
  prim.func @main() {attributes} ({{
  ^bb0(%x: !prim.tensor<[4, 4], f32>):
    prim.return(%x)
  }})
}}"""
    with pytest.raises(VerifyException) as caught:
        parse_module(text).verify()
    assert message in str(caught.value)
