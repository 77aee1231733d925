"""Programs about tensors' memory: arguments that overlap, views that are written to, buffers set and deleted, dtypes, sizes 0 and 1, gradients of inputs."""

from __future__ import annotations

from . import branches
from .bodies import Tables
from .bodies import program as grown

SETUP = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('b', torch.ones(3))
        self.register_buffer('c', torch.zeros(3), persistent=False)
        self.w = nn.Parameter(torch.ones(3))
        self.t = torch.full((3,), 2.0)
        self.n = 1
    def forward(self, t):
        self.b = self.b * 0.5 + 1
        self.c.add_(1)
        return t * self.b.sum() + self.c.mean()
net = Net()
base = torch.arange(12.0).view(3, 4)
half, ints, mask, cplx = torch.ones(3, dtype=torch.float16), torch.arange(3), torch.tensor([True, False, True]), torch.ones(3, dtype=torch.complex64)
leaf = torch.ones(3, requires_grad=True)
def kept(t, shift=torch.ones(3), scale=torch.tensor(2.0)):
    scale += 1
    return t * scale + shift.sum()
"""
VALUES = [
    "{t} + 1", "{t} * 2.5", "{t} + True", "{t} + 1j", "{t} * {n}", "{t} / 2", "{t} // 2", "{t} % 3", "{t} ** 2", "2 ** {t}", "{t} + torch.tensor(1)", "{t} + torch.tensor(1.5, dtype=torch.float64)", "{t} * torch.tensor(2, dtype=torch.int64)", "{t} + half.sum()", "ints + {f}", "ints + {k}", "ints / 2", "mask + {k}", "mask * {f}", "mask & True", "cplx * {f}", "half * {f}", "half + ints", "half + {t}.sum()", "ints * {t}.sum()", "ints.sum() * {f}", "torch.tensor({f}) + ints", "torch.where(mask, {f}, {k})", "torch.where(mask, ints, {f})", "ints.clamp({k}, {f})", "torch.add(ints, {k}, alpha=2)", "{t}.sum(dtype=torch.float64)", "ints.mean(dtype=torch.float32)", "ints.sum()", "mask.sum()", "half.sum()", "ints.cumsum(0)", "ints.prod()", "torch.full((2,), {k})", "torch.arange({k}, 6, 2)", "{t}.to(torch.float64)", "{t}.int()", "{t}.type_as(ints)",
    "{t}.view(-1)", "{t}.t() if {t}.dim() == 2 else {t}", "{t}[:1]", "{t}[1:]", "{t}[::2]", "{t}[:0]", "{t}.unsqueeze(0)", "{t}.unsqueeze(-1)", "{t}.squeeze()", "{t}.expand(2, *{t}.shape)", "{t}.detach()", "{t}.flip(0)", "{t}.reshape(-1, 1)", "{t}.reshape(1, -1)", "{t}.unfold(0, 1, 1)", "{t}.contiguous()", "{t}.clone()", "{t}", "{t}.data", "{t}[None]", "{t}[..., None]", "{t}.movedim(0, -1)", "{t}.chunk(2)[0]", "{t}.split(1)[0] if len({t}) else {t}", "{t}.diagonal() if {t}.dim() == 2 else {t}", "base", "base[0]", "base[:, 1]", "base.t()", "base[1:, ::2]", "base.view(-1)[2:5]", "base.sum(0)", "base.mean(1, keepdim=True)", "{t}.view_as({t})", "{t}.as_strided((2,), (1,)) if {t}.numel() > 1 else {t}", "torch.cat([{t}, {t}])", "torch.stack([{t}, {t}])", "torch.stack([{t}, {t}], -1)", "torch.cat([{t}[:0], {t}])", "{t}.prod(-1, keepdim=True)", "{t}.sum(0, keepdim=True)", "{t}.amax(-1) if {t}.shape[-1] else {t}", "{t}.cumsum(-1)", "{t}.softmax(-1)", "{t}.sort()[0]", "{t}.new_zeros(1, 3)", "torch.zeros_like({t})", "torch.empty_like({t}).fill_(1)", "torch.ones(1) * {t}", "torch.ones(0) if {t}.numel() == 0 else {t}", "{t} @ {t}.t() if {t}.dim() == 2 else {t}", "F.pad({t}, (1, 0))", "{t}.repeat(2, *[1] * ({t}.dim() - 1))", "{t}.roll(1, 0)", "{t}.permute(*range({t}.dim() - 1, -1, -1))", "{t}.to(memory_format=torch.preserve_format, copy=True)",
    "net({t})", "net.b * 2", "net.c", "net.t", "net.w", "net.w * {t}.sum()", "leaf * {t}.sum()", "leaf.sin()", "leaf.detach()", "leaf[:2]", "kept({t})", "{F}({t})", "look({t})", "{t}.requires_grad_(False) if {t}.is_leaf else {t}", "{t}.real", "{t}.abs()", "torch.add({t}, {t}, out=torch.empty_like({t})) if not {t}.requires_grad else {t}",
]  # fmt: skip
NUMBERS = ["{k}", "{t}.shape[0]", "{t}.stride(0)", "{t}.dim()", "{t}.storage_offset()", "int({t}.is_contiguous())", "int({t}._is_view())", "int({t}.requires_grad)", "int({t}.is_leaf)", "int({t}.dtype == torch.float32)", "{t}._version", "net.n", "len(net._buffers)", "len([*net.buffers()])", "len(net.state_dict())", "{t}.element_size()", "{t}.numel()", "int({t} is {t})", "int({t}._base is None)", "int(torch.result_type({t}, 1.5) == {t}.dtype)", "net.b.numel()", "s.n"]  # fmt: skip
STATEMENTS = [
    "{t}.add_(1)", "{t}.mul_({f})", "{t}[:1] = {f}", "{t}[1:].add_({k})", "{t}.view(-1)[:1].mul_(2)", "{t}.zero_()", "{t}.copy_({t})", "{t}.t_() if {t}.dim() == 2 else None", "{t} += 1", "{t} *= 2", "{t}.data.add_(1)", "{t}.detach().add_(1)", "{t}.fill_({k})", "{t}[...] = {t}", "{t}.squeeze_()", "{t}.unsqueeze_(0)", "base.add_(1)", "base[0].zero_()", "base[:, 1] += {f}", "base.t()[0].mul_(2)", "v = {t}[:2]\nv.add_(1)\nout.append({t}.clone())", "v = {t}.view(-1)\nlook(v)\nv.mul_(2)\nout.append({t}.sum())", "a, b = {t}, {t}\na.add_(1)\nout.append(b.clone())", "v = {t}.clone()\nv[0:1] = {t}[0:1]\n{t} = v", "v = {t} * 1\nv.add_(1)\n{t} = v", "v = {t} * 1\nw = v[:1]\nv.mul_(2)\nout.append(w)", "v = {t}.expand(2, *{t}.shape)\nout.append(v.clone())\n{t}.add_(1)", "i.add_(1)", "ints.add_(1)", "mask.logical_not_()", "half.mul_(2)", "ints[0] = {k}",
    "net.b = {t}.detach()", "net.b = torch.zeros(3)", "net.b.add_(1)", "net.b = None", "del net.c\nnet.c = torch.ones(3)", "del net.c\nnet.register_buffer('c', torch.ones(3))", "net.register_buffer('e', {t}.detach().clone())", "net.t = {t}", "net.t = net.t + 1", "net.n += 1", "net.w.data.mul_(2)", "net.w = nn.Parameter(torch.zeros(3))", "net.w.requires_grad_(False)", "net._buffers['b'] = torch.ones(2)", "out.append([k for k, _ in net.named_buffers()])", "out.append([k for k, _ in net.named_parameters()])", "net.b, net.c = net.c, net.b", "net.b.data = torch.ones(3) * 3", "setattr(net, 'b', torch.full((3,), {f}))", "net.zero_grad()", "net.b.copy_(torch.ones(3))\nlook({t})",
    "out.append({t})", "out.append({t}.shape)", "out.append({t}.dtype)", "out.append({t}.stride())", "look({t})", "print('here')", "s.a = {t}", "s.a = {t}[:1]", "s.a.add_(1)", "s.a = s.a.detach()", "{t} = {t}.detach()", "{t} = {t}.detach().requires_grad_()", "out.append(leaf.grad)", "(leaf * 2).sum().backward()", "leaf.grad = None", "with torch.no_grad():\n    leaf.add_(1)", "with torch.no_grad():\n    {t}.mul_(2)", "leaf.data = leaf.data * 2", "v = leaf * 1\nv.mul_(2)\n{t} = v + 1", "v = leaf.clone()\nv[0] = 5\nout.append(v)", "out.append(torch.autograd.grad((leaf * leaf).sum(), leaf)[0])", "{t}.resize_(2) if not {t}.requires_grad and {t}.is_contiguous() else None", "torch.add({t}.detach(), 1, out=net.t) if {t}.shape == net.t.shape and {t}.dtype == net.t.dtype else None",
]  # fmt: skip
CONDITIONS = ["{t}.sum() > {f}", "{n} > 1", "{t}.is_contiguous()", "{t}.requires_grad", "{t}.shape[0] > 1", "{t}.numel()", "net.b is not None", "net.training", "{t}.dtype.is_floating_point", "{t} is x", "mask.any()", "ints.sum() > 3", "{t}.shape == {t}.shape", "{t}._is_view()", "s.flag", "leaf.grad is None", "hasattr(net, 'e')"]  # fmt: skip
CHANGES = [
    *branches.CHANGES, "x = x.double()", "x = x.int()", "x = x.to(torch.complex64)", "x = x > 0", "y = y.double()", "y = x[:1]", "y = x.view(-1)", "y = x[::2]", "x = torch.ones(1)", "x = torch.ones(0)", "x, y = torch.ones(2, 2), torch.ones(2, 2)", "x = torch.ones(1, 1)", "x = torch.ones(3, 1)", "x = torch.ones(2, 3).t()", "x = torch.ones(4)[::2]", "x = torch.ones(6)[2:5]", "x = base", "y = base[0]", "x, y = base[0], base.view(-1)[1:4]", "x = net.b", "x = leaf", "x, y = leaf, leaf", "x = leaf[:2]", "y = x.t() if x.dim() == 2 else x", "x = torch.ones(3).requires_grad_()", "x = (torch.ones(3).requires_grad_() * 2)", "x = torch.ones(3).expand(2, 3)", "x = torch.ones(2, 0)", "x = nn.Parameter(torch.ones(3))",
    "net.b = torch.ones(3, dtype=torch.float64)", "net.b = None", "net.register_buffer('e', torch.ones(1))", "net.t = net.b", "net.c = net.b", "net.w = nn.Parameter(torch.ones(1))", "net.eval()", "net.double()", "net.float()", "del net.c", "net.n = 2.0", "base = torch.ones(4, 3).t()", "base = base.double()", "half = half.float()", "ints = ints.int()", "ints = ints[:0]", "mask = ~mask", "leaf = torch.zeros(3, requires_grad=True)", "leaf.requires_grad_(False)", "leaf.grad = torch.ones(3)", "kept.__defaults__ = (torch.zeros(1), torch.tensor(1))", "kept.__defaults__[0].add_(1)", "s.a = base", "s.a = base[1]", "s.a = y", "i = i.int()", "i = i[:0]",
]  # fmt: skip
TABLES = Tables(CONDITIONS, VALUES, NUMBERS, STATEMENTS, SETUP, ("if", "else", "early", "for", "with"), ("torch.no_grad()", "torch.enable_grad()"), CHANGES, 0.25)  # fmt: skip


def program(seed: int) -> str:
    """The program of this seed."""
    return grown(TABLES, seed)
