"""Tagged messages between two ranks over the segment's byte streams, independent of the collectives.

A thread per peer and direction, started at the first use, moves the bytes in native code. A message is a header (tag
and length) and its bytes. :class:`Matching` assigns it to a receive. Between hosts a large message takes all routes
that the group's topology has (document C, multi-path copies by a path table).
"""

from __future__ import annotations

import ctypes as c
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from blinkccl.engines import native_library as native
from blinkccl.engines.host import Endpoint
from blinkccl.errors import CommunicationError, DeadlineError, UsageError
from blinkccl.runtime.hosts import Route
from blinkccl.runtime.timeouts import microseconds


@dataclass(slots=True, eq=False)
class Receive:
    """A posted receive from ``source`` (None: any rank), and its buffer."""

    source: int | None
    tag: int
    address: int = 0
    nbytes: int = 0
    deadline: float = 0.0
    future: Future[int] = field(default_factory=Future)
    since: float = field(default_factory=time.monotonic)

    def fits(self, source: int, tag: int) -> bool:
        """True if this receive accepts a message from ``source`` with ``tag``."""
        return tag == self.tag and self.source in (None, source)


@dataclass(slots=True)
class Matching:
    """Assignment of messages to receives: a state machine without I/O, threads or clocks.

    Messages of one source stay in order. Each message takes the first posted receive that accepts its source and tag,
    and each receive the first such message. A message without a receive stays in its stream and blocks the later ones
    of that source. If a receive waits for one of those, the message is set aside instead.
    """

    posted: list[Receive] = field(default_factory=list)
    aside: dict[int, deque[tuple[int, bytes]]] = field(default_factory=dict)

    def post(self, receive: Receive) -> tuple[int, bytes] | None:
        """Post ``receive``, or return the source and content of a message that was set aside for it."""
        for source, messages in self.aside.items():
            for place, (tag, content) in enumerate(messages):
                if receive.fits(source, tag):
                    del messages[place]
                    return source, content
        self.posted.append(receive)
        return None

    def arrive(self, source: int, tag: int) -> Receive | None:
        """Remove and return the posted receive that a message takes; None if no receive accepts it yet."""
        for receive in self.posted:
            if receive.fits(source, tag):
                self.posted.remove(receive)
                return receive
        return None

    def set_aside(self, source: int, tag: int, content: bytes) -> None:
        """Store a message that no receive accepts yet."""
        self.aside.setdefault(source, deque()).append((tag, content))

    def waits_for(self, source: int) -> bool:
        """True if a posted receive accepts messages from ``source``."""
        return any(receive.source in (None, source) for receive in self.posted)


_HEADER = struct.Struct("<qq")  # tag, bytes
#: Wait in native code before Python checks for timeouts and closing.
_SLICE_US = 50_000
_SLICE_S = _SLICE_US / 1e6
#: Bytes from which a message between hosts takes all routes: ranks in between forward pieces of a sixteenth of it.
_LARGE = 1 << 20


@dataclass(slots=True)
class _Outgoing:
    address: int
    nbytes: int
    tag: int
    deadline: float
    future: Future[None]


