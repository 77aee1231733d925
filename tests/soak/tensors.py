"""Tensor programs: views, writes in place, aliases of arguments and parameters, all dtypes, layouts, sizes 0 to 257, special values.

A program is grown beside its own eager run: a statement that raises is mostly taken back, so that every program gets somewhere.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from .script import HEADER, Invalid, _put_back

SIZES = [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 9, 12, 15, 16, 17, 31, 32, 33, 64, 65, 127, 128, 129, 256, 257]
LARGEST = 70_000  # elements
FLOATS = ["float32"] * 8 + ["float64", "float16", "bfloat16", "bfloat16"]
DTYPES = FLOATS * 2 + ["int64", "int64", "int32", "int16", "int8", "uint8", "bool", "bool", "complex64", "complex128"]
SPECIAL = [*["float('nan')"] * 4, "float('inf')", "-float('inf')", "-0.0", "1e9", "1e-30", "0.0"]
SIGNED = [
    "-torch.rand({0}) - 0.5",
    "torch.rand({0}) + 0.5",
    "-torch.rand({0})",
]  # all on one side of what a reduction may start with
LAYOUTS = [
    "{0}.t()",
    "{0}.mT",
    "{0}[::2]",
    "{0}[..., ::2]",
    "{0}[..., 1:]",
    "{0}.transpose(0, -1)",
    "{0}.flip(0)",
    "{0}[None]",
    "{0}.squeeze()",
]
LAYOUTS += [
    "{0}.expand(3, *{0}.shape)",
    "{0}.unsqueeze(1).expand(-1, 2, *[-1] * ({0}.dim() - 1))",
    "{0}.as_strided((2, 3), (1, 2))",
    "{0}[..., :1]",
]
LAYOUTS += [
    "{0}.reshape(1, -1)",
    "{0}.flatten()",
    "{0}.movedim(0, -1)",
    "{0}.contiguous(memory_format=torch.channels_last)",
    "{0}.real",
    "{0}[:0]",
]


def _words(text: str) -> list[str]:
    return text.split()


SEVERAL = _words("max min median mode std_mean var_mean aminmax cummax cummin sort unbind")
UNARY = _words("""sin cos tanh sigmoid exp log sqrt rsqrt abs neg reciprocal floor ceil round trunc frac sign erf erfc expm1 log1p log2 log10 exp2 square relu
sinh cosh asinh atan isnan isinf isfinite logical_not bitwise_not isreal conj angle positive sgn lgamma digamma deg2rad rad2deg signbit
nan_to_num logit erfinv asin acosh atanh sinc i0""")
FUNCTIONS = _words("""relu gelu silu mish softplus softsign hardswish hardsigmoid hardtanh elu selu celu leaky_relu logsigmoid tanhshrink softshrink
hardshrink relu6 glu normalize""")
BINARY = _words("""add sub mul div maximum minimum atan2 fmod remainder floor_divide pow eq ne lt le gt ge logical_and logical_or logical_xor
bitwise_and bitwise_or bitwise_xor copysign hypot xlogy fmax fmin nextafter logaddexp heaviside ldexp gcd bitwise_left_shift bitwise_right_shift
float_power true_divide rsub where3""")
OPERATORS = ["+", "-", "*", "/", "//", "%", "<", ">=", "==", "!=", "&", "|", "^", "**", ">>"]
REDUCTIONS = _words("""sum mean amax amin prod std var logsumexp any all argmax argmin norm nansum nanmean count_nonzero median mode max min
std_mean var_mean aminmax cumsum cumprod cummax cummin logcumsumexp softmax log_softmax sort argsort unbind""")
FOLDS = _words(
    "sum prod amax amin argmax argmin max min any all mean logsumexp"
)  # each has its own value to start with
VIEWS = [
    "{0}.t()",
    "{0}.mT",
    "{0}.transpose({d}, {e})",
    "{0}.view(-1)",
    "{0}.reshape(-1)",
    "{0}.reshape({0}.shape[::-1])",
    "{0}.flatten()",
    "{0}.squeeze()",
    "{0}.unsqueeze({d})",
    "{0}[{i}]",
    "{0}[{i}:]",
    "{0}[:, {i}]",
    "{0}[..., ::2]",
    "{0}[::2, 1:]",
    "{0}[1:-1]",
    "{0}[None, ..., 0]",
    "{0}.narrow({d}, {i}, {j})",
    "{0}.select({d}, {i})",
    "{0}.diagonal()",
    "{0}.diagonal({i}, {d}, {e})",
    "{0}.unfold({d}, {j}, {k})",
    "{0}.as_strided(({j}, {k}), (1, {j}))",
    "{0}.as_strided(({j}, {k}), ({k}, 1), {i})",
    "{0}.expand({j}, *{0}.shape)",
    "{0}.expand_as({1})",
    "{0}.permute(*reversed(range({0}.dim())))",
    "{0}.movedim({d}, {e})",
    "{0}.swapaxes({d}, {e})",
    "{0}.chunk({k}, {d})[0]",
    "{0}.chunk(2)[-1]",
    "{0}.split({k}, {d})[-1]",
    "{0}.tensor_split({k})[0]",
    "{0}.unbind({d})[0]",
    "{0}.detach()",
    "{0}.view_as({0})",
    "{0}.view({0}.shape)",
    "torch.nan_to_num({0}).view(torch.uint8)",
    "torch.nan_to_num({0}).view(torch.int32)",
    "torch.view_as_real({0})",
    "{0}.real",
    "{0}.imag",
    "{0}.T",
    "{0}.H",
    "{0}.ravel()",
    "{0}.unflatten({d}, (1, -1))",
    "{0}.contiguous()",
    "{0}.to({0}.dtype)",
    "{0}.expand(-1, {k})",
    "torch.broadcast_to({0}, {1}.shape)",
    "{0}.data",
    "{0}.hsplit(1)[0]",
]
COPIES = [
    *["{0} @ {0}.mT", "{0}.mT @ {0}", "{0}.softmax(-1)", "{0} - {0}.mean(0, keepdim=True)", "{0}.cumsum(0)"] * 3,
    "{0}.clone()", "{0}.flip({d})", "{0}.roll({i}, {d})", "{0}.repeat({j}, {k})", "{0}.tile(2)", "torch.cat([{0}, {1}], {d})", "torch.cat([{0}, {0}], {d})",
    "torch.stack([{0}, {1}], {d})", "{0}.index_select({d}, torch.arange({j}).flip(0))", "{0}[torch.arange({j})]", "{0}[:, torch.tensor([0, {i}])]",
    "{0}[{0} > 0]", "{0}.masked_fill({1} > 0, {c})", "{0}.gather({d}, torch.zeros_like({0}, dtype=torch.long))", "torch.where({0} > {c}, {0}, {1})",
    "{0}.tril({i})", "{0}.triu()", "F.pad({0}, ({i}, {j}))", "F.pad({0}, ({i}, 0), value={c})", "{0}.to(torch.{t})", "{0}.to(torch.{t})", "{0}.type_as({1})", "{0}.double()",
    "{0}.long()", "{0}.bool()", "{0}.clamp({c}, 2)", "{0}.clamp_min({1})", "{0} @ {1}", "{0} @ {0}.mT", "torch.mm({0}, {1}.t())", "torch.bmm({0}, {1})", "{0}.matmul({1})",
    "F.linear({0}, {1})", "torch.addmm({2}, {0}, {1})", "torch.outer({0}, {1})", "torch.einsum('ij,kj->ik', {0}, {1})", "torch.dot({0}, {1})", "torch.lerp({0}, {1}, 0.3)", "torch.addcmul({0}, {1}, {2}, value={c})",
    "torch.addcdiv({0}, {1}, {2})", "{0}.topk({k}, {d})[0]", "{0}.sort({d})[0]", "{0}.kthvalue({k})[0]", "torch.bincount({0}.flatten().abs().long())", "{0}.unique()", "{0}.nonzero()", "{0}.diff()",
    "torch.searchsorted({0}.flatten().sort()[0], {1})", "{0}.scatter({d}, torch.zeros_like({0}, dtype=torch.long), {1})", "{0}.scatter_add({d}, torch.zeros_like({0}, dtype=torch.long), {0})",
    "{0}.index_add({d}, torch.zeros({0}.shape[{d}], dtype=torch.long), {0})", "{0}.index_fill({d}, torch.tensor([{i}]), {c})", "{0}.new_zeros({j}, {k}) + {c}", "torch.zeros_like({0})",
    "torch.full_like({0}, {c})", "torch.arange({j}, dtype=torch.{t})", "torch.linspace(0, {c}, {j})", "torch.ones({j}, {k}, dtype=torch.{t})", "torch.eye({j}, {k})", "torch.arange({0}.shape[0]).to(torch.{t})",
    "{0}.softmax({d})", "F.layer_norm({0}, {0}.shape[-1:])", "F.gelu({0}, approximate='tanh')", "F.one_hot({0}.abs().long())", "torch.complex({0}, {1})", "{0}.abs() ** 0.5", "{0}.cov()", "torch.meshgrid({0}, {1}, indexing='ij')[0]",
    "torch.trace({0})", "torch.kron({0}, {1})", "torch.cdist({0}, {1})", "torch.histc({0}, {k})", "{0}.logaddexp({1})", "{0}.renorm(2, {d}, 1.0)", "torch.nan_to_num({0}, nan={c})", "F.dropout({0}, 0.3, False)", "F.softmin({0}, {d})",
    "torch.tensordot({0}, {1}, 1)", "torch.block_diag({0}, {1})", "torch.cartesian_prod({0}, {1})", "torch.combinations({0})", "torch.rot90({0})", "torch.vander({0})", "torch.trapezoid({0})", "torch.repeat_interleave({0}, {k})",
    "F.scaled_dot_product_attention({0}, {1}, {2})", "F.max_pool1d({0}[None], {k})", "F.avg_pool2d({0}[None], {k})", "F.interpolate({0}[None, None], scale_factor=2.0)", "F.embedding({0}.abs().long(), {1})", "F.cross_entropy({0}, {1}.argmax(-1))",
    "torch.tensor({0}.shape)", "{0}.sum().item() + {0}", "{0} * {0}.shape[0]", "{0}[{1}.abs().long()]", "{0}[torch.arange({j}).to(torch.uint8).long()]", "{0}.sum_to_size(1)", "{0}.addmv({0}, {1})", "torch.clone({0}, memory_format=torch.contiguous_format)",
]  # fmt: skip
NAMELESS = [
    "{0} * 2 + 1", "{0}.sigmoid()", "{0}.softmax({d})", "{0}.cumsum({d})", "{0} - {0}.mean({d}, keepdim=True)", "{0}.flip({d})", "{0}.cumsum({d}).flip({d})", "{0} / {0}.norm()", "{0}.softmax({d}).mT.contiguous()",
    "{0}.roll(1, {d})", "{0} - {0}.amax({d}, keepdim=True)", "{0}.flip({d}).cumsum({d})", "{0}.abs()", "{0}.roll(1, {d}).softmax({e})", "{0}.mT.contiguous().cumsum({d})",
    "{0}.bfloat16().float()", "{0}.to(torch.int16).to(torch.float32)", "({0} * 100).to(torch.uint8).long()", "{0}.bool().to(torch.float32)", "{0}.half().to({0}.dtype)",
]  # fmt: skip
FOLDED = [
    "{0}.softmax({d})",
    "{0}.cumsum({d})",
    "{0} - {0}.amax({d}, keepdim=True)",
    "{0} / {0}.norm()",
    "F.layer_norm({0}, {0}.shape[-1:])",
]
MOVED = ["{0}.flip({d})", "{0}.roll(1, {d})", "{0}.mT.contiguous()", "{0} + {0}.flip({d})", "{0}.roll({i}, {d}) * 2"]
TAKEN = ["{0} @ {0}.mT", "{0}.mT @ {0}", "{0}.sort({d})[0]", "{0}.softmax({d})", "{0}.cumsum({d})"]
COMPARED = [
    *["torch.relu({0})", "F.relu({0}) * {1}", "{0}.clamp({c}, 2)", "{0}.clamp_min(0)", "torch.maximum({0}, {1})", "torch.minimum({0}, {1})", "F.relu6({0})"] * 3,
    "torch.relu({0})", "F.relu({0})", "F.relu6({0})", "{0}.clamp({c}, 2)", "{0}.clamp_min({c})", "{0}.clamp(max={1})", "torch.maximum({0}, {1})", "torch.minimum({0}, {c} + 0 * {0})", "torch.fmax({0}, {1})", "torch.fmin({0}, {1})",
    "{0}.amax({d})", "{0}.amin({d})", "{0}.max({d})[0]", "{0}.min({d})[-1]", "{0}.argmax({d})", "{0}.max()", "{0}.cummax({d})[0]", "{0}.sort({d})[0]", "F.hardtanh({0})", "F.threshold({0}, {c}, 2)", "{0}.sign()",
    "torch.where({0} > {1}, {0}, {1})", "F.leaky_relu({0}, 0.1)", "F.softshrink({0})", "{0}.isclose({1}, equal_nan=True)", "F.max_pool1d({0}[None], {k})", "F.max_pool1d({0}[None], 2, 1, 1)", "F.avg_pool1d({0}[None], 3, 2, 1, count_include_pad=False)",
]  # fmt: skip
WRITES = [
    *["{0}.add_({0}.flip({d}))", "{0}.copy_({0}.roll(1, {d}))", "{0}.mul_({0}.sum({d}, keepdim=True))", "{0}.sub_({0}.mT)", "{0} += {0}[:1]"],
    "{0}.add_({c})", "{0}.mul_({1})", "{0} += {1}", "{0} *= {c}", "{0} -= {0}", "{0}[{i}] = {c}", "{0}[{i}] = {1}", "{0}[:, {i}] = {1}", "{0}[..., ::2] = {c}", "{0}[{0} > 0] = {c}", "{0}[1:] = {0}[:-1].clone()",
    "{0}[1:] = {0}[:-1]", "{0}.copy_({1})", "{0}.t().copy_({1})", "{0}.zero_()", "{0}.fill_({c})", "{0}.t_()", "{0}.transpose_({d}, {e})", "{0}.unsqueeze_({d})", "{0}.squeeze_()", "{0}.relu_()", "{0}.clamp_(-1, {j})",
    "{0}.view(-1)[{i}] = {c}", "{0}.diagonal().add_({c})", "{0}.diagonal().fill_({c})", "{0}.as_strided(({j}, {k}), (1, {j})).mul_({c})", "{0}.index_fill_({d}, torch.tensor([{i}]), {c})", "{0}.index_add_({d}, torch.tensor([{i}]), {0}.narrow({d}, 0, 1))",
    "{0}.masked_fill_({1} > 0, {c})", "{0}.scatter_({d}, torch.zeros_like({0}, dtype=torch.long), {c})", "{0}.index_copy_({d}, torch.tensor([{i}]), {0}.narrow({d}, 0, 1) * 2)", "torch.add({0}, {1}, out={2})", "torch.mul({0}, {c}, out={0})", "torch.sin({0}, out={1})",
    "{0}.exp_()", "{0}.neg_()", "{0}.flatten().add_({c})", "{0}.unbind(0)[0].add_({c})", "{0}.narrow({d}, 0, 1).zero_()", "{0}.expand({j}, *{0}.shape)[0].add_({c})", "{0}.chunk(2)[0].copy_({0}.chunk(2)[-1])", "{0}.data.mul_({c})", "{0}.detach().add_({c})", "{0}[[0, {i}]] += {c}",
    "{0}.index_put_((torch.tensor([0, 0]),), torch.tensor({c}, dtype={0}.dtype), accumulate=True)", "{0}.unfold(0, 2, 1).sum()", "{0}.swapaxes_({d}, {e})", "{0}.bernoulli_(0.5)", "{0}.logical_not_()", "{0}.lerp_({1}, 0.5)", "{0}.addcmul_({1}, {2})", "{0}.resize_(0)", "{0}.set_({1})",
    "{0}.cumsum_({d})", "{0}.tril_()", "{0}.clamp_min_({1})", "{0}.sub_({0}.mean())", "{0}.floor_()", "{0}.pow_(2)", "{0}.real.add_({c})", "{0}[None].mul_({c})", "{0}.movedim(0, -1).add_({1})", "F.relu({0}, inplace=True)", "F.silu({0}, inplace=True)", "{0}.div_({1}.abs() + 1)",
]  # fmt: skip


class Grower:
    """Grows one program, with the eager values of all names at hand."""

    def __init__(self, seed: int, steps: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.scope: dict[str, Any] = {}
        exec(HEADER, self.scope)
        torch.manual_seed(seed)
        self.setup: list[str] = []
        self.body: list[str] = []
        self.names: list[str] = []
        self.steps = steps or self.rng.choice([1, 2, 2, 3, 4, 5, 7, 10])
        self.sizes = {k: self.size() for k in "nmk"}
        self.stems: list[str] = []
        self.special = self.rng.random() < 0.3  # whether there are special values in what it is given

    def size(self) -> int:
        small = self.rng.random() < 0.75
        return self.rng.choice(SIZES[:14] if small else SIZES)

    def program(self) -> str:
        rng = self.rng
        makers = [self.argument(k) for k in range(rng.choice([1, 2, 2, 3]))]
        arguments = [name for name, _ in makers]
        parameter = rng.random() < 0.2
        if parameter:
            makers_of_parameter = self.parameter()
            self.setup.append(makers_of_parameter)
        made = [line for _, lines in makers for line in lines]
        self.execute([line.format(**self.sizes) for line in made])
        if parameter and rng.random() < 0.4:
            alias = rng.choice(
                ["x0 = p.detach()", "x0 = p.data[:1]", "x0 = p.detach().t()", "x0 = p.detach().flatten()"]
            )
            made.append(alias)
            self.execute([alias])
        self.names = [*arguments, *(["p"] if parameter else [])]
        for k in range(self.steps):
            self.statement(f"v{k}")
        kept = [n for n in reversed(self.names) if n.startswith("v")] or self.names
        results = [*kept[: rng.choice([1, 1, 2, 3, 5])], *([rng.choice(self.names)] if rng.random() < 0.2 else [])]
        body = [*self.body, f"return {', '.join(results)}{',' if len(results) > 1 or rng.random() < 0.3 else ''}"]
        lines = [
            HEADER.rstrip(),
            *self.setup,
            f"def f({', '.join(arguments)}):",
            *("    " + b for b in body),
            "f = intarsia.compile(f)",
        ]
        for call in range(rng.choice([1, 2, 2, 3])):
            if call and rng.random() < 0.6:
                which = rng.choice(list(self.sizes))
                self.sizes[which] = self.size()
            if call == 0 or rng.random() < 0.85:
                lines += [line.format(**self.sizes) for line in made]
            lines += self.called(arguments)
        return "\n".join(lines) + "\n"

    def called(self, arguments: Sequence[str]) -> list[str]:
        """A call, under a mode, or with gradients."""
        rng, call = self.rng, f"f({', '.join(arguments)})"
        draw = rng.random()
        if draw < 0.12:
            floats = [
                a
                for a in arguments
                if isinstance(self.scope.get(a), torch.Tensor) and self.scope[a].is_floating_point()
            ]
            lines = [f"{a} = {a}.detach().requires_grad_()" for a in floats[:2]]
            return [
                *lines,
                f"r = {call}",
                "r = r if isinstance(r, tuple) else (r,)",
                "sum(t.double().abs().sum() for t in r if t.requires_grad).backward()",
            ]
        if draw < 0.17:
            return [f"with torch.no_grad(): r = {call}"]
        if draw < 0.2:
            return [f"with torch.inference_mode(): r = {call}"]
        if draw < 0.23:
            return [f"with torch.autocast('cpu', torch.bfloat16): r = {call}"]
        return [call]

    def execute(self, lines: Sequence[str]) -> None:
        try:
            for line in lines:
                exec(line, self.scope)
        except Exception as error:
            raise Invalid(str(error)) from error

    def argument(self, number: int) -> tuple[str, list[str]]:
        """An argument's name and the statements that make it, with sizes in braces."""
        rng, name = self.rng, f"x{number}"
        if number and rng.random() < 0.3:
            views = [
                "{0}",
                "{0}[1:]",
                "{0}.t()",
                "{0}.view(-1)",
                "{0}.detach()",
                "{0}[..., ::2]",
                "{0}.diagonal()",
                "{0}[:1]",
                "{0}.flatten()[1:]",
                "{0}.unsqueeze(0)",
                "{0}.expand(2, *{0}.shape)",
            ]
            return name, [f"{name} = {rng.choice(views).format('x0')}"]
        if rng.random() < 0.06:
            return name, [f"{name} = {rng.choice(['3', '2.5', 'True', '-1', '0', '{n}', '1e-3'])}"]
        dtype = rng.choice(DTYPES if rng.random() < 0.6 else FLOATS)
        dims = [
            rng.choice(["{n}", "{m}", "{k}", "{n}", "{m}", str(self.size())])
            for _ in range(rng.choice([0, 1, 1, 2, 2, 2, 2, 3, 3, 4]))
        ]
        if number and rng.random() < 0.6 and self.stems:
            shape = rng.choice(self.stems)
        else:
            shape = ", ".join(dims)
        self.stems.append(shape)
        shape = f"({shape},)" if shape else "()"
        if dtype == "bool":
            make = f"torch.rand({shape}) > 0.5"
        elif dtype.startswith(("int", "uint")):
            low, high = rng.choice([0, -5, -9]), rng.choice([2, 6, 100])
            high = 0 if low == -9 else high
            low, high = (0, max(high, 2)) if dtype == "uint8" else (low, high)
            make = f"torch.randint({low}, {high}, {shape}, dtype=torch.{dtype})"
        elif dtype in FLOATS and rng.random() < 0.12:
            make = f"({rng.choice(SIGNED).format(shape)}).to(torch.{dtype})"
        elif rng.random() < 0.4:
            make = f"torch.randint(-8, 9, {shape}).to(torch.{dtype}) / 4"
        else:
            make = f"torch.randn({shape}, dtype=torch.{dtype})"
        lines = [f"{name} = {make}"]
        if dtype in FLOATS and self.special:
            for special in dict.fromkeys(rng.choice(SPECIAL) for _ in range(rng.choice([1, 2, 3]))):
                at = rng.choice(["", "", 1, 2]), rng.choice([2, 3, 5])
                lines.append(f"{name}.view(-1)[{at[0]}::{at[1]}] = {special}")
        if rng.random() < 0.3:
            layout = rng.choice(LAYOUTS).format(name)
            lines.append(f"{name} = {layout}".replace("{", "{{").replace("}", "}}"))
        try:
            self.execute([line.format(**self.sizes) for line in lines])
        except Invalid:
            return name, lines[:1]
        value = self.scope[name]
        return (
            (name, lines)
            if not isinstance(value, torch.Tensor) or value.numel() <= LARGEST
            else (name, [f"{name} = torch.randn(3, 4)"])
        )

    def parameter(self) -> str:
        shape = ", ".join(str(self.size()) for _ in range(self.rng.choice([1, 2, 2])))
        line = f"p = nn.Parameter(torch.randn({shape}))"
        self.execute([line])
        return line

    def pick(self) -> str:
        recent = self.names[-2:] if self.rng.random() < 0.6 else self.names
        return self.rng.choice(recent)

    def statement(self, name: str) -> None:
        """One more statement that eager runs; after some tries, one that it does not run."""
        for attempt in range(12):
            line = self.guess(name)
            scope = dict(self.scope)
            kept = {n: _copied(scope[n]) for n in self.names}
            try:
                exec(line, scope)
                made = scope.get(name)
                if isinstance(made, torch.Tensor) and made.numel() > LARGEST:
                    continue
            except Exception:
                if attempt == 11 and self.rng.random() < 0.3:
                    self.body.append(line)
                for n, copied in kept.items():
                    if isinstance(copied, torch.Tensor) and copied.shape == self.scope[n].shape:
                        _restore(self.scope[n], copied)
                continue
            self.scope.update(scope)
            self.body.append(line)
            if isinstance(made, torch.Tensor):
                self.names.append(name)
            return

    def guess(self, name: str) -> str:
        rng = self.rng
        x, y, z = self.pick(), self.pick(), self.pick()
        while rng.random() < 0.3:  # a value without a name, which dies where it is used
            x = f"({rng.choice(NAMELESS).format(x, d=rng.choice([0, -1]), e=rng.choice([0, -1]))})"
        numbers = {
            "d": rng.choice([0, 0, 1, -1, -2]),
            "e": rng.choice([0, 1, -1, -2]),
            "i": rng.choice([0, 0, 1, 2, -1]),
            "j": rng.choice([0, 1, 2, 3, 4]),
            "k": rng.choice([1, 2, 3]),
            "c": rng.choice(
                ["0.5", "2", "-1", "0", "1.5", "3", "float('inf')", "float('nan')", "-0.0"]
                if rng.random() < 0.3
                else ["0.5", "2", "-1", "3"]
            ),
            "t": rng.choice(DTYPES),
        }
        draw = rng.random()
        if rng.random() < 0.1:
            return f"{name} = {rng.choice(COMPARED).format(x, y, z, **numbers)}"
        if rng.random() < 0.07:
            return f"{name} = {self.chain(x)}"
        if draw < 0.12:
            return f"{name} = {_dots(x, rng.choice(UNARY))}"
        if draw < 0.17:
            return f"{name} = F.{rng.choice(FUNCTIONS)}({x})"
        if draw < 0.28:
            other = rng.choice([y, y, y, str(numbers["c"])])
            if rng.random() < 0.6:
                return f"{name} = {x} {rng.choice(OPERATORS)} {other}"
            function = rng.choice(BINARY)
            return (
                f"{name} = torch.where({y} > 0, {x}, {other})"
                if function == "where3"
                else f"{name} = torch.{function}({x}, {other})"
            )
        if draw < 0.41:
            function = rng.choice(FOLDS if rng.random() < 0.4 else REDUCTIONS)
            arguments = rng.choice(["", "{d}", "-1", "dim={d}", "{d}, keepdim=True", "({d}, {e})", "dim=[{d}]"]).format(
                **numbers
            )
            result = f"{name} = {x}.{function}({arguments})"
            return result + (
                f"\nif isinstance({name}, tuple): {name} = {name}[{rng.choice([0, -1])}]" if function in SEVERAL else ""
            )
        if draw < 0.6:
            return f"{name} = {rng.choice(VIEWS).format(x, y, z, **numbers)}"
        if draw < 0.82:
            return f"{name} = {rng.choice(COPIES).format(x, y, z, **numbers)}"
        if draw < 0.97:
            return rng.choice(WRITES).format(x, y, z, **numbers)
        return f"{name} = {rng.choice(['torch.rand({j}, {k})', 'torch.rand_like({0})', 'F.dropout({0})', 'torch.randperm({j})', 'torch.randint(0, 5, ({j}, {k}))', '{0}.bernoulli()', 'torch.randn_like({0})']).format(x, y, z, **numbers)}"

    def chain(self, x: str) -> str:
        """Kernels one after another that are seldom one, and values without names that die between them."""
        rng = self.rng
        for kinds in [FOLDED, MOVED, *([FOLDED, MOVED] if rng.random() < 0.4 else []), TAKEN]:
            x = f"({rng.choice(kinds).format(x, d=rng.choice([0, -1]), i=rng.choice([1, 2]))})"
        return x


def _dots(x: str, function: str) -> str:
    return f"torch.{function}({x})"


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _restore(value: torch.Tensor, copied: torch.Tensor) -> None:
    try:
        with torch.no_grad():
            value.copy_(copied)
    except RuntimeError:  # elements that share memory are as they were
        pass


def program(seed: int) -> str:
    """The program of this seed."""
    with _put_back():
        for attempt in range(20):
            try:
                return Grower(seed * 20 + attempt).program().replace("\nif isinstance", "\n    if isinstance")
            except Invalid:
                continue
    raise Invalid(f"no program for seed {seed}")
