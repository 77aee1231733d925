"""The layers of torch.nn, in training and in evaluation, with their options."""

import pytest
import torch
from cases import check_scenario, scenario, t
from torch import nn

LAYERS = [
    (lambda: nn.Linear(4, 3, bias=False), (2, 4)),
    (lambda: nn.Bilinear(4, 4, 2), None),
    (lambda: nn.Conv1d(4, 2, 3, padding=1, groups=2), (2, 4, 6)),
    (lambda: nn.Conv2d(3, 2, 3, stride=2, padding="valid", padding_mode="zeros"), (2, 3, 8, 8)),
    (lambda: nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect"), (2, 3, 8, 8)),
    (lambda: nn.ConvTranspose2d(3, 2, 2, stride=2, output_padding=1), (1, 3, 4, 4)),
    (lambda: nn.Conv3d(1, 2, 2), (1, 1, 3, 3, 3)),
    (lambda: nn.BatchNorm1d(4), (3, 4)),
    (lambda: nn.BatchNorm2d(3, momentum=None), (2, 3, 4, 4)),
    (lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False), (3, 4)),
    (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (2, 3, 4, 4)),
    (lambda: nn.GroupNorm(2, 4), (2, 4, 3)),
    (lambda: nn.LayerNorm((3, 4), elementwise_affine=False), (2, 3, 4)),
    (lambda: nn.RMSNorm(4), (2, 4)),
    (lambda: nn.LocalResponseNorm(2), (2, 4, 3)),
    (lambda: nn.Embedding(10, 4, padding_idx=0), torch.tensor([[0, 3], [9, 1]])),
    (lambda: nn.Embedding(10, 4, max_norm=1.0), torch.tensor([[0, 3], [9, 1]])),
    (lambda: nn.EmbeddingBag(10, 4, mode="max"), torch.tensor([[0, 3], [9, 1]])),
    (lambda: nn.MaxPool2d(2, return_indices=True), (1, 2, 4, 4)),
    (lambda: nn.AvgPool1d(2, ceil_mode=True), (1, 2, 5)),
    (lambda: nn.AdaptiveMaxPool2d((2, None)), (1, 2, 5, 3)),
    (lambda: nn.LPPool1d(2, 2), (1, 2, 4)),
    (lambda: nn.FractionalMaxPool2d(2, output_size=2), (1, 2, 6, 6)),
    (lambda: nn.Upsample(scale_factor=2, mode="bicubic"), (1, 2, 3, 3)),
    (lambda: nn.PixelUnshuffle(2), (1, 1, 4, 4)),
    (lambda: nn.ReflectionPad2d(1), (1, 1, 3, 3)),
    (lambda: nn.ConstantPad1d(2, 3.5), (1, 2, 3)),
    (lambda: nn.Fold((4, 4), 2, stride=2), (1, 4, 4)),
    (lambda: nn.Dropout2d(0.5), (2, 3, 2, 2)),
    (lambda: nn.AlphaDropout(0.3), (4, 4)),
    (lambda: nn.PReLU(4), (2, 4)),
    (lambda: nn.RReLU(), (2, 4)),
    (lambda: nn.Softmax2d(), (2, 3, 2, 2)),
    (lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 10, [3, 6]), None),
    (lambda: nn.Unflatten(1, (2, 2)), (2, 4)),
    (lambda: nn.ChannelShuffle(2), (1, 4, 2, 2)),
    (lambda: nn.CosineSimilarity(), None),
    (lambda: nn.RNN(4, 3, nonlinearity="relu", batch_first=True), (2, 5, 4)),
    (lambda: nn.LSTM(4, 3, num_layers=2, dropout=0.5, bidirectional=True), (5, 2, 4)),
    (lambda: nn.LSTM(4, 3, proj_size=2), (5, 2, 4)),
    (lambda: nn.GRU(4, 3, bidirectional=True), (5, 2, 4)),
    (lambda: nn.LSTMCell(4, 3), (2, 4)),
    (lambda: nn.GRUCell(4, 3), (2, 4)),
    (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True), (2, 3, 4)),
    (lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2), (2, 3, 4)),
    (lambda: nn.TransformerDecoderLayer(4, 2, 8), None),
    (lambda: nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True), None),
]
_ARGUMENTS = {
    "Bilinear": lambda: (t(2, 4), t(2, 4)),
    "AdaptiveLogSoftmaxWithLoss": lambda: (t(3, 4), torch.tensor([1, 4, 9])),
    "CosineSimilarity": lambda: (t(2, 4), t(2, 4) + 1),
    "TransformerDecoderLayer": lambda: (t(3, 2, 4), t(5, 2, 4)),
    "MultiheadAttention": lambda: (t(2, 3, 4), t(2, 3, 4), t(2, 3, 4)),
}


