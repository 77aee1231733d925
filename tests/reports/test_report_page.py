"""The page of `intarsia.report` in headless Chromium: it is drawn without an error, hover and keyboard light what belongs together."""

from __future__ import annotations

import json
import linecache
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import intarsia
from intarsia.reports.page import unpacked, write
from intarsia.tools.opt.main import main
from tests.reports.browser import Browser, browser, skipped

pytestmark = skipped


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.up(self.norm(x))
        y = y * torch.sigmoid(y)
        return x + self.down(y)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(32) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.softmax(-1)


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    intarsia.reset()
    with torch.no_grad():
        return intarsia.report(Net(), torch.randn(4, 32), path=tmp_path_factory.mktemp("page") / "report.html").path


def tabs(window: Browser) -> list[str]:
    return window.texts("#tabs button")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_every_part_is_drawn_without_an_error(window: Browser, page: Path, theme: str, width: int) -> None:
    window.size(width, 820)
    assert window.open(page, theme=theme) < 2000
    assert tabs(window) == ["Code", "Fusion", "IR", "Memory", "Speed", "Compile time", "Guards and breaks"]
    for number, name in enumerate(tabs(window), 1):
        window.press(str(number))
        assert window.texts("#tabs [aria-selected=true]") == [name]
        assert window.run("document.querySelector('main').innerText.length") > 60
        assert "undefined" not in window.texts("main")[0] and "[object" not in window.texts("main")[0]
        assert window.run("document.documentElement.scrollWidth <= innerWidth"), name
    assert not window.errors()


def test_what_belongs_together_lights_up(window: Browser, page: Path) -> None:
    window.size(1400, 820)
    window.open(page, "code")
    rows = window.run("[...document.querySelectorAll('[aria-label=Source] .row')].map((r) => [r.id, r.textContent])")
    source = next(f"#{i}" for i, text in rows if "torch.sigmoid(" in text)
    window.point(source)
    lit = "[aria-label='{}'] .row.lit"
    assert {t.strip("0123456789 ").partition(" ")[0] for t in window.texts(lit.format("Graph"))} >= {"sigmoid", "mul"}
    assert len(window.texts(lit.format("Program"))) == 3  # one a block
    assert "torch.sigmoid" in window.texts("#status")[0]
    window.point("#title")
    assert not window.texts(".row.lit")
    window.point(source, click=True)
    window.point("#title")
    assert window.texts(lit.format("Graph")) and "sigmoid" in window.texts(".chosen")[0]
    window.press("Escape")
    assert not window.texts(".row.lit")
    assert not window.errors()


def test_a_step_of_one_layer_is_that_layers(window: Browser, page: Path) -> None:
    window.size(1400, 820)
    window.open(page, "code")
    window.run("document.querySelector('[aria-label=Program] .list').focus()")
    rows = window.run("[...document.querySelectorAll('[aria-label=Program] .row')].map((r) => r.textContent)")
    at = next(k for k, text in enumerate(rows) if text.endswith("blocks.1.down"))
    window.press("Down", *["Down"] * at, "Enter")
    modules = [t for t in window.texts("[aria-label=Graph] .row.lit") if "blocks." in t]
    assert modules and all(t.endswith(("blocks.1.down", "blocks.1")) for t in modules)
    assert len(window.texts("[aria-label=Graph] .row.near")) >= 2  # the same line in other layers
    assert 'extern "C"' in window.wait(
        "document.querySelector('.chosen .list') && document.querySelector('.chosen').innerText"
    )
    assert not window.errors()


