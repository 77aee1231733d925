"""Targets of others: a class in a file, reached by `passes-opt --emit` and `--target` and by `lower(target=)`; what it refuses is named."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

import intarsia
from intarsia.extend import Target
from intarsia.extend.target import Unwritten
from intarsia.passes.core.plugins import forget_warnings
from intarsia.tools.opt.main import main as passes_opt

EXAMPLES = Path(__file__).parents[2] / "examples"
SOFTMAX = str(EXAMPLES / "softmax.ir")


class Counted(Target):
    name = "counted"
    stage = "prim"

    def write(self, module):
        return f"{sum(op.name.startswith('prim.') for op in module.walk())} primitives\n"


def f(x):
    return torch.softmax(x, -1)


@pytest.mark.parametrize(
    ("file", "name", "begins"),
    [("c99", "c99", "#include <math.h>"), ("webgpu", "webgpu", "@group(0)"), ("numpy", "numpy", "def run(x0):")],
)
def test_targets_of_files(file, name, begins, capsys):
    path = str(EXAMPLES / f"{file}_target.py")
    for how in ("--emit", "--target"):
        assert passes_opt(["--load", path, how, name, SOFTMAX]) == 0
        assert capsys.readouterr().out.startswith(begins)


def test_a_lowered_function_has_its_text_and_runs():
    numpy = runpy.run_path(str(EXAMPLES / "numpy_target.py"))["NumPy"]
    x = torch.randn(5, 7)
    for given in (numpy, numpy()):
        low = intarsia.lower(f, x, target=given)
        assert low.target == "numpy" and low.source() == low.as_text("numpy") and "np.exp" in low.source()
        torch.testing.assert_close(torch.from_numpy(low.compile()(x)), f(x))
        assert low.kernels and low.ir("buffer") and "Lowered for numpy" in str(low)


def test_text_only_and_what_is_no_target():
    low = intarsia.lower(f, torch.randn(3, 4), target=Counted)
    assert low.source() == f"{low.ir('prim').count('prim.') - low.ir('prim').count('!prim.')} primitives\n"
    with pytest.raises(TypeError, match="the target 'counted' writes text"):
        low.compile()

    def takes(x, target):
        return x * target

    assert intarsia.lower(takes, torch.ones(3), target=2.0).run("aten", torch.ones(3), target=2.0).sum() == 6


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda self, module: 5, "gives int, not text"),
        (lambda self, module: 1 // 0, "it fails: ZeroDivisionError: .*test_targets_of_others.py:"),
        (lambda self, module: Target.write(self, module), "it does not write"),
    ],
)
def test_a_target_that_fails_is_named(write, said):
    bad = type("Bad", (Target,), {"name": "bad", "write": write})
    with pytest.raises(Unwritten, match=f"the target 'bad'.*{said}"):
        intarsia.lower(f, torch.randn(3), target=bad)


def test_a_stage_or_a_name_that_is_missing():
    with pytest.raises(ValueError, match="unknown stage of a target 'lowr'; did you mean 'lower'"):
        intarsia.lower(f, torch.randn(3), target=type("Bad", (Target,), {"name": "bad", "stage": "lowr"}))
    with pytest.raises(ValueError, match="has no name"):
        intarsia.lower(f, torch.randn(3), target=type("Bad", (Target,), {}))


BAD = """
from intarsia.extend import Target
class Bad(Target):
    name = "bad"
    stage = {stage!r}
    def write(self, module):
        raise NotImplementedError("prim.mul")
"""


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (["--emit", "bad"], 1, "passes-opt: error: the target 'bad': it does not write prim.mul"),
        (["--emit", "bda"], 2, "unknown --emit 'bda'; did you mean 'bad'?"),
        (
            ["--emit", "bad", "-p", "canonicalize"],
            1,
            "reads modules behind 'fuse', at level 'kernel'; this one is at prim",
        ),
        (["--target", "bda"], 2, "unknown target 'bda'"),
        (["--emit", "bad", "--run"], 2, "each replace the output"),
    ],
)
def test_the_tool_names_what_is_wrong(flags, code, said, tmp_path, capsys):
    (tmp_path / "bad.py").write_text(BAD.format(stage="fuse"))
    assert passes_opt(["--load", str(tmp_path / "bad.py"), *flags, SOFTMAX]) == code
    assert said in capsys.readouterr().err


def test_a_file_with_neither(tmp_path, capsys):
    (tmp_path / "empty.py").write_text("from intarsia.extend import Target, Pass\n")
    assert passes_opt(["--load", str(tmp_path / "empty.py"), SOFTMAX]) == 2
    assert "has no pass" in (err := capsys.readouterr().err) and "and no target" in err
    (tmp_path / "stage.py").write_text(BAD.format(stage="nowhere"))
    assert passes_opt(["--load", str(tmp_path / "stage.py"), "--emit", "bad", SOFTMAX]) == 1
    assert "which is no pass and no level" in capsys.readouterr().err


def test_a_module_that_has_come_to_its_level_is_written_as_it_is(tmp_path, capsys):
    path, wanted = (
        str(EXAMPLES / "c99_target.py"),
        ["-p", "fuse,layout,lower", "-o", str(tmp_path / "loops.ir"), SOFTMAX],
    )
    assert passes_opt(wanted) == 0
    assert passes_opt(["--load", path, "--emit", "c99", SOFTMAX]) == 0
    direct = capsys.readouterr().out
    assert passes_opt(["--load", path, "--emit", "c99", "-p", "", str(tmp_path / "loops.ir")]) == 0
    assert re.sub(r"_[0-9a-f]{8}", "", capsys.readouterr().out) == re.sub(r"_[0-9a-f]{8}", "", direct)


PACKAGE = """from intarsia.extend import Target


class Lines(Target):
    name = "lines"
    stage = "prim"

    def write(self, module):
        return "".join(f"{op.name}\\n" for op in module.walk())


class Cpp(Lines):
    name = "cpp"
"""
POINTS = """[intarsia.targets]
lines = lines_of:Lines
again = lines_of:Lines
cpp = lines_of:Cpp
text = lines_of:__name__
gone = lines_of.gone:Lines
"""


def test_targets_of_installed_packages(tmp_path, monkeypatch, capsys, caplog):
    """By name, everywhere; what cannot be used is named, and harms nothing."""
    (tmp_path / "lines_of.py").write_text(PACKAGE)
    folder = tmp_path / "lines_of-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: lines-of\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_warnings()
    assert intarsia.lower(f, torch.randn(5, 7), target="lines").source().startswith("builtin.module\nprim.func\n")
    said = [record.getMessage() for record in caplog.records]
    begins = ("again' (lines-of 1.0, lines_of:Lines) is left out: another installed target is called 'lines'",)
    begins += ("text' (lines-of 1.0, lines_of:__name__) is left out: it is nothing that derives from Target",)
    begins += ("gone' (lines-of 1.0, lines_of.gone:Lines) is left out: it cannot be used: ModuleNotFoundError",)
    assert len(said) == 3 and all(any(f"the installed target '{b}" in text for text in said) for b in begins)
    assert passes_opt(["--target", "lines", SOFTMAX]) == 0 and "prim.reduce" in capsys.readouterr().out
    assert passes_opt(["--emit", "cpp", SOFTMAX]) == 0 and 'extern "C" int' in capsys.readouterr().out
    assert passes_opt(["--list"]) == 0 and "target lines: --emit lines" in capsys.readouterr().out
    with pytest.raises(ValueError, match="line"):
        intarsia.lower(f, torch.randn(5, 7), target="linez")
