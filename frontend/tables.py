"""What is known of other people's functions by name: nodes of the graph, natives, refusals with their reasons."""

from __future__ import annotations

__all__ = [
    "CALLBACK_AT",
    "HIGHER_ORDER",
    "ITERATING",
    "LEAF_MODULES",
    "NATIVE_PYTHON",
    "NATIVE_TYPES",
    "PURE_MODULES",
    "QUESTIONS",
    "REFUSED_BUILTINS",
    "REFUSED_MODULES",
    "REFUSED_TORCH",
    "STATE_CHANGES",
    "TORCH_CONSTANTS",
]

# Python functions of torch that are one node of the graph.
LEAF_MODULES = frozenset(
    """
    torch.nn.functional torch.functional torch._tensor torch._linalg_utils torch._lowrank torch.special
    torch.fft torch.linalg torch.masked torch.masked._ops torch._jit_internal torch._C._nn
    torch.overrides torch.nn.init
    """.split()  # noqa: SIM905
)
# Python modules whose functions look at types and signatures only.
NATIVE_PYTHON = frozenset(
    """
    inspect typing re enum packaging.version importlib importlib.util importlib.metadata posixpath
    string textwrap keyword torch.overrides torch.torch_version torch.backends.cuda
    torch.backends.cudnn torch.backends.mkldnn torch.cuda torch.backends.mps torch.xpu
    torch.backends.xeon numbers abc torch.distributed torch.distributed.distributed_c10d
    torch.backends.mkl torch.mps torch._utils torch.distributed.is_available torch._C typing_extensions
    torch.cuda.amp.common
    """.split()  # noqa: SIM905
)
# Of torch's own modules among them, only functions that ask: the rest would change state behind the graph's back.
QUESTIONS = ("is_", "_is_", "get_", "_get_", "has_", "_has_", "current_", "device_count", "can_", "supports_")
STATE_CHANGES = (
    *("set_", "_set_", "enable_", "disable_", "push_", "_push", "pop_", "_pop", "_exchange", "clear_", "_clear"),
    *(
        "autocast_",
        "_increment",
        "_decrement",
        "_enter",
        "_exit",
        "_start",
        "_stop",
        "_register",
        "register_",
        "_activate",
        "_swap",
    ),
)
NATIVE_TYPES = frozenset(
    """
    builtins collections itertools re _sre functools _operator operator types datetime decimal fractions
    _collections_abc inspect typing enum _collections pathlib abc _functools array string
    """.split()  # noqa: SIM905
)
REFUSED_MODULES = {
    "numpy": "NumPy is called",
    "random": "Python's random module is called",
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
}
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
    "quantize_per_tensor": "a tensor is quantized",
    "quantize_per_channel": "a tensor is quantized",
    "quantize_per_tensor_dynamic": "a tensor is quantized",
    "save": "a file is written",
    "load": "a file is read",
    "compile": "torch.compile is called inside the captured code",
    "grad": "torch.autograd.grad is called",
    "vmap": "torch.vmap is called",
    "_cuda_jiterator_compile_and_launch_kernel": "a kernel of torch.cuda.jiterator is launched",
    "cond": "torch.cond is called",
}
TORCH_CONSTANTS = frozenset(
    """
    get_default_dtype get_default_device promote_types result_type can_cast iinfo finfo
    get_device_module _get_tracing_state get_num_threads get_autocast_dtype get_autocast_gpu_dtype
    get_autocast_cpu_dtype _log_api_usage_once has_torch_function has_torch_function_unary
    has_torch_function_variadic _assert_async get_float32_matmul_precision broadcast_shapes
    get_autocast_device
    """.split()  # noqa: SIM905
)
HIGHER_ORDER = frozenset(
    """
    map filter sorted min max reduce sort accumulate starmap groupby takewhile dropwhile filterfalse
    iter sub subn nlargest nsmallest
    """.split()  # noqa: SIM905
)
# Where the callback of a higher-order function is; of the others, any argument may be one.
CALLBACK_AT = {
    **dict.fromkeys(("map", "filter", "reduce", "starmap", "takewhile", "dropwhile", "filterfalse", "iter"), 0),
    "accumulate": 1,
    "groupby": 1,
}
ITERATING = frozenset(
    """
    list tuple set frozenset dict zip enumerate sum any all sorted min max map filter reversed join
    extend update reduce deque OrderedDict Counter chain islice accumulate product from_iterable
    zip_longest cycle starmap pairwise extendleft union intersection difference fromkeys takewhile
    dropwhile filterfalse groupby compress permutations combinations combinations_with_replacement tee
    """.split()  # noqa: SIM905
)
PURE_MODULES = frozenset(
    """
    builtins math cmath _operator operator itertools functools _functools collections _collections re
    _sre _bisect _heapq unicodedata _abc _typing binascii zlib _struct _string posix _thread _stat
    """.split()  # noqa: SIM905
)
REFUSED_BUILTINS = {
    "print": "print is called",
    "open": "a file is opened",
    "input": "input is read",
    "exec": "exec is called",
    "eval": "eval is called",
    "breakpoint": "a breakpoint is reached",
    "compile": "compile() is called",
    "globals": "globals() is called",
    "locals": "locals() is called",
    "__build_class__": "a class is defined inside the captured code",
}
