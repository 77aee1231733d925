"""How much memory a program takes beyond its inputs: what the plan says, and what the same graph takes in eager."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from xdsl.ir import SSAValue

from ...ir.dialects import buffer, prim
from ...ir.syntax import Op
from ...passes.analysis.aliases import makes_memory
from .kernels import bytes_of


def planned_bytes(func: prim.Func) -> tuple[int, int] | None:
    """(kept between calls, most in use at once) in bytes of a function at the `buffer` level; None: that depends on sizes.

    What libraries need inside a call, and packed copies of weights, are not in it.
    """
    arena = func.get("arena_bytes", 0)
    live: dict[SSAValue, int] = {}
    most = 0
    for op in func.block_body.ops:
        assert isinstance(op, Op)
        if isinstance(op, buffer.Free):
            live.pop(op.operands[0], None)
            continue
        made = isinstance(op, buffer.Alloc) and op["pool"] != "arena"
        made = made or (isinstance(op, buffer.Extern) and makes_memory(op))
        for result in op.results if made else ():
            size = bytes_of(result)
            if size is None:
                return None
            live[result] = size
        most = max(most, sum(live.values()) if made else 0)
    return (arena, arena + most) if isinstance(arena, int) else None


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
