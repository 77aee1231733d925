"""The text of kernels: files of any name in comments, and no more of a thread's stack than small threads have."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import intarsia
from intarsia.targets.build.toolchain import detect_isa


@pytest.mark.parametrize("name", ["two\nlines.py", "slash\\", "tab\t.py", "quote'\".py", "ünï.py", "comment*/.py"])
def test_names_of_files(name: str) -> None:
    source = "def f(x, i):\n    y = torch.softmax(x.sin(), -1).cumsum(0)\n    return y[i], torch.linalg.norm(y)\n"
    scope: dict[str, object] = {"torch": torch}
    exec(compile(source, name, "exec"), scope)
    compiled = intarsia.compile(scope["f"], fullgraph=True, options={"on_error": "raise"})  # type: ignore[call-overload]
    x, i = torch.randn(9, 5), torch.tensor([3, 1])
    torch.testing.assert_close(compiled(x, i), scope["f"](x, i))  # type: ignore[operator]


def many_rows(*xs: torch.Tensor) -> list[torch.Tensor]:
    """Rows of several sizes that are kept while they are normalised."""
    return [torch.softmax(x * 2 + 1, -1).cumsum(-1) + torch.layer_norm(x.exp(), x.shape[-1:]) for x in xs]


def test_the_stack_of_a_small_thread(tmp_path: Path) -> None:
    xs = [torch.randn(3, n) for n in (16000, 12000, 9000)]
    for unit in re.findall(r'extern "C" int .*?\n}\n', intarsia.lower(many_rows, *xs).source(), re.DOTALL):
        bytes_of = {"float": 4, "double": 8, "int64_t": 8}
        arrays = re.findall(r"alignas\(64\) (\w+) scratch\w*\[(\d+)\]", unit)
        assert sum(bytes_of[kind] * int(size) for kind, size in arrays) <= 64 * 1024
    compiled = intarsia.compile(many_rows, fullgraph=True)
    expected, found = many_rows(*xs), []
    compiled(*xs)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    size = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=lambda: found.extend(compiled(*xs)))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
        torch.set_num_threads(before)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


SCRATCH = {
    "columns": (lambda x: torch.softmax(x, 0), [torch.randn(64, 40_000)]),
    "random numbers": (lambda x: torch.softmax(x, 0) + torch.rand_like(x), [torch.randn(64, 40_000)]),
    "attention": (F.scaled_dot_product_attention, [torch.randn(1, 1, 30, 8)] * 3),
    "attention of one": (F.scaled_dot_product_attention, [torch.randn(1, 1, n, 8) for n in (1, 30, 30)]),
    "index_add": (lambda x, i, y: x.index_add(0, i, y), [torch.randn(9, 40), torch.tensor([1, 2]), torch.randn(2, 40)]),
    "first layer": (nn.Conv2d(3, 16, 3, 1, 1).eval(), [torch.randn(1, 3, 9, 9)]),
    "3x3": (nn.Conv2d(16, 16, 3, 1, 1).eval(), [torch.randn(1, 16, 9, 9)]),
    "linear": (nn.Linear(1024, 32).eval(), [torch.randn(20, 1024)]),
    "one row": (nn.Linear(64, 32).bfloat16().eval(), [torch.randn(1, 64).bfloat16()]),
}


@pytest.mark.skipif(detect_isa() != "avx512", reason="others have fewer kernels of their own")
@pytest.mark.parametrize("name", SCRATCH)
@torch.no_grad()
def test_memory_that_is_lacking(name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is computed without scratch: the call says so, and eager, which may need less, does what can be done again."""
    monkeypatch.setenv("CXX", "g++ '-D__builtin_malloc(bytes)=nullptr'")
    fn, args = SCRATCH[name]
    compiled = intarsia.compile(fn)
    if name == "random numbers":  # drawn once: the call is not started twice
        with pytest.raises(MemoryError, match="scratch"):
            compiled(*args)
        return
    torch.testing.assert_close(compiled(*args), fn(*args), rtol=1e-4, atol=1e-4)
    assert "not enough memory for the scratch" in caplog.text
