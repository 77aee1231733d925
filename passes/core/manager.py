"""The pass manager: which passes there are, and in what order they run (run.py runs them).

The passes of a road (pipeline.py) stand as they are listed; the list is checked against their edges. An edge says that one
pass runs before another: from `after`, `before` and `requires`, and from the levels (a pass that works on `prim` runs after
the pass that gives `prim` and before the one that leaves it). Passes of others are placed among them by their edges.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

import networkx as nx

from .base import DEVICES, JOINT, LEVELS, SCOPES, Pass
from .plugins import Plugin, installed, left_out
from .syntax import DEFAULT, NAME, Default, Element, PipelineError, make_pass, split_pipeline, suggest, with_insertions

_PACKAGE = __name__.rsplit(".", 2)[0]
_REGISTERED: ContextVar[tuple[type[Pass], ...]] = ContextVar("registered_passes", default=())


def is_own(kind: type) -> bool:
    """Whether a pass is Intarsia's."""
    return kind.__module__.startswith("intarsia.")


@contextmanager
def registered(*passes: type[Pass]) -> Iterator[None]:
    """Make passes known, by name and in the default pipeline, to everything this thread or task compiles inside."""
    token = _REGISTERED.set(_REGISTERED.get() + passes)
    try:
        yield
    finally:
        _REGISTERED.reset(token)


def has_registered_passes() -> bool:
    """Whether this thread or task is inside `registered`."""
    return bool(_REGISTERED.get())


