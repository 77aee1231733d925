"""Programs that let go of objects while weak references and weak containers of the caller's, or finalizers, watch."""

from __future__ import annotations

from dataclasses import replace

from . import held
from .bodies import program as grown

SETUP = f"""{held.SETUP}
import weakref
class Thing:
    pass
things, named, holder, last = [Thing(), Thing(), Thing()], {{'a': Thing(), 'b': Thing()}}, Thing(), Thing()
holder.held, last.held = Thing(), None
weak = weakref.WeakSet([*things, *named.values(), holder.held])
byname, bykey = weakref.WeakValueDictionary(named, h=holder.held), weakref.WeakKeyDictionary(dict.fromkeys(things, 1))
refs = [weakref.ref(things[0]), weakref.ref(holder.held)]
class Last:
    def __del__(self):
        out.append('last')
"""
NUMBERS = [
    "len(weak)", "len(byname)", "len(bykey)", "int(refs[0]() is None)", "int(refs[1]() is None)", "int('a' in byname)", "sum(1 for _ in weak)", "len([*byname])", "int(byname.get('h') is None)",
]  # fmt: skip
STATEMENTS = [
    "things.pop() if things else None", "del things[:1]", "things.clear()", "things.append(Thing())\nweak.add(things[-1])", "named.clear()", "named.pop('{s}', None)", "named['{s}'] = Thing()", "holder.held = None", "holder.held = {t}", "holder.held = Thing()\nweak.add(holder.held)", "last.held = None", "things[:1] = []\nlook({t})",
    "out.append(len(weak))", "out.append([len(byname), len(bykey)])", "out.append([r() is None for r in refs])", "out.append(sorted(byname))",
    "v = {t} * 2\nr = weakref.ref(v)\nlook({t})\nout.append(r() is v)\ndel v\nout.append(r() is None)", "v = things[-1] if things else None\nthings.clear()\nout.append(len(weak))\nv = None\nout.append(len(weak))", "v = Thing()\nv.held = {t} + 1\nr = weakref.ref(v)\nprint('-')\n{t} = v.held\nv = None\nout.append(r() is None)", "v = holder.held\nholder.held = None\nlook({t})\nout.append(len(weak))\ndel v\nout.append(len(weak))",
]  # fmt: skip
CHANGES = [
    *held.CHANGES, "last.held = Last()", "last.held = [Last()]", "things.append(Thing()); weak.add(things[-1])", "holder.held = Thing(); weak.add(holder.held)", "named['a'] = Thing(); byname['a'] = named['a']", "refs[0] = weakref.ref(named.setdefault('a', Thing()))",
]  # fmt: skip
TABLES = replace(
    held.TABLES,
    numbers=[*held.TABLES.numbers[::4], *NUMBERS],
    statements=[*held.TABLES.statements[::6], *STATEMENTS],
    setup=SETUP,
    changes=CHANGES,
)


def program(seed: int) -> str:
    """The program of this seed."""
    return grown(TABLES, seed)
