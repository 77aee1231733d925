"""Mapping proxies of the caller's: read as the dict behind them is, whoever changes that."""

from __future__ import annotations

import inspect
import types
from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import torch
from harness import compiled

MADE: dict[str, Any] = {
    "small": lambda: {"a": 2.0, "b": 3.0},
    "large": lambda: {f"k{i}": float(i) for i in range(500)} | {"a": 2.0, "b": 3.0},
    "ordered": lambda: OrderedDict(a=2.0, b=3.0),
    "default": lambda: defaultdict(lambda: 4.0, a=2.0, b=3.0),
}


def reads(x, proxy):
    total = x * proxy["a"] + proxy.get("missing", 9.0)
    for key, value in proxy.items():
        total = total + value * len(key)
    total = total + sum(proxy.values()) + len(proxy) + ("a" in proxy) + ("z" in proxy)
    return total, [*proxy], {**proxy}["b"], isinstance(proxy, types.MappingProxyType), proxy.copy()["b"]


@pytest.mark.parametrize("kind", MADE)
def test_a_proxy_is_read_and_guarded(kind):
    held = MADE[kind]()
    proxy = types.MappingProxyType(held)
    fast, log = compiled(reads, fullgraph=True)
    x = torch.ones(3)

    def check(captures):
        got, want = fast(x, proxy), reads(x, proxy)
        torch.testing.assert_close(got[0], want[0])
        assert got[1:] == want[1:] and len(log.captures) == captures

    check(1)
    check(1)
    held["b"] = 11.0
    check(2)
    held["c"] = 1.0
    check(3)
    del held["c"], held["a"]
    held["a"] = 2.0  # another order of the keys
    check(4)


@pytest.mark.parametrize("kind", MADE)
def test_what_the_program_writes_is_seen_through_the_proxy(kind):
    def program(x, held, proxy):
        y = x * proxy["a"]
        held["a"] = 7.0
        y = y + proxy["a"] + sum(proxy.values())
        held["new"] = 1.0
        return y + len(proxy) + proxy["new"]

    mine, theirs = MADE[kind](), MADE[kind]()
    got = compiled(program)[0](torch.ones(3), mine, types.MappingProxyType(mine))
    want = program(torch.ones(3), theirs, types.MappingProxyType(theirs))
    torch.testing.assert_close(got, want)
    assert mine == theirs and list(mine) == list(theirs)


def test_a_missing_key_is_eagers_error():
    proxy = types.MappingProxyType({"a": 1.0})
    with pytest.raises(KeyError, match="nothing"):
        compiled(lambda x: x * proxy["nothing"])[0](torch.ones(3))


def test_signatures_bind_arguments():
    signature = inspect.signature(lambda x, y=2.0, *rest, scale=1.0, **more: None)

    def program(x, *args, **kwargs):
        bound = signature.bind(x, *args, **kwargs)
        bound.apply_defaults()
        found = bound.arguments
        return found["x"] * found["y"] + sum(found["rest"]) * found["scale"], list(found), found["more"]

    fast, log = compiled(program, fullgraph=True)
    x = torch.ones(3)
    for args, kwargs in (((), {}), ((3.0,), {}), ((3.0, 4.0, 5.0), {"scale": 2.0}), ((), {"other": 1})):
        got, want = fast(x, *args, **kwargs), program(x, *args, **kwargs)
        torch.testing.assert_close(got[0], want[0])
        assert got[1:] == want[1:]
    assert len(log.captures) == 4


class Holder:
    factor = 5.0


NAMESPACES = {
    "item": lambda x: x + Holder.__dict__["factor"],
    "vars": lambda x: x + vars(Holder)["factor"],
    "get": lambda x: x + Holder.__dict__.get("other", 1.0),
    "in": lambda x: x + ("other" in Holder.__dict__),
    "all": lambda x: x + sum(v for k, v in Holder.__dict__.items() if not k.startswith("__")),
    "keys": lambda x: x + len([k for k in Holder.__dict__ if not k.startswith("__")]),
}


@pytest.mark.parametrize("name", NAMESPACES)
def test_the_namespace_of_a_class_is_guarded(name, monkeypatch):
    program, x = NAMESPACES[name], torch.ones(3)
    fast, _ = compiled(program, fullgraph=True)
    torch.testing.assert_close(fast(x), program(x))
    monkeypatch.setattr(Holder, "factor", 6.0)
    torch.testing.assert_close(fast(x), program(x))
    monkeypatch.setattr(Holder, "other", 3.0, raising=False)
    torch.testing.assert_close(fast(x), program(x))


def test_a_class_that_is_written_and_proxies_of_the_programs_own():
    class Written:
        factor = 5.0

    def program(x, held):
        own = types.MappingProxyType({"a": x * 2})
        held.factor = held.factor + 1
        return own["a"] + held.__dict__["factor"] + len(own)

    class Other:
        factor = 5.0

    fast, _ = compiled(program)
    for _ in range(2):
        torch.testing.assert_close(fast(torch.ones(3), Written), program(torch.ones(3), Other))
        assert Written.factor == Other.factor
