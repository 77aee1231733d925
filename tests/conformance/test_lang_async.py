"""Asynchronous generators, `except*`, names of a module as a dict, methods of C in the places of attribute hooks."""

import collections
import contextlib
import copy
import pickle
import sys
import types

from behaviour import LOG, Suite, t

case = Suite()
FACTOR = 3


def drive(coroutine):
    try:
        while True:
            coroutine.send(None)
    except StopIteration as ended:
        return ended.value


@types.coroutine
def pause():
    return (yield "p")


# ---- asynchronous generators ----


@case(lambda: (t(),), lambda: (t(3.0, 4.0, 5.0),))
def async_generator(x):
    async def numbers(n):
        try:
            for i in range(n):
                await pause()
                LOG.append((yield x * i))
        except ValueError:
            LOG.append("caught")
            yield x + 100
        finally:
            LOG.append("left")

    async def main():
        total = x
        async for value in numbers(3):
            total = total + value
        listed = [value async for value in numbers(2) if True]
        made = numbers(5)
        first, second, third = await anext(made), await made.asend(7), await made.athrow(ValueError("q"))
        await made.aclose()
        for ended in (made, aiter(numbers(0))):
            try:
                await anext(ended)
            except StopAsyncIteration:
                LOG.append("ended")
        return total, listed, first, second, third

    return drive(main())


@case(lambda: (t(), 2), lambda: (t(), 3))
def async_context_managers(x, k):
    @contextlib.asynccontextmanager
    async def entered(k):
        LOG.append("in")
        try:
            yield k
        except KeyError:
            LOG.append("caught")
        finally:
            LOG.append("out")

    async def numbers():
        try:
            yield 1
            yield 2
        finally:
            LOG.append("closed")

    async def main():
        async with entered(k) as given:
            y = x * given
        async with entered(3):
            raise KeyError
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(entered(5))
        async with contextlib.aclosing(numbers()) as made:
            async for value in made:
                y = y + value
                break
        return y

    return drive(main())


async def raises(error):
    yield 1
    raise error


async def goes_on():
    try:
        yield 1
    except GeneratorExit:
        yield 2


@case(lambda: (t(),), lambda: (t(3.0),))
def async_generators_used_wrongly(x):
    async def main():
        for kind in (StopAsyncIteration, StopIteration):
            try:
                async for _ in raises(kind):
                    pass
            except RuntimeError as error:
                LOG.append((str(error), type(error.__cause__).__name__))
        made = goes_on()
        await anext(made)
        try:
            await made.aclose()
        except RuntimeError as error:
            LOG.append(str(error))
        made = raises(KeyError)
        asked = made.asend(None)
        try:
            await made.asend(3)
        except TypeError as error:
            LOG.append(str(error))
        await asked
        for again in (asked, made.asend(None), made.asend(None)):
            try:
                await again
            except BaseException as error:
                LOG.append(repr(error))
        made = raises(KeyError)
        await made.aclose()
        for way in (anext(made), made.athrow(ValueError), made.aclose()):
            try:
                LOG.append(await way)
            except BaseException as error:
                LOG.append(repr(error))
        return x + 1

    kinds = [isinstance(goes_on(), kind) for kind in (types.AsyncGeneratorType, collections.abc.AsyncGenerator)]
    return drive(main()), kinds, hasattr(goes_on(), "send")


# ---- except* ----


@case(lambda: (t(), 1), lambda: (t(), "a"))
def groups_are_split(x, value):
    try:
        raise ExceptionGroup(
            "g", [ValueError(value), TypeError(2), ExceptionGroup("n", [KeyError("k"), ValueError(3)])]
        )
    except* ValueError as group:
        LOG.append((repr(group), sys.exc_info()[1] is group))
    except* (TypeError, KeyError) as group:
        LOG.append(repr(group))
    whole = ExceptionGroup("g", [ValueError(1), OSError(2)])
    parts = whole.split(lambda error: LOG.append(type(error).__name__) or isinstance(error, ValueError))
    return x + 1, [*map(repr, parts)], repr(whole.subgroup(OSError))


def new(error):
    raise KeyError("new") from error


def again(error):
    raise


def handled(error):
    pass


MADE_BY = (
    lambda: ExceptionGroup("g", [ValueError(1), OSError(2)]),
    lambda: ExceptionGroup("g", [ValueError(1), ExceptionGroup("n", [ValueError(2)])]),
    lambda: ExceptionGroup("g", [OSError(1)]),
    lambda: ValueError(5),
    lambda: OSError(5),
)


