"""Modules with random hyperparameters (numbers, one-element lists, strings), eval and train, weights that change between calls, autocast, batch sizes."""

from __future__ import annotations

import random
from typing import Any

import torch

from .script import HEADER, Invalid, _put_back
from .tensors import SPECIAL

CHANNELS = [1, 2, 3, 4, 6, 8, 16, 17, 32, 33, 64]
SPATIAL = [1, 2, 3, 4, 5, 7, 8, 9, 12, 14, 16, 17, 28, 33]
CHANGES = [
    "{w}.data.mul_(2)", "{w}.data.view(-1)[0] = 50.", "{w}.data = {w}.data * 0.5", "{m}.weight = nn.Parameter({w}.detach() * 1.5)", "{m}.weight.requires_grad_(False)", "m.eval()", "m.train()",
    "m.load_state_dict({{k: v + 0.1 if v.is_floating_point() else v for k, v in m.state_dict().items()}})", "m.double()", "m.bfloat16()", "m.half()", "m.float()", "{m}.bias = None", "{w}.data.copy_(torch.randn_like({w}))",
    "m.requires_grad_(False)", "m.zero_grad()", "{w}.detach().numpy()[...] = 0.25", "{m}.weight.data = {w}.data.t().contiguous().t() if {w}.dim() == 2 else {w}.data", "m.to(memory_format=torch.channels_last)", "m = copy.deepcopy(m)", "{m}.extra = 3",
    "torch.nn.init.ones_({w})", "{w}.grad = None", "{m}.weight.data[...] = float('nan')", "{m}.register_forward_hook(lambda mod, a, out: out * 2)", "{m}.register_forward_pre_hook(lambda mod, a: (a[0] + 1,))", "{m}.forward = lambda x: x * 2",
]  # fmt: skip
WITH_GRAD = ["{w}.add_(0.5)", "{w}[0].zero_()", "{w}.mul_({w}.abs())", "{w}.copy_({w} * 2)"]
ACTIVATIONS = [
    "nn.ReLU()", "nn.ReLU(inplace=True)", "nn.GELU()", "nn.GELU('tanh')", "nn.SiLU()", "nn.SiLU(inplace=True)", "nn.Hardswish()", "nn.Hardsigmoid()", "nn.Hardtanh({a}, 2)", "nn.ELU({a})", "nn.CELU(0.5)", "nn.SELU()", "nn.LeakyReLU({a})", "nn.PReLU()",
    "nn.Softplus({b}, 3)", "nn.Softshrink({b})", "nn.Hardshrink({b})", "nn.Tanhshrink()", "nn.Softsign()", "nn.Mish()", "nn.Threshold({a}, 20.)", "nn.LogSigmoid()", "nn.Sigmoid()", "nn.Tanh()", "nn.ReLU6()", "nn.RReLU()", "nn.Dropout({b})", "nn.AlphaDropout(0.2)", "nn.Identity()",
    "nn.Softmax(-1)", "nn.LogSoftmax(1)", "nn.Softmin(1)", "nn.GLU(1)", "nn.Flatten()", "nn.Flatten(0, 1)", "nn.Dropout1d()", "nn.Dropout2d(0.3)", "nn.FeatureAlphaDropout(0.5)", "nn.Softmax(dim=1)", "nn.Hardtanh(inplace=True)",
]  # fmt: skip


