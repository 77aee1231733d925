"""`verify`, `bisect` and `minify` name what was planted: a graph, a pass, an operation, a kernel; and nothing where nothing is wrong."""

from __future__ import annotations

import re
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import intarsia
import intarsia.targets.build.program as building
import intarsia.training as training
from intarsia.faults.prefix import body, first_wrong, prefix, wide_values, widened
from intarsia.faults.single import single, steps
from intarsia.ir.interpreter.run import run_user
from intarsia.ir.text import parse_module, print_module
from intarsia.targets.build.cache import shared_cache
from intarsia.tools.opt.check import results_of, run_on_target
from intarsia.tools.opt.values import agree, inputs_of

sys.path.insert(0, str(Path(__file__).parent))
from wrong_passes import Raises, WrongLoop, WrongSub  # noqa: E402

X = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))


def plain(x, y):
    a = (x @ y).relu()
    b = torch.exp(a * 0.1)
    c = b - a * 2
    return torch.tanh(c) + b, c.sum()


def broken_in_two(x):
    y = x.sin() + 1
    print("between")
    return (y - x * 2).exp()


def line_of(fn, text):
    import inspect

    lines, first = inspect.getsourcelines(fn)
    return first + next(k for k, line in enumerate(lines) if text in line)


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.setenv("INTARSIA_CACHE_DIR", str(tmp_path / "cache"))
    shared_cache.cache_clear()
    intarsia.reset()
    yield
    shared_cache.cache_clear()


@pytest.fixture
def wrong_code(monkeypatch):
    """Generated C++ whose tanh is 1 % too large."""
    units_of = building.units_of

    def wrong(*given):
        return tuple(
            replace(unit, text=unit.text.replace("im::tanh(", "1.01f * im::tanh(")) for unit in units_of(*given)
        )

    monkeypatch.setattr(building, "units_of", wrong)


def ran(script, capsys):
    """The exit code of a script, and what it printed."""
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def test_nothing_is_wrong(capsys):
    found = intarsia.verify(plain, X, X)
    assert found and "right: 1 graphs" in str(found)
    found = intarsia.verify(broken_in_two, X)
    assert found and found.graphs == 2 and capsys.readouterr().out == "between\n"
    assert not intarsia.bisect(plain, X, X)
    assert intarsia.minify(plain, X, X) is None


def test_arguments_are_written_as_in_eager():
    def fn(x):
        x.add_(1)
        return x * 2

    x = X.clone()
    assert intarsia.verify(fn, x) and torch.equal(x, X + 1)


def test_a_pass_is_named_with_its_first_operation():
    (found,) = intarsia.verify(plain, X, X, passes=[WrongSub()]).findings
    assert (found.stage, found.pass_name) == ("pass", "wrong-sub")
    assert "prim.sub" in found.operation and found.line == f"{__file__}:{line_of(plain, 'c = b - a')}"
    assert "elements differ" in found.message and len(str(found).splitlines()) <= 10


def test_a_pass_on_loops_is_named():
    (found,) = intarsia.verify(lambda x: (x * 2).cos() @ x, X, passes=[WrongLoop()]).findings
    assert found.pass_name == "wrong-loop" and "loop.launch" in found.operation


def test_a_pass_that_raises_is_named():
    (found,) = intarsia.verify(lambda x: x / (x.abs() + 1), X, passes=[Raises()]).findings
    assert found.pass_name == "raises" and "KeyError" in found.message


def test_the_graph_is_named(capsys):
    (found,) = intarsia.verify(broken_in_two, X, passes=[WrongSub()]).findings
    assert found.graph == 2 and found.pass_name == "wrong-sub"


def test_a_kernel_is_named(wrong_code):
    (found,) = intarsia.verify(plain, X, X).findings
    assert found.stage == "generated code" and found.pass_name == "" and "tanh" in found.kernel
    assert found.kernel in found.before and "buffer.launch" in found.operation


def test_a_mistake_of_import_is_told(monkeypatch):
    from intarsia.ir.fx import importer

    real = importer.import_fx

    def wrong(functional):
        made = real(functional)
        for op in made.module.walk():
            if op.name == "aten.sub.Tensor":
                op.operands = op.operands[::-1]
        return made

    monkeypatch.setattr("intarsia.faults.graphs.import_fx", wrong)
    (found,) = intarsia.verify(plain, X, X).findings
    assert found.stage == "capture or import"