def _name(layer):
    return str(layer()).partition("\n")[0].replace(" ", "")[:60]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=[_name(layer) for layer, _ in LAYERS])
def test_layer(layer, shape):
    def run(compile):
        torch.manual_seed(0)
        net = layer()
        args = (
            _ARGUMENTS[type(net).__name__]()
            if shape is None
            else (shape if isinstance(shape, torch.Tensor) else t(*shape),)
        )
        fast = compile(net)
        torch.manual_seed(1)
        out = [fast(*args), fast(*args)]
        net.eval()
        return [*out, fast(*args)], net.state_dict(), torch.rand(1)

    reads = isinstance(layer(), nn.AdaptiveLogSoftmaxWithLoss) or getattr(layer(), "momentum", 0) is None
    breaks = (
        reads or getattr(layer(), "dropout", 0) and isinstance(layer(), nn.RNNBase)
    )  # torch's traces of these draw nothing
    check_scenario(run, expect="eager" if breaks else "graph")  # the others read values of tensors


@scenario
def test_attention_options(compile):
    torch.manual_seed(0)
    net = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    fast, x = compile(net), t(2, 3, 4)
    mask = torch.zeros(3, 3).masked_fill(torch.ones(3, 3).triu(1) > 0, -torch.inf)
    return (
        fast(x, x, x, attn_mask=mask),
        fast(x, x, x, need_weights=False),
        fast(x, x, x, key_padding_mask=torch.tensor([[False, False, True], [False, True, True]])),
        fast(x, x, x, average_attn_weights=False),
        fast(x, x, x, attn_mask=mask, is_causal=True),
    )


@scenario
def test_encoder_with_masks(compile):
    torch.manual_seed(0)
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2).eval()
    fast, x = compile(net), t(2, 3, 4)
    causal = nn.Transformer.generate_square_subsequent_mask(3)
    padding = torch.tensor([[0, 0, 1], [0, 0, 0]]).bool()
    # What comes out at padded places torch itself makes depend on torch.compiler.is_compiling().
    return fast(x, mask=causal, is_causal=True), fast(x, src_key_padding_mask=padding)[~padding]


@scenario
def test_whole_transformer(compile):
    torch.manual_seed(0)
    net = nn.Transformer(4, 2, 1, 1, 8, batch_first=True).eval()
    return [compile(net)(t(2, 3, 4), t(2, 2, 4)) for _ in range(2)]


@scenario
def test_recurrent_state_is_carried(compile):
    torch.manual_seed(0)
    net = nn.LSTM(4, 3)
    fast, state, out = compile(net), None, []
    for _ in range(3):
        y, state = fast(t(2, 1, 4), state)
        out.append(y)
    return out, state


@scenario(expect="eager")
def test_packed_sequences(compile):
    torch.manual_seed(0)
    net = nn.GRU(4, 3, batch_first=True)

    def run(x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        out, _ = net(packed)
        return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)

    return compile(run)(t(2, 5, 4), torch.tensor([5, 3]))


@scenario
def test_bag_with_offsets(compile):
    torch.manual_seed(0)
    net = nn.EmbeddingBag(10, 4, mode="sum", include_last_offset=True)
    return compile(net)(torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2, 4]), per_sample_weights=torch.ones(4))


@scenario(expect="breaks")
def test_cosine_and_ctc_losses(compile):
    loss = nn.CTCLoss()
    fast = compile(loss)
    return fast(t(5, 2, 4).log_softmax(2), torch.tensor([[1, 2], [3, 1]]), torch.tensor([5, 5]), torch.tensor([2, 2]))
