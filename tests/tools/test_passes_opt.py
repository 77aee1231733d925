"""passes-opt: every flag, the exit codes, and bad input."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
from xdsl.dialects.builtin import ModuleOp

from intarsia.ir.text import parse_module
from intarsia.passes.analysis.machine import CPUS, GPUS, Machine
from intarsia.passes.core.base import Pass
from intarsia.passes.core.context import CompileContext
from intarsia.passes.core.manager import registered
from intarsia.passes.core.run import PassFailure, run_pipeline
from intarsia.passes.graph.cse import CSE
from intarsia.passes.pipeline import CPU
from intarsia.tools.opt.main import main

PRIM = """prim.func @main() {symbols = []} ({
^bb0(%x: !prim.tensor<[4], f32>):
  %0 = prim.neg(%x) : !prim.tensor<[4], f32>
  %1 = prim.neg(%0) : !prim.tensor<[4], f32>
  %2 = prim.exp(%1) : !prim.tensor<[4], f32>
  prim.return(%2)
})
"""
KERNEL = """prim.func @main() {symbols = []} ({
^bb0(%x: !prim.tensor<[4], f32>):
  %0 = kernel.fused(%x) ({
  ^bb0(%a: !prim.tensor<[4], f32>):
    %1 = prim.exp(%a) : !prim.tensor<[4], f32>
    kernel.yield(%1)
  }) : !prim.tensor<[4], f32>
  prim.return(%0)
})
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run passes-opt on text, in a folder of its own: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def go(*arguments: str, text: str | None = PRIM) -> tuple[int, str, str]:
        if text is not None:
            Path("graph.ir").write_text(text)
            arguments = (*arguments, "graph.ir")
        try:
            code = main(arguments)
        except SystemExit as error:
            code = int(error.code or 0)
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return go


@dataclass(frozen=True)
class Broken(Pass):
    """Fails on every module."""

    name: ClassVar[str] = "broken"
    default: ClassVar[bool] = False

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        raise IndexError("no such thing")


@dataclass(frozen=True)
class Chatty(Pass):
    """Has options of all kinds, and remarks."""

    name: ClassVar[str] = "chatty"
    default: ClassVar[bool] = False
    max_ops: int = 4
    loud: bool = False
    ratio: float = 0.5
    word: str = "hm"

    def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
        ctx.diagnostics.remark(
            self.name, "seen", lambda: f"{self}, {ctx.machine.cpu.name}, {ctx.machine.cpu.threads}", "m.py:3"
        )


def test_no_pass_prints_the_module_again(run: Run) -> None:
    code, once, _ = run()
    assert code == 0 and run(text=once)[1] == once


def test_exactly_the_passes_of_the_pipeline_run(run: Run) -> None:
    code, out, err = run("--pipeline", "canonicalize,cse,canonicalize", "--print-pipeline")
    assert code == 0 and "prim.neg" not in out
    assert err == "pipeline: canonicalize,cse,canonicalize\n"


def test_options_reach_the_pass(run: Run) -> None:
    with registered(Chatty):
        spec = "chatty{max-ops=8,loud=true,ratio=2.5,word=oh}"
        code, _, err = run(
            "--pipeline", spec, "--remarks", "--target", "cpu:plain", "--threads", "7", "--print-pipeline"
        )
    assert code == 0
    assert "m.py:3: [chatty] seen: Chatty(remarks=False, max_ops=8, loud=True, ratio=2.5, word='oh'), plain, 7" in err
    assert f"pipeline: {spec}" in err


def test_without_the_flag_there_are_no_remarks(run: Run) -> None:
    with registered(Chatty):
        assert run("--pipeline", "chatty")[2] == ""


def test_remarks_of_one_pass(run: Run) -> None:
    with registered(Chatty):
        code, _, err = run("--pipeline", "chatty,chatty{remarks=true},chatty")
    assert code == 0 and err.count("[chatty] seen") == 1


def test_standard_input(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(PRIM))
    assert "prim.exp" in run(text=None)[1]
    monkeypatch.setattr("sys.stdin", io.StringIO(PRIM))
    assert "prim.exp" in run("-", text=None)[1]


def test_output_file(run: Run) -> None:
    code, out, _ = run("-o", "result.ir")
    assert (code, out) == (0, "") and "prim.exp" in Path("result.ir").read_text()


