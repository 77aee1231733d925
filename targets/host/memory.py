"""How much memory a program takes beyond its inputs: what the plan says, and what the same graph takes in eager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import fx
from xdsl.ir import SSAValue

from ...ir.dialects import buffer, prim
from ...passes.analysis.aliases import Aliases, makes_memory
from .kernels import bytes_of


@dataclass(frozen=True)
class Held:
    """Memory of a value's own, outside of the arena: from one operation's place in the program up to the one that frees it."""

    value: SSAValue
    begin: int
    end: int


def held(func: prim.Func) -> list[Held]:
    """What a function at the `buffer` level takes beside its inputs and its arena. What is not freed is held to the end."""
    ops, aliases = list(func.block_body.ops), Aliases.of(func.block_body)
    freed = {aliases.root(op.operands[0]): place for place, op in enumerate(ops) if isinstance(op, buffer.Free)}
    found = []
    for place, op in enumerate(ops):
        made = isinstance(op, buffer.Alloc) and op["pool"] != "arena"
        if made or (isinstance(op, buffer.Extern) and makes_memory(op)):
            found += [Held(result, place, freed.get(result, len(ops))) for result in op.results]
    return found


def most_at_once(func: prim.Func, size: Callable[[SSAValue], int]) -> int:
    """The most bytes that are held at one time outside of the arena, with values of these sizes."""
    changes: Counter[int] = Counter()
    for each in held(func):
        number = size(each.value)
        changes[each.begin] += number
        changes[each.end] -= number
    return max(accumulate(changes[place] for place in sorted(changes)), default=0)


def planned_bytes(func: prim.Func) -> tuple[int, int] | None:
    """(kept between calls, most in use at once) in bytes of a function at the `buffer` level; None: that depends on sizes.

    What libraries need inside a call, and packed copies of weights, are not in it.
    """
    arena = func.get("arena_bytes", 0)
    sizes = {each.value: bytes_of(each.value) for each in held(func)}
    if not isinstance(arena, int) or None in sizes.values():
        return None
    return arena, arena + most_at_once(func, lambda value: sizes[value] or 0)


def eager_bytes(module: fx.GraphModule) -> int | None:
    """The most bytes in use at once when eager runs a captured graph and drops each value after its last use.

    A program that keeps values in variables takes more. None: that depends on sizes.
    """
    nodes = list(module.graph.nodes)
    owned: dict[int, int] = {}  # storages made by the graph: bytes
    last: dict[int, int] = {}
    known: set[int] = set()
    try:
        for number, node in enumerate(nodes):
            for storage, size in _storages(node):
                if node.op in ("placeholder", "get_attr"):
                    known.add(storage)
                elif storage not in known:
                    owned.setdefault(storage, size)
            for used in node.all_input_nodes:
                for storage, _ in _storages(used):
                    last[storage] = number
        begun, live, most = set(), 0, 0
        ends: dict[int, list[int]] = {}
        for number, node in enumerate(nodes):
            for storage, _ in _storages(node):
                if storage in owned and storage not in begun:
                    begun.add(storage)
                    live += owned[storage]
                    ends.setdefault(last.get(storage, number), []).append(storage)
            most = max(most, live)
            live -= sum(owned[storage] for storage in ends.get(number, ()))
    except (TypeError, RuntimeError):  # symbolic sizes, or tensors without a storage
        return None
    return most


def _storages(node: fx.Node) -> Iterable[tuple[int, int]]:
    values: list[Any] = [node.meta.get("example_value")]
    while values:
        value = values.pop()
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            if not isinstance(storage.nbytes(), int):
                raise TypeError("a size is symbolic")
            yield storage._cdata, storage.nbytes()
        elif isinstance(value, tuple | list):
            values += value
