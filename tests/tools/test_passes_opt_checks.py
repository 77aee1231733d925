"""passes-opt beyond running passes: passes from files, checks by running, reduction, code, pictures, completion."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from intarsia.ir.syntax import location
from intarsia.ir.text import parse_module, print_module
from intarsia.tools.opt.main import main

SOFTMAX = """prim.func @main() {symbols = [["s0", 0, 0, 2, none]], size_hints = [["s0", 5]]} ({
^bb0(%x: !prim.tensor<[s0, 8], f32>, %n: !prim.tensor<[s0, 8], i64>):
  %m = prim.reduce<max>(%x) {dims = [1]} : !prim.tensor<[s0], f32> loc("model.py":4:0)
  %mb = prim.broadcast(%m) {dims = [0]} : !prim.tensor<[s0, 8], f32> loc("model.py":4:0)
  %d = prim.sub(%x, %mb) : !prim.tensor<[s0, 8], f32> loc("model.py":5:0)
  %e = prim.exp(%d) : !prim.tensor<[s0, 8], f32> loc("model.py":5:0)
  %s = prim.reduce<sum>(%e) {dims = [1]} : !prim.tensor<[s0], f32> loc("model.py":6:0)
  %sb = prim.broadcast(%s) {dims = [0]} : !prim.tensor<[s0, 8], f32> loc("model.py":6:0)
  %r = prim.div(%e, %sb) : !prim.tensor<[s0, 8], f32> loc("model.py":6:0)
  %k = prim.add(%n, %n) : !prim.tensor<[s0, 8], i64> loc("model.py":7:0)
  prim.return(%r, %k)
})
"""

WRONG = '''
from dataclasses import dataclass

from intarsia.passes.core.base import Pass


@dataclass(frozen=True)
class Wrong(Pass):
    """Turns subtractions around."""

    name = "wrong"
    level = "prim"
    after = ("dce",)
    before = ("fuse",)

    def apply(self, ctx, module):
        for op in module.walk():
            if op.name == "prim.sub":
                op.operands = op.operands[::-1]
'''

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    Path("graph.ir").write_text(SOFTMAX)
    Path("wrong.py").write_text(WRONG)

    def go(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(arguments)
        except SystemExit as error:
            code = int(error.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return go


def test_a_pass_of_a_file_is_part_of_the_default_pipeline(run: Run) -> None:
    code, out, err = run("--load", "wrong.py", "-p", "default", "--print-pipeline", "graph.ir")
    assert code == 0 and ",wrong,fuse," in err.replace("contraction-epilogue,", "") and "buffer.launch" in out
    code, out, _ = run("--load", "wrong.py", "-p", "wrong,wrong", "graph.ir")
    assert code == 0 and "prim.sub(%x, %mb)" in out
    assert "wrong" not in run("--list")[1]


def test_a_pass_of_a_package(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a_package").mkdir()
    Path("a_package/__init__.py").write_text("from .inner import Wrong\n")
    Path("a_package/inner.py").write_text(WRONG)
    monkeypatch.syspath_prepend(".")
    assert "prim.sub(%mb, %x)" in run("--load-package", "a_package", "-p", "wrong", "graph.ir")[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import nothing_here",
            "broken.py:1: ModuleNotFoundError: No module named 'nothing_here'\n  import nothing_here",
        ),
        ("x = 1\ny = (", "broken.py:2: '(' was never closed\n  y = ("),
        ("1 / 0", "broken.py:1: ZeroDivisionError: division by zero"),
        ("x = 1", "has no pass: a subclass of intarsia's Pass"),
        (WRONG.replace('"wrong"', '"fuse"'), "two passes are called 'fuse'"),
        (WRONG.replace('("dce",)', '("fuse",)'), "the order of passes has a cycle"),
        (WRONG.replace('"prim"', '"prom"'), "a level is one of aten, prim"),
        ("raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_files_that_give_no_pass(run: Run, text: str, message: str) -> None:
    Path("broken.py").write_text(text)
    code, out, err = run("--load", "broken.py", "-p", "default", "graph.ir")
    assert code == 2 and out == "" and message in err and len(err.splitlines()) <= 15


def test_files_that_are_none(run: Run) -> None:
    assert "nowhere.py: is no file" in run("--load", "nowhere.py", "--list")[2]
    assert "graph.ir: is not called *.py" in run("--load", "graph.ir", "--list")[2]
    assert "No module named 'nowhere'" in run("--load-package", "nowhere", "--list")[2]


def test_bisecting_leaves_out_what_nothing_needs(run: Run) -> None:
    code, out, err = run("--load", "wrong.py", "-p", "default", "--opt-bisect-limit", "3", "graph.ir")
    assert code == 0 and "buffer.launch" in out
    heads = re.findall(r"BISECT: (NOT running|running) pass \((\d+)\) (\S+)( \(needed\))?", err)
    assert [int(number) for _, number, _, _ in heads] == list(range(1, len(heads) + 1))
    assert [said for said, number, _, _ in heads if int(number) <= 3] == ["running"] * 3
    said = {name: (said, needed) for said, _, name, needed in heads}
    assert said["wrong"] == ("NOT running", "") and said["fuse"] == ("running", " (needed)")


def test_running_compares_the_levels(run: Run) -> None:
    code, out, _ = run("-p", "default", "--run", "graph.ir")
    assert code == 0 and "results with s0=5:" in out and "int64[5, 8]: " in out and "WRONG" not in out
    assert re.findall(r"^(\w+) +(?:as read|behind \S+) ", out, flags=re.M) == ["prim", "kernel", "loop", "buffer"]
    code, out, _ = run("--load", "wrong.py", "-p", "default", "--run", "--sizes", "s0=2", "graph.ir")
    assert code == 1 and "results with s0=2:" in out and out.count("  WRONG") == 3


def test_how_far_results_may_be_apart_can_be_given(run: Run) -> None:
    for flags, code in ((("--tolerance", "2"), 0), (("--tolerance", "0.01"), 1), ((), 1)):
        assert run("--load", "wrong.py", "-p", "default", "--check-each", *flags, "graph.ir")[0] == code
        out = run("--load", "wrong.py", "-p", "default", "--run", *flags, "graph.ir")[1]
        assert ("WRONG" in out) == bool(code)


def test_running_compiled_code(run: Run) -> None:
    code, out, _ = run("-p", "default", "--target", "cpu:native", "--run-compiled", "graph.ir")
    assert code == 0 and re.search(r"^code +compiled C\+\+ ", out, flags=re.M) and "WRONG" not in out
    assert "the pipeline 'default' takes it there" in run("-p", "fuse", "--run-compiled", "graph.ir")[2]


def test_inputs_of_a_file(run: Run) -> None:
    torch.save([torch.zeros(3, 8), torch.full((3, 8), 4)], "inputs.pt")
    code, out, _ = run("--run", "--inputs", "inputs.pt", "graph.ir")
    assert code == 0 and "float32[3, 8]: 0.125, 0.125" in out and "int64[3, 8]: 8, 8" in out and "s0=3" in out
    torch.save([torch.zeros(3, 8)], "inputs.pt")
    code, _, err = run("--run", "--inputs", "inputs.pt", "graph.ir")
    assert code == 1 and "holds a list of 1; @main takes a list of 2 tensors and numbers" in err
    for given, message in (
        ([torch.zeros(3, 8), 4], "argument 1 of @main is !prim.tensor<[s0, 8], i64>, and not a int"),
        ([torch.zeros(8), torch.full((3, 8), 4)], "and not a tensor of 1 dimensions and float32"),
        ([torch.zeros(3, 8), torch.zeros(3, 8)], "and not a tensor of 2 dimensions and float32"),
    ):
        torch.save(given, "inputs.pt")
        code, _, err = run("--run", "--inputs", "inputs.pt", "graph.ir")
        assert code == 1 and message in err
    assert "'graph.ir' is no file that torch.save made" in run("--run", "--inputs", "graph.ir", "graph.ir")[2]
    assert "cannot read 'none.pt': No such file" in run("--run", "--inputs", "none.pt", "graph.ir")[2]
    assert "s0=1 lies outside its range 2 and more" in run("--run", "--sizes", "s0=1", "graph.ir")[2]


def test_inputs_of_a_file_are_laid_out_as_the_module_expects(run: Run) -> None:
    torch.save([torch.randn(8, 3).t(), torch.randint(0, 9, (3, 16))[:, ::2]], "inputs.pt")
    code, out, _ = run("-p", "default", "--run-compiled", "--inputs", "inputs.pt", "graph.ir")
    assert code == 0 and "WRONG" not in out and "compiled C++" in out


def test_all_passes_run_with_the_limit_of_none(run: Run) -> None:
    code, _, err = run("-p", "default", "--opt-bisect-limit", "-1", "graph.ir")
    assert code == 0 and "BISECT: running pass (1)" in err and "NOT running" not in err


def test_standard_input_that_is_no_module(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for data, message in ((b"", "'<stdin>' is empty"), (b"\xff\xfe\0", "cannot read '<stdin>': 'utf-8' codec")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        code, _, err = run("-p", "default")
        assert code == 1 and message in err
    assert "is read from a file, not from standard input" in run("--from", "onnx")[2]
    assert "cannot read 'none.onnx': it is no file" in run("--from", "onnx", "none.onnx")[2]


def test_targets_of_files_are_listed_completed_and_suggested(run: Run) -> None:
    examples = str(Path(__file__).parents[2] / "examples" / "c99_target.py")
    assert "target c99: --emit c99, which reads modules behind 'lower'" in run("--load", examples, "--list")[1]
    for shell in ("bash", "fish"):
        script = run("--load", examples, "--completion", shell)[1]
        assert len(re.findall(r"(target|emit)\b.* c99'", script)) == 2
    assert "unknown target 'c98'; did you mean 'c99'?" in run("--load", examples, "--target", "c98", "graph.ir")[2]
    code, _, err = run("--load", examples, "--target", "c99", "--emit", "cpp", "graph.ir")
    assert code == 2 and "give one of them" in err


def test_checking_each_pass_names_the_first_wrong_one(run: Run) -> None:
    code, _, err = run("-p", "default", "--check-each", "graph.ir")
    assert code == 0 and re.search(r"^checked: \d+ passes; results ", err, flags=re.M)
    code, out, err = run("--load", "wrong.py", "-p", "default", "--check-each", "--reproducer-dir", "kept", "graph.ir")
    assert code == 1 and out == "" and "pass 'wrong' (" in err and "failed: result 0 is float32[5, 8]: " in err
    (kept,) = Path("kept").iterdir()
    code, out, _ = run("--load", "wrong.py", "--run-reproducer", str(kept))
    assert code == 0 and "prim.sub(%mb, %x)" in out
    code, _, err = run("--load", "wrong.py", "--run-reproducer", str(kept), "--check-each")
    assert code == 1 and "pass 'wrong'" in err and len(err.splitlines()) <= 15


def test_the_text_reads_back_after_each_pass(run: Run) -> None:
    assert run("-p", "default", "--verify-roundtrip", "graph.ir")[0] == 0
    planted = WRONG.replace("op.operands = op.operands[::-1]", 'op.attributes["no name"] = LiteralAttr(1)')
    Path("odd.py").write_text("from intarsia.ir.types import LiteralAttr\n" + planted)
    code, _, err = run("--load", "odd.py", "-p", "wrong", "--verify-roundtrip", "graph.ir")
    assert code == 1 and "pass 'wrong'" in err and "its text does not parse" in err


def test_reduction(run: Run) -> None:
    test = "passes-opt --load {} -p default --check-each".format(Path("wrong.py").resolve())
    code, out, err = run("--load", "wrong.py", "--reduce", "--test", test, "graph.ir")
    assert code == 0 and re.findall(r"= (prim\.\w+)", out) == ["prim.sub"] and "1 operations after" in err
    Path("small.ir").write_text(out)
    assert run("--load", "wrong.py", "-p", "default", "--check-each", "small.ir")[0] == 1


def test_reduction_by_another_command(run: Run) -> None:
    code, out, _ = run("--reduce", "--test", "sh -c '! grep -q prim.exp %s'", "graph.ir")
    assert code == 0 and re.findall(r"= (prim\.\w+)", out) == ["prim.exp"]
    grep = "sh -c 'grep prim.sub %s && exit 3'"
    code, out, _ = run("--reduce", "--test", grep, "--test-prints", r"%\w+ = prim\.sub", "graph.ir")
    assert code == 0 and re.findall(r"= (prim\.\w+)", out) == ["prim.sub"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("--test", "true"), "the test does not fail on the module as it was read"),
        (("--test", "no-such-command-here"), "cannot run 'no-such-command-here'"),
        (("--test", "passes-opt --nope"), "the test is no command that passes-opt takes: passes-opt: error: unknown"),
        (("--test", "false", "--test-prints", "x"), "prints nothing that 'x' matches"),
        (("--test", "sleep 5", "--test-seconds", "0.05", "--test-prints", "x"), "prints nothing that 'x' matches"),
    ],
)
def test_tests_that_reduction_cannot_use(run: Run, command: tuple[str, ...], message: str) -> None:
    code, out, err = run("--reduce", *command, "graph.ir")
    assert code == 1 and out == "" and message in err


def test_the_path_of_a_candidate_is_no_part_of_what_a_test_prints(run: Run) -> None:
    for pattern in ("passes-opt-", "^$"):  # `ls -d` prints the path: with its folder it would match by chance
        command = ("--test", "sh -c 'ls -d $0; exit 1'", "--test-prints", pattern)
        code, out, err = run("--reduce", *command, "graph.ir")
        assert code == 1 and out == "" and "its last line: candidate.ir" in err
    code, out, err = run("--reduce", "--test", "sh -c 'ls -d $0; exit 1'", "graph.ir")
    assert code == 0 and "prim.sub" not in out and "the test fails without any operation, too" in err


def test_code(run: Run) -> None:
    assert "#pragma omp" in run("--emit", "cpp", "--target", "cpu:avx2", "graph.ir")[1]
    assert "def run(" in run("--emit", "host", "graph.ir")[1] or "return run" in run("--emit", "host", "graph.ir")[1]
    assert "@triton.jit" in run("--emit", "triton", "--target", "triton:sm_80", "graph.ir")[1]
    assert "the module is for a CPU" in run("--emit", "triton", "graph.ir")[2]
    assert "the module is at level 'kernel'" in run("-p", "fuse", "--emit", "cpp", "graph.ir")[2]
    Path("loops.ir").write_text(run("--until", "loop", "graph.ir")[1])
    assert "a GPU has other loops" in run("--emit", "triton", "--target", "triton:sm_80", "loops.ir")[2]


def test_a_picture_of_the_module(run: Run) -> None:
    Path("odd.ir").write_text(SOFTMAX.replace("{symbols", '{arg_names = ["a\\"];x", "<n>"], symbols'))
    for level in ("aten", "kernel"):
        code, out, _ = (
            run("--until", level, "--emit", "dot", "odd.ir") if level == "kernel" else run("--emit", "dot", "odd.ir")
        )
        assert code == 0 and r"a\"];x" in out and out.count("{") == out.count("}")
        if dot := shutil.which("dot"):
            subprocess.run([dot, "-Tsvg"], input=out, text=True, check=True, capture_output=True)


def test_the_order_of_the_passes(run: Run) -> None:
    for target in ("cpu", "triton:sm_90"):
        code, out, _ = run("--load", "wrong.py", "--target", target, "--graph")
        words = "".join(ElementTree.fromstring(out).itertext())
        assert code == 0 and "wrong (of others)" in words and ("horizontal-fusion" in words) == (target != "cpu")


def test_help(run: Run) -> None:
    code, out, _ = run("--help-pass", "fuse")
    assert code == 0 and "max-ops=256  (an integer)" in out and "prim -> kernel" in out and "after:" in out
    assert "unknown pass 'fusee'; did you mean 'fuse'?" in run("--help-pass", "fusee")[2]
    assert "prim (" in run("--show-dialects")[1] and run("--version")[1].startswith("passes-opt of intarsia ")
    code, out, _ = run("--help")
    assert code == 0 and "--opt-bisect-limit" in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Run, shell: str) -> None:
    script = run("--completion", shell)[1]
    assert "plan-buffers" in script and "triton:sm_90" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)
    if shell == "bash" and shutil.which("bash"):
        ask = "\nCOMP_WORDS=(passes-opt --target triton:sm_9); COMP_CWORD=2; _passes_opt; echo ${COMPREPLY[@]}"
        assert subprocess.run(["bash"], input=script + ask, text=True, capture_output=True).stdout == "triton:sm_90\n"


def test_a_file_for_each_pass(run: Run) -> None:
    run("-p", "canonicalize,fuse", "--print-ir-tree-dir", "tree", "--no-loc", "graph.ir")
    files = sorted(path.name for path in Path("tree").iterdir())
    assert files == ["00-input.ir", "01-canonicalize.ir", "02-fuse.ir"]
    assert "loc(" not in Path("tree/02-fuse.ir").read_text() and "kernel.fused" in Path("tree/02-fuse.ir").read_text()
    assert "cannot write" in run("-p", "cse", "--print-ir-tree-dir", "graph.ir/x", "graph.ir")[2]


def test_printing_after_changes_and_failures(run: Run) -> None:
    _, _, err = run("-p", "cse,fuse", "--print-ir-after-change", "graph.ir")
    assert re.findall(r"// ----- (.*) -----", err) == ["IR after fuse"]
    Path("fails.py").write_text(WRONG.replace("op.operands = op.operands[::-1]", "op.operands = []"))
    _, _, err = run("--load", "fails.py", "-p", "wrong,cse", "--print-ir-after-failure", "graph.ir")
    assert "// ----- IR after wrong failed -----" in err and "prim.sub()" in err


def test_times_for_programs(run: Run) -> None:
    _, _, err = run("-p", "cse,fuse", "--timing", "--timing-display", "json", "graph.ir")
    assert [row["name"] for row in json.loads(err)["passes"] if row["name"] != "(verify)"] == ["cse", "fuse"]
    _, _, err = run("-p", "cse,fuse", "--timing", "--timing-display", "tree", "graph.ir")
    assert re.search(r"%    prim\n.*%      cse\n.*%      fuse\n", err)


HOSTILE = [
    'a*/ int x;\n#include "x"',
    "\\",
    'a"b',
    'é"\n',
    "\u202eevil",
    "`id`$(id)</script>",
    "{}%s{0}",
    "*/ @triton.jit",
    "a\\\n",
    "?" * 900,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_reach_no_code(run: Run, name: str) -> None:
    """Names of files and arguments end no comment, no string and no line of what is made, and read back."""
    module = parse_module(SOFTMAX)
    for op in module.walk():
        op.location = location(name, 3)
        if op.name == "prim.func":
            op["arg_names"] = (name, name)
    Path("odd.ir").write_text(print_module(module))
    assert run("-p", "default", "--verify-roundtrip", "odd.ir")[0] == 0
    code, out, _ = run("--emit", "cpp", "odd.ir")
    places = [line for line in out.splitlines() if ":3" in line]
    assert code == 0 and places and all(line.lstrip().startswith("//") and line.isprintable() for line in places)
    code, out, _ = run("--emit", "host", "odd.ir")
    compile(out, "host", "exec")
    code, out, _ = run("--emit", "triton", "--target", "triton:sm_90", "odd.ir")
    compile(out, "triton", "exec")


def test_a_string_that_is_never_closed_takes_no_time(run: Run) -> None:
    Path("odd.ir").write_text(SOFTMAX.replace('model.py"', "x" * 200 + "\\q" + "y" * 200 + '"'))
    start = time.process_time()
    assert run("odd.ir")[0] == 1 and time.process_time() - start < 2


@pytest.mark.parametrize(
    "text", ["(" * 50_000, "prim.func @main() " + "({" * 3_000, "\0" * 100, SOFTMAX[:300], "{" * 9_999]
)
def test_broken_files(run: Run, text: str) -> None:
    Path("broken.ir").write_text(text)
    code, out, err = run("-p", "default", "broken.ir")
    assert code == 1 and out == "" and "error" in err and len(err.splitlines()) <= 15
