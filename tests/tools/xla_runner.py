"""StableHLO in XLA: verified and run by what JAX has inside, where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor


def xla() -> Any:
    """JAX's parts, or the test is left out."""
    pytest.importorskip("jax", reason="needs pip install jax: XLA verifies and runs StableHLO")
    try:
        import jax
        from jax._src.interpreters import mlir  # that of jax 0.10; there is no public way from text to a program
        from jax.extend.backend import get_backend
        from jaxlib.mlir import ir

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_enable_x64", True)
        return jax, ir, mlir.make_ir_context, get_backend("cpu")
    except (ImportError, AttributeError) as error:
        pytest.skip(f"another jax than this test knows: {error}")


def run_in_xla(text: str, args: Sequence[Tensor]) -> list[Tensor]:
    """Parse, verify, compile and run `@main`."""
    jax, ir, make_context, backend = xla()
    from jax._src.lib import xla_client

    with make_context() as context:
        module = ir.Module.parse(text, context)
        module.operation.verify()
        devices = xla_client.DeviceList(tuple(backend.local_devices()))
        program = backend.compile_and_load(module, devices, xla_client.CompileOptions())
    half = [a.dtype == torch.bfloat16 for a in args]
    given = [
        a.view(torch.int16).numpy().view(jax.numpy.bfloat16) if h else a.numpy()
        for a, h in zip(args, half, strict=True)
    ]
    results = program.execute([jax.device_put(a) for a in given])
    return [_tensor(jax, r) for r in results]


def _tensor(jax: Any, result: Any) -> Tensor:
    import numpy

    found = numpy.array(result)
    if found.dtype == jax.numpy.bfloat16:
        return torch.from_numpy(found.view(numpy.int16)).view(torch.bfloat16)
    return torch.from_numpy(found)
