"""Programs recorded as CUDA graphs: one call of the driver starts all kernels and library calls of a program.

A program runs as it is at first, then once more into a recording, and from then on the recording is played back. What a user sees stays the same:

- results are copies that the caller owns, never memory of the recording; large ones are written into the caller's memory by steps that run
  after the recording (see pieces.py), gradients are handed out as they lie there, and never written while somebody holds one (`hand_out`);
- parameters are read and written where they are, and so are arguments that the program writes to, or that are large, when they lay at one
  place in the calls before: another address is another recording. Other arguments are copied in, and back where they are written to;
- a recording belongs to one stream; a call from a second thread at the same time or inside the user's own capture runs the program itself;
- sizes and places that do not come again are not recorded, and no more recordings are made than their playbacks have paid for;
- what cannot be recorded (see recordable.py) runs as it is, and `explain()` says why.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd.graph import increment_version

from ..torch_private import Storage, counts_uses, storage_address
from .capture import Replay, first_line
from .pieces import Divided, Ending, Pieces
from .recordable import SPARED, STATISTICS
from .recording import Given, Halves, Place, Recording, Taken, Taking, handed_over
from .recording_memory import POOLS, WARM, Gpu, Memory, Pool, copies, recorded_bytes, result_makers, storages
from .seeds import FixedSeed

__all__ = ["STATISTICS", "WARM", "Halves", "Recorded", "recorded_bytes"]

log = logging.getLogger("intarsia")
_topic = logging.getLogger("intarsia.cudagraphs")  # of `intarsia.set_logs`
Run = Callable[..., Sequence[Any]]
LIMIT = 8  # recordings of one program at a time: for so many sizes, places and streams
WORTH = 50  # playbacks that pay for a recording: beyond the limit and for places that move, only so many are made
SEEN = 256  # sizes and places that are remembered until they come again
NEWS = 8  # calls with sizes that never came before: then parts are recorded that are the same for all sizes
LARGE = 1 << 20  # bytes of an argument that is worth a recording for the place where it lies
FEW = 4  # small arguments that are copied rather than kept in mind where they lie
COPIES = 2  # arguments and results a kernel that are copied, beyond which calls are faster without a recording
IDLE = 256 << 20  # bytes that torch keeps without a use, which are worth a call of the driver's
MOST_COPIED = (
    64 << 20
)  # bytes of arguments and results: copying more takes longer than starting the kernels of a program one by one


class Recorded:
    """A program on a GPU, which is the current one in its calls; it is recorded after a few.

    Args:
        run: the program.
        kinds: of its arguments: "static" (parameters and buffers), "written" (other tensors that it writes to), "tensor", "scalar" (one number
            on the CPU), "number" or "unused".
        sizes: expressions over the arguments a0, a1, ... that its symbolic sizes are read by.
        gpu: its GPU, or the GPU's number.
        steps: how many kernels and library calls it has; None: enough.
        mutated: arguments that the program writes to: a playback, of which torch sees nothing, counts as a write.
        refused: why it is not recorded.
    """

    def __init__(
        self,
        run: Run,
        kinds: Sequence[str],
        sizes: Sequence[str],
        gpu: int | Gpu,
        steps: int | None = None,
        *,
        mutated: Sequence[int] = (),
        refused: str = "",
    ) -> None:
        self.steps, self.mutated = steps, mutated
        self.run, self.kinds, self.sizes, self.replays = run, list(kinds), list(sizes), 0
        self.gpu = Gpu(gpu) if isinstance(gpu, int) else gpu
        self.made: dict[Any, Recording] = {}
        self.reason, self.note = refused, ""  # why it is not recorded, and why some sizes are not
        self.lock = threading.Lock()
        self.recorded = self.calls = 0
        # Arguments that are no parameters and used where they lie; None: not decided yet.
        self.placed: list[int] | None = None
        self.given = [k for k, kind in enumerate(self.kinds) if kind in ("tensor", "written")]
        self.seen: dict[Any, list[Any]] = {}  # key -> how often, addresses of `given`, and at which time each was new
        self.moves: Counter[int] = Counter()
        self.most_moves = 2
        self.warm, self.large = WARM, LARGE
        self.handed: Collection[int] = ()  # results that are not copied
        self.places: dict[int, Place] = {}  # where these lie, by stream
        self.pieces: Pieces | None = None
        self.divided: Divided | None = None  # where large results are not copied
        self.endings = 0  # recordings that a tail follows
        self.halves: Halves | None = None  # where the program is a half of a training step
        self.version = 0  # of these
        self._takes_others = False
        self.moving: Collection[int] = ()  # small arguments that are copied although they lay at one place so far
        # What follows the arguments that `take` is given: constants that the program computes once.
        self.further: Callable[[Sequence[Any]], Sequence[Any]] | None = None
        self.make_taking: Callable[[], Taking | None] = lambda: (
            None
        )  # the program as a function that empties a list of its arguments
        self.news = 0
        self.head = self.fixed = 0  # where in a key the addresses begin, and where those of `placed`
        self.key = self._key()

    def hand_out(
        self,
        results: Collection[int],
        *,
        half: bool = False,
        after_others: bool = False,
        moving: Collection[int] = (),
        halves: Halves | None = None,
    ) -> None:
        """These results are given to the caller as they lie in the recording's memory, not copied.

        For gradients, and for what one half of a training step saves for the other: they are large and are dropped before the next step. A call
        that finds one of them still in use plays back another recording, or runs the program itself.

        Args:
            half: the program is a half of a training step: its small arguments, too, are likely to lie at one place.
            after_others: arguments come from recordings, too: wait until these are made and give the same places, which may be several.
            moving: arguments that are made anew for each call: a small one lies at one place until somebody else needs memory of its size.
            halves: what both halves share.
        """
        if counts_uses:
            self.handed, self.halves = results, halves
        if half:
            self.large = 0
        self.moving = moving if len(moving) <= FEW else ()
        self._takes_others = after_others
        if after_others:
            self.warm, self.most_moves = WARM + 3, LIMIT

    def take_handed(self) -> None:
        """Arguments are gradients that recordings hand out: wait until those of backward are made and give the same places, which may be several."""
        self.warm, self.most_moves = WARM + 6, LIMIT

    def __call__(self, *args: Any) -> Sequence[Any]:
        if self.gpu.is_only or self.gpu.is_current():
            results = self._call(args)
        else:
            with self.gpu.as_current():
                results = self._call(args)
        if self.mutated:
            increment_version([args[k] for k in self.mutated])
        return results

    def _call(self, args: Sequence[Any]) -> Sequence[Any]:
        if self.reason or not self.lock.acquire(blocking=False):
            return self.run(*args)
        try:
            self.calls += 1
            self._follow_halves()
            key = self.key(*args)
            found = self.made.get(key)
            if found is not None and not self.gpu.capturing():
                if found.taken:
                    return self.run(*args)
                results = self._play(found, args, key[0])
                if results is None and (spare := self._spare(found, key, args)) is not None:
                    results = self._play(spare, args, key[0])
                return self.run(*args) if results is None else results
            if found is not None or not self._is_wanted(key, args):
                return self._run(key, args)
            results = None if self.handed else self.run(*args)
            self._record(args, results)
            if results is not None:
                return results
            # What is handed out would be there twice if the program ran before it is recorded.
            key = self.key(*args)
            found = self.made.get(key)
            results = None if found is None or found.taken else self._play(found, args, key[0])
            return self.run(*args) if results is None else results
        finally:
            self.lock.release()

    def take(self, args: list[Any]) -> Sequence[Any] | None:
        """Play back a recording that takes the memory of some arguments, which the caller gives up: the list is all that holds them.

        None, and the list is as it was, where there is none, or somebody else uses one of them: then the program is to be called.
        """
        here = self.gpu.is_only or self.gpu.is_current()
        if not self._shares() or self.reason or not here or not self.lock.acquire(blocking=False):
            return None
        count, results = len(args), None
        try:
            if self.further is not None:
                args += self.further(args)
            self._follow_halves()
            found = self._recorded_to_take(args)
            if found is None or not found.taken or self.gpu.capturing():
                return None
            for taken in found.taken:
                args[taken.argument] = None
            results = self._play(found, args, self.gpu.stream())
            if results is not None:
                self.calls += 1
                if self.mutated:
                    increment_version([args[k] for k in self.mutated])
                return results
            for taken in found.taken:
                args[taken.argument] = taken.again()
            assert self.halves is not None
            self.halves.find_late()
            return None
        finally:
            if results is None:
                del args[count:]
            self.lock.release()

    def _recorded_to_take(self, args: Sequence[Any]) -> Recording | None:
        """The recording for a call that gives up its arguments, made now where the program was called as often as it waits.

        Were the program called before it is played back for the first time, what that takes would be kept beside the recording.
        """
        key = self.key(*args)
        count = self.seen.get(key, [0])[0]
        if key not in self.made and self._shares() and count >= self.warm and self._is_wanted(key, args):
            self._record(args, None)
            key = self.key(*args)
        return self.made.get(key)

    def _follow_halves(self) -> None:
        """Drop what was recorded when both halves shared memory, where they do no more."""
        if self.halves is not None and self.version != self.halves.version:
            self.version = self.halves.version
            for key in list(self.made):
                self._drop(key)
            self.seen.clear()

    def _run(self, key: tuple[Any, ...], args: Sequence[Any]) -> Sequence[Any]:
        """The program itself, in parts that are recorded where its sizes are new in each call."""
        if self.pieces is None or self.news < NEWS or not self.pieces.is_worth_it or self.gpu.capturing():
            return self.run(*args)
        pool = POOLS.of(self.gpu, key[0])
        if not pool.lock.acquire(blocking=False):
            return self.run(*args)
        try:
            before = self.pieces.recorded
            static = [args[k] for k, kind in enumerate(self.kinds) if kind == "static"]
            results = self.pieces(args, (key[0], *key[self.head : self.fixed]), static, pool)
            STATISTICS.recordings += self.pieces.recorded - before
            STATISTICS.replays += 1
            return results
        finally:
            pool.lock.release()

    def _key(self) -> Callable[..., tuple[Any, ...]]:
        """Reads from the arguments all that a recording depends on: stream, sizes, numbers, addresses; those of `placed` stand last."""
        numbers = [f"a{k}" for k, kind in enumerate(self.kinds) if kind == "number" and f"a{k}" not in self.sizes]
        scalars = [f"repr(a{k}.item())" for k, kind in enumerate(self.kinds) if kind == "scalar"]
        fixed = [f"a{k}.data_ptr()" for k, kind in enumerate(self.kinds) if kind == "static"]
        placed = [f"a{k}.data_ptr()" for k in self.placed or ()]
        parts = ["stream()", *self.sizes, *numbers, *scalars, *fixed, *placed]
        self.fixed = len(parts) - len(placed)
        self.head = self.fixed - len(fixed)
        names = ", ".join(f"a{k}" for k in range(len(self.kinds)))
        made: Callable[..., tuple[Any, ...]] = eval(
            compile(f"lambda {names}: ({', '.join(parts)},)", "<key of a recording>", "eval"),
            {"stream": self.gpu.stream},
        )
        return made

    # -- what is recorded

    def _is_wanted(self, key: tuple[Any, ...], args: Sequence[Any]) -> bool:
        """Whether a call that is not recorded is to be; remembers it."""
        self._moved(key)
        addresses = [args[k].data_ptr() for k in self.given]
        self.news = 0 if key in self.seen else self.news + 1
        known = self.seen.setdefault(key, [0, addresses, [0] * len(addresses)])
        known[0] += 1
        if known[0] < 0:
            return False
        known[2] = [t if a == b else known[0] for a, b, t in zip(addresses, known[1], known[2], strict=True)]
        known[1] = addresses
        if len(self.seen) > SEEN:
            self.seen = {key: known}
        if known[0] <= self.warm or self.gpu.capturing() or self._has_numbers(args):
            return False
        return self.recorded < LIMIT or self.replays >= WORTH * self.recorded

    def _has_numbers(self, args: Sequence[Any]) -> bool:
        """Whether an argument that should be on the GPU is a number on the CPU: from now on its value is part of the key.

        Such are the states of random generators that library calls save for backward.
        """
        away = [k for k in self.given if not self.gpu.holds(args[k])]
        if any(args[k].numel() != 1 for k in away):
            self._refuse("an argument is on the CPU")
        elif away:
            self.kinds = ["scalar" if k in away else kind for k, kind in enumerate(self.kinds)]
            self.given = [k for k in self.given if k not in away]
            self._place([k for k in self.placed if k not in away] if self.placed is not None else None)
        return bool(away)

    def _moved(self, key: tuple[Any, ...]) -> None:
        """Arguments that lie elsewhere each time are copied in from now on."""
        if not self.placed:
            return
        like = next((k for k in reversed(self.made) if k[: self.fixed] == key[: self.fixed]), None)
        if like is None or key in self.seen or self.made[like].replays >= WORTH:
            return
        for k, old, new in zip(self.placed, like[self.fixed :], key[self.fixed :], strict=True):
            self.moves[k] += old != new
        staying = [k for k in self.placed if self.moves[k] < self.most_moves]
        if len(staying) < len(self.placed):
            self._place(staying)

    def _place(self, placed: list[int] | None) -> None:
        self.placed = placed
        for key in list(self.made):
            self._drop(key)
        self.seen.clear()
        self.key = self._key()

    def _record(self, args: Sequence[Any], results: Sequence[Any] | None) -> None:
        """The program with these arguments, which gave these results if it ran, as a recording; that does not run it."""
        key = self.key(*args)
        if self.placed is None:
            count, _, since = self.seen[key]
            stayed = [k for k, t in zip(self.given, since, strict=True) if count - t >= WARM]
            large = 0 if len(stayed) > FEW else self.large
            least = dict.fromkeys(self.moving, LARGE)
            self._place([k for k in stayed if self.kinds[k] == "written" or args[k].nbytes >= least.get(k, large)])
            key = self.key(*args)
        placed = self.placed or ()
        copied = [k for k in self.given if k not in placed]
        divided = self._divided(results or (), args)
        direct = () if divided is None else divided.results
        kept = [r for k, r in enumerate(results or ()) if k not in direct]
        if self._is_heavy(key, [args[k] for k in copied], kept, args):
            return
        pool = POOLS.of(self.gpu, key[0])
        place = Place(pool)
        if self.handed:  # what callers hold must lie where no other program's recording writes
            places: dict[int, Place] = (
                self.halves.places if self.halves is not None and self.halves.takes else self.places
            )
            place = places.get(key[0]) or Place(replace(pool, memory=self.gpu.memory()))
            places[key[0]] = place
            if self._meets_taken(key, args, place):
                return
        made = self._made(key, args, results, place, divided)
        if isinstance(made, str):
            POOLS.drop(pool)  # where there was not enough memory, it is not kept
            self._refuse(made)
        elif made is not None:
            if len(self.made) >= LIMIT:
                self._drop(min(self.made, key=lambda k: self.made[k].last))
            self.made[key] = made

    def _shares(self) -> bool:
        return self.halves is not None and self.halves.takes

    def _drop(self, key: Any) -> None:
        made = self.made.pop(key)
        for recording in filter(None, (made, made.spare)):
            recording.dropped = True

    def _spare(self, found: Recording, key: tuple[Any, ...], args: Sequence[Any]) -> Recording | None:
        """What else plays the program back while results of this recording are in use: gradients that are added up, a second forward."""
        if found.spare is None:
            found.busy += 1
            if found.busy != WARM:
                return None
            if self._shares() and any(
                (r.was_taken or r.given is None) and not r.is_idle() for r in found.place.handing
            ):
                assert self.halves is not None
                self.halves.stop()  # a spare would write there, too; and what is in use together needs memory of its own
                return None
            made = self._made(key, args, None, found.place, None)
            found.spare = made if isinstance(made, Recording) else None
        return found.spare

    def _made(
        self,
        key: tuple[Any, ...],
        args: Sequence[Any],
        results: Sequence[Any] | None,
        place: Place,
        divided: Divided | None,
    ) -> Recording | str | None:
        """A recording in this memory; why there is none; None: not this time."""
        pool = place.pool
        if not pool.lock.acquire(blocking=False):
            return None
        copied = [k for k in self.given if k not in (self.placed or ())]
        seed = FixedSeed(self.gpu.empty((), (), torch.int64))
        taken: list[Taken] = []
        try:
            memories = [Memory(k, args[k], self.gpu) for k in copied]
            given = list(args)
            for memory in memories:
                given[memory.place] = memory.like(args[memory.place])
            run, tail = (self.run, None) if divided is None else divided.make()
            taking, taken = self._taking(given, place)
            if taking is None:
                reserved = self.halves.saved if self.halves is not None and self._is_first_of(place) else 0
                replay, recorded = self._captured(lambda: seed.run(run, given), pool, reserved)
            else:
                for each in taken:
                    given[each.argument] = None
                replay, recorded = self.gpu.record(lambda: seed.run(taking, (handed_over(given, taken),)), pool)
                if any(t.is_held() for t in taken):
                    raise RuntimeError("a result lies in the memory of an argument")
            ending = None if tail is None else Ending(tail, recorded, self.gpu)
            if ending is not None and ending.places & storages(given):
                self.divided = None  # the tail would be given the recording's copy of an argument
                return None
            gives = Given(recorded, given, self.handed, self.gpu, pool.memory) if self._gives() else None
            shown = recorded if gives is None else gives.results
            makers, held = ([], []) if ending is not None else result_makers(shown, given, self.gpu, self.handed)
            others = [r for k, r in enumerate(recorded) if k not in self.handed]
            if results is None and self._is_heavy(key, [args[k] for k in copied], others, given):
                return None
        except Exception as error:  # whatever it is: the program runs without
            if self.halves is not None and self.halves.takes:
                self.halves.stop()  # perhaps it can be recorded in memory of its own
                return None
            return first_line(error)
        finally:
            pool.lock.release()
        back = [m for m in memories if self.kinds[m.place] == "written"]
        ours = [Storage(x) for x in {storage_address(x): x for x in held}.values()]
        self.recorded += 1
        self.endings += ending is not None
        STATISTICS.recordings += 1
        _topic.info("recorded: %d memories, %d written back", len(memories), len(back))
        drawn = seed if seed.asked else None
        made = Recording(replay, memories, back, makers, place, held, ours, drawn, ending, last=self.calls)
        place.sweep()
        made.given, made.taken, made.spared = gives, taken, {r for r in place.handing if not r.was_taken}
        if held:
            place.handing.append(made)
        return made

    def _meets_taken(self, key: tuple[Any, ...], args: Sequence[Any], place: Place) -> bool:
        """Whether an argument's memory is that of an earlier recording, too, so that a further one could write there before it reads it.

        Then both halves are recorded anew, and arguments that have moved are copied in.
        """
        lying = [r.given for r in place.handing if r.given is not None]
        if self.halves is None or not any(there.lost(args[k]) for k in self.given for there in lying):
            return False
        like = next((k for k in reversed(self.made) if k[: self.fixed] == key[: self.fixed]), None)
        if like is not None:
            pairs = zip(self.placed or (), like[self.fixed :], key[self.fixed :], strict=True)
            moved = [k for k, old, new in pairs if old != new]
            self._place([k for k in self.placed or () if k not in moved])
        self.halves.renew()
        return True

    def _gives(self) -> bool:
        """Whether results are given up to the other half."""
        return self._shares() and not self._takes_others

    def _taking(self, given: Sequence[Any], place: Place) -> tuple[Taking | None, list[Taken]]:
        """The program as it takes the memory of arguments, and which these are: results of other recordings in the same memory."""
        if not self._shares() or not self._takes_others:
            return None, []
        lying, taken = [r.given for r in place.handing if r.given is not None], list[Taken]()
        for k, kind in enumerate(self.kinds):
            there = next((each for each in lying if isinstance(given[k], torch.Tensor) and each.has(given[k])), None)
            if there is not None and not (kind == "unused" or (kind == "tensor" and k in (self.placed or ()))):
                return None, []  # a playback needs it
            taken += [] if there is None else [Taken(k, given[k], there)]
        taking = self.make_taking() if taken else None
        return (None, []) if taking is None else (taking, taken)

    def _is_first_of(self, place: Place) -> bool:
        """Whether what is to be recorded is forward, of known sizes, in memory that has nothing yet."""
        return not (self._takes_others or self.sizes or place.handing)

    def _captured(self, work: Callable[[], list[Any]], pool: Pool, reserved: int = 0) -> tuple[Replay, list[Any]]:
        """A recording; while one is made torch gives none of the memory back that it keeps, which so may be missing."""
        if self.handed:  # memory of its own: what calls before have used must not be there a second time
            self.gpu.release(IDLE)
        if reserved:
            self.gpu.reserve(pool, reserved)
        try:
            return self.gpu.record(work, pool)
        except torch.OutOfMemoryError:
            pass  # with the error all goes that the attempt has made
        self.gpu.release()
        return self.gpu.record(work, pool)

    def _divided(self, results: Sequence[Any], args: Sequence[Any]) -> Divided | None:
        """The program as a recording and a tail, where that spares large copies of these results."""
        if self.divided is None or self.handed:
            return None
        spared = copies((), [r for k, r in enumerate(results) if k in self.divided.results], args)[1]
        return self.divided if spared >= SPARED * self.divided.steps else None

    def _is_heavy(
        self, key: tuple[Any, ...], copied: Sequence[Any], results: Sequence[Any], args: Sequence[Any]
    ) -> bool:
        """Whether playing back would copy too much; remembers it."""
        count, size = copies(copied, results, args)
        if size > MOST_COPIED:
            reason = f"{size >> 20} MiB of arguments and results would be copied in each call"
        elif self.steps is not None and count > COPIES * self.steps:
            reason = f"{count} arguments and results would be copied for {self.steps} kernels"
        else:
            return False
        if not self.sizes:
            self._refuse(reason)
        else:
            self.note = reason
            self.seen[key] = [-(1 << 60), [], []]
        return True

    def _play(self, found: Recording, args: Sequence[Any], stream: int) -> Sequence[Any] | None:
        """What a playback gives; None where what it would write is in use."""
        if not found.place.pool.lock.acquire(blocking=False):  # memory is shared with a recording that is under way
            return None if found.taken else self.run(*args)
        try:
            if not found.is_free():
                return None
            for memory in found.inputs:
                memory.fill(args[memory.place], stream)
            if found.seed is not None:
                drawn = self.gpu.seed()
                self.gpu.move(found.seed.memory.data_ptr(), drawn.data_ptr(), drawn.nbytes, stream)
            found.replay(stream)
            for memory in found.back:
                memory.give_back(args[memory.place], stream)
            results: list[Any] = [] if found.ending is None else found.ending(args, stream)
            for make in found.makers:
                results.append(make(args, results, stream))
        finally:
            found.place.pool.lock.release()
        found.replays += 1
        found.last = self.calls
        self.replays += 1
        STATISTICS.replays += 1
        return results

    def _refuse(self, reason: str) -> None:
        self.reason = reason
        self.made.clear()
        self.places.clear()
        STATISTICS.refused.append(reason)
        log.info("a program is not recorded as a CUDA graph: %s", reason)
        _topic.info("not recorded as a CUDA graph: %s", reason)
