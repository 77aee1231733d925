"""The programs of `libraries.py`: each builds what is compiled and the arguments of its calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize


@dataclass
class Program:
    """`build` gives what is compiled and a list of its calls' arguments."""

    name: str
    libraries: tuple[str, ...]
    build: Callable[[], tuple[Any, list[tuple[Any, ...]]]]

    def modules(self, function: Any) -> list[nn.Module]:
        """The modules that a compiled function works on."""
        return list(getattr(function, "modules", ()))


PROGRAMS: list[Program] = []


def program(name: str, *libraries: str) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a program of these libraries."""

    def register(build: Callable[[], Any]) -> Callable[[], Any]:
        PROGRAMS.append(Program(name, libraries, build))
        return build

    return register


def of(function: Any, *modules: nn.Module) -> Any:
    """`function` with the modules whose gradients and buffers are compared."""
    function.modules = modules
    return function


# torch alone


@program("packed LSTM with CTC loss")
def packed_lstm() -> Any:
    class Recognizer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(8, 16, num_layers=2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(32, 10)

        def forward(self, x: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            out, _ = self.rnn(packed)
            out, out_lengths = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
            log_probs = self.head(out).log_softmax(-1).transpose(0, 1)
            return F.ctc_loss(log_probs, targets, out_lengths, target_lengths, zero_infinity=True)

    calls = []
    for lengths, n in (([12, 9, 5], 4), ([12, 7, 6], 4), ([11, 10, 3], 3), ([15, 9, 5], 4)):
        targets = torch.randint(1, 10, (3, n))
        calls.append((torch.randn(3, max(lengths), 8), torch.tensor(lengths), targets, torch.tensor([n, n - 1, 2])))
    return Recognizer(), calls


class Round(torch.autograd.Function):
    """Straight-through rounding."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, scale)
        return torch.round(x / scale) * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, scale = ctx.saved_tensors
        return grad * (x.abs() < 8 * scale), (grad * (torch.round(x / scale) - x / scale)).sum()


@program("straight-through estimators in layers")
def straight_through() -> Any:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)
            self.scale = nn.Parameter(torch.tensor(0.1))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(
                F.linear(Round.apply(x, self.scale), Round.apply(self.linear.weight, self.scale), self.linear.bias)
            )

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(x)
            return x

    return Net(), [(torch.randn(n, 16),) for n in (4, 4, 6, 9)]


