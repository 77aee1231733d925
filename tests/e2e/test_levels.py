"""Every level of real models: text reads back to itself, the interpreter gives eager's answer, passes-opt does what compile did."""

from __future__ import annotations

import pytest
import torch
import torch.utils._pytree as pytree

import intarsia
from benchmarks import torchvision_stub
from intarsia.ir.interpreter.run import run_user
from intarsia.ir.text import parse_module, print_module
from intarsia.tools.opt.main import main as passes_opt

pytestmark = pytest.mark.usefixtures("product_compiler")

torchvision_stub.install()  # lets torchvision and transformers import beside a CPU torch


def toy():
    return lambda x, y: torch.sin(x) + torch.cos(y).softmax(-1), (torch.randn(4, 9), torch.randn(4, 9))


def resnet():
    import torchvision

    return torchvision.models.resnet18(num_classes=10).eval(), (torch.randn(1, 3, 32, 32),)


def mobilenet():
    import torchvision

    return torchvision.models.mobilenet_v3_small(num_classes=10).eval(), (torch.randn(1, 3, 32, 32),)


def convnext():
    import torchvision
    from torchvision.models.convnext import CNBlockConfig

    blocks = [CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)]
    return torchvision.models.ConvNeXt(blocks, num_classes=10).eval(), (torch.randn(1, 3, 32, 32),)


def bert():
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    return BertModel(config).eval(), (torch.randint(0, 99, (2, 12)),)


def gpt2():
    from transformers import GPT2Config, GPT2Model

    return GPT2Model(GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4)).eval(), (torch.randint(0, 99, (2, 12)),)


LONG = 100_000
MODELS = [toy, resnet, mobilenet, convnext, bert, gpt2]


@pytest.fixture(scope="module", params=MODELS, ids=lambda m: m.__name__)
def lowered(request):
    torch.manual_seed(0)
    torch.set_num_threads(1)  # part of the state that guards check
    fn, args = request.param()
    with torch.no_grad():
        return fn, args, intarsia.lower(fn, *args)


def test_text_is_stable_at_every_stage(lowered):
    """Each text once; of a network with hundreds of operations, every fourth."""
    _, _, low = lowered
    texts = {text: name for name, text in low.stages.items()}
    for text in list(texts)[:: 4 if max(map(len, texts)) > LONG else 1]:
        assert print_module(parse_module(text)) == text, texts[text]


def test_interpreter_agrees_at_every_level(lowered):
    fn, args, low = lowered
    expected = [x for x in pytree.tree_leaves(fn(*args)) if isinstance(x, torch.Tensor)]
    for level in ("aten", "prim", "kernel", "loop", "buffer"):
        found = run_user(parse_module(low.ir(level)), [*low.inputs(*args), *low.constants])
        found = [x for x in found if isinstance(x, torch.Tensor)]
        assert len(found) >= 1
        torch.testing.assert_close(
            found[0], expected[0], rtol=1e-3, atol=1e-4, msg=lambda m, level=level: f"{level}: {m}"
        )


def test_passes_opt_repeats_compile(lowered, tmp_path, capsys):
    _, _, low = lowered
    names = list(low.stages)
    before = names[names.index("fuse") - 1]
    path = tmp_path / "graph.ir"
    path.write_text(low.stages[before])
    assert passes_opt(
        [
            "--pipeline",
            "fuse,layout,lower,split-reductions,keep,schedule",
            f"--threads={torch.get_num_threads()}",
            str(path),
        ]
    ) in (
        0,
        None,
    )
    assert capsys.readouterr().out.strip() == low.stages["schedule"].strip()


def test_compiled_agrees(lowered):
    fn, args, low = lowered
    expected, found = fn(*args), low.compile()(*args)
    a, b = pytree.tree_leaves(expected)[0], pytree.tree_leaves(found)[0]
    torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4)
