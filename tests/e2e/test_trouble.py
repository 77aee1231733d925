"""What goes wrong around a program: compiler, cache, interruption, inputs that are not supported."""

from __future__ import annotations

import json
import stat
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import intarsia
import intarsia.graph_compiler
import intarsia.passes.core.run
from intarsia.passes.core.base import Pass
from intarsia.targets.build.toolchain import CompilerError

pytestmark = pytest.mark.usefixtures("product_compiler")


def f(x):
    return torch.sin(x) * 2 + 1


def test_no_compiler_is_a_warning(monkeypatch, caplog):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    x = torch.randn(5)
    compiled = intarsia.compile(f)
    torch.testing.assert_close(compiled(x), f(x))
    torch.testing.assert_close(compiled(x), f(x))
    told = [r for r in caplog.records if "C++ compiler" in r.getMessage()]
    assert len(told) == 1 and "g++" in told[0].getMessage()
    assert intarsia.counters()["fallbacks"] == 1


def test_failing_compiler_keeps_the_source(tmp_path, monkeypatch, caplog):
    fake = tmp_path / "g++"
    fake.write_text("#!/bin/sh\necho 'error: out of luck' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "0")
    x = torch.randn(5)
    torch.testing.assert_close(intarsia.compile(f)(x), f(x))
    text = caplog.records[0].getMessage()
    assert "out of luck" in text and ".cpp" in text and len(text.splitlines()) <= 15
    source = next(word for word in text.split() if word.endswith(".cpp"))
    assert "im::sin" in Path(source).read_text()


def test_unwritable_cache_works_and_tells_once(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "file"))
    from intarsia.targets.build.cache import shared_cache

    shared_cache.cache_clear()
    x = torch.randn(5)
    torch.testing.assert_close(intarsia.compile(f)(x), f(x))
    torch.testing.assert_close(intarsia.compile(lambda x: f(x) + 1)(x), f(x) + 1)
    assert len([text for text in caplog.messages if "cannot use the cache folder" in text]) == 1


def test_corrupted_cache_is_built_again(tmp_path, monkeypatch, caplog):
    from intarsia.targets.build.cache import shared_cache

    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path))
    shared_cache.cache_clear()
    x = torch.randn(5)
    intarsia.compile(f)(x)
    assert stat.S_IMODE((tmp_path / "intarsia-cache").stat().st_mode) == 0o700
    libraries = list(tmp_path.rglob("*.so"))
    assert libraries and not list(tmp_path.rglob("*.pkl"))
    for library in libraries:
        library.unlink()  # the old file may be mapped into this process
        library.write_bytes(b"garbage")
    shared_cache.cache_clear()
    torch.testing.assert_close(intarsia.compile(f)(x), f(x))
    assert "damaged" in caplog.text
    assert intarsia.counters()["cache_hits"] == 0


def test_second_process_calls_no_compiler(tmp_path, prepared):
    program = textwrap.dedent(
        """
        import json, torch, intarsia
        def f(x): return torch.softmax(x, -1) + torch.sin(x)
        with torch.no_grad():
            intarsia.compile(f)(torch.ones(4, 5))
        print(json.dumps(intarsia.counters()))
        """
    )
    script = tmp_path / "program.py"
    script.write_text(program)

    def run():
        code, out, err = prepared.run(script, tmp_path, INTARSIA_CACHE_DIR=str(tmp_path / "cache"))
        assert code == 0, err
        return json.loads(out.splitlines()[-1])

    first, second = run(), run()
    assert first["compiler_calls"] == 1 and first["cache_hits"] == 0
    assert second["compiler_calls"] == 0 and second["cache_hits"] == 1


def test_interrupt_leaves_no_broken_state(monkeypatch):
    x = torch.randn(5)
    compiled = intarsia.compile(f)
    real = intarsia.graph_compiler.build

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(intarsia.graph_compiler, "build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compiled(x)
    monkeypatch.setattr(intarsia.graph_compiler, "build", real)
    torch.testing.assert_close(compiled(x), f(x))
    assert intarsia.counters()["graphs"] == 1


@dataclass(frozen=True)
class Broken(Pass):
    """Fails."""

    name = "broken"
    level = "prim"

    def apply(self, ctx, module):
        raise KeyError("out of luck")


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_failing_pass_is_a_warning_with_a_reproducer(fullgraph, monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "0")
    x = torch.randn(5)
    compiled = intarsia.compile(f, fullgraph=fullgraph, passes=[Broken()])
    torch.testing.assert_close(compiled(x), f(x))
    torch.testing.assert_close(compiled(x), f(x))
    (told,) = [r.getMessage() for r in caplog.records]
    assert "which is not Intarsia's own) failed: KeyError: 'out of luck'" in told and "test_trouble.py" in told
    reproducer = next(Path(word) for word in told.split() if word.endswith(".ir"))
    assert "prim.func" in reproducer.read_text()
    assert "compiled without this pass" in told
    assert intarsia.counters()["graphs"] == 1 and intarsia.counters()["fallbacks"] == 0


@pytest.mark.parametrize("place", ["functionalize", "import_fx", "generate", "build"])
def test_an_error_of_ours_runs_in_eager_visibly(place, monkeypatch, caplog):
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "0")

    ours = {"__name__": "intarsia.broken"}
    exec('def broken(*args, **kwargs):\n    raise IndexError("a mistake of ours")', ours)
    monkeypatch.setattr(intarsia.graph_compiler, place, ours["broken"])
    x = torch.randn(7)
    torch.testing.assert_close(intarsia.compile(f, options={"cache": False})(x), f(x))
    assert "an error inside intarsia" in caplog.text and "IndexError: a mistake of ours" in caplog.text
    assert intarsia.counters()["fallbacks"] == 1


