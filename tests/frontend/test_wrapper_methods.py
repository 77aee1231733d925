"""Methods of wrapper classes that do more than compute from what they are given: seen at capture, and then right."""

from __future__ import annotations

import types
import warnings

import pytest
import torch
from harness import compiled
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

import intarsia

COUNT = 0
SEEN: list[str] = []
TABLE: dict[str, int] = {}
SETTINGS = types.SimpleNamespace(by=1.0, names=["a"], last=None)
FLAG = False
SCALES = [1.0]
TENSOR = torch.ones(3)


class Base(Tensor):
    """One tensor; `act` of the class does something before each operator, and says by what its result is multiplied."""

    calls = 0

    @staticmethod
    def __new__(cls, a):
        return Tensor._make_wrapper_subclass(cls, a.shape, a.stride(), dtype=a.dtype, device=a.device)

    def __init__(self, a):
        self.a = a

    def __tensor_flatten__(self):
        return ["a"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["a"])

    @classmethod
    def act(cls, func):
        return None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        by = cls.act(func)
        kwargs = kwargs or {}
        made = func(*tree_map_only(Base, lambda t: t.a, args), **tree_map_only(Base, lambda t: t.a, kwargs))
        if not isinstance(made, Tensor):
            return made
        return return_and_correct_aliasing(func, args, kwargs, cls(made if by is None else made * by))


class Counts(Base):
    @classmethod
    def act(cls, func):
        global COUNT
        COUNT += 1


class Logs(Base):
    @classmethod
    def act(cls, func):
        SEEN.append(str(func))


class Caches(Base):
    @classmethod
    def act(cls, func):
        TABLE[str(func)] = TABLE.get(str(func), 0) + 1


class CountsOnClass(Base):
    @classmethod
    def act(cls, func):
        CountsOnClass.calls += 1


class SetsAttribute(Base):
    @classmethod
    def act(cls, func):
        SETTINGS.last = str(func)


class Warns(Base):
    @classmethod
    def act(cls, func):
        warnings.warn("seen", stacklevel=1)


class Prints(Base):
    @classmethod
    def act(cls, func):
        print(func)


class CountsOne(Base):
    """Counts sines alone."""

    @classmethod
    def act(cls, func):
        if func is torch.ops.aten.sin.default:
            SEEN.append("sin")


class WritesTensor(Base):
    @classmethod
    def act(cls, func):
        TENSOR.add_(1)


class CountsMade(Base):
    def __init__(self, a):
        SEEN.append("made")
        super().__init__(a)


class CountsBackward(Base):
    """Counts what cosines are made of: the derivative of a sine."""

    @classmethod
    def act(cls, func):
        if func is torch.ops.aten.cos.default:
            SEEN.append("cos")


class ReadsAttribute(Base):
    @classmethod
    def act(cls, func):
        return SETTINGS.by


class ReadsGlobal(Base):
    @classmethod
    def act(cls, func):
        return 2.0 if FLAG else 1.0


class ReadsList(Base):
    @classmethod
    def act(cls, func):
        return SCALES[0] * len(SCALES)


class ReadsTensor(Base):
    @classmethod
    def act(cls, func):
        return TENSOR


def state():
    return COUNT, list(SEEN), dict(TABLE), CountsOnClass.calls, SETTINGS.last, TENSOR.tolist()


def fresh_state():
    global COUNT, FLAG
    COUNT, FLAG = 0, False
    CountsOnClass.calls, SETTINGS.by, SETTINGS.last = 0, 1.0, None
    SEEN.clear(), TABLE.clear(), TENSOR.fill_(1)
    SCALES[:] = [1.0]


def program(t, x):
    return ((t * 2 + x).sin() + 1).a


def trained(t, x):
    return (t * 2 + x).sin() * 3


def outcome(function, kind, change=lambda k: None, grad=False):
    """What a caller sees of four calls: results, gradients, what methods did meanwhile."""
    fresh_state()
    seen = []
    for k in range(4):
        change(k)
        t = kind(torch.full((3,), float(k))).requires_grad_(grad)
        before, result = state(), function(t, torch.ones(3))
        if grad:
            result.sum().backward()
            result = result.detach().a, t.grad.a
        seen.append((result, before, state()))
    return seen


