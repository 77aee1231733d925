"""A program that writes to a tensor sees the write through everything that shares its memory."""

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import intarsia


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Adds(nn.Module):
    """Writes to its argument and to a buffer, and reads a parameter and another buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.arange(4.0))
        self.register_buffer("shift", torch.arange(4.0))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        """x doubled, and more."""
        self.count.add_(1)
        x.mul_(2)
        return x + self.bias.flip(0) + self.shift.flip(0) + self.count.flip(0)


def given(module: Adds, what: str) -> Tensor:
    """The next argument: new, or memory of the module's."""
    if what == "new":
        return torch.arange(4.0)
    if what == "moved":  # from now on two buffers are one
        module.count.data = module.shift.data
        return torch.arange(4.0)
    return getattr(module, what).detach()


CALLS = [["bias"], ["shift"], ["count"], ["moved", "new"], ["moved", "count"], ["bias", "new"]]


@pytest.mark.parametrize("calls", CALLS, ids="-".join)
@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_an_argument_in_the_memory_of_a_module(calls: list[str], backend: str) -> None:
    plain, other = Adds(), Adds()
    fast = intarsia.compile(other, backend=backend)
    with torch.no_grad():
        for what in ["new", *calls]:
            wanted = plain(given(plain, what))
            assert torch.equal(fast(given(other, what)), wanted), what
    assert all(torch.equal(a, b) for a, b in zip(plain.state_dict().values(), other.state_dict().values(), strict=True))


def test_only_calls_that_share_memory_run_in_eager() -> None:
    module = Adds()
    runs: list[int] = []

    def backend(gm: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., object]:
        def run(*args: Tensor) -> object:
            runs.append(1)
            return gm(*args)

        return run

    fast = intarsia.compile(module, backend=backend)
    with torch.no_grad():
        fast(module.bias.detach())
        assert not runs
        fast(torch.arange(4.0))
        fast(torch.arange(4.0))
    assert len(runs) == 2


def numpy_pair(which: int) -> tuple[Tensor, Tensor]:
    """Two tensors over NumPy memory: apart, one storage, two storages that overlap, two that do not."""
    memory = np.arange(8.0)
    whole = torch.from_numpy(memory)
    return [
        (whole[:4].clone(), whole[:4]),
        (whole[:4], whole[2:6]),
        (torch.from_numpy(memory[:4]), torch.from_numpy(memory[2:6])),
        (torch.from_numpy(memory[:4]), torch.from_numpy(memory[4:])),
    ][which]


@pytest.mark.parametrize("backend", ["eager", "auto"])
def test_two_arguments_in_one_memory(backend: str) -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        a.mul_(2)
        return a + b.flip(0)

    fast = intarsia.compile(function, backend=backend)
    for which in (0, 1, 2, 3, 0):
        assert torch.equal(fast(*numpy_pair(which)), function(*numpy_pair(which))), which


def test_a_leaf_is_not_written_as_other_tensors_are() -> None:
    def function(x: Tensor) -> Tensor:
        x.detach().add_(1)
        with torch.no_grad():
            x.mul_(2)
        return x * 3

    fast = intarsia.compile(function, backend="aot_eager")
    for computed in (True, False, True):
        leaves = [torch.ones(3, requires_grad=True) for _ in range(2)]
        a, b = (leaf + 0 if computed else leaf for leaf in leaves)
        wanted, found = function(a), fast(b)
        assert torch.equal(wanted, found) and torch.equal(a, b)
        torch.autograd.backward([wanted.sum(), found.sum()])
        assert torch.equal(leaves[0].grad, leaves[1].grad)  # type: ignore[arg-type]


def test_a_write_through_data_is_a_write_to_the_memory() -> None:
    def function(x: Tensor, z: Tensor) -> Tensor:
        x.data.mul_(2)
        return z + 1

    fast = intarsia.compile(function)
    for start in (3, 0, 1, 3):
        a, b = (torch.arange(6.0) for _ in range(2))
        assert torch.equal(fast(a[:3], a[start : start + 3]), function(b[:3], b[start : start + 3])), start
        assert torch.equal(a, b)


def test_what_was_written_through_data_is_not_written_again_where_the_graph_raises() -> None:
    def function(x: Tensor) -> Tensor:
        x.data.mul_(2)
        return x * 3

    def backend(*_: object) -> Callable[..., object]:
        def graph(x: Tensor) -> None:
            x.mul_(2)
            raise RuntimeError("no")

        return graph

    x = torch.ones(3)
    with pytest.raises(RuntimeError, match="no"):
        intarsia.compile(function, backend=backend)(x)
    assert x.tolist() == [2, 2, 2]


@pytest.mark.parametrize("weight", [torch.ones(3, 3), torch.ones(3)])
def test_a_product_of_mixed_types_raises_where_nothing_reads_it_and_after_its_effects(weight: Tensor) -> None:
    def function(x: Tensor, seen: list[int]) -> None:
        x.mul_(2)
        seen.append(1)
        torch.matmul(x, weight)

    for backend in ("eager", "auto"):
        x, seen = torch.ones(2, 3, dtype=torch.float64), list[int]()
        with pytest.raises(RuntimeError, match="dtype|scalar type"):
            intarsia.compile(function, backend=backend)(x, seen)
        assert seen == [1] and torch.equal(x, torch.full_like(x, 2))
