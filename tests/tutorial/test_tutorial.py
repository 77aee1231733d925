"""The classic introductions to torch.compile and TorchDynamo, example by example, under `intarsia`.

Where an example moves tensors to a GPU, `DEVICE` is a GPU if there is one. Models have random weights: nothing is downloaded. Those that take
long on one core are smaller in the usual run; INTARSIA_ALL_MODELS=1 runs them at the size of the original.
"""

from __future__ import annotations

import contextlib
import copy
import io
import operator
import os
import traceback
import warnings
from pathlib import Path

import pytest
import scipy.fft
import torch
from torch import nn

import intarsia
from intarsia.testing import check, same

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LARGE = os.environ.get("INTARSIA_ALL_MODELS", "0") == "1"


@pytest.fixture
def no_fallback():
    """Everything that is called in the test is compiled: no call runs in eager as a whole."""
    yield
    assert intarsia.counters()["fallbacks"] == 0


@pytest.fixture(params=[False, True], ids=["no_grad", "grad"])
def grad(request):
    """The introductions never write `no_grad`: both are tried."""
    with torch.set_grad_enabled(request.param):
        yield request.param


def agree(want, have, tol=None):
    """Fail with what differs."""
    verdict = same(want, have, tol=tol)
    assert verdict, verdict.message


class Graphs:
    """A backend that keeps what it is given and runs it as it is."""

    def __init__(self):
        self.modules = []

    def __call__(self, gm, example_inputs):
        assert isinstance(gm, torch.fx.GraphModule)
        assert all(isinstance(value, torch.Tensor | int | float) for value in example_inputs)
        self.modules.append(gm)
        return gm.forward

    @property
    def calls(self):
        """For each graph the names of what it calls."""
        return [
            [getattr(node.target, "__name__", node.target) for node in gm.graph.nodes if node.op.startswith("call_")]
            for gm in self.modules
        ]


# ---- functions ------------------------------------------------------------------------------------------------------


def cos_plus_sin(x, y):
    a = torch.cos(x).to(DEVICE)
    b = torch.sin(y).to(DEVICE)
    return a + b


def sin_plus_sin(x, y):
    a = torch.sin(x).to(DEVICE)
    b = torch.sin(y).to(DEVICE)
    return a + b


def sin_of_cos(x):
    a = torch.cos(x)
    b = torch.sin(a)
    return b  # noqa: RET504


def sin_plus_cos(x, y):
    a = torch.sin(x)
    b = torch.cos(y)
    return a + b


@pytest.mark.parametrize("backend", ["auto", "intarsia", "eager"])
@pytest.mark.parametrize("fn", [cos_plus_sin, sin_plus_sin, sin_plus_cos])
def test_two_arguments(fn, backend, no_fallback):
    new_fn = intarsia.compile(fn, backend=backend)
    input_tensor = torch.randn(10000).to(device=DEVICE)
    agree(fn(input_tensor, input_tensor), new_fn(input_tensor, input_tensor))
    other = torch.randn(10000, device=DEVICE)
    agree(fn(input_tensor, other), new_fn(input_tensor, other))


def test_one_argument(no_fallback):
    new_fn = intarsia.compile(sin_of_cos)
    input_tensor = torch.randn(10000).to(device=DEVICE)
    agree(sin_of_cos(input_tensor), new_fn(input_tensor))


def test_call_without_its_arguments():
    """One of the texts calls the compiled function with nothing: the error is Python's own, and a right call works afterwards."""
    new_fn = intarsia.compile(sin_plus_sin)
    with pytest.raises(TypeError) as want:
        sin_plus_sin()
    with pytest.raises(TypeError) as have:
        new_fn()
    assert str(have.value) == str(want.value)
    x = torch.randn(4, device=DEVICE)
    agree(sin_plus_sin(x, x), new_fn(x, x))


def test_decorator(no_fallback):
    @intarsia.compile
    def bare(x, y):
        return torch.cos(x) + torch.sin(y)

    @intarsia.compile(backend="intarsia")
    def called(x, y):
        return torch.cos(x) + torch.sin(y)

    compiler = intarsia.compile(backend="intarsia")
    x, y = torch.randn(10, 10), torch.randn(10, 10)
    want = torch.cos(x) + torch.sin(y)
    for fn in (bare, called, compiler(lambda x, y: torch.cos(x) + torch.sin(y))):
        agree(want, fn(x, y))
    assert (bare.__name__, called.__name__) == ("bare", "called")


