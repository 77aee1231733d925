"""Programs on a GPU give what eager gives there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia
from intarsia.testing import check

sys.path.append(str(Path(__file__).parents[1] / "targets"))

GPU = "cuda:0"
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def gpu(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers."""
    if dtype.is_floating_point:
        return torch.randn(shape, device=GPU).to(dtype)
    return torch.randint(1, 9, shape, device=GPU).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_pointwise(dtype: torch.dtype) -> None:
    check(
        lambda x, y: (F.gelu(x) * y.sigmoid() + 1, x.floor(), x > y), [gpu(33, 65, dtype=dtype), gpu(65, dtype=dtype)]
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows(dtype: torch.dtype) -> None:
    x = gpu(33, 770, dtype=dtype)
    check(lambda x: (x.softmax(-1), F.layer_norm(x, (770,)), x.sum(-1), x.amax(-1), x.argmax(-1)), [x])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_long_rows(dtype: torch.dtype) -> None:
    check(lambda x: (x.log_softmax(-1), x.var(-1), x.logsumexp(-1)), [gpu(5, 50304, dtype=dtype)])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_columns_and_everything(dtype: torch.dtype) -> None:
    check(lambda x: (x.mean(0), x.amax(0), x.float().sum(), x.softmax(0)), [gpu(700, 130, dtype=dtype)])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype: torch.dtype) -> None:
    x, y = gpu(70, 90, dtype=dtype), gpu(90, dtype=dtype)
    check(lambda x, y: (x + y * 3, x // y, x % y, x & y, x.sum(1), x.amax(0), x.cumsum(1), x == y), [x, y])


def test_bools() -> None:
    x, y = gpu(70, 90) > 0, gpu(70, 90) > 1
    check(lambda x, y: (x & y, x ^ y, ~x, x.any(1), y.all(0), x.sum(), x.float() * 2), [x, y])


def test_special_numbers() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.5, -2.5] * 20, device=GPU)
    check(
        lambda x: (x.sign(), x.round(), x.sqrt(), x.exp(), torch.maximum(x, -x), x.argmax(), x.isnan(), x // 0.7), [x]
    )


def test_transposes_and_parts() -> None:
    x, y = gpu(300, 200), gpu(200, 300)
    check(
        lambda x, y: (x.t() + y, torch.cat([x.t(), y], 1).exp(), x[::2, 3:].flip(0), F.pad(y, (1, 2), value=3.0)),
        [x, y],
    )


def test_scans() -> None:
    check(lambda x: (x.cumsum(1), x.cumsum(0), x.cummax(1)[0], (x * 0.01 + 1).cumprod(1)), [gpu(9, 5000)])


@pytest.mark.parametrize("view", ["part", "expanded", "transposed", "strided", "one_element_on"])
def test_layouts(view: str) -> None:
    base = gpu(101, 64)
    x = {
        "part": base[1:, 3:50],
        "expanded": base[:1].expand(100, 64),
        "transposed": base.t(),
        "strided": base[::3, ::2],
        "one_element_on": base.flatten()[1:1001].view(10, 100),  # its address is no multiple of 16
    }[view]
    check(lambda x: (x.exp() + 1, x.softmax(-1), x.sum(0)), [x], calls=5)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0,)])
def test_without_elements(shape: tuple[int, ...]) -> None:
    check(lambda x: (x.exp() + 1, x.sum(-1), x.sum()), [gpu(*shape)])


def test_scalars() -> None:
    check(lambda x, y: (x.exp() * y, y + x.sum()), [gpu(), gpu(7)])


def test_other_sizes() -> None:
    fn = intarsia.compile(lambda x: (x * 2).softmax(-1).sum(0))
    for rows, columns in [(3, 5), (4, 5), (1000, 5), (1, 1), (17, 2049), (0, 5), (3, 40000)]:
        x = gpu(rows, columns)
        torch.testing.assert_close(fn(x), (x * 2).softmax(-1).sum(0), rtol=1e-4, atol=1e-4)


def test_gathers() -> None:
    table, index = gpu(50, 32), torch.randint(-50, 50, (4, 7), device=GPU)
    check(lambda t, i: (t[i] * 2, F.layer_norm(t[i], (32,)), t.gather(0, i[:, :5].abs() % 50)), [table, index])


