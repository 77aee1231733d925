"""Programs whose Python objects live across graph breaks and change between calls: special methods, containers, closures, generators, `finally`."""

from __future__ import annotations

from . import branches
from .bodies import Tables
from .bodies import program as grown

SETUP = """\
import collections, functools, itertools, operator
class Num:
    def __init__(self, n):
        self.n = n
    def __add__(self, other):
        return Num(self.n + getattr(other, 'n', other))
    def __eq__(self, other):
        return self.n == getattr(other, 'n', other)
    def __hash__(self):
        return hash(self.n)
    def __lt__(self, other):
        return self.n < other.n
    def __bool__(self):
        return self.n > 1
    def __len__(self):
        return 2
    def __call__(self, t):
        return t * self.n
    def __getitem__(self, k):
        return self.n + k
    def __contains__(self, k):
        return k == self.n
class Sub(Num):
    pass
class Bag(list):
    pass
class Table(dict):
    def __missing__(self, key):
        return 7
u, w = Num(1), Sub(2)
l, d, q, z = [1, 2, 3], {'a': 1, 'b': 2}, collections.deque([1, 2]), {1, 2}
bag, table = Bag([1, 2]), Table(a=1)
od, dd = collections.OrderedDict(a=1, b=2), collections.defaultdict(int)
def count(n=3):
    try:
        for k in range(n):
            yield k
    finally:
        out.append('closed')
def counter():
    n = 0
    def bump(k=1):
        nonlocal n
        n += k
        return n
    return bump
bump = counter()
def kept(t, seen=[], shift=torch.ones(())):
    seen.append(len(seen))
    return t + shift + len(seen)
@functools.lru_cache(4)
def cached(k):
    return k * 2
class Guarded:
    def __enter__(self):
        out.append('in')
        return self
    def __exit__(self, kind, error, trace):
        out.append(kind and kind.__name__)
        return s.flag
"""
VALUES = [
    "{t} + 1", "{t} * {t}", "{t}.relu()", "{t}.sum()", "{t}.clone()", "{t}", "{t} * {n}", "{t} + {n}", "u({t})", "w({t})", "kept({t})", "{F}({t})", "look({t})", "{t} * (u + {k}).n", "sum(v * {t} for v in l)", "functools.reduce(operator.add, [{t}] * 2, {t})",
    "[v * {t} for v in l if v > 1][-1:] and {t} + 1", "{t} * dict(zip('ab', l)).get('a', 2)", "max([{t}, {t}], key=lambda t: t.dim())", "(lambda v: v * {n})({t})", "{t} * next(iter(z), 1)", "{t} * table['zz']", "{t} + od.get('a', 3)", "{t} * bump()", "{t} + sum(q)", "next((v for v in [{t}, x] if v.dim()), {t})",
]  # fmt: skip
NUMBERS = [
    "{k}", "{t}.shape[0]", "u.n", "(u + w).n", "len(u)", "u[{k}]", "int({k} in u)", "int(bool(u))", "int(u == w)", "len({{u, w}})", "sorted([u, w])[0].n", "max(u, w).n", "len(l)", "l[{k} % len(l)] if l else 0", "sum(l)", "d.get('{s}', 5)", "len(d)", "next(iter(d.values()), 0)", "q[0] if q else 9", "len(z)", "table['{s}']", "dd['{s}']", "bump()", "bump({k})", "cached({k})",
    "sum(count({k}))", "next(count({k}), 4)", "list(count())[-1]", "len(bag)", "sum(bag)", "[*od].index('a') if 'a' in od else 6", "s.n", "sum(k for k in count(2))", "next(itertools.islice(itertools.count({k}), 2, 3))", "len(out)", "min(l, default=8)", "d.setdefault('{s}', {k})", "sum(map(cached, l))", "sum(v for _, v in sorted(d.items()))", "hash(u) % 7", "operator.itemgetter(0)([{n}])",
]  # fmt: skip
STATEMENTS = [
    "print('here')", "print({n})", "look({t})", "out.append({n})", "out.append({t})", "l.append({k})", "l.insert(0, {k})", "l.pop() if l else None", "l[:1] = [{k}, {k}]", "l.sort()", "l.reverse()", "d['{s}'] = {k}", "d.pop('{s}', None)", "d = {{**d, '{s}': {k}}} if False else d", "d.update({s}={n})", "d['{s}'] = d.pop('{s}', {k})", "od.move_to_end('a') if 'a' in od else None", "od['{s}'] = {k}", "od.popitem(False) if od else None",
    "q.append({n})", "q.rotate(1)", "q.popleft() if q else None", "z.add({k})", "z.discard({k})", "z ^= {{{k}}} if False else set()", "bag.append({k})", "table['{s}'] = {k}", "dd['{s}'] += 1", "u.n += 1", "u.extra = {t}", "s.n += 1", "w = w if False else w\nw.n = {n}", "out.append([*d.items()])", "out.append([*z])", "out.append([*l])", "out.append([*od])", "out.append(bump())", "out.append(tuple(cached.cache_parameters()))",
    "g = count()\nout.append(next(g))\nlook({t})\nout.append(list(g))", "g = count({k})\nprint('g')\nfor k in g:\n    out.append(k)\n    print(k)\n    if k == 1:\n        break\ng.close()", "g = (v * {t} for v in l)\n{t} = look({t})\n{t} = sum(g, {t})", "it = iter(l)\nout.append(next(it, 0))\nlook({t})\nout.append([*it])", "it = iter(d.items())\nout.append(next(it, 0))\nlook({t})\nout.append([*it])", "it = zip(l, itertools.count())\nnext(it, 0)\nprint('z')\nout.append([*it])", "it = map(cached, [1, 2, 3])\nnext(it)\nlook({t})\nout.append([*it])", "it = iter(z)\nnext(it, 0)\nprint('s')\nout.append([*it])",
    "h = []\nfor v in [1, 2, 3]:\n    h.append({t} * v)\n    print(len(h))\n{t} = sum(h)", "h = {{}}\nfor v in 'ab':\n    h[v] = {n}\n    look({t})\nout.append(h)", "h = []\nadd = h.append\nadd({k})\nlook({t})\nadd({n})\nout.append(h)", "m = 0\ndef inner(t):\n    nonlocal m\n    m += 1\n    look(t)\n    m += 10\n    return t * m\n{t} = inner({t})\nout.append(m)", "fs = [lambda t, v=v: t * v for v in (1, 2)]\nlook({t})\n{t} = fs[{k} % 2]({t})", "fs = [lambda t: t * v for v in (1, 2)]\nlook({t})\n{t} = fs[0]({t})",
    "try:\n    print('t')\n    if {c}:\n        raise ValueError('bad')\nexcept ValueError as e:\n    look({t})\n    out.append(str(e))\nfinally:\n    look({t})\n    out.append('f')", "for v in range(3):\n    try:\n        if v == 1:\n            continue\n        look({t})\n    finally:\n        print('f', v)", "with Guarded():\n    look({t})\n    if {c}:\n        raise KeyError('bad')\n    out.append({n})", "try:\n    try:\n        look({t})\n        raise KeyError('bad')\n    finally:\n        print('x')\n        {t} = {t} + 1\nexcept KeyError as e:\n    out.append(type(e.__context__).__name__)",
    "p1 = functools.partial(kept, {t})\np1.tag = {k}\nlook({t})\nout.append(p1.tag)\n{t} = p1()", "c = functools.lru_cache(2)(lambda v: v + 1)\nc(1)\nlook({t})\nout.append([c(1), c(2), c.cache_info().currsize])", "class C:\n    n = {k}\n    def m(self):\n        return self.n\nb = C()\nb.n += 1\nlook({t})\nout.append(b.m() + C.n)", "a, *b = l or [0]\nlook({t})\nb.append(a)\nout.append(b)", "e = enumerate(l)\nnext(e, 0)\nlook({t})\nl.append(9)\nout.append([*e])", "r = reversed(l)\nnext(r, 0)\nprint('r')\nout.append([*r])", "k1 = [{t}]\nk2 = k1 * 2\nlook({t})\nk2[0].add_(1)\nout.append(k1[0] is k2[1])", "o1 = object()\nlook({t})\nout.append(o1 in [o1])", "v = [[]] * 2\nlook({t})\nv[0].append({k})\nout.append(v)", "sl = slice({k}, None)\nlook({t})\nout.append(l[sl])",
]  # fmt: skip
CONDITIONS = ["u", "u == w", "u < w", "{k} in u", "l", "'a' in d", "{n} > 1", "{t}.sum() > {f}", "s.flag", "len(out) % 2", "q", "z > {{1}}", "[*od] == ['a', 'b']", "table", "isinstance(w, Num)", "hasattr(u, 'extra')", "bump() > 2", "any(v > 2 for v in l)", "callable(u)", "l == [1, 2, 3]"]  # fmt: skip
CHANGES = [
    *branches.CHANGES, "Num.__add__ = lambda self, o: Num(self.n * 5)", "Num.__eq__ = lambda self, o: True", "Num.__bool__ = lambda self: False", "Num.__len__ = lambda self: 5", "Num.__call__ = lambda self, t: t - 1", "Num.__getitem__ = lambda self, k: 11", "Num.__contains__ = lambda self, k: True", "Num.__lt__ = lambda self, o: self.n > o.n", "Num.__hash__ = lambda self: 3", "Sub.__call__ = lambda self, t: t + 3", "Sub.__bool__ = lambda self: False", "Sub.__add__ = lambda self, o: Num(-1)", "del Num.__bool__", "del Num.__len__",
    "u = Num(4)", "u = Sub(1)", "w.n = 5", "u.n = 1.0", "u.n = True", "l.append(4)", "l[0] = 5", "l = [3, 2]", "l = [1.0, 2, 3]", "l.clear()", "d = dict(reversed(d.items()))", "d['b'] = d.pop('b', 3)", "d = {}", "d['a'] = 1.0", "od.move_to_end('a', False) if 'a' in od else 0", "od = collections.OrderedDict(b=1, a=2)", "q.appendleft(6)", "q = collections.deque([3], maxlen=2)", "z = {2, 1}", "z = {1.0, 2}", "z.add(3)", "bag.insert(0, 3)", "bag.extra = 1", "table['a'] = 2", "Table.__missing__ = lambda self, key: 8", "dd.default_factory = lambda: 3",
    "bump = counter()", "bump(4)", "kept.__defaults__ = ([0], torch.zeros(()))", "kept.__defaults__[0].append(1)", "kept.__defaults__[1].add_(1)", "cached.cache_clear()", "s.flag = not s.flag", "count = lambda n=3: iter([5, 6])", "counter.__code__ = counter.__code__", "Guarded.__exit__ = lambda self, *a: True",
]  # fmt: skip
TABLES = Tables(CONDITIONS, VALUES, NUMBERS, STATEMENTS, SETUP, ("if", "else", "early", "for", "for", "try", "try", "with"), ("torch.no_grad()", "Guarded()"), CHANGES, 0.1)  # fmt: skip


def program(seed: int) -> str:
    """The program of this seed."""
    return grown(TABLES, seed)