def test_what_is_chosen_stays_in_view_where_the_lists_become_shorter(window: Browser, page: Path) -> None:
    window.size(1400, 560)
    window.open(page, "code")
    assert window.texts("[aria-label=Source] .more")[0].endswith("test_report_page.py")  # the file that is looked at
    rows = window.run("[...document.querySelectorAll('[aria-label=Program] .row')].map((r) => [r.id, r.offsetTop])")
    seen = window.run("document.querySelector('[aria-label=Program] .list').clientHeight")
    window.point("#" + [name for name, top in rows if top + 24 < seen][-1], click=True)
    window.wait("document.querySelector('.chosen .list')")
    for pane in ("Source", "Graph", "Program"):
        hidden = window.run(
            "(() => { const host = document.querySelector(`[aria-label=${arguments[0]}] .list`).getBoundingClientRect();"
            " return ![...document.querySelectorAll(`[aria-label=${arguments[0]}] .row.lit`)].map((r) => r.getBoundingClientRect())"
            ".some((r) => r.top >= host.top - 1 && r.bottom <= host.bottom + 1); })()",
            pane,
        )
        assert not hidden, pane
    assert not window.errors()


def test_changes_of_a_pass(window: Browser, page: Path) -> None:
    window.size(1400, 820)
    window.open(page, "ir")
    assert window.wait("document.querySelectorAll('.row.add').length") and window.texts(".row.gone")
    window.run("document.querySelector('[aria-label=IR] .head button').click()")
    window.settle()
    assert not window.texts(".row.add") and window.texts("[aria-label=IR] .row")
    window.press("/", *"sigmoid", "Enter")
    assert any("sigmoid" in t for t in window.texts("[aria-label=IR] .row.active"))
    assert not window.errors()


HOSTILE = [
    "</script><script>document.title='taken'</script>",
    "<!--",
    "'\"`${1}",
    "\u202etxt.exe",
    "\u2028\u2029",
    "a\\b\nc",
]


def test_strings_of_programs_are_text(window: Browser, tmp_path: Path) -> None:
    """Names of functions, files, lines of source and values in guards: none becomes markup, and none hides."""
    linecache.clearcache()
    for number, evil in enumerate(HOSTILE):
        file = f"{evil}{number}.py"
        text = f"def f(x, word):\n    y = x.sin() if word == {evil!r} else x.cos()  # {evil!r} <b>bold</b>\n    print(end='')\n    return y * 2\n"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        made: dict[str, Any] = {}
        exec(compile(text, file, "exec"), made)
        made["f"].__name__ = made["f"].__qualname__ = evil
        made["f"].__code__ = made["f"].__code__.replace(co_name=evil.encode("utf-8", "replace").decode())
        path = intarsia.report(made["f"], torch.ones(3), evil, path=tmp_path / f"{number}.html", timed=False).path
        raw = path.read_text(encoding="utf-8")
        assert raw.count("<script") == 3 and "taken" not in raw and "\u202e" not in raw and "\u2028" not in raw
        window.open(path)
        shown = ""
        for key in map(str, range(1, len(tabs(window)) + 1)):
            window.press(key)
            shown += "".join(window.texts("main, #title, #status"))
        assert not window.errors() and not window.run("document.querySelectorAll('main b b, main script').length")
        assert window.run("document.title").endswith(" · Intarsia report")
        assert "<b>bold</b>" in shown or set(evil) & set('"\n')  # such files are not found again
        main = "".join(window.texts("main"))
        assert "[object" not in shown and "undefined" not in main
        assert not set(main) & set("\u202e\u2028\u2029\u0000")


class Named(nn.Module):
    """A module whose parts have hostile names."""

    def __init__(self) -> None:
        super().__init__()
        for number, evil in enumerate(HOSTILE):
            part = nn.Sequential()
            part.register_parameter(evil.replace(".", ""), nn.Parameter(torch.randn(8, 8)))
            part.forward = types.MethodType(lambda self, x: torch.tanh(x @ next(iter(self._parameters.values()))), part)
            self.add_module(f"{evil}{number}".replace(".", ""), part)

    def forward(self, x):
        for part in self._modules.values():
            x = part(x)
        return x