# Passes of a road, in order: name and "module:Class", relative to `passes`. The same pass may stand on it twice.
Road: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Registry:
    """The passes that can be named, and the ready-made instances that the default order is to hold.

    Attributes:
        classes: every pass by name: those of Intarsia, then those of others as they were registered.
        listed: the names of Intarsia's own; they run where a road lists them.
        instances: passes that were given as instances, in place of the default one of their class.
        plugins: those of installed packages, by name.
    """

    classes: Mapping[str, type[Pass]]
    listed: frozenset[str] = frozenset()
    instances: tuple[Pass, ...] = ()
    plugins: Mapping[str, Plugin] = field(default_factory=dict)

    @classmethod
    def collect(
        cls, listed: Iterable[tuple[str, str]], extra: Iterable[Pass | type[Pass]] = (), without: Collection[str] = ()
    ) -> Registry:
        """The passes listed (name, "module:Class"), those of `registered` and `extra`, then those of installed packages.

        A pass of an installed package that cannot be used is left out, with a warning. `without`: names of passes of others to leave out.

        Raises:
            PipelineError: two different passes share a name, or one is listed under a name that is not its own.
        """
        classes: dict[str, type[Pass]] = {}
        instances: list[Pass] = []
        for name, place in listed:
            module, _, class_name = place.partition(":")
            kind: type[Pass] = getattr(importlib.import_module(f".{module}", _PACKAGE), class_name)
            if kind.name != name:
                raise PipelineError(f"the pass {place} is called '{kind.name}', and listed as '{name}'")
            classes[name] = kind
        own = frozenset(classes)
        for item in [*_REGISTERED.get(), *extra]:
            kind = item if isinstance(item, type) else type(item)
            if kind.name in without and kind.name not in own:
                continue
            _add(kind, classes)
            if isinstance(item, Pass):
                instances.append(item)
        plugins = cls._installed(classes, without)
        for kind in [kind for name, kind in classes.items() if name not in plugins]:
            _check_references(kind, classes)
        return cls(classes, own, tuple(instances), plugins)

    @staticmethod
    def _installed(classes: dict[str, type[Pass]], without: Collection[str]) -> dict[str, Plugin]:
        """Add the passes of installed packages to the classes, but for those that cannot be used."""
        plugins: dict[str, Plugin] = {}
        for plugin in installed():
            try:
                if plugin.kind.name not in without and classes.get(plugin.kind.name) is not plugin.kind:
                    _add(plugin.kind, classes)
                    plugins[plugin.kind.name] = plugin
            except Exception as error:
                left_out(plugin.where, _said(error))
        checked = False
        while not checked:  # a pass that goes may be one that another names
            checked = True
            for name in [*plugins]:
                try:
                    _check_references(classes[name], classes)
                except Exception as error:
                    left_out(plugins.pop(name).where, _said(error))
                    del classes[name]
                    checked = False
        return plugins

    def parse(self, text: str, default: Sequence[Pass] | None = None) -> list[Pass]:
        """The passes of a pipeline text, in its order: `canonicalize,fuse{max-ops=8}`; syntax.py has all forms.

        Args:
            default: what the element `default` stands for.

        Raises:
            PipelineError: unknown pass or option, a value of the wrong kind, or `default` where there is none.
        """
        return self._made(split_pipeline(text), default)

    def _made(self, elements: Sequence[Element], default: Sequence[Pass] | None) -> list[Pass]:
        passes: list[Pass] = []
        for element in elements:
            if not isinstance(element, Default):
                passes.append(self.make(*element))
            elif default is None:
                raise PipelineError("'default' stands in a list of passes that replaces the default pipeline")
            else:
                passes += with_insertions(element, default, lambda inner: self._made(inner, None))
        return passes

    def make(self, name: str, options: Mapping[str, str] | None = None) -> Pass:
        """One pass by name, with its options given as text.

        Raises:
            PipelineError: unknown pass or option, or a value of the wrong kind.
        """
        kind = self.classes.get(name)
        if kind is None:
            raise PipelineError(f"unknown pass '{name}'{suggest(name, self.classes)}")
        return make_pass(kind, options or {})

    def along(self, road: Road, device: str = "", scope: str = "") -> list[Pass]:
        """The passes of a road as listed, with those of others among them. An instance stands where its class does.

        Args:
            device, scope: what is compiled, for passes that run for some alone; "": all run.

        Raises:
            PipelineError: the list contradicts an edge, or the edges of passes of others form a cycle, or two stand in the place of one.
        """
        given = {name: [p for p in self.instances if p.name == name] for name in self.classes}
        on_it = [name for name, _ in road]
        check_road([self.classes[name] for name in on_it])
        others = [
            name
            for name, kind in self.classes.items()
            if name not in on_it
            and kind.level != JOINT
            and (given[name] or self._is_default(name))
            and _runs_for(kind, device, scope)
        ]
        while True:
            made = {name: given[name] or self._default_of(name) for name in [*on_it, *others]}
            others = [name for name in others if made[name]]
            instead = self._replacements(others)
            listed = [item for name in on_it for item in made[instead.get(name, name)]]
            placed = [item for name in others if name not in instead.values() for item in made[name]]
            if not others:
                return listed
            try:
                return order(listed, placed)
            except PipelineError as error:
                culprits = [name for name in error.cycle if name in self.plugins and name in others]
                if not culprits:
                    raise
                for name in dict.fromkeys(culprits):
                    left_out(self.plugins[name].where, str(error))
                others = [name for name in others if name not in culprits]

    def _replacements(self, others: list[str]) -> dict[str, str]:
        """Which passes of others stand in the place of which."""
        found: dict[str, str] = {}
        for name in [*others]:
            replaced = self.classes[name].replaces
            if not replaced:
                continue
            if found.setdefault(replaced, name) == name:
                continue
            message = f"the passes '{found[replaced]}' and '{name}' both replace '{replaced}'"
            if name not in self.plugins:
                raise PipelineError(message)
            left_out(self.plugins[name].where, message)
            others.remove(name)
        return found

    def _default_of(self, name: str) -> list[Pass]:
        """A pass with its default options; none of an installed package whose class needs more."""
        try:
            return [self.classes[name]()]
        except Exception as error:
            if name not in self.plugins:
                raise
            left_out(self.plugins[name].where, _said(error))
            return []

    def _is_default(self, name: str) -> bool:
        return name not in self.listed and self.classes[name].default and self.classes[name].level != JOINT

    def policies(self) -> list[Pass]:
        """The policies of others that choose where training graphs are cut."""
        names = [name for name, kind in self.classes.items() if kind.level == JOINT and kind.default]
        given = [name for name in names if name not in self.plugins]
        kept = given or names[:1]
        for name in [name for name in names if name not in kept]:
            left_out(self.plugins[name].where, f"'{kept[0]}' cuts training graphs already")
        names = kept
        return [
            item for name in names for item in [p for p in self.instances if p.name == name] or self._default_of(name)
        ]

    def upto(self, passes: list[Pass], until: str | None) -> list[Pass]:
        """The head of the list that ends with the pass `until`, or with the pass that gives the level `until`."""
        if until is None:
            return passes
        for index, item in enumerate(passes):
            if until in (item.name, item.replaces) or (until in LEVELS and item.gives == until):
                return passes[: index + 1]
        if until == LEVELS[0]:
            return []
        raise PipelineError(f"unknown pass or level '{until}'{suggest(until, [*self.classes, *LEVELS])}")

    def required_for(self, target: Pass, levels: set[str], road: Road) -> list[Pass]:
        """The target and what it needs on this road, directly or not, that a module legal at `levels` has not passed yet."""
        wanted: dict[str, Pass] = {}
        open_items = [target]
        at = min((LEVELS.index(level) for level in levels), default=0)
        while open_items:
            item = open_items.pop()
            wanted[item.name] = item
            for name in self._needs(item, road):
                needed = self.make(name)
                moves = needed.gives is not None and needed.gives != needed.level
                passed = LEVELS.index(needed.gives) <= at if moves else LEVELS.index(needed.level) < at
                if name not in wanted and not passed:
                    open_items.append(needed)
        listed = [wanted.pop(name) for name in dict.fromkeys(n for n, _ in road) if name in wanted]
        return order(listed, [wanted[name] for name in self.classes if name in wanted])

    def _needs(self, item: Pass, road: Road) -> list[str]:
        names = [n for need in item.requires for n in (self.giving(need, road) if need in LEVELS else [need])]
        return names + (self.giving(item.level, road) if item.level not in item.requires else [])

    def giving(self, level: str, road: Road = ()) -> list[str]:
        """The names of the passes that bring a module to this level: those on the road where it has one."""
        found = [name for name, kind in self.classes.items() if kind.gives == level and kind.level != level]
        return [name for name, _ in road if name in found] or found


