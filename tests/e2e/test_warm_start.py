"""A later process loads what an earlier one compiled, and never what was compiled for something else."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import textwrap

import networkx
import pytest
import sympy
import torch
import xdsl
from torch import nn

import intarsia
from intarsia.artifact import graph_key
from intarsia.frontend.entry.capture import capture
from intarsia.targets.build import versions

pytestmark = pytest.mark.usefixtures("product_compiler")
PROGRAM = """
import json, sys, torch, intarsia
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(8, eps={eps})
        self.linear = torch.nn.Linear(8, 8)
    def forward(self, x):
        return torch.{function}(self.linear(self.norm(x))) * {factor}
net, x = Net().eval(), torch.randn(4, 8)
with torch.no_grad():
    got = intarsia.compile(net)(x)
    torch.testing.assert_close(got, net(x))
print(json.dumps(intarsia.counters()))
"""


def written(folder, eps="1e-5", function="sin", factor=2.0):
    """The program in `folder`."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(PROGRAM).format(eps=eps, function=function, factor=factor))
    return script


def finish(done):
    """Its counters, and what it wrote on stderr."""
    code, out, err = done
    assert code == 0, err
    return json.loads(out.splitlines()[-1]), err


@pytest.fixture(scope="module")
def filled(tmp_path_factory, prepared):
    """A folder whose cache holds what two processes made that began at once with nothing."""
    folder = tmp_path_factory.mktemp("warm")
    places = [tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")]
    done = prepared.run_together(written(folder), places, INTARSIA_CACHE_DIR=str(folder / "cache"))
    for counted, err in map(finish, done):
        assert counted["fallbacks"] == 0 and "intarsia: " not in err
    return folder


@pytest.fixture
def later(prepared, folder):
    """Run the program in a later process: its counters, and what it wrote on stderr."""

    def run(cache="cache", **changes):
        return finish(prepared.run(written(folder, **changes), folder, INTARSIA_CACHE_DIR=str(folder / cache)))

    return run


@pytest.fixture
def folder(filled):
    """The same place with a cache that may be spoilt."""
    kept = filled / "kept"
    shutil.copytree(filled / "cache", kept)
    yield filled
    shutil.rmtree(filled / "cache", ignore_errors=True)
    kept.rename(filled / "cache")


def is_warm(counted):
    return counted["cache_hits"] == 1 and counted["compiler_calls"] == 0 and "functionalize" not in counted["seconds"]


def test_another_process_neither_traces_nor_compiles(folder, later):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("INTARSIA_")}
    environment |= {"INTARSIA_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    alone = subprocess.run(
        [sys.executable, str(written(folder))], capture_output=True, text=True, env=environment, timeout=500
    )
    for counted, _ in (finish((alone.returncode, alone.stdout, alone.stderr)), later()):
        assert is_warm(counted)


@pytest.mark.parametrize("change", [{"function": "cos"}, {"eps": "1e-1"}], ids=["function", "module"])
def test_a_changed_program_is_compiled_anew(later, change):
    counted, _ = later(**change)  # and the process itself compares with eager
    assert not is_warm(counted)


@pytest.mark.parametrize("what", ["name", "program", "library"])
def test_damaged_entry_is_made_again(folder, later, what):
    metas = [(m, json.loads(m.read_text())) for m in (folder / "cache/intarsia-cache").glob("??/*/meta.json")]
    names = [m for m, record in metas if not record["sha256"]]
    programs = [m for m, record in metas if record["sha256"]]
    assert len(names) == len(programs) == 1
    target = {"name": names[0], "program": programs[0], "library": next(programs[0].parent.glob("*.so"))}[what]
    target.write_bytes(b"{" + target.read_bytes()[5:])
    counted, err = later()
    assert counted["fallbacks"] == 0 and "damaged" in err and not is_warm(counted)


def test_name_without_its_program_takes_the_whole_road(folder, later):
    for meta in (folder / "cache/intarsia-cache").glob("??/*/meta.json"):
        if json.loads(meta.read_text())["sha256"]:
            shutil.rmtree(meta.parent)
    counted, _ = later()
    assert counted["compiler_calls"] > 0


def test_folder_that_cannot_be_used(folder, later):
    (folder / "file").write_text("")
    counted, err = later(cache="file")
    assert counted["fallbacks"] == 0 and "lost at exit" in err


