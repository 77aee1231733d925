"""Small functions that are resumed at every instruction: each takes a list to log into, and says what else it is given."""

import contextlib
import dataclasses
import sys
import types

FUNCTIONS, GENERATORS = {}, {}  # by name: log -> (function, its arguments); what generators are driven by
total = 0


def case(*makers):
    """The function is called with a new log and one value of each maker."""

    def register(function):
        FUNCTIONS[function.__qualname__] = lambda log: (function, (log, *(make() for make in makers)))
        return function

    return register


def generator(*actions, made=None):
    """The generator is driven by `actions`: what is sent to it ("next" for None), an exception thrown, or "close"."""

    def register(function):
        GENERATORS[function.__qualname__] = (made or (lambda log: (function, (log,))), actions)
        return function

    return register


class Box:
    """Logs what is done to it."""

    __match_args__ = ("log", "value")

    def __init__(self, log, value=1, swallow=False):
        self.log, self.value, self.swallow = log, value, swallow

    def __enter__(self):
        self.log.append("enter")
        return self.value

    def __exit__(self, kind, error, trace):
        self.log.append(("exit", kind and kind.__name__))
        return self.swallow

    def __bool__(self):
        self.log.append("bool")
        return bool(self.value)

    def __repr__(self):
        return f"Box({self.value})"

    def __getitem__(self, key):
        self.log.append(("get", repr(key)))
        if isinstance(key, slice):
            raise TypeError("no slices")
        return key

    def __lt__(self, other):
        return Box(self.log, self.value < getattr(other, "value", other))

    def twice(self, n, *, k=2):
        self.log.append(("twice", n))
        return n * k


class Loud:
    """A truth value that raises."""

    def __bool__(self):
        raise ValueError("no truth")


def fail(log, what=ValueError):
    log.append("fail")
    raise what("failed")


def give(log, value):
    log.append(value)
    return value


# ---- loops and expressions ----


@case()
def loops(log):
    out = 0
    for i in range(4):
        if i == 1:
            continue
        for j in range(3):
            if j > i:
                break
            out += i * j
        else:
            log.append(("else", i))
    while out > 0:
        out -= 3
        if out == 1:
            break
    else:
        log.append("done")
    return out


@case(lambda: [3, 4, 5])
def nested_calls(log, xs):
    return give(log, 1) + max(give(log, 2), len(xs), *xs[1:]) * give(log, sum(give(log, x) for x in xs))


@case(lambda: 3)
def conditional(log, n):
    return [give(log, 1), give(log, 2) if n > 2 else give(log, 3), n and give(log, 0) or give(log, "x")]


@case(lambda: Box([], 0))
def truths(log, box):
    out = [not box, not not box, bool(box) or log, box and 1, (box or box) and 2]
    if not box and not out[3]:
        out.append(3)
    return out if box or len(out) == 6 else None


@case(lambda: [[], [1], 0, "a"])
def truths_in_a_loop(log, xs):
    for x in xs:
        log.append((not not x, not not (len(log) < 2), not x, not not (x and 1)))
    return [not not x for x in xs]


@case(lambda: Loud())
def truth_that_raises(log, loud):
    try:
        if loud:
            return 1
    except ValueError as e:
        log.append(str(e))
    try:
        return 2 if not loud else 3
    except ValueError as e:
        log.append(str(e))
    try:
        return loud and 4
    except ValueError as e:
        log.append(str(e))
    return not (log < ["a"])


@case(lambda: 1, lambda: 2)
def chained(log, a, b):
    return [a < give(log, b) < 3, a < b > 5 < give(log, 9), a is not None is not b, a in [1] != b, 0 < a <= b == 2]


@case(lambda: [1, 2])
def boxes_compared(log, xs):
    a, b = Box(log, 1), Box(log, 0)
    return bool(a < b) if a < 2 else (b < a) and xs


@case(lambda: list(range(8)))
def slices(log, xs):
    xs[1:3] = [give(log, 9)]
    xs[:1] = xs[5:]
    del xs[-2:]
    xs[0] += give(log, 2)
    return xs[1:4], xs[::2], xs[give(log, 1) :][: give(log, 2)]


@case(lambda: "ab")
def slice_that_raises(log, text):
    box = Box(log)
    try:
        return box[1:2]
    except TypeError as e:
        log.append(e.args)
    try:
        text[1:2] = "c"
    except TypeError:
        log.append("store")
    return text[:1], box[3]


