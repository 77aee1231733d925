"""The only place in `targets` that touches private torch names. Each has a public fallback; `TRIED` in
`frontend/versions.py` says with which torch they were tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from sys import getrefcount
from typing import Any
from weakref import getweakrefcount

import torch

EmptyStrided = Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]


def _public_empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype)


def _find_empty_strided() -> EmptyStrided:
    try:
        # Skips the dispatcher and argument parsing, 0.37 us against 0.9 us. Wants tuples of plain int.
        from torch._C._dynamo.guards import _empty_strided_cpu  # type: ignore[attr-defined,unused-ignore]

        fast: EmptyStrided = _empty_strided_cpu
        probe = fast((2, 3), (3, 1), torch.float32)
        if probe.stride() == (3, 1) and probe.dtype is torch.float32:
            return fast
    except (ImportError, TypeError):
        pass
    return _public_empty_strided


# empty_strided_cpu(size, stride, dtype): an uninitialised CPU tensor; size and stride are tuples of int.
empty_strided_cpu: EmptyStrided = _find_empty_strided()


def _find_empty_strided_gpu() -> EmptyStrided:
    try:
        # As above, on the current GPU; builds without CUDA have the name, too.
        from torch._C._dynamo.guards import _empty_strided_cuda  # type: ignore[attr-defined,unused-ignore]

        found: EmptyStrided = _empty_strided_cuda
        return found
    except ImportError:
        return lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device="cuda")


# empty_strided_gpu(size, stride, dtype): an uninitialised tensor on the current GPU.
empty_strided_gpu: EmptyStrided = _find_empty_strided_gpu()


def _public_stream(device: int) -> int:
    return torch.cuda.current_stream(device).cuda_stream


# current_stream(device): the address of torch's current stream; 0.1 us against 2 us for the public way.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _public_stream)

# clear_workspaces(): gives the memory back that torch keeps for cuBLAS, of all threads and streams; None: this torch, or build, cannot.
clear_workspaces: Callable[[], None] | None = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)


# Operators whose Python functions take the arguments of the schema, in its order: generated parsers are 1 to 2 us faster than the one for all.
# None among a list of tensors is what these parsers do not take (`index_put`, whose indices leave dimensions out).
_PARSED = frozenset(
    [
        "addbmm",
        "addmm",
        "addmv",
        "baddbmm",
        "bmm",
        "cdist",
        "dot",
        "grid_sampler_2d",
        "index_add",
        "mm",
        "mv",
        "scatter",
        "scatter_add",
        "sort",
        "topk",
    ]
)
_PARSED_NN = frozenset(
    ["adaptive_avg_pool2d", "avg_pool2d", "avg_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"]
)


def fast_overload(op: Any) -> Callable[..., Any]:
    """The operator with as little Python around it as there is: torch's own function where one is known to be the same, else the
    operator without the layer of `OpOverload.__call__`, 0.3 us less a call.
    """
    name = op._schema.name.removeprefix("aten::") if hasattr(op, "_schema") else ""
    functions = torch._C._VariableFunctions if name in _PARSED else torch._C._nn if name in _PARSED_NN else None
    return getattr(functions, name, None) or getattr(op, "_op", op)  # the bound C++ operator


def _onednn(name: str) -> Any:
    # Registered by builds with oneDNN; used by torch's own compiler, not documented.
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        return fast_overload(getattr(torch.ops.mkldnn, name).default)
    except AttributeError:
        return None


NO_ACTIVATION: tuple[str, list[float], str] = ("none", [], "")  # oneDNN's activation, its numbers and its algorithm
# onednn_linear(x, packed weight, bias, activation, scalars, algorithm); None where torch was built without it.
onednn_linear: Any = _onednn("_linear_pointwise")
# onednn_pack_linear(weight of shape (out, in), rows of x) -> packed weight.
onednn_pack_linear: Any = _onednn("_reorder_linear_weight")
# onednn_convolution(x, packed weight, bias, padding, stride, dilation, groups, activation, scalars, algorithm) -> channels-last.
onednn_convolution: Any = _onednn("_convolution_pointwise")
# onednn_pack_convolution(weight, padding, stride, dilation, groups, size of x) -> packed weight.
onednn_pack_convolution: Any = _onednn("_reorder_convolution_weight")


def _onednn_takes_bfloat16() -> bool:
    # What torch itself asks before it gives products of bfloat16 to oneDNN.
    supported = _onednn("_is_mkldnn_bf16_supported")
    return supported is not None and bool(supported())


# Whether oneDNN multiplies in bfloat16 on this processor.
onednn_bfloat16: bool = _onednn_takes_bfloat16()


def storage_address(tensor: torch.Tensor) -> int:
    """Which storage the tensor uses."""
    return int(torch._C._storage_address(tensor))  # type: ignore[attr-defined,unused-ignore]


_storage_uses: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count", lambda address: -1)


class Storage:
    """The memory of a tensor, made while none but those who always use it do.

    torch counts the tensors that use a storage and the Python object of it, which lives as long as the storage once somebody
    asked for it: it is made here, so that whoever asks later changes the count no more, and its references are counted, too.
    """

    __slots__ = ("_address", "_python", "_references", "_uses")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._python, self._address = tensor.untyped_storage(), storage_address(tensor)
        self._uses, self._references = _storage_uses(self._address), getrefcount(self._python)

    def is_free(self) -> bool:
        """Whether none uses it but those who did at first, nor has a weak reference to its Python object."""
        same = _storage_uses(self._address) == self._uses and getrefcount(self._python) == self._references
        return same and not getweakrefcount(self._python)


def _counts_uses() -> bool:
    try:
        one = torch.empty(8)
        found = Storage(one)
        answers = [found.is_free()]
        other = one.data
        answers.append(found.is_free())
        del other
        answers.append(found.is_free())
        storage = one.untyped_storage()
        answers += [found.is_free(), storage is None]
        del storage
        return [*answers, found.is_free()] == [True, False, True, False, False, True]
    except (AttributeError, TypeError, RuntimeError):
        return False


# Whether `Storage` says what it promises.
counts_uses: bool = _counts_uses()


def _no_sleep(cycles: int) -> None:
    """Where torch has no such function: times of very short kernels then have the time in which the host starts them in them."""


# gpu_sleep(cycles): keeps the current stream busy for so many cycles of the clock.
gpu_sleep: Callable[[int], None] = getattr(torch.cuda, "_sleep", _no_sleep)


def _aten(name: str) -> Any:
    # What scaled_dot_product_attention dispatches to; not documented.
    found = getattr(torch.ops.aten, name, None)
    return None if found is None else fast_overload(found.default)


# cudnn_attention(q, k, v, mask, give log-sum-exp, dropout, causal, scale=) -> result and more, on a GPU; so are the others.
cudnn_attention: Any = _aten("_scaled_dot_product_cudnn_attention")
# flash_attention(q, k, v, dropout, causal, scale=): without a mask.
flash_attention: Any = _aten("_scaled_dot_product_flash_attention")
# efficient_attention(q, k, v, mask, give log-sum-exp, dropout, causal, scale=): as many heads of keys as of queries.
efficient_attention: Any = _aten("_scaled_dot_product_efficient_attention")

CUDNN_ATTENTION = 91500  # older versions gave wrong results for lengths that are no multiple of 128


@lru_cache(maxsize=64)
def prefers_cudnn_attention(device: int) -> bool:
    """Whether cuDNN's attention is the one to take on a GPU: Hopper or newer, a version without known mistakes, not switched off by the program."""
    if cudnn_attention is None or not torch.backends.cuda.cudnn_sdp_enabled() or torch.version.hip is not None:
        return False
    version = torch.backends.cudnn.version() or 0
    return version >= CUDNN_ATTENTION and torch.cuda.get_device_capability(device) in ((9, 0), (10, 0), (10, 3))


def convolutions_in_tf32() -> bool:
    """Whether the program lets cuDNN round operands of convolutions in float32 to TF32, as it does by default."""
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # the old name is refused once the new one was set
        return str(torch.backends.cudnn.conv.fp32_precision) == "tf32"  # type: ignore[attr-defined,unused-ignore]


def products_in_tf32() -> bool:
    """Whether the program lets cuBLAS round operands of products in float32 to TF32, which it has to ask for."""
    try:
        return bool(torch.backends.cuda.matmul.allow_tf32)
    except RuntimeError:  # as above
        return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"  # type: ignore[attr-defined,unused-ignore]


def profiler_is_active() -> bool:
    """Whether one of torch's profilers is active."""
    from torch.autograd import profiler

    return bool(getattr(profiler, "_is_profiler_enabled", False))
