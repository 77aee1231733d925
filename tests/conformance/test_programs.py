"""Small programs in the manner of libraries: registries, proxies, caches, hooks, configs, records, callbacks."""

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import logging
import operator
import types
import typing
import weakref

import einops
import numpy as np
import torch
import torch.nn.functional as F
from behaviour import LOG, Suite, t
from torch import nn

case = Suite()
logger = logging.getLogger("conformance.programs")

# ---- configs and records ----


@dataclasses.dataclass(frozen=True)
class Config:
    width: int = 2
    act: str = "relu"
    scale: float = 0.5
    tags: tuple = ()

    @property
    def double(self):
        return self.width * 2

    def replace(self, **kw):
        return dataclasses.replace(self, **kw)


@dataclasses.dataclass
class Output(collections.OrderedDict):
    loss: typing.Any = None
    logits: typing.Any = None
    extra: typing.Any = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value

    def __getitem__(self, k):
        if isinstance(k, str):
            return dict(self.items())[k]
        return self.to_tuple()[k]

    def to_tuple(self):
        return tuple(self[k] for k in self.keys())  # noqa: SIM118


CONFIGS = tuple(
    (lambda c: lambda: (t(), c))(c) for c in (Config(), Config(3, "tanh"), Config(scale=2.0, tags=("a", "b")))
)


@case(*CONFIGS)
def config_driven(x, cfg):
    act = {"relu": F.relu, "tanh": torch.tanh}[cfg.act]
    y = act(x * cfg.double) * cfg.scale
    for i, tag in enumerate(cfg.tags):
        y = y + i if tag == "a" else y - i
    return y, cfg.replace(width=cfg.width + 1), repr(cfg)


@case(*CONFIGS)
def model_output(x, cfg):
    out = Output(logits=x * cfg.width, loss=x.sum() if cfg.tags else None)
    return out, out[0], out["logits"], list(out), len(out), out.to_tuple()


@case(lambda: (t(), Output(logits=t(2.0))), lambda: (t(), Output(loss=t(1.0), logits=t(3.0))), graphs="breaks")
def model_output_taken(x, out):
    y = x * out.logits.sum() + (0 if out.loss is None else out.loss)
    out.extra = y
    return y, out[0], "loss" in out, {k: v * 2 for k, v in out.items()}


@case(lambda: ([1, 2], t()), lambda: ([3], t()))
def nested_defaults(sizes, x):
    @functools.cache
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    table = collections.defaultdict(list)
    for s in sizes:
        table[s % 2].append(x * fib(s + 5))
    return dict(table), sorted(table)


# ---- registries and decorators ----

REGISTRY = {}


def register(name=None, **options):
    def wrap(fn):
        REGISTRY[name or fn.__name__] = fn, options
        return fn

    return wrap


@register("twice", times=2)
def _twice(x, times):
    return x * times


@register()
def shift(x, by=1):
    return x + by


def traced(label):
    def deco(fn):
        @functools.wraps(fn)
        def inner(*args, **kwargs):
            LOG.append((label, "in", len(args), sorted(kwargs)))
            try:
                return fn(*args, **kwargs)
            finally:
                LOG.append((label, "out"))

        inner.calls = 0
        return inner

    return deco


@traced("outer")
@traced("inner")
def traced_fn(x, *, k=1):
    if k > 2:
        raise ValueError(f"k={k}")
    return x * k


@case(lambda: (t(), ["twice", "shift"]), lambda: (t(), ["shift"]), lambda: (t(), ["nothing"]))
def by_registry(x, names):
    for name in names:
        fn, options = REGISTRY[name]
        x = fn(x, **options)
    return x


@case(lambda: (t(), 1), lambda: (t(), 2), lambda: (t(), 3))
def decorated_twice(x, k):
    return traced_fn(x, k=k), traced_fn.__name__, traced_fn.calls