@case(lambda: 1.5, lambda: "é")
def f_strings(log, x, text):
    return f"{x:>{give(log, 8)}.2f}|{text!r}|{text!a:^12}|{x!s:<5}|{log}|{x}{text}{x=}|{'a' if x else 'b'}"


@case(lambda: [1, 2, 3, 4])
def walrus(log, xs):
    if (n := len(xs)) > 3 and (last := xs[-1]) < 10:
        log.append((n, last))
    return [y for x in xs if (y := x * n) > 5], y


@case(lambda: (1, (2, 3), 4, 5))
def unpacking(log, xs):
    a, (b, c), *rest = xs
    first, *middle, final = rest + [a, b, c]
    (d, e), f = (a, b), c
    d, e, f = f, d, e
    return {**{"a": a}, "m": middle}, [*rest, first], (*rest, final), {*rest, d, e, f}


@case(lambda: {"a": 1, "b": 2})
def calls(log, kw):
    box = Box(log)

    def inner(a, b=2, *args, c, d=4, **rest):
        return a, b, args, c, d, rest

    return [
        inner(1, c=3),
        inner(*[1, 2, 3], c=give(log, 5), **{"z": 1}),
        box.twice(2),
        box.twice(give(log, 3), k=give(log, 4)),
        dict(kw, **kw, c=3),
        inner(*kw, c=box.twice(n=1, k=3)),
    ]


@case(lambda: 2)
def starred(log, x, *args, y=3, **kwargs):
    args += (x,)
    kwargs["y"] = y
    return args, kwargs, [*args, *kwargs]


@case(lambda: 5)
def locals_seen(log, n):
    a, b = n, [n + i for i in range(2)]
    log.append(give(log, n) + sum(locals()["b"]))
    c = (lambda: a)()
    return sorted(k for k in locals()), c


@case()
def unbound(log):
    for i in ():
        pass
    try:
        log.append(i)
    except UnboundLocalError as e:
        log.append(str(e))
    x = 1
    del x
    try:
        del x  # noqa: F821
    except UnboundLocalError:
        log.append("x")
    return x  # noqa: F821


@case()
def globals_too(log):
    global total
    total = 0
    for i in range(3):
        total += i
    del total
    total = give(log, 3)
    return total, missing  # noqa: F821


@case()
def asserts(log):
    assert log == [], "empty"
    log.append(1)
    assert log == [2], give(log, "message")


@case()
def imports(log):
    import os.path as p
    from functools import partial, reduce

    return p.basename("a/b"), partial(give, log)(3), reduce(lambda a, b: a + b, [1, 2, 3])


# ---- comprehensions and closures ----


@case(lambda: [1, 2, 3])
def comprehensions(log, xs):
    x = give(log, 7)
    squares = [x * x for x in xs if give(log, x) % 2]
    pairs = {x: [y for y in range(x)] for x in xs}
    return squares, pairs, {x % 2 for x in xs}, x, list(x + 1 for x in xs), [(a, b) for a in xs for b in range(a) if b]


