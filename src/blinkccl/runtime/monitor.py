"""Failures among ranks on several hosts: every rank of a group learns the first cause, with the same words.

*Before the network is made* the first rank of each host listens at the address that the network will take, and connects
to those of all other hosts (:func:`check_paths`). A library would try that too, but would wait long and name nobody.

*While the group lives* (:class:`Monitor`) a cause is known everywhere within half a second.
The connections of the bootstrap stay open, and a thread of each rank goes on meeting the others there a few times a
second. So rank 0 sees who hangs up and tells everybody, and everybody sees it if rank 0 does. With each word a rank
says which call it is in: ranks that call different things are found out, and a deadline can say who has not come.
"""

from __future__ import annotations

import errno
import math
import os
import platform
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import msgspec

from blinkccl.errors import (
    BlinkError,
    CommunicationError,
    DeadlineError,
    PeerLostError,
    PlanMismatchError,
    RendezvousTimeout,
)
from blinkccl.runtime.bootstrap import Bootstrap
from blinkccl.runtime.hierarchy import Hosts

#: Between two meetings.
INTERVAL_S = 0.2
#: How long a rank whose call has failed waits to hear of a better cause, and one that leaves for the others to know.
VERDICT_S = 1.5
_LATE = "the deadline passed: "


class Word(msgspec.Struct, frozen=True):
    """What a rank says of itself: how many calls it has begun, the last of them, and whether it leaves."""

    calls: int = 0
    call: str = ""
    leaves: bool = False
    #: What it gave to :meth:`Monitor.agree`, and how often it has been called.
    given: bytes = b""
    agreements: int = 0


class Monitor:
    """One rank's watch over its group; ``on_failure`` is called once, in the monitor's thread, with the cause.

    The monitor closes ``bootstrap``, whose first round is over.
    """

    def __init__(self, bootstrap: Bootstrap, rank: int, on_failure: Callable[[BlinkError], None]) -> None:
        self.cause: BlinkError | None = None
        #: Ranks that have left in order; from then on nobody is watched any more.
        self.left: frozenset[int] = frozenset()
        self._bootstrap, self._rank, self._on_failure = bootstrap, rank, on_failure
        self._word, self._call = Word(), (0, "")
        self._words: Sequence[Word] = [Word()] * len(bootstrap.peers)
        self._agreements, self._agreed = 0, dict[int, list[bytes]]()
        self._told: BlinkError | None = None
        self._hurry, self._met = threading.Event(), threading.Condition()
        self._ended = False
        bootstrap.stay(self._look)
        self._thread = threading.Thread(target=self._watch, name="blink-monitor", daemon=True)
        self._thread.start()

    def begin(self, calls: int, call: str) -> None:
        """This rank is in its ``calls``-th call."""
        self._call = calls, call

    def check(self) -> None:
        """Raises the cause if there is one."""
        if self.cause is not None:
            raise self.cause

    def agree(self, mine: bytes, deadline: float) -> list[bytes]:
        """Everybody's bytes, by rank; all ranks call it. DeadlineError, with who did not, or the cause of a failure."""
        number = self._word.agreements + 1
        self._word = msgspec.structs.replace(self._word, given=mine, agreements=number)
        self._hurry.set()
        with self._met:
            left_s = max(0.0, deadline - time.monotonic())
            self._met.wait_for(lambda: self._ended or number in self._agreed, left_s)
            agreed = self._agreed.pop(number, None)
        if agreed is not None:
            return agreed
        self.check()
        here = {self._rank, *(rank for rank, word in enumerate(self._words) if word.agreements >= number)}
        missing = set(range(len(self._words))) - here
        raise RendezvousTimeout(missing, here, f"rank {self._rank} waited for them while the group was made")

    def behind(self) -> list[int]:
        """The ranks that, by their last word, have not begun this rank's call."""
        return [rank for rank, word in enumerate(self._words) if word.calls < self._call[0] and rank != self._rank]

    def settle(self, error: BlinkError, tell: bool) -> BlinkError:
        """The first cause of a failure that this rank met as ``error``; with ``tell`` the others hear of it.

        What a broken connection says may be what others' ends have caused: it waits for a better word.
        """
        if tell:
            self._told = error
            self._hurry.set()
        with self._met:
            self._met.wait_for(lambda: self._ended, VERDICT_S)
        return error if self.cause is None else self.cause

    def close(self) -> None:
        """Leaves in order: the others know it when this returns, unless they take too long."""
        self._word = msgspec.structs.replace(self._word, leaves=True)
        self._hurry.set()
        self._thread.join(VERDICT_S)
        self._ended = True
        if not self._thread.is_alive():
            self._bootstrap.close()

    def _look(self) -> None:
        """Called while the bootstrap waits, in its thread."""
        if self._told is not None:
            raise self._told

    def _watch(self) -> None:
        try:
            while not self.left:
                self._hurry.wait(INTERVAL_S)
                self._hurry.clear()
                self._look()
                self._meet()
        except BlinkError as error:
            # A deadline is everybody's own, but here the others shall hear of it, too.
            told = CommunicationError(f"{_LATE}{error}") if isinstance(error, DeadlineError) else error
            first = self._bootstrap.fail(told)
            cause = first if isinstance(first, BlinkError) and first is not told else error
            late = str(cause).partition(_LATE)[2]
            if isinstance(cause, PeerLostError):
                pid = self._bootstrap.peers[cause.rank].pid
                cause = PeerLostError(cause.rank, "its process ended, or its host is gone", pid)
            self.cause = DeadlineError(late) if late else cause
            self._on_failure(self.cause)
        finally:
            self._ended = True
            with self._met:
                self._met.notify_all()

    def _meet(self) -> None:
        calls, call = self._call
        mine = msgspec.structs.replace(self._word, calls=calls, call=call)
        words, _ = self._bootstrap.all_gather(msgspec.msgpack.encode(mine), math.inf)
        with self._met:
            self._words = [_WORDS.decode(word) for word in words]
            number = min(word.agreements for word in self._words)
            if number > self._agreements:  # nobody can be further: this is the meeting that lets them go on
                self._agreements, self._agreed[number] = number, [word.given for word in self._words]
            self._met.notify_all()
        self.left = frozenset(rank for rank, word in enumerate(self._words) if word.leaves)
        self._check_calls()

    def _check_calls(self) -> None:
        """PlanMismatchError, with the same words on all ranks, where two are in different calls of one number."""
        first: dict[int, int] = {}
        for rank, word in enumerate(self._words):
            other = first.setdefault(word.calls, rank)
            if word.call != self._words[other].call:
                raise PlanMismatchError(
                    f"ranks disagree on call {word.calls}: rank {other} calls {self._words[other].call}, rank {rank} "
                    f"calls {word.call}; all ranks make the same calls in the same order"
                )


