"""Lists that grow in the rounds of loops that values end: one graph, what is asked of them behind it, and which lists break the graph."""

import copy
import linecache
import random

import pytest
import torch
from harness import compiled, number_backend, same
from torch.utils import _pytree as pytree

from intarsia.frontend.branches import branches, checks
from intarsia.frontend.errors import GraphBreak

XS = [torch.linspace(-1, top, 12).reshape(4, 3) for top in (2.0, 0.1, 9.0, 0.9, 300.0)]  # 3, 0, 5, 2 and 10 rounds


def stacked(x):
    found = [x + 1]
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x + 2)
    return torch.stack(found), x + 1


def given_out(x):
    tokens = []
    for _ in range(9):
        x = x * 0.5
        tokens.append(x.argmax(-1))
        if x.max() < 0.3:
            break
    return tokens


def in_front_of_the_append(x):
    found = []
    for _ in range(6):
        x = x * 0.5
        if (x.max() < 0.3).all():
            break
        found.append(x.amax(-1))
    return found, len(found), x + 1


def numbers(x):
    losses = []
    while x.max() > 0.3:
        x = x * 0.5
        losses.append(x.sum().item())
    return losses, x + 1


def whole_numbers(x):
    tokens = [3]
    for _ in range(12):
        x = x * 0.5
        token = x.flatten().argmax().item()
        tokens.append(token)
        if x.max() < 0.3:
            break
    return tokens


def truths(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found += [bool(x.min() > -0.2)]
    return found


def joined(x):
    rows = [x[:1] * 3]
    while x.max() > 0.3:
        x = x * 0.5
        rows.append(x[:1] + 1)
    return torch.cat(rows), torch.cat(rows, dim=1), torch.stack(rows, -1), torch.stack(tensors_of(rows), 1)


def tensors_of(rows):
    return rows


def two_a_round(x):
    found, others = [], [x + 1]
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x.sum())
        found.extend((x.max(), x.min()))
        others.append(x + 1)
    return found, torch.stack(others)


def appended_behind(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x.sum(0))
    found.append(x.sum(0) + 1)
    found += [x.sum(0) + 2, x.sum(0) + 3]
    return torch.stack(found), found[-1], len(found)


def iterated(x):
    found = [x * 0 + 1]
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x + 1)
    total = torch.zeros(4, 3)
    for item in found:
        total = total * 0.5 + item
    return total


def last_one(x):
    found = [x + 0.5]
    while x.max() > 0.3:
        x = x * 0.5
        found.append(found[-1] * 0.5 + x)
    return found[-1] + 1, len(found)


def length_decides(x):
    found = []
    while x.max() > 0.3 and len(found) < 4:
        x = x * 0.5
        found.append(x.mean())
    return found, len(found)


def by_a_branch(x):
    found = []
    for t in range(8):
        x = x * 0.5
        if x.sum() > 2:
            found.append(x.sum(-1))
        if x.max() < 0.3:
            break
    return found, t, len(found)


