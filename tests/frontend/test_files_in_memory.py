"""Files in memory that captured code makes: written, read, given out, kept over a break."""

from __future__ import annotations

import io
from typing import Any

import torch
from harness import check, compiled
from torch import Tensor

X = torch.arange(4.0)


def test_written_and_read() -> None:
    def program(x: Tensor, word: str) -> Any:
        with io.StringIO() as text:
            text.write(f"one {word}\n")
            text.writelines(line + "\n" for line in ("two", "three"))
            text.seek(0)
            first, rest = text.readline(), list(text)
            whole, at = text.getvalue(), text.tell()
        data = io.BytesIO(b"abc")
        data.seek(2)
        data.write(b"xyz")
        try:
            text.read()
        except ValueError as error:
            return (
                x + 1,
                first,
                rest,
                whole,
                at,
                str(error),
                data.getvalue(),
            )
        return x

    check(program, X, "word")


def test_given_out_and_kept() -> None:
    def program(x: Tensor, word: str) -> Any:
        text, data, strict = io.StringIO(newline="\r\n"), io.BytesIO(), io.StringIO("start")
        text.write(word + "\n")
        data.write(word.encode())
        data.name = "mine"  # type: ignore[misc]
        print(end="")  # breaks the graph
        text.write("more")
        strict.read(2)
        return x + 1, text, data, strict

    fast, _ = compiled(program)
    for word in ("a", "b"):
        for got, want in zip(fast(X, word)[1:], program(X, word)[1:], strict=True):
            assert got.getvalue() == want.getvalue() and got.tell() == want.tell() and vars(got) == vars(want)
    one, two = fast(X, "a")[1], fast(X, "a")[1]
    one.write("!")
    assert one.getvalue() != two.getvalue()


def test_the_caller_s() -> None:
    def program(x: Tensor, text: Any) -> Any:
        text.write("w")
        return x + 1, text.getvalue()

    fast, _ = compiled(program)
    text = io.StringIO()
    assert [fast(X, text)[1], fast(X, text)[1], text.getvalue()] == ["w", "ww", "ww"]
