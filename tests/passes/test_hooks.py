"""The hooks for others: scalar rows, lowerings, fusion and partition policies, memory planners; also where they are at fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, fx, nn

import intarsia
import intarsia.extend as extend
from intarsia.extend import (
    Builder,
    Fuse,
    Group,
    Lowering,
    NotCovered,
    PartitionPolicy,
    Place,
    Plan,
    PlanBuffers,
    ScalarRow,
    add_row,
    parse_module,
)
from intarsia.passes.core.fingerprint import pass_fingerprint
from intarsia.passes.core.levels import module_levels
from intarsia.passes.memory.plan_buffers import check_packed

X = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def as_users_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "0")
    intarsia.reset()


def test_what_is_offered_is_there_and_documented() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "extend.md").read_text()
    for name in extend.__all__:
        assert hasattr(extend, name) and re.search(rf"`{name}`", page), name


# ---- scalar rows


def row(name: str = "thrice", **changed: Any) -> ScalarRow:
    made = {"arity": 1, "torch": lambda x: x * 3, "cpp": "{0} * 3", "triton": "{0} * 3", "domain": "any", "cost": 1}
    return ScalarRow(name=name, **{**made, **changed})


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"name": "exp"}, "there is a scalar function 'exp' already"),
        ({"cpp": "{0} + {1}"}, "has 1 operands, and the text"),
        ({"triton": "{0"}, "has 1 operands, and the text"),
        ({"name": "a b"}, "cannot be called 'a b'"),
        ({"name": "x; system()"}, "cannot be called"),
        ({"domain": "floats"}, "unknown domain or result: 'floats'"),
        ({"result": "int"}, "unknown domain or result: 'any', 'int'"),
    ],
)
def test_rows_that_cannot_be(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        add_row(row(**changed))


def test_a_row_is_added_once_and_reads_back() -> None:
    add_row(row())
    add_row(row())
    with pytest.raises(ValueError, match="there is a scalar function 'thrice' already"):
        add_row(row(cpp="{0} * 4"))
    text = "prim.func @main() {symbols = []} ({\n^bb0(%x: !prim.tensor<[4], f32>):\n  %0 = prim.thrice(%x) : !prim.tensor<[4], f32>\n  prim.return(%0)\n})\n"
    assert "prim.thrice" in str(extend.print_module(parse_module(text)))


def test_rows_are_in_the_key_of_passes_that_may_use_them() -> None:
    @dataclass(frozen=True)
    class Mine(Lowering):
        name = "mine"

    before = pass_fingerprint([Mine()])
    add_row(row("four_times"))
    assert pass_fingerprint([Mine()]) != before


# ---- lowerings


@torch.library.custom_op("hooks::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("hooks::add_to", mutates_args=("total",))
def add_to(x: Tensor, total: Tensor) -> None:
    total.add_(x.sum())


twice.register_fake(lambda x: torch.empty_like(x))
add_to.register_fake(lambda x, total: None)


def lowering(rules: dict[str, Callable[[Builder], Any]]) -> Lowering:
    @dataclass(frozen=True)
    class Made(Lowering):
        name = "made"
        operators: ClassVar[dict[str, Any]] = rules

    return Made()


def _sum_into(b: Builder) -> Any:
    x = b.tensor("x")
    return [b.ew("add", b.tensor("total"), b.reduce("sum", x, range(b.rank_of(x))))]


def _not_covered(b: Builder) -> Any:
    b.ew("add", b.tensor("x"), 1.0)  # what was made before it gives up goes
    raise NotCovered("anything")


RULES: list[tuple[Callable[[Builder], Any], int]] = [
    (lambda b: b.ew("mul", b.tensor("x"), 2.0), 0),
    (_not_covered, 1),
    (lambda b: b.reduce("sum", b.tensor("x"), [0]), 1),  # another shape than the operator's
]


@pytest.mark.parametrize(("rule", "calls"), RULES, ids=["covered", "not covered", "wrong type"])
def test_an_operator_without_effects(rule: Callable[[Builder], Any], calls: int) -> None:
    def program(x: Tensor) -> Tensor:
        twice(x)  # nobody reads it
        return twice(x + 1) + 1

    compiled = intarsia.compile(program, passes=[lowering({"hooks::twice": rule})])
    torch.testing.assert_close(compiled(X), program(X))
    counted = intarsia.counters()
    assert (counted["externs"] > 0) == bool(calls) and counted["fallbacks"] == 0
    if calls:
        assert counted["externs"] >= 1


def test_an_operator_that_changes_an_argument() -> None:
    def program(x: Tensor, total: Tensor) -> Tensor:
        add_to(x, total)
        seen = total * 1
        add_to(x + 1, total)
        return seen

    compiled = intarsia.compile(program, passes=[lowering({"hooks::add_to": _sum_into})])
    ours, eagers = torch.ones(()), torch.ones(())
    for _ in range(2):
        torch.testing.assert_close(compiled(X, ours), program(X, eagers))
        torch.testing.assert_close(ours, eagers)
    assert intarsia.counters()["externs"] == 0


def test_what_a_lowering_leaves_is_text_that_reads_back() -> None:
    low = intarsia.lower(lambda x: twice(x) + 1, X, passes=[lowering({"hooks::twice": RULES[0][0]})])
    text = low.stages["made"]
    assert "prim.mul" in text and "aten.add" in text and module_levels(parse_module(text)) == {"aten"}
    torch.testing.assert_close(low.run("prim", X), X * 2 + 1)


# ---- policies


@dataclass(frozen=True)
class NeverFuse(Fuse):
    name = "never-fuse"
    replaces = "fuse"

    def worth(self, plan: Plan, a: Group, b: Group) -> float:
        return 0.0


def test_a_fusion_policy_decides_alone() -> None:
    def program(x: Tensor) -> Tensor:
        return (x.sin() + x.cos()).softmax(-1)

    low = intarsia.lower(program, X, passes=[NeverFuse()])
    assert low.ir("kernel").count("kernel.fused") > intarsia.lower(program, X).ir("kernel").count("kernel.fused") == 1
    torch.testing.assert_close(low.compile()(X), program(X))
    refused = [r for r in low.remarks if r.kind == "refused" and r.pass_name == "fuse"]
    assert refused


def places(*rows: tuple[int, int, int, int]) -> list[Place]:
    return [Place(size, first, last, offset) for size, first, last, offset in rows]


@pytest.mark.parametrize(
    ("rows", "total", "text"),
    [
        ([(64, 0, 2, 0), (64, 2, 3, 0)], 64, "two values have the memory at 0 at once"),
        ([(128, 0, 5, 64), (64, 1, 2, 128)], 192, "two values have the memory at 128 at once"),
        ([(64, 0, 1, 32)], 128, "is no place"),
        ([(64, 0, 1, -64)], 128, "is no place"),
        ([(64, 0, 1, 64)], 64, "is no place"),
        ([(64, 0, 1, 0), (64, 2, 3, 0), (64, 1, 2, 64), (0, 0, 9, 0)], 128, ""),
    ],
)
def test_where_values_lie_is_checked(rows: list[tuple[int, int, int, int]], total: int, text: str) -> None:
    if not text:
        check_packed(places(*rows), total)
        return
    with pytest.raises(intarsia.extend.PassError, match=text):
        check_packed(places(*rows), total)


def test_a_planner_of_others_serves_symbolic_sizes_too() -> None:
    @dataclass(frozen=True)
    class Apart(PlanBuffers):
        name = "apart"
        replaces = "plan-buffers"

        def pack(self, places: list[Place]) -> int:
            total = 0
            for place in places:
                place.offset, total = total, total + int(place.size)
            return total

    def program(x: Tensor, w: Tensor) -> Tensor:
        return ((x @ w).softmax(-1) @ w).cumsum(-1)

    w = torch.randn(4, 4)
    compiled = intarsia.compile(program, passes=[Apart()], dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, w), program(x, w))
    assert intarsia.counters()["fallbacks"] == 0


MODEL = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 2))


def policy(saves: Callable[..., Any]) -> PartitionPolicy:
    return dataclass(frozen=True)(type("Policy", (PartitionPolicy,), {"name": "theirs", "saves": saves}))()


def _wrong(self: Any, values: Any, read: Any, budget: float) -> Any:
    return [fx.Graph().placeholder("strange")]


def _raises(self: Any, values: Any, read: Any, budget: float) -> Any:
    raise KeyError("out of luck")


def _nothing(self: Any, values: Any, read: Any, budget: float) -> Any:
    return []


def _everything(self: Any, values: Any, read: Any, budget: float) -> Any:
    return [node for node, value in values.items() if value.save is not None]


@pytest.mark.parametrize(
    ("saves", "told"),
    [(_nothing, ""), (_everything, ""), (_wrong, "strange cannot be saved"), (_raises, "KeyError: 'out of luck'")],
)
def test_a_partition_policy(saves: Callable[..., Any], told: str, caplog: pytest.LogCaptureFixture) -> None:
    """Random numbers are drawn once, whatever it chooses, so that gradients are those of the same draw."""

    def gradients(function: Any) -> list[Tensor]:
        MODEL.zero_grad()
        torch.manual_seed(3)
        function(X).square().sum().backward()
        return [p.grad.clone() for p in MODEL.parameters() if p.grad is not None]

    compiled = intarsia.compile(MODEL, passes=[policy(saves)])
    torch.testing.assert_close(gradients(compiled), gradients(MODEL))
    said = [r for r in caplog.records if r.name == "intarsia"]
    assert bool(told) == bool(said) and told in caplog.text
    if told:
        assert "policy 'theirs'" in caplog.text and "the graph is cut without it" in caplog.text


def test_two_partition_policies_are_an_error() -> None:
    other = dataclass(frozen=True)(type("Other", (PartitionPolicy,), {"name": "other", "saves": _nothing}))
    compiled = intarsia.compile(MODEL, passes=[policy(_nothing), other()])
    with pytest.raises(intarsia.extend.PassError, match="several policies cut training graphs: theirs, other"):
        compiled(X)