# ---- what the name of a graph is made of --------------------------------------------------------------------------------


def key_of(function, *args, **settings):
    with torch.no_grad():
        made = capture(function, args)
        return graph_key(made.graph_module, made.example_inputs, settings)


def work(x, y):
    return torch.nn.functional.gelu(x) + y.view(-1)[:4]


X, Y = torch.randn(3, 4), torch.randn(2, 4)


def test_equal_captures_have_one_name():
    assert key_of(work, X, Y) == key_of(work, X.clone(), Y.clone()) is not None


@pytest.mark.parametrize(
    "args",
    [
        (X.double(), Y.double()),
        (X[:2], Y),
        (X.t().contiguous().t(), Y),
        (X, torch.randn(3, 4)[1:]),
        (X, X),
        (X.requires_grad_(False).clone().requires_grad_(), Y),
    ],
    ids=["dtype", "size", "stride", "offset", "same", "gradient"],
)
def test_inputs_are_part_of_the_name(args):
    assert key_of(work, *args) != key_of(work, X, Y)


def test_inputs_that_share_memory_are_part_of_the_name():
    whole = torch.randn(6, 4)
    assert key_of(work, whole[:3], whole[3:5]) != key_of(work, whole[:3], torch.randn(6, 4)[3:5])


def test_settings_and_versions_are_part_of_the_name(monkeypatch):
    plain = key_of(work, X, Y)
    assert key_of(work, X, Y, compiler="other") != plain
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert key_of(work, X, Y) != plain
    torch.use_deterministic_algorithms(True)
    try:
        assert key_of(work, X, Y) != plain
    finally:
        torch.use_deterministic_algorithms(False)
    monkeypatch.setattr("intarsia.artifact.package_fingerprint", lambda rooms: "other")
    assert key_of(work, X, Y) != plain


@pytest.mark.parametrize(
    "place",
    [(torch, "__version__"), (torch.version, "git_version"), (sympy, "__version__"), (xdsl, "__version__"), (networkx, "__version__"),
     (torch.__config__, "show"), (platform, "libc_ver"), (sys, "version")],
    ids=["torch", "commit of torch", "sympy", "xdsl", "networkx", "libraries of torch", "libc", "python"],
)  # fmt: skip
def test_versions_of_libraries_are_part_of_the_name(place, monkeypatch):
    def fresh():
        versions.versions.cache_clear()
        versions.torch_build.cache_clear()
        return key_of(work, X, Y)

    plain = fresh()
    owner, name = place
    with monkeypatch.context() as inner:
        inner.setattr(owner, name, (lambda: "other") if callable(getattr(owner, name)) else "9.9.9")
        assert fresh() != plain
    assert fresh() == plain


def test_lines_are_part_of_the_name():
    """Kernels and errors name the user's line."""
    namespaces = [{"torch": torch}, {"torch": torch}]
    for number, names in enumerate(namespaces):
        exec(compile("\n" * number + "def f(x): return torch.sin(x)", "lines.py", "exec"), names)
    assert key_of(namespaces[0]["f"], X) != key_of(namespaces[1]["f"], X)


def test_symbolic_sizes_have_no_name():
    with torch.no_grad():
        made = capture(work, (X, Y), dynamic=True)
    assert graph_key(made.graph_module, made.example_inputs, {}) is None


def test_operators_of_others_have_no_name():
    @torch.library.custom_op("warm_start::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(lambda x: torch.empty_like(x))
    assert key_of(lambda x: torch.ops.warm_start.twice(x) + 1, X) is None


def test_functions_of_torch_that_a_program_replaced_have_no_name(monkeypatch):
    def norm(x):
        return torch.nn.functional.layer_norm(x, (4,))

    assert key_of(norm, X) is not None
    monkeypatch.setattr(torch, "layer_norm", lambda *args, **kwargs: args[0] * 3)
    assert key_of(norm, X) is None
    torch.testing.assert_close(intarsia.compile(norm)(X), norm(X))


def test_a_weight_is_not_part_of_the_artifact():
    layer = nn.Linear(4, 4)
    compiled = intarsia.compile(layer)
    with torch.no_grad():
        compiled(X)
        layer.weight.mul_(2)
        torch.testing.assert_close(compiled(X), layer(X))
        again = intarsia.compile(nn.Linear(4, 4).requires_grad_(False))
        torch.testing.assert_close(again(X), again._orig_mod(X))
