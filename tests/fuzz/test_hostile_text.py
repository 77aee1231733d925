"""Text of a program that becomes part of generated text: in C++, Python, Triton, HTML, DOT and messages it stays text.

Names and strings of IR are replaced by what would end a string, a comment or a line, place by place; whatever comes out is
read as its language reads it, and the mark may stand in strings and comments alone. INTARSIA_FUZZ is how many are tried.
"""

from __future__ import annotations

import io
import os
import random
import re
import tokenize
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import intarsia
from intarsia.ir.syntax import visible
from intarsia.testing import same
from intarsia.tools.opt.main import main

TRIED = max(int(os.environ.get("INTARSIA_FUZZ", "0")), 240)
MARK = "PWNED"
HOSTILE = [
    'x"PWNED()"',
    "x'\n+PWNED()+'",
    'x")\nPWNED()\n#',
    "x*/ PWNED(); /*",
    "x\\",
    "x\\\nPWNED();",
    "$(PWNED)",
    "`PWNED`",
    "</pre></script><script>PWNED()</script>",
    "\u202ePWNED",
    "x\rPWNED()\r",
    "x\u2028PWNED()",
    "x\x0cPWNED()",
    "x); PWNED(",
    "x:\n  PWNED()",
    "{PWNED()}%s%(x)d",
    '"""\nPWNED()\n"""',
    "s0 + PWNED()",
    '__import__("os").system("PWNED")',
    "x/../../PWNED",
    "lambda",
    "\x00PWNED",
    "",
]
X = torch.randn(6, 32)


@torch.library.custom_op("hostile::twice", mutates_args=())
def twice(x: torch.Tensor, how: str) -> torch.Tensor:
    return x * (2 + len(how))


@twice.register_fake
def _(x, how):
    return torch.empty_like(x)


def softmax(x):
    return torch.softmax(x, -1) @ x.T


def index(x, i):
    return x[i].sum(0) + torch.div(x[0], 3, rounding_mode="floor")


def custom(x):
    return twice(x + 1, "how") * 2


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))


def gelu(x):
    return F.gelu(F.linear(x, X), approximate="tanh"), x.add_(1)


@cache
def corpus() -> dict[str, str]:
    """Modules at the first levels and at the last one, for a CPU and for a GPU."""
    sized, found = X.clone(), {}
    intarsia.mark_dynamic(sized, 0)
    programs = [(softmax, sized), (index, X, torch.tensor([1, 2, 0])), (custom, X), (branch, X), (gelu, X.clone())]
    for fn, *args in programs:
        for target in ("cpp", "triton:sm_90"):
            low = intarsia.lower(fn, *args, target=target)
            found |= {f"{fn.__name__} {target} {level}": low.ir(level) for level in ("aten", "prim", "buffer")}
    return found


PLACES = re.compile(r'(?P<string>"(?:[^"\\\n]|\\.)*")|@(?P<name>\w+)|(?<=[a-z])<(?P<angle>[\w.]+)>\(')


def replaced(text: str, rng: random.Random) -> str:
    """The text with another string, name or operator in one of its places, or in all that are equal."""
    place = rng.choice(list(PLACES.finditer(text)))
    new = rng.choice(HOSTILE)
    if place["string"]:
        located = text[: place.start()].endswith("loc(")
        other = _bytes(new) if located else '"' + "".join(_escaped(c) for c in new) + '"'
    else:
        other = f"@{_bytes(new)}" if place["name"] else f"<{new}>("
    if rng.random() < 0.6:
        return text.replace(place.group(), other)
    return text[: place.start()] + other + text[place.end() :]


def _escaped(char: str) -> str:
    plain = char.isascii() and char.isprintable() and char not in '"\\'
    return char if plain else f"\\u{ord(char):04x}"


def _bytes(text: str) -> str:
    """A string of xDSL's."""
    return '"' + "".join(chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:02X}" for b in text.encode()) + '"'


def outside_of_python(text: str) -> Iterator[str]:
    """The lines in which the mark is code."""
    compile(text, "generated", "exec")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if MARK in token.string and (token.type == tokenize.NAME or token.string[:1] in "fF"):
            yield token.line


