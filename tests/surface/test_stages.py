"""`intarsia.lower`: what a lowered function tells of itself, at every stage."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html.parser import HTMLParser

import pytest
import torch

import intarsia
from intarsia.ir.dialects.aten import aten_op
from intarsia.passes.core.base import Pass
from intarsia.passes.core.manager import registered
from intarsia.reports.memory import drawn_plan
from intarsia.reports.places import Places
from intarsia.tools.opt.main import main as passes_opt

X = torch.randn(6, 128)


def weights(x):
    return {"w": torch.softmax(x, -1).T.contiguous() @ x, "s": [x.sum(), 3]}


def squares(x):
    y = x @ x.T
    for _ in range(8):
        y = (y @ y).tanh()
    return y


def dynamic():
    x = X.clone()
    intarsia.mark_dynamic(x, 0)
    return x


def test_print_is_short():
    low = intarsia.lower(weights, X)
    text = str(low)
    assert text == repr(low) and len(text) < 900 and len(text.splitlines()) < 16
    assert "5 operations, 2 kernels, 1 library call" in text and "aten.mm 128x6 6x128" in text
    assert len(str(intarsia.lower(squares, X))) < 2000


def test_run_gives_what_the_function_gives_at_every_level_and_behind_passes():
    low, want = intarsia.lower(weights, X), weights(X)
    assert low.levels == ["aten", "prim", "kernel", "loop", "buffer"]
    for level in (*low.levels, "fuse", "schedule"):
        found = low.run(level, X)
        assert found["s"][1] == 3 and list(found) == ["w", "s"]
        torch.testing.assert_close(found, want)
    with pytest.raises(
        ValueError, match="no level or pass 'prom'; did you mean 'prim'.; known: aten, prim, kernel, loop, buffer, [^a]"
    ):
        low.run("prom", X)
    with pytest.raises(ValueError, match="guards do not hold"):
        low.run("prim", X[:5])


def test_run_writes_what_the_function_writes():
    def fn(x, y):
        x.add_(y)
        return x[1:]

    low = intarsia.lower(fn, X.clone(), X)
    for level in low.levels:
        x, y = X.clone(), X.clone()
        found, z = low.run(level, x, X), fn(y, X)
        assert torch.equal(x, y) and torch.equal(found, z) and found.data_ptr() == x[1:].data_ptr()


def test_run_of_a_function_with_gradients_of_its_own():
    def fn(x):
        x = x.detach().requires_grad_()
        (x.sin().sum()).backward()
        return x.grad

    low = intarsia.lower(fn, X)
    torch.testing.assert_close(low.run("prim", X), fn(X))


def test_kernels_have_their_text_and_loops():
    low = intarsia.lower(weights, X)
    first, second = low.kernels
    assert first.text.startswith("// from ") and f"int {first.name}(" in first.text and first.text.endswith("}\n")
    assert second.name not in first.text and f"loop.kernel @{first.name}" in first.ir
    assert first.calls == 1 and first.bytes == 2 * 4 * X.numel() and first.operations > X.numel()
    assert first.lines[0].endswith(f"test_stages.py:{weights.__code__.co_firstlineno + 1}")
    for target in ("triton:sm_90", "triton:gfx942"):
        made = intarsia.lower(weights, dynamic(), target=target).kernels
        assert [f"def {k.name}(" in k.text for k in made] == [True] * len(made) and len(made) > 1
        assert all(k.text.count("tl.store") >= 1 for k in made)
        assert not any(other.name in k.text for k in made for other in made if other is not k)


def test_calls_of_equal_kernels_are_counted():
    low = intarsia.lower(squares, X)
    (kernel,) = low.kernels
    assert kernel.calls == 8 and sum(w.name == kernel.name for w in low.works()) == 8


def test_cost_follows_the_sizes():
    low = intarsia.lower(weights, dynamic())
    (name,) = low.sizes()
    limits = {"copy": 1e9, "float32": 1e9}
    small, large = low.cost_analysis(limits), low.cost_analysis(limits, **{name: 60})
    assert small.bytes < large.bytes and small.peak_memory < large.peak_memory
    product = next(step for step in small.steps if step.products)
    assert product.products == 2 * 128 * 6 * 128 and product.dtype == torch.float32
    assert small.seconds >= (product.products + sum(s.bytes for s in small.steps if s is not product)) / 1e9
    assert low.cost_analysis().seconds > 0
    with pytest.raises(ValueError, match="unknown size 'nothing'"):
        low.sizes(nothing=3)
    assert intarsia.lower(weights, X, target="triton:sm_90").cost_analysis().seconds is None


def test_what_is_no_list_of_passes_is_named_unless_the_function_takes_it():
    with pytest.raises(TypeError, match="passes takes a list, not 'default,cse'"):
        intarsia.lower(lambda x: x + 1, torch.ones(2), passes="default,cse")
    low = intarsia.lower(lambda x, passes: x + passes, torch.ones(2), passes=3)
    assert torch.equal(low.run("prim", torch.ones(2), passes=3), torch.full((2,), 4.0))


def test_what_passes_counted():
    counts = intarsia.lower(squares, X).counts
    assert counts["fuse"]["kernels"] >= 1 and counts["fuse"]["bytes"] > 0


def test_the_memory_plan():
    plan = intarsia.lower(weights, X).memory_plan
    assert [b.pool for b in plan.buffers] == ["arena", "library", "output"]
    first, product, total = plan.buffers
    assert (first.begin, first.end) == (0, 1) and first.bytes == 4 * X.numel() and first.offset == 0
    assert product.end == total.end == len(plan.steps) - 1 and plan.arena >= first.bytes
    assert plan.peak == plan.arena + product.bytes + total.bytes
    assert plan.at(0) == [first] and set(plan.at(2)) == {product, total}
    assert first.name in intarsia.lower(weights, X).ir("buffer") and "arena + 0" in str(plan)


def several(x):
    y = (x @ x.T).relu() @ x
    return y.sin(), (y @ y.T).amax(), y[:, ::2] * 2, torch.zeros(0, 4)


def test_the_peak_is_that_of_the_host_program():
    for fn in (weights, squares, several):
        for target in ("cpp", "triton:sm_90"):
            low = intarsia.lower(fn, X, target=target)
            assert low.memory_plan.peak == low._generated.host.memory[1]


def test_memory_is_taken_until_it_is_freed_and_none_by_what_has_no_bytes():
    low = intarsia.lower(several, X)
    plan, text = low.memory_plan, low.ir("buffer")
    assert all(b.bytes for b in plan.buffers) and "[0, 4]" in text
    for b in plan.buffers:
        if b.pool == "library":  # it is freed behind the step that reads it last
            before = text[: text.index(f"buffer.free({b.name})")]
            assert len(re.findall(r"buffer\.(?:launch|extern|contract|copy)\b", before)) - 1 == b.end
        if b.pool == "output":
            assert b.end == len(plan.steps) - 1
        made = text[: text.index(f"{b.name} = ")]
        assert len(re.findall(r"buffer\.(?:launch|extern|contract|copy)\b", made)) == b.begin


def test_a_page_draws_the_plan():
    low = intarsia.lower(several, X)
    drawn, plan = drawn_plan(low._module, Places()), low.memory_plan
    assert [(v["first"], v["last"], v["bytes"]) for v in drawn["values"]] == [
        (b.begin, b.end, b.bytes) for b in plan.buffers
    ]
    assert drawn["top"] >= plan.peak and drawn["given"] == X.nbytes


def test_sizes_that_values_decide_count_as_guessed_or_as_given():
    low = intarsia.lower(lambda x: x[x > 0] * 2, X)
    ((name, guess),) = low.sizes().items()
    assert low.memory_plan.peak == low.memory_plan.arena + 2 * 4 * guess and len(low.kernels) == 2 and str(low)
    few, many = (low.cost_analysis({"copy": 1e9}, **{name: n}) for n in (10, 1000))
    assert many.bytes - few.bytes == 4 * 4 * 990  # the call reads and writes them, and so does the kernel
    with pytest.raises(ValueError, match=f"unknown size 'q'.*known: {name}"):
        low.cost_analysis(q=3)


def test_exported_programs():
    x = torch.randn(4, 8)
    program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), (x,))
    with torch.no_grad():
        torch.testing.assert_close(intarsia.lower(program, x).run("loop", x), program.module()(x))
        assert str(intarsia.verify(program, x)).startswith("right: 1 graphs")
        assert str(intarsia.bisect(program, x)) == "nothing is wrong"


def test_differences():
    low, other = intarsia.lower(weights, X), intarsia.lower(lambda x: torch.softmax(x, -1).T.contiguous() @ x, X)
    assert "the same at every stage" in low.diff(low)
    assert low.diff(other).splitlines()[:2] == ["--- this: aten", "+++ other: aten"]
    assert "int sum_" in low.diff(other, "cpp")
    assert (
        low.diff(other, "kernel").startswith("--- this: kernel") and low.diff(low, "prim") == "the same at stage 'prim'"
    )
    gpu = intarsia.lower(weights, X, target="triton:sm_90")
    assert "the same at stage" not in low.diff(gpu) and low.diff(gpu)
    with pytest.raises(ValueError, match="no stage 'prom'"):
        low.diff(other, "prom")


def test_passes_of_others_make_stages_that_the_tool_reads(tmp_path, capsys):
    @dataclass(frozen=True)
    class Turn(Pass):
        """Turn sines into cosines."""

        name = "turn"
        level = "aten"

        def apply(self, ctx, module):
            for op in list(module.walk()):
                if op.name == "aten.sin.default":
                    attrs = dict(op.literals)
                    made = aten_op("aten.cos.default").make(op.operands, [op.results[0].type], attrs, loc=op.location)
                    op.parent.insert_op_before(made, op)
                    op.results[0].replace_all_uses_with(made.results[0])
                    op.detach()
                    op.erase()

    with registered(Turn):
        low = intarsia.lower(lambda x: x.sin() + 1, X)
    assert list(low.stages)[:2] == ["aten", "turn"]
    torch.testing.assert_close(low.run("buffer", X), X.cos() + 1)
    torch.testing.assert_close(low.run("aten", X), X.cos() + 1)
    for level in low.levels:
        (tmp_path / "level.ir").write_text(low.ir(level))
        assert passes_opt(["-p", "default", str(tmp_path / "level.ir")]) == 0
        assert "buffer.launch" in capsys.readouterr().out


class _Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = set()

    def handle_starttag(self, tag, attrs):
        self.found.add((tag, *attrs))


def test_the_page_of_a_notebook_takes_no_text_for_markup():
    name = "a</pre><script>alert(1)</script>\u202e.py"
    space = {"torch": torch}
    exec(compile("def fn(x):\n    return torch.softmax(x, -1)", name, "exec"), space)
    page = intarsia.lower(space["fn"], X)._repr_html_()
    tags = _Tags()
    tags.feed(page)
    assert {tag[0] for tag in tags.found} == {"div", "pre", "details", "summary"}
    assert all(len(tag) == 1 for tag in tags.found) and "\u202e" not in page and "softmax" in page
