"""Functions and generators resumed wherever they can stand do what they do when they are not interrupted."""

import shutil
import subprocess
import sys
import traceback
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import resume_cases
from concrete import LASTI, NULL, Machine, Marker, load

resume, live_names = load("resume"), load("liveness").live_names
LIMIT = 220  # instructions after which a long function is resumed no more


def shown(value):
    """What can be compared of a value, functions and generators included."""
    return repr(value) if not callable(value) else getattr(value, "__qualname__", "?")


def error_facts(error, deep=True):
    """What can be seen of an exception: kind, message, what it was raised from, and the user's lines."""
    if error is None:
        return None
    lines = [
        (entry.filename, entry.name, entry.lineno, entry.colno, entry.end_colno)
        for entry in traceback.extract_tb(error.__traceback__)
        if entry.filename == resume_cases.__file__
    ]
    chain = [error_facts(error.__cause__, False), error_facts(error.__context__, False), error.__suppress_context__]
    return type(error).__name__, str(error), chain, lines if deep else None


def outcome(run, log):
    """The result or exception of a call, and what it logged."""
    try:
        result, error = shown(run()), None
    except (Exception, GeneratorExit) as raised:
        result, error = None, error_facts(raised)
    assert sys.exc_info() == (None, None, None)
    return result, error, repr(log)


def state(machine):
    """(names, layout, arguments, cells by name) of a frame that stands before its next instruction."""
    live = live_names(machine.code, machine.ip)
    cells = {n: v for n, v in machine.fast.items() if n in boxed(machine.code)}
    assert all(isinstance(v, types.CellType) for v in cells.values())
    names = tuple(n for n in machine.fast if n in live and n not in cells)
    layout = tuple(v.kind if isinstance(v, Marker) else "value" for v in machine.stack)
    stacked = [v.error if isinstance(v, Marker) else v for v in machine.stack if v is not NULL and v is not LASTI]
    return names, layout, [machine.fast[n] for n in names] + stacked, {n: c for n, c in cells.items() if n in live}


def boxed(code):
    return {*code.co_cellvars, *code.co_freevars}


def function_of(machine, code, cells):
    """A function of resume code, with the cells of the frame."""
    closure = tuple(cells.get(name) or types.CellType() for name in resume.free_names(code))
    return types.FunctionType(code, machine.globals, code.co_name, None, closure or None)


def resumed_everywhere(make):
    """Differences between a function and itself, resumed at each instruction that it runs."""
    log = []
    function, args = make(log)
    want = outcome(lambda: function(*args), log)
    wrong, at = [], -1
    while True:
        at += 1
        log = []
        function, args = make(log)
        machine = Machine(function, args)
        try:
            if any(machine.step() for _ in range(at)):
                break
        except Exception:
            break
        if at > LIMIT and machine.ip < len(machine.program.instructions) - 40:
            at += skipped(machine)
            continue
        ins = machine.program.instructions[machine.ip]
        if between(machine):
            refused(machine)
            continue
        names, layout, values, cells = state(machine)
        code = resume.resume_code(machine.code, machine.ip, names, layout)
        check_code(code, machine.code)
        got = outcome(lambda: function_of(machine, code, cells)([*values]), log)
        raised = any(isinstance(v, BaseException) for v in values)  # with the lines of the machine
        if raised or "saved" in layout or want[1] is not None and want[1][3] == []:
            got, expected = without_lines(got), without_lines(want)
        else:
            expected = want
        if got != expected:
            wrong.append(f"{function.__qualname__} at {machine.ip} {ins} line {ins.line}: {got} instead of {expected}")
    assert at > 3
    return wrong


def skipped(machine):
    """Run until the last 40 instructions are the next ones; the number of steps to the one before."""
    steps = 0
    while True:
        try:
            ended = machine.step()
        except Exception:
            return steps
        if ended or machine.ip >= len(machine.program.instructions) - 40:
            return steps
        steps += 1


def between(machine):
    """Whether the frame has half made the cell of a comprehension, or half left a handler: nothing can stop there."""
    at = machine.ip
    before, op = machine.program.instructions[at - 1].op, machine.program.instructions[at].op
    marks = [v for v in machine.stack if isinstance(v, Marker) and v.kind == "saved"]
    return op == "MAKE_CELL" or len(set(marks)) < len(marks) or (op, before) == ("RERAISE", "POP_EXCEPT")


def refused(machine):
    try:
        resume.resume_code(machine.code, machine.ip, (), ())
    except ValueError as e:
        assert "cannot be suspended" in str(e)
        return
    raise AssertionError(f"{machine.code.co_name} was resumed at {machine.ip}")


