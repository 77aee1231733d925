"""Makes a failing script smaller while the same kind of failure remains: statements go first, then parts of expressions, then numbers."""

from __future__ import annotations

import ast
import copy
import time
from collections.abc import Callable, Iterator

from .script import is_compile

Fails = Callable[[str], bool]


def shrink(text: str, fails: Fails, seconds: float = 90.0) -> str:
    """The smallest script found; `fails` says whether a script still has the failure."""
    end = time.monotonic() + seconds
    best = ast.unparse(ast.parse(text))
    if not fails(best):
        return text
    tried = {best}
    while time.monotonic() < end:
        for candidate in _smaller(best):
            if time.monotonic() > end:
                break
            if candidate in tried or len(candidate) > len(best):
                continue
            tried.add(candidate)
            if fails(candidate):
                best = candidate
                break
        else:
            break
    return best


def _smaller(text: str) -> Iterator[str]:
    """All scripts that are one step smaller, the largest steps first."""
    tree = ast.parse(text)
    for chunk in (8, 4, 2, 1):
        yield from _without_statements(tree, chunk)
    yield from _flattened(tree)
    yield from _simpler_expressions(tree)


def _blocks(tree: ast.AST) -> list[tuple[int, str]]:
    """(number of the node in walking order, field) of every list of statements."""
    found = []
    for number, node in enumerate(ast.walk(tree)):
        for name in ("body", "orelse", "finalbody", "handlers"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                found.append((number, name))
    return found


def _without_statements(tree: ast.Module, chunk: int) -> Iterator[str]:
    nodes = list(ast.walk(tree))
    for number, name in _blocks(tree):
        block = getattr(nodes[number], name)
        if chunk > 1 and len(block) < chunk:
            continue
        for start in reversed(range(0, len(block), chunk)):
            if any(is_compile(s) for s in block[start : start + chunk]):
                continue
            if len(block) == 1 and isinstance(block[0], ast.Pass):
                continue
            smaller = copy.deepcopy(tree)
            made = getattr(list(ast.walk(smaller))[number], name)
            del made[start : start + chunk]
            if not made and name == "body" and not isinstance(nodes[number], ast.Module):
                made.append(ast.Pass())
            yield from _text(smaller)


def _flattened(tree: ast.Module) -> Iterator[str]:
    """A compound statement gives way to its body."""
    nodes = list(ast.walk(tree))
    for number, name in _blocks(tree):
        for place, statement in enumerate(getattr(nodes[number], name)):
            if isinstance(statement, ast.If | ast.For | ast.While | ast.With | ast.Try):
                smaller = copy.deepcopy(tree)
                made = getattr(list(ast.walk(smaller))[number], name)
                made[place : place + 1] = made[place].body
                yield from _text(smaller)


def _simpler_expressions(tree: ast.Module) -> Iterator[str]:
    """An expression gives way to one of its parts; arguments and elements go; numbers get small."""
    nodes = list(ast.walk(tree))
    for number, node in enumerate(nodes):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                for part in _parts(value):
                    yield from _replaced(tree, number, name, None, part)
            elif isinstance(value, list) and value and isinstance(value[0], ast.expr | ast.keyword | ast.alias):
                for place, item in enumerate(value):
                    if not isinstance(node, ast.Compare | ast.BoolOp | ast.Assign | ast.Delete | ast.Dict):
                        yield from _dropped(tree, number, name, place)
                    if isinstance(item, ast.expr):
                        for part in _parts(item):
                            yield from _replaced(tree, number, name, place, part)


def _parts(value: ast.expr) -> list[ast.expr]:
    """What could stand in place of an expression."""
    if isinstance(value, ast.Constant):
        if isinstance(value.value, bool) or not isinstance(value.value, int | float):
            return []
        return [ast.Constant(v) for v in (0, 1, 2, 3) if v < value.value]
    if isinstance(value, ast.Name | ast.Lambda):
        return []
    found = [child for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr)]
    if isinstance(value, ast.Call):
        function = value.func
        found = [function.value] if isinstance(function, ast.Attribute) else []
        found += [a for a in value.args if not isinstance(a, ast.Starred)]
        found = [f for f in found if not (isinstance(f, ast.Name) and f.id in ("torch", "F", "nn"))]
    return [
        f for f in found if not (isinstance(f, ast.Attribute) and ast.unparse(f).startswith(("torch.", "F.", "nn.")))
    ]


def _replaced(tree: ast.Module, number: int, name: str, place: int | None, part: ast.expr) -> Iterator[str]:
    smaller = copy.deepcopy(tree)
    node = list(ast.walk(smaller))[number]
    made = copy.deepcopy(part)
    if place is None:
        setattr(node, name, made)
    else:
        getattr(node, name)[place] = made
    yield from _text(smaller)


def _dropped(tree: ast.Module, number: int, name: str, place: int) -> Iterator[str]:
    smaller = copy.deepcopy(tree)
    del getattr(list(ast.walk(smaller))[number], name)[place]
    yield from _text(smaller)


def _text(tree: ast.Module) -> Iterator[str]:
    try:
        text = ast.unparse(ast.fix_missing_locations(tree))
        ast.parse(text)
    except Exception:
        return
    yield text
