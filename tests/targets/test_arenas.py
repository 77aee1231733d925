"""Programs on a CPU share the memory of their intermediate values: one block in turn, others for calls at the same time."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from intarsia.targets.run import arenas
from intarsia.targets.run.arenas import LEAST, held_bytes, with_memory

SMALL, LARGE = 2 * LEAST, 5 * LEAST


def program(size: int, inside: Callable[[], Any] = lambda: None) -> Callable[..., Sequence[Any]]:
    """Gives where its memory lies and how much it is, and what `inside` gives, which is called while it runs."""

    def make(empty: Callable[[int], torch.Tensor]) -> Callable[..., Sequence[Any]]:
        arena = empty(size)
        assert arena.numel() >= size and not arena.is_inference()
        return lambda: (arena.data_ptr(), arena.numel(), inside())

    return with_memory(make, size)


@pytest.fixture(autouse=True)
def none_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "_FREE", [])


def test_programs_in_turn_share_a_block() -> None:
    small, large = program(SMALL), program(LARGE)
    assert small()[1] == SMALL == held_bytes()
    where = large()[0]
    assert held_bytes() == LARGE
    assert small()[:2] == (where, LARGE) == large()[:2]
    assert held_bytes() == LARGE


def test_a_program_inside_of_another_has_memory_of_its_own() -> None:
    inner = program(SMALL)
    outer = program(SMALL, inner)
    for _ in range(2):
        where, _, (other, *_) = outer()
        assert where != other and held_bytes() == 2 * SMALL
    assert inner()[0] in (where, other)


def test_calls_at_the_same_time_have_memory_of_their_own() -> None:
    together = threading.Barrier(3, timeout=20)
    run, found = program(SMALL, together.wait), []
    threads = [threading.Thread(target=lambda: found.append(run()[0])) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 3 and held_bytes() == 3 * SMALL


def test_memory_goes_with_the_last_program() -> None:
    first, second = program(SMALL), program(SMALL)
    first(), second()
    del first
    gc.collect()
    assert held_bytes() == SMALL
    del second
    gc.collect()
    assert held_bytes() == 0


def test_memory_comes_back_after_an_error() -> None:
    def fails() -> None:
        raise ValueError("inside")

    run = program(SMALL, fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="inside"):
            run()
        assert held_bytes() == SMALL


def test_small_memory_is_a_program_s_own() -> None:
    a, b = program(4096), program(4096)
    assert a()[0] == a()[0] != b()[0] and held_bytes() == 0


def test_a_form_made_in_inference_mode_serves_all_modes() -> None:
    run = program(SMALL)
    with torch.inference_mode():
        where = run()[0]
    assert run()[0] == where
