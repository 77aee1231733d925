"""A GPU's benchmark: `python benchmarks/run.py --device cuda` (or this file), one row a case, one JSON.

    python benchmarks/gpu.py --suite kernels,models --json results.json

Kernels are timed on the device with cold L2 (events around each call), and beside the copy rate of the same run; models are timed as a caller
sees them, many calls and then one wait. First calls are those of this process, with empty caches: imports are not in them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

_CACHES = tempfile.TemporaryDirectory(prefix="intarsia-gpu-bench-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{_CACHES.name}/inductor"
os.environ["TRITON_CACHE_DIR"] = f"{_CACHES.name}/triton"
os.environ["INTARSIA_CACHE_DIR"] = f"{_CACHES.name}/intarsia"

import torch  # noqa: E402  (after the caches are named)
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

import intarsia  # noqa: E402
from intarsia.testing import same  # noqa: E402

Row = dict[str, Any]
BF16 = torch.bfloat16


def _normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def _rms_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x + r
    return h, F.rms_norm(h, (h.shape[-1],), w)


def _rotary(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * c + torch.cat([-x[..., half:], x[..., :half]], -1) * s


Kernel = tuple[Callable[..., Any], Callable[[], list[Tensor]]]

# The sizes of the first eleven are those for which torch.compile's share of the copy rate is known.
KERNELS: dict[str, Kernel] = {
    "sin+cos": (lambda x, y: x.sin() + y.cos(), lambda: [_normal(1 << 24), _normal(1 << 24)]),
    "gelu": (
        lambda x, b, r: F.gelu(x + b) * 0.5 + r,
        lambda: [_normal(8192, 4096, dtype=BF16), _normal(4096, dtype=BF16), _normal(8192, 4096, dtype=BF16)],
    ),
    "layer_norm": (
        lambda x, w, b: F.layer_norm(x, (4096,), w, b),
        lambda: [_normal(8192, 4096, dtype=BF16), _normal(4096, dtype=BF16), _normal(4096, dtype=BF16)],
    ),
    "add+rms_norm": (
        _rms_norm,
        lambda: [_normal(8192, 4096, dtype=BF16), _normal(8192, 4096, dtype=BF16), _normal(4096, dtype=BF16)],
    ),
    "softmax": (lambda x: F.softmax(x, -1), lambda: [_normal(16384, 2048, dtype=BF16)]),
    "log_softmax": (lambda x: F.log_softmax(x, -1), lambda: [_normal(512, 131072)]),
    "cross_entropy": (
        F.cross_entropy,
        lambda: [_normal(8192, 50304, dtype=BF16), torch.randint(0, 50304, (8192,), device="cuda")],
    ),
    "column_sum": (lambda x: x.sum(0), lambda: [_normal(16384, 4096)]),
    "full_sum": (lambda x: x.sum(), lambda: [_normal(16384, 4096)]),
    "transpose+add": (lambda x, y: x.t() + y, lambda: [_normal(8192, 4096), _normal(4096, 8192)]),
    "cat": (lambda x, y: torch.cat([x * 2, y + 1], 1), lambda: [_normal(16384, 4096), _normal(16384, 2048)]),
    "argmax_rows": (lambda x: x.argmax(1), lambda: [_normal(16384, 4096)]),
    "embedding+norm": (
        lambda i, e, w, b: F.layer_norm(F.embedding(i, e), (1024,), w, b),
        lambda: [torch.randint(0, 50000, (64, 512), device="cuda"), _normal(50000, 1024), _normal(1024), _normal(1024)],
    ),
    "group_norm": (lambda x: F.silu(F.group_norm(x, 32)), lambda: [_normal(32, 256, 64, 64, dtype=BF16)]),
    "batch_statistics": (lambda x: torch.var_mean(x, (0, 2, 3)), lambda: [_normal(64, 256, 56, 56)]),
    "cumsum": (lambda x: x.cumsum(1), lambda: [_normal(8192, 4096)]),
    "rotary": (
        _rotary,
        lambda: [_normal(8, 32, 2048, 128, dtype=BF16), _normal(2048, 128, dtype=BF16), _normal(2048, 128, dtype=BF16)],
    ),
    "silu*mul": (
        lambda a, b: F.silu(a) * b,
        lambda: [_normal(8192, 11008, dtype=BF16), _normal(8192, 11008, dtype=BF16)],
    ),
    "masked_softmax": (
        lambda x, m: F.softmax(x.masked_fill(m, float("-inf")), -1),
        lambda: [_normal(16, 12, 512, 512, dtype=BF16), torch.rand(16, 1, 512, 512, device="cuda") > 0.8],
    ),
}


def _vision(
    name: str, batch: int, dtype: torch.dtype = BF16, last: bool = False
) -> Callable[[], tuple[Any, list[Tensor]]]:
    def make() -> tuple[Any, list[Tensor]]:
        import torchvision

        form = torch.channels_last if last else torch.contiguous_format
        model = getattr(torchvision.models, name)().cuda().to(dtype).eval().to(memory_format=form)
        return model, [_normal(batch, 3, 224, 224, dtype=dtype).to(memory_format=form)]

    return make


def _text(name: str, config: str, batch: int, length: int, **options: Any) -> Callable[[], tuple[Any, list[Tensor]]]:
    def make() -> tuple[Any, list[Tensor]]:
        import transformers

        settings = getattr(transformers, config)(**options)
        model = getattr(transformers, name)(settings).cuda().to(BF16).eval()
        return model, [torch.randint(2, settings.vocab_size, (batch, length), device="cuda")]

    return make


def _llama() -> tuple[Any, list[Tensor]]:
    return _text(
        "LlamaForCausalLM",
        "LlamaConfig",
        4,
        512,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=8,
        num_attention_heads=16,
        use_cache=False,
    )()


MODELS: dict[str, Callable[[], tuple[Any, list[Tensor]]]] = {
    "resnet50 b32": _vision("resnet50", 32),
    "resnet50 b32 nhwc": _vision("resnet50", 32, last=True),
    "resnet18 b16 f32": _vision("resnet18", 16, torch.float32),
    "mobilenet_v3_large b32": _vision("mobilenet_v3_large", 32),
    "convnext_tiny b32": _vision("convnext_tiny", 32),
    "vit_b_16 b32": _vision("vit_b_16", 32),
    "swin_t b32": _vision("swin_t", 32),
    "bert_base 1x128": _text("BertModel", "BertConfig", 1, 128),
    "bert_base 32x512": _text("BertModel", "BertConfig", 32, 512),
    "gpt2 8x512": _text("GPT2LMHeadModel", "GPT2Config", 8, 512, use_cache=False),
    "llama 8 layers 4x512": _llama,
    "t5_small encoder 8x256": _text("T5EncoderModel", "T5Config", 8, 256),
}


def device_seconds(call: Callable[[], Any], seconds: float) -> float:
    """The median time of one call on the device, L2 flushed in front of each."""
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    call()
    times = []
    end = perf_counter() + seconds
    while len(times) < 10 or (perf_counter() < end and len(times) < 100):
        flush.zero_()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        call()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) / 1000)
    return sorted(times)[len(times) // 2]


def caller_seconds(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The least time of one call as a caller sees it, of many rounds that all systems take in turn."""
    best = dict.fromkeys(calls, math.inf)
    end = perf_counter() + seconds * len(calls)
    rounds = 0
    while rounds < 3 or perf_counter() < end:
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = perf_counter()
            for _ in range(10):
                call()
            torch.cuda.synchronize()
            best[name] = min(best[name], (perf_counter() - start) / 10)
        rounds += 1
    return best


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _moved(args: list[Tensor], results: list[Tensor], name: str) -> int:
    """What must be read and written at least; of an embedding's table only the rows that are used."""
    read = [args[0], *args[2:]] if name.startswith("embedding") else args
    extra = results if name.startswith("embedding") else []
    return sum(t.numel() * t.element_size() for t in (*read, *extra, *results))