class Scan(torch.autograd.Function):
    """h[t] = a[t] h[t-1] + x[t], with a backward by hand."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, x: Tensor) -> Tensor:
        h = torch.zeros_like(x[:, 0])
        out = []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            out.append(h)
        hs = torch.stack(out, 1)
        ctx.save_for_backward(a, hs)
        return hs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, hs = ctx.saved_tensors
        dx = torch.zeros_like(grad)
        carry = torch.zeros_like(grad[:, 0])
        for t in reversed(range(grad.shape[1])):
            carry = grad[:, t] + carry
            dx[:, t] = carry
            carry = carry * a[:, t]
        before = F.pad(hs[:, :-1], (0, 0, 1, 0))
        return dx * before, dx


@program("Mamba scans by hand")
def mamba_scans() -> Any:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.gates = nn.Linear(8, 16)
            self.out = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            a, v = self.gates(self.norm(x)).chunk(2, -1)
            return x + self.out(Scan.apply(torch.sigmoid(a), v))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(5))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x.mean()

    return Net(), [(torch.randn(n, 6, 8),) for n in (2, 2, 3, 5)]


@program("weight_norm under parametrize.cached()")
def cached_weight_norm() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.ModuleList(parametrizations.weight_norm(nn.Linear(12, 12)) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            with parametrize.cached():
                for _ in range(3):
                    for cell in self.cells:
                        x = torch.tanh(cell(x))
            return x

    return Net(), [(torch.randn(n, 12),) for n in (4, 4, 6, 9)]


@program("spectral_norm and orthogonal parametrizations")
def spectral() -> Any:
    net = nn.Sequential(
        parametrizations.spectral_norm(nn.Conv2d(3, 8, 3)),
        nn.ReLU(),
        nn.Flatten(),
        parametrizations.orthogonal(nn.Linear(8 * 36, 12)),
    )
    return net, [(torch.randn(n, 3, 8, 8),) for n in (2, 2, 3, 4)]


@program("quantize_dynamic")
def dynamic_quantized() -> Any:
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    net = torch.ao.quantization.quantize_dynamic(net, {nn.Linear}, dtype=torch.qint8)
    return net, [(torch.randn(n, 16),) for n in (4, 4, 6, 9)]


@program("quantize_dynamic LSTM")
def dynamic_quantized_lstm() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(8, 16, batch_first=True)
            self.head = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    net = torch.ao.quantization.quantize_dynamic(Net().eval(), {nn.Linear, nn.LSTM}, dtype=torch.qint8)
    return net, [(torch.randn(n, 5, 8),) for n in (4, 4, 6, 9)]


@program("istft and mel transforms")
def mel() -> Any:
    class Vocoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("window", torch.hann_window(64))
            freqs = torch.linspace(0, 1, 33)
            centers = torch.linspace(0, 1, 22)
            up = (freqs[:, None] - centers[None, :-2]) / (centers[1:-1] - centers[:-2])
            down = (centers[None, 2:] - freqs[:, None]) / (centers[2:] - centers[1:-1])
            self.register_buffer("bank", torch.minimum(up, down).clamp(min=0))
            self.conv = nn.Conv1d(20, 33, 3, padding=1)

        def forward(self, wave: Tensor) -> Any:
            spec = torch.stft(wave, 64, 16, window=self.window, return_complex=True)
            power = spec.abs().pow(2)
            logmel = torch.log10(torch.clamp(power.transpose(1, 2) @ self.bank, min=1e-10)).transpose(1, 2)
            if self.training:
                logmel = logmel - logmel.mean(-1, keepdim=True)
            gain = torch.sigmoid(self.conv(logmel))
            wave = torch.istft(spec * gain, 64, 16, window=self.window, length=wave.shape[-1])
            return wave, logmel

    return Vocoder(), [(torch.randn(n, length),) for n, length in ((2, 512), (2, 512), (2, 640), (3, 800))]


@program("Griffin-Lim")
def griffin_lim() -> Any:
    window = torch.hann_window(64)

    def step(magnitude: Tensor) -> Tensor:
        angles = torch.rand(magnitude.shape) * 2 * math.pi
        spec = torch.polar(magnitude, angles)
        previous = torch.zeros_like(spec)
        for _ in range(4):
            wave = torch.istft(spec, 64, 16, window=window)
            rebuilt = torch.stft(wave, 64, 16, window=window, return_complex=True)
            update = rebuilt - previous * 0.5
            spec = magnitude * update / (update.abs() + 1e-8)
            previous = rebuilt
        return torch.istft(spec, 64, 16, window=window)

    return step, [(torch.rand(2, 33, n),) for n in (32, 32, 40, 50)]


@program("pruned layers")
def pruned() -> Any:
    from torch.nn.utils import prune

    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    prune.l1_unstructured(net[0], "weight", 0.5)
    prune.ln_structured(net[2], "weight", 0.5, n=2, dim=0)
    return net, [(torch.randn(n, 16),) for n in (4, 4, 6, 9)]


@program("adaptive softmax, embedding bags, multihead attention with masks")
def layers() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(50, 16, mode="mean")
            self.layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
            self.loss = nn.AdaptiveLogSoftmaxWithLoss(16, 30, [10, 20])

        def forward(self, words: Tensor, offsets: Tensor, mask: Tensor, target: Tensor) -> Tensor:
            x = self.bag(words, offsets).reshape(mask.shape[0], mask.shape[1], 16)
            x = self.layer(x, src_key_padding_mask=mask)
            return self.loss(x[~mask], target[~mask]).loss

    calls = []
    for b, n in ((2, 4), (2, 4), (3, 4), (3, 5)):
        mask = torch.zeros(b, n, dtype=torch.bool)
        mask[0, -1] = True
        calls.append((torch.randint(50, (b * n * 3,)), torch.arange(b * n) * 3, mask, torch.randint(30, (b, n))))
    return Net(), calls


@program("swa_utils.AveragedModel and a training step")
def averaged() -> Any:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        ema.update_parameters(net)
        return loss.detach()

    return of(step, net, ema), [(torch.randn(n, 8), torch.randn(n, 1)) for n in (4, 4, 6, 9)]


# transformers


@program("wav2vec2 in training", "transformers")
def wav2vec2() -> Any:
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24, conv_dim=(8, 8), conv_stride=(5, 2),
        conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        apply_spec_augment=False, layerdrop=0.1, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
        feat_proj_dropout=0.0, do_stable_layer_norm=False,
    )  # fmt: skip
    model = Wav2Vec2Model(config).train()

    def step(wave: Tensor) -> Tensor:
        out = model(wave, output_hidden_states=True)
        return out.last_hidden_state.sum() + sum(h.mean() for h in out.hidden_states)

    return of(step, model), [(torch.randn(2, n),) for n in (400, 400, 480, 640)]


@program("wav2vec2 with CTC loss", "transformers")
def wav2vec2_ctc() -> Any:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24, conv_dim=(8, 8), conv_stride=(5, 2),
        conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        layerdrop=0.0, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0,
        vocab_size=12, mask_time_prob=0.0, ctc_zero_infinity=True,
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config).train()

    def step(wave: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return model(wave, attention_mask=mask, labels=labels).loss

    calls = []
    for n in (400, 400, 480, 640):
        mask = torch.ones(2, n, dtype=torch.long)
        mask[1, n // 2 :] = 0
        calls.append((torch.randn(2, n), mask, torch.randint(1, 12, (2, 5))))
    return of(step, model), calls


@program("LoRA", "peft", "transformers")
def lora() -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=2, n_embd=16, vocab_size=50, n_positions=32))
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, lora_dropout=0.1))

    def step(ids: Tensor) -> Tensor:
        return model(input_ids=ids, labels=ids).loss

    return of(step, model), [(torch.randint(50, (n, 8)),) for n in (2, 2, 3, 4)]


# kornia


@program("kornia augmentations", "kornia")
def kornia_augment() -> Any:
    import kornia.augmentation as K

    net = nn.Sequential(
        K.RandomHorizontalFlip(p=0.5),
        K.RandomAffine(degrees=15.0, translate=(0.1, 0.1), p=0.8),
        K.ColorJitter(0.1, 0.1, 0.1, 0.1, p=0.8),
        K.RandomErasing(p=0.5),
        K.Normalize(torch.tensor([0.4, 0.4, 0.4]), torch.tensor([0.2, 0.2, 0.2])),
    )
    return net, [(torch.rand(n, 3, 16, 16),) for n in (4, 4, 6, 6)]


@program("kornia AugmentationSequential with masks", "kornia")
def kornia_sequential() -> Any:
    import kornia.augmentation as K

    aug = K.AugmentationSequential(
        K.RandomHorizontalFlip(p=0.5),
        K.RandomRotation(20.0, p=0.7),
        K.RandomGaussianBlur((3, 3), (0.1, 2.0), p=0.5),
        data_keys=["input", "mask"],
    )

    def step(x: Tensor, mask: Tensor) -> Any:
        return aug(x, mask)

    return of(step, aug), [
        (torch.rand(n, 3, 16, 16), torch.randint(0, 2, (n, 1, 16, 16)).float()) for n in (4, 4, 6, 6)
    ]


@program("kornia filters and geometry", "kornia")
def kornia_filters() -> Any:
    import kornia

    def step(x: Tensor, angle: Tensor) -> Any:
        blurred = kornia.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5))
        edges = kornia.filters.sobel(blurred)
        rotated = kornia.geometry.transform.rotate(x, angle)
        warped = kornia.geometry.transform.resize(rotated, (24, 24), antialias=True)
        lab = kornia.color.rgb_to_lab(x)
        return edges, warped, lab, kornia.losses.ssim_loss(x, blurred, 5)

    return step, [(torch.rand(n, 3, 16, 16).requires_grad_(), torch.rand(n) * 30) for n in (2, 2, 3, 4)]


@program("kornia features", "kornia")
def kornia_features() -> Any:
    import kornia

    def step(x: Tensor) -> Any:
        harris = kornia.feature.harris_response(x)
        nms = kornia.geometry.subpix.nms2d(harris, (3, 3), mask_only=False)
        canny = kornia.filters.canny(x)
        return harris, nms, canny

    return step, [(torch.rand(n, 1, 24, 24),) for n in (2, 2, 3, 3)]


# vector_quantize_pytorch


@program("vector quantization with EMA codes", "vector_quantize_pytorch")
def vq_ema() -> Any:
    from vector_quantize_pytorch import VectorQuantize

    net = VectorQuantize(
        dim=8, codebook_size=16, decay=0.8, commitment_weight=1.0, kmeans_init=False, threshold_ema_dead_code=2
    )
    return net, [(torch.randn(n, 10, 8, requires_grad=True),) for n in (4, 4, 6, 9)]


@program("vector quantization with kmeans init", "vector_quantize_pytorch")
def vq_kmeans() -> Any:
    from vector_quantize_pytorch import VectorQuantize

    net = VectorQuantize(dim=8, codebook_size=16, kmeans_init=True, kmeans_iters=3, use_cosine_sim=True)
    return net, [(torch.randn(n, 10, 8, requires_grad=True),) for n in (4, 4, 6, 9)]


@program("residual vector quantization", "vector_quantize_pytorch")
def rvq() -> Any:
    from vector_quantize_pytorch import ResidualVQ

    class AutoEncoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Linear(12, 8)
            self.vq = ResidualVQ(dim=8, num_quantizers=3, codebook_size=16, stochastic_sample_codes=False)
            self.decode = nn.Linear(8, 12)

        def forward(self, x: Tensor) -> Any:
            q, codes, loss = self.vq(self.encode(x))
            return F.mse_loss(self.decode(q), x) + loss.sum(), codes

    return AutoEncoder(), [(torch.randn(n, 10, 12),) for n in (4, 4, 6, 9)]


@program("finite scalar and lookup-free quantization", "vector_quantize_pytorch")
def fsq() -> Any:
    from vector_quantize_pytorch import FSQ, LFQ

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fsq = FSQ([8, 5, 5, 5])
            self.lfq = LFQ(codebook_size=16, dim=4)

        def forward(self, x: Tensor) -> Any:
            q, codes = self.fsq(x)
            q2, codes2, entropy = self.lfq(x)
            return q + q2, codes, codes2, entropy

    return Net(), [(torch.randn(n, 10, 4, requires_grad=True),) for n in (4, 4, 6, 9)]


# pytorch_metric_learning


def metric(miner: str, loss: str, **options: Any) -> Any:
    """An embedding net with a miner and a loss."""
    from pytorch_metric_learning import losses, miners

    net = nn.Linear(12, 8)
    mine = getattr(miners, miner)(**options)
    lose = getattr(losses, loss)()

    def step(x: Tensor, labels: Tensor) -> Tensor:
        embeddings = net(x)
        return lose(embeddings, labels, mine(embeddings, labels))

    return of(step, net), [(torch.randn(n, 12), torch.arange(n) % k) for n, k in ((12, 3), (12, 4), (16, 4), (15, 3))]


for _miner, _loss in (
    ("MultiSimilarityMiner", "MultiSimilarityLoss"),
    ("TripletMarginMiner", "TripletMarginLoss"),
    ("BatchHardMiner", "TripletMarginLoss"),
    ("PairMarginMiner", "ContrastiveLoss"),
):
    program(f"miner {_miner}", "pytorch_metric_learning")(lambda m=_miner, o=_loss: metric(m, o))


@program("NT-Xent, ArcFace and SupCon losses", "pytorch_metric_learning")
def metric_losses() -> Any:
    from pytorch_metric_learning import losses

    net = nn.Linear(12, 8)
    arc = losses.ArcFaceLoss(4, 8)
    ntxent, supcon = losses.NTXentLoss(), losses.SupConLoss()

    def step(x: Tensor, labels: Tensor) -> Tensor:
        embeddings = net(x)
        return arc(embeddings, labels) + ntxent(embeddings, labels) + supcon(embeddings, labels)

    return of(step, net, arc), [
        (torch.randn(n, 12), torch.arange(n) % k) for n, k in ((12, 3), (12, 4), (16, 4), (15, 3))
    ]


# torch_geometric


def edges(n: int, m: int) -> Tensor:
    """m random edges between n nodes."""
    return torch.randint(n, (2, m))


GRAPHS = ((6, 12), (6, 15), (8, 15), (9, 22))


@program("graph convolutions with changing edges", "torch_geometric")
def gcn() -> Any:
    from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = GCNConv(8, 16), GATConv(16, 8, heads=2), SAGEConv(16, 8)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x = F.relu(self.a(x, edge_index))
            x = F.elu(self.b(x, edge_index))
            return global_mean_pool(self.c(x, edge_index), batch)

    return Net(), [(torch.randn(n, 8), edges(n, m), (torch.arange(n) * 2 // n)) for n, m in GRAPHS]


@program("message passing of one's own with edge dropout", "torch_geometric")
def message_passing() -> Any:
    from torch_geometric.nn import MessagePassing
    from torch_geometric.utils import add_self_loops, degree, dropout_edge

    class Conv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="add")
            self.lin = nn.Linear(8, 8)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            edge_index, _ = dropout_edge(edge_index, p=0.2, training=self.training)
            edge_index, _ = add_self_loops(edge_index, num_nodes=x.size(0))
            row, col = edge_index
            deg = degree(col, x.size(0), dtype=x.dtype)
            norm = deg.pow(-0.5)[row] * deg.pow(-0.5)[col]
            return self.propagate(edge_index, x=self.lin(x), norm=norm)

        def message(self, x_j: Tensor, norm: Tensor) -> Tensor:
            return norm.view(-1, 1) * x_j

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Conv() for _ in range(3))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, edge_index).relu()
            return x

    return Net(), [(torch.randn(n, 8), edges(n, m)) for n, m in GRAPHS]


@program("graph pooling by score", "torch_geometric")
def pooling() -> Any:
    from torch_geometric.nn import GraphConv, TopKPooling, global_add_pool, global_max_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.pool, self.b = GraphConv(8, 16), TopKPooling(16, ratio=0.6), GraphConv(16, 8)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
            x = self.a(x, edge_index).relu()
            x, edge_index, _, batch, _, _ = self.pool(x, edge_index, None, batch)
            x = self.b(x, edge_index)
            return torch.cat([global_add_pool(x, batch), global_max_pool(x, batch)], 1)

    return Net(), [(torch.randn(n, 8), edges(n, m), (torch.arange(n) * 2 // n)) for n, m in GRAPHS]


@program("graph batches and utilities", "torch_geometric")
def graph_batches() -> Any:
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GINConv, global_add_pool
    from torch_geometric.utils import softmax, to_dense_adj, to_dense_batch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GINConv(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)))
            self.gate = nn.Linear(8, 1)

        def forward(self, data: Any) -> Any:
            x = self.conv(data.x, data.edge_index)
            weight = softmax(self.gate(x), data.batch)
            dense, mask = to_dense_batch(x, data.batch)
            return global_add_pool(weight * x, data.batch), dense, to_dense_adj(data.edge_index, data.batch)

    calls = []
    for n, m in GRAPHS:
        graphs = [Data(x=torch.randn(n + i, 8), edge_index=edges(n, m)) for i in range(3)]
        calls.append((Batch.from_data_list(graphs),))
    return Net(), calls


# others


@program("differential equation by odeint", "torchdiffeq")
def ode() -> Any:
    from torchdiffeq import odeint

    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
    times = torch.linspace(0, 1, 5)

    def step(y: Tensor) -> Tensor:
        return odeint(lambda t, y: net(y), y, times, method="rk4")

    return of(step, net), [(torch.randn(n, 4),) for n in (2, 2, 3, 5)]


@program("differential equation with adaptive steps", "torchdiffeq")
def ode_adaptive() -> Any:
    from torchdiffeq import odeint

    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4))
    times = torch.linspace(0, 1, 3)

    def step(y: Tensor) -> Tensor:
        return odeint(lambda t, y: net(y), y, times, method="dopri5", rtol=1e-3, atol=1e-3)

    return of(step, net), [(torch.randn(n, 4),) for n in (2, 2, 3, 5)]


@program("stochastic differential equation", "torchsde")
def sde() -> Any:
    import torchsde

    class SDE(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.mu, self.sigma = nn.Linear(3, 3), nn.Linear(3, 3)

        def f(self, t: Tensor, y: Tensor) -> Tensor:
            return self.mu(y)

        def g(self, t: Tensor, y: Tensor) -> Tensor:
            return torch.sigmoid(self.sigma(y))

    net = SDE()
    times = torch.linspace(0, 1, 4)

    def step(y: Tensor) -> Tensor:
        return torchsde.sdeint(net, y, times, method="euler", dt=0.25)

    return of(step, net), [(torch.randn(n, 3),) for n in (2, 2, 3, 5)]


@program("Mamba blocks", "mambapy")
def mamba() -> Any:
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=8, n_layers=3, d_state=4)), [(torch.randn(n, 16, 8),) for n in (2, 2, 3, 4)]


@program("x-transformers decoder", "x_transformers")
def x_transformer() -> Any:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    net = AutoregressiveWrapper(
        TransformerWrapper(
            num_tokens=50,
            max_seq_len=32,
            attn_layers=Decoder(dim=16, depth=3, heads=2, attn_dim_head=8, rotary_pos_emb=True),
        )
    )
    return net, [(torch.randint(0, 50, (n, 12)),) for n in (2, 2, 3, 4)]


@program("x-transformers encoder with memories and masks", "x_transformers")
def x_encoder() -> Any:
    from x_transformers import Encoder, TransformerWrapper

    net = TransformerWrapper(
        num_tokens=50, max_seq_len=32, num_memory_tokens=4,
        attn_layers=Encoder(dim=16, depth=3, heads=2, attn_dim_head=8, alibi_pos_bias=True, ff_glu=True, use_rmsnorm=True),
    )  # fmt: skip
    calls = []
    for n in (2, 2, 3, 4):
        mask = torch.ones(n, 12, dtype=torch.bool)
        mask[0, 8:] = False
        calls.append((torch.randint(0, 50, (n, 12)), False, False, mask))
    return of(lambda x, a, b, mask: net(x, mask=mask), net), calls


@program("einx operations", "einx")
def einx_ops() -> Any:
    import einx

    weight = nn.Parameter(torch.randn(8, 8))

    def step(x: Tensor) -> Tensor:
        y = einx.dot("b s [c], [c] d -> b s d", x, weight) if hasattr(einx, "dot") else x @ weight
        y = einx.rearrange("b s (h c) -> b h s c", y, h=2)
        return einx.mean("b h [s] c", y)

    return step, [(torch.randn(n, 5, 8),) for n in (2, 2, 3, 4)]


@program("exact Gaussian process, training step", "gpytorch")
def gp() -> Any:
    import gpytorch

    class GP(gpytorch.models.ExactGP):
        def __init__(self, x: Tensor, y: Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x = torch.linspace(0, 1, 12)
    y = torch.sin(6 * x)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = GP(x, y, likelihood).train()
    likelihood.train()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def step(y: Tensor) -> Tensor:
        return -mll(model(x), y)

    return of(step, model), [(y + 0.1 * torch.randn(12),) for _ in range(4)]


@program("equivariant layers", "e3nn")
def equivariant() -> Any:
    from e3nn import o3

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sh = o3.SphericalHarmonics([0, 1, 2], True)
            self.tp = o3.FullyConnectedTensorProduct("4x0e+2x1o", "1x0e+1x1o+1x2e", "4x0e+2x1o")
            self.lin = o3.Linear("4x0e+2x1o", "4x0e")

        def forward(self, x: Tensor, pos: Tensor) -> Tensor:
            return self.lin(self.tp(x, self.sh(pos)))

    return Net(), [(torch.randn(n, 10), torch.randn(n, 3)) for n in (4, 4, 6, 9)]


@program("U-Net for segmentation with Dice loss", "segmentation_models_pytorch")
def segmentation() -> Any:
    import segmentation_models_pytorch as smp

    net = smp.Unet("resnet18", encoder_weights=None, classes=3, encoder_depth=3, decoder_channels=(16, 8, 8))
    loss = smp.losses.DiceLoss("multiclass")

    def step(x: Tensor, y: Tensor) -> Tensor:
        return loss(net(x), y)

    return of(step, net), [(torch.randn(n, 3, 32, 32), torch.randint(3, (n, 32, 32))) for n in (2, 2, 3, 4)]


@program("3-D U-Net with Dice and cross entropy", "monai")
def monai_unet() -> Any:
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    net = UNet(spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 8), strides=(2, 2), num_res_units=1)
    loss = DiceCELoss(to_onehot_y=True, softmax=True)

    def step(x: Tensor, y: Tensor) -> Tensor:
        return loss(net(x), y)

    return of(step, net), [(torch.randn(n, 1, 8, 8, 8), torch.randint(2, (n, 1, 8, 8, 8))) for n in (2, 2, 3, 4)]


@program("monai sliding window and metrics", "monai")
def monai_inference() -> Any:
    from monai.inferers import sliding_window_inference
    from monai.metrics import compute_dice

    net = nn.Conv2d(1, 2, 3, padding=1).requires_grad_(False)

    def step(x: Tensor, y: Tensor) -> Any:
        out = sliding_window_inference(x, (8, 8), 2, net, overlap=0.25)
        onehot = F.one_hot(out.argmax(1), 2).permute(0, 3, 1, 2)
        return out, compute_dice(onehot, y)

    return step, [(torch.randn(n, 1, 16, 16), torch.randint(2, (n, 2, 16, 16))) for n in (1, 1, 2, 2)]


@program("CLIP with contrastive loss", "open_clip")
def clip() -> Any:
    from open_clip import ClipLoss
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    net = CLIP(
        16,
        CLIPVisionCfg(layers=2, width=16, head_width=8, patch_size=8, image_size=16),
        CLIPTextCfg(context_length=8, vocab_size=50, width=16, heads=2, layers=2),
    )
    loss = ClipLoss()

    def step(image: Tensor, text: Tensor) -> Tensor:
        return loss(*net(image, text))

    return of(step, net), [(torch.randn(n, 3, 16, 16), torch.randint(50, (n, 8))) for n in (2, 2, 3, 4)]


@program("metrics of torchmetrics", "torchmetrics")
def metrics() -> Any:
    import torchmetrics

    collection = torchmetrics.MetricCollection(
        [
            torchmetrics.classification.MulticlassAccuracy(5),
            torchmetrics.classification.MulticlassF1Score(5),
            torchmetrics.classification.MulticlassConfusionMatrix(5),
        ]
    )

    def step(logits: Tensor, target: Tensor) -> Any:
        return collection(logits, target)

    return of(step, collection), [(torch.randn(n, 5), torch.randint(5, (n,))) for n in (6, 6, 8, 9)]


@program("Pyro's ELBO", "pyro")
def elbo() -> Any:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Trace_ELBO

    def model(x: Tensor) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mu, 1.0), obs=x)

    loc = torch.zeros((), requires_grad=True)
    scale = torch.zeros((), requires_grad=True)

    def guide(x: Tensor) -> None:
        pyro.sample("mu", dist.Normal(loc, scale.exp()))

    objective = Trace_ELBO()

    def step(x: Tensor) -> Tensor:
        return objective.differentiable_loss(model, guide, x)

    return step, [(torch.randn(n),) for n in (6, 6, 8, 9)]


@program("timm mixup, EMA and label smoothing", "timm")
def timm_step() -> Any:
    import timm
    import timm.optim
    from timm.loss import SoftTargetCrossEntropy
    from timm.utils import ModelEmaV3

    net = timm.create_model("mobilenetv3_small_050", num_classes=5).double()
    ema = ModelEmaV3(net, decay=0.9)
    loss = SoftTargetCrossEntropy()
    optimizer = timm.optim.create_optimizer_v2(net, "lamb", lr=1e-3)

    def step(x: Tensor, y: Tensor) -> Tensor:
        out = loss(net(x), F.one_hot(y, 5) * 0.9 + 0.02)
        optimizer.zero_grad()
        out.backward()
        optimizer.step()
        ema.update(net)
        return out.detach()

    return of(step, net, ema), [(torch.randn(n, 3, 64, 64).double(), torch.randint(5, (n,))) for n in (2, 2, 3, 4)]


# tensordict, torchao


@program("TensorDict modules", "tensordict")
def tensordict_modules() -> Any:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    net = TensorDictSequential(
        TensorDictModule(nn.Linear(8, 16), in_keys=["observation"], out_keys=["hidden"]),
        TensorDictModule(nn.Tanh(), in_keys=["hidden"], out_keys=["hidden"]),
        TensorDictModule(nn.Linear(16, 2), in_keys=["hidden"], out_keys=[("agent", "action")]),
    )

    def step(observation: Tensor) -> Any:
        found = net(TensorDict({"observation": observation}, batch_size=[observation.shape[0]]))
        return found["agent", "action"], found["hidden"]

    return of(step, net), [(torch.randn(n, 8),) for n in (4, 4, 6, 9)]


@program("TensorDict as an argument", "tensordict")
def tensordict_argument() -> Any:
    from tensordict import TensorDict

    net = nn.Linear(8, 4)

    def step(batch: Any) -> Any:
        moved = batch.apply(lambda t: t * 2)
        return net(moved["x"]), moved["rest", "y"].sum(), batch.batch_size[0]

    calls = []
    for n in (4, 4, 6, 9):
        x, y = torch.randn(n, 8), torch.randn(n, 3)
        calls.append((TensorDict({"x": x, "rest": {"y": y}}, batch_size=[n]),))
    return of(step, net), calls


@program("int8 weights", "torchao")
def int8_weights() -> Any:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    quantize_(net, Int8WeightOnlyConfig())
    return net.requires_grad_(False), [(torch.randn(n, 32),) for n in (4, 4, 6, 9)]
