"""Members of modules that captured code deletes, and sets again by the same name: tables, `vars` and errors are eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import compiled
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.ones(3))
        self.register_buffer("c", torch.zeros(3), persistent=False)
        self.w = nn.Parameter(torch.ones(3))
        self.t = torch.ones(3)


PROGRAMS = {
    "deleted": "del net.c",
    "plain": "del net.c; net.c = x",
    "plain, saved": "del net.b; net.b = x",
    "plain, a number": "del net.b; net.b = 3",
    "again": "del net.c; net.register_buffer('c', x)",
    "twice": "del net.c; net.c = x; del net.c",
    "thrice": "del net.c; net.c = x; del net.c; net.c = x",
    "nothing": "net.c = None; net.c = x",
    "by its dict": "vars(net)['c'] = x",
    "both": "vars(net)['c'] = x; del net.c",
    "deleted, then its dict": "del net.c; vars(net)['c'] = x",
    "looked at first": "len(net._buffers); del net.c; net.c = x",
    "looked at between": "del net.c; len(net._buffers); net.c = x",
    "looked at last": "del net.c; net.c = x; len(net._buffers)",
    "saved, looked at": "len(net._buffers); del net.b; net.b = x",
    "swapped": "net.b, net.c = net.c, net.b",
    "new": "net.register_buffer('e', x); del net.e; net.e = x",
    "another plain one": "del net.t; net.t = 3",
}


def seen(net: nn.Module) -> Any:
    plain = {name: str(value) for name, value in vars(net).items() if not name.startswith("_")}
    tables = [[*table] for table in (net._buffers, net._parameters, net._modules)]
    return tables, sorted(net._non_persistent_buffers_set), plain, [*net.state_dict()], [str(b) for b in net.buffers()]


@pytest.mark.parametrize("text", PROGRAMS.values(), ids=PROGRAMS)
def test_members(text: str) -> None:
    spaces: list[dict[str, Any]] = [{}, {}]
    for space in spaces:
        exec(f"def program(net, x):\n    y = x + 1\n    {text}\n    return y * 2", space)
    fast, log = compiled(spaces[0]["program"])
    for _ in range(3):
        mine, theirs, x = Net(), Net(), torch.full((3,), 5.0)
        assert torch.equal(fast(mine, x), spaces[1]["program"](theirs, x))
        assert seen(mine) == seen(theirs)
    assert not log.fallbacks


@pytest.mark.parametrize("first", ["", "net.b = None", "len(net._buffers)"])
def test_what_is_no_buffer_is_refused_where_the_program_catches_it(first: str) -> None:
    def program(net: Any, x: Tensor) -> Any:
        if first == "net.b = None":
            net.b = None
        elif first:
            len(net._buffers)
        try:
            net.b = 3
        except TypeError as error:
            return x + 1, str(error)

    fast, _ = compiled(program)
    for _ in range(2):
        mine, theirs, x = Net(), Net(), torch.ones(3)
        assert fast(mine, x)[1] == program(theirs, x)[1] != ""
        assert seen(mine) == seen(theirs)
