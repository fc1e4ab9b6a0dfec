"""Every execution of a few short threads under a weak memory, searched state by state.

The memory is one of views. Each place that is accessed atomically keeps the history of its writes in coherence order,
each thread a view, which is a position in each history. A relaxed load may read any write that its view does not
forbid, a relaxed store may be inserted anywhere behind the view. A release store publishes the storing thread's view,
an acquire load adopts it, a barrier joins the views of a block's threads. That allows everything that PTX's memory
model allows for strong accesses at one scope: stores and loads of different places overtake each other, and threads
disagree about the order of writes. One thing is missing: a load that a later store overtakes. Where it matters the load
is written as :meth:`Thread.load_later`: it reads at any time until :meth:`Thread.use`, also behind a barrier, but not
behind a release that follows it. Stores that depend on a thread's condition are never early: PTX has no values out of
thin air.

Plain accesses have no history. Each must know the last write, and a write all reads since then; otherwise it is a race,
which is a finding. Failed checks and threads that wait for ever are findings too.

Each state is visited once; operations that no other thread can notice are not interleaved.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from support.litmus import Op, Registers, Thread, value_of
from support.views import Message, State, ThreadState, View, joined, raised, shifted

_WRITING = ("store", "cas")
_RELEASING, _ACQUIRING = ("release", "acq_rel", "sc"), ("acquire", "acq_rel", "sc")


@dataclass(frozen=True)
class Finding:
    """A possible error with its execution: the operations in their order."""

    what: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.what, *(f"  {line}" for line in self.trace)])


@dataclass(frozen=True)
class Searched:
    """The result of a search: all executions, or one with a finding."""

    states: int
    finding: Finding | None
    #: The registers of all threads at the end of the executions, if requested.
    ends: frozenset[Any] = frozenset()


class WrongError(Exception):
    """A finding, in words."""


class Search:
    """A search over all executions of ``threads``.

    ``start``: initial values of places (0). ``at_end``: returns the error in the registers of all threads at the end,
    or None; ``collect``: selects registers to return. ``reduce`` False: all interleavings, also equivalent ones.
    """

    def __init__(
        self,
        threads: Sequence[Thread],
        start: Mapping[str, Any] | None = None,
        at_end: Callable[[list[Registers]], str | None] | None = None,
        collect: Callable[[list[Registers]], Any] | None = None,
        most_states: int = 3_000_000,
        reduce: bool = True,
    ) -> None:
        self._threads, self._at_end, self._collect, self._most = list(threads), at_end, collect, most_states
        self._reduce = reduce
        self._ops = [tuple(thread.ops) for thread in threads]
        self._blocks = [
            tuple(i for i, other in enumerate(threads) if other.block == thread.block and thread.block) or (index,)
            for index, thread in enumerate(threads)
        ]
        self._names = [
            {name: i for i, name in enumerate(dict.fromkeys(op.register for op in ops if op.register))}
            for ops in self._ops
        ]
        orders: dict[str, set[bool]] = {}
        for op in (op for ops in self._ops for op in ops if op.at is not None):
            for place in op.among or (op.at,):
                orders.setdefault(place, set()).add(op.order == "plain")
        mixed = [place for place, kinds in orders.items() if len(kinds) > 1]
        assert not mixed, f"plain and atomic accesses of {mixed}"
        self._atomic = {place: i for i, place in enumerate(place for place in orders if orders[place] == {False})}
        self._plain = {place: i for i, place in enumerate(place for place in orders if orders[place] == {True})}
        self._places = list(self._atomic)
        self._start = dict(start or {})
        unknown = set(self._start) - set(orders)
        assert not unknown, f"nobody uses {unknown}"
        self._bits = len(threads) + 1
        self._footprints = [self._footprint(ops) for ops in self._ops]
        #: Per thread and operation, True if a fence follows.
        self._fences = [[any(op.kind == "fence" for op in ops[pc:]) for pc in range(len(ops) + 1)] for ops in self._ops]

    # ---- the search

    def run(self) -> Searched:
        seen: set[State] = set()
        ends: set[Any] = set()
        text: list[str] = []
        stack: list[tuple[Iterator[tuple[State, str]], list[str]]] = [(iter([(self._first(), "")]), [])]
        try:
            while stack:
                step = next(stack[-1][0], None)
                if step is None:
                    stack.pop()
                    continue
                text = [step[1]]
                state = self._settled(step[0], text)
                if state in seen:
                    continue
                seen.add(state)
                if len(seen) > self._most:
                    raise RuntimeError(f"more than {self._most} states")
                if all(one.pc == len(ops) for one, ops in zip(state.threads, self._ops, strict=True)):
                    ends.add(self._ended(state))
                    continue
                moves = self._moves(state)
                first = next(moves, None)
                if first is None:
                    raise WrongError(f"nobody can go on: {self._waiting(state)}")
                stack.append((chain([first], moves), text))
        except WrongError as wrong:
            lines = [line for _, some in stack for line in some] + text
            return Searched(len(seen), Finding(str(wrong), tuple(filter(None, lines))))
        return Searched(len(seen), None, frozenset(ends - {None}))

    def _first(self) -> State:
        nothing: View = ((0,) * len(self._places), 0)
        everything = (nothing[0], (1 << (len(self._plain) * self._bits)) - 1)
        return State(
            tuple(ThreadState(0, (None,) * len(names), everything, nothing, nothing) for names in self._names),
            tuple(((self._start.get(place, 0), nothing, False),) for place in self._places),
            tuple(self._start.get(place, 0) for place in self._plain),
            0,
            nothing,
        )

    def _ended(self, state: State) -> Any:
        registers = [self._registers(state, t) for t in range(len(self._threads))]
        wrong = self._at_end(registers) if self._at_end else None
        if wrong is not None:
            raise WrongError(wrong)
        return self._collect(registers) if self._collect else None

    def _waiting(self, state: State) -> str:
        return "; ".join(
            f"{thread.name} at {self._text(t, self._ops[t][state.threads[t].pc])}"
            for t, thread in enumerate(self._threads)
            if state.threads[t].pc < len(self._ops[t])
        )

    # ---- operations that no other thread can notice, executed at once

    def _settled(self, state: State, lines: list[str]) -> State:
        moved = True
        while moved:
            moved = False
            for t, ops in enumerate(self._ops):
                while state.threads[t].pc < len(ops):
                    op = ops[state.threads[t].pc]
                    if op.kind == "barrier":
                        if not self._all_there(state, t):
                            break
                        state = self._met(state, t)
                        lines.append(f"{self._threads[t].block}: barrier")
                    elif op.kind in ("let", "skip", "check") or op.order == "plain":
                        state = self._local(state, t, op, lines)
                    elif op.kind == "use" and not self._under_way(state, t, op):
                        state = state.with_thread(t, state.threads[t]._replace(pc=state.threads[t].pc + 1))
                    else:
                        break
                    moved = True
        return self._trimmed(state)

    def _under_way(self, state: State, t: int, op: Op) -> bool:
        return any(one[0] == self._names[t][op.register] for one in state.threads[t].later)

    def _all_there(self, state: State, t: int) -> bool:
        return all(
            state.threads[i].pc < len(self._ops[i]) and self._ops[i][state.threads[i].pc].kind == "barrier"
            for i in self._blocks[t]
        )

    def _met(self, state: State, t: int) -> State:
        view = state.threads[t].view
        for i in self._blocks[t]:
            view = joined(view, state.threads[i].view)
        threads = list(state.threads)
        for i in self._blocks[t]:
            one = threads[i]
            later = tuple((register, place, oldest, True) for register, place, oldest, _ in one.later)
            threads[i] = one._replace(pc=one.pc + 1, view=view, later=later)
        return state._replace(threads=tuple(threads))

    def _local(self, state: State, t: int, op: Op, lines: list[str]) -> State:
        me = state.threads[t]
        registers = self._registers(state, t)
        pc = me.pc + 1
        if op.kind == "check":
            if not op.test(registers):
                raise WrongError(f"{self._threads[t].name}: {op.text}: {registers}")
            return state.with_thread(t, me._replace(pc=pc))
        if op.kind == "skip":
            return state.with_thread(t, me._replace(pc=pc if op.test(registers) else op.value))
        if op.kind == "let":
            after = self._set(t, me, op.register, value_of(op.value, registers))
            return state.with_thread(t, me._replace(pc=pc, registers=after))
        return self._plain_access(state, t, op, registers, lines)

    def _plain_access(self, state: State, t: int, op: Op, registers: Registers, lines: list[str]) -> State:
        place = self._place(op, registers)
        me, j = state.threads[t], self._plain[place]
        wrote = 1 << (j * self._bits)
        reads = ((1 << self._bits) - 2) << (j * self._bits)
        mine = wrote << (t + 1)
        name = self._threads[t].name
        if op.kind == "load":
            if not me.view[1] & wrote:
                lines.append(f"{name}: loads {place}")
                raise WrongError(f"race: {name} loads {place}, whose last store it need not see")
            value = state.plain[j]
            lines.append(f"{name}: loads {place}: {value}")
            state = state.forgetting(mine)
            view = (me.view[0], me.view[1] | mine)
            me = state.threads[t]._replace(pc=me.pc + 1, view=view, registers=self._set(t, me, op.register, value))
            return state.with_thread(t, me)._replace(read=state.read | mine)
        value = value_of(op.value, registers)
        lines.append(f"{name}: stores {place} := {value}")
        if not me.view[1] & wrote:
            raise WrongError(f"race: {name} stores {place}, whose last store it need not see")
        if state.read & reads & ~mine & ~me.view[1]:
            who = [
                o.name for i, o in enumerate(self._threads) if state.read & ~me.view[1] & (wrote << (i + 1)) and i != t
            ]
            raise WrongError(f"race: {name} stores {place}, which {', '.join(who)} may not have loaded yet")
        state = state.forgetting(wrote | reads)
        view = (me.view[0], (me.view[1] | wrote) & ~reads)
        threads = (*state.threads[:t], state.threads[t]._replace(pc=me.pc + 1, view=view), *state.threads[t + 1 :])
        plain = (*state.plain[:j], value, *state.plain[j + 1 :])
        return state._replace(threads=threads, plain=plain, read=state.read & ~reads)

    # ---- operations that others can notice

    def _moves(self, state: State) -> Iterator[tuple[State, str]]:
        """Yield the states after one operation of one thread; of a single thread if no other can interfere."""
        for t, one in enumerate(state.threads):
            if one.pc < len(self._ops[t]) and not one.later and self._alone(state, t):
                moves = self._moves_of(state, t)
                first = next(moves, None)
                if first is not None:
                    yield first
                    yield from moves
                    return
        for t in range(len(state.threads)):
            yield from self._moves_of(state, t)

    def _alone(self, state: State, t: int) -> bool:
        """Return whether all future operations of other threads are independent of the thread's next one."""
        op = self._ops[t][state.threads[t].pc]
        if not self._reduce or op.kind not in ("load", "wait", "store", "cas"):
            return False
        mine = sum(1 << self._atomic[place] for place in op.among or (op.at,))
        for i, other in enumerate(state.threads):
            if i == t:
                continue
            reads, writes = self._footprints[i][other.pc]
            for _, place, _, _ in other.later:
                reads |= 1 << place
            if writes & mine or (op.kind in _WRITING and reads & mine):
                return False
        return True

    def _footprint(self, ops: Sequence[Op]) -> list[tuple[int, int]]:
        """Return per operation the atomic places that it and all later ones read, and write."""
        footprints = [(0, 0)]
        for op in reversed(ops):
            reads, writes = footprints[-1]
            if op.at is not None and op.order != "plain":
                places = sum(1 << self._atomic[place] for place in op.among or (op.at,))
                reads |= places if op.kind != "store" else 0
                writes |= places if op.kind in _WRITING else 0
            footprints.append((reads, writes))
        return footprints[::-1]

    def _moves_of(self, state: State, t: int) -> Iterator[tuple[State, str]]:
        one, name = state.threads[t], self._threads[t].name
        for index, (register, place, oldest, _) in enumerate(one.later):
            for at in range(oldest, len(state.histories[place])):
                value, view, _ = state.histories[place][at]
                left = one.later[:index] + one.later[index + 1 :]
                values = (*one.registers[:register], value, *one.registers[register + 1 :])
                after = one._replace(
                    later=left,
                    registers=values,
                    seen=joined(one.seen, view) if self._fences[t][one.pc] else one.seen,
                    view=raised(one.view, place, at),
                )
                yield (
                    state.with_thread(t, after),
                    f"{name}: its load of {self._places[place]} reads {value}{_age(state.histories[place], at)}",
                )
        if one.pc == len(self._ops[t]):
            return
        op = self._ops[t][one.pc]
        if op.kind in ("barrier", "use"):
            return
        if op.kind == "fence":
            if not self._held_up(state, t):
                yield self._fenced(state, t, op), f"{name}: fence {op.order}"
            return
        registers = self._registers(state, t)
        place = self._atomic[self._place(op, registers)]
        if op.kind == "arrived":
            old = [i for i, (value, _, _) in enumerate(state.histories[place]) if op.test(value)]
            view = raised(one.view, place, old[-1]) if old else one.view
            yield (
                state.with_thread(t, one._replace(pc=one.pc + 1, view=view)),
                f"{name}: old stores of {op.at} are seen",
            )
        elif op.kind == "later":
            later = (*one.later, (self._names[t][op.register], place, one.view[0][place], False))
            yield state.with_thread(t, one._replace(pc=one.pc + 1, later=later)), f"{name}: begins to load {op.at}"
        elif op.kind == "store":
            if op.order not in _RELEASING or not self._held_up(state, t):
                yield from self._stores(state, t, op, place, value_of(op.value, registers))
        else:
            yield from self._loads(state, t, op, place, registers)

    def _held_up(self, state: State, t: int) -> bool:
        """Return whether a pending load precedes the thread's next release."""
        return bool(state.threads[t].later) or any(late[3] for i in self._blocks[t] for late in state.threads[i].later)

    def _fenced(self, state: State, t: int, op: Op) -> State:
        one = state.threads[t]
        view = joined(one.view, one.seen)
        fence = state.fence
        if op.order == "sc":
            view = fence = joined(view, fence)
        return state.with_thread(t, one._replace(pc=one.pc + 1, view=view, released=view))._replace(fence=fence)

    def _stores(self, state: State, t: int, op: Op, place: int, value: Any) -> Iterator[tuple[State, str]]:
        history = state.histories[place]
        oldest = len(history) if op.order == "sc" else state.threads[t].view[0][place] + 1
        for at in range(oldest, len(history) + 1):
            if at < len(history) and history[at][2]:
                continue
            where = "" if at == len(history) else f", before {history[at][0]} in coherence order"
            yield (
                self._written(state, t, op, place, value, at),
                f"{self._threads[t].name}: {op.order} store {self._places[place]} := {value}{where}",
            )

    def _written(
        self, state: State, t: int, op: Op, place: int, value: Any, at: int, read: View | None = None
    ) -> State:
        """Return the state with a write at position ``at``; ``read``: the view of the write that it swaps with."""
        if at < len(state.histories[place]):
            state = self._shifted(state, place, at)
        one = state.threads[t]
        view = raised(one.view, place, at)
        views = one.views
        if op.order in _RELEASING:
            handed = view
            views = (*(row for row in views if row[:2] != ("release", place)), ("release", place, view))
        else:
            handed = raised(one.released, place, at)
            for kind, where, before in views:
                if (kind, where) == ("release", place):
                    handed = joined(handed, before)
        if read is not None:
            handed = joined(handed, read)
        histories = list(state.histories)
        history = histories[place]
        histories[place] = (*history[:at], (value, handed, read is not None), *history[at:])
        registers = self._set(t, one, op.register, None) if op.register and read is None else one.registers
        after = one._replace(pc=one.pc + 1, view=view, views=self._needed(t, one.pc + 1, views), registers=registers)
        threads = (*state.threads[:t], after, *state.threads[t + 1 :])
        return state._replace(threads=threads, histories=tuple(histories))

    def _needed(self, t: int, pc: int, views: tuple[tuple[str, int, View], ...]) -> tuple[tuple[str, int, View], ...]:
        """Return the views without those that no later operation of the thread needs."""
        left = []
        for row in views:
            kind, place, _ = row
            name = self._places[place]
            for op in self._ops[t][pc:]:
                if name not in (op.among or (op.at,)):
                    continue
                if kind == "release" and op.kind in _WRITING and op.order not in _RELEASING:
                    left.append(row)
                    break
                if kind == "acquire" and op.kind != "store" and op.order in _ACQUIRING:
                    left.append(row)
                    break
        return tuple(sorted(left))

    def _loads(self, state: State, t: int, op: Op, place: int, registers: Registers) -> Iterator[tuple[State, str]]:
        one, history, name = state.threads[t], state.histories[place], self._threads[t].name
        oldest = len(history) - 1 if op.order == "sc" else one.view[0][place]
        good = None
        for at in range(oldest, len(history)):
            value, handed, _ = history[at]
            text = f"{name}: {op.order} load {self._places[place]}: {value}{_age(history, at)}"
            if op.kind == "wait" and not op.test(value, registers):
                # Loads that change nothing are skipped; one may skip the value that it waits for.
                if good is not None:
                    yield (
                        state.with_thread(t, one._replace(view=raised(one.view, place, at))),
                        f"{text}, goes on waiting",
                    )
                continue
            good = at
            if op.kind == "cas" and value == value_of(op.test, registers):
                if at + 1 < len(history) and history[at + 1][2]:
                    continue
                if op.order in _RELEASING and self._held_up(state, t):
                    continue
                read = state.with_thread(t, self._took(t, one, op, place, at, value, handed, one.pc))
                new = value_of(op.value, registers)
                yield self._written(read, t, op, place, new, at + 1, handed), f"{text}, swapped with {new}"
                continue
            yield state.with_thread(t, self._took(t, one, op, place, at, value, handed, one.pc + 1)), text

    def _took(
        self, t: int, one: ThreadState, op: Op, place: int, at: int, value: Any, handed: View, pc: int
    ) -> ThreadState:
        """Return the thread after a read."""
        view, seen, views = raised(one.view, place, at), one.seen, one.views
        if op.order in _ACQUIRING:
            view = joined(view, handed)
            for kind, where, before in views:
                if (kind, where) == ("acquire", place):
                    view = joined(view, before)
            views = tuple(row for row in views if row[:2] != ("acquire", place))
        elif joined(view, handed) != view:
            seen = joined(seen, handed) if self._fences[t][pc] else seen
            before = [row[2] for row in views if row[:2] == ("acquire", place)]
            views = tuple(row for row in views if row[:2] != ("acquire", place))
            views = (*views, ("acquire", place, joined(handed, *before) if before else handed))
        registers = self._set(t, one, op.register, value) if op.register else one.registers
        return one._replace(pc=pc, view=view, seen=seen, views=self._needed(t, pc, views), registers=registers)

    # ---- views

    def _shifted(self, state: State, place: int, at: int) -> State:
        """Return the state with positions of a history from ``at`` on raised by one."""
        return state.with_views(lambda view: shifted(view, place, at), lambda p, i: i + (p == place and i >= at))

    def _trimmed(self, state: State) -> State:
        """Return the state without unreadable writes and without views of ended threads."""
        nothing: View = ((0,) * len(self._places), 0)
        threads = tuple(
            one
            if one.pc < len(self._ops[t]) or one.later
            else one._replace(view=nothing, released=nothing, seen=nothing, views=())
            for t, one in enumerate(state.threads)
        )
        state = state._replace(threads=threads)
        gone = []
        for place, history in enumerate(state.histories):
            least = len(history) - 1
            if least == 0:
                continue
            for t, one in enumerate(threads):
                reads, writes = self._footprints[t][one.pc]
                if (reads | writes) >> place & 1:
                    least = min(least, one.view[0][place])
                for _, where, oldest, _ in one.later:
                    if where == place:
                        least = min(least, oldest)
            if least:
                gone.append((place, least))
        if not gone:
            return state
        less = dict(gone)

        def lower(view: View) -> View:
            seen = list(view[0])
            for place, least in gone:
                seen[place] = max(0, seen[place] - least)
            return tuple(seen), view[1]

        state = state.with_views(lower, lambda place, i: max(0, i - less.get(place, 0)))
        histories = tuple(history[less.get(place, 0) :] for place, history in enumerate(state.histories))
        return state._replace(histories=histories)

    # ---- registers and words

    def _registers(self, state: State, t: int) -> Registers:
        return dict(zip(self._names[t], state.threads[t].registers, strict=True))

    def _set(self, t: int, one: ThreadState, register: str, value: Any) -> tuple[Any, ...]:
        index = self._names[t][register]
        return (*one.registers[:index], value, *one.registers[index + 1 :])

    @staticmethod
    def _place(op: Op, registers: Registers) -> str:
        place = value_of(op.at, registers)
        assert not op.among or place in op.among, place
        return str(place)

    @staticmethod
    def _text(t: int, op: Op) -> str:
        return " ".join(filter(None, [op.kind, op.order, str(op.at or ""), op.text or op.register]))


def search(threads: Sequence[Thread], **options: Any) -> Searched:
    """Run a :class:`Search`."""
    return Search(threads, **options).run()


def _age(history: Sequence[Message], at: int) -> str:
    newer = len(history) - 1 - at
    return f" ({newer} older than the newest)" if newer else ""
