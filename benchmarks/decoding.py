"""Decoding token by token on a GPU, batch 1: what a step costs the host, with a KV cache of growing length.

    python benchmarks/decoding.py --json results.json

A Llama-shaped decoder (8 layers, hidden 2048, bfloat16) gets one token a step, in each of the ways in which such programs are written:

- index_copy: caches of full length as arguments, written at a position that is a tensor; attention with a mask over the full length;
- buffers: the same with caches that are buffers of the module;
- slice: caches of full length as arguments, written and read up to a position that is a Python number;
- cat: new keys and values behind the old ones, caches that grow;
- static, dynamic: transformers' Llama with its StaticCache and its DynamicCache.

`host` is the time until the call returns, with an idle GPU in front of it; `whole` is the time of a step of many without a wait between them.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intarsia
from intarsia.targets.recordings.graphs import STATISTICS
from intarsia.testing import same

Row = dict[str, Any]
Step = Callable[[Callable[..., Any], Tensor, int], Tensor]  # compiled module, token, position -> logits

VOCABULARY = 32000


class Attention(nn.Module):
    """Rotary attention over a cache."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of this token, each (1, heads, 1, width)."""
        q, k, v = (t.view(1, 1, self.heads, self.width).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        return _rotate(q, cos, sin), _rotate(k, cos, sin), v

    def join(self, attended: Tensor) -> Tensor:
        """Back to (1, 1, hidden)."""
        return self.out(attended.transpose(1, 2).reshape(1, 1, -1))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Layer(nn.Module):
    """Attention and a gated MLP, each behind an RMS norm."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.before, self.behind = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.gate, self.up = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor, attend: Callable[[Attention, Tensor], Tensor]) -> Tensor:
        x = x + attend(self.attention, self.before(x))
        h = self.behind(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """A Llama-shaped decoder; subclasses say how the cache is kept."""

    def __init__(self, hidden: int = 2048, layers: int = 8, heads: int = 16, inner: int = 5632, length: int = 512):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, inner) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, VOCABULARY, bias=False)
        width = hidden // heads
        angles = torch.outer(torch.arange(length), 10000 ** (-torch.arange(0, width, 2) / width)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("places", torch.arange(length))
        self.shape = (1, heads, length, width)

    def caches(self, filled: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer, random for the first `filled` places."""
        made = []
        for _ in self.layers:
            pair = [self.head.weight.new_zeros(self.shape) for _ in range(2)]
            for t in pair:
                t[:, :, :filled].normal_()
            made.append((pair[0], pair[1]))
        return made

    def through(self, token: Tensor, attends: Iterator[Callable[[Attention, Tensor], Tensor]]) -> Tensor:
        """Logits, with what each layer does for attention."""
        x = self.embedding(token)
        for layer, attend in zip(self.layers, attends, strict=True):
            x = layer(x, attend)
        return self.head(self.norm(x))


class IndexCopy(Decoder):
    """Caches of full length, the position a tensor."""

    def forward(self, token: Tensor, position: Tensor, caches: list[tuple[Tensor, Tensor]]) -> Tensor:
        cos, sin = self.cos[position], self.sin[position]
        mask = (self.places <= position)[None]

        def attend(layer: int) -> Callable[[Attention, Tensor], Tensor]:
            keys, values = caches[layer]

            def run(block: Attention, x: Tensor) -> Tensor:
                q, k, v = block.project(x, cos, sin)
                keys.index_copy_(2, position, k)
                values.index_copy_(2, position, v)
                return block.join(F.scaled_dot_product_attention(q, keys, values, attn_mask=mask))

            return run

        return self.through(token, map(attend, range(len(self.layers))))


class Buffers(IndexCopy):
    """Caches that are buffers of the module."""

    def keep(self, filled: int) -> None:
        """Make the buffers."""
        for i, (k, v) in enumerate(self.caches(filled)):
            self.register_buffer(f"keys{i}", k)
            self.register_buffer(f"values{i}", v)

    def forward(self, token: Tensor, position: Tensor) -> Tensor:  # type: ignore[override]
        pairs = [(getattr(self, f"keys{i}"), getattr(self, f"values{i}")) for i in range(len(self.layers))]
        return super().forward(token, position, pairs)


class Slice(Decoder):
    """Caches of full length, the position a Python number."""

    def forward(self, token: Tensor, position: int, caches: list[tuple[Tensor, Tensor]]) -> Tensor:
        cos, sin = self.cos[position], self.sin[position]

        def attend(layer: int) -> Callable[[Attention, Tensor], Tensor]:
            keys, values = caches[layer]

            def run(block: Attention, x: Tensor) -> Tensor:
                q, k, v = block.project(x, cos, sin)
                keys[:, :, position : position + 1] = k
                values[:, :, position : position + 1] = v
                seen = keys[:, :, : position + 1], values[:, :, : position + 1]
                return block.join(F.scaled_dot_product_attention(q, *seen))

            return run

        return self.through(token, map(attend, range(len(self.layers))))


class Cat(Decoder):
    """Caches that grow."""

    def forward(self, token: Tensor, caches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        position = caches[0][0].shape[2]
        cos, sin, grown = self.cos[position], self.sin[position], []

        def attend(layer: int) -> Callable[[Attention, Tensor], Tensor]:
            def run(block: Attention, x: Tensor) -> Tensor:
                q, k, v = block.project(x, cos, sin)
                keys, values = torch.cat([caches[layer][0], k], 2), torch.cat([caches[layer][1], v], 2)
                grown.append((keys, values))
                return block.join(F.scaled_dot_product_attention(q, keys, values))

            return run

        logits = self.through(token, map(attend, range(len(self.layers))))
        return logits, grown


def ways(device: str, dtype: torch.dtype, filled: int, small: bool) -> dict[str, Callable[[], tuple[nn.Module, Any]]]:
    """For each way a maker of the module and of what makes a step of one sequence: `begin(module) -> Step`."""
    sizes = {"hidden": 64, "layers": 2, "heads": 4, "inner": 96} if small else {}

    spots = torch.arange(1024, device=device).split(1)  # made beforehand: a copy from the host waits for the GPU

    def at(position: int) -> Tensor:
        return spots[position]

    def made(kind: type[Decoder]) -> Any:
        torch.manual_seed(0)
        module = kind(**sizes).to(device, dtype).eval()
        if isinstance(module, Buffers):
            module.keep(filled)
        return module

    def with_caches(place: Callable[[int], Any]) -> Callable[[Decoder], Step]:
        def begin(module: Decoder) -> Step:
            torch.manual_seed(1)
            caches = module.caches(filled)
            return lambda fn, token, position: fn(token, place(position), caches)

        return begin

    def in_buffers(module: Decoder) -> Step:
        return lambda fn, token, position: fn(token, at(position))

    def growing(module: Decoder) -> Step:
        torch.manual_seed(1)
        held = [[(k[:, :, :filled].clone(), v[:, :, :filled].clone()) for k, v in module.caches(filled)]]

        def step(fn: Callable[..., Any], token: Tensor, position: int) -> Tensor:
            logits, held[0] = fn(token, held[0])
            return logits

        return step

    def llama() -> nn.Module:
        import transformers

        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=sizes.get("hidden", 2048),
            intermediate_size=sizes.get("inner", 5632),
            num_hidden_layers=sizes.get("layers", 8),
            num_attention_heads=sizes.get("heads", 16),
        )
        return transformers.LlamaForCausalLM(config).to(device, dtype).eval()

    def prompt() -> Tensor:
        return torch.arange(filled, device=device)[None] % VOCABULARY

    def static(module: Any) -> Step:
        import transformers

        cache, rows = transformers.StaticCache(config=module.config, max_cache_len=512), [spot[None] for spot in spots]
        module(prompt(), past_key_values=cache, use_cache=True)

        def step(fn: Callable[..., Any], token: Tensor, position: int) -> Tensor:
            return fn(token, past_key_values=cache, position_ids=rows[position], use_cache=True).logits

        return step

    def dynamic(module: Any) -> Step:
        import transformers

        cache = transformers.DynamicCache(config=module.config)
        module(prompt(), past_key_values=cache, use_cache=True)
        return lambda fn, token, position: fn(token, past_key_values=cache, use_cache=True).logits

    return {
        "index_copy": lambda: (made(IndexCopy), with_caches(at)),
        "buffers": lambda: (made(Buffers), in_buffers),
        "slice": lambda: (made(Slice), with_caches(int)),
        "cat": lambda: (made(Cat), growing),
        "static": lambda: (llama(), static),
        "dynamic": lambda: (llama(), dynamic),
    }


def compiled(module: nn.Module, system: str) -> Callable[..., Any]:
    """The module as this system runs it."""
    match system:
        case "intarsia":
            return intarsia.compile(module)
        case "inductor":
            return torch.compile(module)
        case "reduce-overhead":
            return torch.compile(module, mode="reduce-overhead")
    return module


def run_way(name: str, make: Any, system: str, filled: int, steps: int, verdicts: bool) -> Row:
    """One system on one way: times, recordings, and whether its logits are eager's."""
    module, begin = make()
    device = next(module.parameters()).device
    wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    row: Row = {"way": name, "system": system}
    recordings = STATISTICS.recordings
    tokens = torch.randint(0, VOCABULARY, (3 * steps, 1, 1), device=device)
    others = []
    if verdicts:
        others = [(m, begin(m)) for m in (copy.deepcopy(module), copy.deepcopy(module).double())]
    fn, step, place = compiled(module, system), begin(module), filled
    wait()
    wrong, start = "", perf_counter()
    for i in range(steps):
        found = step(fn, tokens[i], place)
        if i == 0:
            wait()
            row["first"] = perf_counter() - start
        if others and not wrong:
            ref, gold = (s(m, tokens[i], place) for m, s in others)
            verdict = same(ref, found.clone(), gold)
            wrong = "" if verdict else f"step {i}: {verdict.message}"[:200]
        place += 1
    if others:
        row["verdict"] = wrong or "ok"
    row["recordings warm"] = STATISTICS.recordings - recordings
    times = []
    for i in range(steps, 2 * steps):
        wait()
        start = perf_counter()
        step(fn, tokens[i], place)
        times.append(perf_counter() - start)
        place += 1
    row["host"], row["host least"] = statistics.median(times), min(times)
    wait()
    start = perf_counter()
    for i in range(2 * steps, 3 * steps):
        step(fn, tokens[i], place)
        place += 1
    wait()
    row["whole"] = (perf_counter() - start) / steps
    row["recordings"] = STATISTICS.recordings - recordings
    return row


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line names; 1 where a verdict of ours is not ok."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--ways", default="index_copy,buffers,slice,cat,static,dynamic")
    parser.add_argument("--systems", default="eager,inductor,reduce-overhead,intarsia")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--filled", type=int, default=128, help="length of the cache in front of the first step")
    parser.add_argument(
        "--small", action="store_true", help="a model of two small layers in float32, to try the file on a CPU"
    )
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(arguments)
    dtype = torch.float32 if options.small else torch.bfloat16
    makers, rows = ways(options.device, dtype, options.filled, options.small), []
    with torch.no_grad():
        for way in options.ways.split(","):
            for system in options.systems.split(","):
                try:
                    checked = system == "intarsia"
                    rows.append(run_way(way, makers[way], system, options.filled, options.steps, checked))
                except Exception as error:
                    rows.append({"way": way, "system": system, "error": f"{type(error).__name__}: {error}"[:300]})
                print(_line(rows[-1]), flush=True)
                torch._dynamo.reset()
                intarsia.reset()
            _summary(rows, way)
    if options.json:
        about = {"torch": torch.__version__, "device": options.device, "command": " ".join(sys.argv)}
        if options.device == "cuda":
            about["device"] = torch.cuda.get_device_name()
        Path(options.json).write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    return int(any(r["system"] == "intarsia" and r.get("verdict") != "ok" for r in rows))


def _line(row: Row) -> str:
    name = f"{row['way']:11} {row['system']:16}"
    if "error" in row:
        return f"{name} {row['error']}"
    times = "  ".join(f"{k} {row[k] * 1e6:8.1f} us" for k in ("host", "host least", "whole"))
    ours = f"  recordings {row['recordings warm']} + {row['recordings'] - row['recordings warm']}"
    return f"{name} {times}  first {row['first']:5.1f} s{ours}  {row.get('verdict', '')}"


def _summary(rows: list[Row], way: str) -> None:
    host = {r["system"]: r["host"] for r in rows if r["way"] == way and "host" in r}
    if {"intarsia", "reduce-overhead"} <= host.keys():
        print(f"{way}: host time of a step {host['intarsia'] / host['reduce-overhead']:.2f} of reduce-overhead's")


if __name__ == "__main__":
    sys.exit(main())
