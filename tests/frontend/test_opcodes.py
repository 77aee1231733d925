"""Every opcode of CPython 3.11, 3.12 and 3.13 is handled, brought to another form, or refused for a reason."""

import ast
import dis
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from concrete import FRONTEND, load

instruction = load("instruction")
# Part of a call, or not in the code of functions.
GONE = {"KW_NAMES", "CALL_KW", "RESERVED", "INTERPRETER_EXIT", "ENTER_EXECUTOR"}
PREFIXES = ("INSTRUMENTED_", "POP_JUMP_FORWARD_IF_", "POP_JUMP_BACKWARD_IF_", "<")


def tables():
    """(names of handlers, reasons of refusals), read without PyTorch."""
    handlers, refused = set(), {}
    names = ("opcodes", "data_opcodes", "control_opcodes", "name_opcodes", "coroutine")
    files = [FRONTEND / f"{name}.py" for name in names]
    for node in [node for file in files for node in ast.parse(file.read_text()).body]:
        if isinstance(node, ast.FunctionDef) and node.name.isupper():
            handlers.add(node.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NOT_CAPTURED":
            refused = ast.literal_eval(node.value)
    return handlers, refused


def real_opcodes():
    """Opcodes that code objects have: the compiler's own pseudo instructions are numbered above a byte."""
    return {name for name, number in dis.opmap.items() if number < 256 and not name.startswith(PREFIXES)}


def missing():
    handlers, refused = tables()
    formed = {*instruction._DROPPED, *instruction._RENAMED, *instruction._UNARY, *instruction._EXPANSIONS, *GONE}
    return sorted(real_opcodes() - formed - handlers - set(refused))


def test_tables():
    handlers, refused = tables()
    assert len(handlers) > 70 and len(refused) > 2
    assert not handlers & set(refused) and all(refused.values())
    assert len(real_opcodes()) > 90


def pytest_generate_tests(metafunc):
    if "version" in metafunc.fixturenames:
        metafunc.parametrize("version", ["3.11", "3.12", "3.13"])


def test_every_opcode(version):
    from test_instruction import interpreter

    done = subprocess.run([interpreter(version), "-B", __file__], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stdout + done.stderr[-2000:]


if __name__ == "__main__":
    print(missing())
