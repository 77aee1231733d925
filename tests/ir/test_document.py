"""docs/ir.md is what the code says."""

from __future__ import annotations

from pathlib import Path

from intarsia.ir.dialects import buffer, kernel, loop, prim
from intarsia.ir.document import document
from intarsia.ir.scalars import ScalarRow, add_row, own_rows

PAGE = Path(__file__).parents[2] / "docs" / "ir.md"


def test_the_page_is_in_step() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), "run: python -m intarsia.ir.document"


def test_rows_of_others_are_not_in_it() -> None:
    add_row(ScalarRow("of_another", 1, lambda x: x, "{0}", "{0}", "any", 1))
    assert "of_another" not in document()


def test_every_operation_is_described() -> None:
    text = document()
    for op in (*prim.OPS, *kernel.OPS, *loop.LOOP_OPS, *buffer.OPS):
        if issubclass(op, prim.Elementwise):
            continue
        assert f"### `{op.name}" in text
        assert op.__doc__, f"{op.name} has no docstring"
    assert all(f"| `{row.name}` |" in text for row in own_rows())
