"""What a library call gives, found by trying it on small real tensors: which results, of which sizes, and which parts are an argument's."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor

from ..errors import GraphBreak, UserRaise
from ..state import Interpreter
from ..torch_private.fake import real_tensors
from ..torch_private.foreign.parts import is_foreign, parts_of, structure_of, text_of, with_numbers
from ..torch_private.foreign.plans import called, called_writing
from ..values.kinds import isinstance
from .examples import Assignment, number, pattern, put_together
from .tensors import Foreign, stand_in

__all__ = ["Planner", "Try"]

Build = Callable[[Iterator[Tensor]], Any]


class Try:
    """One call on real tensors, whose sizes are those of an assignment of the symbols."""

    def __init__(self, call: Any, given: Assignment, values: int = 3) -> None:
        self.given, self.values = given, values
        # Of a call that writes: the parts of its first argument that are still where they were, and those that are as they were.
        self.kept: list[bool] = []
        self.unchanged: list[bool] = []
        errors: list[Exception] = []
        with real_tensors(), torch.no_grad(), call.vm.overrides.left(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = torch.get_rng_state()
            for fill in (0, 1):
                try:
                    self._run(call, fill)
                    break
                except GraphBreak:
                    raise
                except Exception as raised:
                    errors.append(raised)
            else:
                raise _as_eager(call.what, errors, given)
            drawn = not torch.equal(state, torch.get_rng_state())
            torch.set_rng_state(state)
        if drawn:
            raise GraphBreak(f"{call.what} draws random numbers")

    def _run(self, call: Any, fill: int) -> None:
        self.tensors = [self._tensor(call, place, fill) for place in range(len(call.tensors))]
        for known in call.foreign:
            size = tuple(number(n, self.given) for n in known.size)
            numbers = (1.0, 1) if self.values == 3 else (0.5, 2)
            place = next(k for k, other in enumerate(call.foreign) if other is known)
            made = put_together(known.structure, size, known.example.device, numbers, place)
            parts = parts_of(made, known.structure)
            for part, real in zip(known.parts, parts, strict=True):
                place = next(k for k, t in enumerate(call.tensors) if t is part)
                self.tensors[place] = real
        sizes = [number(n, self.given) for n in call.sizes]
        before = [t._version for t in self.tensors]
        text = json.dumps({**call.written, "results": ["list"]})
        if call.writes:
            self.result, self.foreign, *seen = called_writing(text, self.tensors, sizes)
            self.kept, self.unchanged = seen
        else:
            self.result, self.foreign = called(text, self.tensors, sizes)
        if [t._version for t in self.tensors] != before:
            raise GraphBreak(f"{call.what} writes to its argument")

    def _tensor(self, call: Any, place: int, fill: int) -> Tensor:
        if place in call.objects:
            return call.objects[place]  # type: ignore[no-any-return]
        fake = call.tensors[place]
        made = pattern(tuple(number(n, self.given) for n in fake.shape), fake.dtype, fake.device, fill, self.values)
        order = sorted(range(made.dim()), key=lambda d: -number(fake.stride()[d], self.given))
        return made.permute(order).contiguous().permute([order.index(d) for d in range(made.dim())])


class Planner:
    """The results of a call: text for the operator, and how they are built of what it gives."""

    def __init__(self, vm: Interpreter, what: str, call: Any, tries: Sequence[Try]) -> None:
        self.vm, self.what, self.call, self.tries = vm, what, call, tries
        self.made = self.kept = 0  # parts that the call makes, and those that are an argument's
        self.unknown = 0
        self.expressions = self._sizes()

    @property
    def alone(self) -> bool:
        """Whether the call has one result."""
        return not isinstance(self.tries[0].result, tuple | list)

    def planned(self, values: list[Any]) -> tuple[Any, Build]:
        """Text and recipe of one result, of which each try has given one of `values`."""
        value = values[0]
        if isinstance(value, Tensor) and is_foreign(value):
            if not self.call.writes and (same := self._argument(values)) is not None:
                return same
            return self._foreign(values)
        if isinstance(value, Tensor):
            if value.layout is not torch.strided or value.is_quantized:
                raise GraphBreak(
                    f"{self.what} makes a tensor with the layout {value.layout} and the dtype {value.dtype}"
                )
            if self._place(values) is not None or self._shares(values):
                raise GraphBreak(f"{self.what} gives a view of its argument")
            self.made += 1
            return self._tensor(values, None), next
        if isinstance(value, tuple | list) and all(len(v) == len(value) for v in values):
            found = [self.planned([v[k] for v in values]) for k in range(len(value))]
            kind = type(value)

            def build(new: Iterator[Tensor]) -> Any:
                items = [make(new) for _, make in found]
                return (
                    kind(*items) if hasattr(kind, "_fields") else kind(items) if kind in (tuple, list) else tuple(items)
                )

            return ["tuple", *(text for text, _ in found)], build
        raise GraphBreak(f"{self.what} gives a {type(value).__name__}, which depends on values")

    def _foreign(self, values: list[Tensor]) -> tuple[Any, Build]:
        structure = structure_of(values[0])
        if any(structure_of(v) != structure for v in values):
            raise GraphBreak(f"{self.what} gives a tensor whose structure depends on its size")
        if structure[0] == "quantized" and structure[2] is None:
            structure = self._numbers(values, structure)
        found = [parts_of(v, structure) for v in values]
        size = [self._size([v.shape[d] for v in values]) for d in range(values[0].dim())]
        if any(_is_fresh(n) for n in size):
            raise GraphBreak(f"{self.what} gives a tensor whose sizes depend on values")
        numbers = [self._number(n) for n in size]
        count = self._fresh()
        texts: list[Any] = []
        places: list[int | None] = []
        for at in range(len(found[0])):
            each = [parts[at] for parts in found]
            place = self._place(each) if not self._is_unchanged(at) else self._of_first(at)
            if place is None and self._shares(each):
                raise GraphBreak(f"{self.what} gives a tensor that shares memory with its argument")
            places.append(place)
            self.kept += place is not None
            self.made += place is None
            sizes = None if place is not None else self._part_sizes(structure, at, numbers, each, count)
            if place is None and self.call.writes and all(t.kept[at] for t in self.tries):
                sizes = [self.call.text_of(n) for n in self.call.foreign[0].parts[at].shape]
            texts.append(None if place is not None else self._tensor(each, sizes))
        example = values[0]
        shown = [t for t in self.tries[0].foreign if t.is_quantized]
        view = example.is_quantized and any(_memory(t) == _memory(example) for t in shown)

        def build(new: Iterator[Tensor]) -> Tensor:
            parts = [next(new) if k is None else self._kept(self.call.tensors[k]) for k in places]
            shape = tuple(numbers)
            self._check(structure, parts)
            rooted = any(p.requires_grad for p in parts) and any(f.rooted for f in self.call.foreign)
            made = Foreign(
                stand_in(self.vm, shape, example), structure, shape, parts, example, view=view, rooted=rooted
            )
            return self.vm.foreign.add(made)  # type: ignore[no-any-return]

        return ["foreign", structure, size, texts], build

    def _is_unchanged(self, at: int) -> bool:
        """Whether a call that writes to a foreign tensor, and is given no other, leaves one of its parts as it is: its places."""
        if not self.call.writes or len(self.call.foreign) != 1 or self.tries[0].result is not self.tries[0].foreign[0]:
            return False
        part = self.call.foreign[0].parts[at]
        return not part.is_floating_point() and all(t.kept[at] and t.unchanged[at] for t in self.tries)

    def _of_first(self, at: int) -> int:
        part = self.call.foreign[0].parts[at]
        return next(k for k, t in enumerate(self.call.tensors) if t is part)

    def _kept(self, part: Tensor) -> Tensor:
        """A part that is an argument's, without its history where the call leaves that."""
        if part.requires_grad and (self.call.name == "detach" or not torch.is_grad_enabled()):
            return self.vm.out.call_method("detach", (part,), {})  # type: ignore[no-any-return]
        return part

    def _argument(self, values: list[Tensor]) -> tuple[Any, Build] | None:
        """A result that is an argument itself: nothing is called for it."""
        place = next((k for k, t in enumerate(self.tries[0].foreign) if t is values[0]), None)
        if place is None:
            return None
        if any(v is not t.foreign[place] for v, t in zip(values, self.tries, strict=True)) or not self.alone:
            raise GraphBreak(f"{self.what} gives its argument itself")
        self.kept += 1
        known = self.call.foreign[place]
        return ["list"], lambda new: known.stand_in

    def _numbers(self, values: list[Tensor], structure: tuple[Any, ...]) -> tuple[Any, ...]:
        """With scale and zero point, if they are the same whatever the values are; the program checks that."""
        found = {with_numbers(v) for v in values}
        if self.alone and len(found) == 1:
            found.add(with_numbers(Try(self.call, self.tries[0].given, 7).result))
        return found.pop() if self.alone and len(found) == 1 else structure

    def _check(self, structure: tuple[Any, ...], parts: list[Tensor]) -> None:
        """Fewer than two values are always coalesced."""
        if structure[0] == "torch.sparse_coo" and not structure[3] and isinstance(parts[0].shape[1], torch.SymInt):
            torch._check(parts[0].shape[1] >= 2)

    def _part_sizes(
        self, structure: Any, at: int, size: list[Any], parts: list[Tensor], count: Any
    ) -> list[Any] | None:
        """The sizes of a part that follow from those of the whole; None where those that were tried say."""
        kind = structure[0]
        if kind == "quantized":
            return None
        rank = parts[0].dim()
        sizes = [self._size([p.shape[d] for p in parts]) for d in range(rank)]
        if kind == "torch.sparse_coo":
            sizes[1 if at == 0 else 0] = count
        elif at > 0:
            dense, blocks = structure[2], len(structure[3])
            sizes[rank - 1 if at == 1 else rank - 1 - dense - blocks] = count
        return sizes

    # ---- sizes ----

    def _tensor(self, values: list[Tensor], sizes: list[Any] | None) -> Any:
        first = values[0]
        shape = [self._size([v.shape[d] for v in values]) for d in range(first.dim())] if sizes is None else sizes
        order = None
        if not all(v.is_contiguous() for v in values):
            order = sorted(range(first.dim()), key=lambda d: -first.stride()[d])
            if not all(v.permute(order).is_contiguous() for v in values):
                order = None
            if order is None and sizes is None:
                raise GraphBreak(f"{self.what} gives a tensor with gaps")
        return ["tensor", shape, text_of(first.dtype), text_of(first.device), order]

    def _sizes(self) -> list[tuple[Any, tuple[int, ...]]]:
        """Sizes of arguments that are symbols, then sums and products of two, with their numbers in the tries."""
        found: dict[Any, Any] = {}
        for size in self.call.all_sizes():
            if isinstance(size, torch.SymInt):
                found.setdefault(size.node.expr, size)
        single = list(found.values())
        pairs = list(combinations_with_replacement(single, 2)) if len(single) <= 8 else []
        more = [*(a + b for a, b in pairs), *(a * b for a, b in pairs), *(a + 1 for a in single)]
        return [(e, tuple(number(e, t.given) for t in self.tries)) for e in (*single, *more)]

    def _size(self, numbers: list[int]) -> Any:
        if len(self.tries) == 1 or len(set(numbers)) == 1:
            return int(numbers[0])
        for expression, given in self.expressions:
            if given == tuple(numbers):
                known = next((k for k, s in enumerate(self.call.sizes) if s is expression), None)
                if known is None:
                    self.call.sizes.append(expression)
                    known = len(self.call.sizes) - 1
                return ["size", known]
        return self._fresh()

    def _fresh(self) -> Any:
        self.unknown += 1
        return ["unknown", self.unknown]

    def _number(self, size: Any) -> Any:
        return size if type(size) is int else self.call.sizes[size[1]]

    # ---- memory ----

    def _place(self, values: list[Tensor]) -> int | None:
        """The argument that a part is, in all tries."""
        for place in range(len(self.call.tensors)):
            if all(_same(v, t.tensors[place]) for v, t in zip(values, self.tries, strict=True)):
                return place
        return None

    def _shares(self, values: list[Tensor]) -> bool:
        """Whether a result has memory of an argument."""
        value, given = values[0], self.tries[0].tensors
        return value.numel() > 0 and any(_memory(value) == _memory(t) for t in given)


def _same(one: Tensor, other: Tensor) -> bool:
    facts = [(t.dtype, tuple(t.shape), t.stride(), t.data_ptr()) for t in (one, other)]
    return facts[0] == facts[1] and one.numel() > 0


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_fresh(size: Any) -> bool:
    return isinstance(size, list) and size[0] == "unknown"


def _as_eager(what: str, errors: list[Exception], given: Assignment) -> Exception:
    """Eager's error, where all tries agree on it and no size is a symbol; else a break."""
    error, other = errors
    if type(error) is type(other) and str(error) == str(other) and not given:
        return UserRaise(error)
    first = (str(error).strip().splitlines() or [""])[0][:200]
    return GraphBreak(f"{what} raises {type(error).__name__} when capture tries it: {first}")
