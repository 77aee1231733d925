"""Kernels as programs of their own: each runs, is timed, and its code may be edited; folders are called by the user's functions."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.tools import debug
from intarsia.tools.kernel_scripts import scripts
from intarsia.tools.opt.main import main as passes_opt

SOFTMAX = str(Path(__file__).parents[2] / "examples/softmax.ir")


def scaled(x, w):
    return torch.softmax(x @ w, -1), (x * 2).sum(0)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer = torch.nn.Embedding(10, 16), torch.nn.Linear(16, 16)

    def forward(self, x):
        return torch.tanh(self.layer(self.table(x)))


def printing(x):
    y = x + 1
    print("between")
    return torch.sin(y) * y


def ran(path, *argv, edit=lambda code: code):
    """The exit code of a script in this process."""
    script = runpy.run_path(str(path))
    code = {name: edit(text) for name, text in script["CODE"].items()}
    return script["main"](script["MODULE"], code, script["TARGET"], list(argv))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(debug, "_runs", {})
    options = {"debug": str(tmp_path / "look"), "on_error": "raise"}
    with torch.no_grad():
        intarsia.compile(scaled, options=options, dynamic=True)(torch.randn(64, 96), torch.randn(96, 128))
    return tmp_path / "look"


def test_folders_are_called_by_functions_and_runs_are_kept_apart(folder, monkeypatch):
    options = {"debug": str(folder), "on_error": "raise"}
    intarsia.compile(Net(), options=options)(torch.arange(4)).sum().backward()
    intarsia.compile(printing, options={"debug": str(folder)})(torch.randn(3))
    names = sorted((p.name for p in (folder / "run1").iterdir()), key=lambda name: int(re.findall(r"\d+", name)[-1]))
    assert names[:4] == ["scaled_1", "Net_2_forward", "Net_3_backward", "printing_4"]
    assert re.fullmatch(r"printing_from_line_\d+_on_5", names[4]) and len(names) == 5
    monkeypatch.setattr(debug, "_runs", {})  # as another process has it
    with torch.no_grad():
        intarsia.compile(lambda x: x.sin(), options=options)(torch.randn(3))
    assert [p.name for p in (folder / "run2").iterdir()] == ["lambda_1"]
    assert len(list((folder / "run1").iterdir())) == 5


def test_each_kernel_runs_alone_and_is_right(folder, capsys):
    paths = sorted((folder / "run1/scaled_1").glob("kernel_*.py"))
    assert [p.name for p in paths] == ["kernel_1.py", "kernel_2.py"]
    for path in paths:
        assert ran(path, "--check") == 0
        told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert (
            re.fullmatch(r"[\d,.]+ us on .*", told["time"]) and "B/s" in told["bytes"] and "op/s" in told["operations"]
        )
        assert re.fullmatch(r"\d+% of large copies at .*B/s", told["limit"])
        assert told["checked"].endswith("apart from its loops") and f"{__file__}:" in told["lines"]
    done = subprocess.run(
        [sys.executable, paths[0].name], cwd=paths[0].parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("kernel ") and "limit " in done.stdout


def test_bytes_follow_the_sizes(folder, capsys):
    path = folder / "run1/scaled_1/kernel_2.py"  # the sum over 64 rows of 96
    (rows, columns) = re.findall(r'"(s\d+)"', runpy.run_path(str(path))["MODULE"].split("size_hints")[1])[:2]
    for count in (8, 16):
        assert ran(path, "--sizes", f"{rows}=1024,{columns}={count}") == 0
        assert f"bytes       {(1024 * count * 4 + count * 4) / 1024:.3g} KiB" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        ran(path, "--sizes", "q=3")
    assert "no symbol 'q'" in capsys.readouterr().err


def test_what_stands_in_the_script_is_what_runs(folder, capsys):
    path = folder / "run1/scaled_1/kernel_2.py"
    assert ran(path, "--check", edit=lambda code: code.replace("2.0f", "3.0f")) == 1
    assert "WRONG" in capsys.readouterr().out
    assert ran(path, edit=lambda code: code.replace("2.0f", "2.0f +")) == 1
    assert "error: " in capsys.readouterr().err


def test_a_model_s_equal_kernels_are_one():
    layers = torch.nn.Sequential(*(m for _ in range(3) for m in (torch.nn.Linear(8, 8, bias=False), torch.nn.Tanh())))
    low = intarsia.lower(lambda x: layers(x).exp(), torch.randn(200, 8))
    found = list(scripts(low._module, "cpu"))
    assert [name for name, _ in found] == [f"kernel_{k}.py" for k in range(1, len(found) + 1)]
    assert len({re.search(r"The kernel (\w+)", text).group(1) for _, text in found}) == len(found) < 6


def test_names_of_files_never_become_code(tmp_path, capsys):
    made: dict = {}
    exec(compile("def f(x): return (x.exp() + 1).sum()", 'a"""b\\ */\n$(id)\'\u202e{0}.py', "exec"), made)
    for target in ("cpp", "triton:sm_90"):
        low = intarsia.lower(made["f"], torch.randn(300), target=target)
        for name, text in scripts(low._module, target.removeprefix("triton:").replace("cpp", "cpu")):
            (tmp_path / name).write_text(text, encoding="utf-8")
            assert "\u202e" not in text and ran(tmp_path / name) == 0
            assert "\u202e" not in capsys.readouterr().out


@pytest.mark.parametrize("target", ["triton:sm_90", "triton:gfx942"])
def test_a_gpu_s_kernel_is_compiled_where_there_is_no_gpu(target, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert passes_opt(["--emit", "benchmarks", "--target", target, "-o", str(tmp_path), SOFTMAX]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/kernel_1.py\n"
    assert ran(tmp_path / "kernel_1.py", "--sizes", "s0=100") == 0
    out = capsys.readouterr().out
    assert f"bytes       {100 * 768 * 8 / 1024:.3g} KiB" in out
    assert re.search(rf"compiled    for {target[7:]}: \d+ bytes of code", out) and "has no GPU" in out
    assert ran(tmp_path / "kernel_1.py", edit=lambda code: code.replace("tl.exp", "tl.no_such")) == 1
    assert "no_such" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "name their folder with -o"),
        (["--target", "triton:sm_90"], "name their folder with -o"),
        (["-o", "x", "--split-input-file"], "several modules"),
    ],
)
def test_where_to_has_to_be_said(flags, said, capsys):
    assert passes_opt(["--emit", "benchmarks", *flags, SOFTMAX]) == 2
    assert said in capsys.readouterr().err