def test_both_operations_are_in_one_kernel(tmp_path, no_fallback):
    fn = intarsia.compile(sin_of_cos, options={"debug": str(tmp_path)})
    with torch.no_grad():
        fn(torch.randn(10000))
    kernels = list(tmp_path.glob("run*/*/*.cpp"))
    assert len(kernels) == 1
    source = kernels[0].read_text()
    assert source.count('extern "C"') == 1
    assert source.count("] = ") == 2  # nothing is stored in between; the loop is there for small angles and for all
    assert "im::cos(" in source and "im::cos_small(" in source
    assert intarsia.counters()["kernels"] == 1


# ---- modules --------------------------------------------------------------------------------------------------------


class MyModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(100, 10)

    def forward(self, x):
        return nn.functional.relu(self.lin(x))


class ToyModel(nn.Module):
    def __init__(self):
        super(ToyModel, self).__init__()  # noqa: UP008 - as people write it
        self.lin1 = nn.Linear(10, 10)
        self.lin2 = nn.Linear(10, 10)

    def forward(self, x):
        x = self.lin1(x)
        x = self.lin2(x)
        return x  # noqa: RET504


@pytest.mark.parametrize("make, width", [(MyModule, 100), (ToyModel, 10)])
def test_module(make, width, grad, no_fallback):
    mod = make()
    opt_mod = intarsia.compile(mod)
    x = torch.randn(10, width)
    agree(mod(x), opt_mod(x))
    assert opt_mod(x).requires_grad == grad
    assert list(opt_mod.parameters()) == list(mod.parameters())


# ---- models ---------------------------------------------------------------------------------------------------------


def small_resnet(**kwargs):
    """torchvision's ResNet with one block a stage."""
    from torchvision.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, [1, 1, 1, 1], **kwargs)


def close_to_eager(model, *args, **kwargs):
    """A model beside its compiled copy, in its own mode: outputs by the accuracy rule, then buffers."""
    gold = copy.deepcopy(model).double()
    twin = intarsia.compile(copy.deepcopy(model))
    wide = [a.double() if a.is_floating_point() else a for a in args]
    want, have, true = model(*args, **kwargs), twin(*args, **kwargs), gold(*wide, **kwargs)
    verdict = same(want, have, true)
    assert verdict, verdict.message
    verdict = same(dict(model.named_buffers()), dict(twin.named_buffers()), dict(gold.named_buffers()))
    assert verdict, verdict.message


@pytest.mark.parametrize("name", ["resnet18-train", "resnet50-eval", "resnet50-train"] if LARGE else ["resnet50-eval"])
def test_resnet(name, no_fallback):
    from torchvision import models

    name, mode = name.split("-")
    model = getattr(models, name)().train(mode == "train").to(DEVICE)
    with torch.no_grad():
        close_to_eager(model, torch.randn(1, 3, 64, 64, device=DEVICE))
    counted = intarsia.counters()
    assert (counted["graphs"], counted["breaks"]) == (1, 0)


def test_resnet_with_gradients(no_fallback):
    from torchvision import models

    model, size = (models.resnet18(), 64) if LARGE else (small_resnet(), 32)
    close_to_eager(model.to(DEVICE), torch.randn(2, 3, size, size, device=DEVICE))


def hand_made_ids(text):
    """A stand-in for a tokenizer: one made-up id a word."""
    ids = [101, *(1000 + sum(map(ord, word)) % 20000 for word in text.split()), 102]
    input_ids = torch.tensor([ids], device=DEVICE)
    return {
        "input_ids": input_ids,
        "token_type_ids": torch.zeros_like(input_ids),
        "attention_mask": torch.ones_like(input_ids),
    }


def bert_config():
    from transformers import BertConfig

    if LARGE:
        return BertConfig()
    return BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=25000
    )


