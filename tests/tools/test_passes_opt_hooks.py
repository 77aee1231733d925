"""Files of `--load` with a mistake in them: what is said names the file and its line, in a few lines, and the exit code is not 0."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from intarsia.tools.opt import combinations, machines
from intarsia.tools.opt.main import main

HEAD = "from dataclasses import dataclass\nfrom intarsia.extend import *\n"
PASS = (
    HEAD
    + """
@dataclass(frozen=True)
class Mine(Pass):
    name = "mine"
    level = "prim"
    after = ("dce",)
    before = ("fuse",)

    def apply(self, ctx, module):
        BODY
"""
)
FUSE = HEAD + "\n@dataclass(frozen=True)\nclass Mine(Fuse):\n    name, replaces = 'mine', 'fuse'\n\n    def BODY\n"
PLAN = (
    HEAD
    + "\n@dataclass(frozen=True)\nclass Mine(PlanBuffers):\n    name, replaces = 'mine', 'plan-buffers'\n\n    def BODY\n"
)
TARGET = (
    HEAD + "\nclass Mine(Target):\n    name, stage = 'mine', 'prim'\n\n    def write(self, module):\n        BODY\n"
)
RULE = "apply_rules(module, {'prim.exp': (RULE,)})"
# Two values in the arena.
PROGRAM = """prim.func @main() ({
^bb0(%x: !prim.tensor<[64, 64], f32>):
  %e = prim.exp(%x) : !prim.tensor<[64, 64], f32> loc("user.py":3:0)
  %a = kernel.extern(%e, %x) {target = "aten.mm.default", operands = ["self", "mat2"], operand_strides = [none, none]} : !prim.tensor<[64, 64], f32>
  %b = prim.exp(%a) : !prim.tensor<[64, 64], f32>
  %c = prim.neg(%b) : !prim.tensor<[64, 64], f32>
  prim.return(%c)
})"""


def body(text: str, of: str = PASS) -> str:
    return of.replace("BODY", text)


CASES: dict[str, tuple[str, int, str]] = {
    # what is read
    "raises": ("x = 1\nraise ValueError('boom')", 2, "mine.py:2: ValueError: boom\n  raise ValueError('boom')"),
    "syntax": ("def f(:", 2, "mine.py:1: invalid syntax"),
    "binary": ("\0\1", 2, "mine.py: source code string cannot contain null bytes"),
    "ends": ("import sys\nsys.exit(0)", 2, "mine.py:2: SystemExit: 0"),
    "nothing": ("", 2, "has no pass: a subclass of intarsia's Pass"),
    "no name": (PASS.replace('name = "mine"', "pass"), 2, "the class Mine has no name"),
    "name is no text": (PASS.replace('"mine"', "5"), 2, "the pass Mine cannot be called 5"),
    "level": (PASS.replace('"prim"', '"primm"'), 2, "a level is one of aten, prim"),
    "edge": (PASS.replace('"dce"', '"dcee"'), 2, "'dcee', which is no pass and no level; did you mean 'dce'?"),
    # a pass
    "no apply": (PASS.replace("def apply", "def aply"), 1, "Mine has no method apply(self, ctx, module)"),
    "error": (body("raise ValueError('mine')"), 1, "ValueError: mine (/F/mine.py:12: raise ValueError('mine'))"),
    "exit": (body("import sys; sys.exit(0)"), 1, "failed: SystemExit: 0 (/F/mine.py:12"),
    "long": (body("raise ValueError('line\\n' * 99)"), 1, "ValueError: line"),
    "hostile": (body(r"raise ValueError('\u202e\x1b')"), 1, r"ValueError: \u202e\u001b (/F/"),
    "lost": (
        body("next(op for op in module.walk() if op.name == 'prim.exp').detach()"),
        1,
        "reads the result of prim.exp, which does not stand in front of it in the module",
    ),
    "late": (
        body("op = next(op for op in module.walk() if op.name == 'prim.exp'); block = op.parent; op.detach(); block.insert_op_before(op, block.last_op)"),
        1,
        "reads the result of prim.exp, which does not stand in front of it in the module",
    ),
    # rules
    "rule gives a number": (
        body(RULE.replace("RULE", "lambda op: 7")),
        1,
        "the rule for prim.exp (/F/mine.py:12) gives 7: a rule gives a value, an operation",
    ),
    "rule gives no operation": (body(RULE.replace("RULE", "lambda op: []")), 1, "gives []: a rule gives"),
    "rule of nothing": (body(RULE.replace("exp", "expp").replace("RULE", "lambda op: None")), 1, "no operation is called 'prim.expp'; did you mean"),
    "rule gives another shape": (
        body(RULE.replace("RULE", "lambda op: prim.reshape(op.operands[0], [3])")),
        1,
        "has 4096 elements, !prim.tensor<[3], f32> has 3",
    ),
    # policies
    "text as worth": (body("worth(self, plan, a, b): return 'x'", FUSE), 1, "Mine.worth gives 'x', which is no number"),
    "nan as worth": (body("worth(self, plan, a, b): return float('nan')", FUSE), 1, "worth gives nan"),
    "none as turn": (body("turn(self, access): return None", FUSE), 1, "Mine.turn gives None, which is no number"),
    "no size of an arena": (body("pack(self, places): return None", PLAN), 1, "pack gives None as an offset or a size"),
    "no place": (body("pack(self, places): return 1", PLAN), 1, "is no place in an arena of 1 bytes"),
    # targets
    "target fails": (body("return [][0]", TARGET), 1, "the target 'mine': it fails: IndexError"),
    "target gives bytes": (body("return b''", TARGET), 1, "the target 'mine' gives bytes, not text"),
    "target stage": (body("return ''", TARGET).replace("'prim'", "'prin'"), 1, "behind 'prin', which is no pass"),
    "target name": (body("return ''", TARGET).replace("'mine'", "'cpp'"), 2, "Mine cannot be called 'cpp': that is one of"),
    "target without name": (body("return ''", TARGET).replace("'mine'", "''"), 2, "the class Mine has no name"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_said(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, code, said = CASES[case]
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "program.ir").write_text(PROGRAM)
    asked = ["--emit", "mine"] if "(Target)" in text and code == 1 else ["-p", "default"]
    files = ["--load", str(tmp_path / "mine.py"), "--reproducer-dir", str(tmp_path), str(tmp_path / "program.ir")]
    found = main([*asked, *files])
    out, err = capsys.readouterr()
    assert (found, out) == (code, "") and said in err.replace(str(tmp_path), "/F")
    assert len(err.splitlines()) <= 15 and "Traceback" not in err


def test_ctrl_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(body("raise KeyboardInterrupt"))
    (tmp_path / "program.ir").write_text(PROGRAM)
    assert main(["--load", str(tmp_path / "mine.py"), "-p", "default", str(tmp_path / "program.ir")]) == 130
    assert capsys.readouterr().err == "passes-opt: interrupted\n"


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        ("fuse}", "a brace is closed that was not opened"),
        ("fuse{max-ops=1,max-ops=2}", "'max-ops' is given twice"),
        ("fuse{max-ops=-1}", "pass 'fuse': option 'max-ops' takes 1 or more, not -1"),
        ("hoist{max-bytes=-1}", "option 'max-bytes' takes 0 or more, not -1"),
    ],
)
def test_pipelines(pipeline: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.ir").write_text(PROGRAM)
    assert main(["-p", pipeline, str(tmp_path / "program.ir")]) == 2
    assert said in capsys.readouterr().err


def test_flags_of_passes_where_no_pass_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.ir").write_text(PROGRAM)
    assert main(["--timing", "--statistics", str(tmp_path / "program.ir")]) == 0
    assert "no pass runs (-p names some), of which --statistics, --timing could say" in capsys.readouterr().err
    assert main(["--timing", "-p", "dce", str(tmp_path / "program.ir")]) == 0
    assert "no pass runs" not in capsys.readouterr().err


def test_results_that_tell_nothing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NaN is NaN whatever a pass does to it."""
    text = "prim.func @main() {symbols = []} ({\n^bb0(%x: !prim.tensor<[4], f32>):\n  %a = prim.sub(%x, %x) : !prim.tensor<[4], f32>\n"
    text += "  %b = prim.div(%a, %a) : !prim.tensor<[4], f32>\n  prim.return(%a, %b)\n})\n"
    (tmp_path / "program.ir").write_text(text)
    assert main(["-p", "dce", "--check-each", str(tmp_path / "program.ir")]) == 0
    assert "result 1 of them has no finite element, which tells nothing" in capsys.readouterr().err
    assert main(["-p", "dce", "--run", str(tmp_path / "program.ir")]) == 0
    assert "(result 1 of them has no finite element" in capsys.readouterr().out


