"""Other processors than this one: code for narrower vectors, and caches that processors share or that were copied."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia
from intarsia.targets import build, cache
from intarsia.targets.cache import shared_cache

MACHINES: dict[str, tuple[str, frozenset[str], str]] = {
    # what /proc/cpuinfo says, and the flags that stand for -march=native there
    "avx2": ("A processor with AVX2", frozenset({"sse2", "avx", "avx2", "fma"}), "-march=x86-64-v3"),
    "plain": ("A processor of 2005", frozenset({"sse2"}), "-march=x86-64"),
}
pytestmark = pytest.mark.skipif(build.detect_isa() not in ("avx512", "avx2"), reason="flags of x86")


def become(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    """From now on this process takes the machine for another one."""
    model, flags, march = MACHINES[machine]
    monkeypatch.setattr(build, "cpu_facts", lambda: (model, flags))
    monkeypatch.setattr(build, "isa_flags", lambda kind, isa: (march,))
    build._toolchain.cache_clear()
    intarsia.reset()


@pytest.fixture(autouse=True)
def this_machine_again() -> Iterator[None]:
    yield
    build._toolchain.cache_clear()


def _norm(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    nn.init.normal_(norm.weight)
    return norm


def _net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), _norm(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Hardswish(), nn.Conv2d(16, 24, 1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(24, 40), nn.GELU(), nn.LayerNorm(40),
    )  # fmt: skip


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(batch, heads, length, size) three times."""
    plain = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(3)
    return plain + F.scaled_dot_product_attention(q * 2, k, v, attn_mask=mask)


def rows(x: Tensor) -> tuple[Tensor, ...]:
    """Reductions, running sums, transposes and vector math in one."""
    y = torch.softmax(x, -1) + torch.tanh(x).erf() * torch.sin(x * 100)
    chosen = torch.where(x > 0, y, x.exp().clamp(max=3)).masked_fill(x > 2, -1)
    return (
        y.cumsum(-1),
        chosen.t().contiguous() + 1,
        x.argmax(-1),
        y.sum(0),
        y.amax(),
        (x > 3).any(1),
        F.gelu(x).bfloat16(),
    )


def _images() -> tuple[Tensor, ...]:
    return (torch.randn(2, 3, 32, 32),)


def _heads(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(torch.randn(2, 3, 17, 24).to(dtype) for _ in range(3))


PROGRAMS: dict[str, tuple[Callable[[], Callable[..., object]], Callable[[], tuple[Tensor, ...]]]] = {
    "network": (lambda: _net().eval(), _images),
    "attention": (lambda: attention, lambda: _heads(torch.float32)),
    "attention in bfloat16": (lambda: attention, lambda: _heads(torch.bfloat16)),
    "rows": (lambda: rows, lambda: (torch.randn(37, 131),)),
    "rows in float64": (lambda: rows, lambda: (torch.randn(37, 131, dtype=torch.float64),)),
    "one row": (lambda: nn.Sequential(nn.Linear(256, 300), nn.SiLU(), nn.Linear(300, 64)).eval(), lambda: (torch.randn(1, 256),)),
    "one row in bfloat16": (lambda: nn.Linear(256, 300).bfloat16().eval(), lambda: (torch.randn(1, 256).bfloat16(),)),
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("machine", MACHINES)
def test_narrower_vectors(machine: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    become(monkeypatch, machine)
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path))
    shared_cache.cache_clear()
    torch.manual_seed(0)
    make, arguments = PROGRAMS[program]
    fn, args = make(), arguments()
    compiled = intarsia.compile(fn, fullgraph=True)
    for _ in range(2):
        half = args[0].dtype == torch.bfloat16
        torch.testing.assert_close(compiled(*args), fn(*args), rtol=2e-2 if half else 1e-5, atol=2e-2 if half else 1e-4)
    assert intarsia.counters()["fallbacks"] == 0
    built = list(tmp_path.rglob("*.so"))
    assert built
    wide = {"avx2": ("zmm",), "plain": ("zmm", "ymm")}[machine]
    if shutil.which("objdump"):
        for library in built:
            code = subprocess.run(["objdump", "-d", str(library)], capture_output=True, text=True, check=True).stdout
            assert not re.search("|".join(wide), code), library


@pytest.mark.parametrize("machine", MACHINES)
def test_own_convolutions_stay_with_the_processors_they_were_measured_on(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    become(monkeypatch, machine)
    text = intarsia.lower(_net().eval(), *_images()).source()
    assert "dense_convolution" not in text and "depthwise_convolution" not in text


def add(x: Tensor) -> Tensor:
    """Two kernels' worth."""
    return torch.softmax(x.sin() + 1, -1)


X = torch.randn(20, 33)


def built() -> int:
    """How many files the compiler has seen since the last reset, after running `add`."""
    torch.testing.assert_close(intarsia.compile(add)(X), add(X))
    return int(intarsia.counters()["compiler_calls"])


def test_processors_that_share_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path))
    shared_cache.cache_clear()
    assert built() > 0
    for machine in MACHINES:
        with monkeypatch.context() as inner:
            become(inner, machine)
            assert built() > 0  # nothing of the other processor's was taken
            intarsia.reset()
            assert built() == 0
        build._toolchain.cache_clear()
    intarsia.reset()
    assert built() == 0


def test_the_same_instructions_of_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path))
    shared_cache.cache_clear()
    assert built() > 0
    model, flags = build.cpu_facts()
    for facts in ((model + " II", flags), (model, flags - {"avx512_bf16", "gfni", "sha_ni"} | {"amx_tile"})):
        monkeypatch.setattr(build, "cpu_facts", lambda facts=facts: facts)
        build._toolchain.cache_clear()
        intarsia.reset()
        assert built() > 0  # -march=native may differ


def test_a_copied_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "here"))
    shared_cache.cache_clear()
    net, x = nn.Linear(64, 48).eval(), torch.randn(16, 64)
    torch.testing.assert_close(intarsia.compile(net)(x), net(x), rtol=1e-5, atol=1e-5)
    assert built() > 0
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    for path in (tmp_path / "there").rglob("*"):
        path.chmod(0o755)  # as copying by other means leaves them
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "there"))
    shared_cache.cache_clear()
    intarsia.reset()
    assert built() == 0  # on the same machine a copy is as good
    become(monkeypatch, "avx2")
    assert built() > 0
    torch.testing.assert_close(intarsia.compile(net)(x), net(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("what", ["text", "another machine's", "short"])
def test_a_library_that_cannot_be_loaded(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksum is right, as that of a library for another C library would be."""
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "here"))
    shared_cache.cache_clear()
    assert built() > 0
    shutil.move(
        tmp_path / "here", tmp_path / "there"
    )  # a library of the same name would be the one that is loaded already
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "there"))
    for library in tmp_path.rglob("*.so"):
        good = library.read_bytes()
        bad = {"text": b"not a library", "another machine's": good[:18] + b"\xb7\x00" + good[20:], "short": good[:200]}[
            what
        ]
        library.unlink()  # the old file may be mapped into this process
        library.write_bytes(bad)
        meta = library.parent / "meta.json"
        record = json.loads(meta.read_text())
        files = {name: (library.parent / name).read_bytes() for name in record["sha256"]}
        meta.write_bytes(cache._record(record["key"], files, record["meta"]))
    shared_cache.cache_clear()
    intarsia.reset()
    with pytest.warns(RuntimeWarning, match="cannot be loaded"):
        assert built() > 0
    intarsia.reset()
    assert built() == 0