def order(listed: Sequence[Pass], others: Sequence[Pass] = ()) -> list[Pass]:
    """The passes listed, as they stand, and the others among them by the edges: as late as these allow, then as given.

    Raises:
        PipelineError: a cycle; the message names its passes.
    """
    passes = [*listed, *others]
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(passes)))
    graph.add_edges_from((i, i + 1) for i in range(len(listed) - 1))
    for i, first in enumerate(passes):
        for j, second in enumerate(passes):
            if max(i, j) < len(listed) or i == j:
                continue
            if _precedes(first, second) or (first.name == second.name and i < j):
                graph.add_edge(i, j)
    try:
        ordered = list(nx.lexicographical_topological_sort(graph, key=lambda k: k))
    except nx.NetworkXUnfeasible:
        cycle = [passes[a].name for a, _ in nx.find_cycle(graph)]
        raise PipelineError(f"the order of passes has a cycle: {' -> '.join([*cycle, cycle[0]])}", cycle) from None
    return [passes[k] for k in ordered]


@cache
def _contradiction(road: tuple[type[Pass], ...]) -> str:
    """What is wrong with the order of a list of passes, or "". Where a pass stands twice, one of its places has to be right."""
    level, names = LEVELS[0], [kind.name for kind in road]
    for j, second in enumerate(road):
        if level not in (second.level, *second.accepts):
            return f"'{second.name}' works at level '{second.level}', and stands where the module is at level '{level}'"
        level = second.gives or level
        for i, first in enumerate(road[:j]):
            twice = second.name in names[:i] or first.name in names[j:]
            if not twice and _precedes(second, first):
                return f"'{first.name}' stands before '{second.name}', and has to run after it"
        for need in second.requires:
            if need not in LEVELS and need not in names[:j]:
                return f"'{second.name}' requires '{need}', which does not stand before it"
    return ""