class PointToPoint:
    """One rank's sends and receives; ``timeout_s`` is for messages whose call names none.

    ``explain`` maps an error of the native library to the one that the message raises. ``routes`` gives the routes of
    large messages to a rank; the direct one is always there.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        rank: int,
        size: int,
        timeout_s: float,
        explain: Callable[[BaseException], BaseException] = lambda error: error,
        routes: Callable[[int], Iterable[Route]] = lambda rank: (),
    ) -> None:
        self._explain, self._routes = explain, routes
        self._endpoint = endpoint
        self._library = native.load()
        self._rank, self._size, self._timeout_s = rank, size, timeout_s
        self._outgoing: dict[int, queue.SimpleQueue[_Outgoing | None]] = {}
        self._matching = Matching()
        self._changed = threading.Condition()
        self._threads: dict[tuple[str, int], threading.Thread] = {}
        self._ended: dict[int, BaseException] = {}  # sources that can send nothing more, with the reason
        #: Current message per thread: start, peer and tag, for monitoring (_show).
        self._under_way: dict[tuple[str, int], tuple[float, int, int]] = {}
        self._shown: tuple[float, int, int] | None = None
        self._counts = {"sends": 0, "sent_bytes": 0, "receives": 0, "received_bytes": 0}
        self._closed = False

    def send(self, address: int, nbytes: int, dst: int, tag: int, deadline_s: float | None) -> Future[None]:
        """See :meth:`blinkccl.runtime.host_group.HostGroup.isend`."""
        self._check_peer("send to", dst)
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._changed:
            line = self._outgoing.setdefault(dst, queue.SimpleQueue())
            line.put(_Outgoing(address, nbytes, tag, self._deadline(deadline_s), future))
            self._start("send", dst)
        return future

    def receive(self, address: int, nbytes: int, src: int | None, tag: int, deadline_s: float | None) -> Future[int]:
        """See :meth:`blinkccl.runtime.host_group.HostGroup.irecv`."""
        if src is not None:
            self._check_peer("receive from", src)
        posted = Receive(src, tag, address, nbytes, self._deadline(deadline_s))
        posted.future.set_running_or_notify_cancel()
        with self._changed:
            message = self._matching.post(posted)
            if message is None:
                for source in self._sources(posted):
                    self._start("receive", source)
                lost = self._hopeless()
                self._changed.notify_all()
        if message is not None:
            source, content = message
            if self._fits(posted, source, len(content)):
                c.memmove(posted.address, content, len(content))
                posted.future.set_result(source)
        else:
            _fail(lost)
        return posted.future

    def stats(self) -> dict[str, int]:
        """Numbers of messages and bytes that this rank has sent and received."""
        with self._changed:
            return dict(self._counts)

    def flush(self, dst: int, deadline: float) -> None:
        """Wait until ``dst`` on another host receives all bytes, because no other thread would send the rest.

        The first time, on all ranks at once, this waits for the connection. Raises DeadlineError after ``deadline``.
        """
        while (flushed := self._library.blink_stream_flush(self._endpoint.handle, dst, _SLICE_US)) == 0:
            if self._closed or time.monotonic() > deadline:
                raise DeadlineError(
                    f"rank {self._rank} timed out waiting for rank {dst} to receive a message; is its receive missing?"
                )
        if flushed < 0:
            raise self._endpoint.failure(-flushed, f"messages to rank {dst}")

    def forward(self) -> None:
        """Start a thread that forwards other ranks' messages until the group is closed."""

        def serve() -> None:
            while not self._closed and self._library.blink_stream_serve(self._endpoint.handle, _SLICE_US):
                pass

        thread = self._threads["forward", self._rank] = threading.Thread(
            target=serve, name="blink-forward", daemon=True
        )
        thread.start()

    def close(self) -> None:
        """Finish the sends that can finish, end the threads, and fail the posted receives."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for line in self._outgoing.values():
                line.put(None)
        for thread in self._threads.values():
            if thread is not threading.current_thread():
                thread.join()
        for posted in self._matching.posted:
            posted.future.set_exception(CommunicationError(f"rank {self._rank} closed its group before a message came"))
        self._matching.posted.clear()

    # ---- threads

    def _start(self, direction: str, peer: int) -> None:
        if self._closed:
            raise CommunicationError(f"rank {self._rank}'s group is closed")
        if (direction, peer) not in self._threads:
            work = self._send_all if direction == "send" else self._receive_all
            thread = threading.Thread(target=work, args=(peer,), name=f"blink-{direction}-{peer}", daemon=True)
            self._threads[direction, peer] = thread
            thread.start()

    def _send_all(self, dst: int) -> None:
        line, routed = self._outgoing[dst], False
        while (message := line.get()) is not None:
            self._under_way["send", dst] = time.monotonic(), dst, message.tag
            try:
                if message.nbytes >= _LARGE and not routed:
                    routed = True
                    for share, hops in self._routes(dst):
                        self._endpoint.add_route(dst, float(share), hops)
                header = c.create_string_buffer(_HEADER.pack(message.tag, message.nbytes), _HEADER.size)
                parts = (c.addressof(header), _HEADER.size), (message.address, message.nbytes)
                for address, size in parts:
                    self._move(True, dst, address, size, message.deadline, message.nbytes, message.tag)
                self.flush(dst, message.deadline)
            except BaseException as error:
                message.future.set_exception(self._explain(error))
            else:
                with self._changed:
                    self._counts["sends"] += 1
                    self._counts["sent_bytes"] += message.nbytes
                message.future.set_result(None)
            self._finished("send", dst)
            del message  # it refers to an array, and the next message may come much later

    def _move(
        self, sends: bool, peer: int, address: int, size: int, deadline: float, nbytes: int, tag: int = 0
    ) -> None:
        """Move ``size`` bytes of a message of ``nbytes`` that has begun, to or from ``peer``."""
        library = self._library
        stream = library.blink_stream_write if sends else library.blink_stream_read
        more = (size >= _LARGE,) if sends else ()
        verb, towards = ("send", f"to rank {peer}") if sends else ("receive", f"from rank {peer}")
        done = 0
        while done < size:
            moved = stream(self._endpoint.handle, peer, address + done, size - done, *more, _SLICE_US)
            if moved < 0:
                raise self._endpoint.failure(-moved, f"{verb} of {nbytes} bytes {towards}")
            done += moved
            if moved:
                continue
            with self._changed:
                self._expire()
                self._show()
            if self._closed:
                raise CommunicationError(f"rank {self._rank} closed its group during a message {towards}")
            if time.monotonic() > deadline:
                self._endpoint.abort(f"rank {self._rank} could not {verb} {towards} in time")
                raise DeadlineError(
                    f"rank {self._rank} timed out waiting for rank {peer} to receive {nbytes} bytes with tag "
                    f"{tag}; is its receive missing?"
                    if sends
                    else f"rank {self._rank} timed out waiting for the rest of a message from rank {peer}: "
                    f"got {done} of {size} bytes; is rank {peer} stuck?"
                )

    def _receive_all(self, src: int) -> None:
        header = c.create_string_buffer(_HEADER.size)
        try:
            while self._wanted(src):
                if not self._read_some(src, c.addressof(header), _HEADER.size):
                    continue
                tag, nbytes = _HEADER.unpack(header.raw)
                self._under_way["receive", src] = time.monotonic(), src, tag
                self._take(src, tag, nbytes)
                self._finished("receive", src)
        except BaseException as error:
            cause = self._explain(error)
            with self._changed:
                self._ended[src] = cause
                lost = self._hopeless()
            self._finished("receive", src)
            _fail(lost)

    def _wanted(self, src: int) -> bool:
        """Wait until a receive accepts messages of ``src``; False when the group is closed."""
        with self._changed:
            while not self._closed:
                self._expire()
                if self._matching.waits_for(src):
                    return True
                self._show()
                self._changed.wait(_SLICE_S if self._matching.posted else None)
        return False

    def _take(self, src: int, tag: int, nbytes: int) -> None:
        """Receive a message into the receive that accepts it, or set it aside if later messages must pass it."""
        with self._changed:
            receive = self._matching.arrive(src, tag)
            while receive is None and not self._closed and not self._matching.waits_for(src):
                self._changed.wait(_SLICE_S)
                receive = self._matching.arrive(src, tag)
        if receive is not None and self._fits(receive, src, nbytes):
            try:
                self._read(src, receive.address, nbytes, receive.deadline)
            except BaseException as error:
                receive.future.set_exception(self._explain(error))
                raise
            receive.future.set_result(src)
            return
        content = c.create_string_buffer(max(1, nbytes))
        self._read(src, c.addressof(content), nbytes, self._deadline(None))
        if receive is None:
            with self._changed:
                late = self._matching.arrive(src, tag)
                if late is None:
                    self._matching.set_aside(src, tag, content.raw[:nbytes])
            if late is not None and self._fits(late, src, nbytes):
                c.memmove(late.address, content, nbytes)
                late.future.set_result(src)

    def _fits(self, posted: Receive, src: int, nbytes: int) -> bool:
        with self._changed:
            self._counts["receives"] += 1
            self._counts["received_bytes"] += nbytes
        if nbytes <= posted.nbytes:
            return True
        posted.future.set_exception(
            UsageError(
                f"rank {self._rank} has room for {posted.nbytes} bytes, but rank {src} sent {nbytes} "
                f"with tag {posted.tag}: sizes must agree"
            )
        )
        return False

    def _read(self, src: int, address: int, nbytes: int, deadline: float) -> None:
        self._move(False, src, address, nbytes, deadline, nbytes)

    def _read_some(self, src: int, address: int, nbytes: int) -> bool:
        """Read a whole header; False if none has begun."""
        moved = self._library.blink_stream_read(self._endpoint.handle, src, address, nbytes, _SLICE_US)
        if moved < 0:
            raise self._endpoint.failure(-moved, f"receive from rank {src}")
        if 0 < moved < nbytes:
            self._read(src, address + moved, nbytes - moved, self._deadline(None))
        if moved == 0:
            with self._changed:
                self._show()
        return bool(moved)

    def _finished(self, direction: str, peer: int) -> None:
        self._under_way.pop((direction, peer), None)
        if self._shown is not None:
            with self._changed:
                self._show()

    def _show(self) -> None:
        """Publish the message with the longest wait for monitoring; the caller holds the lock."""
        waits = [*self._under_way.values()]
        for receive in self._matching.posted:
            waits.append((receive.since, -1 if receive.source is None else receive.source, receive.tag))
        oldest = min(waits, default=None)
        if oldest != self._shown:
            self._shown = oldest
            since, peer, tag = oldest or (0.0, -1, 0)
            self._library.blink_stream_show(self._endpoint.handle, peer, tag, int(1e6 * since))

    def _expire(self) -> None:
        """Fail the receives whose timeout has passed; the caller holds the lock."""
        now = time.monotonic()
        for receive in [receive for receive in self._matching.posted if now > receive.deadline]:
            self._matching.posted.remove(receive)
            source = "any rank" if receive.source is None else f"rank {receive.source}"
            receive.future.set_exception(
                DeadlineError(
                    f"rank {self._rank} timed out waiting for a message of {receive.nbytes} bytes with tag "
                    f"{receive.tag} from {source}; is its send missing, or does it have another tag?"
                )
            )

    def _sources(self, receive: Receive) -> tuple[int, ...]:
        """The ranks from which a receive accepts messages."""
        others = tuple(rank for rank in range(self._size) if rank != self._rank)
        return others if receive.source is None else (receive.source,)

    def _hopeless(self) -> list[tuple[Receive, BaseException]]:
        """Remove the receives that no rank can serve any more, each with the reason; the caller holds the lock."""
        lost = [
            (receive, self._ended[self._sources(receive)[-1]])
            for receive in self._matching.posted
            if all(source in self._ended for source in self._sources(receive))
        ]
        for receive, _ in lost:
            self._matching.posted.remove(receive)
        return lost

    def _deadline(self, deadline_s: float | None) -> float:
        return time.monotonic() + microseconds(self._timeout_s if deadline_s is None else deadline_s) / 1e6

    def _check_peer(self, action: str, peer: int) -> None:
        if not 0 <= peer < self._size or peer == self._rank:
            raise UsageError(
                f"rank {self._rank} cannot {action} rank {peer}: expected another rank in 0 … {self._size - 1}"
            )


def _fail(lost: list[tuple[Receive, BaseException]]) -> None:
    for receive, error in lost:
        receive.future.set_exception(error)