@pytest.mark.parametrize("here", ["avx2", "avx512"])
def test_compiled_code_is_made_for_the_processor_that_runs_it(
    here: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was made for AVX-512 everywhere: products of packed weights were said to be wrong, and were, where there is none."""
    (tmp_path / "program.ir").write_text(PROGRAM)
    tool = importlib.import_module("intarsia.tools.opt.main")
    made: list[str] = []
    for room in (machines, combinations):
        monkeypatch.setattr(room, "detect_isa", lambda: here)
    monkeypatch.setattr(tool, "run_on_target", lambda module, inputs: made.append(isa.pop()) or [])  # type: ignore[func-returns-value]
    isa: list[str] = []
    started = tool.run_pipeline
    monkeypatch.setattr(
        tool, "run_pipeline", lambda ctx, *a, **k: isa.append(ctx.machine.cpu.name) or started(ctx, *a, **k)
    )
    main(["-p", "default", "--run-compiled", str(tmp_path / "program.ir")])
    assert made == [here]
    other = {"avx2": "avx512", "avx512": "avx2"}[here]
    for target in (f"cpu:{other}", *(["cpu"] if here == "avx2" else [])):
        assert main(["-p", "default", "--run-compiled", "--target", target, str(tmp_path / "program.ir")]) == 2
        assert f"this processor ({here}), and --target {target} makes it for" in capsys.readouterr().err


def test_two_functions_of_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "program.ir").write_text(f"{PROGRAM}\n{PROGRAM}")
    assert main([str(tmp_path / "program.ir")]) == 1
    assert "program.ir:9:1: error: prim.func: another one is called @main, too" in capsys.readouterr().err
