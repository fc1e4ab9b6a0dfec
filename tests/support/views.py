"""The memory of support.weak_memory: histories of writes, views of threads, states of a search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

# A view: a position in each history, and a set of bits, of known writes and reads of plain places.
View = tuple[tuple[int, ...], int]
#: A write in a history: its value, the view that it releases, whether it is a successful compare-and-swap.
Message = tuple[Any, View, bool]


def joined(a: View, b: View) -> View:
    if a == b:
        return a
    return tuple(map(max, a[0], b[0])), a[1] | b[1]


def raised(view: View, place: int, at: int) -> View:
    """Return the view, raised to at least position ``at`` of a place."""
    seen = view[0]
    return view if seen[place] >= at else ((*seen[:place], at, *seen[place + 1 :]), view[1])


def shifted(view: View, place: int, at: int) -> View:
    """Return the view after a write was inserted at position ``at`` of a place's history."""
    seen = view[0]
    return view if seen[place] < at else ((*seen[:place], seen[place] + 1, *seen[place + 1 :]), view[1])


class ThreadState(NamedTuple):
    pc: int
    registers: tuple[Any, ...]
    view: View
    released: View  # by its last fence
    seen: View  # by relaxed loads, for its next fence
    #: Per place ("release": the view of its last release store; "acquire": the views of its relaxed loads).
    views: tuple[tuple[str, int, View], ...] = ()
    #: Pending loads: register, place, the oldest write that they may read, True if a barrier follows them.
    later: tuple[tuple[int, int, int, bool], ...] = ()


class State(NamedTuple):
    threads: tuple[ThreadState, ...]
    histories: tuple[tuple[Message, ...], ...]
    plain: tuple[Any, ...]
    read: int  # bits of the reads since the last write
    fence: View  # of the fences of order sc

    def with_thread(self, t: int, one: ThreadState) -> State:
        return self._replace(threads=(*self.threads[:t], one, *self.threads[t + 1 :]))

    def with_views(
        self, change: Callable[[View], View], position: Callable[[int, int], int] = lambda _, at: at
    ) -> State:
        """Return the thread with every view changed; ``position(place, at)``: the new start of a pending load."""
        threads = tuple(
            one._replace(
                view=change(one.view),
                released=change(one.released),
                seen=change(one.seen),
                views=one.views and tuple((kind, place, change(view)) for kind, place, view in one.views),
                later=one.later
                and tuple((register, place, position(place, at), met) for register, place, at, met in one.later),
            )
            for one in self.threads
        )
        histories = tuple(tuple((value, change(view), swap) for value, view, swap in one) for one in self.histories)
        return self._replace(threads=threads, histories=histories, fence=change(self.fence))

    def forgetting(self, bits: int) -> State:
        """Return the state without these reads and writes of plain places, as there are newer ones."""
        return self.with_views(lambda view: (view[0], view[1] & ~bits) if view[1] & bits else view)
