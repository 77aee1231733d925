"""Other processors than this one: code for narrower vectors, and caches that processors share or that were copied."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia
from intarsia.targets.build import cache
from intarsia.targets.build import toolchain as build
from intarsia.targets.build.cache import shared_cache

MACHINES = ("avx2", "plain")  # narrower than AVX-512
pytestmark = [
    pytest.mark.usefixtures("product_compiler"),
    pytest.mark.skipif(build.detect_isa() not in ("avx512", "avx2"), reason="flags of x86"),
]


def become(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    """From now on this process takes the machine for another one."""
    if not build.runs_here(machine):
        pytest.skip("this machine lacks the instructions")
    monkeypatch.setenv("INTARSIA_PROCESSOR", machine)
    intarsia.reset()


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


def _windows() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.Conv2d(32, 32, 5, 2, 2, groups=32), nn.Conv2d(32, 40, 3, 2), nn.SiLU(), nn.MaxPool2d(2, 1, 1),
    )  # fmt: skip


def places(x: Tensor, index: Tensor, source: Tensor) -> tuple[Tensor, ...]:
    """Numbers that say where."""
    return (
        x.index_add(0, index, source),
        x[index],
        torch.zeros_like(x).scatter_add(0, index[:, None] + x[:1].long() * 0, source),
    )


def whole_numbers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Division, shifts, extremes and sums of integers."""
    small = x.to(torch.int8)
    return (
        x // y,
        x % y,
        torch.div(x, y, rounding_mode="trunc"),
        small << 1,
        x.cumsum(1),
        x.max(0),
        small.sum(1),
        x.argmin(1),
        x.to(torch.int32) * 3,
    )


def halves(x: Tensor) -> tuple[Tensor, ...]:
    """Conversions from and to half types."""
    return (
        torch.softmax(x, -1),
        x.bfloat16() * 2,
        F.layer_norm(x, x.shape[-1:]),
        x.amax(0),
        (x * 1e-4).float(),
        (x * 9e4),
        x.argmax(1),
    )


def _special(x: Tensor) -> Tensor:
    x.view(-1)[::97] = torch.nan
    return x


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
    "rows with values that are not finite": (lambda: rows, lambda: (_special(torch.randn(37, 131)),)),
    "many rows": (lambda: nn.Sequential(nn.Linear(64, 70), nn.GELU(), nn.Linear(70, 33)).eval(), lambda: (torch.randn(50, 64),)),
    "many rows in bfloat16": (lambda: nn.Linear(64, 70).bfloat16().eval(), lambda: (torch.randn(50, 64).bfloat16(),)),
    "windows": (lambda: _windows().eval(), lambda: (torch.randn(2, 16, 14, 15),)),
    "places": (lambda: places, lambda: (torch.randn(20, 24), torch.randint(0, 20, (50,)), torch.randn(50, 24))),
    "whole numbers": (lambda: whole_numbers, lambda: (torch.randint(-9, 9, (37, 131)), torch.randint(1, 9, (37, 131)))),
    "half": (lambda: halves, lambda: (torch.randn(37, 131).half(),)),
    "one row in bfloat16": (lambda: nn.Linear(256, 300).bfloat16().eval(), lambda: (torch.randn(1, 256).bfloat16(),)),
}  # fmt: skip


class Programs(nn.Module):
    """All programs in one, which compiles sooner."""

    def __init__(self) -> None:
        super().__init__()
        made = [make() for make, _ in PROGRAMS.values()]
        self.programs = [program for program in made if not isinstance(program, nn.Module)]
        self.modules_ = nn.ModuleList(program for program in made if isinstance(program, nn.Module))
        self.made = made

    def forward(self, arguments: list[tuple[Tensor, ...]]) -> list[object]:
        """The arguments of each program -> its results."""
        return [program(*given) for program, given in zip(self.made, arguments, strict=True)]


# The others take as long, and are alike: they run with `make fuzz`.
QUICK = {("plain", "g++"), ("avx2", "g++"), ("avx512", "g++"), ("avx512", "clang++")}


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("machine", build.PROCESSORS)
@torch.no_grad()
def test_kernels_of_every_processor(
    machine: str, compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shutil.which(compiler) or ("INTARSIA_FUZZ" not in os.environ and (machine, compiler) not in QUICK):
        pytest.skip("not here, or only with INTARSIA_FUZZ")
    become(monkeypatch, machine)
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path))
    shared_cache.cache_clear()
    torch.manual_seed(0)
    model, arguments = Programs().eval(), [arguments() for _, arguments in PROGRAMS.values()]
    compiled = intarsia.compile(model, fullgraph=True)
    for _ in range(2):
        for name, found, expected in zip(PROGRAMS, compiled(arguments), model(arguments), strict=True):
            tolerance = 2e-2 if "bfloat16" in name or name == "half" else 1e-5
            torch.testing.assert_close(
                found,
                expected,
                rtol=tolerance,
                atol=10 * tolerance,
                equal_nan=True,
                msg=lambda m, name=name: f"{name}: {m}",
            )
    assert intarsia.counters()["fallbacks"] == 0
    built = list(tmp_path.rglob("*.so"))
    assert built
    wide = {"avx2": ("zmm",), "plain": ("zmm", "ymm")}.get(machine)
    if wide and shutil.which("objdump"):
        for library in built:
            code = subprocess.run(["objdump", "-d", str(library)], capture_output=True, text=True, check=True).stdout
            assert not re.search("|".join(wide), code), library


def test_convolutions_for_narrower_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that win with AVX2 are ours, in tiles for 16 registers, and batch norm goes into their weights; plain code leaves all to the library."""
    become(monkeypatch, "avx2")
    model = nn.Sequential(
        nn.Conv2d(16, 32, 1), _norm(32), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.SiLU(), nn.Conv2d(32, 32, 3, 2, 1)
    ).eval()
    text = intarsia.lower(model, torch.randn(1, 16, 14, 14)).source()
    assert text.count("im::dense_convolution(") == text.count("im::winograd(") == 1
    assert "add_products<6, 1>" in text and "add_products<7" not in text
    assert "tail_bias_max" in text
    become(monkeypatch, "plain")
    assert "dense_convolution" not in intarsia.lower(model, torch.randn(1, 16, 14, 14)).source()


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
def test_a_library_that_cannot_be_loaded(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert built() > 0 and "cannot be loaded" in caplog.text
    intarsia.reset()
    assert built() == 0
