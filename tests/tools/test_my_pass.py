"""examples/my_pass as its users have it: built, installed beside another package, found by its entry point, run by tool and compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import Prepared

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "my_pass"
RUN = """
import sys
from intarsia.tools.opt.main import main
sys.exit(main(sys.argv[1:]))
"""
COMPILE = """
import torch, intarsia
from intarsia.passes.pipeline import default_pipeline
x = torch.randn(8)
low = intarsia.lower(lambda x: x * 2 + 1, x)
print("prim.mul" in low.ir("prim"), torch.equal(intarsia.compile(lambda x: x * 2 + 1)(x), x * 2 + 1))
print([p.name for p in default_pipeline() if p.name in ("double", "triple", "raises")], intarsia.counters()["fallbacks"])
"""


def installed(source: Path, target: Path) -> None:
    """Install a package into a folder, without a network."""
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", target, source],
        check=True, capture_output=True, env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two packages: the example, and one with a pass that follows it, one that fails, and one that is not there."""
    made = tmp_path_factory.mktemp("installed")
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(EXAMPLE, source / "my_pass")
    installed(source / "my_pass", made)
    text = (EXAMPLE / "src" / "my_pass" / "__init__.py").read_text()
    (made / "other_pass.py").write_text(
        text.replace("Double(", "Triple(").replace('"double"', '"triple"').replace('"triple?"', '"cse"')
        + "\n\n@dataclass(frozen=True)\nclass Raises(Pass):\n    name = 'raises'\n    after = ('double',)\n    before = ('fuse',)\n"
        + "    def apply(self, ctx, module):\n        raise KeyError('out of luck')\n"
    )
    info = made / "other_pass-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-pass\nVersion: 1\n")
    points = ("triple = other_pass:Triple", "raises = other_pass:Raises", "gone = other_pass.gone:Gone")
    (info / "entry_points.txt").write_text("[intarsia.passes]\n" + "\n".join(points) + "\n")
    return made


@pytest.fixture(scope="module")
def prepared(folder: Path):
    with Prepared(PYTHONPATH=os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])) as process:
        yield process


def test_the_packages_own_test(prepared: Prepared, tmp_path: Path) -> None:
    program, test = tmp_path / "run.py", EXAMPLE / "tests" / "double.ir"
    program.write_text(RUN)
    code, out, err = prepared.run(program, tmp_path, "-p", "double", str(test))
    assert code == 0, err
    checked = subprocess.run([Path(sys.executable).parent / "filecheck", test], input=out, text=True, check=False)
    assert checked.returncode == 0
    assert "the installed pass 'gone' (other-pass 1, other_pass.gone:Gone) is left out: it cannot be imported" in err
    assert "No module named 'other_pass.gone'" in err


def test_two_packages_with_an_order_between_them(prepared: Prepared, tmp_path: Path) -> None:
    program = tmp_path / "compile.py"
    program.write_text(COMPILE)
    code, out, err = prepared.run(
        program, tmp_path, INTARSIA_CACHE_DIR=str(tmp_path / "cache"), INTARSIA_PASS_SECONDS="0"
    )
    assert code != 0 and "pass 'raises' (other_pass.Raises" in err  # lower raises what compile leaves out
    program.write_text(
        COMPILE.replace("low = intarsia.lower(lambda x: x * 2 + 1, x)\n", "").replace(
            '"prim.mul" in low.ir("prim"), ', ""
        )
    )
    code, out, err = prepared.run(program, tmp_path, INTARSIA_CACHE_DIR=str(tmp_path / "cache"))
    assert code == 0, err
    assert out.splitlines() == ["True", "['triple', 'double', 'raises'] 0"]
    assert "pass 'raises' (other_pass.Raises, which is not Intarsia's own) failed: KeyError: 'out of luck'" in err
    assert "compiled without this pass" in err and "'gone'" in err