OUTSIDE = """
import torch, intarsia
fn = intarsia.compile(lambda t, i: t[i] * 2 + 1)
t, i = torch.randn(5, 4, device="cuda:0"), torch.tensor([0, 4, -5], device="cuda:0")
assert torch.equal(fn(t, i), t[i] * 2 + 1)
print("right", flush=True)
i[1] = NUMBER
fn(t, i)
torch.cuda.synchronize()
print("not noticed", flush=True)
"""


@pytest.mark.parametrize("number", [5, -6, 2**40])
def test_an_index_that_is_out_of_range_is_an_error(number: int) -> None:
    """In a process of its own: after an assertion a process can use the GPU no more."""
    script = OUTSIDE.replace("NUMBER", str(number))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout == "right\n" and done.returncode != 0, done.stderr[-2000:]
    assert "assert" in done.stderr


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.gelu(self.norm(self.body(x).mean((2, 3)))))


def test_a_training_step() -> None:
    x, target = gpu(6, 3, 12, 12), torch.randint(0, 5, (6,), device=GPU)
    eager = Net().to(GPU)
    ours = Net().to(GPU)
    ours.load_state_dict(eager.state_dict())
    fast = intarsia.compile(ours)
    optimizers = [torch.optim.SGD(n.parameters(), 0.05) for n in (eager, ours)]
    for _ in range(6):
        losses = []
        for net, optimizer in zip((eager, fast), optimizers, strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-3)
    for (name, a), b in zip(eager.state_dict().items(), ours.state_dict().values(), strict=True):
        torch.testing.assert_close(b, a, rtol=5e-3, atol=5e-3, msg=lambda m, name=name: f"{name}: {m}")


def test_gradients() -> None:
    x, w = gpu(9, 33).requires_grad_(), gpu(33).requires_grad_()
    check(lambda x, w: (F.rms_norm(x, (33,), w).tanh(), x.softmax(-1) * w), [x, w], gradients=True)


def test_other_devices_beside() -> None:
    fn = intarsia.compile(lambda x, y: (x.exp() + 1, y.exp() + 1))
    x, y = gpu(9), torch.randn(9)
    for a, b in zip(fn(x, y), (x.exp() + 1, y.exp() + 1), strict=True):
        torch.testing.assert_close(a, b)


def test_handwritten_kernels(tmp_path: Path) -> None:
    """All of the zoo, compiled for this GPU and launched by Triton itself."""
    from triton_programs import kernels_of, zoo

    from intarsia.ir.interpreter import run as reference
    from intarsia.ir.interpreter.loops import find_kernel, launch_memory
    from intarsia.ir.symbols import symbol
    from intarsia.targets.triton.compile import load_text
    from intarsia.targets.triton.emit import emit_module, program_count

    texts = {}

    def launch(machine, op):
        kernel = find_kernel(machine, op["kernel"])
        fitted, empty = launch_memory(machine, kernel, op)
        outs = [torch.empty_strided(r.shape, r.stride(), dtype=r.dtype, device=GPU) for r in empty]
        sizes = [machine.number(symbol(s)) for s in kernel.sizes]
        programs = machine.number(program_count(kernel))
        if programs:
            memory = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=GPU).copy_(x) for x in fitted]
            run = getattr(texts["module"], op["kernel"])[(programs,)]
            run(*memory, *outs, *sizes, num_warps=kernel["warps"])
        return [torch.empty_strided(o.shape, o.stride(), dtype=o.dtype).copy_(o) for o in outs]

    before = reference.RULES["loop.launch"]
    for number, program in enumerate(zoo()):
        expected, module = reference.run(program.module, program.args), program.on_gpu()
        path = tmp_path / f"kernels_{number}.py"
        path.write_text(emit_module(kernels_of(module)))
        texts["module"] = load_text(path, path.stem)
        reference.RULES["loop.launch"] = launch
        try:
            found = reference.run(module, program.args)
        finally:
            reference.RULES["loop.launch"] = before
        for a, b in zip(expected, found, strict=True):
            near = 1e-2 if a.dtype == torch.bfloat16 else 1e-4
            torch.testing.assert_close(
                b, a, rtol=near, atol=near, equal_nan=True, msg=lambda m, n=program.name: f"{n}: {m}"
            )