def test_bert(grad, no_fallback):
    from transformers import BertModel

    model = BertModel(bert_config()).eval().to(device=DEVICE)
    fast = intarsia.compile(model)  # the one line that is new
    for text in ("Replace me by any text you'd like.", "Another text of another length, to be sure."):
        encoded_input = hand_made_ids(text)
        want, have = model(**encoded_input), fast(**encoded_input)
        assert type(have) is type(want)
        agree(want.last_hidden_state, have.last_hidden_state)
        agree(want.pooler_output, have.pooler_output)
    assert intarsia.counters()["breaks"] == 0


def test_model_made_inside(no_fallback):
    """A decorated function without arguments that builds BERT, makes its input and calls it."""
    from transformers import BertModel

    config = bert_config()

    def train():
        torch.manual_seed(1)
        model = BertModel(config).eval()
        text = "Replace me by any text you'd like."
        encoded_input = hand_made_ids(text)
        output = model(**encoded_input)
        return output.last_hidden_state

    fast = intarsia.compile(train)
    for _ in range(2):
        agree(train(), fast())


def resnext(**kwargs):
    import timm

    if LARGE:
        return timm.create_model("resnext101_32x8d", pretrained=False, **kwargs)
    from timm.models.resnet import Bottleneck, ResNet

    return ResNet(Bottleneck, [1, 1, 1, 1], cardinality=32, base_width=8, **kwargs)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_resnext(training, grad, no_fallback):
    if not (grad or LARGE):
        pytest.skip("the tutorial's page runs all 101 layers in this way")
    model = resnext(num_classes=2).train(training).to(DEVICE)
    close_to_eager(model, torch.randn(64 if LARGE else 8, 3, 7, 7, device=DEVICE))
    assert intarsia.counters()["breaks"] == 0


# ---- evaluation and training steps ----------------------------------------------------------------------------------


def generate_data(b, size=32):
    return (
        torch.randn(b, 3, size, size).to(torch.float32).to(DEVICE),
        torch.randint(1000, (b,)).to(DEVICE),
    )


def init_model():
    torch.manual_seed(2)
    return small_resnet().to(torch.float32).to(DEVICE)


def evaluate(mod, inp):
    return mod(inp)


def train(mod, data):
    pred = mod(data[0])
    loss = nn.CrossEntropyLoss()(pred, data[1])
    loss.backward()


def test_a_function_that_takes_the_model(no_fallback):
    model = init_model().eval()
    eval_opt = intarsia.compile(evaluate)
    with torch.no_grad():
        for _ in range(3):
            inp = generate_data(4)[0]
            agree(evaluate(model, inp), eval_opt(model, inp))
    assert intarsia.counters()["captures"] == 1


def test_a_training_step(no_fallback):
    """Forward, loss and backward in the compiled function, the optimizer outside; eager, compiled and float64 start each step alike."""
    model, data = init_model(), generate_data(8)
    twin = init_model()
    opt = torch.optim.Adam(model.parameters())
    train_opt = intarsia.compile(train)
    for _ in range(3):
        twin.load_state_dict(model.state_dict())
        gold = copy.deepcopy(model).double()
        for module in (model, twin, gold):
            module.zero_grad(True)
        train(model, data)
        train(gold, (data[0].double(), data[1]))
        train_opt(twin, data)
        for (name, want), have, true in zip(
            model.named_parameters(), twin.parameters(), gold.parameters(), strict=True
        ):
            verdict = same(want.grad, have.grad, true.grad, name=name)
            assert verdict, verdict.message
        verdict = same(dict(model.named_buffers()), dict(twin.named_buffers()), dict(gold.named_buffers()))
        assert verdict, verdict.message
        opt.step()
        data = generate_data(8)


def test_a_training_loop(no_fallback):
    """The whole loop in one decorated function, optimizer and prints included: a network learns the same as in eager."""

    def training_loop(model, batches):
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for x, y in batches:
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
            losses.append(loss.item())
            print(f"loss {losses[-1]:.3f}")
        return losses

    batches = [(torch.randn(8, 10), torch.randn(8, 10)) for _ in range(4)]
    model = ToyModel()
    twin = copy.deepcopy(model)
    printed = []
    results = []
    for fn, module in ((training_loop, model), (intarsia.compile(training_loop), twin)):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            results.append(fn(module, batches))
        printed.append(text.getvalue())
    assert printed[0] == printed[1] and printed[0].count("loss") == 4
    agree(results[0], results[1])
    agree(dict(model.state_dict()), dict(twin.state_dict()))