def test_bisect_names_graph_pass_and_operation(capsys):
    found = intarsia.bisect(broken_in_two, X, passes=[WrongSub()])
    assert found and (found.graph, found.pass_name) == (2, "wrong-sub")
    assert "sub" in found.operation and found.line.endswith(f":{line_of(broken_in_two, 'y - x')}")
    assert len(str(found).splitlines()) <= 5


def test_bisect_finds_what_no_pass_makes(wrong_code):
    found = intarsia.bisect(plain, X, X)
    assert found.graph == 1 and found.pass_name == "" and "tanh" in found.operation
    assert "without every pass" in str(found)


def test_bisect_takes_a_test():
    seen = []

    def test(compiled):
        seen.append(compiled(X, X)[1].item())
        return abs(seen[-1] - plain(X, X)[1].item()) > 1

    found = intarsia.bisect(plain, X, X, passes=[WrongSub()], test=test)
    assert found.pass_name == "wrong-sub" and found.trials == len(seen)


@pytest.mark.parametrize("kind", [WrongSub, WrongLoop, Raises])
def test_minify_ends_in_a_script(kind, tmp_path, capsys):
    def fn(x):
        for _ in range(6):
            x = (x - x.sin() * 2).tanh().exp().cos() + x
        return x / (x.abs() + 1), x @ x

    script = intarsia.minify(fn, X, folder=tmp_path / "repro", passes=[kind()])
    text = (tmp_path / "repro" / "repro.ir").read_text()
    assert len(script.read_text().splitlines()) <= 12 and text.count(" = prim.") + text.count(" = loop.launch") <= 2
    code, _, err = ran(script, capsys)
    assert code == 1 and f"pass '{kind.name}'" in err, err
    assert (
        sorted(path.name for path in script.parent.iterdir()) == ["repro.ir", "repro.py"]
        and not (tmp_path / "repro" / "inputs.pt").exists()
    )


def test_minify_of_a_kernel(wrong_code, tmp_path, capsys):
    script = intarsia.minify(plain, X, X, folder=tmp_path)
    text = (tmp_path / "repro.ir").read_text()
    assert text.count("loop.kernel") == 1 and text.count("buffer.launch") == 1 and "tanh" in text
    code, out, err = ran(script, capsys)
    assert code == 1 and re.search(r"^code +compiled C\+\+ .*WRONG", out, re.MULTILINE), err


def test_inputs_of_the_call_are_kept_where_random_ones_do_not_show_it(tmp_path, capsys):
    def fn(x):
        return torch.where(x > 1000, x - 1, x)

    script = intarsia.minify(fn, X + 2000, folder=tmp_path, passes=[WrongSub()])
    assert (tmp_path / "inputs.pt").exists()
    code, _, err = ran(script, capsys)
    assert code == 1 and "pass 'wrong-sub'" in err, err


def test_every_step_is_a_program_of_its_own():
    def fn(x, i):
        y = torch.softmax(x @ x.T, -1)
        x.mul_(2)
        return y[i].sum(0), y.T.contiguous() + x[0, 0]

    sized = X.clone()
    intarsia.mark_dynamic(sized, 0)
    for args in ((X.clone(), torch.tensor([1, 2])), (sized, torch.tensor([1, 2]))):
        module = parse_module(intarsia.lower(fn, *args).ir("buffer"))
        for op in steps(module):
            alone, reads = single(op, module)
            alone.verify()
            assert print_module(parse_module(print_module(alone))) == print_module(alone)
            inputs = inputs_of(alone, "random", {})
            assert len(inputs.args) == len(reads) + len(inputs.sizes)
            assert agree(run_on_target(alone, inputs), results_of(alone, inputs, "a step"))


def test_beginnings_of_a_module_and_float64():
    module = parse_module(intarsia.lower(plain, X, X.T.contiguous()).ir("prim"))
    for count in range(1, len(body(module)) + 1):
        begun = prefix(module, count)
        begun.verify()
        given = [X, X.T.contiguous()]
        found, gold = run_user(begun, given), run_user(widened(begun), wide_values(given))
        assert len(found) == len(gold) >= 1 and gold[0].dtype == torch.float64
        for a, b in zip(found, gold, strict=True):
            torch.testing.assert_close(a, b.float())


@pytest.mark.parametrize("at", range(1, 9))
def test_the_first_wrong_number(at):
    assert first_wrong(8, lambda n: n >= at) == at
    assert first_wrong(at - 1, lambda n: n >= at) is None


def sine(x):
    return (x.sin() * 2).sum()


def both(x, w):
    y = torch.exp(x * 0.1)
    return torch.tanh(y - x @ w) * y


