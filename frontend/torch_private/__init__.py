"""The one place where private torch interfaces are used; `TRIED` in `frontend/versions.py` says with which torch."""

# ruff: noqa: F401  (what is imported here is used from here)

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.graph import _PyTreeCodeGen as PyTreeCodeGen
from torch.fx.graph import _PyTreeInfo as PyTreeInfo

from .autograd import (
    PATIENCE,
    TRACING,
    VISIBLE,
    AotNode,
    aot_autograd,
    aot_node,
    outside_of_analysis,
    outside_of_tracing,
    own_saving,
    refused_by_autograd,
    tracing_alone,
    without_tokens,
)
from .dispatch import (
    CaptureMode,
    autocast_keys,
    below_autograd,
    broadcast_to_tree,
    casting,
    decompose_composite,
    device_constructors,
    draws,
    functional_builtins,
    is_composite,
    is_in_format,
    python_dispatcher,
    storage_key,
    uncast,
    without_autocast,
)
from .dynamo import (
    inductor_options,
    is_allowed,
    is_disabled,
    optimized_module,
    script_source,
    specialize_floats,
    torch_backend,
    torch_backends,
    torch_stance,
    without_compile,
)
from .fake import (
    allow_symbols,
    data_dependent_errors,
    fake_from_meta,
    fake_mode_of,
    fake_tensor,
    is_fake,
    is_foreign_tensor,
    on_meta,
    plain_fake_mode,
    quiet_fake_errors,
    real_tensors,
    unraised_warnings,
    unsupported_fake_errors,
)
from .functions import (
    ASSERT_ASYNC,
    ASSOCIATIVE_SCAN,
    DISPATCH_MODES,
    ENTER_AUTOCAST,
    EXIT_AUTOCAST,
    FUNCTION_MODES,
    GRAPH_BREAK,
    IS_COMPILING,
    IS_SCRIPTING,
    LOG_USAGE,
    MODULE_APPLY,
    MODULE_CALL,
    MODULE_CALL_WITH_HOOKS,
    SET_GRAD_MODE,
    SIZE_MARKS,
    TRACING_STATE,
    OpOverload,
    OpOverloadPacket,
)
from .graphs import (
    lazy_graph_module,
    plain_graph_module,
    write_code,
)
from .guards import (
    current_gpu,
    current_gpu_raw,
    dict_watch,
    dispatch_mode_count,
    function_mode_count,
    function_mode_count_raw,
    functorch_active,
    global_module_hooks,
    global_state_guard,
    is_functorch_wrapped,
    only_device_mode,
    profiler_flag,
    tensor_guards,
    tracing_state,
)
from .symbols import (
    PlacedGuards,
    has_symbols,
    hint_of,
    int_bounds,
    new_shape_env,
    python_text,
    sym_sqrt,
    symbolic_float,
    symbolic_int,
)