# ---- what other ways of capture do ----------------------------------------------------------------------------------


def f1(x, y):
    if x.sum() < 0:
        return -y
    return y


def f2(x, y):
    return x + y


def f3(x):
    x = x * 2
    x = scipy.fft.dct(x.numpy())
    x = torch.from_numpy(x)
    x = x * 2
    return x  # noqa: RET504


def same_result(fn1, fn2, args):
    return torch.allclose(fn1(*args), fn2(*args))


def test_both_branches(no_fallback):
    inp1, inp2 = torch.rand(5, 5), torch.randn(5, 5)
    dynamo_f1 = intarsia.compile(f1)
    for sign in (1, -1, 1, -1):
        assert same_result(f1, dynamo_f1, (sign * inp1, inp2))
    assert intarsia.counters()["breaks"] == 0


def test_both_branches_elsewhere():
    """What the comparison is about: torch's traces keep one branch or refuse."""
    inp1, inp2 = torch.rand(5, 5), torch.randn(5, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(f1, (inp1, inp2))
    assert same_result(f1, traced, (inp1, inp2))
    assert not same_result(f1, traced, (-inp1, inp2))  # silently wrong
    with pytest.raises(torch.fx.proxy.TraceError):
        torch.fx.symbolic_trace(f1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fx_f1 = torch.fx.symbolic_trace(f1, concrete_args={"x": inp1})
    assert same_result(f1, fx_f1, (inp1, inp2))
    assert not same_result(f1, fx_f1, (-inp1, inp2))


def test_int_argument(no_fallback):
    inp1 = torch.randn(5, 5)
    dynamo_f2 = intarsia.compile(f2)
    for number in (3, 4, 5, 6, 0, 1, -2, 2**40):
        assert same_result(f2, dynamo_f2, (inp1, number))
    assert intarsia.counters()["captures"] <= 4  # 3, any int, and 0 and 1 at most
    agree(f2(inp1, 2.5), dynamo_f2(inp1, 2.5))
    agree(f2(inp1, inp1), dynamo_f2(inp1, inp1))


def test_int_argument_elsewhere():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script_f2 = torch.jit.script(f2)
    with pytest.raises(RuntimeError):
        script_f2(torch.randn(5, 5), 3)


def test_scipy_in_the_middle(no_fallback):
    graphs = Graphs()
    for backend in ("intarsia", graphs):
        dynamo_f3 = intarsia.compile(f3, backend=backend)
        for _ in range(3):
            inp = torch.randn(5, 5)
            agree(f3(inp), dynamo_f3(inp))
    assert graphs.calls == [["mul"], ["mul"]]


def test_scipy_elsewhere():
    inp1, inp2 = torch.randn(5, 5), torch.randn(5, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced_f3 = torch.jit.trace(f3, (inp1,))
        assert not same_result(f3, traced_f3, (inp2,))
        for capture in (torch.jit.script, torch.fx.symbolic_trace):
            with pytest.raises(Exception):  # noqa: B017 - which one is torch's business
                capture(f3)


# ---- graphs ---------------------------------------------------------------------------------------------------------


def bar(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b.double() * -1
    return x * b


def bar_line(text):
    return bar.__code__.co_firstlineno + next(
        i
        for i, line in enumerate(open(__file__).read().splitlines()[bar.__code__.co_firstlineno - 1 :])
        if text in line
    )


def test_three_graphs(capsys, no_fallback):
    graphs = Graphs()

    def custom_backend(gm, example_inputs):
        print("custom backend called with FX graph:")
        print(gm.graph)
        return graphs(gm, example_inputs)

    opt_bar = intarsia.compile(bar, backend=custom_backend)
    inp1, inp2 = torch.randn(10), torch.rand(10)
    for sign in (1, -1, 1, -1):
        agree(bar(inp1, sign * inp2), opt_bar(inp1, sign * inp2))
    assert sorted(graphs.calls) == sorted([["abs", "add", "truediv", "sum", "lt"], ["double", "mul", "mul"], ["mul"]])
    assert capsys.readouterr().out.count("custom backend called") == 3


def test_graph_of_a_model(capsys, no_fallback):
    graphs = Graphs()
    model = init_model().eval()
    inp = generate_data(2)[0]
    with torch.no_grad():
        agree(model(inp), intarsia.compile(model, backend=graphs)(inp))
    assert len(graphs.modules) == 1
    assert sum("conv2d" in name for name in graphs.calls[0]) == sum(isinstance(m, nn.Conv2d) for m in model.modules())


def test_reset(no_fallback):
    graphs = Graphs()
    fn = intarsia.compile(f2, backend=graphs)
    x = torch.ones(2)
    fn(x, x), fn(x, x)
    assert len(graphs.modules) == 1
    intarsia.reset()
    fn(x, x)
    assert len(graphs.modules) == 2


def test_explain(no_fallback):
    a, b = torch.randn(10), torch.rand(10)
    explanation = intarsia.explain(bar)(a, b)
    agree(bar(a, b), explanation.result)
    assert (explanation.graph_count, explanation.graph_break_count, explanation.ops_per_graph) == (2, 1, [5, 1])
    (broken,) = explanation.breaks
    line = bar_line("b.sum()")
    assert (broken.file, broken.line, broken.text) == (__file__, line, "if b.sum() < 0:")
    assert "torch.where" in broken.remedy
    text = str(explanation)
    assert f"{Path(__file__).name}:{line}, in bar: if b.sum() < 0:" in text and "control flow" in text


def test_whole_graph_or_an_error(no_fallback):
    opt_bar = intarsia.compile(bar, fullgraph=True)
    with pytest.raises(intarsia.GraphBreak) as error:
        opt_bar(torch.randn(10), torch.randn(10))
    text = "".join(traceback.format_exception_only(error.value))
    assert f"{__file__}:{bar_line('b.sum()')}: if b.sum() < 0:" in text
    assert len(text.splitlines()) <= 15
    model = init_model().eval()
    with torch.no_grad():
        inp = generate_data(2)[0]
        agree(model(inp), intarsia.compile(model, fullgraph=True)(inp))


def test_export():
    with pytest.raises(intarsia.ExportError, match=f"{__file__}:{bar_line('b.sum()')}: if b.sum"):
        intarsia.export(bar)(torch.randn(10), torch.randn(10))
    model = init_model().eval()
    inp = generate_data(2)[0]
    with torch.no_grad():
        exported = intarsia.export(model)(inp)
        agree(model(inp), exported[0](inp))
        agree(model(inp), exported.graph_module(inp))
        aten = intarsia.export(model, aten_graph=True)(inp)
        agree(model(inp), aten[0](inp))
    assert isinstance(exported.graph_module, torch.fx.GraphModule)
    assert all(
        isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
        for node in aten.graph_module.graph.nodes
        if node.op == "call_function"
    )


# ---- backends -------------------------------------------------------------------------------------------------------


def test_list_backends():
    names = intarsia.list_backends()
    assert {"inductor", "intarsia"} <= set(names)
    assert {"eager", "aot_eager", *names} <= set(intarsia.list_backends(exclude_tags=()))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "intarsia"])
def test_named_backends(backend, grad, no_fallback):
    mod = ToyModel()
    x = torch.randn(4, 10)
    agree(mod(x), intarsia.compile(mod, backend=backend)(x))


@pytest.mark.parametrize("name", ["onnxrt", "tensorrt", "tvm", "ipex", "cudagraphs"])
def test_backends_of_other_packages(name):
    """Known by name where torch or their package brings them; else the error says which names there are."""
    try:
        fn = intarsia.compile(f2, backend=name)
        result = fn(torch.ones(2), 1)
    except Exception as error:
        assert name in str(error) and len(str(error).splitlines()) <= 15
    else:
        agree(torch.full((2,), 2.0), result)


@pytest.mark.parametrize("name", ["nvfuser", "aot_nvfuser", "nvprims_nvfuser", "ofi", "aot_cudagraphs"])
def test_backends_that_are_no_more(name):
    with pytest.raises(ValueError, match=f"unknown backend '{name}'"):
        intarsia.compile(f2, backend=name)


def test_the_accuracy_of_the_small_examples():
    for fn, args in ((sin_plus_cos, (torch.randn(10, 10), torch.randn(10, 10))), (sin_of_cos, (torch.randn(10000),))):
        check(fn, args)