def systems(fn: Any, names: list[str]) -> Iterator[tuple[str, Any]]:
    """Each system's compiled function."""
    for name in names:
        if name == "intarsia":
            yield name, intarsia.compile(fn)
        elif name == "inductor":
            yield name, torch.compile(fn)
        elif name == "reduce-overhead":
            yield name, torch.compile(fn, mode="reduce-overhead")


def run_case(name: str, fn: Any, args: list[Tensor], names: list[str], seconds: float, on_device: bool) -> Row:
    """All systems on one case: first calls, times, verdict."""
    row: Row = {"case": name, "first": {}, "seconds": {}}
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: fn(*args)}
    fn(*args)
    for system, compiled in systems(fn, names):
        try:
            torch.cuda.synchronize()
            start = perf_counter()
            compiled(*args)
            torch.cuda.synchronize()
            row["first"][system] = perf_counter() - start
            for _ in range(4):
                compiled(*args)
            calls[system] = lambda compiled=compiled: compiled(*args)
        except Exception as error:
            row.setdefault("errors", {})[system] = f"{type(error).__name__}: {error}"[:300]
    if on_device:
        row["seconds"] = {system: device_seconds(call, seconds) for system, call in calls.items()}
    else:
        row["seconds"] = caller_seconds(calls, seconds)
    if "intarsia" in calls:
        row["verdict"] = _verdict(fn, args, calls["intarsia"])
        row["bytes"] = _moved(args, list(_tensors(fn(*args))), name)
    torch._dynamo.reset()
    return row


