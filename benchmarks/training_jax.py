"""GPT-2's training step in JAX, for the table of benchmarks/training.py: `python benchmarks/training_jax.py`.

The same shapes (8x512 tokens, 50,257 columns), bfloat16 products of float32 weights, AdamW, one jitted function whose
arguments are donated, cuDNN's attention. JAX is no dependency of this project: the program says so where it is missing.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    sys.exit("jax is not installed")

BATCH, LENGTH, VOCABULARY, WIDTH, LAYERS, HEADS = 8, 512, 50257, 768, 12, 12
RATE, BETA1, BETA2, EPS, DECAY = 1e-4, 0.9, 0.999, 1e-8, 0.01
Tree = Any


def weights(key: Any) -> Tree:
    """GPT-2's parameters in float32; the last product reads the embedding's weights."""

    def matrix(*shape: int) -> Any:
        nonlocal key
        key, here = jax.random.split(key)
        return 0.02 * jax.random.normal(here, shape, jnp.float32)

    def norm() -> Tree:
        return {"scale": jnp.ones(WIDTH), "shift": jnp.zeros(WIDTH)}

    def linear(inner: int, outer: int) -> Tree:
        return {"w": matrix(inner, outer), "b": jnp.zeros(outer)}

    def block() -> Tree:
        attention = {"qkv": linear(WIDTH, 3 * WIDTH), "out": linear(WIDTH, WIDTH)}
        return {
            "n1": norm(),
            **attention,
            "n2": norm(),
            "up": linear(WIDTH, 4 * WIDTH),
            "down": linear(4 * WIDTH, WIDTH),
        }

    return {
        "tokens": matrix(VOCABULARY, WIDTH),
        "places": matrix(LENGTH, WIDTH),
        "blocks": [block() for _ in range(LAYERS)],
        "last": norm(),
    }


def _norm(p: Tree, x: Any) -> Any:
    x = x.astype(jnp.float32)
    mean = x.mean(-1, keepdims=True)
    spread = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(spread + 1e-5) * p["scale"] + p["shift"]


def _linear(p: Tree, x: Any) -> Any:
    return x.astype(jnp.bfloat16) @ p["w"].astype(jnp.bfloat16) + p["b"].astype(jnp.bfloat16)


def _block(p: Tree, x: Any) -> Any:
    q, k, v = jnp.split(_linear(p["qkv"], _norm(p["n1"], x)), 3, -1)
    heads = (BATCH, LENGTH, HEADS, WIDTH // HEADS)
    y = jax.nn.dot_product_attention(
        q.reshape(heads), k.reshape(heads), v.reshape(heads), is_causal=True, implementation="cudnn"
    )
    x = x + _linear(p["out"], y.reshape(BATCH, LENGTH, WIDTH))
    return x + _linear(p["down"], jax.nn.gelu(_linear(p["up"], _norm(p["n2"], x)), approximate=True))


def loss_of(p: Tree, tokens: Any, target: Any) -> Any:
    x = p["tokens"][tokens] + p["places"]
    for block in p["blocks"]:
        x = _block(block, x)
    logits = _norm(p["last"], x).astype(jnp.bfloat16) @ p["tokens"].astype(jnp.bfloat16).T
    logits = logits.astype(jnp.float32)
    picked = jnp.take_along_axis(logits, target[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def train(state: Tree, tokens: Any, target: Any) -> tuple[Tree, Any]:
    """One step of AdamW: the new (count, parameters, first and second moments) and the loss."""
    count, p, m, v = state
    loss, g = jax.value_and_grad(loss_of)(p, tokens, target)
    count = count + 1
    m = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, m, g)
    v = jax.tree.map(lambda v, g: BETA2 * v + (1 - BETA2) * g * g, v, g)
    c1, c2 = 1 - BETA1**count, 1 - BETA2**count

    def update(p: Any, m: Any, v: Any) -> Any:
        return p * (1 - RATE * DECAY) - RATE * (m / c1) / (jnp.sqrt(v / c2) + EPS)

    return (count, jax.tree.map(update, p, m, v), m, v), loss


def main() -> None:
    p = weights(jax.random.key(0))
    state = (jnp.float32(0), p, jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p))
    tokens, target = jax.random.randint(jax.random.key(1), (2, BATCH, LENGTH), 0, VOCABULARY)
    step = jax.jit(train, donate_argnums=0)
    start = perf_counter()
    state, loss = step(state, tokens, target)
    loss.block_until_ready()
    first = perf_counter() - start
    best = float("inf")
    for _ in range(10):
        start = perf_counter()
        for _ in range(5):
            state, loss = step(state, tokens, target)
        loss.block_until_ready()
        best = min(best, (perf_counter() - start) / 5)
    stats = jax.local_devices()[0].memory_stats() or {}
    print(
        f"jax {jax.__version__}: gpt2 8x512 {best * 1e3:.2f} ms, first {first:.1f} s, peak {stats.get('peak_bytes_in_use', 0) >> 20} MiB"
    )


if __name__ == "__main__":
    main()