def test_until_inserts_what_is_required_from_the_modules_level(run: Run) -> None:
    code, out, err = run("--until", "plan-buffers", "--print-pipeline")
    assert code == 0 and "buffer.launch" in out
    loops = "lower,split-reductions,keep,schedule,tile,unroll-jam,vectorize,parallelize,prefetch,stream,choose-forms"
    assert err == f"pipeline: fuse,layout,{loops},plan-buffers\n"
    code, out, err = run("--until", "loop", "--print-pipeline", text=KERNEL)
    assert code == 0 and "loop.kernel" in out and "fuse" not in err


def test_the_default_pipeline_starts_at_the_modules_level(run: Run) -> None:
    code, out, err = run("--pipeline", "default", "--print-pipeline")
    assert code == 0 and "buffer.launch" in out
    assert err == f"pipeline: {','.join(name for name, _ in CPU[[n for n, _ in CPU].index('canonicalize') :])}\n"


@pytest.mark.parametrize(
    ("flags", "joined"), [(["--target", "triton:sm_80"], True), (["--target", "cpu"], False), ([], False)]
)
def test_the_road_of_a_target(run: Run, flags: list[str], joined: bool) -> None:
    code, out, err = run("--pipeline", "default", "--print-pipeline", *flags)
    assert (
        code == 0
        and ("cuda:0" in out) is joined
        and ("horizontal-fusion" in err) is joined
        and ("own-kernels" in err) is not joined
    )


def test_list(run: Run) -> None:
    with registered(Chatty):
        code, out, _ = run("--list", text=None)
    assert code == 0
    names = re.findall(r"^(\S+) ", out, flags=re.M)
    assert names[-2:] == ["chatty", "Every"]  # not run by default: last
    assert names.index("cse") < names.index("dce") < names.index("fuse")
    assert re.search(r"^canonicalize +cpu gpu +prim +Bring equal programs to one form", out, flags=re.M)
    assert re.search(r"^own-kernels +cpu +prim ", out, flags=re.M)
    assert "options: max-ops=4, loud=false, ratio=0.5, word=hm" in out


def test_print_before_and_after(run: Run) -> None:
    _, _, err = run(
        "--pipeline", "canonicalize,cse,dce", "--print-ir-before", "canonicalize", "--print-ir-after", "dce"
    )
    assert re.findall(r"// ----- (.*) -----", err) == ["IR before canonicalize", "IR after dce"]
    assert err.count("prim.neg") == 2


def test_print_all(run: Run) -> None:
    _, _, err = run("--pipeline", "canonicalize,cse", "--print-ir-before-all", "--print-ir-after-all")
    heads = re.findall(r"// ----- (.*) -----", err)
    assert heads == ["IR before canonicalize", "IR after canonicalize", "IR before cse", "IR after cse"]


def test_print_changed(run: Run) -> None:
    _, _, err = run("--pipeline", "canonicalize,cse", "--print-ir-diff")
    assert "// ----- IR changed by canonicalize -----" in err and "-    %0 = prim.neg(%x)" in err
    assert "// ----- cse: no change -----" in err


def test_times_and_statistics(run: Run) -> None:
    _, _, err = run("--pipeline", "canonicalize,cse", "--timing", "--statistics")
    assert re.search(r"^ +\d\.\d{4} s +[\d.]+%  canonicalize$", err, flags=re.M) and "100.0%  total" in err
    assert re.search(r"^ +1  canonicalize: rewrites$", err, flags=re.M)


def test_split_input_file(run: Run) -> None:
    code, out, _ = run("--split-input-file", "--pipeline", "canonicalize", text=f"{PRIM}// -----\n{KERNEL}")
    assert code == 0 and out.count("// -----\n") == 1 and out.count("builtin.module") == 2


def test_errors_in_a_later_piece_have_the_line_of_the_whole_file(run: Run) -> None:
    bad = "prim.func @main() {symbols = []} ({\n^bb0(%x: !prim.tensor<[4], f99>):\n  prim.return(%x)\n})\n"
    code, _, err = run("--split-input-file", text=f"{PRIM}// -----\n{bad}")
    assert code == 1 and err.startswith("graph.ir:10:")


