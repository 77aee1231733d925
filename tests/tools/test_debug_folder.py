"""The debug folder: its graphs are Python that can be imported and called, its C++ compiles beside its headers."""

from __future__ import annotations

import runpy
import subprocess

import torch

import intarsia
from intarsia.targets.build.toolchain import find_toolchain


def shifted(x):
    return torch.softmax(x / 8, -1).clamp(max=float("inf")) + torch.zeros(8, device="cpu")


def test_what_the_folder_holds_can_be_used_by_itself(tmp_path):
    x = torch.randn(4, 8)
    with torch.no_grad():
        intarsia.compile(shifted, options={"debug": str(tmp_path), "on_error": "raise"})(x)
    (folder,) = tmp_path.glob("run1/*")
    graph = runpy.run_path(str(folder / "fx-captured.py"))["GraphModule"]()
    torch.testing.assert_close(graph(x)[0], shifted(x))
    command = [find_toolchain().compiler, "-std=c++17", "-fopenmp", "-fsyntax-only", "-w", "kernels0.cpp"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:500]
