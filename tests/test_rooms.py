"""Imports run one way through the rooms, and every folder is part of the package."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {  # room -> rooms
    "ir": set(),
    "frontend": {"ir"},
    "passes": {"ir"},
    "targets": {"ir", "passes"},
    "intarsia": {"ir", "frontend", "passes", "targets"},
}
FILES = [(room, f) for room in MAY_IMPORT for f in sorted((ROOT / room).rglob("*.py"))]


def imported_rooms(room: str, path: Path) -> set[str]:
    """The rooms that a file imports from, wherever the statement stands."""
    package = ["intarsia"] if room == "intarsia" else ["intarsia", room]
    package += path.relative_to(ROOT / room).parts[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *(node.module or "").split(".")]).rstrip(".")
            modules = [stem, *(f"{stem}.{name.name}" for name in node.names)]
        else:
            continue
        for module in modules:
            parts = module.split(".")
            if parts[0] == "intarsia" and len(parts) > 1:
                found.add(parts[1] if parts[1] in MAY_IMPORT else "intarsia")
    return found


@pytest.mark.parametrize(("room", "path"), FILES, ids=lambda v: str(v.relative_to(ROOT)) if isinstance(v, Path) else v)
def test_imports_run_one_way(room: str, path: Path) -> None:
    back = imported_rooms(room, path) - MAY_IMPORT[room] - {room}
    assert not back, f"{path.relative_to(ROOT)} imports from {', '.join(sorted(back))}"


def test_imports_of_all_forms_are_seen() -> None:
    assert imported_rooms("passes", ROOT / "passes" / "core" / "run.py") >= {"ir"}
    assert imported_rooms("intarsia", ROOT / "intarsia" / "explaining" / "stages.py") >= {"ir", "passes"}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_every_folder_is_part_of_the_package(room: str) -> None:
    assert all((path.parent / "__init__.py").exists() for r, path in FILES if r == room)
    assert room == "intarsia" or (ROOT / "intarsia" / room).readlink() == Path("..") / room


MOST_IN_A_CIRCLE = 4


def module_of(room: str, path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(([] if room == "intarsia" else ["intarsia"]) + [p for p in parts if p != "__init__"])


def import_graph(room: str) -> nx.DiGraph:
    """Which file of a room imports which, at the top, in a function or for annotations alone."""
    files = {module_of(r, path): path for r, path in FILES if r == room}
    graph = nx.DiGraph()
    graph.add_nodes_from(files)
    for name, path in files.items():
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(path.read_text())):
            found: list[str] = []
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                stem = ".".join([*base, *(node.module or "").split(".")]).rstrip(".")
                found = [f"{stem}.{a.name}" if f"{stem}.{a.name}" in files else stem for a in node.names]
            graph.add_edges_from((name, other) for other in found if other in files and other != name)
    return graph


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_files_import_each_other_in_circles_only_within_a_folder(room: str) -> None:
    """A circle is one thing in pieces: it stays inside of a folder, and has at most four files."""
    for circle in nx.strongly_connected_components(import_graph(room)):
        folders = {name.rpartition(".")[0] for name in circle}
        assert len(circle) == 1 or len(circle) <= MOST_IN_A_CIRCLE and len(folders) == 1, sorted(circle)


def test_circles_are_seen() -> None:
    graph = import_graph("frontend")
    state, machine = "intarsia.frontend.state", "intarsia.frontend.bytecode.symbolic_interpreter"
    assert nx.has_path(graph, machine, state) and not nx.has_path(graph, state, machine)
    graph.add_edge(state, machine)
    assert max(map(len, nx.strongly_connected_components(graph))) > MOST_IN_A_CIRCLE


MOST_LINES, MOST_MODULES = 600, 15
SOURCES = [path for room in MAY_IMPORT for kind in ("*.py", "*.h") for path in (ROOT / room).rglob(kind)]


def test_files_and_folders_are_small() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert not {name: count for name, count in lines.items() if count > MOST_LINES}
    modules = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    assert max(modules.values()) <= MOST_MODULES, modules.most_common(1)


PRIVATE_TORCH = ("frontend/torch_private/", "targets/torch_private.py")
NO_PRIVATE_NAMES = {  # what torch gives no other name, and its documents use
    "torch.utils._pytree": "trees of containers",
    "torch._ops.OpOverload": "the class of torch.ops.aten.add.Tensor",
    "torch._assert": "torch.fx documents it",
    "torch._check": "torch.export documents it",
    "torch.Tensor._is_view": "torch documents it beside _base",
}


def private_names(path: Path) -> set[str]:
    """The private names of torch that a file writes: in imports, and behind names that it imports from torch."""
    tree, known, found = ast.parse(path.read_text()), dict[str, str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name, asname in ((a.name, a.asname) for a in node.names):
                known[asname or name.partition(".")[0]] = name if asname else name.partition(".")[0]
                found.add(name)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            known |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts, node = [node.attr, *parts], node.value
        if isinstance(node, ast.Name) and parts and node.id in known:
            found.add(".".join([known[node.id], *parts]))
    found = {name for name in found if name.startswith("torch.") and not name.startswith("torch.ops.")}
    private = {n for n in found if any(p.startswith("_") and not p.startswith("__") for p in n.split("."))}
    allowed = [f"{name}." for name in NO_PRIVATE_NAMES]
    return {n for n in private if not any(f"{n}.".startswith(a) or a.startswith(f"{n}.") for a in allowed)}


def test_private_names_of_torch_are_used_in_two_places() -> None:
    places = {path.relative_to(ROOT).as_posix(): private_names(path) for _, path in FILES}
    assert not {place: names for place, names in places.items() if names and not place.startswith(PRIVATE_TORCH)}
    assert all(any(names for at, names in places.items() if at.startswith(place)) for place in PRIVATE_TORCH)


def test_versions_of_python_are_known_in_one_file() -> None:
    known = [path.name for room, path in FILES if room == "frontend" and "version_info" in path.read_text()]
    assert known == ["version.py"]


NAMES_A_GPU = {  # where a device's name may be looked at; passes ask `ctx.machine.at(device)` for facts
    "ir/types.py": "the question itself",
    "passes/analysis/machine.py": "the row of a device",
    "passes/pipeline.py": "which of the two lists a program takes",
    "intarsia/explaining/kernel_facts.py": "reports name the device",
}


def test_passes_ask_for_facts_and_not_for_devices() -> None:
    """Targets know what they are for; everything above them asks the machine's table."""
    asking = {
        path.relative_to(ROOT).as_posix() for room, path in FILES if room != "targets" and "is_gpu" in path.read_text()
    }
    assert asking == NAMES_A_GPU.keys()
    hidden = [path for room, path in FILES if room == "passes" and 'startswith("cuda' in path.read_text()]
    assert not hidden, "is_gpu in disguise"