BAD = [
    ("prim.neg(%x)", "prim.neg(%x", 3),
    ("prim.neg(%x)", "prim.nug(%x)", 3),
    ("prim.neg(%x)", "prim.neg(%y)", 3),
    ("prim.neg(%x) : !prim.tensor<[4], f32>", "prim.neg(%x) : !prim.tensor<[5], f32>", 3),
    ("prim.neg(%x) : !prim.tensor<[4], f32>", "prim.neg(%x) : !prim.tensor<[4], f23>", 3),
    ("prim.neg(%x) : !prim.tensor<[4], f32>", "prim.neg(%x) : !prim.tensor<[4, f32>", 3),
    ("prim.neg(%x) : !prim.tensor<[4], f32>", "prim.neg(%x) : !prim.tensor<[4.5], f32>", 3),
    ("prim.neg(%x) : !prim.tensor<[4], f32>", "prim.neg(%x) {a = } : !prim.tensor<[4], f32>", 3),
    ("prim.neg(%x) : !prim.tensor<[4], f32>", "prim.neg(%x)", 3),
    ("prim.neg(%x) :", "prim.add(%x) :", 3),
    ("prim.exp(%1)", "prim.full(%1) {value = 0}", 5),
    ("prim.exp(%1)", "prim.exp(%1) {a = 1", 5),
    ("  prim.return(%2)\n", "", 5),
    ("})\n", "", 7),
    ("{symbols = []}", "{symbols = [}", 1),
]


@pytest.mark.parametrize(("old", "new", "line"), BAD)
def test_malformed_input(run: Run, old: str, new: str, line: int) -> None:
    code, out, err = run("--pipeline", "canonicalize", text=PRIM.replace(old, new, 1))
    assert code == 1 and out == ""
    place = re.match(r"graph\.ir:(\d+):(\d+): error: .+\n(.*)\n( *)\^+$", err.rstrip())
    assert place, err
    assert abs(int(place[1]) - line) <= 1
    assert len(err.splitlines()) <= 15


def test_an_empty_file_and_one_that_is_no_text(run: Run) -> None:
    code, _, err = run(text="")
    assert code == 1 and "error: 'graph.ir' is empty" in err
    Path("binary.ir").write_bytes(b"\xff\xfe\x00\x01")
    code, _, err = run("binary.ir", text=None)
    assert code == 1 and "cannot read 'binary.ir'" in err


def test_a_missing_file_and_an_unwritable_one(run: Run) -> None:
    code, _, err = run("nowhere.ir", text=None)
    assert (code, err) == (1, "passes-opt: error: cannot read 'nowhere.ir': No such file or directory\n")
    code, _, err = run("-o", "no/such/folder.ir")
    assert code == 1 and "cannot write" in err


