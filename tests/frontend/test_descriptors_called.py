"""Properties, slots and their like asked by `__get__`, `__set__` and `__delete__`: the program's own functions run as often as in eager, on what is there then."""

import pytest
import torch
from harness import compiled, number_backend, same

from intarsia import disable

FACTOR, LOG = 1, []


@disable
def broken(value):
    """The graph ends here."""
    return value


class Base:
    @property
    def size(self):
        return FACTOR


class Plain(Base):
    __slots__ = ("slot",)

    def __init__(self, v=1):
        self.v = v
        self.slot = v

    @property
    def size(self):
        return super().size + 10 * self.v

    @property
    def k(self):
        return self.v * FACTOR

    @k.setter
    def k(self, value):
        LOG.append(value)
        self.v = value

    @k.deleter
    def k(self):
        LOG.append("deleted")
        self.v = 0


class Hidden(Plain):
    slot = 5


class classproperty(property):
    def __get__(self, obj, cls=None):
        LOG.append(cls.__name__)
        return super().__get__(cls)

    def __set__(self, obj, value):
        LOG.append(("set", value))
        type(obj).n = value

    def __delete__(self, obj):
        LOG.append("gone")


class counted(staticmethod):
    def __get__(self, obj, cls=None):
        LOG.append("static")
        return super().__get__(obj, cls)


class Owner:
    n = 1

    @classproperty
    def twice(cls):
        return cls.n * 2

    @counted
    def add(v):
        return v + FACTOR


class Derived(Owner):
    n = 5

    def both(self):
        return super().twice, super().add(1)


class Meta(type):
    @classproperty
    def where(cls):
        return cls.__name__


class Made(metaclass=Meta):
    pass


def by_property(x, obj, v):
    Plain.k.__set__(obj, v)
    found = Plain.k.__get__(obj, Plain), Plain.__dict__["k"].__get__(obj), Plain.k.__get__(None, Plain) is Plain.k
    Plain.k.__delete__(obj)
    return x + v, found, obj.v


def by_given_property(x, obj, v):
    obj.v = v
    return x, type(obj).size.__get__(obj), Plain.size.__get__(broken(obj)), broken(type(obj).k.__get__)(obj)


def by_slot(x, obj, v):
    Plain.slot.__set__(obj, v)
    found = Plain.slot.__get__(obj), Plain.slot.__get__(None, Plain) is Plain.slot, Plain.slot.__get__(broken(obj))
    Plain.slot.__delete__(obj)
    try:
        Plain.slot.__get__(obj)
    except AttributeError as error:
        return x + v, found, str(error)


def refused(x, obj, v):
    try:
        Plain.slot.__get__(v)
    except TypeError as error:
        return x, str(error)


def of_own_classes(x, obj, v):
    holder = Owner()
    holder.twice = v
    del holder.twice
    return x, Owner.twice, Derived.twice, holder.twice, Owner.add(1), holder.add(2), Derived().both(), Made.where


FUNCTIONS = [by_property, by_given_property, by_slot, refused, of_own_classes]


@pytest.mark.parametrize("kind", [Plain, Hidden])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_as_in_eager(function, kind, monkeypatch):
    accounts, x = [], torch.ones(2)
    for backend in (None, number_backend):
        target = function if backend is None else compiled(function, backend)[0]
        monkeypatch.setattr(Owner, "n", 1)
        LOG.clear()
        seen = []
        for factor, v in ((1, 1), (1, 2), (3, 2), (4, 7)):
            monkeypatch.setitem(globals(), "FACTOR", factor)
            obj = kind(v)
            if kind is Hidden and function is by_given_property and factor == 4:
                monkeypatch.setattr(Base, "size", property(lambda self: 1000))
            seen.append((target(x, obj, v), dict(vars(obj)), list(LOG)))
        monkeypatch.undo()
        accounts.append(seen)
    assert same(*accounts)