@case(lambda: (t(), "v1"), lambda: (t(), "v2"), graphs="breaks")
def registers_while_running(x, name):
    @register(name)
    def made(y):
        return y * len(REGISTRY)

    try:
        return REGISTRY[name][0](x), made.__name__, sorted(REGISTRY)
    finally:
        del REGISTRY[name]


# ---- proxies, properties, dynamic names ----


class Proxy:
    def __init__(self, target):
        object.__setattr__(self, "_target", target)

    def __getattr__(self, name):
        if name.startswith("no_"):
            raise AttributeError(f"refused {name}")
        LOG.append(name)
        return getattr(self._target, name)

    def __setattr__(self, name, value):
        LOG.append(("set", name))
        setattr(self._target, name, value)


class Counter:
    def __init__(self):
        self._n = 0
        self.last = None

    @property
    def n(self):
        return self._n

    @n.setter
    def n(self, value):
        LOG.append(("n", self._n, value))
        self._n = value

    @n.deleter
    def n(self):
        self._n = -1

    @functools.cached_property
    def expensive(self):
        LOG.append("computed")
        return self._n * 10


@case(lambda: (t(), Proxy(Counter())))
def through_a_proxy(x, proxy):
    proxy.n = proxy.n + 3
    proxy.last = x * proxy.n
    missing = hasattr(proxy, "no_such"), getattr(proxy, "no_other", "default")
    return proxy.last, missing, proxy.expensive, proxy.expensive


@case(lambda: (t(), Counter()))
def property_setters(x, c):
    for i in range(3):
        c.n += i
    y = x * c.n
    del c.n
    return y, c.n


@case(lambda: (t(), types.SimpleNamespace(a=1), ("a", "b")), lambda: (t(), types.SimpleNamespace(b=2), ("b", "c")))
def dynamic_names(x, space, names):
    for i, name in enumerate(names):
        setattr(space, f"{name}_{i}", x * getattr(space, name, 10))
    return {k: v for k, v in vars(space).items() if "_" in k}


class Cached:
    def __init__(self):
        self.cache = {}
        self.hits = 0

    def get(self, x, n):
        key = (n, x.shape[0], str(x.dtype))
        if key in self.cache:
            self.hits += 1
            return self.cache[key]
        mask = torch.ones(n, x.shape[0]).tril()
        self.cache[key] = mask
        return mask


CACHED = [Cached()]


def _fresh_cache():
    CACHED[0] = Cached()
    return (t(), 2)


@case(_fresh_cache, lambda: (t(), 2), lambda: (t(), 3), lambda: (t(1.0), 2))
def mask_cache(x, n):
    cache = CACHED[0]
    return (cache.get(x, n) * x).sum(1), cache.hits, len(cache.cache)


# ---- generators, contexts, closures ----


def windows(x, size):
    try:
        for i in range(0, x.shape[0] - size + 1):
            got = yield x[i : i + size]
            if got:
                LOG.append(got)
    finally:
        LOG.append("closed")


@case(lambda: (t(1.0, 2.0, 3.0, 4.0), 2), lambda: (t(1.0, 2.0, 3.0), 3), lambda: (t(1.0), 2))
def over_windows(x, size):
    return [w.sum() for w in windows(x, size)]


@case(lambda: (t(1.0, 2.0, 3.0, 4.0), 2), lambda: (t(1.0, 2.0, 3.0), 3), lambda: (t(1.0), 2))
def sent_to_windows(x, size):
    gen = windows(x, size)
    first = next(gen, None)
    try:
        second = gen.send("hello")
    except (StopIteration, TypeError) as e:
        second = type(e).__name__
    gen.close()
    return first, second


@contextlib.contextmanager
def scaled(holder, by):
    old = holder["scale"]
    holder["scale"] = old * by
    LOG.append(("enter", by))
    try:
        yield holder
    except ZeroDivisionError:
        LOG.append("swallowed")
    finally:
        holder["scale"] = old
        LOG.append(("exit", by))


@case(lambda: (t(), {"scale": 2}, 1), lambda: (t(), {"scale": 3}, 0))
def own_context(x, holder, d):
    y = x
    with scaled(holder, 3) as h, scaled(h, 2):
        y = x * h["scale"]
        y = y + 1 // d
    return y, holder


