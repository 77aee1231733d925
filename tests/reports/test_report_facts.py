"""The facts behind the page of `intarsia.report`: what they say is what was compiled, and the page holds them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import intarsia
from intarsia.ir.syntax import comment_of
from intarsia.reports.page import packed, unpacked
from intarsia.reports.places import Places
from intarsia.reports.record import Recording, is_recording, recording, spent
from intarsia.reports.texts import file_name


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    intarsia.reset()


def norm(x, w):
    y = torch.mm(x, w)
    return torch.softmax(y * 2 + 1, -1)


def here(offset):
    return f"{Path(__file__).name}:{norm.__code__.co_firstlineno + offset}"


def place(facts, number):
    file, line = facts["places"][number]
    return f"{Path(facts['files'][file]['path']).name}:{line}"


def test_what_became_of_a_function():
    args = torch.randn(8, 16), torch.randn(16, 32)
    with torch.no_grad():
        made = intarsia.report(norm, *args, timed=False)
    assert made.path == Path("report.html") and made.path.exists()
    torch.testing.assert_close(made.explanation.result, norm(*args))
    facts = made.facts
    (graph,) = facts["graphs"]
    assert [op["name"] for op in graph["ops"]] == ["mm", "mul", "add", "softmax"]
    assert [place(facts, op["place"]) for op in graph["ops"]] == [here(1), here(2), here(2), here(2)]
    assert graph["ops"][0]["type"] == "float32[8, 32]"
    (program,) = graph["programs"]
    names = [program["units"][step["unit"]]["name"] for step in program["steps"]]
    assert len(names) == 2 and "mm" in names[0] + "".join(u["kind"] for u in program["units"])
    passes = program["passes"]
    assert [p["name"] for p in passes][:2] == ["imported", "decompose"] and passes[-1]["level"] == "buffer"
    assert passes[-1]["changed"] and "buffer.alloc" in facts["texts"][passes[-1]["text"]]["text"]
    assert all(p["text"] == before["text"] for before, p in zip(passes, passes[1:], strict=False) if not p["changed"])
    assert "loc(" not in facts["texts"][passes[0]["text"]]["text"]
    assert {"capture", "graph", "passes", "fuse", "c++"} <= {e["name"] for e in facts["events"]}
    kept = unpacked(made.path.read_text(), "facts")
    assert kept == {k: v for k, v in facts.items() if k != "texts"}
    assert unpacked(made.path.read_text(), "texts") == facts["texts"]


def test_merged_and_refused_have_numbers():
    """Two reductions over different axes stay apart, and it says what lies between them; what is pointwise merges."""

    def f(x):
        y = torch.softmax(x, -1) + 1
        return torch.softmax(y, 0)

    with torch.no_grad():
        facts = intarsia.report(f, torch.randn(64, 64), timed=False).facts
    remarks = [r for r in facts["graphs"][0]["programs"][0]["remarks"] if r["pass"] == "fuse"]
    fused = [r for r in remarks if r["kind"] == "fused"]
    refused = [r for r in remarks if r["kind"] == "refused"]
    assert fused and all(r["numbers"]["saved"] > r["numbers"]["again"] for r in fused)
    assert refused and max(r["numbers"]["between"] for r in refused) >= 64 * 64 * 4
    assert all(r["places"] and " with " in r["text"] for r in refused)


def test_memory_of_values_that_live_together_is_apart():
    def f(x, w):
        a = torch.mm(x, w).relu()
        b = torch.mm(a, w).relu()
        return torch.mm(a + b, w).sum()

    with torch.no_grad():
        facts = intarsia.report(f, torch.randn(32, 32), torch.randn(32, 32), timed=False).facts
    plan = facts["graphs"][0]["programs"][0]["memory"]
    values = plan["values"]
    assert values and plan["steps"] == len(facts["graphs"][0]["programs"][0]["steps"])
    for k, a in enumerate(values):
        assert 0 <= a["first"] <= a["last"] < plan["steps"] and a["offset"] + a["bytes"] <= plan["top"]
        for b in values[k + 1 :]:
            together = a["first"] < b["last"] and b["first"] < a["last"]
            assert not together or a["offset"] + a["bytes"] <= b["offset"] or b["offset"] + b["bytes"] <= a["offset"]


def test_training_has_both_halves_and_leaves_no_gradients():
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
    made = intarsia.report(net, torch.randn(3, 8), timed=True, backward=True)
    (graph,) = made.facts["graphs"]
    assert [p["half"] for p in graph["programs"]] == ["forward", "backward"]
    assert all(p["passes"] and p["steps"] and p["times"]["steps"] for p in graph["programs"])
    assert graph["saved"]["bytes"] == sum(t["bytes"] for t in graph["saved"]["tensors"]) > 0
    assert all(p.grad is None for p in net.parameters())
    assert [op["module"] for op in graph["ops"]] == ["0", "1", "2"]
    assert {t["module"] for t in graph["saved"]["tensors"]} <= {"0", "1", "2"} and graph["saved"]["tensors"][0][
        "module"
    ]


def test_every_module_can_be_imported_by_its_name():
    """No function of `intarsia` has the name of a package: `import intarsia.reports.page as page` finds it."""
    packages = {p.parent.name for p in Path(intarsia.__file__).parent.glob("*/__init__.py")}
    assert not {name for name in intarsia.__all__ if name in packages}


def test_breaks_and_what_runs_in_eager():
    def f(x):
        y = x + 1
        print(end="")
        return y * 2

    facts = intarsia.report(f, torch.ones(3), timed=False).facts
    (broken,) = facts["breaks"]
    assert "print" in broken["text"] and broken["reason"] and broken["remedy"] and len(facts["graphs"]) == 2


def test_compiled_functions_are_compiled_anew_with_their_settings():
    compiled = intarsia.compile(norm, options={"numerics": "eager"})
    args = torch.randn(8, 16), torch.randn(16, 32)
    with torch.no_grad():
        compiled(*args)
        before = intarsia.counters()["graphs"]
        facts = intarsia.report(compiled, *args, timed=False).facts
        assert intarsia.counters()["graphs"] == before + 1
    assert facts["graphs"][0]["programs"][0]["passes"]


def test_bad_calls(tmp_path):
    with pytest.raises(TypeError, match="intarsia.report takes a function"):
        intarsia.report(3)
    with pytest.raises(ZeroDivisionError):
        intarsia.report(lambda x: x / (1 // 0), torch.ones(2), timed=False)
    assert not is_recording()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        intarsia.report(norm, torch.ones(2, 2), torch.ones(2, 2), path=tmp_path / "file" / "x.html", timed=False)


def test_a_folder_is_no_page(tmp_path):
    calls = []
    with pytest.raises(IsADirectoryError, match="a report is one file, and .* is a folder; name a file in it"):
        intarsia.report(calls.append, torch.ones(2), path=tmp_path, timed=False)
    assert not calls and not list(tmp_path.iterdir())


def test_nothing_is_recorded_outside():
    spent("alone", 1.0)
    with recording() as made:
        assert is_recording()
        spent("inside", 0.0)
    spent("behind", 1.0)
    assert [e.name for e in made.events] == ["inside"] and not is_recording() and not Recording().events


def test_names_of_files_as_the_ir_writes_them():
    """A name with quotes or what cannot be printed stands escaped in the IR, and is one file with the name of its frames."""
    assert [file_name(t) for t in ("a.py", "quo\\22te", "\\5Cn", "\\C3\\BC", "ü")] == [
        "a.py",
        'quo"te',
        "\\n",
        "ü",
        "ü",
    ]
    places = Places()
    name = 'odd "name"\n.py'
    assert places.at(comment_of(name), 3) == places.at(name, 3) != places.at(name, 4)
    assert [f["path"] for f in places.facts()["files"]] == [name]


def test_any_string_can_be_packed():
    text = "".join(map(chr, [*range(0x300), 0x2028, 0x2029, 0x202E, 0xD800, 0xFFFF, 0xDFFF, 0x1F600])) + "</script><!--"
    page = f'<script id="facts" type="text/plain">{packed([text])}</script>'
    assert page.isascii() and page.count("<") == 2 and unpacked(page, "facts") == [text]
