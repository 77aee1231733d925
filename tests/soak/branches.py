"""Programs whose values decide: branches, checks, loops and short forms on tensors; numbers and sizes that are read of them."""

from __future__ import annotations

from .bodies import Tables
from .bodies import program as grown

CONDITIONS = [
    "{t}.sum() > {f}", "({t} > {f}).any()", "({t} > {f}).all()", "{t}.isnan().any()", "not ({t} < {f}).all()", "{t}.mean() > 0 and {t}.sum() > 1",
    "{t}.sum() > 1 or {t}.max() < 0", "{n} > {k}", "{n} == {k}", "{t}.numel() > 0", "{t}.shape[0] > 2 and {t}.sum() > 0", "torch.equal({t}, {t})",
    "torch.allclose({t}, {t})", "(m := {t}.sum()) > 0", "0 < {t}.sum() < 3", "{t}.any()", "bool({t}.any())", "{t}[0] > 0", "{t}.sum()", "not {t}.sum()",
    "{t}.sum().item() > {f}", "{t}.isfinite().all()", "i.numel() and i.max() > 1", "i.sum() > {k}", "{t}.max() > {t}.min()", "{t} is {t}", "s.flag", "s.n > 1",
    "len({t}) > 1", "{t}.requires_grad", "s.a.sum() > 0", "({t} == {t}).all()", "{t}.dim() == 1 and {t}.norm() > 1", "{t}.abs().max() != 0", "{n} in (1, 2)", "i.max().item() > 0",
    "any([{t}.sum() > 2, {t}.sum() < 0])", "all(v > -1 for v in ({t}.sum(), {t}.sum()))", "bool({n})", "{t}.sum() > {t}.sum()", "True if {t}.sum() > 0 else {n} > 1", "not ({t}.sum() > 0 and {n})",
]  # fmt: skip
VALUES = [
    "{t} + 1", "{t} * {t}", "{t} - {f}", "{t}.relu()", "torch.sin({t})", "{t}.exp()", "{t}.sum()", "{t}.abs().sqrt()", "{t}.log()", "1 / {t}", "{t} / {t}", "{t}.clone()", "{t}.detach()", "{t}",
    "{t}.view(-1)", "{t}[:1]", "{t}[1:]", "{t}.double()", "{t}.t() if {t}.dim() == 2 else {t}", "{t}.flip(0)", "{t}.mean(0)", "{t}.cumsum(0)", "{t} + {t}.sum()", "{t}.softmax(-1)", "{t} * {n}", "{t} + {n}",
    "{t}[{t} > {f}]", "{t}.nonzero()", "{t}.unique()", "{t}[i]", "{t}[{n}:]", "{t}[:{n}]", "{t}.repeat_interleave(2, 0)", "i.repeat_interleave(i)", "torch.zeros({n})", "torch.arange({n})", "{t}.new_ones({n}, 2)",
    "{t}.masked_select({t} > 0).sum()", "torch.where({t} > 0)[0]", "{t}.expand({n}, *{t}.shape)", "{t}.split([1, len({t}) - 1])[1]", "{t}.narrow(0, 0, {n})", "torch.full((2,), {n})", "{t}.sum().item() * {t}",
    "{F}({t})", "{F}({t})", "lin({t}[:3]) if {t}.shape == (3,) else {t}", "{t} * p.sum()", "max({t}.sum(), {t}.mean())", "min({t}.max(), {f})", "torch.stack([{t}.sum(), {t}.max()])", "{t} if {c} else {t} * 2",
    "i.bincount()", "torch.bincount(i, minlength={k})", "{t}.chunk(2)[0]", "torch.tensor([{n}, 1])", "{t}.take(i)", "torch.cat([{t}, {t}[:{n}]])", "{t}.roll({n}, 0)", "{t}.unsqueeze(0)", "{t}.index_select(0, i)", "({t}[{t} > 0] * p.sum()).index_select(0, i)", "{t}[{t} > {f}][i]",
    "F.one_hot(i, 4)", "F.pad({t}, (0, {n}))", "{t}.pow({n})", "{t}.select(0, {n})", "{t}[{n}]", "{t}[i[0]]", "{t}[..., i.max()]", "{t}.topk({n}, 0)[0]", "{t}.reshape({n}, -1)", "torch.linspace(0, 1, {n})", "torch.eye({n})",
    "i.float().mean() + {t}", "{t}.nonzero().shape[0] * {t}", "{t}.unique(return_counts=True)[1]", "{t}.sort()[0]", "{t}.argmax()", "{t}.to(torch.int64)", "look({t})", "look({t} * 2)", "{t}[{t} != 0].mean()", "i.unique().numel() + {t}",
    "torch.ones({n} // 2 + 1)", "{t}.nonzero().view(-1)", "{t}[{t} > 0].unsqueeze(-1) @ {t}[{t} > 0].unsqueeze(0)", "torch.split({t}, i.tolist())[0]", "{t}.masked_fill({t} > 0, {n})", "torch.scalar_tensor({n})", "{t}.fill_diagonal_(1) if {t}.dim() == 2 else {t}",
]  # fmt: skip
NUMBERS = [
    "{k}", "{t}.shape[0]", "len({t})", "int({t}.sum())", "{t}.sum().int().item()", "int(i.max())", "i.sum().item()", "({t} > 0).sum().item()", "{t}.nonzero().shape[0]", "{t}.unique().numel()", "i.tolist()[0]", "len(i.tolist())", "s.n", "{t}.sum().item()",
    "float({t}.max())", "{t}.mean().item()", "{n} + 1", "{n} * 2", "{n} // 2", "{n} % 3", "-{n}", "abs({n})", "max({n}, 1)", "min({n}, 2)", "({t} > 0).any().item()", "{t}.argmax().item()", "int({n})", "float({n})", "bool({n})", "{n} - {n}", "{t}[{t} > 0].shape[0]",
    "{t}.size(0) + {n}", "i[0].item()", "sum(i.tolist())", "{n} if {c} else {k}", "round({n})", "i.numel()", "{n} ** 2", "{n} / 2", "{t}.stride(0)", "{t}.dim()", "{t}.nonzero().numel() // {t}.dim()", "str({n})", "{n} == 1", "{n} & 1", "hash({n}) % 5", "[3, 4, 5][{n}]", "int({t}.dtype == torch.float32)",
]  # fmt: skip
STATEMENTS = [
    "{t}.add_(1)", "{t}.mul_({f})", "{t}[0] = {f}", "{t}[{t} > 0] = {f}", "{t}.copy_({t})", "{t} += 1", "{t} *= {t}", "s.a = {t}", "s.n += 1", "s.n = {n}", "s.flag = not s.flag", "out.append({t})", "out.append({n})", "print({n})", "print('here')", "print({t}.sum())",
    "s.a = {t} * 2", "s.b = {n}", "out.append(({t}, {n}))", "torch._check({n} >= 0)", "torch._check({n} < 9, lambda: 'bad check')", "torch._check({n} == {k})", "torch._check(len({t}.nonzero()) < 3)", "torch._check(i.sum().item() != 2, lambda: 'two')", "{t} = look({t})", "look({t})", "out.clear()", "s.a.add_(1)", "{t}.zero_()", "{t}.relu_()", "{t}[i] = {f}", "{t}[:{n}] = 0", "{t}.index_add_(0, i, {t}[i])",
    "print(f'{{t}.max():.2f}')", "{t}.fill_({n})", "del out[:1]", "{t}.t_() if {t}.dim() == 2 else None", "s.a = s.a.detach()", "{t} = {t}.detach()", "out.append(tuple({t}.shape))", "out += [{n}]", "torch._check(i.numel() < 9)", "s.d = {'k': {t}}", "s.a = None if {c} else {t}", "global g; g = {n}",
    "torch._assert({c}, 'no way')", "{t}.masked_fill_({t} > 0, {f})", "{t}.data.add_(1)", "{t}.view(-1)[:1].add_(1)", "s.n = len({t}.nonzero())", "a, b = {t}.sum(), {t}.mean()\nout.append(a if a > b else b)", "out.append({t}.tolist())", "out.append([v.item() for v in {t}.view(-1)])",
]  # fmt: skip
CHANGES = ["s.n = 3", "s.flag = False", "s.a = torch.zeros(3)", "s.a = torch.ones(3, requires_grad=True)", "p.grad = None", "out.clear()", "s.a = x", "s.n = 1.0", "p.data.mul_(-1)", "s.a = -torch.ones(2, 2)"]  # fmt: skip
TABLES = Tables(CONDITIONS, VALUES, NUMBERS, STATEMENTS, changes=CHANGES)


def program(seed: int) -> str:
    """The program of this seed."""
    return grown(TABLES, seed)