@case(lambda: (t(), {"scale": 2}, 1), lambda: (t(), {"scale": 3}, 0), graphs="breaks")
def own_context_over_a_break(x, holder, d):
    y = x
    with scaled(holder, 3) as h:
        print("inside", h["scale"])
        y = y * h["scale"]
        y = y + 1 // d
    return y, holder


@case(lambda: (t(), 2), lambda: (t(), 0))
def exit_stack(x, n):
    with contextlib.ExitStack() as stack:
        for i in range(n):
            stack.callback(LOG.append, i)
        stack.enter_context(contextlib.suppress(KeyError))
        {}["missing"]
    return x + n


@case(lambda: (t(), 3), lambda: (t(), 4))
def nested_closures(x, n):
    total = 0
    fns = []

    def outer(k):
        nonlocal total
        total += k

        def inner(y, *, bias=k):
            nonlocal total
            total += 1
            return y * k + bias + total

        return inner

    for k in range(n):
        fns.append(outer(k))
    return [f(x) for f in reversed(fns)], total


@case(graphs="breaks")
def try_finally_with_breaks(x):
    out = []
    for i in range(3):
        try:
            print(i)
            if i == 1:
                continue
            if i == 2:
                break
            out.append(x * i)
        finally:
            out.append(i)
            print("finally", i)
    else:
        out.append("else")
    return out


@case(lambda: (t(), 0), lambda: (t(), 1), lambda: (t(), 2), graphs="breaks")
def early_exceptions(x, k):
    def check(y):
        print("check")
        if k == 1:
            raise KeyError("one")
        if k == 2:
            raise RuntimeError("two") from ValueError("cause")
        return y + 1

    try:
        return check(x * 2)
    except KeyError as e:
        print("caught", e)
        return x, e.args


# ---- NumPy, text, logging ----


@case(graphs="breaks")
def numpy_in_the_middle(x):
    y = x * 2
    a = y.numpy()
    b = np.clip(a, -1, 1) + np.float32(1)
    z = torch.from_numpy(b) * 3
    return z, a.shape, float(b.sum())


@case(lambda: (t(), np.array([1.0, 2.0, 3.0], dtype=np.float32)), graphs="breaks")
def numpy_argument(x, a):
    a[0] = 7
    return x + torch.as_tensor(a), a.mean()


@case(graphs="breaks")
def logs_values(x):
    y = (x * 2).sum()
    logger.debug("sum %s of %d", y, x.shape[0])
    logger.info(f"{y.item():.2f}")
    return y * x


@case()
def logs_shapes(x):
    logger.info("shape %s dtype %s", tuple(x.shape), x.dtype)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("never")
    return f"{tuple(x.shape)} {x.dim()}-d {x.dtype} {list(x.shape)!r} {x.shape}", x * 2


@case(lambda: (torch.arange(24.0).reshape(2, 3, 4),), lambda: (torch.arange(12.0).reshape(1, 3, 4),))
def with_einops(x):
    y = einops.rearrange(x, "b (h w) c -> b c h w", h=3)
    z = einops.reduce(y, "b c h w -> b c", "mean")
    return einops.repeat(z, "b c -> b c r", r=2), einops.rearrange(x, "b n c -> (b n) c")


# ---- modules ----


class Block(nn.Module):
    def __init__(self, n, hooks=False):
        super().__init__()
        torch.manual_seed(n)
        self.parts = nn.ModuleDict({"a": nn.Linear(n, n), "b": nn.Identity(), "c": nn.Linear(n, n, bias=False)})
        self.steps = nn.ModuleList([nn.LayerNorm(n), nn.ReLU()])
        self.register_buffer("seen", torch.zeros(()))
        self.count = 0
        self.history = []
        if hooks:
            self.parts["a"].register_forward_hook(lambda m, a, out: out * 2)
            self.register_forward_pre_hook(lambda m, a: (a[0] + 1,))

    def forward(self, x):
        self.count += 1
        self.seen += 1
        for name, part in self.parts.items():
            x = part(x)
            if name in ("a", "c"):
                self.history.append(name)
        for step in self.steps[::-1]:
            x = step(x)
        return x, self.count, len(self.history)


