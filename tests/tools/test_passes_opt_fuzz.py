"""Modules with random damage, through every kind of output: an error in a few lines or a result, and nothing of the file's text as code."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from intarsia.ir.syntax import visible
from intarsia.tools.opt.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
BASES = [(EXAMPLES / name).read_text() for name in ("softmax.ir", "first_pass/length.ir")]
HOSTILE = [
    *('"', "\n", "*/", "</script>", "$(touch PWNED)", "\u202e", "`touch PWNED`", "\\", "\0", "';import os;'"),
    *("{" * 3000, "(" * 5000, "[[" * 2000, "%x" * 50),
]
OUTPUTS = [["-p", "default"], *(["--emit", kind] for kind in ("cpp", "host", "html", "dot", "linalg", "stablehlo"))]


def truncated(rng: random.Random, text: str) -> bytes:
    return text[: rng.randrange(len(text))].encode()


def noise(rng: random.Random, text: str) -> bytes:
    return rng.randbytes(rng.randrange(1, 400))


def with_hostile_text(rng: random.Random, text: str) -> bytes:
    """Anywhere, or in a string: there it has to survive as text."""
    places = [m.end() for m in re.finditer(r'loc\("|\["|"[xy]', text)] if rng.random() < 0.5 else range(len(text))
    place, what = rng.choice(places), rng.choice(HOSTILE)
    return f"{text[:place]}{what}{text[place:]}".encode()


def with_lost_bytes(rng: random.Random, text: str) -> bytes:
    data = bytearray(text.encode())
    for _ in range(rng.randrange(1, 4)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def with_words_exchanged(rng: random.Random, text: str) -> bytes:
    """Well-formed text of another meaning."""
    words = re.findall(r"%\w+|prim\.\w+|\d+|f32|s0", text)
    old, new = rng.choice(words), rng.choice([*words, "i64", "bool", "-1", "0", "s1"])
    place = rng.choice([m.start() for m in re.finditer(re.escape(old), text)])
    return f"{text[:place]}{new}{text[place + len(old) :]}".encode()


@pytest.mark.parametrize("damage", [truncated, noise, with_hostile_text, with_lost_bytes, with_words_exchanged])
def test_random_damage(damage, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng, codes = random.Random(damage.__name__), set()
    for number in range(40):
        file = tmp_path / "file.ir"
        file.write_bytes(damage(rng, rng.choice(BASES)))
        output = OUTPUTS[number % len(OUTPUTS)]
        code = main([str(file), "--reproducer-dir", str(tmp_path), *output])
        out, err = capsys.readouterr()
        codes.add(code)
        assert code in (0, 1) and bool(err) >= bool(code), (output, err)
        assert len(err.splitlines()) <= 15 and "Traceback" not in err and visible(err) == err, err
        assert "\u202e" not in out, output
        if "html" in output:
            assert out.count("<script") == out.count("</script")
        if {"cpp", "host"} & {*output}:  # hostile text stands in strings and comments alone
            assert "touch PWNED" not in re.sub(r'//.*|#.*|"(\\.|[^"\\])*"', "", out)
    assert 1 in codes and not (tmp_path / "PWNED").exists()
    assert 0 in codes or damage is noise
