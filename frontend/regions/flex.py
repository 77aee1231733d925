"""`flex_attention`: written out, its functions of one score run on all scores at once.

Without a function of scores it is `scaled_dot_product_attention`, with the mask as a tensor, for which there are kernels. With one the
scores are computed in float32 (float64 where the query is), as torch's own form outside of torch.compile does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..calls.registry import Rows
from ..errors import GraphBreak
from ..state import Interpreter
from ..torch_private.regions import AUX_OUTPUT, AUX_REQUEST, FLEX_ATTENTION, NO_MASK_BLOCK, SAFE_SOFTMAX, SLICED_MASK
from ..values.kinds import isinstance
from .capture import Body, captured, is_tracked, result_like, rule
from .elementwise import not_elementwise, same_calls

__all__ = ["ROWS"]

ROWS = Rows()
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@ROWS.rule(FLEX_ATTENTION)
@rule
def _flex_attention(
    vm: Interpreter,
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: Any = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    _check(query, key, value, scale, enable_gqa)
    if kernel_options or return_aux is not None and (return_lse or type(return_aux) is not AUX_REQUEST):
        raise GraphBreak("flex_attention is called with kernel_options, or return_aux beside return_lse")
    if return_aux is not None and return_aux.max_scores:
        raise GraphBreak("flex_attention is asked for the largest scores")
    call = _Call(vm, query, key, value, 1.0 / math.sqrt(query.size(-1)) if scale is None else scale)
    mask = None if block_mask is None else call.mask(block_mask)
    lse = bool(return_lse) or return_aux is not None and bool(return_aux.lse)
    if score_mod is None and not lse:
        options = {"attn_mask": mask, "scale": call.scale, "enable_gqa": bool(enable_gqa)}
        found = call.as_the_query_lies(vm.call(F.scaled_dot_product_attention, (query, key, value), options))
    else:
        found = call.written_out(score_mod, mask, lse)
    if return_aux is None:
        return found
    found, total = found if lse else (found, None)
    return found, vm.call(AUX_OUTPUT, (), {"lse": total, "max_scores": None})


def _check(query: Any, key: Any, value: Any, scale: Any, enable_gqa: Any) -> None:
    """What eager refuses, and what is rare: it runs in eager, with eager's own errors.

    Raises:
        GraphBreak: it is such a call.
    """
    given = query, key, value
    if not all(isinstance(t, Tensor) and t.dim() == 4 and t.dtype in _DTYPES for t in given):
        raise GraphBreak("flex_attention is called with something else than three tensors of four dimensions")
    if torch.is_autocast_enabled(query.device.type):
        raise GraphBreak("flex_attention is called under autocast")
    if is_tracked(given) and query.device.type == "cpu":
        raise GraphBreak("gradients are wanted through flex_attention on the CPU, where torch has none")
    heads = query.size(1) % key.size(1) == 0 if enable_gqa else query.size(1) == key.size(1)
    same = key.shape[:3] == value.shape[:3] and query.size(0) == key.size(0) and query.size(3) == key.size(3)
    if not heads or not same or any((t.dtype, t.device) != (query.dtype, query.device) for t in given):
        raise GraphBreak("flex_attention is called with tensors that do not fit each other")
    if scale is not None and type(scale) not in (int, float):
        raise GraphBreak("flex_attention is called with a scale that changes between calls")


class _Call:
    """One call, with tensors that number batches, heads, queries and keys, and broadcast over the scores."""

    def __init__(self, vm: Interpreter, query: Tensor, key: Tensor, value: Tensor, scale: float) -> None:
        self.vm, self.query, self.key, self.value, self.scale = vm, query, key, value, scale
        sizes = query.size(0), query.size(1), query.size(2), key.size(2)
        self.numbers = [self._number(size, d) for d, size in enumerate(sizes)]

    def do(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """A call of torch's, recorded."""
        return self.vm.call(function, args, kwargs)

    def _number(self, size: Any, dim: int) -> Tensor:
        line = self.do(torch.arange, 0, size, device=self.query.device)
        shape = [1, 1, 1, 1]
        shape[dim] = size
        return self.do(torch.reshape, line, shape)  # type: ignore[no-any-return]

    def elements(self, what: str, function: Any, *before: Tensor) -> Any:
        """A function of one score, or of one place, on all of them."""
        args = (*before, *self.numbers)
        given = [result_like(t) for t in args]
        body = captured(self.vm, what, function, given, given)
        if self._asks_for_shapes(body, what, function, args):
            raise GraphBreak(f"{what} cannot be run on all scores at once: it asks for the shape of a score")
        if is_tracked(body.reads) and self.query.device.type == "cpu":
            raise GraphBreak("gradients are wanted through flex_attention on the CPU, where torch has none")
        reason = not_elementwise(body, given)
        if reason:
            raise GraphBreak(f"{what} cannot be run on all scores at once: {reason}")
        return self.vm.call(function, args, {})

    def _asks_for_shapes(self, body: Body, what: str, function: Any, args: Sequence[Tensor]) -> bool:
        """Whether other calls are made of tensors of one dimension, or of none: what torch gives the function has none."""
        for shape in ((1,), ()):
            given = [torch.empty(shape, dtype=t.dtype, device=t.device) for t in args]
            if not same_calls(body, captured(self.vm, what, function, given, given)):
                return True
        return False

    def mask(self, block_mask: Any) -> Tensor:
        """Which scores take part: what the function of a block mask says of each."""
        load, function = self.vm.load_attr, self.vm.load_attr(block_mask, "mask_mod")
        blocks, lengths = tuple(load(block_mask, "BLOCK_SIZE")), tuple(load(block_mask, "seq_lengths"))
        counts = load(block_mask, "kv_num_blocks")
        wanted = self.query.size(2), self.key.size(2)
        if function is SLICED_MASK or blocks != (NO_MASK_BLOCK, NO_MASK_BLOCK) and lengths != wanted:
            raise GraphBreak("flex_attention is called with a block mask for other lengths, or a part of one")
        if counts.device != self.query.device:
            raise GraphBreak("flex_attention is called with a block mask on another device")
        mask = self.elements("the mask function of flex_attention", function)
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            raise GraphBreak("the mask function of flex_attention gives something else than truth values")
        return mask

    def written_out(self, score_mod: Any, mask: Tensor | None, return_lse: bool) -> Any:
        """The scores, what the functions make of them, their softmax."""
        query, key, value, do = self.query, self.key, self.value, self.do
        groups = query.size(1) // key.size(1)
        if groups != 1:
            key, value = (do(torch.repeat_interleave, t, groups, dim=1) for t in (key, value))
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        first, second = do(torch.Tensor.to, query, wide), do(torch.Tensor.to, key, wide)
        scores = do(torch.mul, do(torch.matmul, first, do(torch.transpose, second, -2, -1)), self.scale)
        shape = scores.shape
        if score_mod is not None:
            scores = self.elements("the score function of flex_attention", score_mod, scores)
        shut = do(torch.full, (), -math.inf, dtype=wide, device=query.device)
        if mask is None and scores.dtype != wide:  # eager chooses among scores and a number in any case
            mask = do(torch.full, (), True, dtype=torch.bool, device=query.device)
        if mask is not None:
            scores = do(torch.where, mask, scores, shut)
        if scores.shape != shape:
            scores = do(torch.Tensor.expand, scores, shape)
        weights = do(torch.Tensor.to, do(SAFE_SOFTMAX, scores, -1), query.dtype)
        found = self.as_the_query_lies(do(torch.matmul, weights, value))
        if not return_lse:
            return found
        total, empty = do(torch.logsumexp, scores, -1), do(torch.all, do(torch.eq, scores, -math.inf), -1)
        total = do(torch.where, empty, -math.inf, total)
        return found, do(torch.mul, do(torch.div, total, math.log(2)), math.log(2))

    def as_the_query_lies(self, found: Tensor) -> Any:
        """The result with its dimensions in memory in the order of the query's, the last one innermost."""
        strides: Sequence[Any] = self.query.stride()
        order = [3, *sorted((2, 1, 0), key=strides.__getitem__)][::-1]
        turned = self.do(torch.Tensor.contiguous, self.do(torch.permute, found, order))
        return self.do(torch.permute, turned, [order.index(d) for d in range(4)])