@case(lambda: (Block(3), t(1.0, 2.0, 3.0)))
def module_state(m, x):
    return m(x), m(x * 2), m.seen.clone(), m.history


HOOKED = Block(3, hooks=True)


@case()
def module_hooks(x):
    return HOOKED(x)[0], HOOKED.training, [n for n, _ in HOOKED.named_children()]


@case(lambda: (Block(3), t(1.0, 2.0, 3.0)), graphs="breaks")
def hook_added_while_running(m, x):
    seen = []
    handle = m.parts["b"].register_forward_hook(lambda mod, a, out: seen.append(out.shape))
    y = m(x)[0]
    handle.remove()
    return y, m(x)[0], seen


class Visitor:
    def visit(self, m, depth=0):
        method = getattr(self, f"visit_{type(m).__name__}", self.generic)
        return method(m, depth)

    def visit_Linear(self, m, depth):
        return ("linear", m.in_features, depth)

    def generic(self, m, depth):
        return [type(m).__name__, *(self.visit(c, depth + 1) for c in m.children())]


@case(lambda: (Block(2), t(1.0, 2.0)))
def visits_modules(m, x):
    return Visitor().visit(m), m(x)[0]


# ---- callbacks, partials, recursion ----


def tree_map(fn, tree):
    if isinstance(tree, dict):
        return {k: tree_map(fn, v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(tree_map(fn, v) for v in tree)
    return fn(tree) if isinstance(tree, torch.Tensor) else tree


@case(lambda: ({"a": [t(), (t(2.0), 3)], "b": "s"},), lambda: ([t(), {"z": None}],))
def recursion_over_trees(tree):
    return tree_map(functools.partial(torch.mul, other=2), tree), tree_map(torch.Tensor.neg, tree)


@case(lambda: (t(), [1, 5, 3]), lambda: (t(), [2, 2]), graphs="breaks")
def callbacks_of_c_code(x, keys):
    weights = {k: x * k for k in keys}
    order = sorted(weights, key=lambda k: weights[k].shape[0] * -k)
    total = functools.reduce(operator.add, map(weights.__getitem__, order))
    best = max(order, key=lambda k: float(weights[k].sum()))
    return total, order, best


class Event:
    def __init__(self):
        self.listeners = []

    def on(self, fn):
        self.listeners.append(fn)
        return fn

    def __call__(self, *a):
        return [fn(*a) for fn in self.listeners]


@case()
def event_listeners(x):
    event = Event()
    event.on(lambda v: v * 2)
    event.on(functools.partial(torch.add, 1))
    event.on(x.add)
    return event(x)


class Node:
    def __init__(self, value, parent=None):
        self.value = value
        self.children = []
        self.parent = weakref.ref(parent) if parent is not None else None
        if parent is not None:
            parent.children.append(self)

    def __iter__(self):
        yield self
        for child in self.children:
            yield from child

    def total(self):
        return sum((c.total() for c in self.children), start=self.value)


def _tree():
    root = Node(t(1.0))
    a = Node(t(2.0), root)
    Node(t(3.0), a)
    Node(t(4.0), root)
    return (root,)


@case(_tree)
def tree_of_objects(root):
    last = list(root)[-1]
    last.value = last.value * 10
    return root.total(), len(list(root)), last.parent() is root


# ---- typing, enums, operators ----

T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    def __init__(self, item: T):
        self.item = item

    def map(self, fn: typing.Callable[[T], T]) -> "Box[T]":
        return Box[torch.Tensor](fn(self.item))


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"

    def apply(self, x):
        return getattr(x, self.value)()


class Bits(enum.IntFlag):
    A = 1
    B = 2


@case(lambda: (t(), Mode.SUM, Bits.A), lambda: (t(), Mode.MEAN, Bits.A | Bits.B), lambda: (t(), Mode("sum"), Bits(0)))
def enums_and_generics(x, mode, bits):
    box = Box(x).map(lambda v: v * 2)
    y = mode.apply(box.item)
    if Bits.B in bits:
        y = y + 1
    return y, [m.name for m in Mode], typing.cast(int, bits.value)


class Vec:
    def __init__(self, *xs):
        self.xs = xs

    def __add__(self, other):
        return Vec(*map(operator.add, self.xs, other.xs))

    def __matmul__(self, other):
        return sum(a * b for a, b in zip(self.xs, other.xs, strict=True))

    def __iter__(self):
        return iter(self.xs)

    def __len__(self):
        return len(self.xs)

    def __getitem__(self, i):
        return self.xs[i] if isinstance(i, int) else Vec(*self.xs[i])

    def __contains__(self, v):
        return any(v is x for x in self.xs)

    def __call__(self, f):
        return Vec(*map(f, self))


@case()
def operator_overloading(x):
    v, w = Vec(x, x + 1), Vec(x * 2, 3)
    a, b = v + w
    return a, b, v @ w, len(v[:1]), v(torch.neg)[-1], x in v, [*reversed(v.xs)]


# ---- changes of arguments ----


@case(lambda: (t(), {"lr": 0.1, "n": 3}, [t(1.0)]), lambda: (t(), {"lr": 0.2, "n": 1}, []))
def changes_arguments(x, options, out):
    options = {**options, "seen": options.pop("n")}
    options.setdefault("lr", 5)
    out.extend(x * i for i in range(options["seen"]))
    out.insert(0, x.add_(1))
    del out[-1:]
    return options, sum(o.sum() for o in out)


@case(lambda: ([t(1.0), t(2.0)],), lambda: ([t(3.0)],), graphs="breaks")
def drains_a_queue(queue):
    done = []
    while queue:
        item = queue.pop(0)
        print(len(queue))
        if len(done) < 3:
            queue.append(item * 2) if len(done) == 1 else None
        done.append(item + 1)
    return done


@case(lambda: (t(), {"b": t(1.0), "a": t(2.0)}), lambda: (t(), {"a": t(1.0), "c": t(5.0), "b": t(2.0)}))
def ordered_dicts(x, state):
    out = {}
    for k in sorted(state):
        out[k] = state[k] * x.sum()
    out.update(zip("xy", (x, x), strict=True))
    moved = collections.OrderedDict(out)
    moved.move_to_end(next(iter(out)))
    return out, list(moved), {v: k for k, v in enumerate(moved)}


@case(lambda: (t(), 4), lambda: (t(), 2), lambda: (t(), 0))
def batching(x, n):
    groups = [list(g) for _, g in itertools.groupby(range(n), key=lambda i: i // 2)]
    pairs = list(itertools.zip_longest(*groups, fillvalue=-1)) if groups else []
    return [x * sum(p) for p in pairs], list(itertools.accumulate(range(n), operator.mul))


@case(lambda: (t(), None), lambda: (t(), t(1.0)), lambda: (t(), 3), lambda: (t(), [1, t(2.0)]), lambda: (t(), "s"))
def by_type(x, value):
    match value:
        case None:
            return x
        case torch.Tensor():
            return x + value
        case int() | float() as n:
            return x * n
        case [first, *rest]:
            return x * first, rest
        case _:
            raise TypeError(f"what is {value!r}?")


@case(lambda: (t(), 3), lambda: (t(), 0), lambda: (t(), -1))
def preconditions(x, n):
    if n < 0:
        raise AssertionError(f"negative: {n}")
    y = x / n if n else torch.zeros_like(x)
    torch._assert(y.shape == x.shape, "shapes")
    return y


@case(lambda: (torch.arange(6.0).reshape(2, 3), 1), lambda: (torch.arange(8.0).reshape(4, 2), 0), graphs="breaks")
def values_decide(x, dim):
    best = x.argmax(dim)
    rows = []
    for i, b in enumerate(best.tolist()):
        row = x.select(1 - dim, i)
        rows.append(row * b if row.sum() > 5 else row)
    return torch.stack(rows), {int(b): i for i, b in enumerate(best)}


@case(graphs="breaks")
def loop_until_converged(x):
    steps = 0
    while True:
        new = torch.tanh(x)
        steps += 1
        if (new - x).abs().max() < 0.2 or steps > 20:
            break
        x = new
    else:
        steps = -1
    return new, steps


# ---- more of them ----


class Meter:
    """A running mean, kept as a Python number."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.total, self.count = 0.0, 0

    def update(self, value, n=1):
        self.total += value * n
        self.count += n

    @property
    def mean(self):
        return self.total / max(self.count, 1)

    def __str__(self):
        return f"{self.mean:.3f} ({self.count})"

    def __format__(self, spec):
        return format(self.mean, spec)


@case(lambda: (t(), Meter()), lambda: (t(4.0, 5.0), Meter()), graphs="breaks")
def meters(x, meter):
    for i in range(3):
        x = x * 0.5
        meter.update(x.sum().item(), n=i + 1)
    print(meter, f"{meter:.2f}")
    return x * meter.mean


class Lazy:
    """A value that is made when it is first asked for, by a descriptor."""

    def __init__(self, make):
        self.make = make

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, kind=None):
        if obj is None:
            return self
        if self.name not in obj.__dict__:
            LOG.append(self.name)
            obj.__dict__[self.name] = self.make(obj)
        return obj.__dict__[self.name]


class Rotary:
    def __init__(self, n):
        self.n = n

    freqs = Lazy(lambda self: torch.arange(self.n) / self.n)
    table = Lazy(lambda self: torch.stack([self.freqs.sin(), self.freqs.cos()]))

    def __call__(self, x):
        sin, cos = self.table
        return x * cos[: x.shape[0]] + x.flip(0) * sin[: x.shape[0]]


ROTARY = Rotary(4)


@case(lambda: (t(), Rotary(3)), lambda: (t(1.0, 2.0), Rotary(4)))
def descriptor_caches(x, rotary):
    return rotary(x), rotary(x * 2), sorted(vars(rotary))


def _cold():
    vars(ROTARY).clear()
    ROTARY.n = 4
    return (t(),)


@case(_cold, lambda: (t(1.0, 2.0),))
def descriptor_cache_that_lives_on(x):
    return ROTARY(x), sorted(vars(ROTARY))


class Base:
    registry: typing.ClassVar[dict] = {}

    def __init_subclass__(cls, key=None, **kw):
        super().__init_subclass__(**kw)
        cls.registry[key or cls.__name__] = cls

    @classmethod
    def build(cls, key, *a, **kw):
        return cls.registry[key](*a, **kw)

    def __call__(self, x):
        return self.post(self.run(self.pre(x)))

    def pre(self, x):
        return x

    post = pre


class Scale(Base, key="scale"):
    __slots__ = ("by",)

    def __init__(self, by):
        self.by = by

    def run(self, x):
        return x * self.by


class Shifted(Scale):
    def __init__(self, by, *, extra=1):
        super().__init__(by)
        self.extra = extra

    def pre(self, x):
        return super().pre(x) + self.extra

    def post(self, x):
        return Base.post(self, x).abs()


@case(
    lambda: (t(), [("scale", 2, {}), ("Shifted", 3, {"extra": 2})]),
    lambda: (t(), [("Shifted", 1, {})]),
    lambda: (t(), [("other", 1, {})]),
)
def pipelines(x, specs):
    stages = [Base.build(key, by, **kw) for key, by, kw in specs]
    return functools.reduce(lambda v, stage: stage(v), stages, x), [type(s).__name__ for s in stages]


@case(lambda: ([t(1.0), t(2.0, 3.0), t(4.0, 5.0, 6.0)],), lambda: ([t(1.0, 2.0)],))
def collate(batch):
    longest = max(len(b) for b in batch)
    padded = torch.stack([F.pad(b, (0, longest - len(b))) for b in batch])
    mask = torch.arange(longest)[None] < torch.tensor([len(b) for b in batch])[:, None]
    return {"x": padded, "mask": mask, "lengths": [*map(len, batch)]}


@case(lambda: (torch.arange(12.0).reshape(3, 4) - 5,), lambda: (torch.arange(8.0).reshape(2, 4) - 9,), graphs="breaks")
def selected_rows(x):
    keep = x.sum(1) > 0
    kept = x[keep]
    if not len(kept):
        return x.new_empty(0, x.shape[1]), 0
    index = keep.nonzero(as_tuple=True)[0]
    return x.index_add(0, index, kept * 2), kept.shape[0]


@case(lambda: (t(), iter([1, 2, 3])), lambda: (t(), iter([4])), lambda: (t(), iter(())), graphs="breaks")
def consumes_an_iterator(x, it):
    first = next(it, None)
    if first is None:
        return x
    for n in it:
        x = x * n
    return x + first, next(it, "end")


@case(lambda: (t(), "a=1,b=2.5"), lambda: (t(), "b=0"), lambda: (t(), "c"))
def parses_options(x, text):
    options = {}
    for part in text.split(","):
        key, eq, value = part.partition("=")
        options[key] = float(value) if eq else True
    return x * sum(float(v) for v in options.values()), options


@case(lambda: (t(), [t(1.0), t(2.0)]), lambda: (t(), [t(3.0)]))
def swaps_and_aliases(x, items):
    a = b = items
    b = b + [x]
    a += [x * 2]
    a[0], a[-1] = a[-1], a[0]
    c = a[:]
    c[0] = None
    return a is items, len(b), c, a[0] is b[0]


@case(lambda: (t(), 2), lambda: (t(), 5))
def format_mini_language(x, n):
    rows = [f"{i:>3}|{i / 3:.2e}|{i!r:<4}|{'x' * i:^{n + 2}}|{i:#x}|{-i:+d}|{1000 * i:,}" for i in range(n)]
    return rows, x * len("".join(rows)), "%(a)s-%(b)03d" % {"a": tuple(x.shape), "b": n}


@case(lambda: (t(), 0), lambda: (t(), 1), graphs="breaks")
def errors_inside_finally(x, k):
    try:
        try:
            y = x + 1
            print("body")
            if k:
                raise ValueError("first")
        finally:
            LOG.append("finally")
            print("cleanup")
            if k:
                {}["second"]
    except KeyError as e:
        return y, repr(e), repr(e.__context__)
    return y


@case(lambda: (t(), 3), lambda: (t(), 1))
def unpack_star_calls(x, n):
    def f(a, *rest, key=0, **more):
        return a * len(rest) + key, sorted(more.items())

    args, kw = [x] * n, {"key": n, "z": 1}
    return f(*args, *range(n), **kw, y=2), (lambda *, q=x, **k: (q, k))(**{"w": 1})


class Frozen:
    __slots__ = ("a", "b")

    def __init__(self, a, b):
        object.__setattr__(self, "a", a)
        object.__setattr__(self, "b", b)

    def __setattr__(self, name, value):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __hash__(self):
        return hash((type(self), self.b))

    def __eq__(self, other):
        return type(self) is type(other) and self.b == other.b


@case(lambda: (t(), Frozen(t(1.0), 1)), lambda: (t(), Frozen(t(2.0), 2)), graphs="breaks")
def frozen_slots(x, frozen):
    try:
        frozen.a = x
    except dataclasses.FrozenInstanceError as e:
        said = str(e)
    mine = Frozen(x, 1)
    return frozen.a + mine.a, said, {mine: 1}.get(frozen), mine == frozen


@case(lambda: (t(), 2), lambda: (t(), 3), graphs="breaks")
def warns_and_counts(x, n):
    import warnings as w

    for i in range(n):
        w.warn(f"round {i}", UserWarning, stacklevel=1)
        x = x + i
    print("done", n)
    return x


test_programs = case.tests()
