"""Programs that give functions to operators: cond, while_loop, scan, map, associative_scan, flex_attention; transforms of torch.func."""

from __future__ import annotations

import random

from . import branches
from .bodies import Tables
from .bodies import program as grown

SETUP = """\
from torch._higher_order_ops import scan, associative_scan, while_loop, map as hmap
from torch.nn.attention.flex_attention import flex_attention, create_block_mask
from torch.func import vmap, grad, vjp, jvp, jacrev, jacfwd, hessian, functional_call, stack_module_state, grad_and_value, functionalize
from functools import partial
"""
VALUES = [
    "{t} + 1", "{t} * {t}", "{t}.relu()", "torch.sin({t})", "{t}.sum()", "{t}.detach()", "{t}.view(-1)", "{t}[:1]", "{t}.double()", "{t}.flip(0)", "{t}.cumsum(0)", "{t}.mean(0)", "{F}({t})", "{t}[{t} > 0]", "look({t})", "{t}", "{t}.t() if {t}.dim() == 2 else {t}",
]  # fmt: skip
INSIDE = [
    "a * 2", "a.sin()", "a * {t}.sum()", "a + {t}", "a * {f}", "a.clone()", "a", "a.view(-1)", "a.sum()", "a.exp() * s.a.sum()", "a * p.sum()", "a[:1]", "a.relu()", "a * s.n", "a.float()", "a.t() if a.dim() == 2 else a", "{F}(a)", "a.cumsum(0)", "a * a.shape[0]", "a.detach() * a",
    "a * i.sum()", "a.new_ones(a.shape)", "a.contiguous()", "a / a.abs().sum()", "a + a.mean()", "a.flip(0)", "a.softmax(-1)", "torch.zeros_like(a)", "(a > 0) * a", "a.add_(1)", "a.clone().mul_(2)", "a * torch.ones(())", "a.expand(2, *a.shape)[0]", "lin.weight.sum() * a",
]  # fmt: skip
HIGHER = [
    "torch.cond({c}, lambda a: {a}, lambda a: {a}, ({t},))", "torch.cond({t}.sum() > {f}, lambda: {t} * 2, lambda: {t} + 1)", "torch.cond(({t} > 0).all(), lambda a, b: {a} + b, lambda a, b: b - {a}, ({t}, {t}))", "torch.cond({t}.sum() > 0, lambda a: (a, {a}), lambda a: ({a}, a), ({t},))[0]",
    "torch.cond({t}.sum() > 0, lambda a: torch.cond(a.max() > 1, lambda a: {a}, lambda a: {a}, (a,)), lambda a: {a}, ({t},))", "torch.cond({n} > 1, lambda a: {a}, lambda a: {a}, ({t},))",
    "while_loop(lambda a: a.sum() < 5, lambda a: ({a} + 1,), ({t}.abs() + 1,))[0]", "while_loop(lambda k, a: k < 3, lambda k, a: (k + 1, {a}), (torch.tensor(0), {t}))[1]", "while_loop(lambda k, a: k < i.sum(), lambda k, a: (k + 1, a * 0.5 + {t}), (torch.tensor(0), {t}))[1]",
    "while_loop(lambda k, a: (k < 3) & (a.sum() > 0), lambda k, a: (k + 1, a - 1), (torch.tensor(0), {t}))[0]", "while_loop(lambda k, a: k < 2, lambda k, a: (k + 1, {a}), (torch.zeros((), dtype=torch.int64), {t}))",
    "scan(lambda a, b: (a + b, a * b), {t}[0], {t})[1]", "scan(lambda a, b: (a * 0.5 + b.sum(), {a}), {t}.sum(), {t})[1]", "scan(lambda a, b: (a + b, (a - b).sin()), torch.zeros_like({t}[0]), {t}, reverse=True)[0]", "scan(lambda a, b: (a + {t}.sum(), a.clone()), {t}.sum(), {t}, dim=0)[1]",
    "scan(lambda a, b: ((a[0] + b, a[1] * 2), (a[0].clone(), b.clone())), ({t}[0], {t}[0]), {t})[0][0]", "scan(lambda a, b: (a.clone(), b.clone()), {t}.sum(), {t}, dim=-1)[1]",
    "hmap(lambda a: {a}, {t})", "hmap(lambda a, b: a * b, {t}, {t}[0])", "hmap(lambda a: (a.sin(), a.sum()), {t})[1]", "hmap(lambda a: {a} + {t}.sum(), {t})",
    "associative_scan(lambda a, b: a + b, {t}, 0, combine_mode='generic')", "associative_scan(lambda a, b: a * b, {t}, -1, combine_mode='generic', reverse=True)", "associative_scan(torch.maximum, {t}, 0, combine_mode='generic')", "associative_scan(lambda a, b: (a[0] + b[0], a[1] * b[1]), ({t}, {t}), 0, combine_mode='generic')[1]",
    "flex_attention(q, q * 2, q + 1)", "flex_attention(q, q, q * {t}.sum(), score_mod=lambda s_, b, h, m, n: s_ + m - n)", "flex_attention(q, q, q, score_mod=lambda s_, b, h, m, n: torch.where(m >= n, s_, -float('inf')))", "flex_attention(q, q, q, score_mod=lambda s_, b, h, m, n: s_ * {t}.sum())",
    "flex_attention(q, q, q, score_mod=lambda s_, b, h, m, n: s_ + bias[h, m])", "flex_attention(q, q, q, score_mod=lambda s_, b, h, m, n: s_ + table[m - n + 4])", "flex_attention(q, q, q, scale={f})", "flex_attention(q, q[:, :1], q[:, :1], enable_gqa=True)", "flex_attention(q, q, q, return_lse=True)[1]",
]  # fmt: skip
FUNC = [
    "vmap(lambda a: {a})({t})", "vmap(lambda a: {a}, out_dims=-1)({t})", "vmap(lambda a, b: a * b.sum(), in_dims=(0, None))({t}, {t})", "vmap(lambda a, b: ({a}, b))({t}, {t})[0]", "vmap(lambda a, b: a @ b, in_dims=(0, -1))({t}, {t})", "vmap(lambda a: {a}, chunk_size=2)({t})",
    "vmap(lambda a: a + torch.rand(()), randomness='different')({t})", "vmap(lambda a: a * torch.rand_like(a), randomness='same')({t})", "vmap(lambda a: F.dropout(a), randomness='different')({t})", "vmap(vmap(lambda a: {a}))({t})", "vmap(lambda a: a.sum() + torch.rand(()), randomness='error')({t})",
    "grad(lambda a: ({a}).sum())({t})", "grad(lambda a, b: (a * b).sum(), argnums=1)({t}, {t})", "grad(lambda a, b: (a * b.sin()).sum(), argnums=(0, 1))({t}, {t})[1]", "grad(lambda a: (({a}).sum(), {a}), has_aux=True)({t})[1]", "grad(grad(lambda a: (a ** 3).sum()))({t}.sum())", "grad_and_value(lambda a: ({a}).sum())({t})[1]",
    "vmap(grad(lambda a: ({a}).sum()))({t})", "vmap(grad(lambda a, b: (a * b.sum()).sum()), in_dims=(0, None))({t}, {t})", "vjp(lambda a: {a}, {t})[0]", "vjp(lambda a: a.sin(), {t})[1](torch.ones_like({t}))[0]", "vjp(lambda a, b: a * b, {t}, {t})[1]({t})[1]", "vjp(lambda a: ({a}, a), {t}, has_aux=True)[2]",
    "jvp(lambda a: {a}, ({t},), (torch.ones_like({t}),))[1]", "jvp(lambda a, b: a * b, ({t}, {t}), ({t}, {t}))[1]", "jvp(lambda a: (a.sin(), a), ({t},), ({t},), has_aux=True)[2]", "jacrev(lambda a: {a})({t})", "jacfwd(lambda a: {a})({t})", "hessian(lambda a: (a ** 3).sum())({t})", "jacrev(lambda a, b: a * b.sum(), argnums=(0, 1))({t}, {t})[1]",
    "jacrev(lambda a: (a.sin(), a.sum()), has_aux=True)({t})[1]", "jacfwd(lambda a: {a}, randomness='same')({t})", "jacrev(lambda a: {a}, chunk_size=2)({t})", "jacfwd(jacrev(lambda a: (a * a * {t}.sum()).sum()))({t})", "jvp(grad(lambda a: (a ** 3).sum()), ({t},), ({t},))[1]", "vmap(jacrev(lambda a: a.sin()))({t})",
    "functional_call(lin, {'weight': lin.weight * 2}, (torch.ones(2, 3),))", "grad(lambda w: functional_call(lin, w, (torch.ones(2, 3) * {t}.sum(),)).sum())({k_: v.detach() for k_, v in lin.named_parameters()})['weight']", "vmap(lambda w, a: functional_call(lin, w, (a,)), in_dims=(0, None))(stacked, torch.ones(2, 3))",
    "functionalize(lambda a: a.clone().add_(1))({t})", "functionalize(lambda a: a.view(-1).add_({t}.sum()))({t}.clone())", "vmap(partial(torch.mul, {t}.sum()))({t})", "vmap({F})({t})", "grad(lambda a: {F}(a).sum())({t})", "vmap(lambda a: {'k': {a}, 'j': [a]})({t})['j'][0]", "torch.linalg.norm(jacrev(torch.sin)({t}.sum()))",
    "vmap(lambda a: torch.where(a.sum() > 0, a, -a))({t})", "grad(lambda a: torch.autograd.grad((a * a).sum(), a, create_graph=True)[0].sum())({t}.detach().requires_grad_())", "torch.func.linearize(lambda a: {a}, {t})[1]({t})", "torch.func.linearize(torch.sin, {t})[0]", "vmap(lambda a: a.clone().zero_())({t})",
    "vmap(lambda j: {t} * j)(torch.arange(3))", "vmap(lambda a: h_add(a))({t})", "vmap(lambda a: a.item() if False else a.sum())({t})", "vmap(lambda a, b: a.clone().index_put((b,), torch.ones(())))(torch.zeros(2, 3), torch.tensor([0, 2]))", "torch.autograd.functional.jacobian(lambda a: {a}, {t})", "torch.autograd.functional.hvp(lambda a: (a ** 3).sum(), {t}, {t})[1]",
]  # fmt: skip
LATER = "q = torch.randn(1, 2, 4, 8)\nbias = torch.randn(2, 4)\ntable = torch.randn(9)\nstacked = {'weight': torch.randn(2, 3, 3), 'bias': torch.randn(2, 3)}\nseen = []\ndef h_add(a):\n    seen.append(1)\n    return a + len(seen)"
STATEMENTS = [
    "{t}.add_(1)", "s.a = {t}", "s.n += 1", "out.append({t})", "{t} = {t}.detach()", "{t} *= 2", "print('here')", "look({t})", "out.append({t}.sum().item())", "{t}[0] = {f}", "{t} = {t}.clone().requires_grad_()", "r1, fn = vjp(torch.sin, {t})\nout.append(fn(r1)[0])", "r1, fn = vjp(lambda a: a * a, {t})\nlook({t})\nout.append(fn(r1)[0])",
    "out.append(vmap(lambda a: a + s.n)({t}))", "with torch.no_grad():\n    out.append(grad(lambda a: (a * a).sum())({t}))", "s.a = vmap(lambda a: a * 2)({t})", "del out[:1]", "p.data.add_(1)",
]  # fmt: skip
NUMBERS = ["{k}", "{t}.shape[0]", "int(i.sum())", "s.n", "{t}.dim()", "{t}.sum().item()"]
CONDITIONS = ["{t}.sum() > {f}", "({t} > 0).any()", "{n} > 1", "s.n > 1", "{t}.requires_grad", "{t}.shape[0] > 2", "{t}.isnan().any()"]  # fmt: skip
COMPOUND = ("if", "else", "early", "raise", "for", "with")


def _filled(piece: str, rng: random.Random) -> str:
    """With expressions of the inner function's argument in place of {a}."""
    while "{a}" in piece:
        piece = piece.replace("{a}", rng.choice(INSIDE), 1)
    return piece


def program(seed: int) -> str:
    """The program of this seed."""
    rng = random.Random(seed)
    higher = [_filled(rng.choice(HIGHER), rng) for _ in range(3)] if seed % 4 == 0 else []
    func = [_filled(rng.choice(FUNC), rng) for _ in range(5)] if seed % 4 else []
    values = [*VALUES, *(higher + func) * 6]
    changes = [*branches.CHANGES, "bias = bias * 2", "stacked['weight'] = torch.zeros(2, 3, 3)", "seen.clear()"]
    tables = Tables(CONDITIONS, values, NUMBERS, STATEMENTS, SETUP + LATER, COMPOUND, changes=changes, depth=1)
    return grown(tables, seed)