def test_an_error_in_a_pass_of_others_names_it(monkeypatch, caplog):
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "0")
    x = torch.randn(5)
    torch.testing.assert_close(intarsia.compile(f, passes=[Broken()])(x), f(x))
    assert f"pass 'broken' ({Broken.__module__}.Broken, which is not Intarsia's own) failed: KeyError" in caplog.text
    assert "report it" not in caplog.text


def test_an_error_in_an_operator_of_others_names_its_place(monkeypatch, caplog):
    """The rule for a symbolic size fails only when the compiler asks it, long after capture."""
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "0")
    monkeypatch.setattr(intarsia.graph_compiler, "import_fx", lambda functional: {}["their own mistake"])
    x = torch.randn(6)
    torch.testing.assert_close(intarsia.compile(f, options={"cache": False})(x), f(x))
    assert f"an error in {__file__}:" in caplog.text and "report it" not in caplog.text


def test_strictly_an_error_of_ours_is_raised(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(intarsia.passes.core.run.PassFailure, match="out of luck"):
        intarsia.compile(f, passes=[Broken()])(torch.randn(5))


def test_memory_errors_and_wrong_pipelines_are_raised(monkeypatch):
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "0")
    with pytest.raises(intarsia.passes.core.base.PassError, match="did you mean 'fuse'"):
        intarsia.compile(f, options={"pipeline": "decompose,fusee"})(torch.randn(5))

    def broken(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(intarsia.graph_compiler, "generate", broken)
    with pytest.raises(MemoryError):
        intarsia.compile(f, options={"cache": False})(torch.randn(5))


def test_parameters_on_the_meta_device():
    model = nn.Linear(4, 4, device="meta")
    with pytest.raises(Exception, match="meta"):
        intarsia.compile(model, fullgraph=True)(torch.randn(2, 4))


def test_unsupported_layouts_break_the_graph_visibly(caplog):
    x = torch.eye(4).to_mkldnn()

    def double(x):
        return torch.clone(x)

    found = intarsia.compile(double)(x)
    assert found.layout == x.layout and found.dtype == x.dtype
    assert intarsia.counters()["breaks"] == 1 and "torch.clone(x)" in caplog.text
    with pytest.raises(intarsia.Unsupported):
        intarsia.compile(double, fullgraph=True)(x)


def test_gradients_that_cannot_be_traced_run_in_eager_visibly(monkeypatch, caplog):
    def refuse(*args, **kwargs):
        raise NotImplementedError("planted")

    monkeypatch.setattr("intarsia.training.aot_autograd", refuse)
    monkeypatch.setenv("INTARSIA_VERIFY_EACH", "0")
    model = nn.Linear(4, 4)
    with torch.enable_grad():
        intarsia.compile(model)(torch.randn(2, 4)).sum().backward()
    assert (
        model.weight.grad is not None and "its gradients cannot be traced" in caplog.text and "planted" in caplog.text
    )


def test_debug_folder_holds_every_stage(tmp_path):
    intarsia.compile(f, options={"debug": str(tmp_path / "out")})(torch.randn(5))
    (graph,) = (tmp_path / "out" / "run1").iterdir()
    assert graph.name == "f_1"
    names = {p.name for p in graph.iterdir()}
    assert {"fx-captured.py", "fx-functional.py", "0-aten.ir", "host.py", "kernels0.cpp"} <= names
    assert any(n.endswith("-fuse.ir") for n in names) and any(n.endswith("-plan-buffers.ir") for n in names)


def test_compiler_error_text_is_short():
    error = CompilerError("/tmp/x.cpp", ["g++", "x.cpp"], 1, "\n".join(f"line {i}" for i in range(100)))
    assert len(str(error).splitlines()) <= 15