def _verdict(fn: Any, args: list[Tensor], ours: Callable[[], Any]) -> str:
    """By the accuracy rule; models in float64 take their weights from the same numbers."""
    import copy

    wide = [a.double() if a.is_floating_point() else a for a in args]
    try:
        gold = (copy.deepcopy(fn).double() if isinstance(fn, torch.nn.Module) else fn)(*wide)
        verdict = same(list(_tensors(fn(*args))), list(_tensors(ours())), list(_tensors(gold)))
        return "ok" if verdict else str(verdict)[:300]
    except torch.OutOfMemoryError:
        return "not checked: float64 does not fit"


def copy_rate() -> float:
    """Bytes a second of a device copy, both directions counted."""
    source = torch.empty(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / device_seconds(lambda: target.copy_(source), 1.0)


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names; 1 where a verdict is not ok."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="kernels,models")
    parser.add_argument("--only", default="", help="these cases, with commas")
    parser.add_argument("--systems", default="inductor,reduce-overhead,intarsia")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    names = [n for n in options.systems.split(",") if n]
    only = [n for n in options.only.split(",") if n]
    rows = []
    with torch.no_grad():
        rate = copy_rate()
        print(f"{torch.cuda.get_device_name()}, copy {rate / 1e9:.0f} GB/s, torch {torch.__version__}")
        if "kernels" in options.suite:
            for name, (fn, make) in KERNELS.items():
                if not only or name in only:
                    kernel_systems = [n for n in names if n != "reduce-overhead"]
                    rows.append(
                        run_case(name, fn, make(), kernel_systems, options.seconds, True) | {"suite": "kernels"}
                    )
                    print(_line(rows[-1], rate), flush=True)
        if "models" in options.suite:
            for name, maker in MODELS.items():
                if not only or name in only:
                    torch.manual_seed(0)
                    fn, args = maker()
                    rows.append(run_case(name, fn, args, names, options.seconds, False) | {"suite": "models"})
                    print(_line(rows[-1], rate), flush=True)
    for suite in ("kernels", "models"):
        _summary(suite, [r for r in rows if r["suite"] == suite])
    if options.json:
        Path(options.json).write_text(json.dumps({"about": _about(rate), "rows": rows}, indent=1) + "\n")
    return int(
        any(row.get("verdict", "failed") != "ok" and not row.get("verdict", "").startswith("not") for row in rows)
    )


def _line(row: Row, rate: float) -> str:
    times = "  ".join(f"{system} {seconds * 1e6:9.1f} us" for system, seconds in row["seconds"].items())
    firsts = " ".join(f"{system} {seconds:.1f}" for system, seconds in row["first"].items())
    ours = row["seconds"].get("intarsia")
    share = f"  {row['bytes'] / ours / rate * 100:4.0f}% of copy" if ours and row["suite"] == "kernels" else ""
    return f"{row['case']:24} {times}{share}  first s: {firsts}  {row.get('verdict', '')} {row.get('errors', '')}"


def _summary(suite: str, rows: list[Row]) -> None:
    for what in ("eager", "inductor", "reduce-overhead", "best"):
        ratios = []
        for row in rows:
            times = row["seconds"]
            compiled = [times[s] for s in ("inductor", "reduce-overhead") if s in times]
            theirs = min(compiled, default=None) if what == "best" else times.get(what)
            if theirs and "intarsia" in times:
                ratios.append(theirs / times["intarsia"])
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            name = "the best mode of torch.compile" if what == "best" else what
            print(
                f"{suite}: intarsia over {name} {mean:.2f}x (geometric mean of {len(ratios)}, least {min(ratios):.2f})"
            )
    firsts = [
        r["first"]["inductor"] / r["first"]["intarsia"] for r in rows if {"inductor", "intarsia"} <= r["first"].keys()
    ]
    if firsts:
        mean = math.exp(sum(map(math.log, firsts)) / len(firsts))
        print(f"{suite}: first calls of torch.compile take {mean:.1f} times as long (geometric mean of {len(firsts)})")


def _about(rate: float) -> dict[str, Any]:
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    return {
        "command": " ".join(["python", "benchmarks/gpu.py", *sys.argv[1:]]),
        "commit": git.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(),
        "copy_bytes_per_second": rate,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