def test_a_long_line_is_cut_around_the_place(run: Run) -> None:
    long = ", ".join(f"a{k} = {k}" for k in range(200))
    code, _, err = run(text=PRIM.replace("prim.neg(%x) :", f"prim.neg(%x) {{{long}}} : !prim.oops<1>,"))
    assert code == 1 and max(map(len, err.splitlines())) < 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pipeline", "cser"), "unknown pass 'cser'; did you mean 'cse'?"),
        (("--pipeline", "cse{a=1}"), "pass 'cse' has no option 'a'"),
        (("--pipeline", "cse{a"), "malformed pipeline"),
        (("--until", "plan-bufers"), "unknown pass or level 'plan-bufers'; did you mean 'plan-buffers'?"),
        (("--until", "cse,dce"), "--until takes one pass"),
        (("--print-ir-after", "nothing-like-it"), "unknown pass 'nothing-like-it'"),
        (("--no-such-flag",), "unknown flag --no-such-flag; --help shows all"),
        (("--untill", "fuse"), "unknown flag --untill; did you mean '--until'?"),
        (("--emti=cpp",), "unknown flag --emti; did you mean '--emit'?"),
        (("graph.ir", "other.ir"), "one file is read, 'graph.ir'; too many arguments: other.ir"),
        (("-p", "builtin.module(cse"), "builtin.module(...) around all of them is the one nesting there is"),
        (("-p", "func.func(cse)"), "found 'func.func(cse)'"),
        (("--threads", "many"), "invalid int value: 'many'"),
        (("--target", "sse"), "unknown target 'sse'"),
        (("--target", "sm_90"), "did you mean 'triton:sm_90'?"),
        (("-p", "default", "--until", "fuse"), "give one of them"),
        (("--emit", "cpp", "--run"), "give one of them"),
        (("--reduce",), "--reduce and --test belong together"),
        (("--test", "false"), "--reduce and --test belong together"),
        (("--sizes", "s0=x", "--run"), "--sizes takes s0=4,s1=8, not 's0=x'"),
        (("--sizes", "s9=4", "--run"), "the module has no symbol 's9'; it has: none"),
        (("--inputs", "random:x", "--run"), "not 'random:x'"),
        (("--until", "kernl"), "unknown pass or level 'kernl'; did you mean 'kernel'?"),
        (("--threads", "0"), "--threads takes 1 or more, not 0"),
        (("--opt-bisect-limit", "-2"), "or -1 for all passes, not -2"),
        (("--pass-seconds", "nan"), "--pass-seconds takes 0 or more, not nan"),
        (("--sizes", "s0=4"), "--sizes belongs to --run, --run-compiled, --check-each or --from onnx"),
        (("--inputs", "random"), "--inputs belongs to --run"),
        (("--tolerance", "0.1"), "--tolerance belongs to --run"),
        (("--tolerance", "-1", "--run"), "--tolerance takes a number from 0 on, not -1.0"),
        (("--inputs", "x.pt", "--run", "--sizes", "s0=4"), "--inputs x.pt brings its own"),
        (("--timing-display", "tree"), "--timing-display belongs to --timing"),
        (("--test-prints", "x"), "--test-prints belongs to --reduce"),
        (("--reduce", "--test", "'"), "--test: No closing quotation"),
        (("--reduce", "--test", ""), "--test takes a command"),
        (("--reduce", "--test", "false", "--test-prints", "("), "--test-prints is no regular expression"),
        (("--run-reproducer", "x.ir", "-p", "cse", "--threads", "2"), "leave out -p, --threads"),
        (("--list", "--graph"), "--list and --graph each print something of their own"),
        (("--print-ir-after", "dce", "-p", "cse"), "--print-ir-after dce: the passes that run are cse"),
        (("--print-op-generic",), "unknown flag --print-op-generic"),
        (("--emit", "cubin", "--target", "triton:sm_90"), "name their folder with -o"),
        (("-p", "default{after=fus: cse}"), "the default pipeline has no pass 'fus' here; did you mean 'fuse'?"),
    ],
)
def test_a_wrong_command_line_exits_with_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = run(*arguments)
    assert code == 2 and out == "" and message in err


@pytest.mark.parametrize("flag", ["--threads=2", "--opt-bisect-limit=0", "--verify-roundtrip", "--timing"])
def test_what_says_nothing_without_a_pass_is_named(run: Run, flag: str) -> None:
    code, out, err = run(flag)
    assert code == 0 and "prim.neg" in out and f"no pass runs (-p names some), of which {flag.partition('=')[0]}" in err


def test_without_verification_a_wrong_module_is_printed_as_it_is(run: Run) -> None:
    wrong = PRIM.replace("prim.exp(%1) : !prim.tensor<[4], f32>", "prim.exp(%1) : !prim.tensor<[5], f32>")
    assert wrong != PRIM
    assert run(text=wrong)[0] == 1
    code, out, err = run("--disable-verify", text=wrong)
    assert code == 0 and "!prim.tensor<[5], f32>" in out and err == ""
    assert run("--disable-verify", "-p", "cse", text=wrong)[0] == 1  # what a pass leaves is verified


def test_a_level_that_does_not_hold(run: Run) -> None:
    code, _, err = run("--pipeline", "lower")
    assert code == 1 and "works at level 'kernel'" in err and "the pass 'fuse' establishes it" in err
    code, _, err = run("--pipeline", "fuse", text=KERNEL)
    assert code == 1 and "the module is at level 'kernel'" in err and "run it before" not in err


def test_verify_and_parsing_diagnostics_become_output(run: Run) -> None:
    code, out, _ = run("--verify-diagnostics", text=PRIM.replace("prim.neg(%x) :", "prim.add(%x) :"))
    assert code == 0 and "graph.ir:3:3: error: prim.add takes 2 operands, not 1" in out
    code, out, _ = run("--parsing-diagnostics", text=PRIM.replace("prim.neg(%x)", "prim.nug(%x)"))
    assert code == 0 and "error: " in out


