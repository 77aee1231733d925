"""The normal form of bytecode run over real values, one instruction at a time: the states in which a frame can be resumed.

Loads the layer of the front end that knows bytecode by its path, so that it runs where PyTorch is not installed.
"""

import builtins
import importlib
import operator
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

FRONTEND = Path(__file__).parents[2] / "frontend" / "bytecode"


def load(name):
    """One module of the bytecode layer, without the rest of the package."""
    package = sys.modules.get("bytecode_layer")
    if package is None:
        package = sys.modules["bytecode_layer"] = types.ModuleType("bytecode_layer")
        package.__path__ = [str(FRONTEND)]
    return importlib.import_module(f"bytecode_layer.{name}")


disassemble = load("instruction").disassemble
NULL_FIRST = sys.version_info < (3, 13)


class Marker:
    def __init__(self, kind, error=None):
        self.kind, self.error = kind, error

    def __repr__(self):
        return self.kind


NULL, LASTI = Marker("null"), Marker("lasti")


class Machine:
    """One activation of `function`: `fast` holds its variables (cells as cells), `stack` its values, `ip` its position."""

    def __init__(self, function, args, kwargs=None):
        code = function.__code__
        self.function, self.code, self.globals = function, code, function.__globals__
        self.program = disassemble(code)
        self.fast = bind(function, args, kwargs or {})
        self.fast.update(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self.stack, self.ip, self.result = [], 0, None
        while self.program.instructions[self.ip].op in ("MAKE_CELL", "RETURN_GENERATOR"):
            generator = self.program.instructions[self.ip].op == "RETURN_GENERATOR"
            self.step()
            if generator:
                self.step()  # POP_TOP

    def step(self):
        """Run one instruction: None, "return" or "yield" with `result` set. Raises what leaves the frame."""
        at, ins = self.ip, self.program.instructions[self.ip]
        self.ip += 1
        handled = next((v.error for v in reversed(self.stack) if isinstance(v, Marker) and v.kind == "saved"), None)
        try:
            if handled is None:
                return OPS[ins.op](self, ins.arg)
            trace = handled.__traceback__
            try:
                raise handled
            except BaseException:
                handled.__traceback__ = trace
                return OPS[ins.op](self, ins.arg)
        except BaseException as error:
            self.unwind(at, error)

    def unwind(self, at, error):
        entry = self.program.handler(at)
        if entry is None:
            raise error
        del self.stack[entry.depth :]
        self.stack += ([LASTI] if entry.push_lasti else []) + [error]
        self.ip = entry.target

    def pops(self, n):
        values = self.stack[len(self.stack) - n :]
        del self.stack[len(self.stack) - n :]
        return values

    def variables(self):
        out = {}
        for name, value in self.fast.items():
            try:
                out[name] = value.cell_contents if isinstance(value, types.CellType) else value
            except ValueError:
                continue
        return out

    def call(self, function, args, kwargs):
        if function is builtins.super and not args:
            return super(self.fast["__class__"].cell_contents, self.variables()[self.code.co_varnames[0]])
        if function is builtins.locals:
            return self.variables()
        return function(*args, **kwargs)


def bind(function, args, kwargs):
    """The parameters of a call, by name."""
    code, fast = function.__code__, {}
    total = code.co_argcount
    names = code.co_varnames[:total]
    defaults = function.__defaults__ or ()
    fast.update(zip(names[total - len(defaults) :], defaults, strict=True))
    fast.update(zip(names, args, strict=False))
    at = total + code.co_kwonlyargcount
    fast.update(function.__kwdefaults__ or {})
    fast.update({k: v for k, v in kwargs.items() if k in code.co_varnames[:at]})
    if code.co_flags & 4:
        fast[code.co_varnames[at]] = args[total:]
        at += 1
    if code.co_flags & 8:
        fast[code.co_varnames[at]] = {k: v for k, v in kwargs.items() if k not in fast}
    return {name: fast[name] for name in code.co_varnames if name in fast}


OPS = {}


def op(function):
    OPS[function.__name__] = function
    return function


def pushing(n, function):
    """An instruction that replaces `n` values by one."""

    def run(vm, arg):
        vm.stack.append(function(arg, *vm.pops(n)))

    return run


BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "@": operator.matmul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
INPLACE = {"+=": operator.iadd, "-=": operator.isub, "*=": operator.imul, "|=": operator.ior, "//=": operator.ifloordiv}
COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
UNARY = {"+": operator.pos, "-": operator.neg, "~": operator.invert, "not": operator.not_}

for name, n, function in [
    ("LOAD_CONST", 0, lambda value: value),
    ("LOAD_ASSERTION_ERROR", 0, lambda _: AssertionError),
    ("PUSH_NULL", 0, lambda _: NULL),
    ("BINARY_OP", 2, lambda symbol, a, b: (BINARY | INPLACE)[symbol](a, b)),
    ("UNARY", 1, lambda symbol, a: UNARY[symbol](a)),
    ("COMPARE_OP", 2, lambda symbol, a, b: COMPARE[symbol](a, b)),
    ("IS_OP", 2, lambda invert, a, b: (a is b) is not invert),
    ("CONTAINS_OP", 2, lambda invert, a, b: (a in b) is not invert),
    ("BINARY_SUBSCR", 2, lambda _, a, b: a[b]),
    ("LOAD_ATTR", 1, lambda name, a: getattr(a, name)),
    ("LIST_TO_TUPLE", 1, lambda _, a: tuple(a)),
    ("CONVERT_VALUE", 1, lambda name, a: {"str": str, "repr": repr, "ascii": ascii}[name](a)),
    ("FORMAT_SIMPLE", 1, lambda _, a: format(a)),
    ("FORMAT_WITH_SPEC", 2, lambda _, a, spec: format(a, spec)),
    ("GET_ITER", 1, lambda _, a: iter(a)),
    ("GET_YIELD_FROM_ITER", 1, lambda _, a: iter(a)),
    ("LOAD_SUPER_ATTR", 3, lambda arg, _, cls, obj: getattr(super(cls, obj), arg[0])),
    ("END_SEND", 2, lambda _, __, value: value),
]:
    OPS[name] = pushing(n, function)


def building(make):
    def run(vm, n):
        vm.stack.append(make(vm.pops(n)))

    return run


OPS["BUILD_TUPLE"], OPS["BUILD_LIST"], OPS["BUILD_SET"] = building(tuple), building(list), building(set)
OPS["BUILD_STRING"], OPS["BUILD_SLICE"] = building("".join), building(lambda parts: slice(*parts))


def adding(count, add):
    def run(vm, n):
        values = vm.pops(count)
        add(vm.stack[-n], *values)

    return run


OPS["LIST_APPEND"], OPS["LIST_EXTEND"] = adding(1, list.append), adding(1, list.extend)
OPS["SET_ADD"], OPS["SET_UPDATE"] = adding(1, set.add), adding(1, set.update)
OPS["MAP_ADD"], OPS["DICT_UPDATE"], OPS["DICT_MERGE"] = (
    adding(2, dict.__setitem__),
    adding(1, dict.update),
    adding(1, dict.update),
)


@op
def BUILD_MAP(vm, n):
    items = vm.pops(2 * n)
    vm.stack.append(dict(zip(items[::2], items[1::2], strict=True)))


@op
def BUILD_CONST_KEY_MAP(vm, n):
    keys = vm.stack.pop()
    vm.stack.append(dict(zip(keys, vm.pops(n), strict=True)))


@op
def POP_TOP(vm, _):
    vm.stack.pop()


@op
def COPY(vm, n):
    vm.stack.append(vm.stack[-n])


@op
def SWAP(vm, n):
    vm.stack[-1], vm.stack[-n] = vm.stack[-n], vm.stack[-1]


@op
def LOAD_FAST(vm, name):
    if name not in vm.fast:
        raise UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
    vm.stack.append(vm.fast[name])


@op
def LOAD_FAST_AND_CLEAR(vm, name):
    vm.stack.append(vm.fast.pop(name, NULL))


@op
def STORE_FAST(vm, name):
    value = vm.stack.pop()
    vm.fast.pop(name, None)
    if value is not NULL:
        vm.fast[name] = value


@op
def DELETE_FAST(vm, name):
    if name not in vm.fast:
        raise UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value")
    del vm.fast[name]


@op
def LOAD_GLOBAL(vm, name):
    found = vm.globals.get(name, NULL)
    if found is NULL:
        if not hasattr(builtins, name):
            raise NameError(f"name '{name}' is not defined")
        found = getattr(builtins, name)
    vm.stack.append(found)


@op
def STORE_GLOBAL(vm, name):
    vm.globals[name] = vm.stack.pop()


@op
def MAKE_CELL(vm, name):
    vm.fast[name] = types.CellType(vm.fast[name]) if name in vm.fast else types.CellType()


@op
def LOAD_DEREF(vm, name):
    try:
        vm.stack.append(vm.fast[name].cell_contents)
    except ValueError:
        if name in vm.code.co_freevars:
            raise NameError(
                f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
            ) from None
        raise UnboundLocalError(
            f"cannot access local variable '{name}' where it is not associated with a value"
        ) from None


@op
def STORE_DEREF(vm, name):
    vm.fast[name].cell_contents = vm.stack.pop()


@op
def DELETE_DEREF(vm, name):
    del vm.fast[name].cell_contents


@op
def STORE_SUBSCR(vm, _):
    value, obj, key = vm.pops(3)
    obj[key] = value


@op
def DELETE_SUBSCR(vm, _):
    obj, key = vm.pops(2)
    del obj[key]


@op
def STORE_ATTR(vm, name):
    value, obj = vm.pops(2)
    setattr(obj, name, value)


@op
def DELETE_ATTR(vm, name):
    delattr(vm.stack.pop(), name)


@op
def LOAD_METHOD(vm, name):
    found = getattr(vm.stack.pop(), name)
    vm.stack += [NULL, found] if NULL_FIRST else [found, NULL]


@op
def GET_LEN(vm, _):
    vm.stack.append(len(vm.stack[-1]))


@op
def UNPACK_SEQUENCE(vm, n):
    values = list(vm.stack.pop())
    if len(values) > n:
        raise ValueError(f"too many values to unpack (expected {n})")
    if len(values) < n:
        raise ValueError(f"not enough values to unpack (expected {n}, got {len(values)})")
    vm.stack += reversed(values)


@op
def UNPACK_EX(vm, arg):
    before, after = arg & 255, arg >> 8
    values = list(vm.stack.pop())
    end = len(values) - after
    vm.stack += reversed([*values[:before], values[before:end], *values[end:]])


@op
def JUMP(vm, target):
    vm.ip = target


def jumping(test):
    def run(vm, target):
        if test(vm.stack.pop()):
            vm.ip = target

    return run


OPS["POP_JUMP_IF_TRUE"], OPS["POP_JUMP_IF_FALSE"] = jumping(bool), jumping(operator.not_)
OPS["POP_JUMP_IF_NONE"], OPS["POP_JUMP_IF_NOT_NONE"] = (
    jumping(lambda value: value is None),
    jumping(lambda value: value is not None),
)


@op
def FOR_ITER(vm, target):
    try:
        vm.stack.append(next(vm.stack[-1]))
    except StopIteration:
        vm.stack.pop()
        vm.ip = target


@op
def RETURN_VALUE(vm, _):
    vm.result = vm.stack.pop()
    return "return"


@op
def RETURN_GENERATOR(vm, _):
    vm.stack.append(None)


@op
def YIELD_VALUE(vm, _):
    vm.result = vm.stack.pop()
    return "yield"


@op
def SEND(vm, target):
    value = vm.stack.pop()
    try:
        vm.stack.append(next(vm.stack[-1]) if value is None else vm.stack[-1].send(value))
    except StopIteration as stop:
        vm.stack[-1] = stop.value
        vm.ip = target


@op
def STOPITERATION_ERROR(vm, _):
    if isinstance(vm.stack[-1], StopIteration):
        error = RuntimeError("generator raised StopIteration")
        error.__cause__ = error.__context__ = vm.stack[-1]
        vm.stack[-1] = error


@op
def PUSH_EXC_INFO(vm, _):
    error = vm.stack.pop()
    vm.stack += [Marker("saved", error), error]


@op
def POP_EXCEPT(vm, _):
    assert vm.stack.pop().kind == "saved"


@op
def CHECK_EXC_MATCH(vm, _):
    kind = vm.stack.pop()
    vm.stack.append(isinstance(vm.stack[-1], kind))


@op
def RERAISE(vm, _):
    raise vm.stack.pop()


@op
def RAISE_VARARGS(vm, n):
    if n == 0:
        raise
    values = vm.pops(n)
    if n == 2:
        raise values[0] from values[1]
    raise values[0]


@op
def BEFORE_WITH(vm, _):
    manager = vm.stack.pop()
    leave = manager.__exit__
    vm.stack += [leave, manager.__enter__()]


@op
def WITH_EXCEPT_START(vm, _):
    error = vm.stack[-1]
    vm.stack.append(vm.stack[-4](type(error), error, error.__traceback__))


@op
def CALL(vm, arg):
    n, names = arg
    args = vm.pops(n)
    kwargs = dict(zip(names, args[n - len(names) :], strict=True))
    vm.stack.append(_call(vm, args[: n - len(names)], kwargs))


@op
def CALL_FUNCTION_EX(vm, has_kwargs):
    kwargs = dict(vm.stack.pop()) if has_kwargs else {}
    vm.stack.append(_call(vm, list(vm.stack.pop()), kwargs))


def _call(vm, args, kwargs):
    first, second = vm.pops(2)
    if first is NULL:
        assert NULL_FIRST
        return vm.call(second, args, kwargs)
    return vm.call(first, args if second is NULL else [second, *args], kwargs)


@op
def MAKE_FUNCTION(vm, flags):
    code = vm.stack.pop()
    closure = vm.stack.pop() if flags & 8 else None
    annotations = vm.stack.pop() if flags & 4 else None
    kwdefaults = vm.stack.pop() if flags & 2 else None
    defaults = vm.stack.pop() if flags & 1 else None
    if closure is None and code.co_freevars:  # set by the instruction that follows
        closure = tuple(types.CellType() for _ in code.co_freevars)
    made = types.FunctionType(code, vm.globals, code.co_name, defaults, closure)
    made.__kwdefaults__ = kwdefaults
    made.__annotations__ = dict(zip(annotations[::2], annotations[1::2], strict=True)) if annotations else {}
    vm.stack.append(made)


@op
def SET_FUNCTION_ATTRIBUTE(vm, flag):
    made, value = vm.stack.pop(), vm.stack.pop()
    if flag == 8:
        old = made
        made = types.FunctionType(made.__code__, vm.globals, made.__name__, made.__defaults__, value)
        made.__kwdefaults__, made.__annotations__ = old.__kwdefaults__, old.__annotations__
    elif flag == 4:
        made.__annotations__ = dict(zip(value[::2], value[1::2], strict=True))
    else:
        setattr(made, {1: "__defaults__", 2: "__kwdefaults__"}[flag], value)
    vm.stack.append(made)


@op
def IMPORT_NAME(vm, name):
    level, names = vm.pops(2)
    vm.stack.append(__import__(name, vm.globals, None, names, level))


@op
def IMPORT_FROM(vm, name):
    vm.stack.append(getattr(vm.stack[-1], name))


@op
def MATCH_MAPPING(vm, _):
    vm.stack.append(isinstance(vm.stack[-1], Mapping))


@op
def MATCH_SEQUENCE(vm, _):
    vm.stack.append(isinstance(vm.stack[-1], Sequence) and not isinstance(vm.stack[-1], str))


@op
def MATCH_KEYS(vm, _):
    subject, keys = vm.stack[-2:]
    vm.stack.append(tuple(subject[k] for k in keys) if all(k in subject for k in keys) else None)


@op
def MATCH_CLASS(vm, n):
    subject, cls, names = vm.pops(3)
    found = None
    if isinstance(subject, cls):
        fields = (*getattr(cls, "__match_args__", ())[:n], *names)
        found = (subject,) if n and cls in (int, str) else tuple(getattr(subject, field) for field in fields)
    vm.stack.append(found)
