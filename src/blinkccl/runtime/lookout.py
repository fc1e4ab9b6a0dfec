"""Can all ranks still come? For those that wait for others while a group is made, before ranks hold locks.

A rank that ends without a word is seen by its process; one that gives up says why in the store, so that all hear of
the same cause, and not of those whom the first one's end took with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256

import msgspec

from blinkccl.errors import CommunicationError, DeadlineError, PeerLostError
from blinkccl.runtime.card import Card, alive, encode
from blinkccl.runtime.store_contract import Store

#: How often it looks.
LOOK_S = 0.1


class Said(msgspec.Struct, frozen=True):
    """Why a rank gave up: because ``rank`` is gone (``lost``), or because that is the one, and cannot take part."""

    rank: int
    pid: int | None
    text: str
    lost: bool


class Lookout:
    """Looks for ranks that are gone; in a ``with`` it also says why this rank gives up, if it does.

    Parameters
    ----------
    store, prefix
        Where ranks say why they give up: the same for all ranks of the group.
    rank
        This rank.
    known
        The cards of all ranks in the group's order, if they are known from another group; else empty.
    """

    def __init__(self, store: Store, prefix: str, rank: int, known: Sequence[Card]) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._cards: tuple[Card, ...] = ()
        self._key = ""
        self._looked = 0.0
        if known:
            self.know(known)

    def know(self, cards: Sequence[Card]) -> None:
        """From now on the ranks' cards are known."""
        self._cards = tuple(cards)
        if not self._key:
            # Nobody else's key, nor an earlier run's: the cards name processes.
            self._key = f"{self._prefix}/{sha256(b''.join(map(encode, cards))).hexdigest()[:32]}"

    def look(self) -> None:
        """Raises if a rank cannot come any more; looks only now and then.

        Raises
        ------
        PeerLostError
            If a rank's process has ended, or another rank said so.
        CommunicationError
            If a rank said that it cannot take part.
        """
        now = time.monotonic()
        if now < self._looked + LOOK_S:
            return
        self._looked = now
        ended = [rank for rank, card in enumerate(self._cards) if rank != self._rank and alive(card) is False]
        self.raise_said()  # whoever has ended by now has said why, if it could
        if ended:
            lost = PeerLostError(ended[0], "its process ended while the group was made", self._cards[ended[0]].pid)
            self._say(lost)
            raise lost

    def raise_said(self) -> None:
        """As :meth:`look`, but only what ranks have said."""
        data = self._store.peek(self._key) if self._key else None
        if data is None:
            return
        try:
            said = msgspec.msgpack.decode(data, type=Said)
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise CommunicationError(f"key {self._key!r} of the store holds nothing of ours: {error}") from None
        if said.lost:
            raise PeerLostError(said.rank, said.text, said.pid)
        raise CommunicationError(f"rank {said.rank} (process {said.pid}) could not join the group: {said.text}")

    def __enter__(self) -> Lookout:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and self._key:
            self._say(error)

    def _say(self, error: BaseException) -> None:
        """To be called before anything that others could take for the cause."""
        if isinstance(error, DeadlineError):
            return  # deadlines are everybody's own
        if isinstance(error, PeerLostError):
            said = Said(error.rank, error.pid, error.message, True)
        else:
            said = Said(self._rank, os.getpid(), f"{type(error).__name__}: {error}"[:1000], False)
        with suppress(CommunicationError):
            if self._store.peek(self._key) is None:
                self._store.set(self._key, msgspec.msgpack.encode(said))