@case(*((lambda k, f: lambda: (t(), k, f))(k, f) for k in range(5) for f in (new, handled)))
def groups_that_are_left(x, kind, then):
    made = MADE_BY[kind]()
    try:
        try:
            raise made
        except* ValueError as taken:
            LOG.append(repr(taken))
            then(taken)
        else:
            LOG.append("else")
        finally:
            LOG.append("finally")
    except BaseException as left:
        inner = [repr(e) for e in getattr(left, "exceptions", ())]
        return x * 2, repr(left), inner, repr(left.__context__), left is made
    return x


@case(lambda: (t(), True), lambda: (t(), False))
def groups_raised_again(x, whole):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), OSError(2), TypeError(4)]) if whole else ValueError(5)
        except* ValueError:
            raise
        except* TypeError:
            pass
    except BaseException as left:
        LOG.append(repr(left))
    for kinds in (ExceptionGroup, 3):
        try:
            try:
                raise ValueError(5)
            except* kinds:
                pass
        except TypeError as error:
            LOG.append(str(error))
    return x


@case(lambda: (t(),), graphs="breaks")
def a_break_inside_of_except_star(x):
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError as group:
        print(len(group.exceptions))
        LOG.append(sys.exc_info()[1] is group)
    except* TypeError as group:
        LOG.append(repr(group))
    return x + 1


# ---- the names of a module as a dict ----


@case(lambda: (t(), 4), lambda: (t(), 5), watch="MADE FACTOR")
def names_of_the_module(x, k):
    names = globals()
    names["MADE"] = k
    seen = MADE + names["FACTOR"], names.get("nobody", 1), "MADE" in names, "nobody" in names, "MADE" in [*names]  # noqa: F821
    same = names is globals() and sys.modules[__name__].__dict__["MADE"] == k
    return x + seen[0], seen, same, names.pop("MADE"), "MADE" in names


@case(lambda: (t(), 4), lambda: (t(), 5), watch="FACTOR")
def a_name_goes_and_comes(x, k):
    held = globals().pop("FACTOR")
    try:
        return FACTOR
    except NameError as error:
        LOG.append(str(error))
    globals()["FACTOR"] = held
    return x + FACTOR + eval("FACTOR * k", globals(), {"k": k})


# ---- attribute hooks of C's ----


class Named(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


class Soft(dict):
    __getattr__ = dict.get


@case(lambda: (t(), Named(a=1, b=Named(c=2))), lambda: (t(), Named(a=3, b=Named(c=4), d=5)))
def dicts_with_items_as_attributes(x, given):
    made = Named(a=1)
    made.z = 5
    del made.a
    soft = Soft(q=2)
    try:
        LOG.append(made.nobody)
    except KeyError as error:
        LOG.append(str(error))
    return x * given.b.c + given.a + made.z, made, soft.q, soft.none, hasattr(soft, "zz"), given.get("d")


# ---- what object itself does ----


class Neither:
    pass


class Made:
    def __new__(cls, value=0, **rest):
        return object.__new__(cls)


class Filled:
    def __init__(self, *args):
        object.__init__(self, *args[1:])


@case(lambda: (t(),), lambda: (t(2.0),))
def too_many_arguments(x):
    for make in (
        lambda: Neither(1),
        lambda: Made(1),
        lambda: Filled(1),
        lambda: Filled(1, 2),
        lambda: object.__init__(Neither(), 1),
        lambda: object.__init__(Made(), 1),
        lambda: object.__init__(Filled(), k=1),
    ):
        try:
            LOG.append(type(make()).__name__)
        except TypeError as error:
            LOG.append(str(error))
    return x + 1


class Irreversible(collections.UserList):
    __reversed__ = None


class Given:
    def __new__(cls, *args, **kwargs):
        made = object.__new__(cls)
        made.given = (args, kwargs)
        return made

    def __getnewargs__(self):
        LOG.append("args")
        return (1,)

    def __getattr__(self, name):
        raise AttributeError(name)


class GivenByName(Given):
    def __getnewargs_ex__(self):
        return (2,), {"k": 3}


@case(lambda: (t(),), lambda: (t(2.0),))
def copies_that_ask_for_arguments(x):
    made = [copy.copy(Given(4)), copy.deepcopy(GivenByName(4)), pickle.loads(pickle.dumps(Given(5)))]
    try:
        reversed(Irreversible())
    except TypeError as error:
        LOG.append(str(error))
    return x + 1, [one.given for one in made]


test_case = case.tests()