class Builder:
    """One module, what it takes, and how it is called and changed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def number(self, *values: Any, count: int) -> str:
        """A hyperparameter for each dimension: one number, a list or tuple of one, or a tuple of all."""
        rng = self.rng
        draw = rng.random()
        if draw < 0.5 or count == 0:
            return str(rng.choice(values))
        if draw < 0.62:
            return f"[{rng.choice(values)}]"
        if draw < 0.74:
            return f"({rng.choice(values)},)"
        made = [str(rng.choice(values)) for _ in range(count)]
        return f"({', '.join(made)}{',' if count == 1 else ''})" if draw < 0.9 else f"[{', '.join(made)}]"

    def input_text(self, channels: int, dims: int) -> str:
        sizes = [self.rng.choice(SPATIAL[: 9 if dims == 3 else 14]) for _ in range(dims)]
        return ", ".join(["{batch}", str(channels), *map(str, sizes)])

    def convolution(self) -> tuple[str, str]:
        rng = self.rng
        dims = rng.choice([1, 2, 2, 2, 2, 3])
        groups = rng.choice([1, 1, 1, 2, 4])
        channels = rng.choice([c for c in CHANNELS if c % groups == 0])
        if rng.random() < 0.25:
            groups = channels
        out = groups * rng.choice([1, 1, 2, 3, 4]) if groups > 1 else rng.choice(CHANNELS)
        kernel = self.number(1, 2, 3, 3, 3, 5, 7, count=dims)
        more = []
        if rng.random() < 0.6:
            more.append(f"stride={self.number(1, 2, 2, 3, count=dims)}")
        if rng.random() < 0.65:
            padding = (
                rng.choice(["'same'", "'valid'"]) if rng.random() < 0.25 else self.number(0, 1, 1, 2, 3, count=dims)
            )
            more.append(f"padding={padding}")
        if rng.random() < 0.3:
            more.append(f"dilation={self.number(1, 2, 3, count=dims)}")
        if groups > 1:
            more.append(f"groups={groups}")
        if rng.random() < 0.3:
            more.append("bias=False")
        transposed = rng.random() < 0.2
        if rng.random() < 0.15 and not transposed:
            more.append(f"padding_mode='{rng.choice(['zeros', 'reflect', 'replicate', 'circular'])}'")
        if transposed and rng.random() < 0.4:
            more.append(f"output_padding={self.number(0, 1, count=dims)}")
        return (
            f"nn.Conv{'Transpose' if transposed else ''}{dims}d({channels}, {out}, {kernel}{''.join(', ' + m for m in more)})",
            self.input_text(channels, dims),
        )

    def pool(self) -> tuple[str, str]:
        rng = self.rng
        dims = rng.choice([1, 2, 2, 3])
        kind = rng.choice(["MaxPool", "MaxPool", "AvgPool", "AvgPool", "AdaptiveAvgPool", "AdaptiveMaxPool", "LPPool"])
        if kind.startswith("Adaptive"):
            return f"nn.{kind}{dims}d({self.number(1, 2, 3, 5, count=dims)})", self.input_text(
                rng.choice(CHANNELS), dims
            )
        more = [self.number(1, 2, 3, 5, count=dims if kind != "LPPool" else 0)]
        if rng.random() < 0.6:
            more.append(f"stride={self.number(1, 2, 3, count=dims if kind != 'LPPool' else 0)}")
        if kind != "LPPool":
            if rng.random() < 0.5:
                more.append(f"padding={self.number(0, 1, 1, count=dims)}")
            if rng.random() < 0.3:
                more.append("ceil_mode=True")
        if kind == "MaxPool" and rng.random() < 0.3:
            more.append(f"dilation={self.number(1, 2, count=dims)}")
        if kind == "MaxPool" and rng.random() < 0.2:
            more.append("return_indices=True")
        if kind == "AvgPool" and rng.random() < 0.4:
            more.append(rng.choice(["count_include_pad=False"] + (["divisor_override=3"] if dims > 1 else [])))
        norm = f"{rng.choice([1, 2, 3.0])}, " if kind == "LPPool" else ""
        return f"nn.{kind}{dims}d({norm}{', '.join(more)})", self.input_text(rng.choice(CHANNELS), dims)

    def norm(self) -> tuple[str, str]:
        rng = self.rng
        dims, channels = rng.choice([0, 1, 2, 2, 3]), rng.choice(CHANNELS)
        draw = rng.random()
        flags = [
            f
            for f in ("affine=False", "track_running_stats=False", "momentum=None", "eps=0.1", "momentum=0.3")
            if rng.random() < 0.2
        ]
        flags = list({f.split("=")[0]: f for f in flags}.values())
        if draw < 0.4:
            return f"nn.BatchNorm{max(dims, 1)}d({channels}{''.join(', ' + f for f in flags)})", self.input_text(
                channels, dims
            )
        if draw < 0.6:
            groups = rng.choice([g for g in (1, 2, 3, 4, 8, channels) if channels % g == 0])
            return (
                f"nn.GroupNorm({groups}, {channels}{rng.choice(['', ', affine=False', ', eps=0.1'])})",
                self.input_text(channels, dims),
            )
        if draw < 0.7:
            return f"nn.InstanceNorm{max(dims, 1)}d({channels}{''.join(', ' + f for f in flags)})", self.input_text(
                channels, max(dims, 1)
            )
        size = rng.choice([1, 2, 5, 7, 16, 33, 64, 100])
        shape = rng.choice([str(size), f"[{size}]", f"({size},)", f"(3, {size})"])
        kind = rng.choice(["LayerNorm", "LayerNorm", "RMSNorm"])
        extra = rng.choice(
            ["", "", ", elementwise_affine=False", ", eps=0.1", ", bias=False" if kind == "LayerNorm" else ""]
        )
        return f"nn.{kind}({shape}{extra})", f"{{batch}}, 3, {size}"

    def dense(self) -> tuple[str, str]:
        rng = self.rng
        inner, out = rng.choice(CHANNELS), rng.choice(CHANNELS)
        lead = rng.choice(["{batch}", "{batch}, 3", "2, {batch}", "{batch}, 5, 2", "{batch}"])
        return (
            f"nn.Linear({inner}, {out}{rng.choice(['', '', ', bias=False', ', dtype=torch.bfloat16', ', dtype=torch.float64'])})",
            f"{lead}, {inner}",
        )

    def recurrent(self) -> tuple[str, str]:
        rng = self.rng
        inner, hidden = rng.choice([1, 3, 8, 16]), rng.choice([1, 4, 8, 16])
        flags = [
            f
            for f in ("batch_first=True", "bidirectional=True", "num_layers=2", "bias=False", "dropout=0.3")
            if rng.random() < 0.3
        ]
        return (
            f"nn.{rng.choice(['LSTM', 'GRU', 'RNN'])}({inner}, {hidden}{''.join(', ' + f for f in flags)})",
            rng.choice(["{batch}, 5, ", "5, "]) + str(inner),
        )

    def resize(self) -> tuple[str, str]:
        rng = self.rng
        dims = rng.choice([1, 2, 2, 3])
        modes = {
            1: ["nearest", "linear", "nearest-exact"],
            2: ["nearest", "bilinear", "bicubic", "nearest-exact"],
            3: ["nearest", "trilinear"],
        }[dims]
        mode = rng.choice(modes)
        what = (
            f"scale_factor={self.number(0.5, 1.5, 2, 2.0, 3, count=dims)}"
            if rng.random() < 0.6
            else f"size={self.number(1, 2, 5, 8, 11, count=dims)}"
        )
        corners = ", align_corners=True" if "linear" in mode and rng.random() < 0.5 else ""
        return f"nn.Upsample({what}, mode='{mode}'{corners})", self.input_text(rng.choice(CHANNELS[:7]), dims)

    def padding(self) -> tuple[str, str]:
        rng = self.rng
        dims = rng.choice([1, 2, 2, 3])
        kind = rng.choice(["Reflection", "Replication", "Circular", "Zero", "Constant"])
        sizes = rng.choice(
            [
                str(rng.choice([0, 1, 2])),
                f"({', '.join(str(rng.choice([0, 1, 2, -1 if kind in ('Zero', 'Constant') else 1])) for _ in range(2 * dims))})",
            ]
        )
        return f"nn.{kind}Pad{dims}d({sizes}{', 0.5' if kind == 'Constant' else ''})", self.input_text(
            rng.choice(CHANNELS[:7]), dims
        )

    def attention(self) -> tuple[str, str]:
        rng = self.rng
        heads, width = rng.choice([1, 2, 4]), rng.choice([4, 8, 16])
        if rng.random() < 0.5:
            options = rng.choice(
                ["", "", ", is_causal=True", ", scale=0.3", ", attn_mask='bool'", ", attn_mask='float'"]
            )
            sizes = rng.choice([1, 3, 5, 7, 12, 13, 16, 33]), rng.choice([1, 3, 5, 7, 12, 13, 16, 33, 65])
            return (
                f"Attention({heads}, {sizes[0]}, {sizes[1]}{options})",
                f"{{batch}}, {sum(sizes) + sizes[1]}, {heads * rng.choice([1, 3, 4, 8, 16, 17])}",
            )
        layer = rng.choice(
            [
                f"nn.TransformerEncoderLayer({heads * width}, {heads}, 16, batch_first=True, dropout={rng.choice([0.0, 0.1])}, norm_first={rng.random() < 0.5}, activation='{rng.choice(['relu', 'gelu'])}')",
                f"SelfAttention({heads * width}, {heads}, batch_first={rng.random() < 0.7}, bias={rng.random() < 0.7})",
            ]
        )
        return layer, f"{{batch}}, {rng.choice([1, 3, 7, 16, 33])}, {heads * width}"

    def loss(self) -> tuple[str, str]:
        rng = self.rng
        reduction = f"reduction='{rng.choice(['mean', 'sum', 'none'])}'"
        if rng.random() < 0.5:
            extra = rng.choice(["", ", label_smoothing=0.1", ", ignore_index=1", ", ignore_index=[1][0]"])
            return (
                f"Loss(nn.{rng.choice(['CrossEntropyLoss', 'NLLLoss'])}({reduction}{extra if 'smooth' not in extra else ''}), lambda x: x.argmax(1))",
                f"{{batch}}, {rng.choice([2, 5, 17])}",
            )
        kinds = [
            "MSELoss()",
            "L1Loss()",
            "SmoothL1Loss({}, beta=0.5)",
            "HuberLoss({}, delta=0.3)",
            "BCEWithLogitsLoss({})",
            "KLDivLoss({}, log_target=True)",
            "SoftMarginLoss({})",
            "PoissonNLLLoss({})",
            "MSELoss({})",
            "MultiLabelSoftMarginLoss({})",
        ]
        return (
            f"Loss(nn.{rng.choice(kinds).replace('{}', reduction)}, lambda x: x.sigmoid().flip(0))",
            f"{{batch}}, {rng.choice([1, 5, 16])}",
        )

    def embedding(self) -> tuple[str, str]:
        rng = self.rng
        flags = [
            f
            for f in ("padding_idx=1", "max_norm=1.0", "scale_grad_by_freq=True", "padding_idx=-1")
            if rng.random() < 0.15
        ]
        kind = rng.choice(["Embedding", "Embedding", "EmbeddingBag"])
        if kind == "EmbeddingBag":
            flags = [f"mode='{rng.choice(['sum', 'mean', 'max'])}'"]
        return (
            f"Indexed(nn.{kind}(10, {rng.choice(CHANNELS)}{''.join(', ' + f for f in flags)}))",
            f"{{batch}}, {rng.choice([1, 4, 7])}",
        )

    def shaped(self) -> tuple[str, str]:
        rng = self.rng
        return rng.choice(
            [
                (f"nn.PixelShuffle({rng.choice([1, 2])})", "{batch}, 4, 3, 5"), ("nn.PixelUnshuffle(2)", "{batch}, 3, 4, 6"), ("nn.ChannelShuffle(2)", "{batch}, 4, 3, 3"), (f"nn.Unfold({self.number(2, 3, count=2)}, padding={self.number(0, 1, count=2)})", "{batch}, 3, 6, 7"),
                ("nn.Fold((4, 5), (2, 2))", "{batch}, 12, 12"), ("nn.Unflatten(1, (2, -1))", "{batch}, 6"), ("nn.LocalResponseNorm(3)", "{batch}, 5, 4"), ("nn.CosineSimilarity(dim=1) if False else nn.Softmax2d()", "{batch}, 3, 4, 5"),
            ]
        )  # fmt: skip

    def activation(self) -> str:
        rng = self.rng
        return rng.choice(ACTIVATIONS).format(
            a=rng.choice(["0.5", "-0.5", "0.0", "1", "-1"]), b=rng.choice(["0.5", "0.1", "1", "0.0"])
        )

    def program(self) -> str:
        rng = self.rng
        makers = (
            [self.convolution] * 6
            + [self.pool] * 2
            + [self.norm] * 3
            + [self.dense] * 3
            + [self.attention] * 2
            + [self.recurrent, self.resize, self.padding, self.loss, self.embedding, self.shaped]
        )
        layer, shape = rng.choice(makers)()
        layers = [layer]
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            layers.append(rng.choice([self.activation(), self.activation(), self.next_layer(layers, shape)]))
        if rng.random() < 0.15:
            layers.insert(0, self.activation())
        layers = [item for item in layers if item]
        index = next(i for i, item in enumerate(layers) if item == layer)
        text = f"m = nn.Sequential({', '.join(layers)})"
        module, weight = (
            (f"m[{index}]", f"m[{index}].weight")
            if "(nn." not in layer and not layer.startswith("SelfAttention")
            else (f"m[{index}]", "list(m.parameters())[0]")
        )
        if "LSTM" in layer or "GRU(" in layer or "nn.RNN(" in layer or "Transformer" in layer:
            weight = "list(m.parameters())[0]"
        classes = [c for name, c in CLASSES.items() if layer.startswith(name)]
        forward = rng.choice(["m(x)"] * 5 + ["m(x * 1)", "m(x), x", "m(x) * 2", "m(m[0](x)) if False else m(x)"])
        lines = [HEADER.rstrip(), "import copy", *classes, text]
        lines += [
            rng.choice(
                [
                    "m.eval()",
                    "m.eval()",
                    "m.train()",
                    "m.train()",
                    "m.eval().requires_grad_(False)",
                    "m.to(memory_format=torch.channels_last)",
                    "m.bfloat16()",
                    "m.double()",
                ]
            )
        ]
        compiled = (
            ["f = intarsia.compile(m)"]
            if rng.random() < 0.5
            else ["def f(x):", f"    return {forward}", "f = intarsia.compile(f)"]
        )
        lines += compiled
        dtype = (
            "bfloat16"
            if ".bfloat16()" in lines[-4] + lines[-2] or "bfloat16" in layer
            else "float64"
            if "m.double()" in lines or "float64" in layer
            else "float32"
        )
        for call in range(rng.choice([1, 2, 2, 3])):
            if call and rng.random() < 0.7:
                change = rng.choice(CHANGES + [f"with torch.no_grad(): {c}" for c in WITH_GRAD] * 2).format(
                    m=module, w=weight
                )
                lines.append(change)
                dtype = {
                    "m.double()": "float64",
                    "m.bfloat16()": "bfloat16",
                    "m.half()": "float16",
                    "m.float()": "float32",
                }.get(change, dtype)
            batch = rng.choice([1, 1, 2, 2, 3, 4, 5, 8, 16, 17, 0] if call or rng.random() < 0.9 else [0])
            lines += self.call(shape.format(batch=batch), dtype)
        return "\n".join(lines) + "\n"

    def next_layer(self, layers: list[str], shape: str) -> str:
        """A layer that takes what the first one gives, found by trying."""
        scope: dict[str, Any] = {}
        exec(HEADER + "\n".join(CLASSES.values()), scope)
        try:
            with torch.no_grad():
                made = eval(f"nn.Sequential({', '.join(layers)}).eval()", scope)(
                    torch.randn(eval(f"({shape.format(batch=2)},)"), dtype=torch.float32)
                )
            channels, dims = made.shape[1], made.dim() - 2
        except Exception:
            return ""
        rng = self.rng
        names = [f"nn.Linear({made.shape[-1]}, {rng.choice(CHANNELS)})"]
        if 0 < dims < 4:
            names += (
                [f"nn.BatchNorm{dims}d({channels})"] * 3
                + [
                    f"nn.Conv{dims}d({channels}, {rng.choice(CHANNELS)}, {rng.choice([1, 3])}, padding={rng.choice([0, 1])})"
                ]
                * 2
                + [f"nn.GroupNorm(1, {channels})", f"nn.AdaptiveAvgPool{dims}d(1)"]
            )
        elif dims == 0:
            names += [f"nn.BatchNorm1d({channels})", f"nn.LayerNorm({channels})"]
        return rng.choice(names)

    def call(self, shape: str, dtype: str) -> list[str]:
        rng = self.rng
        made = (
            f"torch.randn({shape}, dtype=torch.{dtype})"
            if rng.random() < 0.7
            else f"torch.randint(-4, 5, ({shape},)).to(torch.{dtype})"
        )
        lines = [f"x = {made}"]
        dims = shape.count(",") + 1
        if rng.random() < 0.25:
            turned = [
                "x = x.transpose(0, -1).contiguous().transpose(0, -1)",
                "x = x.flip(-1)",
                "x = torch.cat([x, x], -1)[..., ::2]",
                "x = x[:1].expand_as(x)",
                "x = torch.cat([x, x], 1)[:, :x.shape[1]]",
            ]
            lines.append(rng.choice(turned if dims > 1 else turned[:1]))
        if rng.random() < 0.2 and dims == 4:
            lines.append("x = x.contiguous(memory_format=torch.channels_last)")
        if rng.random() < 0.1:
            lines.append(f"x = {rng.choice(['-x.abs() - 1', 'x.abs() + 1', '-x.abs()', 'x.clamp(max=0)'])}")
        if rng.random() < 0.12:
            lines.append(f"x.reshape(-1)[::{rng.choice([3, 5, 17])}] = {rng.choice(SPECIAL)}")
        draw = rng.random()
        if draw < 0.25:
            lines += [
                "x.requires_grad_()",
                "r = f(x)",
                "r = [t for t in (r if isinstance(r, tuple) else (r,)) if isinstance(t, torch.Tensor) and t.requires_grad]",
                "sum((t.double() ** 2).sum() for t in r).backward()",
            ]
        elif draw < 0.4:
            lines.append(
                f"with torch.autocast('cpu', torch.{rng.choice(['bfloat16', 'bfloat16', 'float16'])}): r = f(x)"
            )
        elif draw < 0.7:
            lines.append("with torch.no_grad(): r = f(x)")
        elif draw < 0.8:
            lines.append("with torch.inference_mode(): r = f(x)")
        else:
            lines.append("f(x)")
        return lines


CLASSES = {
    "SelfAttention": "class SelfAttention(nn.Module):\n    def __init__(self, *args, **kwargs):\n        super().__init__()\n        self.inner = nn.MultiheadAttention(*args, **kwargs)\n    def forward(self, x):\n        return self.inner(x, x, x, need_weights=False)[0]",
    "Attention(": """\
