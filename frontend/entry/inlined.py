"""The cheapest call: the guards of the first entry, the program of its graph and the result in the compiled function's own body.

A call of a Python function costs as much as two guards. Where the first thing that a callable was compiled for is its only one, nothing
has to be looked for, so that its text is written into the function itself. What does not have the simple form stays a call.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["inlined_entry", "with_program"]

_MOST = 6000  # characters of a program that is worth it: a call is little beside much work


def with_program(residual: str, namespace: dict[str, Any], graph: Any) -> str:
    """The text of an entry with the graph's program in place of `graph(...)`, where the graph shows one (`graph.inlinable`).

    `namespace` gets the names that the program needs. The text comes back as it is where the program keeps state of its own.
    """
    program = getattr(graph, "inlinable", None)
    if program is None or program.length > _MOST or "graph(" not in residual:
        return residual
    entry = ast.parse(residual)
    used = {node.id for node in ast.walk(entry) if isinstance(node, ast.Name)} | set(namespace)
    call = _Call(program)
    entry = call.visit(entry)
    if not call.done or used & call.names:
        return residual
    namespace |= call.values
    entry = _Results().visit(entry)
    for node in ast.walk(entry):
        if isinstance(node, ast.Try) and not node.body:  # a program of no steps, whose results nobody reads
            node.body = [ast.Pass()]
    return ast.unparse(ast.fix_missing_locations(entry))


class _Call(ast.NodeTransformer):
    """Puts a program in the place of `out = graph(...)`."""

    def __init__(self, program: Any) -> None:
        self.program, self.done = program, False
        self.names: set[str] = set()  # the program's own
        self.values: dict[str, Any] = {}  # functions and dtypes among them

    def visit_Assign(self, node: ast.Assign) -> Any:
        value = node.value
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "graph"):
            return node
        given = [arg.id for arg in value.args if isinstance(arg, ast.Name)]
        if len(given) != len(value.args) or len(given) != len(self.program.arguments) or self.done:
            return node
        self.done = True
        lines, result, self.values, self.names = self.program.written("program_", given)
        return [*ast.parse(lines).body, ast.Assign(node.targets, ast.parse(result, mode="eval").body)]


class _Named(ast.NodeTransformer):
    """Other names for some variables."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)


class _Results(ast.NodeTransformer):
    """`out = (a, b)` and then `out[0]` become `a`, where `out` is used in no other way."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        inside = list(ast.walk(node))
        made = [n for n in inside if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)]
        every = [n for n in made if n.targets[0].id == "out"]  # type: ignore[attr-defined]
        outs = [n for n in every if not _is_profiled(n)]
        items = [
            n for n in inside if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name) and n.value.id == "out"
        ]
        uses = sum(isinstance(n, ast.Name) and n.id == "out" for n in inside)
        if (
            len(outs) != 1
            or uses != len(items) + len(every)
            or not all(isinstance(i.slice, ast.Constant) for i in items)
        ):
            return node
        values = outs[0].value
        if not isinstance(values, ast.Tuple) or not all(isinstance(v, ast.Name) for v in values.elts):
            return node
        for assigned in every:
            if assigned is not outs[0]:  # the same results, of a call
                stored: list[ast.expr] = [ast.Name(v.id, ast.Store()) for v in values.elts if isinstance(v, ast.Name)]
                assigned.targets = [ast.Tuple(stored, ast.Store())]
        return _Replaced(outs[0], values.elts).visit(node)  # type: ignore[no-any-return]


def _is_profiled(node: ast.Assign) -> bool:
    call = node.value
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "profiled"


class _Replaced(ast.NodeTransformer):
    def __init__(self, assigned: ast.Assign, values: list[ast.expr]) -> None:
        self.assigned, self.values = assigned, values

    def visit_Assign(self, node: ast.Assign) -> Any:
        if node is self.assigned:
            return None
        self.generic_visit(node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id == "out":
            assert isinstance(node.slice, ast.Constant)
            return self.values[node.slice.value]  # type: ignore[index]
        self.generic_visit(node)
        return node


def inlined_entry(
    function: types.FunctionType,
    residual: str,
    namespace: Mapping[str, Any],
    names: list[str],
    entry: Callable[..., Any],
) -> bool:
    """Write the entry's text into the compiled function, in place; False where its form does not allow it.

    Args:
        function: the compiled function; its namespace holds `__entries`, and it looks for an entry in a loop.
        residual: the text of the entry.
        namespace: the names in it.
        names: the parameters, in order; in the entry each has an underscore behind it.
        entry: the entry as a function: the text holds as long as it is the first one.
    """
    held = function.__globals__
    if len(residual) > 2 * _MOST:
        return False
    if set(held) & (set(namespace) - {"__builtins__", "MISS"}) or function.__code__.co_freevars:
        return False
    tree = ast.parse(residual).body[0]
    loops = ast.For | ast.While | ast.Lambda | ast.comprehension | ast.FunctionDef
    if not isinstance(tree, ast.FunctionDef) or any(isinstance(n, loops) for s in tree.body for n in ast.walk(s)):
        return False
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
    given = {f"{name}_": name for name in names}
    if any(n.id in names or (n.id in given and isinstance(n.ctx, ast.Store)) for n in found):
        return False
    body = [_Named(given).visit(_Missed().visit(statement)) for statement in tree.body]
    signature = ast.parse(held["__text"]).body[0]
    assert isinstance(signature, ast.FunctionDef)
    loop = ast.parse("while __entries and __entries[0] is __first:\n    pass").body[0]
    assert isinstance(loop, ast.While)
    loop.body = body
    start = sum(isinstance(statement, ast.If) for statement in signature.body)  # those that fill in defaults
    signature.body = [*signature.body[:start], loop, *signature.body[start:]]
    module = ast.fix_missing_locations(ast.Module([signature], []))
    held |= {name: value for name, value in namespace.items() if name != "__builtins__"}
    held["__first"] = entry
    made: dict[str, Any] = {}
    exec(compile(module, function.__code__.co_filename, "exec"), {**held}, made)
    function.__code__ = made["compiled"].__code__
    return True


class _Missed(ast.NodeTransformer):
    """`return MISS` leaves the loop."""

    def visit_Return(self, node: ast.Return) -> ast.stmt:
        missed = isinstance(node.value, ast.Name) and node.value.id == "MISS"
        return ast.copy_location(ast.Break(), node) if missed else node
