"""Which line a frame of a traceback says that it is at: that of its last instruction, also where an exception went through `finally` and `except`."""

from __future__ import annotations

import itertools
import traceback
from typing import Any

import pytest
import torch
from harness import compiled

BODIES = """
d["a"] + d["missing"]["x"]
d.get("a").nothing.more
(lambda q: q / 0)(d["a"])
[v / 0 for v in (1, 2)]
int("x", base=10)
raise ValueError("one")
assert d["a"] == 2, "no"
print(*3)
with 3: pass
raise KeyError from ValueError(3)
""".strip().split("\n")
AROUND = {
    "finally": "try:\n    {}\nfinally:\n    y = 1\n    y += 1",
    "passes by": "try:\n    {}\nexcept OSError as e:\n    pass\nexcept KeyError as e:\n    raise",
    "again": "try:\n    {}\nexcept Exception as e:\n    raise TypeError(3) from e",
    "twice": "try:\n    try:\n        {}\n    finally:\n        pass\nexcept OSError:\n    pass",
    "within": "with manager():\n    {}\nreturn 3",
    "loop": "for i in range(3):\n    if i == 1:\n        {}",
}


class manager:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: Any) -> None: ...


def told(function: Any) -> Any:
    """What a program sees of the traceback that a function leaves."""
    try:
        function({"a": 1})
    except Exception as error:
        text, seen, at = traceback.format_exc(), [], error.__traceback__
        while at is not None:
            seen.append((at.tb_lineno, at.tb_frame.f_lineno, at.tb_frame.f_code.co_name))
            at = at.tb_next
        return text, seen
    return None


@pytest.mark.parametrize("around", AROUND)
def test_lines(around: str) -> None:
    """Programs that raise, each inside of one statement."""
    for body, last in itertools.product(BODIES, ("", "\nreturn 3")):
        lines = (AROUND[around].format(body) + last).replace("\n", "\n    ")
        namespace: dict[str, Any] = {"manager": manager}
        exec(f"def raises(d):\n    {lines}\n", namespace)
        raises = namespace["raises"]

        def program(x: torch.Tensor, raises: Any = raises) -> Any:
            return x + 1, told(raises)

        fast, log = compiled(program)
        x = torch.ones(2)
        want = program(x)[1]
        assert want is not None
        assert fast(x)[1] == want, body
        assert not log.breaks