def grads():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(6, 6, generator=generator).requires_grad_() for _ in range(2)]


def test_nothing_is_wrong_with_gradients():
    x, w = grads()
    found = intarsia.verify(both, x, w)
    assert found and found.graphs == 1 and not found.unseen and x.grad is None
    with torch.no_grad():
        assert found.stages > intarsia.verify(both, x, w).stages
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    assert intarsia.verify(model, x.detach()) and not intarsia.bisect(model, x.detach())


@pytest.mark.parametrize(
    ("fn", "item", "half", "word"),
    [(sine, WrongLoop(), "backward", "sin"), (both, WrongSub(), "forward", "sub")],
    ids=["backward", "forward"],
)
def test_a_pass_that_is_wrong_in_one_half(fn, item, half, word):
    """`sine` has its cosine in backward alone; `both` a subtraction in each half, of which forward comes first."""
    args = grads()[:1] if fn is sine else grads()
    first = intarsia.verify(fn, *args, passes=[item]).findings[0]
    assert (first.half, first.stage, first.pass_name) == (half, "pass", item.name)
    assert f"graph 1 ({half})" in str(first) and Path(first.line.rpartition(":")[0]).name == "test_faults.py"
    found = intarsia.bisect(sine if half == "backward" else lambda x: (torch.exp(x) - x).sin(), args[0], passes=[item])
    assert (found.half, found.pass_name) == (half, item.name) and word in found.operation
    assert f"graph 1 ({half}) makes it wrong" in str(found)


@pytest.mark.parametrize(("fn", "half"), [(torch.sinh, "backward"), (torch.cosh, "forward")])
def test_a_kernel_that_is_wrong_in_one_half(fn, half, monkeypatch, tmp_path, capsys):
    units_of = building.units_of

    def wrong(*given):
        return tuple(replace(u, text=u.text.replace("im::cosh(", "1.01f * im::cosh(")) for u in units_of(*given))

    monkeypatch.setattr(building, "units_of", wrong)
    (x, _) = grads()
    (found,) = intarsia.verify(lambda x: (fn(x) + 1) * 2, x).findings
    assert (found.half, found.stage) == (half, "generated code") and "cosh" in found.kernel
    assert intarsia.bisect(lambda x: (fn(x) + 1) * 2, x).half == half
    script = intarsia.minify(lambda x: (fn(x) + 1) * 2, x, folder=tmp_path)
    code, out, _ = ran(script, capsys)
    assert code == 1 and "WRONG" in out


def test_a_split_that_is_wrong_is_named(monkeypatch):
    """Both halves are right by themselves, and do not belong together."""
    split = training.split

    def wrong(joint, *given):
        forward, backward, found = split(joint, *given)
        for node in backward.graph.nodes:
            if node.target is torch.ops.aten.cos.default:
                node.target = torch.ops.aten.sin.default
        backward.recompile()
        return forward, backward, found

    monkeypatch.setattr(training, "split", wrong)
    (found,) = intarsia.verify(sine, grads()[0]).findings
    assert found.stage == "the split into forward and backward" and "gradient" in found.message


def test_passes_of_a_file_are_taken(tmp_path, capsys):
    file = Path(__file__).with_name("wrong_passes.py")
    only = tmp_path / "only_sub.py"
    only.write_text(file.read_text().partition("@dataclass(frozen=True)\nclass WrongLoop")[0])
    (found,) = intarsia.verify(plain, X, X, passes=[str(only)]).findings
    assert found.pass_name == "wrong-sub"
    assert intarsia.bisect(plain, X, X, passes=[only]).pass_name == "wrong-sub"
    script = intarsia.minify(plain, X, X, folder=tmp_path / "repro", passes=[WrongSub, str(only)][1:])
    assert f"'--load', {str(only)!r}" in script.read_text() and ran(script, capsys)[0] == 1
    with pytest.raises(TypeError, match="passes takes objects"):
        intarsia.verify(plain, X, X, passes=[3])


def test_a_graph_that_could_not_be_looked_at_is_not_right(monkeypatch):
    def fails(*_: object) -> None:
        raise KeyError("lower")

    monkeypatch.setattr("intarsia.faults.graphs.functionalize", fails)
    found = intarsia.verify(plain, X, X)
    assert not found and not found.findings and "KeyError: 'lower'" in found.unseen[0]
    assert str(found).startswith("not known: 1 of 1 graphs could not be looked at")
    with pytest.raises(RuntimeError, match="not known"):
        intarsia.minify(plain, X, X)