def check_road(road: Sequence[type[Pass]]) -> None:
    """Check the order of a list of passes against their edges and levels.

    Raises:
        PipelineError: names the two passes that contradict each other.
    """
    if found := _contradiction(tuple(road)):
        raise PipelineError(f"the list of passes is in a wrong order: {found}")


def _add(kind: type[Pass], classes: dict[str, type[Pass]]) -> None:
    """Add a pass of others by its name.

    Raises:
        PipelineError: what it says of itself makes no sense, or another pass has its name.
    """
    if not kind.name:
        raise PipelineError(f"the pass {kind.__qualname__} has no name: set the class attribute 'name'")
    if not isinstance(kind.name, str) or not NAME.fullmatch(kind.name) or kind.name == DEFAULT:
        raise PipelineError(
            f"the pass {kind.__qualname__} cannot be called {kind.name!r}: letters, digits, '-', '_' and '.'"
        )
    if kind.level not in (*LEVELS, JOINT) or (kind.gives or kind.level) not in (*LEVELS, JOINT):
        raise PipelineError(f"pass '{kind.name}': a level is one of {', '.join(LEVELS)}")
    for where, known in (("devices", DEVICES), ("scopes", SCOPES)):
        wrong = [x for x in _tuple_of(kind, where) if x not in known]
        if wrong:
            hint = suggest(str(wrong[0]), known)
            raise PipelineError(f"pass '{kind.name}': '{where}' are of {', '.join(known)}, not {wrong[0]!r}{hint}")
    if classes.setdefault(kind.name, kind) is not kind:
        places = " and ".join(f"{k.__module__}.{k.__qualname__}" for k in (classes[kind.name], kind))
        raise PipelineError(f"two passes are called '{kind.name}': {places}")


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"


def _tuple_of(kind: type[Pass], where: str) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(kind, where)
    if isinstance(names, str):
        raise PipelineError(f"pass '{kind.name}': '{where}' is a tuple of names, not '{names}'")
    return names


def _runs_for(kind: type[Pass], device: str, scope: str) -> bool:
    return all(
        not asked or not names or asked in names for asked, names in ((device, kind.devices), (scope, kind.scopes))
    )


def _check_references(kind: type[Pass], known: Mapping[str, object]) -> None:
    """Check that a pass names passes or levels that there are; of those with a "?" it does not matter.

    Raises:
        PipelineError: one does not; a wrong name would leave the order to chance.
    """
    for where in ("after", "before", "requires"):
        for name in _tuple_of(kind, where):
            if name not in known and name not in LEVELS and (where == "requires" or not name.endswith("?")):
                raise PipelineError(
                    f"pass '{kind.name}': '{where}' names '{name}', which is no pass and no level"
                    f"{suggest(name, [*known, *LEVELS])}"
                )
    if kind.replaces and kind.replaces not in known:
        raise PipelineError(
            f"pass '{kind.name}': 'replaces' names '{kind.replaces}', which is no pass{suggest(kind.replaces, known)}"
        )


def _precedes(first: Pass | type[Pass], second: Pass | type[Pass]) -> bool:
    """Whether an edge says that `first` runs before `second`."""
    if first.name == second.name:
        return False
    moves = first.gives is not None and first.gives != first.level
    leaves = second.gives is not None and second.gives != second.level
    return (
        _names(second.after + second.requires, first)
        or _names(first.before, second)
        or (moves and first.gives == second.level)
        or (leaves and second.level == first.level and not moves)
    )


def _names(references: tuple[str, ...], item: Pass | type[Pass]) -> bool:
    names = {name.removesuffix("?") for name in references}
    return bool({item.name, item.replaces} & names) or (item.gives in names and item.gives != item.level)