def outside_of_cpp(text: str) -> Iterator[str]:
    """The same of C++, where a line that ends in a backslash goes on."""
    joined = text.replace("\r", "\n").replace("\\\n", "")
    bare = re.sub(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', "", joined, flags=re.DOTALL)
    return (line for line in bare.splitlines() if MARK in line)


def outside_of_dot(text: str) -> Iterator[str]:
    return (line for line in re.sub(r'"(?:[^"\\]|\\.)*"', "", text).splitlines() if MARK in line)


READERS = {
    "host": outside_of_python,
    "triton": outside_of_python,
    "cpp": outside_of_cpp,
    "dot": outside_of_dot,
    "": lambda text: iter(()),
}


@pytest.mark.parametrize("part", range(4))
def test_text_of_ir_stays_text(part: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, path, accepted = random.Random(part), tmp_path / "hostile.ir", 0
    for _ in range(TRIED // 4):
        name = rng.choice(list(corpus()))
        path.write_text(replaced(corpus()[name], rng), encoding="utf-8")
        emit = rng.choice([e for e in READERS if e != "triton" or "triton" in name])
        gpu = ["--target", "triton:sm_90"] if "triton" in name else []
        code = main(
            [str(path), "-p", "default", "--reproducer-dir", str(tmp_path), *gpu, *(["--emit", emit] * bool(emit))]
        )
        out, err = capsys.readouterr()
        assert code in (0, 1) and len(err.splitlines()) <= 15, err
        assert visible(err) == err and "Traceback" not in err
        assert code == 1 or not list(READERS[emit](out)), path.read_text()
        accepted += code == 0
    assert accepted > TRIED // 16


@pytest.mark.parametrize("name", ["PWNED()", "x y", "lambda", "", "\u00e9", "1x", 'x"', "x-y"])
@pytest.mark.parametrize("what", ["kernel", "function", "launch"])
def test_names_that_are_none(what: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = corpus()["softmax cpp buffer"]
    kernel = re.search(r"loop.kernel @(\w+)", text)[1]
    old = {"kernel": f"loop.kernel @{kernel}", "function": "prim.func @main", "launch": f"buffer.launch @{kernel}"}[
        what
    ]
    path = tmp_path / "hostile.ir"
    path.write_text(text.replace(old, f"{old.partition('@')[0]}@{_bytes(name)}"), encoding="utf-8")
    assert main([str(path), "--emit", "host"]) == 1
    assert "is not a name: ASCII letters" in capsys.readouterr().err


def test_a_launch_of_a_kernel_that_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hostile.ir"
    path.write_text(corpus()["softmax cpp buffer"].replace("buffer.launch @", "buffer.launch @other_"))
    assert main([str(path)]) == 1
    assert re.search(
        r"hostile.ir:\d+:\d+: error: buffer.launch: the module has no loop.kernel @other_", capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "target", ["aten.ops.load_library.default", "aten.ops.__class__.mro", "x", "aten.mm", "aten.ops"]
)
def test_operators_that_are_none(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What torch.ops has besides operators is never called."""
    path = tmp_path / "hostile.ir"
    path.write_text(corpus()["softmax cpp buffer"].replace("aten.mm.default", target))
    for flags in (["--run"], ["--emit", "host"], ["--run-compiled"]):
        assert main([str(path), *flags]) == 1
        assert "no operator is registered under the name" in capsys.readouterr().err


def renamed(fn: types.FunctionType, name: str) -> types.FunctionType:
    code = fn.__code__.replace(co_name=name, co_qualname=name, co_filename=name)
    return types.FunctionType(code, fn.__globals__, name, fn.__defaults__, fn.__closure__)


def labelled(given, names, how):
    y = torch.softmax(given[names[0]], -1)
    z = twice(y, how)
    return {**{n: z + i for i, n in enumerate(names)}, "label": f"{how}{names[0]}"}


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_programs_stays_text(text: str, tmp_path: Path) -> None:
    """Names of functions and files, keys, and strings that operators take."""
    fn = renamed(labelled, text)
    args = {text: X, "k": X}, [text, text + "2"], text
    with torch.no_grad():
        low = intarsia.lower(fn, *args)
        gpu = intarsia.lower(fn, *args, target="triton:sm_90")
        compiled = intarsia.compile(fn, options={"debug": str(tmp_path), "on_error": "raise"})
        assert same(labelled(*args), compiled(*args))
        explained = str(intarsia.explain(fn)(*args))
    for python in (low.host(), gpu.host(), gpu.triton(), *(p.read_text() for p in tmp_path.rglob("*.py"))):
        assert not list(outside_of_python(python))
    for cpp in (low.source(), gpu.source(), *(p.read_text() for p in tmp_path.rglob("*.cpp"))):
        assert not list(outside_of_cpp(cpp))
    assert visible(explained) == explained and "<script" not in low._repr_html_() and str(low) == visible(str(low))
