"""StableHLO as a front end: programs of JAX and of our own run right, what is not taken shows its line, hostile text is a short error."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_stablehlo import PROGRAMS

import intarsia
from intarsia.exchange.as_module import as_module
from intarsia.exchange.errors import ExchangeError
from intarsia.exchange.from_stablehlo import from_stablehlo
from intarsia.exchange.to_stablehlo import stablehlo
from intarsia.ir.interpreter.run import run, run_user
from intarsia.ir.syntax import visible
from intarsia.ir.text import parse_module
from intarsia.tools.opt.main import main

X = torch.linspace(-3, 3, 32).reshape(4, 8)


@pytest.mark.parametrize("name", PROGRAMS)
def test_there_and_back_it_is_the_same_program(name: str) -> None:
    program, x = PROGRAMS[name]
    with torch.no_grad():
        low = intarsia.lower(program, x)
    module, args = parse_module(low.ir("aten")), [*low.inputs(x), *low.constants]
    back = as_module(from_stablehlo(stablehlo(module), "there.mlir"))
    for a, b in zip(run_user(back.module, [*args, *back.constants]), run(module, args), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-4, atol=1e-5)


def random_program(seed: int) -> Callable[..., Any]:
    """A chain of calls, each of a kind that StableHLO has."""
    chosen = random.Random(seed)
    kinds: list[Callable[[Any, int], Any]] = [
        lambda x, n: x * (n - 2) + 0.5,
        lambda x, n: torch.softmax(x, n % x.dim()),
        lambda x, n: x.cumsum(n % x.dim()).tanh(),
        lambda x, n: x.flip(n % x.dim()),
        lambda x, n: x.transpose(0, x.dim() - 1),
        lambda x, n: torch.where(x > n / 4, x, -x),
        lambda x, n: x.roll(n, n % x.dim()),
        lambda x, n: torch.nn.functional.pad(x, (n % 3, 1), value=float(n)),
        lambda x, n: x - x.amax(n % x.dim(), keepdim=True),
        lambda x, n: torch.sort(x, n % x.dim())[0],
        lambda x, n: x.reshape(-1, x.shape[0]).sin(),
        lambda x, n: x @ x.transpose(0, 1) / 8,
        lambda x, n: x.gather(0, x.argmax(0, keepdim=True)),
        lambda x, n: (x % 0.7) // 0.25,
    ]
    steps = [(chosen.choice(kinds), chosen.randrange(4)) for _ in range(6)]

    def program(x: Any) -> Any:
        for kind, n in steps:
            x = kind(x, n)
        return x

    return program


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_come_back(seed: int) -> None:
    with torch.no_grad():
        low = intarsia.lower(random_program(seed), X.sin())
    module, args = parse_module(low.ir("aten")), [*low.inputs(X.sin()), *low.constants]
    back = as_module(from_stablehlo(stablehlo(module)))
    for a, b in zip(run_user(back.module, [*args, *back.constants]), run(module, args), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-4, atol=1e-4)


LOOP = """module @jit_f attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<4xf32> loc("x"), %arg1: tensor<i32>) -> (tensor<4xf32> {jax.result_info = "result"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%iterArg = %c, %iterArg_0 = %arg0) : tensor<i32>, tensor<4xf32>
    cond {
      %2 = stablehlo.compare LT, %iterArg, %arg1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2 = func.call @twice(%iterArg_0) : (tensor<4xf32>) -> tensor<4xf32>
      %c_1 = stablehlo.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %iterArg, %c_1 : tensor<i32>
      stablehlo.return %3, %2 : tensor<i32>, tensor<4xf32>
    }
    %1 = "stablehlo.case"(%arg1) ({
      stablehlo.return %0#1 : tensor<4xf32>
    }, {
      %2 = stablehlo.negate %0#1 : tensor<4xf32> loc(#loc1)
      stablehlo.return %2 : tensor<4xf32>
    }, {
      %cst = stablehlo.constant dense<[1.0, 2.0, 0x7FC00000, -3.5e+00]> : tensor<4xf32>
      stablehlo.return %cst : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @twice(%arg0: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %arg0, %arg0 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
#loc1 = loc("a\\"b.py":3:4)
"""


def test_loops_branches_and_calls() -> None:
    graph = from_stablehlo(LOOP)
    fast = intarsia.compile(graph)
    x = torch.tensor([1.0, -2.0, 3.0, 0.0])
    constant = torch.tensor([1.0, 2.0, float("nan"), -3.5])
    for n, wanted in ((0, x), (1, -2 * x), (2, constant), (5, constant), (-1, constant)):
        for call in (graph, fast):
            torch.testing.assert_close(call(x, torch.tensor(n, dtype=torch.int32)), wanted, equal_nan=True)
    assert not intarsia.explain(graph)(x, torch.tensor(1, dtype=torch.int32)).breaks


def jax_programs() -> dict[str, Any]:
    jnp, lax, nn = (
        pytest.importorskip(name, reason="needs pip install jax") for name in ("jax.numpy", "jax.lax", "jax.nn")
    )
    import jax

    return {
        "places": lambda x, i: (x[i], jnp.take_along_axis(x, i[None].repeat(4, 0), 1), jnp.argmax(x, 1), x[i, i]),
        "writes": lambda x, i: (x.at[i].add(1.0), x.at[0, 1].set(3.0), x.at[i, i].max(0.5), lax.dynamic_slice(x, i[:2], (2, 2))),
        "sorts": lambda x, i: (jnp.sort(x, 1), jnp.argsort(x, 0), *lax.top_k(x, 2), jnp.cumsum(x, 1), jnp.median(x)),
        "control": lambda x, i: (
            lax.fori_loop(0, 5, lambda k, c: c * 2 + k, x),
            lax.switch(i[1], [lambda a: a, lambda a: a * 2, lambda a: a * 3], x),
            lax.scan(lambda c, y: (c + y, c * y), x[0], x),
        ),
        "gradients": lambda x, i: jax.grad(lambda a: (nn.gelu(a @ a.T) ** 2).sum() + nn.logsumexp(a))(x),
        "windows": lambda x, i: (
            lax.conv_general_dilated(x[None, None], x[None, None, :2, :3], (2, 1), "SAME"),
            lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"),
            jax.grad(lambda a: (lax.reduce_window(a, 0.0, lax.add, (2, 3), (1, 2), "SAME") ** 2).sum())(x),
        ),
        "numbers": lambda x, i: (nn.relu(x) % 3 // 2, jnp.clip(x, 0, 1), x.astype(jnp.bfloat16) + 1.5, jnp.round(x, 1), x > i[2]),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["places", "writes", "sorts", "control", "gradients", "windows", "numbers"])
def test_programs_of_jax(name: str) -> None:
    function = jax_programs()[name]
    import jax
    import numpy

    given = X.sin().numpy(), torch.tensor([0, 2, 1], dtype=torch.int32).numpy()
    lowered = jax.jit(function, keep_unused=True).lower(*given)
    wanted = [
        torch.from_numpy(numpy.array(r, dtype="f4") if r.dtype == "bfloat16" else numpy.array(r))
        for r in jax.tree.leaves(lowered.compile()(*given))
    ]
    graph = from_stablehlo(lowered.as_text(), f"{name}.mlir")
    made = as_module(graph)
    args = [torch.from_numpy(a) for a in given]
    for found in (graph(*args), run_user(made.module, [*args, *made.constants])):
        for a, b in zip(found if isinstance(found, list | tuple) else [found], wanted, strict=True):
            torch.testing.assert_close(a.to(b.dtype), b, rtol=1e-4, atol=1e-5)


ONE = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{\n  {}\n  return %r : tensor<4xf32>\n}}\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%r = stablehlo.exponential %y : tensor<4xf32>", "%y is not defined"),
        ("%r = stablehlo.fft %x : tensor<4xf32>", "the operation stablehlo.fft is not taken"),
        (
            '%r = "stablehlo.cholesky"(%x) : (tensor<4xf32>) -> tensor<4xf32>',
            "the operation stablehlo.cholesky is not taken",
        ),
        ("%r = stablehlo.exponential %x : tensor<5xf32>", "stablehlo.exponential takes tensor<5xf32>"),
        ("%r = stablehlo.reshape %x : (tensor<4xf32>) -> tensor<?xf32>", "sizes that are not known"),
        ("%r = stablehlo.slice %x [0:9] : (tensor<4xf32>) -> tensor<9xf32>", "0:9:1 of a dimension of size 4"),
        ("%r = stablehlo.transpose %x, dims = [0, 1] : (tensor<4xf32>) -> tensor<4xf32>", "does not fit"),
        ("%r = stablehlo.convert %x : (tensor<4xf32>) -> tensor<4xui32>", "elements of type ui32"),
        ('%r = stablehlo.custom_call @"$(touch x)"(%x) : (tensor<4xf32>) -> tensor<4xf32>', "the custom call"),
        ("%r = stablehlo.constant dense<[1.0, 2.0]> : tensor<4xf32>", "2 numbers for tensor<4xf32>"),
        ("%r = stablehlo.constant dense<__import__> : tensor<4xf32>", "cannot be read"),
        ("%r = stablehlo.constant dense<1.0> : tensor<99999999999x99999999999xf32>", "too large"),
        ("%r = call @main(%x) : (tensor<4xf32>) -> tensor<4xf32>", "calls itself"),
        ("%r = call @f(%x) : (tensor<4xf32>) -> tensor<4xf32>", "no function @f"),
        ('%r = stablehlo.custom_call @"\u202ecod"(%x) : (tensor<4xf32>) -> tensor<4xf32>', "custom call"),
        ("%r = stablehlo.add %x, %x : tensor<4xf32> loc(", "never closed"),
    ],
)
def test_what_is_not_taken_shows_its_line(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.mlir"
    file.write_text(ONE.format(line))
    assert main(["--from", "stablehlo", str(file)]) == 1
    err = capsys.readouterr().err
    assert (
        message in err and "a.mlir:2:" in err and visible(line[:20]) in err and visible(err) == err and len(err) < 1500
    )


HOSTILE = [
    random.Random(0).randbytes(1 << 12).decode("latin1"),
    "",
    "(" * 100_000,
    "module {" * 10_000,
    "func.func @main() -> () {" + '"a"() ({' * 10_000,
    ONE.format("%r = stablehlo.constant dense<" + "[" * 100_000 + "> : tensor<4xf32>"),
    ONE.format("%r = stablehlo.constant dense<" + "9" * 100_000 + "> : tensor<4xf32>"),
    "#a = [" + "[" * 50_000,
    '"' + "a" * 1_000_000,
    '"' + "\\" * 1_000_001,
    "module attributes {" + "a = " * 10_000,
    "func.func @main(%x: tensor<" + "1x" * 50_000 + "f32>) -> () {}",
    LOOP[: len(LOOP) // 2],
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_a_short_error(text: str, tmp_path: Path) -> None:
    start = time.monotonic()
    file = tmp_path / "a.mlir"
    file.write_text(text)
    with pytest.raises(ExchangeError) as error:
        from_stablehlo(file)
    assert time.monotonic() - start < 5 and len(str(error.value)) < 1000 and len(str(error.value).splitlines()) <= 4


@pytest.mark.parametrize("seed", range(4))
def test_cut_and_changed_text_is_read_or_refused(seed: int) -> None:
    chosen = random.Random(seed)
    tokens = re.findall(r"\w+|\s+|[^\w\s]", LOOP)
    for _ in range(40):
        changed = list(tokens)
        for _ in range(chosen.randrange(1, 4)):
            place = chosen.randrange(len(changed))
            changed[place] = chosen.choice([*tokens, "", "<", '"', "99999999999999999999", "$(touch x)"])
        try:
            from_stablehlo("".join(changed))
        except ExchangeError as error:
            assert len(str(error)) < 1500


def test_the_tool_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.mlir"
    file.write_text(
        ONE.format(
            "%c = stablehlo.constant dense<[0.0, 1.0, 2.0, 3.5]> : tensor<4xf32>\n  %r = stablehlo.add %x, %c : tensor<4xf32>"
        )
    )
    assert main(["--from", "stablehlo", str(file)]) == 0
    text = capsys.readouterr().out
    assert "aten.add.Tensor" in text and f'loc("{file}":3:0)' in text
    assert main(["--from", "stablehlo", "-p", "default", "--run", str(file)]) == 0
    assert "buffer  behind" in capsys.readouterr().out
