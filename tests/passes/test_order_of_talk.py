"""What processes send stays where it is until they wait for the answer, their calls keep their order, and waits come late."""

from __future__ import annotations

import re

import pytest
import torch

from intarsia.ir.text import parse_module
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.run import run_pipeline
from intarsia.passes.pipeline import default_pipeline

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="a build without processes")

TALK = "kernel.extern<aten.ops._c10d_functional"
T = "!prim.tensor<[64, 64], f32>"
REDUCE = 'reduce_op = "sum", group_name = "0", effect = true'


def program(*lines: str, result: str) -> str:
    body = "\n".join(f"  {line} : {T}" for line in lines)
    return f"""prim.func @main() {{symbols = [], arg_static = [false], results = [["value", 0]]}} ({{
^bb0(%x: {T}):
{body}
  prim.return(%{result})
}})
"""


def talk(name: str, given: str, value: str) -> tuple[str, str]:
    """A sum over all processes, and the wait for it."""
    return (
        f'%{name}_sent = {TALK}.all_reduce.default>(%{value}) {{operands = ["input"], {REDUCE}}}',
        f'%{name} = {TALK}.wait_tensor.default>(%{given}_sent) {{operands = ["tensor"], effect = true}}',
    )


def host(text: str) -> list[str]:
    module = parse_module(text)
    behind = [item.name for item in default_pipeline()].index("decompose") + 1
    run_pipeline(CompileContext(), module, default_pipeline()[behind:])
    lines = str(module).splitlines()
    first = next(i for i, line in enumerate(lines) if "prim.func" in line)
    return lines[first : next(i for i, line in enumerate(lines) if "prim.return" in line)]


def at(lines: list[str], words: str) -> list[int]:
    return [i for i, line in enumerate(lines) if words in line]


OVERLAPPED = program(
    "%a = prim.exp(%x)",
    *talk("b", "b", "a"),
    '%c = kernel.extern<aten.mm.default>(%x, %x) {operands = ["self", "mat2"]}',
    "%d = prim.sin(%c)",
    '%e = kernel.extern<aten.mm.default>(%d, %x) {operands = ["self", "mat2"]}',
    "%f = prim.cos(%e)",
    '%g = kernel.extern<aten.mm.default>(%f, %x) {operands = ["self", "mat2"]}',
    "%h = prim.add(%g, %b)",
    result="h",
)


def test_a_wait_stands_where_its_result_is_first_read() -> None:
    lines = host(OVERLAPPED)
    (begun,), (waited,), products = at(lines, "all_reduce"), at(lines, "wait_tensor"), at(lines, "aten.mm")
    assert begun < products[0] and products[-1] < waited


def test_what_is_sent_keeps_its_memory_until_the_wait() -> None:
    lines = host(OVERLAPPED)
    (begun,), (waited,) = at(lines, "all_reduce"), at(lines, "wait_tensor")
    sent = re.search(r"default>\((%\d+)\)", lines[begun])
    assert sent is not None
    places = {m[1]: m[2] for m in (re.search(r"(%\d+) = buffer.alloc\(\) \{.*offset = (\d+)", n) for n in lines) if m}
    others = [
        v
        for i in at(lines, "buffer.alloc")
        if begun < i < waited
        for v in places
        if lines[i].strip().startswith(v + " ")
    ]
    assert others and all(places[v] != places[sent[1]] for v in others)


def test_calls_keep_their_order_and_number() -> None:
    """The second is ready first; two are equal; nobody reads the last."""
    text = program(
        "%a = prim.exp(%x)",
        '%p = kernel.extern<aten.mm.default>(%a, %a) {operands = ["self", "mat2"]}',
        *talk("b", "b", "p"),
        *talk("c", "c", "x"),
        *talk("d", "d", "x"),
        *talk("e", "e", "a"),
        "%s = prim.add(%b, %c)",
        "%t = prim.add(%s, %d)",
        result="t",
    )
    lines = host(text)
    assert len(at(lines, "all_reduce")) == 4 and len(at(lines, "wait_tensor")) == 4
    given = [re.search(r"default>\((%\w+)\)", lines[i])[1] for i in at(lines, "all_reduce")]  # type: ignore[index]
    assert given[1] == given[2] and len(set(given)) == 3  # the product, the argument twice, what nobody reads
    product = re.match(r"\s*(%\w+) = ", lines[at(lines, "aten.mm")[0]])
    assert product is not None and given[0] == product[1]