# ---- before the network is made

#: So long a connection is waited for, but no longer than a third of the deadline.
REACH_S = 5.0
_SHOWN = 4


class RankPlace(msgspec.Struct, frozen=True):
    """Where a rank listens; ``problem`` is why it cannot."""

    host: str
    address: str
    port: int = 0
    problem: str = ""


def check_paths(hosts: Hosts, rank: int, own: str, timeout_s: float, exchange: Callable[[bytes], list[bytes]]) -> None:
    """All ranks call it; ``own`` is this rank's address, and ``exchange`` gives everybody everybody's bytes.

    CommunicationError, on all ranks, that names pairs of ranks between whose hosts there is no path.
    """
    firsts = [members[0] for members in hosts.members]
    with ExitStack() as undo:
        place = RankPlace(platform.node(), own)
        if rank in firsts:
            try:
                family, *_ = socket.getaddrinfo(own, 0, type=socket.SOCK_STREAM)[0]
                listener = undo.enter_context(socket.create_server((own, 0), family=family, backlog=len(firsts)))
                address, port, *_ = listener.getsockname()
                place = msgspec.structs.replace(place, address=address, port=port)
            except OSError as error:
                place = msgspec.structs.replace(place, problem=_reason(error.errno))
        places = [_PLACES.decode(word) for word in exchange(_ENCODER.encode(place))]
        others = {} if rank not in firsts else {r: places[r] for r in firsts if r != rank and not places[r].problem}
        problems = _unreached(others, min(REACH_S, timeout_s / 3))
        found = [_PROBLEMS.decode(word) for word in exchange(_ENCODER.encode(problems))]  # nobody closes before
    said = [f"{_who(r, places[r])} cannot listen there: {places[r].problem}" for r in firsts if places[r].problem]
    for r, unreached in enumerate(found):
        said += [
            f"{_who(r, places[r])} does not reach {_who(peer, places[peer])}: {why}" for peer, why in unreached.items()
        ]
    if not said:
        return
    more = f"; and {len(said) - _SHOWN} more" if len(said) > _SHOWN else ""
    raise CommunicationError(
        f"{'; '.join(said[:_SHOWN])}{more}. Each two hosts need a path between these addresses, at all ports: open the "
        "firewall, or name the interface that leads to all hosts, GLOO_SOCKET_IFNAME=… on each"
    )


def _who(rank: int, place: RankPlace) -> str:
    return f"rank {rank} ({place.address} on {place.host})"


def _unreached(places: Mapping[int, RankPlace], timeout_s: float) -> dict[int, str]:
    """Which of these cannot be connected to, and why."""
    failed: dict[int, str] = {}
    end = time.monotonic() + timeout_s
    with ExitStack() as undo:
        selector = undo.enter_context(selectors.DefaultSelector())
        for rank, place in places.items():
            family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
            connection = undo.enter_context(socket.socket(family, socket.SOCK_STREAM))
            connection.setblocking(False)
            code = connection.connect_ex((place.address, place.port))
            if code not in (0, errno.EINPROGRESS):
                failed[rank] = _reason(code)
            elif code:
                selector.register(connection, selectors.EVENT_WRITE, rank)
        while selector.get_map() and (left_s := end - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                assert isinstance(key.fileobj, socket.socket)
                if code := key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    failed[key.data] = _reason(code)
                selector.unregister(key.fileobj)
        for key in selector.get_map().values():
            failed[key.data] = f"no answer within {timeout_s:.3g} s"
    return failed


def _reason(code: int | None) -> str:
    return os.strerror(code) if code else "unknown address"


_WORDS = msgspec.msgpack.Decoder(Word)
_ENCODER = msgspec.msgpack.Encoder()
_PLACES, _PROBLEMS = msgspec.msgpack.Decoder(RankPlace), msgspec.msgpack.Decoder(dict[int, str])