def test_a_reproducer_is_run_with_what_defines_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Local(Broken):
        """Fails, too."""

    def said(item: Pass) -> str:
        return str(PassFailure(item, "no", Path("kept.ir")))

    load = f"passes-opt --run-reproducer kept.ir --load {Path(__file__).absolute()}"
    assert said(Broken()).endswith(load)
    assert "the module as it received it: kept.ir (a pass that a file defines at its top" in said(Local())
    monkeypatch.setattr(Broken, "__module__", "package.passes")
    monkeypatch.setitem(sys.modules, "package.passes", sys.modules[__name__])
    assert said(Broken()).endswith("passes-opt --run-reproducer kept.ir --load-package package.passes")
    assert said(CSE()).endswith("passes-opt --run-reproducer kept.ir")


def test_a_failure_writes_a_reproducer_that_runs_again(run: Run) -> None:
    with registered(Broken):
        arguments = ("--pipeline", "canonicalize,broken,cse", "--reproducer-dir", "kept", "--threads", "3")
        code, out, err = run(*arguments)
        assert code == 1 and out == "" and "which is not Intarsia's own) failed: IndexError: no such thing" in err
        (path,) = Path("kept").iterdir()
        assert f"run it again with: passes-opt --run-reproducer {path}" in err
        text = path.read_text()
        assert '"threads": 3' in text and "prim.neg" not in text and "// pipeline: broken\n" in text
        code, _, err = run("--run-reproducer", str(path), text=None)
        assert code == 1 and "which is not Intarsia's own) failed: IndexError" in err
        assert len(list(Path("kept").iterdir())) == 1
        assert len(list(Path(".").glob("*.ir"))) == 1


def test_a_reproducer_runs_for_the_machine_that_it_was_written_on(run: Run, tmp_path: Path) -> None:
    made = Machine(
        replace(CPUS["avx2"], name="made-up", l2_bytes=777), replace(GPUS["sm_90"], multiprocessors=5), tf32=False
    )
    seen: list[Machine] = []

    @dataclass(frozen=True)
    class Looking(Pass):
        """Fails, and says on which machine."""

        name = "looking"

        def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
            seen.append(ctx.machine)
            raise IndexError("as planned")

    with registered(Looking):
        with pytest.raises(PassFailure) as failure:
            run_pipeline(CompileContext(made), parse_module(PRIM), [Looking()], reproducer_dir=tmp_path)
        assert run("--run-reproducer", str(failure.value.reproducer), text=None)[0] == 1
    assert seen == [made, made]


def test_a_file_that_is_no_reproducer(run: Run) -> None:
    Path("graph.ir").write_text(PRIM)
    code, _, err = run("--run-reproducer", "graph.ir", text=None)
    assert code == 1 and "is not a reproducer" in err
    Path("graph.ir").write_text(f"// intarsia reproducer\n// pipeline: cse\n// machine: os.getcwd()\n{PRIM}")
    code, _, err = run("--run-reproducer", "graph.ir", text=None)
    assert code == 1 and "what stands behind '// machine:' is no machine" in err


def test_verify_each_names_the_pass(run: Run) -> None:
    @dataclass(frozen=True)
    class Corrupts(Pass):
        """Leaves an operation without operands."""

        name: ClassVar[str] = "corrupts"

        def apply(self, ctx: CompileContext, module: ModuleOp) -> None:
            next(op for op in module.walk() if op.name == "prim.exp").operands = []

    with registered(Corrupts):
        code, _, err = run("--pipeline", "corrupts,cse", "--verify-each")
    assert code == 1 and "which is not Intarsia's own) failed: VerifyException: prim.exp takes 1 operands, not 0" in err


def test_as_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "intarsia.tools.opt", "--pipeline", "canonicalize,fusee"]
    found = subprocess.run(command, input=PRIM, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert found.returncode == 2 and found.stderr == "passes-opt: unknown pass 'fusee'; did you mean 'fuse'?\n"


def test_a_symbol_that_nothing_binds_is_an_error(run: Run) -> None:
    text = """prim.func @main() {symbols = [["s0", 0, 0, 2, none]]} ({
^bb0(%x: !prim.tensor<[s0], f32>):
  %0 = prim.exp(%x) : !prim.tensor<[s0], f32>
  %1 = prim.slice(%0) {starts = [0], steps = [1]} : !prim.tensor<[s1], f32>
  prim.return(%1)
})
"""
    code, _, err = run("--pipeline", "canonicalize", text=text)
    assert code == 1 and "graph.ir:4:" in err and "the symbol 's1' is bound by no argument" in err
    assert run("--pipeline", "canonicalize", text=text.replace("s1", "s0"))[0] == 0