def test_conversions_of_all_numbers() -> None:
    """Also of numbers that an integer does not hold: eager takes a wider integer between."""
    numbers = [
        0.0,
        -1.9,
        200.0,
        256.0,
        -300.0,
        40000.0,
        -70000.0,
        3e9,
        -1e10,
        1e30,
        float("inf"),
        -float("inf"),
        float("nan"),
    ]
    dtypes = (*INTEGERS, torch.uint16, torch.uint32, torch.bool)
    for dtype in FLOATS:
        x = torch.tensor(numbers, dtype=torch.float64).to(GPU, dtype)
        wanted, found = [x.to(d) for d in dtypes], intarsia.compile(lambda x: [x.to(d) for d in dtypes])(x)
        assert [t.tolist() for t in found] == [t.tolist() for t in wanted]


def test_an_argument_is_written_once() -> None:
    """A library's result that is not aligned is met after the write."""

    def program(x: Tensor) -> Tensor:
        parts = torch.block_diag(x - 1, x - 1)
        x.pow_(2)
        return parts.as_strided((1, 1), (1, 1), 1).view(torch.uint8) & 7

    fast = intarsia.compile(program)
    for _ in range(4):
        x, y = torch.arange(7, device=GPU), torch.arange(7, device=GPU)
        assert torch.equal(fast(x), program(y)) and torch.equal(x, y)


def test_a_number_that_changes() -> None:
    """It is an argument of float64 on the CPU, and a copy of it on the GPU."""

    def program(x: Tensor, k: float) -> Tensor:
        return (x + k).softmax(-1)

    fast = intarsia.compile(program)
    with torch.inference_mode():
        for k in (1.5, 2.5, 3.5, 4.5):
            x = gpu(5, 7)
            torch.testing.assert_close(fast(x, k), program(x, k))


def test_types_that_kernels_of_norms_do_not_mix() -> None:
    x, w = gpu(4, 8, dtype=torch.bfloat16), torch.ones(8, device=GPU)
    for program in (lambda x, w: F.layer_norm(x, (8,), w, w), lambda x, w: F.group_norm(x, 2, None, w)):
        for function in (program, intarsia.compile(program)):
            with pytest.raises(RuntimeError, match="expected scalar type BFloat16 but found Float"):
                function(x, w)


def test_recurrent_layers_under_autocast() -> None:
    net = nn.GRU(16, 8, batch_first=True).to(GPU)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        x = gpu(2, 5, 16)
        assert intarsia.compile(net)(x)[0].dtype == net(x)[0].dtype


def test_the_last_row_by_minus_one() -> None:
    x, index = gpu(4, 3), torch.tensor([-1, 1], device=GPU)
    check(lambda x, i: (x.index_fill(0, i, 2.0), x[i], x.index_put((i,), x[:2] * 2)), [x, index])


@pytest.mark.parametrize("training", [True, False])
def test_strides_of_batch_norm(training: bool) -> None:
    """cuDNN makes images contiguous, or channels last."""
    with torch.no_grad():
        for shape in ((5, 16, 8), (2, 4, 6, 8), (2, 4, 3, 5, 6)):
            plain, w = gpu(*shape), torch.ones(shape[1], device=GPU)
            for x in (
                plain,
                plain.transpose(0, -1).contiguous().transpose(0, -1),
                plain.movedim(1, -1).contiguous().movedim(-1, 1),
            ):

                def program(x: Tensor, w: Tensor) -> Tensor:
                    return F.batch_norm(x, w * 0, w * 1, w, w, training)

                assert intarsia.compile(program)(x, w).stride() == program(x, w).stride()


@pytest.mark.parametrize("dims", [(0, 1), (-1, 0), (2, 0, 1)])
def test_transforms_in_any_order(dims: tuple[int, ...]) -> None:
    def program(x: Tensor) -> Tensor:
        return torch.fft.fftn(x, dim=dims).abs()

    check(program, [gpu(5, 6, 7)], compiled=intarsia.compile(program))  # the graph may break there
