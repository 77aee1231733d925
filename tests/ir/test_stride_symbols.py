"""Symbols that an argument's stride binds: read by the interpreter and the host program, checked by the verifier."""

from __future__ import annotations

import pytest
import torch
from xdsl.utils.exceptions import VerifyException

from intarsia.ir.interpreter.run import run_user
from intarsia.ir.text import parse_module


def module(dimension: int) -> object:
    made = parse_module(
        f"""builtin.module {{
          prim.func @main() {{arg_strides = [[s1, 1]], symbols = [["s0", 0, 0, 2, none], ["s1", 0, {dimension}, 0, none]],
                             results = [["value", 0], ["size", s1]]}} ({{
          ^bb0(%x: !prim.tensor<[s0, 8], f32>):
            %r = prim.neg(%x) : !prim.tensor<[s0, 8], f32>
            prim.return(%r)
          }})
        }}"""
    )
    made.verify()
    return made


def test_a_symbol_is_a_stride():
    for n, width in ((3, 12), (5, 9)):
        x = torch.randn(n, width)[:, :8]
        result, stride = run_user(module(-2), [x])
        torch.testing.assert_close(result, -x)
        assert stride == width


def test_there_is_no_such_stride():
    for dimension in (-1, -4, 2):
        with pytest.raises(VerifyException, match="s1 is dimension"):
            module(dimension)