def without_lines(facts):
    result, error, log = facts
    return result, error and error[:3], log


def check_code(code, original):
    assert (code.co_name, code.co_qualname, code.co_filename) == (
        original.co_name,
        original.co_qualname,
        original.co_filename,
    )
    assert code.co_firstlineno == original.co_firstlineno
    assert code.co_stacksize <= max(original.co_stacksize + 2, len(code.co_varnames))
    assert set(code.co_freevars) == boxed(original) and not code.co_cellvars


def act(generator, action):
    if action == "next":
        return next(generator)
    if action == "close":
        return generator.close()
    if isinstance(action, type):
        return generator.throw(action("thrown"))
    return generator.send(action)


def driven(generator, actions, log):
    """What each of the actions gives."""
    out = []
    for action in actions:
        frame, inner = generator.gi_frame, generator.gi_yieldfrom
        out.append((frame and frame.f_lineno, inner is None))
        out.append(outcome(lambda action=action: act(generator, action), log))
    return out


def generator_everywhere(make, actions):
    """Differences between a generator and itself, made again at each `yield` where it is suspended."""
    log = []
    function, args = make(log)
    want = driven(function(*args), actions, log)
    wrong = []
    for done in range(len(actions) + 1):
        log = []
        function, args = make(log)
        machine = Machine(function, args)
        for i, action in enumerate(actions[:done]):
            if not advance(machine, action, i == 0):
                return wrong
        names, layout, values, cells = state(machine)
        index = machine.ip - 1 if done else 0
        code = resume.generator_code(machine.code, index, names, layout, bool(done))
        check_code(code, machine.code)
        made = function_of(machine, code, cells)(*values)
        assert isinstance(made, types.GeneratorType) and made.__name__ == function.__name__
        if done:
            assert made.send(None) is None
        got = driven(made, actions[done:], log)
        expected = want[2 * done :]
        if "saved" in layout:
            got, expected = ([without_lines(g) if len(g) == 3 else g for g in x] for x in (got, expected))
        if got != expected:
            wrong.append(f"{function.__qualname__} after {done} actions: {got} instead of {expected}")
    return wrong


def advance(machine, action, first):
    """Run to the next `yield`; False where the frame ends, or the action is none that the machine knows."""
    if action == "close" or isinstance(action, type):
        return False
    if not first:
        machine.stack.append(None if action == "next" else action)
    try:
        while True:
            signal = machine.step()
            if signal:
                return signal == "yield"
    except Exception:
        return False


def failures():
    """All differences, as text."""
    out = []
    for make in resume_cases.FUNCTIONS.values():
        out += resumed_everywhere(make)
    for make, actions in resume_cases.GENERATORS.values():
        out += generator_everywhere(make, actions)
    return out


def pytest_generate_tests(metafunc):
    if "function" in metafunc.fixturenames:
        metafunc.parametrize("function", resume_cases.FUNCTIONS)
    if "generator" in metafunc.fixturenames:
        metafunc.parametrize("generator", resume_cases.GENERATORS)
    if "version" in metafunc.fixturenames:
        running = f"3.{sys.version_info.minor}"  # the tests above
        metafunc.parametrize("version", [v for v in ("3.11", "3.12", "3.13") if v != running])


def test_function(function):
    assert not resumed_everywhere(resume_cases.FUNCTIONS[function])


def test_generator(generator):
    assert not generator_everywhere(*resume_cases.GENERATORS[generator])


def test_version(version, tmp_path):
    import bytecode
    import pytest

    found = shutil.which(f"python{version}")
    for path in sorted((Path.home() / ".pyenv/versions").glob(f"{version}*/bin/python")):
        found = str(path)
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no Python {version} on this machine")
    (tmp_path / "bytecode").symlink_to(Path(bytecode.__file__).parent)  # pure Python, the same for all versions
    command = [found, "-B", __file__]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}, timeout=170)
    assert done.returncode == 0 and done.stdout.endswith(" 0 failures\n"), done.stdout[-3000:] + done.stderr[-3000:]


def test_equal_code_of_two_files():
    text = "def f(a):\n    b = a\n    return b\n"
    codes = []
    for name in ("one.py", "two.py"):
        scope = {}
        exec(compile(text, name, "exec"), scope)
        codes.append(resume.resume_code(scope["f"].__code__, 2, (), ("value",)))
    assert [c.co_filename for c in codes] == ["one.py", "two.py"]


if __name__ == "__main__":
    found = failures()
    for text in found[:40]:
        print(text[:1000])
    print(len(resume_cases.FUNCTIONS), len(resume_cases.GENERATORS), f"{len(found)} failures")
