"""The fused kernels of torch's optimizers as the operators that they consist of: a step of one is part of the graph.

The kernels compute in single precision at least, count steps in double, and write each parameter and state once: so does what stands here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..calls.registry import Rows
from ..errors import GraphBreak
from ..state import Interpreter
from ..torch_private.fake import is_fake
from ..values.kinds import isinstance

__all__ = ["FUSED", "ROWS", "is_left"]

ROWS = Rows()

FUSED = "a fused kernel of the library's updates the parameters"
_HALVES = (torch.float16, torch.bfloat16)


def is_left(optimizer: Any) -> bool:
    """Whether an optimizer's kernel stays the library's: it is on a device, where it counts steps itself, or a gradient scaler has told it
    to divide gradients, or that there is nothing to do, which it looks at."""
    settings = vars(optimizer) if hasattr(optimizer, "__dict__") else {}
    if settings.get("grad_scale") is not None or settings.get("found_inf") is not None:
        return True
    groups = getattr(optimizer, "param_groups", ())
    parameters = (p for group in groups if type(group) is dict for p in group.get("params", ()))
    return any(isinstance(p, Tensor) and p.device.type != "cpu" for p in parameters)


class _Formulas:
    """Operators on tensors and numbers, of a capture."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm

    def __call__(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return self.vm.call(function, args, kwargs)

    def wide(self, tensor: Tensor) -> Tensor:
        """As the kernels compute with it."""
        return self.vm.call_tensor_method(tensor, "float", (), {}) if tensor.dtype in _HALVES else tensor

    def write(self, tensor: Tensor, value: Tensor) -> None:
        self.vm.call_tensor_method(tensor, "copy_", (value,), {})

    def minus(self, a: Any, b: Any) -> Any:
        return self(operator.sub, a, b)

    def plus(self, a: Any, b: Any) -> Any:
        return self(operator.add, a, b)

    def times(self, a: Any, b: Any) -> Any:
        return self(operator.mul, a, b)

    def over(self, a: Any, b: Any) -> Any:
        return self(operator.truediv, a, b)

    def root(self, a: Any) -> Any:
        return self(torch.sqrt, a) if isinstance(a, Tensor) else self(operator.pow, a, 0.5)

    def count(self, step: Tensor) -> Any:
        """How many steps there were."""
        return self.vm.call_tensor_method(step, "item", (), {})


def _lists(vm: Interpreter, *lists: Any) -> list[list[Tensor]]:
    """The tensors of lists of one length; an empty list stands for tensors that are not there."""
    found = [vm.listed(each) for each in lists]
    given = [t for each in found for t in each]
    plain = all(is_fake(t) and t.is_floating_point() and t.layout is torch.strided for t in given)
    if (
        not plain
        or any(t.device.type != "cpu" for t in given)
        or any(len(each) not in (0, len(found[0])) for each in found)
    ):
        raise GraphBreak(FUSED)
    return found


def _rate(vm: Interpreter, lr: Any) -> Any:
    return vm.call_tensor_method(lr, "reshape", ((),), {}) if isinstance(lr, Tensor) else lr


def _gradient(f: _Formulas, gradient: Tensor, parameter: Tensor, decay: Any, maximize: bool) -> Tensor:
    """The gradient with what weight decay adds to it."""
    gradient = f.wide(gradient)
    gradient = f(operator.neg, gradient) if maximize else gradient
    return gradient if type(decay) in (int, float) and decay == 0 else f.plus(gradient, f.times(parameter, decay))


def _adam(decoupled: bool) -> Callable[..., None]:
    def apply(
        vm: Interpreter,
        params: Any,
        grads: Any,
        exp_avgs: Any,
        exp_avg_sqs: Any,
        max_exp_avg_sqs: Any,
        state_steps: Any,
        *,
        lr: Any,
        beta1: Any,
        beta2: Any,
        weight_decay: Any,
        eps: Any,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Any = None,
        found_inf: Any = None,
    ) -> None:
        _check_scale(grad_scale, found_inf)
        f, rate = _Formulas(vm), _rate(vm, lr)
        lists = _lists(vm, params, grads, exp_avgs, exp_avg_sqs, state_steps, max_exp_avg_sqs)
        for place, (p, gradient, mean, square, step) in enumerate(zip(*lists[:5], strict=True)):
            value = f.wide(p)
            if decoupled and not (type(weight_decay) in (int, float) and weight_decay == 0):
                value = f.minus(value, f.times(value, f.times(rate, weight_decay)))
            g = _gradient(f, gradient, value, 0 if decoupled else weight_decay, maximize)
            new_mean = f(torch.lerp, f.wide(mean), g, f.minus(1, beta1))
            new_square = f.plus(f.times(f.wide(square), beta2), f.times(f.times(g, g), f.minus(1, beta2)))
            count = f.count(step)
            first, second = (f.minus(1, f(operator.pow, beta, count)) for beta in (beta1, beta2))
            largest = new_square
            if amsgrad:
                largest = f(torch.maximum, f.wide(lists[5][place]), new_square)
                f.write(lists[5][place], largest)
            below = f.plus(f.over(f(torch.sqrt, largest), f.root(second)), eps)
            f.write(p, f.minus(value, f.times(f.over(new_mean, below), f.over(rate, first))))
            f.write(mean, new_mean)
            f.write(square, new_square)

    return apply


def _sgd(
    vm: Interpreter,
    params: Any,
    grads: Any,
    momentum_buffer_list: Any,
    *,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> None:
    _check_scale(grad_scale, found_inf)
    f, rate = _Formulas(vm), _rate(vm, lr)
    lists = _lists(vm, params, grads, momentum_buffer_list)
    for place, (p, gradient) in enumerate(zip(*lists[:2], strict=True)):
        value = f.wide(p)
        g = _gradient(f, gradient, value, weight_decay, maximize)
        if lists[2]:
            kept = g
            if not is_first_step:
                kept = f.plus(f.times(f.wide(lists[2][place]), momentum), f.times(g, f.minus(1, dampening)))
            f.write(lists[2][place], kept)
            g = f.plus(g, f.times(kept, momentum)) if nesterov else kept
        f.write(p, f.minus(value, f.times(g, rate)))


def _adagrad(
    vm: Interpreter,
    params: Any,
    grads: Any,
    state_sums: Any,
    state_steps: Any,
    *,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: Any = None,
    found_inf: Any = None,
) -> None:
    _check_scale(grad_scale, found_inf)
    f, rate = _Formulas(vm), _rate(vm, lr)
    lists = _lists(vm, params, grads, state_sums, state_steps)
    for p, gradient, state, step in zip(*lists, strict=True):
        value = f.wide(p)
        g = _gradient(f, gradient, value, weight_decay, maximize)
        total = f.plus(f.wide(state), f.times(g, g))
        now = f.over(rate, f.plus(1, f.times(f.minus(f.count(step), 1), lr_decay)))
        f.write(p, f.minus(value, f.over(f.times(g, now), f.plus(f(torch.sqrt, total), eps))))
        f.write(state, total)


def _check_scale(*given: Any) -> None:
    if any(g is not None for g in given):
        raise GraphBreak(FUSED)


for _name, _rule in {
    "_fused_adam_": _adam(False),
    "_fused_adamw_": _adam(True),
    "_fused_sgd_": _sgd,
    "_fused_adagrad_": _adagrad,
}.items():
    ROWS.rule(getattr(torch, _name))(_rule)
