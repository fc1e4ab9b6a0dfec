"""When have all ranks met? A state machine without store, clock or processes; `rendezvous.meet` drives it.

Keys, below the meeting's prefix (``s`` is rank 0's nonce, drawn anew for each meeting):

    here/r      rank r's card and nonce: r is there, or has given up (only to say who is missing)
    lead        rank 0's card and nonce: it opens the meeting s
    s/card/r    rank r's card and nonce: r takes part in s
    s/roster    everybody's, by rank 0: the meeting s is complete
    s/fault     why the meeting s cannot be: all who take part raise it

Rank 0 writes ``lead``, reads the cards of s and writes the roster; the others read ``lead``, write their card into
s and read the roster. Three steps, O(N) keys.

A store may hold what earlier runs left. Nothing of it is taken for today's: cards lie below a nonce that nobody
knew before this meeting, and a roster counts only for whom it names with today's nonce. A rank that finds a
roster without itself, or a ``lead`` whose process has ended, goes on waiting for another ``lead``.

A rank whose process has ended may be started again and take its place in the same meeting, as long as this is
not complete, within :data:`GRACE_S`; then it counts as lost. Where a rank is lost, two living processes claim one
rank, or rank 0 and another disagree on the number of ranks, the version or the protocol, whoever sees it writes the
fault, and all in the meeting raise it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from blinkccl.errors import CommunicationError, RendezvousTimeout
from blinkccl.runtime.card import Card, decode

#: Whether a card's process still runs; None: that cannot be seen from here.
Alive = Callable[[Card], bool | None]
_Kind = TypeVar("_Kind")
#: Seconds that a rank whose process has ended has to come again.
GRACE_S = 1.0


class Entry(msgspec.Struct, frozen=True):
    """A rank's card, with the nonce of this meeting: the same process meets again with another nonce.

    ``left`` is when it gave up (``time.monotonic()``, which a host's processes share); None: it has not.
    """

    nonce: str
    card: bytes
    left: float | None = None


class Fault(msgspec.Struct, frozen=True):
    """Why a meeting cannot be; ``lost`` is the rank that is gone and ``pid`` its process, if that is why."""

    text: str
    lost: int | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What follows from what was seen.

    ``writes`` are keys and values to write; then ``cards`` are everybody's if the meeting is complete, and
    ``fault`` says why it cannot be, if it cannot.
    """

    writes: tuple[tuple[str, bytes], ...] = ()
    cards: list[bytes] | None = None
    fault: Fault | None = None


class _FaultFoundError(Exception):
    """Ends a step: a meeting cannot be. Those who look at ``keys`` are to be told; none: one of them told us."""

    def __init__(self, fault: Fault, *keys: str) -> None:
        self.fault = fault
        self.keys = keys
        super().__init__(fault.text)


class Meeting:
    """One rank's part in a meeting.

    Call :meth:`step` with what :meth:`wanted` names until it returns cards.

    Parameters
    ----------
    rank, size
        This rank, of how many (≥ 2).
    own
        Its entry, with a nonce that was never used before.
    now
        When it comes.
    alive
        Tells whether a card's process still runs.
    """

    def __init__(self, rank: int, size: int, own: Entry, now: float, alive: Alive) -> None:
        self._rank = rank
        self._size = size
        self._began = now
        self._own = own
        self._own_card = decode(own.card)
        self._alive = alive
        self._session = own.nonce if rank == 0 else ""
        self._posted = False
        self._joined = {rank}
        self._note = ""
        self._ended: dict[str, float] = {}  # nonces of those whose process has ended, and when that was seen

    def opening(self) -> tuple[tuple[str, bytes], ...]:
        """What to write before the first step."""
        encoded = msgspec.msgpack.encode(self._own)
        here = (f"here/{self._rank}", encoded)
        return (("lead", encoded), here) if self._rank == 0 else (here,)

    def leaving(self, now: float) -> tuple[tuple[str, bytes], ...]:
        """What to write when giving up: those that give up a moment later take us neither for missing nor for lost."""
        left = msgspec.msgpack.encode(Entry(self._own.nonce, self._own.card, now))
        keys = [f"here/{self._rank}"]
        if self._rank == 0:
            keys.append("lead")
        elif self._posted:
            keys.append(self._key(f"card/{self._rank}"))
        return tuple((key, left) for key in keys)

    def wanted(self) -> tuple[str, ...]:
        """The keys to look at for the next step."""
        if not self._session:
            return ("lead",)
        if self._rank == 0:
            return ("lead", self._key("fault"), *(self._key(f"card/{rank}") for rank in range(1, self._size)))
        return ("lead", self._key("fault"), self._key("roster"), self._key(f"card/{self._rank}"))

    def step(self, seen: Mapping[str, bytes], now: float) -> Step:
        """What follows from ``seen``, which holds those keys of :meth:`wanted` under which something is ``now``."""
        try:
            return self._lead(seen, now) if self._rank == 0 else self._follow(seen, now)
        except _FaultFoundError as found:
            encoded = msgspec.msgpack.encode(found.fault)
            return Step(tuple((key, encoded) for key in found.keys), fault=found.fault)

    def reported(self) -> tuple[str, ...]:
        """The keys that tell who is there, to look at once for :meth:`timeout`."""
        return tuple(f"here/{rank}" for rank in range(self._size))

    def timeout(self, seen: Mapping[str, bytes]) -> RendezvousTimeout:
        """The error to raise at the deadline, from what is under :meth:`reported`."""
        present = {rank for rank, key in enumerate(self.reported()) if self._is_here(seen, key)} | {self._rank}
        why = "start them, or look at their output"
        if len(present) == self._size:  # somebody came, and did not do his part
            present = self._joined if self._rank == 0 else present - {0}
            why = "they were there but did not take part in time"
        missing = set(range(self._size)) - present
        text = f"rank {self._rank} of {self._size} waited for them past the deadline; {why}{self._note}"
        return RendezvousTimeout(missing, present, text)

    def _is_here(self, seen: Mapping[str, bytes], key: str) -> bool:
        """Whether the rank of ``key`` came and, as far as one can see, did not end before it gave up."""
        entry = _entry(seen, key)
        if entry is None:
            return False
        return self._alive(decode(entry.card)) is not False or (entry.left or 0.0) > self._began

    def _key(self, name: str) -> str:
        return f"{self._session}/{name}"

    def _lead(self, seen: Mapping[str, bytes], now: float) -> Step:
        self._raise_fault(seen)
        leader = _entry(seen, "lead")
        if leader is not None and leader.nonce != self._own.nonce:
            text = self._claimed_twice(decode(leader.card))
            raise _FaultFoundError(Fault(text), self._key("fault"), f"{leader.nonce}/fault")
        cards = []
        for rank in range(1, self._size):
            entry = _entry(seen, self._key(f"card/{rank}"))
            if entry is not None:
                self._compare(decode(entry.card))
                cards.append(entry)
                self._joined.add(rank)
        # A rank that has ended since may be started again, and must not be in the roster as the one that it was.
        ended = [entry for entry in cards if self._has_ended(entry, now)]
        if len(cards) < self._size - 1 or ended:
            return Step()
        roster = [self._own, *cards]
        return Step(((self._key("roster"), msgspec.msgpack.encode(roster)),), [entry.card for entry in roster])

    def _follow(self, seen: Mapping[str, bytes], now: float) -> Step:
        leader = _entry(seen, "lead")
        roster = _roster(seen, self._key("roster"))
        if roster is not None and self._is_in(roster):
            return Step(cards=[entry.card for entry in roster])
        self._raise_fault(seen)  # of the meeting that we took part in till now, whoever leads now
        if leader is None:
            return Step()
        if leader.nonce != self._session:  # one that has ended before we came is an earlier run's
            return Step() if self._alive(decode(leader.card)) is False else self._join(leader)
        if self._has_ended(leader, now):
            return Step()
        if roster is not None:
            self._note = self._left_out(roster)
            return Step()
        return self._take_place(seen)

    def _join(self, leader: Entry) -> Step:
        """Another ``lead`` than before: what is below it is to be looked at next."""
        self._session, self._posted = leader.nonce, False
        self._compare(decode(leader.card))
        return Step()

    def _is_in(self, roster: list[Entry]) -> bool:
        return len(roster) == self._size and roster[self._rank].nonce == self._own.nonce

    def _left_out(self, roster: list[Entry]) -> str:
        holder = decode(roster[self._rank].card) if self._rank < len(roster) else "nobody"
        return (
            f". The last meeting here was complete without this process: {holder} was its rank {self._rank}. Is a "
            "rank started twice, or the store another job's?"
        )

    def _take_place(self, seen: Mapping[str, bytes]) -> Step:
        key = self._key(f"card/{self._rank}")
        holder = _entry(seen, key)
        if holder is not None and holder.nonce == self._own.nonce:
            self._posted = True
            return Step()
        if holder is not None:
            other = decode(holder.card)
            again = (other.host, other.pid, other.start) == (
                self._own_card.host,
                self._own_card.pid,
                self._own_card.start,
            )
            if self._posted or not (again or self._alive(other) is False):
                raise _FaultFoundError(Fault(self._claimed_twice(other)), self._key("fault"))
        return Step(((key, msgspec.msgpack.encode(self._own)),))

    def _compare(self, other: Card) -> None:
        mine = self._own_card
        for what in ("world_size", "version", "protocol"):
            ours, theirs = getattr(mine, what), getattr(other, what)
            if ours != theirs:
                text = (
                    f"ranks disagree on {what}: rank {mine.rank} ({mine}) has {ours}, rank {other.rank} ({other}) has "
                    f"{theirs}; start all ranks of the job with the same, and jobs side by side in stores of their own"
                )
                raise _FaultFoundError(Fault(text), self._key("fault"))

    def _claimed_twice(self, other: Card) -> str:
        return (
            f"rank {self._rank} is claimed by {self._own_card} and by {other}; expected one process per rank: look at "
            "BLINK_RANK or what the launcher sets, and give jobs side by side stores of their own"
        )

    def _raise_fault(self, seen: Mapping[str, bytes]) -> None:
        key = self._key("fault")
        data = seen.get(key)
        if data is not None:
            raise _FaultFoundError(_read(data, Fault, key))

    def _has_ended(self, entry: Entry, now: float) -> bool:
        """Whether its process has; a fault if that did not give up, and nobody has taken its place for too long."""
        card = decode(entry.card)
        if self._alive(card) is not False:
            return False
        if entry.left is not None:
            return True
        if now - self._ended.setdefault(entry.nonce, now) >= GRACE_S:
            fault = Fault("its process ended before all ranks had come", card.rank, card.pid)
            raise _FaultFoundError(fault, self._key("fault"))
        return True


def _entry(seen: Mapping[str, bytes], key: str) -> Entry | None:
    data = seen.get(key)
    return None if data is None else _read(data, Entry, key)


def _roster(seen: Mapping[str, bytes], key: str) -> list[Entry] | None:
    data = seen.get(key)
    return None if data is None else _read(data, list[Entry], key)


def _read(data: bytes, kind: type[_Kind], key: str) -> _Kind:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CommunicationError(
            f"key {key!r} of the store holds nothing of ours: {error}; give the job a store of its own in BLINK_STORE"
        ) from None