def by_both_sides(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        if x.sum() > 2:
            found.append(x.sum(-1))
            found.append(x.amax(-1))
        else:
            found.append(x.amin(-1))
    return found


def by_a_large_side(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        if x.sum() > 2:
            found.append(torch.exp(torch.linalg.matrix_exp(x[:3])))
    return found


def two_loops(x):
    found = []
    while x.max() > 1:
        x = x * 0.5
        found.append(x.sum(0))
    while x.max() > 0.3:
        x = x * 0.7
        found.append(x.amax(0))
    return found, x + 1


def before_it_is_computed_anew(x):
    state, states = x + 0, []
    while state.max() > 0.3:
        states.append(state)
        state = state * 0.5
    return len(states)


def in_a_helper(x):
    found, other = [], []
    append_some(found, x)
    while x.max() > 0.3:
        x = x * 0.5
        add(found, x)
        other.append(x.sum())
    return found, torch.tensor([1.0, 2.0]), other


def append_some(found, x):
    found.append(x + 3)


def add(found, x):
    found.append(x + 4)


def beside_others(x):
    found, kept = [], {"n": 0}
    while x.max() > 0.3:
        x = x * 0.5
        kept["n"] += 1
        found.append(x + kept["n"])
    return {"states": found, "n": kept["n"]}, (found, x + 1)


def returned_in_the_loop(x):
    found = []
    for _ in range(3):
        x = x * 0.5
        found.append(x.sum())
        if x.max() < 0.3:
            return found
    return found


def a_check(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x.mean())
        if x.sum() > 200:
            raise ValueError(f"{len(found)} rounds, {x.sum():.3f}")
    return found


def empty_is_an_error(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x.mean())
    return torch.stack(found), found[-1] + 1


def as_a_tensor(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x.argmax().item())
    return torch.tensor(found)


def as_a_tensor_of_floats(x):
    found = [0.5]
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x.mean().item())
    return torch.tensor(found), isinstance(found, list), type(found) is list


def many(x):
    found = []
    while x.max() > 1e-30:
        x = x * 0.9
        found.append(x.amax())
    return found


def decoded(x):
    tokens = []
    for _ in range(9):
        x = torch.tanh(x * 0.5)
        token = x.argmax(-1)
        if x.amax() < 0.3:
            break
        tokens.append(token)
        x = x + token[:, None] * 0.01
    return tokens


def stops_early(x):
    outs, h = [], x[0] * 0
    for t in range(4):
        h = torch.tanh(x[t] + h)
        if h.abs().mean() > 0.9:
            break
        outs.append(h)
    return outs, h + 1


def all_and_the_last(x):
    states = []
    for _ in range(9):
        y = torch.tanh(x)
        states.append(y)
        if (y - x).norm() < 0.3:
            break
        x = y
    return {"last": states[-1] * 2, "all": states}


def beams(x):
    parents, tokens, scores = [], [], x.sum(-1)
    while scores.max() < 40 and len(tokens) < 7:
        scores, place = (scores[:, None] + x.abs()).view(-1).topk(4)
        parents.append(place // 3)
        tokens.append(place % 3)
    return scores, torch.stack([x.argmax(-1), *[]]), parents, tokens


ONE_GRAPH = [stacked, given_out, in_front_of_the_append, numbers, whole_numbers, truths, joined, two_a_round]
ONE_GRAPH += [
    appended_behind,
    iterated,
    last_one,
    length_decides,
    by_a_branch,
    by_both_sides,
    by_a_large_side,
    two_loops,
]
ONE_GRAPH += [before_it_is_computed_anew, in_a_helper, beside_others, returned_in_the_loop, a_check, empty_is_an_error]
ONE_GRAPH += [as_a_tensor_of_floats, many, decoded, stops_early, all_and_the_last, beams]


# ---- lists that are not carried ----


def held_by_another(x):
    found = []
    both = [found, 1]
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x + 1)
    return both


def of_two_shapes(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x + 1)
        found.append(x.sum())
    return found


def of_two_kinds(x):
    found = [1]
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x.sum())
        found.append(2)
    return found


def given_with_the_last_one(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x)
    return found, x


def the_callers_tensor(x):
    found = []
    y = x * 1
    while y.max() > 0.3:
        y = y * 0.5
        found.append(x)
    return found


def before_the_first_round(x):
    found = []
    while x.max() > 0.3:
        found.append(x)
        x = x * 0.5
    return found


def written_behind(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x)
    x.add_(1)
    return torch.stack([x, *found])


