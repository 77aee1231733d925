"""What is known of other people's functions by name: nodes of the graph, natives, refusals with their reasons."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

from ..values.kinds import isinstance

__all__ = [
    "LEAF_MODULES",
    "NATIVE_PYTHON",
    "OPERATOR_MODULES",
    "QUESTIONS",
    "REFUSED_BUILTINS",
    "REFUSED_MODULES",
    "REFUSED_TORCH",
    "STATE_CHANGES",
    "TORCH_FIXED",
    "TORCH_PURE",
    "TORCH_THREAD",
    "WITHOUT_EFFECTS",
    "has_tensor",
    "is_answer",
    "is_guarded",
    "nodes_in",
    "torch_values",
]

# Python functions of torch that are one node of the graph.
LEAF_MODULES = frozenset(
    """
    torch.nn.functional torch.functional torch._tensor torch._linalg_utils torch._lowrank torch.special
    torch.fft torch.linalg torch.masked torch.masked._ops torch._jit_internal torch._C._nn
    torch.overrides torch.nn.init
    """.split()  # noqa: SIM905
)
# Modules whose Python functions run as they are: they compute from their arguments, or (torch's) ask for the state of the process.
NATIVE_PYTHON = frozenset(
    """
    packaging.version numbers textwrap keyword typing_extensions abc torch.overrides torch.torch_version
    torch.backends.cuda torch.backends.cudnn torch.backends.mkldnn torch.backends.mkl torch.backends.mps torch.backends.xeon
    torch.cuda torch.cuda.amp.common torch.mps torch.xpu torch.distributed torch.distributed.distributed_c10d torch._utils
    torch.distributed.is_available torch._C
    """.split()  # noqa: SIM905
)
# Of torch's own functions that make no tensor, only those that ask: the rest would change state behind the graph's back.
QUESTIONS = ("is_", "_is_", "are_", "get_", "_get_", "has_", "_has_", "current_", "device_count", "can_", "supports_")
STATE_CHANGES = (
    *("set_", "_set_", "enable_", "disable_", "push_", "_push", "pop_", "_pop", "_exchange", "clear_", "_clear"),
    *("autocast_", "_increment", "_decrement", "_enter", "_exit", "_start", "_stop", "_register", "register_"),
    *("_activate", "_swap"),
)
# Modules whose C functions are operators; a C function of torch's that belongs to no module is one too.
OPERATOR_MODULES = frozenset(
    """
    torch._C._nn torch._C._linalg torch._C._fft torch._C._special torch._C._sparse torch._C._nested torch._C._VariableFunctions
    """.split()  # noqa: SIM905
)
REFUSED_MODULES = {
    "numpy": "NumPy is called",
    "time": "the clock is read",
    "subprocess": "another process is started",
    "socket": "the network is used",
    "threading": "threads are used",
    "multiprocessing": "processes are used",
    "concurrent": "a pool of workers is used",
    "asyncio": "an event loop is used",
    "queue": "a queue between threads is used",
    "tempfile": "a file is made",
    "shutil": "files are changed",
    "pickle": "pickle is called",
    "sqlite3": "a database is used",
    "urllib": "the network is used",
    "http": "the network is used",
    "secrets": "random numbers of the system are read",
    "getpass": "the user is asked",
    "zipfile": "a file is read or written",
    "gzip": "a file is read or written",
    "torch.distributed.nn.functional": "processes talk by a collective of torch.distributed.nn",
}
# What such modules have in Python over nothing but locks: it is interpreted, and what waits or asks another thread breaks the graph itself.
WITHOUT_EFFECTS = {"threading": frozenset(["Condition", "Semaphore", "BoundedSemaphore", "Event", "RLock"])}
REFUSED_TORCH = {
    "manual_seed": "the random seed is set inside the captured code",
    "seed": "the random seed is set inside the captured code",
    "set_rng_state": "the random state is set inside the captured code",
    "get_rng_state": "the random state is read inside the captured code",
    "_set_grad_enabled": "the grad mode is set without a context manager",
    "set_default_dtype": "the default dtype is set inside the captured code",
    "set_default_device": "the default device is set inside the captured code",
    "set_num_threads": "the number of threads is set inside the captured code",
    "from_numpy": "a NumPy array becomes a tensor",
    "save": "a file is written",
    "load": "a file is read",
    "compile": "torch.compile is called inside the captured code",
    "grad": "torch.autograd.grad is called",
    "vmap": "torch.vmap is called",
    "_cuda_jiterator_compile_and_launch_kernel": "a kernel of torch.cuda.jiterator is launched",
    "cond": "torch.cond is called",
}
# Questions of torch's whose answers the check of the thread's global state covers.
TORCH_THREAD = frozenset(
    """
    get_default_dtype get_num_threads is_grad_enabled is_autocast_enabled is_autocast_cpu_enabled is_autocast_cache_enabled
    is_inference_mode_enabled are_deterministic_algorithms_enabled is_deterministic_algorithms_warn_only_enabled
    """.split()  # noqa: SIM905
)
# Those whose answers follow from their arguments.
TORCH_PURE = frozenset(
    """
    promote_types result_type can_cast iinfo finfo broadcast_shapes has_torch_function has_torch_function_unary
    has_torch_function_variadic _has_torch_function _log_api_usage_once is_tensor is_storage is_floating_point
    is_complex is_nonzero is_same_size is_signed is_conj is_neg is_inference is_distributed numel get_device is_tensor_like
    is_tensor_method_or_property _infer_size resolve_name get_device_module _get_device_index _element_size _get_available_device_type
    """.split()  # noqa: SIM905
)
# Those that say how torch was built (`err_fn` stands for classes that it was built without), or what the machine has.
TORCH_FIXED = frozenset(
    """
    is_available is_built _is_compiled is_nccl_available is_mpi_available is_gloo_available is_ucc_available is_xccl_available
    is_flash_attention_available is_ck_sdpa_available get_arch_list get_device_capability get_device_name get_device_properties
    device_count _accelerator_getAccelerator is_bf16_supported _is_privateuse1_backend_available cpu_count
    err_fn
    """.split()  # noqa: SIM905
)


@functools.cache
def torch_values() -> tuple[type, ...]:
    """Torch's own classes whose instances keep what they are in C, and are nothing but data."""
    if not torch.distributed.is_available():
        return ()
    from torch.distributed.tensor import Partial, Replicate, Shard

    return Shard, Replicate, Partial