@case(lambda: [1, 2, 0])
def comprehension_that_raises(log, xs):
    x = 5
    try:
        return [give(log, 6 // x) for x in xs]
    except ZeroDivisionError:
        return x


@case(lambda: [1, 2])
def comprehension_cells(log, xs):
    i = give(log, 5)
    first = [lambda: i for i in xs]
    second = [lambda: (i, j) for j in xs]
    i += 1
    return [f() for f in first], [f() for f in second], i, {k: (lambda: k) for k in xs}[2]()


@case(lambda: [1, 2])
def comprehension_of_parameter(log, xs):
    made = [lambda: xs for xs in xs]
    give(log, 1)
    return [f() for f in made], (lambda: xs)()


@case()
def nonlocals(log):
    count, names = 0, []

    def add(n):
        nonlocal count
        count += n
        names.append(n)
        return count

    log.append(add(1))
    count *= 10
    log.append(add(2))

    def reset():
        nonlocal count
        del count

    if log:
        reset()
    try:
        return count
    except NameError:
        return names


def outer(a):
    b = a + 1

    def inner(log, c):
        nonlocal b
        b += give(log, c)
        d = [a, b]

        def innermost(e=d, *, f=b):
            return a, b, d, e, f

        b += 1
        return innermost(), b

    return inner


FUNCTIONS["inner"] = lambda log: (outer(1), (log, 3))


@case(lambda: 2)
def parameter_cells(log, n):
    def get():
        return n

    n += give(log, 1)

    def put(value: int = 3) -> None:
        nonlocal n
        n = value

    put()
    return get(), n, put.__annotations__, put.__defaults__


class Base:
    def greet(self, log, *more):
        log.append(("base", more))
        return self.name

    @classmethod
    def made(cls, log):
        return cls.__name__


class Child(Base):
    name = "child"

    def greet(self, log):
        a = give(log, 1)
        out = [super().greet(log, a), super(Child, self).greet(log)]
        base = super()
        out.append(base.greet(log))
        return out, (lambda: self.name)() if a else None

    def other(self, log):
        first = give(log, 2)
        return super().greet(log, first) + super().name if first is None else super().greet(*[log, first])

    @classmethod
    def made(cls, log):
        give(log, 3)
        return super().made(log) + cls.__name__


FUNCTIONS["Child.greet"] = lambda log: (Child.greet, (Child(), log))
FUNCTIONS["Child.other"] = lambda log: (Child.other, (Child(), log))
FUNCTIONS["Child.made"] = lambda log: (Child.made.__func__, (Child, log))


# ---- exceptions ----


@case(lambda: {"a": 1})
def handlers(log, d):
    try:
        d["b"]
    except (TypeError, KeyError) as e:
        log.append((type(e).__name__, sys.exc_info()[1] is e))
        try:
            fail(log)
        except ValueError as inner:
            log.append(repr(inner.__context__))
        else:
            log.append("never")
        log.append(sys.exc_info()[1] is e)
    else:
        log.append("never")
    finally:
        log.append(sys.exc_info())
    return d


@case()
def nested_handlers(log):
    try:
        try:
            fail(log)
        except KeyError:
            log.append("never")
        finally:
            log.append(("finally", repr(sys.exc_info()[1])))
            try:
                fail(log, KeyError)
            except KeyError as e:
                log.append(repr(e.__context__))
                try:
                    raise
                except KeyError:
                    log.append(repr(sys.exc_info()[1]))
    except ValueError:
        log.append("caught")
        raise TypeError(len(log)) from None


@case()
def raised_again(log):
    try:
        fail(log)
    except ValueError:
        give(log, 1)
        raise


@case()
def raised_from(log):
    try:
        fail(log)
    except ValueError as e:
        raise RuntimeError("outer") from e
    finally:
        give(log, "last")


@case()
def raised_while_handling(log):
    for what in (KeyError, IndexError, OSError):
        try:
            fail(log, what)
        except KeyError:
            continue
        except IndexError:
            give(log, "index")
    return log


@case()
def finally_returns(log):
    for i in range(3):
        try:
            if i == 1:
                return give(log, i)
        finally:
            log.append(i)
            if i == 2:
                break
    return -1


@case()
def return_in_finally(log):
    try:
        fail(log)
    finally:
        return give(log, 5)


@case()
def finally_continues(log):
    out = []
    for i in range(3):
        try:
            out.append(6 // i)
        except ZeroDivisionError:
            out.append(None)
            continue
        else:
            out.append("ok")
        finally:
            give(log, i)
    return out


@case()
def no_handler(log):
    a = [give(log, 1)]
    return a[give(log, 3)]


@case()
def deep_line(log):
    return give(
        log,
        give(log, 1)
        + len(
            fail(log),
        ),
    )


# ---- with ----


@case()
def withs(log):
    with Box(log, 3) as a, Box(log, 4):
        b = give(log, a)
    with Box(log, swallow=True):
        fail(log)
    for i in range(3):
        with Box(log, i) as c:
            if i == 1:
                break
            if i == 0:
                continue
    return a, b, c


@case()
def with_raising(log):
    with Box(log):
        with Box(log, swallow=True):
            fail(log, KeyError)
        log.append("after")
        fail(log)


@case()
def with_returning(log):
    with Box(log) as x:
        with contextlib.suppress(ValueError):
            fail(log)
        try:
            return give(log, x)
        finally:
            log.append("finally")


@case()
def with_handlers(log):
    try:
        with Box(log):
            try:
                fail(log, KeyError)
            except KeyError:
                with Box(log, 5) as five:
                    fail(log)
                    log.append(five)
    except ValueError as e:
        return repr(e.__context__), sys.exc_info()[1] is e
    return None


# ---- match ----


@dataclasses.dataclass
class Point:
    x: int
    y: int


@case(lambda: [Point(1, 2), {"k": 3, "z": 4}, [1, [2, 3], 4], 5, "s", Point(0, 0), (1,), None, {"k": 0}])
def matches(log, values):
    for value in values:
        match value:
            case Point(x=0, y=0):
                log.append("origin")
            case Point(a, b) if give(log, a) < b:
                log.append((a, b))
            case {"k": 3, **rest}:
                log.append(rest)
            case [a, [b, *c], *d]:
                log.append((a, b, c, d))
            case int(n) | str(n):
                log.append(("scalar", n))
            case (1,) | None:
                log.append("one")
            case _:
                log.append("other")
    return len(log)


# ---- generators inside functions ----


@case()
def generators_used(log):
    def count(n):
        try:
            while n:
                got = yield n
                n -= got or 1
        finally:
            log.append("closed")

    g = count(5)
    out = [next(g), g.send(2)]
    for x in count(2):
        out.append(x)
    g.close()
    return out, list(count(1)), [x for x in count(2)]


# ---- functions with many variables and constants ----

SCOPE = {"give": give}
exec(
    "def many(log):\n"
    + "".join(f"    v{i} = {i}.5\n" for i in range(300))
    + "    try:\n        for i in range(2):\n            v0 += give(log, i)\n"
    + "    except ValueError:\n        pass\n"
    + "    f = lambda: (v0, v299)\n"
    + f"    return [{', '.join(f'v{i}' for i in range(300))}, f()]\n",
    SCOPE,
)
case()(SCOPE["many"])


# ---- generators ----


@generator("next", "next", "next", "next", "next", "next")
def counting(log):
    for i in range(4):
        log.append(i)
        yield i * i
    return "end"


@generator("next", 1, 2, 7, 8, ValueError, "next", KeyError, "next")
def receiving(log):
    total = 0
    while total < 50:
        try:
            got = yield [total, (yield total + 1)]
        except ValueError as e:
            log.append(repr(e))
            got = 40
        total += got or 1
        log.append(got)
    yield total
    return total


@generator("next", "next", "close", "next")
def cleaning(log):
    try:
        with Box(log):
            yield 1
            yield 2
    finally:
        log.append("closed")


@generator("next", "close", "next")
def closed_badly(log):
    try:
        yield 1
    finally:
        log.append(repr(sys.exc_info()[1]))
        yield 2


@generator("next", "next", "next", KeyError, "next", "next")
def handling(log):
    yield sys.exc_info()
    try:
        fail(log)
    except ValueError as e:
        yield sys.exc_info()[1] is e
        try:
            yield repr(e)
        except KeyError as inner:
            yield repr(inner.__context__)
        log.append(sys.exc_info()[1] is e)
        yield 1
        raise
    finally:
        log.append(repr(sys.exc_info()[1]))


def parts(log):
    try:
        got = yield "a"
        log.append(got)
        yield got
    except KeyError:
        log.append("thrown")
        yield "caught"
    finally:
        log.append("inner")
    return "result"


@generator("next", 3, 4, "next", 5, "next", "next", KeyError, "next", "next")
def delegating(log):
    first = yield from parts(log)
    log.append(first)
    second = yield from [1, 2]
    yield (first, second, (yield from parts(log)))


@generator("next", 5, "close", "next")
def delegating_closed(log):
    try:
        yield from parts(log)
    except GeneratorExit:
        log.append("exit")
        raise


@generator("next", "next", "next")
def stopping(log):
    yield 1
    raise StopIteration(len(log))


@generator("next", StopIteration, "next")
def stop_thrown(log):
    yield 1
    yield 2


@generator("next", "next", "next", "next", "next")
def closing_over(log):
    n = 1

    def more():
        nonlocal n
        n += 1
        return n

    yield n
    yield more()
    n = 10
    yield more() + (yield n)
    yield [f() for f in [lambda: i + n for i in range(2)]]


@generator("next", "next", "next")
def parameter_shared(log):
    def add(x):
        log.append(x)
        return log

    yield add(1)
    yield add(2)


class Iterating(Base):
    name = "iterating"

    @generator("next", "next", "next", 3, "next", made=lambda log: (Iterating.items, (Iterating(), log)))
    def items(self, log):
        yield give(log, 1)
        yield super().greet(log)
        yield self.name, (yield)
        yield super().made(log)


@generator("next", "next", "next", "next", "next", made=lambda log: _expression(log))
def expression(log):
    return (give(log, x) + y for x in range(2) for y in range(2))


def _expression(log):
    code = next(c for c in expression.__code__.co_consts if isinstance(c, types.CodeType))
    return types.FunctionType(code, globals(), "<genexpr>", None, (types.CellType(log),)), (iter(range(2)),)
