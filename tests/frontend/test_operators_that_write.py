"""Operators of a user's library that write to their arguments: part of the graph, as functions on copies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import intarsia
from intarsia.ir.dialects.aten import overload, target_name
from intarsia.ir.fx.functional_operators import functional_operator
from intarsia.targets.recordings.recordable import of_a_library


@torch.library.custom_op("writing_tests::twice_", mutates_args=("x",))
def twice_(x: Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("writing_tests::gather", mutates_args={"total", "count"})
def gather(x: Tensor, total: Tensor, factor: int, count: Tensor) -> Tensor:
    total.add_(x * factor)
    count.add_(1)
    return x.sum()


@gather.register_fake
def _(x: Tensor, total: Tensor, factor: int, count: Tensor) -> Tensor:
    return x.new_empty(())


def _is_as_eager(f: object, *args: Tensor) -> None:
    intarsia.reset()
    ours, eagers = [a.clone() for a in args], [a.clone() for a in args]
    expected, found = f(*eagers), intarsia.compile(f)(*ours)  # type: ignore[operator]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(ours, eagers)
    assert intarsia.counters()["fallbacks"] == 0


def test_results_and_written_arguments() -> None:
    def f(x: Tensor, total: Tensor, count: Tensor) -> Tensor:
        h = x + 1
        twice_(h)
        s = gather(h, total, 3, count)
        gather(x=x, total=total, factor=2, count=count)
        return h.sin() * s + total

    _is_as_eager(f, torch.randn(4, 5), torch.randn(4, 5), torch.zeros((), dtype=torch.int64))


def test_views_are_written_through() -> None:
    def f(x: Tensor) -> Tensor:
        twice_(x[1:3])
        twice_(x.t()[:, ::2])
        return x * 1

    _is_as_eager(f, torch.randn(4, 4))


def test_one_memory_twice_runs_between_two_graphs() -> None:
    def f(x: Tensor, count: Tensor) -> Tensor:
        gather(x, x.view(-1).view(3, 2), 2, count)
        return x + 1

    _is_as_eager(f, torch.randn(3, 2), torch.zeros(()))


def test_the_name_says_the_operator() -> None:
    """So programs from the disk cache find it in a new process."""
    made = functional_operator(torch.ops.writing_tests.gather.default)
    assert target_name(made) == "aten.ops.intarsia_functional.writing_tests__of__gather.default"
    assert overload(target_name(made)) is made and functional_operator(torch.ops.writing_tests.gather.default) is made
    with pytest.raises(LookupError):
        overload("aten.ops.intarsia_functional.writing_tests__of__missing.default")


def test_what_has_no_function() -> None:
    """Lists and arguments that may be None."""
    library = torch.library.Library("writing_tests_more", "DEF")
    library.define("many_(Tensor(a!)[] xs) -> ()")
    library.define("maybe_(Tensor(a!)? x) -> ()")
    library.define("view(Tensor(a) x, Tensor(b!) y) -> Tensor(a)")
    library.define("returned_(Tensor(a!) x, *, float by=2) -> Tensor(a!)")
    for name in ("many_", "maybe_", "view"):
        assert functional_operator(getattr(torch.ops.writing_tests_more, name).default) is None
    made = functional_operator(torch.ops.writing_tests_more.returned_.default)
    assert str(made._schema).endswith("returned_(Tensor x, *, float by=2.) -> Tensor")


def test_which_are_recorded_on_a_gpu() -> None:
    """Python code of a user's operator does not run in a playback: only who asks for recordings gets one, and never what says that it is unfit."""
    library = torch.library.Library("writing_tests_tags", "DEF")
    library.define("unfit_(Tensor(a!) x) -> ()", tags=(torch.Tag.cudagraph_unsafe,))
    custom = "aten.ops.intarsia_functional.writing_tests__of__gather.default"
    assert of_a_library(["aten.mm.default", "aten.ops.prims.sin.default"], wanted=False) == ""
    assert (
        "writing_tests__of__gather" in of_a_library([custom], wanted=False)
        and of_a_library([custom], wanted=True) == ""
    )
    for name in (
        "aten.ops.writing_tests_tags.unfit_.default",
        "aten.ops.intarsia_functional.writing_tests_tags__of__unfit_.default",
    ):
        assert "cudagraph_unsafe" in of_a_library([name], wanted=True)
