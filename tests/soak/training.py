"""Programs that take gradients, and whose gradients are taken: custom functions, checkpoints, writes, views, detached tensors, hooks."""

from __future__ import annotations

from . import branches
from .bodies import Tables
from .bodies import program as grown

SETUP = """\
from torch.utils.checkpoint import checkpoint
from torch.autograd import grad, Function
class Twice(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * 2
    @staticmethod
    def backward(ctx, g):
        a, = ctx.saved_tensors
        return g * 2 + a * 0
class Straight(Function):
    @staticmethod
    def forward(ctx, a, k):
        ctx.k = k
        return a.round() * k
    @staticmethod
    def backward(ctx, g):
        return g * ctx.k, None
class Pair(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        c = a > 0
        ctx.mark_non_differentiable(c)
        return a * b, c
    @staticmethod
    def backward(ctx, g, _):
        a, b = ctx.saved_tensors
        return g * b if ctx.needs_input_grad[0] else None, g * a if ctx.needs_input_grad[1] else None
class Dirty(Function):
    @staticmethod
    def forward(ctx, a):
        a.mul_(2)
        ctx.mark_dirty(a)
        return a
    @staticmethod
    def backward(ctx, g):
        return g * 2
class Odd(Function):
    @staticmethod
    def forward(a, b=None):
        return a.clone(), a.view(-1)
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.n = inputs[0].shape
    @staticmethod
    def backward(ctx, g, h):
        r = None if g is None else g * 3
        if h is not None:
            r = h.view(ctx.n) if r is None else r + h.view(ctx.n)
        return r, None
def noisy(a):
    return F.dropout(a, 0.5) * 2
"""
VALUES = [
    "{t} + 1", "{t} * {t}", "{t} - {f}", "{t}.relu()", "torch.sin({t})", "{t}.exp()", "{t}.sum()", "{t}.sqrt()", "{t}.clone()", "{t}.detach()", "{t}", "{t}.view(-1)", "{t}[:1]", "{t}[1:]", "{t}.double()", "{t}.t() if {t}.dim() == 2 else {t}", "{t}.expand(2, *{t}.shape)", "{t}.mean(0)",
    "Twice.apply({t})", "Straight.apply({t}, {k})", "Pair.apply({t}, {t})[0]", "Pair.apply({t}, {t})[1]", "Dirty.apply({t} * 1)", "Dirty.apply({t})", "Odd.apply({t})[0]", "Odd.apply({t})[1]", "Twice.apply({t}.detach())", "Pair.apply({t}, {t}.detach())[0]", "Twice.apply(Straight.apply({t}, 2))",
    "checkpoint(torch.sin, {t}, use_reentrant=False)", "checkpoint(lambda a: a * {t}, {t}, use_reentrant=False)", "checkpoint({F}, {t}, use_reentrant=False)", "checkpoint(noisy, {t}, use_reentrant=False)", "checkpoint(lambda a: Twice.apply(a).exp(), {t}, use_reentrant=False)", "checkpoint(torch.sin, {t}, use_reentrant=True)",
    "checkpoint(noisy, {t}, use_reentrant=False, preserve_rng_state=False)", "grad({t}.sum(), {t}, allow_unused=True)[0]", "grad(({t} * {t}).sum(), {t}, create_graph=True)[0]", "grad({t}.exp().sum(), [{t}, {t}], create_graph=True, allow_unused=True)[1]", "grad({t}, {t}, torch.ones_like({t}), retain_graph=True)[0]",
    "{t}.grad", "{t}.grad * 2 if {t}.grad is not None else {t}", "{t}.detach().requires_grad_()", "{t}.clone().requires_grad_()", "{t}.data", "{t}.data * 2", "{t}.detach()[:1]", "({t} * {t}.detach()).sum()", "{t}.requires_grad_()", "{t} * p.sum()", "lin(torch.ones(3) * {t}.sum())", "F.linear({t}[:3], lin.weight) if {t}.shape == (3,) else {t}",
    "torch.where({t} > 0, {t}, {t}.sqrt())", "{t}.masked_fill({t} > 0, {f})", "torch.stack([{t}.sum(), {t}.max()])", "torch.cat([{t}, {t}])", "{t}.unbind(0)[0]", "{t}.chunk(2)[-1]", "{t}.norm()", "{t}.max(0)[0]", "{t}.softmax(-1)", "F.dropout({t}, 0.5)", "nn.Parameter({t}.detach())", "nn.Parameter({t}.clone())", "look({t})", "look({t} * 2)",
    "{t} if {t}.requires_grad else {t} * 3", "{t}.float()", "{t}.view_as({t})", "{t}.squeeze()", "{t}.diagonal() if {t}.dim() == 2 else {t}", "{t}.unfold(0, 1, 1)", "torch.empty_like({t}).copy_({t})", "torch.zeros_like({t}).add_({t})", "torch.zeros(3).index_add(0, i, {t}[i])", "{F}({t})", "{t}.real", "torch.conj({t})", "{t}.as_strided((1,), (1,))",
]  # fmt: skip
STATEMENTS = [
    "{t}.add_(1)", "{t}.mul_({f})", "{t}.mul_({t})", "{t}[0] = {f}", "{t}[:1] = {t}[:1]", "{t}.copy_({t})", "{t} += 1", "{t} *= {t}", "{t}.relu_()", "{t}.exp_()", "{t}.detach_()", "{t}.requires_grad_()", "{t}.requires_grad_(False)", "{t}.data.add_(1)", "{t}.detach().mul_(2)", "{t}.zero_()", "{t}.view(-1).add_(1)",
    "{t}.sum().backward()", "({t} * {t}).sum().backward()", "{t}.exp().sum().backward(retain_graph=True)", "({t} * 2).sum().backward(inputs=[{t}])", "{t}.backward(torch.ones_like({t}))", "{t}.grad = None", "{t}.grad = torch.ones_like({t})", "p.grad = None", "{t}.retain_grad()", "{t}.register_hook(lambda g: g * 2)", "{t}.register_hook(lambda g: out.append(g))",
    "out.append({t})", "s.a = {t}", "s.a = {t}.detach()", "out.append({t}.grad)", "out.append({t}.requires_grad)", "out.append({t}.grad_fn is None)", "out.append({t}.is_leaf)", "out.append({t}._version)", "with torch.no_grad():\n    {t}.sub_(0.1)", "with torch.no_grad():\n    {t}.mul_({t})", "with torch.no_grad():\n    v = {t}.view(-1)\nout.append(v.requires_grad)",
    "{t} = look({t})", "look({t})", "{t} = {t}.detach()", "{t}.data = {t}.data * 2", "{t}.data = {t}", "torch.autograd.backward([{t}.sum(), {t}.mean()])", "with torch.set_grad_enabled({t}.dim() > 1):\n    {t} = {t} * 2", "{t}.grad.zero_() if {t}.grad is not None else None", "p.data.sub_(0.1 * p.grad) if p.grad is not None else None", "lin.zero_grad()", "lin.weight.grad = None",
    "with torch.autograd.graph.saved_tensors_hooks(lambda v: v * 1, lambda v: v):\n    {t} = {t}.exp()", "{t}.t_() if {t}.dim() == 2 else None", "{t}.unsqueeze_(0)", "{t}.index_fill_(0, i, {f})", "p.sum().backward()", "(lin(torch.ones(3)) * {t}.sum()).sum().backward()", "loss = ({t} * p.sum()).sum()\nloss.backward()\nout.append(loss.detach())",
]  # fmt: skip
NUMBERS = ["{k}", "{t}.shape[0]", "s.n", "{t}.dim()", "int({t}.requires_grad)", "{t}._version", "len(out)", "{t}.sum().item()", "int({t}.is_leaf)", "int({t}.grad is None)"]  # fmt: skip
CONDITIONS = ["{t}.sum() > {f}", "{t}.requires_grad", "{t}.grad is None", "{t}.is_leaf", "{n} > 1", "({t} > 0).any()", "torch.is_grad_enabled()", "{t}.grad_fn is not None", "s.n > 1", "{t} is {t}", "{t}.isnan().any()"]  # fmt: skip
CHANGES = [*branches.CHANGES, "p.requires_grad_(False)", "p.requires_grad_(True)", "p.grad = torch.ones(3)", "lin.requires_grad_(False)", "lin.zero_grad()", "p = nn.Parameter(torch.ones(3))", "torch.manual_seed(3)"]  # fmt: skip
CONTEXTS = ("torch.no_grad()", "torch.enable_grad()", "torch.set_grad_enabled(True)", "torch.inference_mode()", "torch.autocast('cpu', torch.bfloat16)", "torch.inference_mode(False)")  # fmt: skip
TABLES = Tables(CONDITIONS, VALUES, NUMBERS, STATEMENTS, SETUP, ("if", "else", "early", "raise", "for", "with", "try"), CONTEXTS, CHANGES, 0.6, 1)  # fmt: skip


def program(seed: int) -> str:
    """The program of this seed."""
    return grown(TABLES, seed)