def test_names_of_modules_and_text_of_ir_are_text(window: Browser, tmp_path: Path, capsys: Any) -> None:
    """Module paths in graph, program and what is saved for backward; arguments and places of a file of IR."""
    intarsia.report(Named(), torch.randn(4, 8), path=tmp_path / "net.html", timed=False, backward=True)
    strings = [json.dumps(evil, ensure_ascii=False) for evil in HOSTILE]
    values = [f"%x{k}" for k in range(len(HOSTILE))]
    text = f"prim.func @main() {{arg_names = [{', '.join(strings)}]}} ({{\n^bb0("
    text += ", ".join(f"{v}: !prim.tensor<[4], f32>" for v in values) + "):\n"
    text += "".join(
        f"  %y{k} = prim.exp({v}) : !prim.tensor<[4], f32> loc({s}:3:0)\n"
        for k, (v, s) in enumerate(zip(values, strings, strict=True))
    )
    text += f"  prim.return({', '.join(f'%y{k}' for k in range(len(values)))})\n}})"
    (tmp_path / "module.ir").write_text(text, encoding="utf-8")
    code = main(["--emit", "html", "-p", "default", str(tmp_path / "module.ir"), "-o", str(tmp_path / "ir.html")])
    assert code == 0, capsys.readouterr().err
    for name in ("net", "ir"):
        raw = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert raw.count("<script") == 3 and "taken" not in raw and "\u202e" not in raw and "\u2028" not in raw
        window.open(tmp_path / f"{name}.html")
        shown = ""
        for key in map(str, range(1, len(tabs(window)) + 1)):
            window.press(key)
            shown += "".join(window.texts("main, #title, #status"))
        assert not window.errors() and not window.run("document.querySelectorAll('main script, main b b').length")
        assert "'taken'</script>" in shown, name
        assert not set(shown) & set("\u202e\u2028\u2029\u0000"), (
            name,
            [shown[max(0, shown.find(c) - 60) :][:90] for c in "\u202e\u2028" if c in shown],
        )
        assert "[object" not in shown and "undefined" not in shown
        assert window.run("document.title").endswith(" · Intarsia report")


def test_five_thousand_operations_are_fluent(window: Browser, page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    facts = {**unpacked(text, "facts"), "texts": unpacked(text, "texts")}
    (graph,) = facts["graphs"]
    (program,) = graph["programs"]
    graph["ops"] = (graph["ops"] * 5000)[:5000]
    program["steps"] = (program["steps"] * 5000)[:5000]
    value = program["memory"]["values"][0]
    program["memory"] |= {"steps": 5000, "values": [{**value, "first": k, "last": k + 3} for k in range(4990)]}
    for number, row in enumerate(facts["texts"]):
        if "places" in row:
            lines = row["text"].split("\n")
            row["text"] = "\n".join(f"{line} {{n = {k % 5}, t = {number}}}" for k in range(60) for line in lines)
            row["places"] = row["places"] * 60
    large = write(facts, tmp_path / "large.html")
    window.size(1400, 820)
    assert window.open(large, "code") < 2000
    assert len(window.texts("[role=option]")) < 400  # of 5,000 and 5,000
    made = window.run(
        "(() => { const list = document.querySelector('[aria-label=Graph] .list'), seen = new MutationObserver(() => {});"
        " seen.observe(list, { childList: true, subtree: true });"
        " for (let i = 0; i < 60; i++) { list.scrollTop = i * 1800; list.dispatchEvent(new Event('scroll')); }"
        " return seen.takeRecords().filter((r) => r.target.className === 'space').reduce((n, r) => n + r.addedNodes.length, 0); })()"
    )
    assert made / 60 < 60  # rows a screen
    window.point("[aria-label=Graph] .list")
    assert window.wait("document.querySelectorAll('.row.lit').length")
    for key in ("3", "4", "2"):
        before = window.run("performance.now()")
        window.press(key)
        assert window.wait("document.querySelector('main').textContent.length > 100")
        assert window.run("performance.now() - arguments[0]", before) < 10_000  # no measurement
    assert not window.errors()