def compare(kind, change=lambda k: None, program=program, grad=False):
    """The log of a compiled function, which does what eager does."""
    function, log = compiled(program)
    got, want = outcome(function, kind, change, grad), outcome(program, kind, change, grad)
    for (result, *before), (expected, *wanted) in zip(got, want):
        torch.testing.assert_close(result, expected)
        assert before == wanted
    return log


EFFECTS = [Counts, Logs, Caches, CountsOnClass, SetsAttribute, Warns, Prints, CountsOne, WritesTensor, CountsMade]


@pytest.mark.parametrize("kind", EFFECTS)
@pytest.mark.filterwarnings("always:seen")
def test_what_methods_do_is_done_in_each_call(kind):
    for grad in (False, True):
        log = compare(kind, program=trained if grad else program, grad=grad)
        reasons = [b.reason for b in log.breaks]
        assert all(kind.__name__ in r for r in reasons) and reasons and not log.fallbacks


def test_what_methods_do_in_backward_is_done_in_each_call():
    log = compare(CountsBackward, program=trained, grad=True)
    assert "in backward, __torch_dispatch__ of CountsBackward, for cos.default, changes" in str(log.fallbacks)
    log = compare(CountsBackward, program=program)
    assert not log.breaks and not log.fallbacks and len(log.captures) == 1


def test_a_method_that_only_computes():
    for grad in (False, True):
        log = compare(Base, program=trained if grad else program, grad=grad)
        assert not log.breaks and not log.fallbacks and len(log.captures) == 1


def attribute(k):
    SETTINGS.by = (1.0, 1.0, 3.0, 5.0)[k]


def flag(k):
    global FLAG
    FLAG = k > 1


def scales(k):
    if k > 1:
        SCALES[0] = float(k)
        SCALES.append(2.0)


@pytest.mark.parametrize(
    ("kind", "change", "captures"), [(ReadsAttribute, attribute, 3), (ReadsGlobal, flag, 2), (ReadsList, scales, 3)]
)
def test_what_methods_read_is_guarded(kind, change, captures):
    """Numbers are, too: no symbol leads to where a method runs."""
    for grad in (False, True):
        log = compare(kind, change, trained if grad else program, grad)
        assert not log.breaks and not log.fallbacks and len(log.captures) == captures


def test_a_tensor_from_around_is_no_argument():
    assert "cannot be followed: it reads a tensor that it is not given" in str(compare(ReadsTensor).breaks)


def writes_attribute(t, x):
    y = t + x
    SETTINGS.by = SETTINGS.by + 1.0
    return (y * 2).a


def writes_global(t, x):
    global FLAG
    y = t + x
    FLAG = not FLAG
    return (y + x).a


def writes_list(t, x):
    y = t + x
    SCALES.append(3.0)
    return (y + x).a


@pytest.mark.parametrize(
    ("kind", "program", "name"),
    [
        (ReadsAttribute, writes_attribute, "by"),
        (ReadsGlobal, writes_global, "FLAG"),
        (ReadsList, writes_list, "SCALES"),
    ],
)
def test_what_the_program_changes_before_a_method_reads_it(kind, program, name):
    log = compare(kind, program=program)
    assert f"reads {name}, " in log.breaks[0].reason and log.captures
    compare(Base, program=program)


class Asked(Base):
    """Its `__torch_function__` counts, of what it is told to count."""

    counted: tuple = ()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in Asked.counted:
            SEEN.append(getattr(func, "__name__", "?"))
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize(
    ("counted", "breaks"),
    [((), False), ((torch.sin,), False), ((Tensor.sin,), True), ((Tensor.shape.__get__,), True)],
)
def test_functions_of_torch_that_are_counted(counted, breaks, monkeypatch):
    monkeypatch.setattr(Asked, "counted", counted)

    def program(t, x):
        return (t.sin() + x).a * t.shape[0]

    log = compare(Asked, program=program)
    assert bool(log.breaks) == breaks and not log.fallbacks, (log.breaks, log.fallbacks)


