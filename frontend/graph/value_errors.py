"""Operators that raise on what their operands hold: an index outside, a label without a class, a matrix without an inverse.

Eager asks every element, whether anyone reads the result or not. A kernel of ours asks those that it reads. So such an operator is a
library call with an effect wherever its result is not read whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, fx

__all__ = ["may_raise", "partly_read", "raises_by_name", "raises_on_values"]

# Those that draw random numbers are effects anyway, as are checks that give nothing.
_RAISES = frozenset(
    (
        *("index", "index_select", "gather", "take", "put", "embedding", "embedding_bag", "_embedding_bag"),
        *("_embedding_bag_forward_only", "embedding_renorm", "index_put", "_index_put_impl", "index_add", "index_copy"),
        *("index_fill", "index_reduce", "scatter", "scatter_add", "scatter_reduce", "masked_scatter"),
        *("nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss", "multilabel_margin_loss_forward"),
        *("nll_loss", "nll_loss2d", "binary_cross_entropy", "_ctc_loss", "segment_reduce", "repeat_interleave"),
        *("bincount", "histc", "histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts"),
        *("max_unpool2d", "max_unpool3d", "fractional_max_pool2d", "fractional_max_pool3d", "_pack_padded_sequence"),
        *("cholesky", "cholesky_inverse", "linalg_lu_solve", "lu_unpack", "linalg_ldl_solve", "linalg_lstsq"),
        *("_linalg_svd", "linalg_pinv", "_linalg_eigh", "linalg_eig", "linalg_eigvals", "_linalg_eigvals"),
        *("linspace", "logspace"),
        *("fake_quantize_per_channel_affine_cachemask", "_fused_moving_avg_obs_fq_helper_functional"),
    )
)
_ON_REQUEST = frozenset(
    ("linalg_cholesky_ex", "linalg_inv_ex", "linalg_ldl_factor_ex", "linalg_lu_factor_ex", "_linalg_solve_ex")
)
_DIVISIONS = frozenset(("floor_divide", "remainder", "fmod", "div"))
_MAY_RAISE = _RAISES | _ON_REQUEST | _DIVISIONS

# Functions and methods of torch's, by name, some of whose calls raise on values; the draws do where a tensor holds their parameter.
_CALLS = (
    _RAISES
    | _DIVISIONS
    | frozenset(
        (
            *("multinomial", "bernoulli", "normal", "poisson", "binomial"),
            *("getitem", "setitem", "floordiv", "mod", "one_hot", "cross_entropy", "ctc_loss", "take_along_dim"),
            *("linalg_cholesky", "linalg_inv", "linalg_solve", "linalg_svd", "linalg_eigh", "inverse", "_assert_async"),
        )
    )
)

# What a kernel of ours computes of its operand only where its own result is read: pieces, and reads by index.
_PIECES = frozenset(
    (
        *("slice", "select", "narrow", "split", "split_with_sizes", "unsafe_split", "unbind", "chunk", "tensor_split"),
        *("diagonal", "as_strided", "unfold", "index", "index_select", "gather", "take", "embedding"),
        *("slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"),
    )
)
# What reads its operands whole, however little of its result is read.
_WHOLE = frozenset(
    (
        *("mm", "bmm", "mv", "dot", "addmm", "addmv", "baddbmm", "addbmm", "linear", "convolution", "sort", "topk"),
        *("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu", "cumsum", "cumprod"),
        *("index_put", "index_add", "scatter", "scatter_add", "scatter_reduce"),
    )
)


def may_raise(func: object) -> bool:
    """Whether some calls of the operator raise on values."""
    return _name(func) in _MAY_RAISE


def raises_by_name(name: str) -> bool:
    """Whether some calls of a function or method of torch's of this name raise on values."""
    return name.rstrip("_") in _CALLS


def raises_on_values(node: fx.Node) -> bool:
    """Whether a call of an ATen operator on a CPU raises for some values of its operands."""
    name = _name(node.target)
    if name not in _MAY_RAISE:
        return False
    given = [v for a in node.all_input_nodes if isinstance(v := a.meta.get("val"), Tensor)]
    if not given or given[0].device.type != "cpu":
        return False
    if name in _DIVISIONS:
        return _divides_integers(node)
    return name in _RAISES or _is_asked(node)


def partly_read(nodes: Iterable[fx.Node], effects: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """Those of the nodes that raise on values and of whose results only a part may be read, or nothing."""
    order, kept = list(nodes), set(effects)
    whole: set[fx.Node] = set()
    for node in reversed(order):
        if node in kept or any(_reads_whole(user, node, whole) for user in node.users):
            whole.add(node)
        elif raises_on_values(node):
            whole.add(node)
            yield node


def _reads_whole(user: fx.Node, node: fx.Node, whole: set[fx.Node]) -> bool:
    if user.op == "output":
        return True
    name = _name(user.target)
    if name in _WHOLE:
        return True
    if name in _PIECES and node is user.args[0]:
        return False
    return user in whole


def _name(func: object) -> str:
    """The operator's name, without its overload; empty for what is no operator of ATen."""
    known = isinstance(func, torch._ops.OpOverload) and func.namespace == "aten"
    return func._schema.name.partition("::")[2] if known else ""  # type: ignore[attr-defined]


def _divides_integers(node: fx.Node) -> bool:
    """A division by zero is an error where the result is made of integers."""
    made = node.meta.get("val")
    if not isinstance(made, Tensor) or made.is_floating_point() or made.is_complex():
        return False
    divisor = node.args[1] if len(node.args) > 1 else node.kwargs.get("other")
    return isinstance(divisor, fx.Node) or isinstance(divisor, int | float) and divisor == 0


def _is_asked(node: fx.Node) -> bool:
    return bool(node.kwargs.get("check_errors")) or True in node.args