class Attention(nn.Module):
    def __init__(self, heads, queries, keys, attn_mask=None, **options):
        super().__init__()
        self.heads, self.sizes, self.options = heads, (queries, keys, keys), options
        mask = torch.arange(queries * keys).view(queries, keys) % 3
        self.mask = {'bool': mask > 0, 'float': mask * 0.5, None: None}[attn_mask]
        self.weight = nn.Parameter(torch.ones(1))
    def forward(self, x):
        parts = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (x * self.weight).split(self.sizes, 1))
        mask = self.mask if self.mask is None or self.mask.dtype == torch.bool else self.mask.to(x.dtype)
        return F.scaled_dot_product_attention(*parts, attn_mask=mask, **self.options).transpose(1, 2).flatten(-2)""",
    "Loss": "class Loss(nn.Module):\n    def __init__(self, inner, target):\n        super().__init__()\n        self.inner, self.target = inner, target\n    def forward(self, x):\n        return self.inner(x, self.target(x))",
    "Indexed": "class Indexed(nn.Module):\n    def __init__(self, inner):\n        super().__init__()\n        self.inner, self.weight = inner, inner.weight\n    def forward(self, x):\n        return self.inner(x.abs().long() % 10)",
}


def program(seed: int) -> str:
    """The program of this seed: one that eager runs at least once, mostly."""
    from . import script

    with _put_back():
        torch.manual_seed(seed)
        for attempt in range(12):
            try:
                text = Builder(seed * 12 + attempt).program()
                steps = script.run(text, None, states=False)
            except (Invalid, SyntaxError):
                continue
            if (
                attempt == 11
                or not all(s.error for s in steps if "f(x)" in s.text)
                or random.Random(seed).random() < 0.02
            ):
                return text
    raise Invalid(f"no program for seed {seed}")
