"""How do all ranks of one host get the same memory? Rank 0 hands descriptors over an abstract Unix socket.

Rank 0 makes the segment and listens at a name that nobody can guess; the others find it in the store, connect,
prove that they know the job's token and send the descriptor of their heap. When all are there, rank 0 answers each
with the segment and everybody's heaps, and waits until each has confirmed. No file ever names the memory, so
nothing is left behind when ranks die.

Abstract names can be seen by every user in the network namespace: whoever is of another user, does not know the
token, sends something else or nothing, is sent away, and costs the ranks no time. A rank, too, trusts only a
listener of its own user.

Linux only. `handover_host` is rank 0's side; this file has the others'.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from blinkccl.errors import CommunicationError, PeerLostError, RendezvousTimeout, UnsupportedError
from blinkccl.runtime.descriptors import Descriptors, close_all, credentials, decoded, packet_socket, receive
from blinkccl.runtime.door import GOT, LATE, Answer, Door, Hello, pack
from blinkccl.runtime.handover_host import Host
from blinkccl.runtime.store_contract import Pauses, Store

__all__ = ["MAX_RANKS", "Descriptors", "share"]

#: A packet carries 253 descriptors: the segment's, and one heap's per rank.
MAX_RANKS = 250
#: How long a rank that gave up may take to say why.
_SAYS_WHY_S = 0.5


def share(
    store: Store,
    prefix: str,
    rank: int,
    size: int,
    make_segment: Callable[[], int],
    own_heap_fd: int | None,
    deadline: float,
    look: Callable[[], None] = lambda: None,
) -> Descriptors:
    """Hands rank 0's segment and everybody's heap to all ranks.

    Parameters
    ----------
    store, prefix
        As for :func:`blinkccl.runtime.rendezvous.meet`; the same for all ranks.
    rank, size
        This rank, of at most 250, all on one host.
    make_segment
        Called by rank 0 only, when all are there; returns the descriptor of the new segment, which is then ours.
    own_heap_fd
        This rank's heap, or None; stays the caller's, also where this raises.
    deadline
        A reading of ``time.monotonic()``.
    look
        Called some times a second by ranks that wait; it raises where it sees that a rank is gone.

    Raises
    ------
    UnsupportedError
        If this is not Linux, or there are more than 250 ranks.
    RendezvousTimeout
        If ranks have not come at the deadline.
    PeerLostError
        If a rank came and was lost.
    CommunicationError
        If rank 0 refuses this rank, or cannot make the segment, or descriptors get lost on the way.

    Notes
    -----
    Cost: three packets per rank; N + 1 descriptors per rank. Every descriptor is closed where this raises.
    """
    if not sys.platform.startswith("linux"):
        raise UnsupportedError(f"shared memory between ranks needs Linux (memfd, abstract sockets), got {sys.platform}")
    if not 1 <= size <= MAX_RANKS:
        raise UnsupportedError(f"one host's ranks share memory up to {MAX_RANKS} of them, got {size}")
    if size == 1:
        return Descriptors(make_segment(), [own_heap_fd], 0)
    if rank == 0:
        with Host(store, prefix, size, own_heap_fd, deadline, look) as host:
            return host.run(make_segment)
    return _Guest(store, prefix, rank, size, own_heap_fd, deadline, look).run()


class _Guest:
    """The side of any other rank."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        rank: int,
        size: int,
        own_heap_fd: int | None,
        deadline: float,
        look: Callable[[], None],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._rank = rank
        self._size = size
        self._own_heap_fd = own_heap_fd
        self._deadline = deadline
        self._look = look
        self._entered: Door | None = None
        self._notes: dict[str, None] = {}  # what went wrong at the door, each thing once

    def run(self) -> Descriptors:
        self._store.set(f"{self._prefix}/at/{self._rank}", b"")
        pauses = Pauses(self._deadline)
        while True:
            door = self._door()
            if door is not None:
                with packet_socket() as connection:
                    got = self._ask(connection, door) if self._connect(connection, door) else None
                if got is not None:
                    return got
            self._look()
            if not pauses.pause():
                raise self._timeout()

    def _door(self) -> Door | None:
        packet = self._store.peek(f"{self._prefix}/door")
        return None if packet is None else decoded(packet, Door)

    def _connect(self, connection: socket.socket, door: Door) -> bool:
        """False if nobody of our user listens there yet, or any more: an earlier run may have left the door."""
        connection.settimeout(max(0.001, self._deadline - time.monotonic()))
        try:
            connection.connect(f"\0{door.name}")
        except ConnectionRefusedError:
            if door == self._entered:
                raise self._hung_up(door) from None
            self._notes["nobody listens at the door that it left in the store"] = None
            return False
        except BlockingIOError:  # too many are about to come in
            return False
        _, uid, _ = credentials(connection)
        if uid != os.geteuid():
            self._notes[f"at its door listens user {uid}, expected {os.geteuid()}"] = None
            return False
        self._entered = door
        return True

    def _ask(self, connection: socket.socket, door: Door) -> Descriptors | None:
        """What rank 0 answers; None if it hung up before it had heard us out, so that we may try again."""
        own = [] if self._own_heap_fd is None else [self._own_heap_fd]
        try:
            socket.send_fds(connection, [pack(Hello(door.token, self._rank, bool(own)))], own)
            packet, descriptors = receive(connection, self._size + 1)
        except TimeoutError:
            with suppress(OSError):
                connection.send(LATE)
            raise self._timeout() from None
        except OSError as error:
            # ETOOMANYREFS: this user has as many descriptors under way as it may have open.
            if isinstance(error, ConnectionError) or error.errno == errno.ETOOMANYREFS:
                return None
            raise
        except CommunicationError as error:
            with suppress(OSError):
                connection.send(str(error).encode())
            raise
        try:
            return self._taken(connection, packet, descriptors)
        except BaseException:
            close_all(descriptors)
            raise

    def _taken(self, connection: socket.socket, packet: bytes, descriptors: list[int]) -> Descriptors | None:
        if not packet:
            return None
        answer = decoded(packet, Answer)
        if answer.what == "missing":
            raise RendezvousTimeout(answer.missing, answer.present, answer.reason)
        if answer.what == "lost":
            raise PeerLostError(answer.lost, answer.reason, answer.pid)
        if answer.what != "shared":
            raise CommunicationError(f"rank 0 {answer.what} the handover to rank {self._rank}: {answer.reason}")
        expected = 1 + sum(answer.heaps)
        if len(answer.heaps) != self._size or len(descriptors) != expected:
            raise CommunicationError(f"rank {self._rank}: expected {expected} descriptors, got {len(descriptors)}")
        try:
            connection.send(GOT)
        except OSError:
            close_all(descriptors)
            return None  # rank 0 has given up meanwhile; at the door we shall hear why
        rest = iter(descriptors[1:])
        heaps = [next(rest) if there else None for there in answer.heaps]
        own = heaps[self._rank]
        if own is not None:  # a copy of what we gave
            os.close(own)
            heaps[self._rank] = self._own_heap_fd
        return Descriptors(descriptors[0], heaps, self._rank)

    def _hung_up(self, door: Door) -> PeerLostError:
        """Rank 0 has given up, and is about to say why, or is lost."""
        pauses = Pauses(min(self._deadline, time.monotonic() + _SAYS_WHY_S))
        while pauses.pause():
            self._look()
        return PeerLostError(0, "it hung up during the handover of shared memory", door.pid)

    def _timeout(self) -> RendezvousTimeout:
        there = [rank for rank in range(1, self._size) if self._store.peek(f"{self._prefix}/at/{rank}") is not None]
        missing = [rank for rank in range(1, self._size) if rank not in there]
        waited = f"rank {self._rank} waited past the deadline for rank 0 to hand over shared memory"
        return RendezvousTimeout(missing or [0], there, "; ".join([waited, *self._notes]))
