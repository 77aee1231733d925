"""Topics of logging: switched by name, by keyword and by the environment; what each one says."""

import logging
import os
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import intarsia
from intarsia.explaining import logs
from intarsia.explaining.topics import TOPICS
from intarsia.targets.measure.store import Measurements


@pytest.fixture(autouse=True)
def fresh():
    intarsia.reset()
    intarsia.set_logs()
    with torch.no_grad():
        yield
    intarsia.set_logs()


def bar(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b.double() * -1
    return x * b


def on():
    return {t for t in TOPICS if logging.getLogger(f"intarsia.{t}").isEnabledFor(logging.INFO)}


def said(caplog, topic):
    return [r.getMessage() for r in caplog.records if r.name == f"intarsia.{topic}"]


def run(caplog, *topics, sizes=(10,), **options):
    intarsia.set_logs(*topics)
    caplog.clear()
    f = intarsia.compile(bar, **options)
    for size in sizes:
        torch.testing.assert_close(f(torch.ones(size), torch.ones(size)), bar(torch.ones(size), torch.ones(size)))


def test_switches():
    assert on() == set()
    intarsia.set_logs("breaks", "guards")
    assert on() == {"breaks", "guards"}
    intarsia.set_logs(ir=True, guards=False)
    assert on() == {"breaks", "ir"}
    intarsia.set_logs("all")
    assert on() == set(TOPICS)
    intarsia.set_logs("code")
    assert on() == {"code"}
    intarsia.set_logs()
    assert on() == set()
    logging.getLogger("intarsia.graph").setLevel("INFO")  # Python's own way
    assert on() == {"graph"}


@pytest.mark.parametrize("call", [lambda: intarsia.set_logs("break"), lambda: intarsia.set_logs(break_=True, ir=True)])
def test_unknown_topic(call):
    intarsia.set_logs("code")
    with pytest.raises(ValueError, match=r"unknown log topic 'break_?'; did you mean 'breaks'\?; known: breaks, "):
        call()
    assert on() == {"code"}


def test_silent_by_default(caplog):
    run(caplog)
    assert [r.name for r in caplog.records] == ["intarsia"]  # the one line about the break


def test_breaks(caplog):
    run(caplog, "breaks")
    (text,) = said(caplog, "breaks")
    head, *rest = text.splitlines()
    assert head.startswith(__file__) and head.endswith(": if b.sum() < 0:")
    assert rest[0].strip() == "in bar, after 5 operations of bar"
    assert "why: control flow depends on a tensor's value" in text and "what to do: " in text
    assert rest[-1].strip().startswith("the call goes on in bar at line ")


class Watching(TorchDispatchMode):
    """A mode around the call, which capture does not see through."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_breaks_tell_of_calls_in_eager(caplog):
    intarsia.set_logs("breaks")
    with Watching():
        intarsia.compile(bar)(torch.ones(2), torch.ones(2))
    assert any("bar runs in eager" in text and "dispatch mode" in text for text in said(caplog, "breaks"))


def test_recompiles(caplog):
    run(caplog, "recompiles", sizes=(10, 12))
    text = said(caplog, "recompiles")[0]
    assert text.startswith("bar (") and "fits none of 1 variant (at most 8 are kept)" in text
    assert "a.shape: expected (10,), got (12,)" in text
    assert "x = a / (torch.abs(a) + 1)" in text and "to avoid it: intarsia.mark_dynamic(a, 0)" in text


def test_guards(caplog):
    run(caplog, "guards")
    text = said(caplog, "guards")[0]
    assert "a: float32(10,), strides (1,), cpu    # " in text and "return MISS" in text


def test_bytecode(caplog):
    run(caplog, "bytecode")
    first, second = said(caplog, "bytecode")
    assert first.startswith("bar (") and "LOAD_FAST 'a'" in first and "POP_JUMP_IF_FALSE" in first
    assert second.startswith("bar from line ") and "COMPARE_OP" not in second


def test_graph(caplog):
    run(caplog, "graph")
    first, second = said(caplog, "graph")
    assert first.startswith("bar: 5 operations") and "torch.abs(a)" in first
    assert "bar from line" in second and "x * b" in second


def test_ir_and_code(caplog):
    run(caplog, "ir", "code", options={"cache": False})
    stages = [t.splitlines()[0] for t in said(caplog, "ir")]
    assert stages[0] == "as imported" and "after fuse" in stages
    assert any("kernel.fused" in t for t in said(caplog, "ir"))
    code = "\n".join(said(caplog, "code"))
    assert 'extern "C" int' in code and "def make():" in code


def test_ir_is_shown_although_the_cache_has_the_program(caplog):
    run(caplog)
    intarsia.reset()
    run(caplog, "ir", "code")
    assert said(caplog, "ir") and said(caplog, "code")
    intarsia.reset()
    run(caplog, "code")
    assert said(caplog, "code")


PROGRAM = """
import torch, intarsia

@intarsia.compile(backend="eager")
def f(x):
    x = x + 1
    print("hello")
    return x * 2

with torch.no_grad():
    f(torch.ones(3))
    import logging, sys
    logging.basicConfig(format="%(name)s| %(message)s", stream=sys.stdout)
    intarsia.reset()
    f(torch.ones(3))
"""


def test_environment(tmp_path):
    """Topics by name, an unknown one among them; then the program's own logging takes the records."""
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "INTARSIA_LOGS": "breaks, graph,recompile"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stderr.count("[breaks] ") == 1 and 'print("hello")' in done.stderr
    assert "[graph] f: 1 operation" in done.stderr and "[guards]" not in done.stderr
    assert "INTARSIA_LOGS: unknown log topic 'recompile'; did you mean 'recompiles'?" in done.stderr
    said_first, said_last = done.stdout.split("hello\n", 1)
    assert said_first == "" and said_last.count("intarsia.breaks| ") == 1 and said_last.count("hello\n") == 1


SAYS = {  # a topic -> what it says of `step` below
    "breaks": "why: ",
    "recompiles": "fits none of 1 variant",
    "guards": "x: float32(any, any)",
    "sizes": "s0 is x.shape[0]",
    "bytecode": "LOAD_FAST 'x'",
    "graph": "add: float32(s",
    "effects": "counted.cell_contents.calls",
    "entry": "return MISS",
    "aten": "torch.ops.aten.mm.default",
    "joint": "_softmax_backward_data",
    "partition": "computed again: ",
    "backward": "backward: ",
    "passes": "fuse: ",
    "ir": "after fuse",
    "remarks": "decompose: extern: ",
    "fusion": "fused: ",
    "statistics": "fuse: kernels: ",
    "memory": " bytes, output, steps ",
    "cost": "aten.mm 5x8 8x16: ",
    "calls": "aten.mm.default    # ",
    "code": "def make():",
    "kernels": 'extern "C" int',
    "host": "def make():",
    "compiler": "compiled kernels0.cpp (",
    "cache": "kept ",
    "timing": "pass fuse: ",
}
ELSEWHERE = {"distributed", "autotuning", "cudagraphs"}


class Counted:
    calls = 0


def test_each_topic_says_something(caplog, monkeypatch, tmp_path):
    """All topics with their details on one training step that breaks and compiles again."""
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path))
    counted = Counted()

    def step(x, w, b):
        counted.calls = counted.calls + 1
        h = torch.relu(x @ w + b)
        print("half of the step")
        return torch.softmax(h, -1).sum()

    intarsia.reset()
    intarsia.set_logs("+all")
    with torch.enable_grad():
        fast = intarsia.compile(step, dynamic=True)
        w, b = torch.randn(8, 16, requires_grad=True), torch.randn(16, requires_grad=True)
        fast(torch.randn(5, 8), w, b).backward()
        fast(torch.randn(5, 8, dtype=torch.float64), w.double(), b.double())
    intarsia.set_logs()
    assert SAYS.keys() | ELSEWHERE == set(TOPICS)
    for topic, text in SAYS.items():
        assert any(text in message for message in said(caplog, topic)), (topic, said(caplog, topic))


