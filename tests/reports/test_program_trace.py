"""`INTARSIA_TRACE`: one page and one trace of what a whole program compiled; `passes-opt --emit html`: the page of a module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from intarsia.reports.page import unpacked
from intarsia.tools.opt.main import main

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch, intarsia
@intarsia.compile
def f(x):
    y = x.sin() + 1
    print(end="")
    return y.cos() * 2
@intarsia.compile
def g(x, n):
    return (x * n).softmax(-1)
f(torch.ones(4))
g(torch.ones(3, 4), 2)
g(torch.ones(5, 4), 2)
x = torch.ones(3, requires_grad=True)
intarsia.compile(lambda x: x.sin().exp())(x).sum().backward()
del f
intarsia.reset()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("trace")
    (folder / "prog.py").write_text(PROGRAM)
    env = {**os.environ, "INTARSIA_TRACE": str(folder / "out"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, folder / "prog.py"], env=env, capture_output=True, text=True, check=True)
    (made,) = (folder / "out").iterdir()
    return made, done.stderr


def test_all_graphs_breaks_and_recompiles(run: tuple[Path, str]) -> None:
    folder, told = run
    assert str(folder / "report.html") in told
    facts = unpacked((folder / "report.html").read_text(), "facts")
    assert facts["title"] == "prog.py"
    assert [g["function"] for g in facts["graphs"]] == ["f", "f from line 6 on", "g", "g", "<lambda>"]
    assert all(p["passes"] and p["steps"] for g in facts["graphs"] for p in g["programs"])  # reset() let go of them
    assert [p["half"] for p in facts["graphs"][-1]["programs"]][0] == "forward"
    (broken,), (again,) = facts["breaks"], facts["recompiles"]
    assert "print" in broken["text"] and again["function"] == "g" and again["part"] == "x.shape"


def test_the_trace_is_what_perfetto_reads(run: tuple[Path, str]) -> None:
    events = json.loads((run[0] / "trace.json").read_text())["traceEvents"]
    assert {"capture", "passes", "fuse", "c++"} <= {e["name"] for e in events}
    assert {e["name"] for e in events if e["ph"] == "i"} == {"graph break", "recompile"}
    assert all({"ph", "pid", "tid", "name"} <= e.keys() for e in events)
    assert all(e["ts"] >= 0 and e["dur"] > 0 for e in events if e["ph"] == "X")
    passes = [e for e in events if e["name"] == "passes"]
    assert len(passes) == len([e for e in events if e["name"] == "fuse"]) >= 5
    inside = [e for e in events if e["name"] == "fuse"][0]
    assert passes[0]["ts"] <= inside["ts"] and inside["ts"] + inside["dur"] <= passes[0]["ts"] + passes[0]["dur"]


MODULE = """builtin.module {
  prim.func @main() {arg_names = ["x"], arg_strides = [none]} ({
  ^bb0(%0: !prim.tensor<[4, 8], f32>):
    %1 = prim.exp(%0) : !prim.tensor<[4, 8], f32> loc("</script>\\22.py":3:0)
    %2 = prim.neg(%1) : !prim.tensor<[4, 8], f32> loc("b.py":4:0)
    prim.return(%2)
  })
}
"""


def test_the_page_of_a_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m.ir").write_text(MODULE)
    assert main([str(tmp_path / "m.ir"), "--emit", "html", "-o", str(tmp_path / "m.html")]) == 0
    text = (tmp_path / "m.html").read_text()
    facts = unpacked(text, "facts")
    assert text.count("</script>") == 3 and facts["files"][0]["path"] == '</script>".py'
    (program,) = facts["graphs"][0]["programs"]
    assert [op["name"] for op in facts["graphs"][0]["ops"]] == ["prim.exp", "prim.neg"]
    assert len(program["steps"]) == 1 and program["passes"][-1]["level"] == "buffer" and program["memory"]["steps"] == 1
    assert [r["kind"] for r in program["remarks"] if r["pass"] == "fuse"] == ["fused"]
    assert main([str(tmp_path / "m.ir"), "--emit", "html", "-p", "cse", "-o", str(tmp_path / "n.html")]) == 0
    (program,) = unpacked((tmp_path / "n.html").read_text(), "facts")["graphs"][0]["programs"]
    assert "steps" not in program and [p["name"] for p in program["passes"]] == ["imported", "cse"]
    assert capsys.readouterr().err == ""
    assert main([str(tmp_path / "m.ir"), "--emit", "html", "--split-input-file"]) == 2
