"""How does rank 0 hand descriptors over? It listens at its door, lets ranks in, and answers when all are there.

Who may come in is the :class:`~blinkccl.runtime.door.Doorkeeper`'s to say; this moves packets, and sends away
whoever says nothing for too long.
"""

from __future__ import annotations

import errno
import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import NoReturn

from blinkccl.errors import CommunicationError, PeerLostError, RendezvousTimeout
from blinkccl.runtime.descriptors import Descriptors, close_all, credentials, packet_socket, receive
from blinkccl.runtime.door import GOT, LATE, MAX_PACKET_BYTES, Answer, Door, Doorkeeper, pack
from blinkccl.runtime.store_contract import Pauses, Store

#: How long a connection may take to say its hello, and how many may be about to at a time.
HELLO_S = 1.0
#: How often it looks whether ranks that have not come yet still live.
_LOOK_S = 0.1
MAX_UNHEARD = 64


class Host:
    """Rank 0, which listens, gathers, answers and waits until all have confirmed; use it in a ``with``."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        size: int,
        own_heap_fd: int | None,
        deadline: float,
        look: Callable[[], None],
    ) -> None:
        self._size = size
        self._deadline = deadline
        self._look = look
        self._looked = time.monotonic()
        self._keeper = Doorkeeper(secrets.token_hex(16), os.geteuid(), size)
        self._heaps: list[int | None] = [own_heap_fd] + [None] * (size - 1)
        self._ranks: dict[int, socket.socket] = {}
        self._unheard: dict[socket.socket, tuple[float, int]] = {}  # by when it has to speak, and its process
        self._turned_away: list[str] = []
        self._stack = ExitStack()
        self._listener = self._stack.enter_context(packet_socket())
        self._selector = self._stack.enter_context(selectors.DefaultSelector())
        name = f"blink-{secrets.token_hex(16)}"
        self._listener.bind(f"\0{name}")
        self._listener.listen(size + MAX_UNHEARD)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            store.set(f"{prefix}/door", pack(Door(name, self._keeper.token, os.getpid())))
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Host:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Where this fails, the ranks that are inside hear why; connections end either way."""
        if error is not None:
            self._tell(error)
            close_all(self._heaps[1:])
        for connection in [*self._unheard, *self._ranks.values()]:
            connection.close()
        self._stack.close()

    def run(self, make_segment: Callable[[], int]) -> Descriptors:
        """The whole handover; raises as :func:`blinkccl.runtime.handover.share`."""
        while self._keeper.missing():
            self._await_ranks()
        segment = make_segment()
        try:
            self._hand_over(segment)
            for rank, connection in self._ranks.items():
                self._confirm(rank, connection)
        except BaseException:
            close_all([segment])
            raise
        return Descriptors(segment, list(self._heaps), 0)

    def _await_ranks(self) -> None:
        """Whatever happens next: somebody connects, speaks, hangs up, or is silent for too long."""
        now = time.monotonic()
        if now >= self._deadline:
            raise self._timeout()
        if now >= self._looked + _LOOK_S:
            self._look()
            self._looked = now
        next_s = min([self._deadline, self._looked + _LOOK_S, *(by for by, _ in self._unheard.values())]) - now
        for key, _ in self._selector.select(max(0.0, next_s)):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if connection is self._listener:
                self._accept()
            elif connection in self._unheard:
                self._hear(connection)
            elif connection in self._ranks.values():  # and not turned away in this very round
                self._lost(connection)
        now = time.monotonic()
        for connection in [c for c, (by, _) in self._unheard.items() if by <= now]:
            self._hang_up(connection, f"process {self._unheard[connection][1]} said nothing for {HELLO_S} s")

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone again, or too many files are open
            time.sleep(0.001)
            return
        pid, uid, _ = credentials(connection)
        self._unheard[connection] = time.monotonic() + HELLO_S, pid
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ)
        reason = self._keeper.stranger(uid, pid)
        if reason is not None:
            self._turn_away(connection, reason)
        elif len(self._unheard) > MAX_UNHEARD:
            self._hang_up(next(iter(self._unheard)), "too many connections that say nothing")

    def _hear(self, connection: socket.socket) -> None:
        try:
            packet, descriptors = receive(connection, 1)
        except (OSError, CommunicationError) as error:
            self._turn_away(connection, str(error))
            return
        pid = self._unheard[connection][1]
        if not packet:
            self._hang_up(connection, f"process {pid} hung up")
            return
        hello = self._keeper.admit(packet, len(descriptors), pid)
        if isinstance(hello, str):
            close_all(descriptors)
            self._turn_away(connection, hello)
            return
        del self._unheard[connection]  # stays with the selector, which will tell if it hangs up
        self._ranks[hello.rank] = connection
        self._heaps[hello.rank] = descriptors[0] if descriptors else None

    def _turn_away(self, connection: socket.socket, reason: str) -> None:
        """Says no: this is no rank, or not the one that is expected."""
        with suppress(OSError):
            connection.send(pack(Answer("refused", reason)))
        self._hang_up(connection, reason)

    def _hang_up(self, connection: socket.socket, reason: str) -> None:
        """Says nothing: a rank that was only slow tries again."""
        del self._unheard[connection]
        self._selector.unregister(connection)
        connection.close()
        if len(self._turned_away) < 8:
            self._turned_away.append(reason)

    def _lost(self, connection: socket.socket) -> NoReturn:
        """A rank that is inside has nothing to say before it is answered, but that it goes."""
        packet = b""
        with suppress(OSError):
            packet = connection.recv(MAX_PACKET_BYTES)
        if packet == LATE:
            raise self._timeout()
        rank = next(rank for rank, c in self._ranks.items() if c is connection)
        raise PeerLostError(rank, "it hung up during the handover of shared memory", self._keeper.inside[rank])

    def _hand_over(self, segment: int) -> None:
        answer = pack(Answer("shared", heaps=tuple(fd is not None for fd in self._heaps)))
        descriptors = [segment, *(fd for fd in self._heaps if fd is not None)]
        for rank, connection in self._ranks.items():
            pauses = Pauses(self._deadline)
            while not self._sent(rank, connection, answer, descriptors):
                if not pauses.pause():
                    raise RendezvousTimeout([rank], [], "it did not take its descriptors in time")

    def _sent(self, rank: int, connection: socket.socket, answer: bytes, descriptors: list[int]) -> bool:
        try:
            socket.send_fds(connection, [answer], descriptors)
        except OSError as error:
            # ETOOMANYREFS: this user has as many descriptors under way as it may have open; ranks take theirs out.
            if error.errno in (errno.EAGAIN, errno.ETOOMANYREFS):
                return False
            pid = self._keeper.inside[rank]
            raise PeerLostError(rank, f"descriptors cannot be sent to it ({error})", pid) from error
        return True

    def _confirm(self, rank: int, connection: socket.socket) -> None:
        connection.settimeout(max(0.001, self._deadline - time.monotonic()))
        try:
            packet = connection.recv(MAX_PACKET_BYTES)
        except TimeoutError:
            packet = LATE
        except ConnectionError:
            packet = b""
        if packet == LATE:
            raise RendezvousTimeout([rank], [], "it did not confirm its descriptors in time")
        if not packet:
            raise PeerLostError(rank, "it hung up before it had its descriptors", self._keeper.inside[rank])
        if packet != GOT:
            raise CommunicationError(f"rank {rank} could not take its descriptors: {packet.decode(errors='replace')}")

    def _timeout(self) -> RendezvousTimeout:
        missing = self._keeper.missing()
        away = f"; turned away: {'; '.join(self._turned_away)}" if self._turned_away else ""
        text = f"rank 0 waited for them past the deadline to hand over shared memory{away}"
        return RendezvousTimeout(missing, set(range(self._size)) - set(missing), text)

    def _tell(self, error: BaseException) -> None:
        if isinstance(error, RendezvousTimeout):
            answer = Answer("missing", error.message, missing=error.missing, present=error.present)
        elif isinstance(error, PeerLostError):
            answer = Answer("lost", error.message, lost=error.rank, pid=error.pid)
        else:
            answer = Answer("failed", f"{type(error).__name__}: {error}"[:1000])
        for connection in self._ranks.values():
            with suppress(OSError):
                connection.send(pack(answer), socket.MSG_DONTWAIT)
