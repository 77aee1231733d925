"""Nests of a kernel that walk over the same memory become one, which reads it once: sums over the same columns, and what is stored of
each element that they add up.

A batch norm's backward adds up the gradient and its product with the image, and stores the gradient for the branch beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import sympy

from ....ir.symbols import Dim, dim, known_equal, product, simplify_index, substitute
from ..expressions import Expressions, Node
from ..nests import Join, Loop, Nest, Nests, Stage, Store, coefficient

Names: TypeAlias = dict[sympy.Symbol, Dim]


def joined_nests(found: Nests) -> list[Nest]:
    """The nests, where reductions over the same loops that share what they read are stages of one."""
    made: list[Nest] = []
    for nest in (_with_one_stage(found.expressions, nest) for nest in found.nests):
        for k, other in enumerate(made):
            both = _joined(found.expressions, other, nest)
            if both is not None:
                made[k] = both
                break
        else:
            made.append(nest)
    return made


def _with_one_stage(e: Expressions, nest: Nest) -> Nest:
    """The nest, where its reductions need nothing of each other as one stage: its loops are those of the one with most."""
    stages = [s for s in nest.stages if s.joins]
    if len(stages) < 2 or not all(_is_plain(s) for s in stages):
        return nest
    if any(n.kind == "reduced" for s in stages for top in s.nodes for n in top.walk()):
        return nest
    base = max(stages, key=lambda s: len(s.loops))
    joins: list[Join] = []
    for stage in stages:
        names = {} if stage is base else _in_terms_of(stage.loops, base.loops)
        for join in stage.joins:
            value = None if names is None else e.renamed(join.args[0], names)
            if value is None:
                return nest
            joins.append(replace(join, args=(value,)))
    whole = replace(base, joins=joins)
    return replace(nest, stages=[whole, *(s for s in nest.stages if not s.joins)])


def _in_terms_of(theirs: Sequence[Loop], ours: Sequence[Loop]) -> Names | None:
    """The variables of some loops in those of others that make the same points: one by one, or a long loop for neighbours."""
    if _alike(ours, theirs):
        return {y.var: x.var for x, y in zip(ours, theirs, strict=True)}
    if len(theirs) != 1 or any(x.start != 0 for x in (*ours, *theirs)):
        return None
    place: Dim = 0
    for x in ours:
        place = dim(place * x.stop + x.var)
    return {theirs[0].var: place} if known_equal(product(x.stop for x in ours), theirs[0].stop) else None


def _is_plain(stage: Stage) -> bool:
    """Whether a stage reduces, by kinds that take one value each."""
    if not stage.joins or not stage.loops or stage.numbers or stage.stores:
        return False
    return all(len(j.args) == 1 and not j.beside and not j.attrs for j in stage.joins)


def is_one_reduction(nest: Nest) -> bool:
    """Whether a nest reduces once, by kinds that take one value each, and then stores a few numbers of each row."""
    first, *rest = nest.stages
    return _is_plain(first) and not any(s.loops or s.joins for s in rest)


def _joined(e: Expressions, a: Nest, b: Nest) -> Nest | None:
    """Both nests as one, with the variables of `a`; None where they are no such pair."""
    if not a.rows or not is_one_reduction(a) or not is_one_reduction(b) or not _reads_arguments(b):
        return None
    pairs = [(a.rows, b.rows), (a.stages[0].loops, b.stages[0].loops)]
    if not all(_alike(x, y) for x, y in pairs):
        return None
    names: Names = {y.var: x.var for ours, theirs in pairs for x, y in zip(ours, theirs, strict=True)}
    inner = {each.var for each in a.stages[0].loops}
    large = {n for n in _loads(a.stages[0].nodes) if n.free & inner}
    if large.isdisjoint(e.renamed(n, names) for n in _loads(b.stages[0].nodes)):
        return None
    known: dict[Node, Node] = {}
    joins: list[Join] = []
    for join in b.stages[0].joins:
        value = e.renamed(join.args[0], names)
        if value is None:
            return None
        data, index = join.target.data, tuple(substitute(i, names) for i in join.target.data[1])
        known[join.target] = e.node("reduced", join.target.dtype, (), (data[0], index, *data[2:]), index)
        joins.append(replace(join, target=known[join.target], args=(value,)))
    stores = [_renamed_store(e, store, names, known) for stage in b.stages[1:] for store in stage.stores]
    if any(store is None for store in stores):
        return None
    first = replace(a.stages[0], joins=[*a.stages[0].joins, *joins])
    return replace(a, stages=[first, *a.stages[1:], Stage([], stores=[s for s in stores if s is not None])])


def stored_beside(found: Nests, nest: Nest, others: Iterable[Nest]) -> tuple[Stage, list[Nest]]:
    """The reduction of a nest with what `others` store of the same elements, and those of them that it takes in."""
    e, first, taken = found.expressions, nest.stages[0], list[Nest]()
    if not is_one_reduction(nest):
        return first, taken
    loops = [*nest.rows, *first.loops]
    inner = {each.var for each in first.loops}
    loads = _loads(first.nodes)
    stores: list[Store] = []
    for other in others:
        names = _elements_of(e, other, loops, loads)
        if names is None:
            continue
        read = {e.renamed(n, names) for n in _loads(other.stages[0].nodes)}
        moved = [_renamed_store(e, store, names, {}) for store in other.stages[0].stores]
        if any(n is None or (n.free & inner and n not in loads) for n in read) or any(s is None for s in moved):
            continue
        stores += [s for s in moved if s is not None]
        taken.append(other)
    return replace(first, stores=stores), taken


def _elements_of(e: Expressions, nest: Nest, loops: Sequence[Loop], loads: set[Node]) -> Names | None:
    """The variables of a nest of single elements in terms of `loops`, by which `loads` read the same memory."""
    (stage, *more) = nest.stages
    plain = all(not s.scan and s.bind is None and not s.atomic and s.follows is None for s in stage.stores)
    if nest.rows or more or stage.joins or not plain or not _reads_arguments(nest):
        return None
    names, rest, left = _split(stage.loops, loops)
    for load in sorted(_loads(stage.nodes), key=lambda n: n.number):
        flat = simplify_index(substitute(load.data[1], names), e.ranges)
        steps = {each.var: coefficient(flat, each.var) for each in rest}
        for same in sorted((n for n in loads if n.data[0] is load.data[0]), key=lambda n: n.number):
            places = {coefficient(same.data[1], each.var): each for each in left}
            if len(places) < len(left) or None in places or 0 in places or set(steps.values()) != places.keys():
                continue
            found = names | {each.var: places[steps[each.var]].var for each in rest}
            sizes = all(_alike([each], [places[steps[each.var]]]) for each in rest) and len(rest) == len(left)
            if sizes and simplify_index(substitute(load.data[1], found), e.ranges) == same.data[1]:
                return found
    return None


def _split(theirs: Sequence[Loop], ours: Sequence[Loop]) -> tuple[Names, list[Loop], list[Loop]]:
    """Long loops in terms of neighbours among ours; the loops on both sides that are left."""
    names: Names = {}
    rest, left = list[Loop](), list(ours)
    for each in theirs:
        runs = [left[i:j] for i in range(len(left)) for j in range(i + 2, len(left) + 1)]
        found = [(run, _in_terms_of([each], run)) for run in runs]
        run, name = next(((run, name) for run, name in found if name is not None), ([], None))
        if name is None or any(_alike([each], [x]) for x in left):
            rest.append(each)
        else:
            names |= name
            left = [x for x in left if x not in run]
    return names, rest, left


def _alike(ours: Sequence[Loop], theirs: Sequence[Loop]) -> bool:
    same = (x.start == y.start == 0 and known_equal(x.stop, y.stop) for x, y in zip(ours, theirs, strict=False))
    return len(ours) == len(theirs) and all(same)


def _loads(tops: Iterable[Node]) -> set[Node]:
    return {n for top in tops for n in top.walk() if n.kind == "load"}


def _reads_arguments(nest: Nest) -> bool:
    """Whether a nest reads nothing that another one writes."""
    return all(n.data[0].role == "in" for stage in nest.stages for n in _loads(stage.nodes))


def _renamed_store(e: Expressions, store: Store, names: Names, known: Mapping[Node, Node]) -> Store | None:
    node = e.renamed(store.node, names, known)
    plain = not store.scan and store.bind is None and not store.atomic and store.follows is None
    flat = simplify_index(substitute(store.flat, names), e.ranges)
    return replace(store, node=node, flat=flat) if plain and node is not None else None