# Functions of refused modules that only ask what an object is.
ONLY_ASKING = frozenset({"iscoroutinefunction", "iscoroutine"})
REFUSED_BUILTINS = {
    "print": "print is called",
    "open": "a file is opened",
    "input": "input is read",
    "breakpoint": "a breakpoint is reached",
}

# What C functions of torch say of tensors that follows from what guards know: class, dtype, device, sizes, strides, dispatch keys.
# The last line asks for values: fake tensors answer where these are constants of the program.
_GUARDED = frozenset(
    """
    size stride dim ndimension numel nelement element_size itemsize get_device type is_same_size is_contiguous dim_order result_type
    can_cast promote_types is_floating_point is_complex is_signed is_conj is_neg is_distributed _is_zerotensor dense_dim sparse_dim
    broadcast_shapes is_coalesced has_torch_function has_torch_function_unary has_torch_function_variadic
    item tolist equal allclose is_nonzero __bool__ __int__ __float__ __complex__ __index__
    """.split()  # noqa: SIM905
)


def is_guarded(op: str, target: Any) -> bool:
    """Whether the answer of a function of torch follows from what guards know; Python functions ask through others."""
    return isinstance(target, types.FunctionType) or (target if op == "call_method" else target.__name__) in _GUARDED


def is_answer(result: Any) -> bool:
    """Whether a result says something of a tensor: it is none, and no empty list of tensors (how long that is, the size says)."""
    return result is not None and result not in ((), []) and not has_tensor(result)


def has_tensor(value: Any) -> bool:
    """Whether it is a tensor, or a list with one in it."""
    return isinstance(value, Tensor) or (isinstance(value, list | tuple) and any(map(has_tensor, value)))


def nodes_in(value: Any) -> Iterator[fx.Node]:
    """The nodes among the arguments of a call."""
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from nodes_in(item)
