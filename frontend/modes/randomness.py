"""Seeds, states of random generators and generators of the program's own: operators of the graph (`ir/fx/random_state.py`), in order.

A generator on the stack is a `torch.Generator`: the caller's, or one that stands for what the program made. What it draws from is
the tensor that `states` has for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...ir.fx.random_state import drawing_operator, operator_named, state_size
from ..calls.registry import Rows
from ..errors import GraphBreak, UserRaise
from ..graph.sym_nodes import concrete
from ..guards.checks import Distinct
from ..guards.source import Attr, Const, Fetch, Source
from ..state import Interpreter
from ..torch_private.dispatch import DrawsSeen
from ..values.kinds import isinstance, tensors_in
from .python_random import Draws

__all__ = ["ROWS", "Generators", "generator_of"]

ROWS = Rows()
_FIRST_SEED = torch.Generator().initial_seed()


def generator_of(state: Tensor) -> torch.Generator:
    """A generator with this state."""
    made = torch.Generator()
    made.set_state(state)
    return made


def _is_default(generator: torch.Generator) -> bool:
    return generator is torch.default_generator


@dataclass
class _Held:
    """A generator of this capture: what it draws from, None until it is asked; the seed that it was given last, where that is known."""

    generator: torch.Generator
    state: Tensor | None
    seed: Any = None
    changed: bool = False


class Generators:
    """The generators that this capture knows."""

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.watches = False
        self.known: dict[int, _Held] = {}
        self.python = Draws(vm)

    def take(self, generator: torch.Generator, source: Source) -> torch.Generator:
        """A generator of the caller's."""
        if generator is torch.default_generator:
            self.vm.guards.add("is", source, generator)
            self.vm.user.track(generator, generator, Const(generator, "torch.default_generator"))
            return self._watch(generator)
        self.vm.guards.add("equals", Fetch(_is_default, source), False)
        self.vm.guards.add("equals", Attr(source, "device"), generator.device)
        self.vm.user.track(generator, generator, source)
        return self.hold(generator)

    def hold(self, generator: torch.Generator, state: Tensor | None = None, seed: Any = None) -> torch.Generator:
        """Know a generator of the caller's, or one that stands for what the program makes (then with its state)."""
        if generator.device.type != "cpu":
            raise GraphBreak("a torch.Generator of a GPU is used")
        self.known[id(generator)] = _Held(generator, state, seed)
        return self._watch(generator)

    def _watch(self, generator: torch.Generator) -> torch.Generator:
        if not self.watches:
            self.watches = True
            self.vm.out.watch(self._call)
        return generator

    def held(self, generator: torch.Generator) -> _Held:
        """What is known of a generator, with its state."""
        known = self.known.get(id(generator)) or self.known[id(self.hold(generator))]
        if known.state is None:
            source = self.vm.user.source_of(generator)
            if source is None:
                raise GraphBreak("a generator is used that capture has not seen being made")
            known.state = self.vm.user.wrap(generator.get_state(), Fetch(torch.Generator.get_state, source))
        return known

    def give(self, generator: torch.Generator, state: Tensor, seed: Any = None) -> None:
        """From here on the generator draws from this state."""
        known = self.known.get(id(generator)) or self.known[id(self.hold(generator))]
        known.state, known.seed, known.changed = state, seed, True
        if self.vm.is_created(generator):
            self.vm.recipes[id(generator)] = (generator_of, (state,), {})

    def guards(self) -> list[Distinct]:
        """The caller's generators stay different ones."""
        found = [self.vm.user.source_of(held.generator) for held in self.known.values()]
        sources = [source for source in found if source is not None]
        return [Distinct(sources)] if len(sources) > 1 else []

    def statements(self, body: Any) -> list[str]:
        """What brings the caller's generators into the state in which the program left them."""
        put = torch.Generator.set_state
        return [
            f"{body.emit.constant(put, 'set_state')}({body.value(held.generator)}, {body.value(held.state)})"
            for held in self.known.values()
            if held.changed and not self.vm.is_created(held.generator)
        ]

    def _call(
        self, call: Any, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], function: Any
    ) -> Any:
        given = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Generator)]
        if not given:
            return call(op, target, args, kwargs, function)
        if given == [torch.default_generator]:
            kwargs = {k: v for k, v in kwargs.items() if not isinstance(v, torch.Generator)}
            args = tuple(None if isinstance(v, torch.Generator) else v for v in args)
            return call(op, target, args, kwargs, function)
        return self._draw(given[0], op, target, args, kwargs)

    def _draw(
        self, generator: torch.Generator, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        out, held = self.vm.out, self.held(generator)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in((args, kwargs))):
            raise GraphBreak("random numbers are drawn from a torch.Generator where gradients are recorded")
        name = target if isinstance(target, str) else getattr(target, "__name__", "a function")
        func, given, named = self._operator(name, op, target, args, kwargs)
        written = given[0] if func._schema.is_mutable else None
        if written is not None and not written.is_contiguous():
            raise GraphBreak(f"{name} draws random numbers into memory that is not contiguous")
        places = [k for k, a in enumerate(func._schema.arguments) if a.name == "generator" and k < len(given)]
        given = tuple(v for k, v in enumerate(given) if k not in places)
        named = {k: v for k, v in named.items() if k != "generator"}
        drawn, state = out.call_function(drawing_operator(func), (held.state, *given), named)
        self.give(generator, state, held.seed)
        return drawn if written is None else out.call_method("copy_", (written, drawn), {})

    def _operator(self, name: str, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The one operator that a call comes to, with its arguments."""
        seen, originals = DrawsSeen(), dict[int, Tensor]()

        def copied(tensor: Tensor) -> Tensor:
            copy = tensor.detach().clone()
            originals[id(copy)] = tensor
            return copy

        copies, named = pytree.tree_map_only(Tensor, copied, (args, kwargs))
        try:
            with torch.no_grad():
                function = getattr(copies[0], target) if op == "call_method" else target
                with seen:
                    made = function(*copies[op == "call_method" :], **named)
        except Exception as error:
            raise UserRaise(error) from None
        known = len(seen.calls) == 1 and drawing_operator(seen.calls[0][0]) is not None
        if not known or any(id(t) not in originals for t in tensors_in(seen.calls[0][1:])):
            raise GraphBreak(f"{name} draws random numbers from a torch.Generator in a way that capture does not know")
        if made.device.type != "cpu":
            raise GraphBreak("a torch.Generator of the CPU draws for another device")
        func, given, named = seen.calls[0]
        return func, *pytree.tree_map_only(Tensor, lambda t: originals[id(t)], (given, named))


# ---- the default generator ----


def _number(seed: Any) -> Any:
    """A seed as an argument of an operator."""
    if isinstance(seed, Tensor | torch.SymFloat):
        raise GraphBreak("a seed is a tensor's value, or a float that changes")
    if isinstance(seed, torch.SymInt):
        return seed
    try:
        number = int(seed)
    except Exception as error:
        raise UserRaise(error) from None
    if not -(2**63) <= number < 2**63:
        raise GraphBreak("a seed is set that does not fit into 64 bits")
    return number


def _mark(vm: Interpreter, name: str, *args: Any) -> None:
    vm.out.asked = True
    vm.out.mark(operator_named(name), tuple(map(vm.out.lift, args)))


def _default(vm: Interpreter) -> torch.Generator:
    return torch.default_generator


@ROWS.rule(torch.manual_seed)
def _manual_seed(vm: Interpreter, seed: Any) -> Any:
    _mark(vm, "seed", _number(seed))
    return vm.user.wrap(torch.default_generator, Const(torch.default_generator, "torch.default_generator"))


# torch.compile's package, once it is imported, puts another function in its place.
ROWS.late(lambda rows: rows.rule(torch.manual_seed)(_manual_seed))


for _function, _name in ((torch.cuda.manual_seed, "seed_gpu"), (torch.cuda.manual_seed_all, "seed_gpus")):
    ROWS.rule(_function)(lambda vm, seed, name=_name: _mark(vm, name, _number(seed)))


@ROWS.rule(torch.get_rng_state)
def _get_rng_state(vm: Interpreter) -> Any:
    vm.out.asked = True
    return vm.out.record(operator_named("get_state"), ((), {}), _like_state(vm), False)


@ROWS.rule(torch.set_rng_state)
def _set_rng_state(vm: Interpreter, new_state: Any) -> None:
    _mark(vm, "set_state", _checked(new_state))


def _like_state(vm: Interpreter) -> Tensor:
    with torch.no_grad():
        return vm.native(torch.empty, state_size(), dtype=torch.uint8, device="cpu")  # type: ignore[no-any-return]


def _checked(state: Any) -> Any:
    plain = isinstance(state, Tensor) and state.dtype is torch.uint8 and state.device.type == "cpu"
    if not plain or tuple(state.shape) != (state_size(),):
        raise GraphBreak("a random state is set that is no state of a generator of the CPU")
    return state


# ---- generators ----

_METHODS = torch.Generator


@ROWS.rule(torch.Generator)
def _make(vm: Interpreter, device: Any = "cpu") -> Any:
    made = torch.Generator(concrete(device))
    if made.device.type != "cpu":
        raise GraphBreak("a torch.Generator of a GPU is made")
    generator = vm.create(made)
    vm.random.hold(generator)
    vm.random.give(generator, _of_seed(vm, _FIRST_SEED), _FIRST_SEED)
    return generator


def _of_seed(vm: Interpreter, seed: Any) -> Tensor:
    return vm.out.call_function(operator_named("of_seed"), (seed,), {})  # type: ignore[no-any-return]


@ROWS.rule(_METHODS.manual_seed)
def _seed_generator(vm: Interpreter, generator: Any, seed: Any) -> Any:
    if generator is torch.default_generator:
        raise GraphBreak("the default generator of the CPU is seeded alone")
    number = _number(seed)
    vm.random.give(generator, _of_seed(vm, number), number)
    return generator


@ROWS.rule(_METHODS.get_state)
def _get_state(vm: Interpreter, generator: Any) -> Any:
    if generator is torch.default_generator:
        return _get_rng_state(vm)
    return vm.out.call_method("clone", (vm.random.held(generator).state,), {})


@ROWS.rule(_METHODS.set_state)
def _set_state(vm: Interpreter, generator: Any, state: Any) -> Any:
    if generator is torch.default_generator:
        _set_rng_state(vm, state)
    else:
        checked = vm.out.call_function(operator_named("checked"), (_checked(state),), {})
        vm.random.give(generator, checked)
    return generator


@ROWS.rule(_METHODS.initial_seed)
def _initial_seed(vm: Interpreter, generator: Any) -> Any:
    known = vm.random.known.get(id(generator))
    if known is None or known.seed is None:
        raise GraphBreak("the seed of a generator is read")
    return known.seed if known.seed >= 0 else known.seed + 2**64


ROWS.describe(_METHODS.seed, refused="a random seed is made")
for _name in ("clone_state", "graphsafe_get_state", "graphsafe_set_state"):
    if hasattr(_METHODS, _name):
        ROWS.describe(getattr(_METHODS, _name), refused=f"Generator.{_name} is called")