def written_in_the_round(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        y = x + 1
        found.append(y)
        y.add_(1)
    return found


def written_in_later_rounds(x):
    found, y = [], x * 1
    while x.max() > 0.3:
        x = x * 0.5
        y.add_(x)
        found.append(y)
    return torch.stack([x, *found])


def first_items_change(x):
    found = [1]
    while x.max() > 0.3:
        x = x * 0.5
        found.append(3)
        found[0] = 2
    return found


def removed(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x + 1)
        if len(found) > 2:
            found.pop(0)
    return found


def by_a_bound_method(x):
    found = []
    add = found.append
    while x.max() > 0.3:
        x = x * 0.5
        add(x + 1)
    return found


def with_gaps(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append((x + 1)[:, 1])
    return found


def transposed(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append((x + 1).t())
    return found


def strings(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append("a")
    return found


def sorted_behind(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x.sum().item())
    return sorted(found), found == [], found + [1], found[0:1], [*found], sum(found), bool(found), 2 in found, found * 2


def in_two_loops(x):
    found = []
    while x.max() > 0.3:
        y = x * 1
        while y.max() > 0.3:
            y = y * 0.5
            found.append(y + 1)
        x = x * 0.5
    return found


def comprehended(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x.sum())
    return [item + 1 for item in found], dict(enumerate(found)), tuple(found), list(zip(found, found, strict=True))


class Holder:
    """Holds what capture sets."""


HOLDER, HELD = Holder(), []


def of_an_attribute(x):
    HOLDER.seen = []
    while x.max() > 0.3:
        x = x * 0.5
        HOLDER.seen.append(x.sum())
    return torch.stack([x.sum(), *HOLDER.seen]), len(HOLDER.seen)


def of_the_modules(x):
    HELD.clear()
    while x.max() > 0.3:
        x = x * 0.5
        HELD.append(x.sum())
    return len(HELD), sum(HELD)


def copied(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x.sum(0))
    other = copy.copy(found)
    return found, other, copy.deepcopy(found)


def in_inference_mode(x):
    found = []
    with torch.inference_mode():
        while x.max() > 0.3:
            x = x * 0.5
            found.append(x.sum(0))
    return found, [item.is_inference() for item in found], x * 1


NOT_CARRIED = [
    copied,
    in_inference_mode,
    held_by_another,
    of_two_shapes,
    of_two_kinds,
    given_with_the_last_one,
    the_callers_tensor,
    removed,
    strings,
]
NOT_CARRIED += [
    before_the_first_round,
    written_behind,
    written_in_the_round,
    written_in_later_rounds,
    first_items_change,
]
NOT_CARRIED += [
    of_an_attribute,
    of_the_modules,
    by_a_bound_method,
    with_gaps,
    transposed,
    sorted_behind,
    in_two_loops,
    comprehended,
]


def shared(values):
    """Which of these tensors are one, and which lie in one memory."""
    tensors = [t for t in values if isinstance(t, torch.Tensor)]
    return [
        (a is b, a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()) for a in tensors for b in tensors
    ]


def outcome(f, x):
    x = x.clone()
    try:
        found = f(x)
    except Exception as error:
        return [type(error), str(error), x], None
    leaves = [*pytree.tree_leaves(found), x]
    facts = [(t.stride(), t.requires_grad, t._is_view() and False) for t in leaves if isinstance(t, torch.Tensor)]
    return [found, x], (shared(leaves), facts)


def check(f, fast, xs=XS):
    for x in xs:
        (wanted, facts), (found, mine) = outcome(f, x), outcome(fast, x)
        assert same(found, wanted), (found, wanted)
        assert mine == facts


@pytest.mark.parametrize("f", ONE_GRAPH, ids=lambda f: f.__name__)
def test_one_graph(f) -> None:
    fast, log = compiled(f, number_backend, on_error="raise")
    check(f, fast)
    assert len(log.captures) == 1 and not log.breaks and not log.fallbacks


def test_an_empty_list_gives_a_tensor_of_floats() -> None:
    """Such a call runs in eager, and the next capture breaks the graph."""
    fast, log = compiled(as_a_tensor, number_backend, on_error="raise")
    check(as_a_tensor, fast, [XS[0], XS[2], XS[4]])
    assert len(log.captures) == 1 and not log.breaks
    check(as_a_tensor, fast)
    assert not log.fallbacks


def test_a_list_of_the_callers_that_is_not_looked_at() -> None:
    def f(x, held):
        while x.max() > 0.3:
            x = x * 0.5
            held.append(x.sum())
        return x + 1

    fast, log = compiled(f, number_backend, on_error="raise")
    for x in XS:
        wanted, found = [x], [x]
        assert same(fast(x, found), f(x, wanted)) and same(found, wanted)
    assert log.breaks


def test_what_cannot_be_looked_into_is_no_reason_of_its_own(monkeypatch) -> None:
    """A truth of the caller's integers is guarded, where something beside the list that a side appends to cannot be looked into."""

    def f(x, mask):
        found = []
        if (mask > 0).any():
            found.append(x + 1)
        return x * 2, len(found)

    def fails(vm, frame):
        raise GraphBreak("something is kept in a variable around the loop")

    monkeypatch.setattr(branches, "Surroundings", fails)
    fast, log = compiled(f, number_backend, on_error="raise")
    for mask in (torch.tensor([1, 0]), torch.tensor([0, 0]), torch.tensor([1, 1])):
        assert same(fast(XS[0], mask), f(XS[0], mask))
    assert not log.breaks


def test_variables_that_only_the_loop_reads() -> None:
    """`torch.stack` is no function that looks at frames, as `inspect.stack` is."""

    def f(x):
        found = []
        while x.max() > 0.3:
            half = x * 0.5
            x = half
            found.append(half.sum())
        return torch.stack(found)

    fast, log = compiled(f, number_backend, on_error="raise")
    for x in (XS[0], XS[2]):
        assert same(fast(x), f(x))
    assert len(log.captures) == 1 and not log.breaks


@pytest.mark.parametrize("f", NOT_CARRIED, ids=lambda f: f.__name__)
def test_others_break_and_are_right(f) -> None:
    fast, log = compiled(f, number_backend)
    check(f, fast)
    assert len(log.captures) > 1 and not log.fallbacks


# ---- random programs ----

# What is mostly drawn, and what is drawn now and then.
ITEMS = ["x + 1", "x.sum(-1)", "x.amax().item()", "int(x.sum())", "x.argmax(-1)", "bool(x.min() > -0.2)"]
ITEMS = ITEMS, ["x", "y", "caller", "x[0]", "x[:, 0]", "x.t()", "x.unsqueeze(0)", "(x, 1)", "None", "[x]", "y * 1"]
FIRST = ["[]", "[{0}]"], ["[{0}, {0}]", "[None]"]
HEADS = ["while x.max() > 0.3:", "for t in range(6):", "while x.max() > 0.3 and len(a) < 4:"]
HEADS = HEADS, ["for t in range(k.item()):", "while True:"]
ROUND = ["pass", "n += len(a)", "n += 1"]
ROUND = ROUND, ["y = a[-1] if a else y", "y.add_(1)", "a[0] = 1", "y = y * 0.5 + x", "b = a", "z = x + 2"]
ADDS = ["a.append({0})", "a += [{0}]", "if x.sum() > 1: a.append({0})", "a.extend([{0}, {0}])"]
BOTH = "if x.sum() > 1:\n            a.append({0})\n        else:\n            a.append({0})\n            a.append({0})"
ADDS = ADDS, [BOTH, "a.insert(0, {0})", "a.append(y)"]
ENDS = ["if x.max() < 0.3: break", "if x.max() < 0.5: break", "if x.max() < 0.4: return a", "pass"]
ENDS = ENDS, ["if x.sum() > 900: raise ValueError(len(a))", "if x.sum() < 2: a.pop()"]
BEHIND = ["pass", "a.append({0})", "b = a[-1]"]
BEHIND = BEHIND, ["x.add_(1)", "y.add_(1)", "caller.mul_(2)", "if x.sum() > 1: a.append({0})", "a.append(x)"]
RESULTS = [
    "a",
    "a, len(a)",
    "torch.stack(a)",
    "torch.cat(a), n",
    "a[-1], x + 1",
    "len(a), x + 1",
    "{'a': a, 'x': x + 1}",
]
OTHERS = [
    "a, x",
    "a, y",
    "a[-1], a",
    "torch.stack(a, -1), a",
    "[i for i in a]",
    "a, b",
    "sum(a)",
    "(a, a)",
    "torch.tensor(a)",
]
RESULTS = RESULTS, OTHERS


def drawn(seed):
    """The text of a program: a loop that fills a list."""
    draw = random.Random(seed)

    def one(of):
        return draw.choice(of[draw.random() < 0.12])

    item, head = one(ITEMS), one(HEADS)
    steps = ["x = x * 0.5", one(ROUND), one(ADDS), one(ENDS)]
    if draw.random() < 0.4:
        steps[2], steps[3] = steps[3], steps[2]
    if draw.random() < 0.2:
        steps.append(one(ROUND))
    if head == "while True:":
        steps.append("if x.max() < 0.3: break")
    lines = [f"a, y, n, b, z = {one(FIRST)}, x * 2, 0, None, None", head, *(f"    {step}" for step in steps)]
    lines += [one(BEHIND), f"return {one(RESULTS)}"]
    body = "\n".join(f"    {line}" for line in lines)
    return f"def program(caller, k):\n    x = caller + 0\n{body}\n".replace("{0}", item)


def effects(f, x, k):
    """What a call gives, and what its results and arguments are once each was written to in turn."""
    x, k = x.clone(), torch.tensor(k)
    try:
        found = f(x, k)
    except Exception as error:
        return [type(error), str(error)]
    before = copy.deepcopy(found)
    tensors = {id(t): t for t in [*pytree.tree_leaves(found), x] if isinstance(t, torch.Tensor)}
    for number, tensor in enumerate(tensors.values()):
        if tensor.dtype != torch.bool:
            tensor.add_(number + 1)
    strides = [t.stride() for t in tensors.values()]
    return [before, found, x, strides]


def agree(seed):
    """Whether a program is right in all calls, and is one graph."""
    text = drawn(seed)
    names = {"torch": torch}
    filename = f"<drawn {seed}>"
    linecache.cache[filename] = len(text), None, text.splitlines(True), filename
    exec(compile(text, filename, "exec"), names)
    fast, log = compiled(names["program"], number_backend)
    for k, x in zip((3, 0, 1, 5, 3), XS, strict=True):
        wanted, found = effects(names["program"], x, k), effects(fast, x, k)
        assert same(found, wanted), f"{text}\n{x}\n{found}\n{wanted}"
    return len(log.captures) == 1 and not log.breaks


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_programs(first) -> None:
    whole = sum(map(agree, range(first, first + 20)))
    assert whole >= 5


# ---- checks on a GPU ----

TABLE = torch.arange(600.0).reshape(200, 3)


def looks_up(x):
    found, token = [], x.abs().long().amax(-1)
    while x.max() > 0.3:
        x = x * 0.5 + TABLE[token].amin(-1, keepdim=True) * 1e-4
        token = x.abs().long().amax(-1)
        found.append(token)
    return found


def looks_up_behind(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        found.append(x.sum())
    return found, TABLE[x.abs().long().amax(-1)]


def looks_up_in_a_checked_round(x):
    found = []
    while x.max() > 0.3:
        x = x * 0.5
        if x.sum() > 900:
            raise ValueError("large")
        found.append(TABLE[x.abs().long().amax(-1)])
    return found


@pytest.mark.parametrize(
    ("f", "whole"), [(looks_up, True), (a_check, True), (looks_up_behind, False), (looks_up_in_a_checked_round, False)]
)
def test_indexes_beside_checks(f, whole, monkeypatch) -> None:
    """An index outside stops a GPU: only rounds in which all is as in eager may have one beside a check."""
    monkeypatch.setattr(checks, "devices_of", lambda graph: (0,))
    fast, log = compiled(f, number_backend)
    check(f, fast, XS[:4])
    assert (len(log.captures) == 1 and not log.breaks) is whole and not log.fallbacks


# ---- numbers that decide ----


def left_at_some(x):
    found = []
    for _ in range(9):
        x = torch.floor(x * 0.5)
        number = int(x.sum())
        if number in (3, 9, 11, -7):
            return found, x
        found.append(number)
    return found, x + 1


def left_by_a_remainder(x):
    for k in range(12):
        x = torch.floor(x * 0.7)
        if int(x.sum()) % 5 == 3:
            break
    return x, k, 100 % int(x.sum().abs() + 1) == 0, int(x.amax()) // 2 > 2


def among(x):
    number = int(x.sum())
    return number in {1, 2, 30}, number not in [3, 9], number in range(2, 40), number in (1, "a"), number in ()


@pytest.mark.parametrize("f", [left_at_some, left_by_a_remainder, among], ids=lambda f: f.__name__)
def test_numbers_that_decide(f) -> None:
    fast, log = compiled(f, number_backend)
    check(f, fast, [*XS, -XS[0], -XS[2], XS[0] + 0.4, XS[0] * 0 + 1, XS[0] * 3])
    assert f is not left_at_some or len(log.captures) == 1 and not log.breaks
