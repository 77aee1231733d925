"""Kernels for a GPU, on a machine without one: compiled by Triton for what is not here, and run by Triton's interpreter on the CPU."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="kernels for a GPU need Triton")
if sys.platform != "linux":
    pytest.skip("Triton is for Linux", allow_module_level=True)

from triton_operators import FAMILIES, operators  # noqa: E402
from triton_programs import Program, kernels_of, models, randoms, rows, zoo  # noqa: E402

from intarsia.ir.dialects import loop  # noqa: E402
from intarsia.ir.dtypes import BF16, BOOL, F32, F64, I64  # noqa: E402
from intarsia.targets.triton.compile import Binary  # noqa: E402
from intarsia.targets.triton.emit import emit_module  # noqa: E402
from intarsia.targets.triton.launch import kernel_source  # noqa: E402
from intarsia.targets.triton.worker import WORKERS  # noqa: E402
from tests.processes import Prepared  # noqa: E402

SOME = ("softmax", "layer_norm", "full_sum", "argmax_long", "transpose_plus", "gather", "cumsum_used", "half_softmax")
LEAST = 150  # distinct kernels that are compiled; 100 are interpreted


def kernels(programs: list[Program]) -> list[loop.Kernel]:
    """The distinct kernels of programs: one for each name, which ends with a digest."""
    found: dict[str, loop.Kernel] = {}
    for program in programs:
        for kernel in kernels_of(program.on_gpu()):
            found.setdefault(kernel["sym_name"], kernel)
    return list(found.values())


def compiled(programs: list[Program], target: str, folder: Path) -> list[Binary]:
    """All kernels of these programs, compiled in one go."""
    found = kernels(programs)
    path = folder / "kernels.py"
    path.write_text(emit_module(found))
    return WORKERS.compile(path, list(map(kernel_source, found)), target, folder)


def is_code(binary: Binary) -> bool:
    """Whether it is an ELF file with the kernel's name in it."""
    return binary.code.startswith(b"\x7fELF") and binary.symbol.encode() in binary.code


def test_cubins_for_hopper(tmp_path: Path) -> None:
    scalars = [*rows((F32, I64, BOOL)), *rows_of(("floordiv", "sqrt", "pow", "max", "erf", "fmod"))]
    binaries = compiled([*zoo(), *scalars, *models(), *randoms(range(25))], "sm_90", tmp_path)
    assert all(map(is_code, binaries))
    assert len({b.name for b in binaries}) == len(binaries) >= LEAST
    assert all(0 < b.warps <= 16 and 0 <= b.shared <= 227 * 1024 for b in binaries)


def test_operators_for_hopper(tmp_path: Path) -> None:
    """What the operators do is not left to the library, nor split but where a scatter follows what it writes to, rows of bags are counted, or a window is large."""
    programs = {family: list(operators(family, every=3)) for family in FAMILIES}
    modules = {family: [p.on_gpu() for p in made] for family, made in programs.items()}
    assert not [op for made in modules.values() for m in made for op in m.walk() if op.name == "kernel.extern"]
    for family, made in modules.items():
        for program, module in zip(programs[family], made, strict=True):
            several = family in ("scatters", "bags") or "lines" in program.name
            assert several or len(kernels_of(module)) == 1, program.name
    binaries = compiled([p for made in programs.values() for p in made], "sm_90", tmp_path)
    assert len(binaries) >= sum(map(len, programs.values())) and all(map(is_code, binaries))


def rows_of(names: tuple[str, ...]) -> list[Program]:
    """Some scalar operations on dtypes that few programs have."""
    return [p for p in rows((F64, BF16)) if p.name.rpartition("_")[0] in names]


def test_cubins_for_ampere(tmp_path: Path) -> None:
    binaries = compiled([p for p in zoo() if p.name in SOME], "sm_80", tmp_path)
    assert len(binaries) >= len(SOME) and all(map(is_code, binaries))


def test_code_for_amd(tmp_path: Path) -> None:
    backends = pytest.importorskip("triton.backends").backends
    if "amd" not in backends:
        pytest.skip("this Triton has no backend for AMD's GPUs")
    binaries = compiled([p for p in zoo() if p.name in SOME], "gfx942", tmp_path)
    assert len(binaries) >= len(SOME) and all(b.code.startswith(b"\x7fELF") for b in binaries)


INTERPRET = Path(__file__).with_name("triton_interpret.py")


@pytest.fixture(scope="module")
def interpreter() -> Iterator[Prepared]:
    """Where Triton runs kernels by its interpreter."""
    places = os.pathsep.join(str(path) for path in (INTERPRET.parent, INTERPRET.parents[2]))
    with Prepared("triton_interpret", TRITON_INTERPRET="1", PYTHONPATH=places) as process:
        yield process


def said(interpreter: Prepared, program: Path, folder: Path, *groups: str) -> list[dict[str, Any]]:
    """What it says of groups of programs."""
    code, out, err = interpreter.run(program, folder, *groups)
    assert code == 0, err[-2000:]
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize(
    "least",  # kernels of each group
    [
        {"zoo": 80, "rows": 200},
        {"random": 36, "models": 20},
        {"operators": 40, "products": 15, "attention": 14},
        {"shared": 6, "uneven": 8},  # they change what a GPU is held to be, and when products get longer rows
    ],
    ids="+".join,
)
def test_values(least: dict[str, int], interpreter: Prepared, tmp_path: Path) -> None:
    """The same values as the reference interpreter gives for the program before it was scheduled."""
    found = said(interpreter, INTERPRET, tmp_path, *least)
    assert not {f["name"]: f["wrong"] for f in found if f["wrong"]}
    for group, number in least.items():
        assert len({name for f in found for name in f["kernels"] if f["group"] == group}) >= number, group


def test_a_wrong_kernel_is_found(interpreter: Prepared, tmp_path: Path) -> None:
    """A test that cannot fail says nothing: one kernel's text is spoiled."""
    program = tmp_path / "program.py"
    program.write_text(
        "import triton_interpret as t, triton_programs as p\n"
        "t.GROUPS['one'] = lambda: (x for x in p.zoo() if x.name == 'sin_cos')\n"
        "real = t.emit_module\n"
        "t.emit_module = lambda kernels: real(kernels).replace('tl.sin(', 'tl.cos(')\n"
        "t.main('one')"
    )
    (found,) = said(interpreter, program, tmp_path)
    assert found["wrong"]
