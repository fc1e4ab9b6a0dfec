"""Are all ranks here, and do they want the same? They leave cards in a store and read each other's.

The decisions are `meeting`'s; this is the shell that looks into the store, writes and sleeps.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from blinkccl.errors import CommunicationError, PeerLostError, PlanMismatchError
from blinkccl.runtime.card import Card, alive, decode, encode, own_card, same_host
from blinkccl.runtime.meeting import Entry, Meeting
from blinkccl.runtime.store_contract import Pauses, Store

__all__ = ["Card", "decode", "encode", "meet", "own_card", "same_host"]


def meet(
    store: Store,
    prefix: str,
    rank: int,
    size: int,
    card: bytes,
    deadline: float,
    look: Callable[[], None] = lambda: None,
) -> list[bytes]:
    """Every rank's card, once all ``size`` ranks have come.

    Parameters
    ----------
    store
        The same for all ranks. It may hold what earlier meetings left, also under this prefix.
    prefix
        Tells meetings apart that go on at the same time; the same for all ranks of one.
    rank, size
        This rank, of how many.
    card
        Its encoded :class:`Card`.
    deadline
        A reading of ``time.monotonic()``.
    look
        Called between looks into the store; it raises where it sees that a rank can not come.

    Returns
    -------
    list of bytes
        The cards in rank order; the same list on every rank.

    Raises
    ------
    RendezvousTimeout
        If not all have come at the deadline: which are missing, which present.
    PlanMismatchError
        If two living processes claim one rank, or ranks disagree on size, version or protocol. All that are in
        the meeting raise it; the message says both sides.
    PeerLostError
        If a rank's process ended before all had come, and was not started again at once.
    CommunicationError
        If the store is lost.

    Notes
    -----
    Cost: three rounds through the store, each up to 20 ms late; O(N) keys in all, O(N) reads per round at rank 0.
    """
    mine = decode(card)
    if (mine.rank, mine.world_size) != (rank, size):
        raise CommunicationError(f"rank {rank} of {size} has the card of rank {mine.rank} of {mine.world_size}")
    if size == 1:
        return [card]
    meeting = Meeting(rank, size, Entry(secrets.token_hex(8), card), time.monotonic(), alive)
    _write(store, prefix, meeting.opening())
    pauses = Pauses(deadline)
    while True:
        step = meeting.step(_look(store, prefix, meeting.wanted()), time.monotonic())
        _write(store, prefix, step.writes)
        if step.fault is not None:
            if step.fault.lost is not None:
                raise PeerLostError(step.fault.lost, step.fault.text, step.fault.pid)
            raise PlanMismatchError(step.fault.text)
        if step.cards is not None:
            return step.cards
        look()
        if not pauses.pause():
            _write(store, prefix, meeting.leaving(time.monotonic()))
            raise meeting.timeout(_look(store, prefix, meeting.reported()))


def _look(store: Store, prefix: str, keys: tuple[str, ...]) -> dict[str, bytes]:
    found = {key: store.peek(f"{prefix}/{key}") for key in keys}
    return {key: value for key, value in found.items() if value is not None}


def _write(store: Store, prefix: str, writes: tuple[tuple[str, bytes], ...]) -> None:
    for key, value in writes:
        store.set(f"{prefix}/{key}", value)
