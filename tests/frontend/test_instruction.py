"""The normal form of bytecode: the same on 3.11, 3.12 and 3.13, and every opcode handled or refused for a reason."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

from intarsia.frontend.bytecode import instruction
from intarsia.frontend.bytecode.opcodes import HANDLERS, NOT_CAPTURED

PROBE = """
import importlib, json, os, sys, types
package = sys.modules["layer"] = types.ModuleType("layer")
package.__path__ = [os.path.dirname(sys.argv[1])]
module = importlib.import_module("layer.instruction")

def plain(x, n=2):
    for i in range(n):
        x = x + i if i else x[1:i]
    return x.view(-1, n).sum(dim=0)

def raising(x):
    try:
        with x as y:
            return y
    except ValueError as e:
        raise TypeError from e
    finally:
        x.close()

def gen(x):
    yield x
    yield from x

def closing(x):
    def inner(y, *, k=x):
        return f"{x!r:>{y}}", k
    return inner

def sup(self):
    __class__
    return super().go(*self, **self)

out = {}
for f in (plain, raising, gen, closing):
    p = module.disassemble(f.__code__)
    n = len(p.instructions)
    out[f.__name__] = {
        "ops": [i.op for i in p.instructions],
        "jumps": all(0 <= i.arg < n for i in p.instructions if "JUMP" in i.op or i.op in ("FOR_ITER", "SEND")),
        "table": all(0 <= e.start < e.end <= n and 0 <= e.target < n for e in p.exceptions),
        "lines": all(i.line >= f.__code__.co_firstlineno for i in p.instructions),
    }
print(json.dumps(out))
"""
FILE = instruction.__file__


def interpreter(version):
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if version == own:
        return sys.executable
    found = shutil.which(f"python{version}")
    for root in (pathlib.Path.home() / ".pyenv/versions",):
        for path in sorted(root.glob(f"{version}*/bin/python")):
            found = str(path)
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no Python {version} on this machine")
    return found


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_normal_form(version):
    done = subprocess.run([interpreter(version), "-c", PROBE, FILE], capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    known = set(HANDLERS) | set(NOT_CAPTURED)
    for name, facts in result.items():
        assert set(facts["ops"]) <= known, (name, set(facts["ops"]) - known)
        assert facts["jumps"] and facts["table"] and facts["lines"], name
    plain = [op for op in result["plain"]["ops"] if op != "END_FOR"]
    assert plain.count("CALL") == 3 and plain.count("FOR_ITER") == 1 and plain.count("BUILD_SLICE") == 1
    assert {"BEFORE_WITH", "PUSH_EXC_INFO", "RERAISE", "RAISE_VARARGS"} <= set(result["raising"]["ops"])
    assert result["gen"]["ops"][0] == "RETURN_GENERATOR" and "SEND" in result["gen"]["ops"]
