"""Failures among ranks on several hosts: every rank of a group gets the same message with the first cause.

Every rank gets a cause within half a second. The connections of the bootstrap stay open, and a thread of each rank runs
a round of it a few times a second. So rank 0 notices a closed connection and reports it, and every rank notices the
loss of rank 0. In each round a rank also sends its current call. This detects ranks that make different calls, and
names the missing ranks after a timeout.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

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
from blinkccl.runtime.peer_info import PeerInfo

#: Seconds between two rounds.
INTERVAL_S = 0.2
#: Seconds that a rank waits for a better cause after its call has failed, or for the others' confirmation when it
#: leaves.
VERDICT_S = 1.5
#: Age in seconds of the ranks' states from which they prove nothing.
STALE_S = 1.0
_LATE = "the deadline passed: "


class Word(msgspec.Struct, frozen=True):
    """The state that a rank sends: the number of calls begun, the last call, and whether it leaves."""

    calls: int = 0
    call: str = ""
    leaves: bool = False
    #: Its argument of :meth:`Monitor.agree`, and the number of calls of that.
    payload: bytes = b""
    agreements: int = 0


_WORDS = msgspec.msgpack.Decoder(Word)


def lost(peer: PeerInfo, when: str = "") -> PeerLostError:
    """The error for a rank whose connection has broken."""
    return PeerLostError(peer.rank, f"its process ended, or its host {peer.hostname} is gone{when}", peer.pid)


class Monitor:
    """One rank's monitor of its group; it calls ``on_failure`` once, in its own thread, with the cause.

    The monitor closes ``bootstrap``, whose first round is complete.
    """

    def __init__(self, bootstrap: Bootstrap, rank: int, on_failure: Callable[[BlinkError], None]) -> None:
        self.own = 0  # calls of the group itself; messages number the user's calls
        self.cause: BlinkError | None = None
        #: Ranks that have left in order; from then on the group is not monitored any more.
        self.left: frozenset[int] = frozenset()
        self._bootstrap, self._rank, self._on_failure = bootstrap, rank, on_failure
        self._word, self._call = Word(), (0, "")
        self._words: Sequence[Word] = [Word()] * len(bootstrap.peers)
        self._met_at = time.monotonic()
        self._agreements, self._agreed = 0, dict[int, list[bytes]]()
        self._told: BlinkError | None = None
        self._hurry, self._met = threading.Event(), threading.Condition()
        self._ended = False
        bootstrap.stay(self._look)
        self._thread = threading.Thread(target=self._watch, name="blink-monitor", daemon=True)
        self._thread.start()

    def begin(self, calls: int, call: str) -> None:
        """Note that this rank is in its ``calls``-th call."""
        self._call = calls, call

    def check(self) -> None:
        """Raise the cause if there is one."""
        if self.cause is not None:
            raise self.cause

    def agree(self, mine: bytes, deadline: float) -> list[bytes]:
        """Return the bytes of all ranks, by rank; all ranks call it. DeadlineError names the missing ranks."""
        number = self._word.agreements + 1
        self._word = msgspec.structs.replace(self._word, payload=mine, agreements=number)
        self._hurry.set()
        with self._met:
            left_s = max(0.0, deadline - time.monotonic())
            self._met.wait_for(lambda: self._ended or number in self._agreed, left_s)
            agreed = self._agreed.pop(number, None)
        if agreed is not None:
            return agreed
        self.check()
        present = {self._rank, *(rank for rank, word in enumerate(self._words) if word.agreements >= number)}
        missing = set(range(len(self._words))) - present
        raise RendezvousTimeout(missing, present, f"rank {self._rank} waited for them while the group was made")

    def behind(self) -> list[int]:
        """The ranks that had not begun this rank's call when they last sent their state."""
        return [rank for rank, word in enumerate(self._words) if word.calls < self._call[0] and rank != self._rank]

    def silent_s(self) -> float:
        """Seconds since all ranks last answered; 0 if less than :data:`STALE_S`."""
        age_s = time.monotonic() - self._met_at
        return age_s if age_s > STALE_S else 0.0

    def settle(self, error: BlinkError, tell: bool) -> BlinkError:
        """Return the first cause of a failure that this rank met as ``error``; with ``tell`` report it to the others.

        A broken connection may be the consequence of another rank's end, so this waits for a better cause.
        """
        if tell:
            self._told = error
            self._hurry.set()
        with self._met:
            self._met.wait_for(lambda: self._ended, VERDICT_S)
        return error if self.cause is None else self.cause

    def close(self) -> None:
        """Leave in order: on return the others know it, unless they take too long."""
        self._word = msgspec.structs.replace(self._word, leaves=True)
        self._hurry.set()
        self._thread.join(VERDICT_S)
        self._ended = True
        if not self._thread.is_alive():
            self._bootstrap.close()

    def _look(self) -> None:
        """Raise this rank's own failure; called while the bootstrap waits, in its thread."""
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
            # Every rank detects its own timeout, but here the others are to get the message too.
            report = CommunicationError(f"{_LATE}{error}") if isinstance(error, DeadlineError) else error
            first = self._bootstrap.fail(report)
            cause = first if isinstance(first, BlinkError) and first is not report else error
            late = str(cause).partition(_LATE)[2]
            if isinstance(cause, PeerLostError):
                cause = lost(self._bootstrap.peers[cause.rank])
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
            self._words, self._met_at = [_WORDS.decode(word) for word in words], time.monotonic()
            number = min(word.agreements for word in self._words)
            if number > self._agreements:  # no rank can be ahead: it needs this round to continue
                self._agreements, self._agreed[number] = number, [word.payload for word in self._words]
            self._met.notify_all()
        self.left = frozenset(rank for rank, word in enumerate(self._words) if word.leaves)
        self._check_calls()

    def _check_calls(self) -> None:
        """Raise PlanMismatchError, with the same text on all ranks, if two ranks differ in a call of one number."""
        first: dict[int, int] = {}
        for rank, word in enumerate(self._words):
            other = first.setdefault(word.calls, rank)
            if word.call != self._words[other].call:
                calls = f"rank {other} calls {self._words[other].call}, rank {rank} calls {word.call}"
                reason = "all ranks make the same calls in the same order"
                raise PlanMismatchError(f"ranks disagree on call {word.calls - self.own}: {calls}; {reason}")
