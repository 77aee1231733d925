"""What passes-opt says of files that are no modules: huge, deeply nested, truncated, binary. At most 15 lines, soon, and nothing is executed."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from intarsia.ir.syntax import visible
from intarsia.tools.opt.main import main

SOFTMAX = (Path(__file__).parents[2] / "examples" / "softmax.ir").read_text()
FUNC = "prim.func @main() {{symbols = {}}} ({{^bb0: prim.return()}})"


def says(path: Path, data: str | bytes, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
    file = path / "file.ir"
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    start = time.monotonic()
    code = main([str(file), "--reproducer-dir", str(path), *flags])
    err = capsys.readouterr().err
    assert time.monotonic() - start < 20
    assert len(err.splitlines()) <= 15 and max(map(len, err.splitlines()), default=0) < 500
    assert "Traceback" not in err and visible(err) == err
    return code, err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (random.Random(0).randbytes(1 << 16) + b"\xff", "cannot read"),
        (b"\0" * (1 << 20), "Unexpected character: \\u0000"),
        (" \n", "is empty: there is no module in it"),
        ("(" * 100_000, "Could not parse entire input"),
        ("prim.func @main() {" + "[" * 100_000, "'{' is never closed"),
        (FUNC.format("[" * 50_000 + "]" * 50_000), "not a value: too many nested parentheses"),
        (FUNC.format("-" * 100_000 + "1"), "not a value"),
        (FUNC.format("+".join(["s0"] * 50_000)), "not a value"),
        (FUNC.format("*".join(["(s0+s1+s2+s3+s4)"] * 20)), "the expression is too long"),
        (FUNC.format("(s0+s1+s2+s3+s4)**64"), "too long"),
        (FUNC.format("((((10**64)**64)**64)**64)**64"), "the number, or the expression, is too long"),
        (FUNC.format('"a"*9999999999'), "only numbers are multiplied"),
        (FUNC.format("[1]*9999999999"), "only numbers are multiplied"),
        ("builtin.module {" * 20_000, "nested too deeply"),
        ('"' + "a" * 1_000_000, "End of file reached"),
        ("%x = " + "a" * 1_000_000, "error: Operation aaa"),
        (SOFTMAX.replace("768", "9999999999999"), ""),
        (SOFTMAX.replace('"model.py"', '"\\80\\80"'), ""),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, str | bytes) else None,
)
def test_files_that_are_no_modules(text, message, tmp_path, capsys):
    code, err = says(tmp_path, text, capsys, "--run")
    assert code == 1 and "error: " in err and message in err


@pytest.mark.parametrize("flags", [(), ("-p", "default"), ("-p", "default", "--emit", "host")], ids=str)
def test_truncated_files(flags, tmp_path, capsys):
    for end in range(0, len(SOFTMAX.rstrip()), 61):
        assert says(tmp_path, SOFTMAX[:end], capsys, *flags)[0] == 1


def test_files_with_bytes_that_were_lost(tmp_path, capsys):
    rng = random.Random(0)
    for _ in range(60):
        data = bytearray(SOFTMAX.encode())
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        assert says(tmp_path, bytes(data), capsys, "-p", "default")[0] in (0, 1)


def test_attributes_of_the_wrong_kind_are_errors_at_their_place(tmp_path, capsys):
    for wrong in ("3", "[3]", "torch.float32", '[["s0", 0]]', "true", "[[s0, 0, 0, 2, none]]", "nan"):
        code, err = says(tmp_path, SOFTMAX.replace('[["s0", 0, 0, 2, none]]', wrong), capsys, "-p", "default")
        assert code == (0 if wrong.startswith("[[s0") else 1) and (not code or "file.ir:" in err)


def test_long_chains_take_no_quadratic_time(tmp_path, capsys):
    def took(count: int) -> float:
        lines = [f"%v{i + 1} = prim.neg(%v{i}) : !prim.tensor<[4], f32>" for i in range(count)]
        text = "\n".join(["prim.func @main() {symbols = []} ({", "^bb0(%v0: !prim.tensor<[4], f32>):", *lines])
        start = time.process_time()
        assert says(tmp_path, f"{text}\nprim.return(%v{count})\n}})", capsys)[0] == 0
        return time.process_time() - start

    took(50)
    assert took(4000) < 12 * max(took(1000), 0.1)
