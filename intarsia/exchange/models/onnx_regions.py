"""Operators of ONNX that hold graphs: `If` by a value that is known or computed, and `Loop` whose number of rounds is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import ExchangeError

MOST_ROUNDS = 10_000


def _if(model: Any, where: str, attributes: Mapping[str, Any], given: Sequence[Any]) -> list[Any]:
    """The side that is known, or both as graphs of their own behind torch's cond."""
    graphs = [_graph(where, attributes, name) for name in ("then_branch", "else_branch")]
    if not given or given[0] is None or given[0].like.numel() != 1:
        raise ExchangeError(f"{where}: the condition is not one boolean")
    which = given[0]
    if which.constant is not None:
        return list(model.inside(graphs[0] if bool(which.constant) else graphs[1], {}))
    captured = sorted(set().union(*(_read_outside(g) for g in graphs)))
    captured = [n for n in captured if n in model.values and model.values[n].constant is None]
    (one, likes), (other, others) = (model.side(g, captured) for g in graphs)
    if [(x.shape, x.dtype) for x in likes] != [(x.shape, x.dtype) for x in others]:
        raise ExchangeError(f"{where}: its sides give other shapes or dtypes")
    made = model.chosen(which.value, [one, other], captured)
    return [type(which)(made[k], like) for k, like in enumerate(likes)]


def _loop(model: Any, where: str, attributes: Mapping[str, Any], given: Sequence[Any]) -> list[Any]:
    """The rounds one after another; what each gives besides is stacked."""
    body = _graph(where, attributes, "body")
    known = type(next(v for v in given if v is not None))
    rounds, goes_on, *carried = given
    if rounds is None or rounds.constant is None:
        raise ExchangeError(f"{where}: a loop whose number of rounds is computed from the model's inputs is not taken")
    count = int(rounds.constant)
    if count > MOST_ROUNDS:
        raise ExchangeError(f"{where}: more than {MOST_ROUNDS:,} rounds")
    if len(body.input) != 2 + len(carried) or any(v is None for v in carried):
        raise ExchangeError(f"{where}: its body takes {len(body.input)} values, not {2 + len(carried)}")
    stacked: list[list[Any]] = [[] for _ in body.output[1 + len(carried) :]]
    for k in range(count):
        if goes_on is not None and not _true(where, goes_on):
            break
        number, yes = torch.tensor(k, dtype=torch.int64), torch.tensor(True)
        values = [known(number, number.to("meta")), goes_on or known(yes, yes.to("meta")), *carried]
        goes_on, *made = model.inside(body, {i.name: v for i, v in zip(body.input, values, strict=True)})
        carried, more = made[: len(carried)], made[len(carried) :]
        for column, value in zip(stacked, more, strict=True):
            column.append(value)
    if any(not column for column in stacked):
        raise ExchangeError(f"{where}: a loop of no rounds that gives a stack of nothing")
    return [*carried, *(_stack(model, known, column) for column in stacked)]


def _true(where: str, value: Any) -> bool:
    if value.constant is None:
        raise ExchangeError(f"{where}: a loop that a computed value ends is not taken")
    return bool(value.constant)


def _stack(model: Any, known: Any, column: Sequence[Any]) -> Any:
    like = torch.stack([v.like for v in column])
    if all(v.constant is not None for v in column):
        return known(torch.stack([v.constant for v in column]), like)
    return known(model.make(torch.stack, [model.of_graph(v.value) for v in column]), like)


def _graph(where: str, attributes: Mapping[str, Any], name: str) -> Any:
    found = attributes.get(name)
    if not hasattr(found, "node"):
        raise ExchangeError(f"{where}: the graph '{name}' is missing")
    return found


def _read_outside(graph: Any) -> set[str]:
    """Names that a graph reads and does not define."""
    own = {v.name for v in graph.input} | {w.name for w in graph.initializer}
    found: set[str] = set()
    for node in graph.node:
        found |= {name for name in node.input if name and name not in own}
        for attribute in node.attribute:
            if attribute.type == 5:
                found |= _read_outside(attribute.g) - own
        own |= set(node.output)
    return found | {v.name for v in graph.output if v.name not in own}


REGIONS: dict[str, Callable[[Any, str, Mapping[str, Any], Sequence[Any]], list[Any]]] = {"If": _if, "Loop": _loop}