def test_topics_of_measurements_and_of_several_processes(caplog, tmp_path):
    intarsia.set_logs("+autotuning", "distributed")
    for _ in range(2):
        assert Measurements(tmp_path, "cpu").get("a product", lambda: "ours", lambda found: bool(found)) == "ours"
    assert said(caplog, "autotuning") == ["measured: a product: ours", "known: a product: ours"]
    logs.split(2, 1 << 20)
    assert said(caplog, "distributed") == ["2 parts, for buckets of 1,048,576 bytes"]


def levels():
    loggers = {t: logging.getLogger(f"intarsia.{t}") for t in TOPICS}
    return {t: log.level for t, log in loggers.items() if log.level <= logging.INFO}


def test_details_and_what_is_left_out():
    intarsia.set_logs("-ir", "+memory", "all", "-code")
    assert levels().keys() == set(TOPICS) - {"ir", "code"}
    assert {t for t, level in levels().items() if level == logging.DEBUG} == {"memory"}
    intarsia.set_logs("+all", "cache")
    assert levels() == dict.fromkeys(TOPICS, logging.DEBUG) | {"cache": logging.INFO}
    with pytest.raises(ValueError, match=r"unknown log topic 'memry'; did you mean 'memory'\?"):
        intarsia.set_logs("+memry")


def test_help_lists_the_topics_and_changes_nothing(capsys):
    intarsia.set_logs("cache")
    intarsia.set_logs("help")
    text = capsys.readouterr().err
    assert all(f"  {topic} " in text for topic in TOPICS) and "+topic adds details" in text
    assert on() == {"cache"}


def test_fusion_timing_and_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("INTARSIA_LOGS_FILE", str(tmp_path / "log"))
    intarsia.reset()
    intarsia.set_logs("fusion", "timing")
    try:
        with torch.no_grad():
            intarsia.compile(lambda x: torch.softmax(torch.softmax(x, -1), 0))(torch.randn(32, 32))
    finally:
        intarsia.set_logs()
    text = (tmp_path / "log").read_text()
    assert "[timing] capture: " in text and "[timing] pass fuse: " in text and "[timing] passes: " in text
    assert "fused: " in text and "refused: " in text and "bytes" in text and "test_logs.py:" in text
    assert not capsys.readouterr().err