class Doubles(Base):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        made = super().__torch_function__(func, types, args, kwargs or {})
        return made + made if func is Tensor.sin else made


def test_functions_that_are_switched_off():
    def program(t, x):
        with torch._C.DisableTorchFunctionSubclass():
            y = t.sin()
        return y.a + t.sin().a + x

    log = compare(Doubles, program=program)
    assert "__torch_function__ of Doubles is switched off" in log.breaks[0].reason
    compare(Base, program=program)


class Raises(Base):
    @classmethod
    def act(cls, func):
        if func is torch.ops.aten.cos.default:
            raise ValueError(f"no {func}")


def test_what_methods_raise():
    def program(t, x):
        try:
            t = t.cos()
        except ValueError as error:
            SEEN.append(str(error))
        return (t + x).a

    assert not compare(Raises, program=program).fallbacks


class Keeps(Base):
    """Counts in what the instance holds."""

    def __init__(self, a):
        super().__init__(a)
        self.kept = [0]

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args[0].kept[0] += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_what_an_instance_holds_is_changed():
    def program(t, x):
        return (t + x).a + t.kept[0]

    log = compare(Keeps, program=program)
    assert log.breaks or log.fallbacks


class Outer(Base):
    """Holds another wrapper tensor."""


def test_wrappers_in_wrappers():
    def nested(kind):
        return lambda a: Outer(kind(a))

    def program(t, x):
        return (t * 2).a.a + x

    log = compare(nested(Counts), program=program)
    assert "of Counts, for mul.Tensor, changes" in log.breaks[0].reason
    log = compare(nested(ReadsAttribute), attribute, program)
    assert not log.breaks and len(log.captures) == 3


def test_the_whole_road():
    function = intarsia.compile(program)
    for kind, change in ((Counts, lambda k: None), (ReadsAttribute, attribute), (ReadsGlobal, flag)):
        for (got, *before), (want, *wanted) in zip(outcome(function, kind, change), outcome(program, kind, change)):
            torch.testing.assert_close(got, want)
            assert before == wanted


class Noted(Base):
    """Its constructor writes down in a list that it is given."""

    @staticmethod
    def __new__(cls, a, notes=None):
        return Base.__new__(cls, a)

    def __init__(self, a, notes=None):
        self.a = a
        if notes is not None:
            notes.append("made")


class Counter:
    """Counts what it is asked."""

    def __init__(self):
        self.n, self.items = 0, []

    def __call__(self):
        self.n += 1
        self.items.append(self.n)


class Asks(Base):
    """Calls a function of the class, if there is one, at each operator."""

    asked: list = [None]

    @classmethod
    def act(cls, func):
        if cls.asked[0] is not None:
            cls.asked[0]()


def constructor_appends(x):
    notes = []
    y = Noted(x, notes).a * 2
    return y, notes


def constructor_changes_a_dict(x):
    notes = {"k": []}
    y = Noted(x, notes["k"]).a * 2
    notes["n"] = len(notes["k"])
    return y, notes


def constructor_is_given_an_unused_list(x):
    notes = ["none"]
    y = Noted(x).a * 2
    return y, notes


def dispatch_counts(x):
    counter = Counter()
    Asks.asked[0] = counter
    try:
        y = (Asks(x) * 2).a
    finally:
        Asks.asked[0] = None
    return y, counter.n, counter.items


def dispatch_changes_a_cell(x):
    n, seen = 0, []

    def ask():
        nonlocal n
        n += 1
        seen.append(n)

    Asks.asked[0] = ask
    try:
        y = (Asks(x) * 2).a
    finally:
        Asks.asked[0] = None
    return y, n, seen


@pytest.mark.parametrize(
    "function",
    [
        constructor_appends,
        constructor_changes_a_dict,
        constructor_is_given_an_unused_list,
        dispatch_counts,
        dispatch_changes_a_cell,
    ],
    ids=lambda f: f.__name__,
)
def test_what_capture_made_is_changed_by_methods_once_in_each_call(function):
    fast, x = intarsia.compile(function), torch.arange(3.0)
    for number in range(3):
        mine, theirs = fast(x + number), function(x + number)
        assert repr(mine) == repr(theirs)
