"""The bootstrap of a group: its ranks find each other, exchange bytes and descriptors, and report failures.

``blink/bootstrap.h`` defines the protocol and ``native/bootstrap/`` implements it: rank 0 is the coordinator, every
other rank has one connection to it, and a rank that dies closes its connection. Rank 0 listens at the job's port
(``tcp://host:port``), or publishes an address and a random token in a store, where the other ranks read them. Ranks of
one host connect over a UNIX socket, which carries descriptors, or over TCP first; :func:`part` then connects those of
each host. This module turns the library's errors into exceptions.

A store may contain addresses of earlier runs. They are harmless, because nobody listens there.
"""

from __future__ import annotations

import ctypes as c
import errno
import math
import os
import secrets
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache
from hashlib import sha256
from typing import TypeVar

import msgspec

from blinkccl.engines import native_library
from blinkccl.errors import (
    CommunicationError,
    DeadlineError,
    LaunchError,
    PeerLostError,
    PlanMismatchError,
    RendezvousTimeout,
    UnsupportedError,
)
from blinkccl.native import open_library
from blinkccl.native.headers import header
from blinkccl.runtime.addresses import is_own, loopback_of
from blinkccl.runtime.peer_info import PeerInfo, alive, decode, decode_all, own_peer_info
from blinkccl.runtime.store import JobPort, Pauses, Store

_HEADER = header("bootstrap.h")
_STATUS = _HEADER.numbers("blink_bootstrap_status", "BLINK_BOOTSTRAP_")
_OK, _AGAIN, _TIMEOUT = _STATUS["ok"], _STATUS["again"], _STATUS["timeout"]
_LOST, _MISMATCH, _FAILED = _STATUS["lost"], _STATUS["mismatch"], _STATUS["failed"]
_TEXT_BYTES = _HEADER.constants["BLINK_BOOTSTRAP_TEXT"] - 1
#: The most descriptors that all ranks of a group share in one round.
MAX_DESCRIPTORS = _HEADER.constants["BLINK_BOOTSTRAP_DESCRIPTORS"]
_MAX_RANKS = _HEADER.constants["BLINK_BOOTSTRAP_RANKS"]
#: Seconds in which a rank whose process ended before all ranks had connected may be restarted.
GRACE_S = 1.0
#: Timeout of a connection to rank 0. A rank without one is reported ``_REPORT_S`` before the deadline.
REACH_S = 2.0
_REPORT_S = 0.5
#: Seconds between two searches for another rank 0.
LOOK_S = 0.5
#: The most addresses of the first rank of a part.
_MAX_PLACES = 3
#: Interval at which the interpreter handles signals, and ranks check whether others are alive.
_SLICE_MS = 100
_Kind = TypeVar("_Kind")


@_HEADER.layout("blink_bootstrap_reason")
class _Reason(c.Structure):
    """The reason why a group cannot form."""


class Published(msgspec.Struct, frozen=True):
    """The entry of rank 0 in the store, which only ranks of the job read."""

    places: list[str]  # one "unix:NAME", or one "tcp:HOST:PORT" per address of rank 0
    token: str
    info: msgspec.Raw = msgspec.Raw(b"\xc0")  # PeerInfo, perhaps of another version; of a port nothing is known
    since: float = 0.0  # time.monotonic(), the same clock for all processes of a host

    @property
    def leader(self) -> PeerInfo | None:
        """Rank 0; None if unknown or of another version, which is reported when all ranks have connected."""
        with suppress(CommunicationError):
            info = decode(self.info)
            return info if info.boot_id else None
        return None


class Presence(msgspec.Struct, frozen=True):
    """The entry of a rank in the store, with its last ``time.monotonic()``; it reveals missing ranks without rank 0."""

    peer: PeerInfo
    seen: float
    trouble: str = ""  # the reason why it cannot connect to rank 0


class Bootstrap:
    """One rank's end of a bootstrap whose first round is complete; made by :func:`join` and :func:`part`.

    ``host`` is the address by which this rank reaches rank 0; None over a UNIX socket.
    If the body of its ``with`` raises, all other ranks get the reason, and this rank raises the first cause of any
    rank.
    """

    def __init__(self, handle: int, rank: int, size: int, look: Callable[[], None], host: str | None = None) -> None:
        self.peers: tuple[PeerInfo, ...] = ()
        self.host = host
        self._handle: int | None = handle
        self._rank, self._size = rank, size
        self._look = look
        self._status, self._over = _OK, False  # over: the other ranks have been notified
        self._failing = "could not join the group"
        _ends.add(self)

    def all_gather(
        self, mine: bytes, deadline: float, descriptors: Sequence[int] = ()
    ) -> tuple[list[bytes], list[list[int]]]:
        """Return the bytes (at most 64 KiB) and descriptors of all ranks, by rank; all ranks call it.

        The caller owns ``descriptors`` and the returned ones, which are close-on-exec; its own come back as duplicates.
        Raises the errors of :func:`join`; by ``deadline`` all ranks must have called it.
        """
        self.begin(mine, deadline, descriptors)
        return self.finish()

    def begin(self, mine: bytes, deadline: float, descriptors: Sequence[int] = ()) -> None:
        """Begin :meth:`all_gather`."""
        files = (c.c_int * max(1, len(descriptors)))(*descriptors)
        self._check(
            _library().blink_bootstrap_all_gather(
                self._handle, mine, len(mine), files, len(descriptors), 0.0, max(0.0, deadline - time.monotonic())
            )
        )

    def step(self) -> None:
        """Raise the failure of the round that has begun, if one is known by now; no effect after :meth:`close`."""
        if self._handle is not None:
            self._check(_library().blink_bootstrap_step(self._handle, 0))

    def finish(self) -> tuple[list[bytes], list[list[int]]]:
        """Wait for the end of the round that has begun, and return the result of :meth:`all_gather`."""
        while self._status == _AGAIN:
            self._look()
            self._check(_library().blink_bootstrap_step(self._handle, _SLICE_MS))
        return [self._bytes(rank) for rank in range(self._size)], [self._files(rank) for rank in range(self._size)]

    def stay(self, look: Callable[[], None]) -> None:
        """Keep the ranks connected after the group has formed, and call ``look`` from now on while waiting."""
        self._look, self._failing = look, "ended the group"

    def fail(self, error: BaseException) -> BaseException:
        """Report to the others that this rank fails; return the first cause, which may be another rank's."""
        if self._over or self._handle is None or isinstance(error, DeadlineError):
            return error  # every rank detects its own timeout
        self._over = True
        reason = _Reason(_FAILED, self._rank, os.getpid(), f"{type(error).__name__}: {error}".encode()[:_TEXT_BYTES])
        if isinstance(error, PlanMismatchError):
            reason = _Reason(_MISMATCH, self._rank, os.getpid(), str(error).encode()[:_TEXT_BYTES])
        elif isinstance(error, PeerLostError):
            reason = _Reason(_LOST, error.rank, error.pid or 0, error.message.encode()[:_TEXT_BYTES])
        mine = reason.text
        _library().blink_bootstrap_fail(self._handle, c.byref(reason))
        unchanged = reason.rank == self._rank and reason.text == mine
        return error if unchanged or not isinstance(error, CommunicationError) else self._cause()

    def close(self) -> None:
        """Leave in order, unless there was an error; may be called twice, also in a forked child."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _library().blink_bootstrap_leave(handle)

    def __enter__(self) -> Bootstrap:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is not None and (cause := self.fail(error)) is not error:
                raise cause from error
        finally:
            self.close()

    def _check(self, status: int) -> None:
        self._status = status
        if status not in (_OK, _AGAIN):
            self._over = True
            raise self._cause()

    def _bytes(self, rank: int) -> bytes:
        address = c.c_void_p()
        size = _library().blink_bootstrap_bytes(self._handle, rank, c.byref(address))
        return c.string_at(address, size) if size else b""

    def _files(self, rank: int) -> list[int]:
        files = (c.c_int * MAX_DESCRIPTORS)()
        count = _library().blink_bootstrap_descriptors(self._handle, rank, files, MAX_DESCRIPTORS)
        return list(files[:count])

    def _cause(self) -> CommunicationError:
        reason, missing = _Reason(), (c.c_int32 * _MAX_RANKS)()
        _library().blink_bootstrap_cause(self._handle, c.byref(reason))
        count = _library().blink_bootstrap_missing(self._handle, missing, _MAX_RANKS)
        text = reason.text.decode(errors="replace")
        if reason.status == _TIMEOUT:
            late = set(missing[:count])
            return RendezvousTimeout(
                late, set(range(self._size)) - late, f"{text}; start them, or look at their output"
            )
        known = self.peers[reason.rank] if 0 <= reason.rank < len(self.peers) else None
        if reason.status == _LOST:
            # From another PID namespace the socket has no process number, but the rank has sent its own.
            return PeerLostError(reason.rank, text, reason.pid or (known and known.pid))
        if reason.status == _MISMATCH:
            return PlanMismatchError(text)
        return CommunicationError(f"rank {reason.rank} ({known or f'process {reason.pid}'}) {self._failing}: {text}")


def join(store: Store, prefix: str, rank: int, size: int, deadline: float, deterministic: str = "") -> Bootstrap:
    """Connect to the other ranks; return when all ``size`` have connected, with their ``peers``.

    ``store`` may contain entries of earlier groups; ``prefix`` distinguishes groups that are made at the same time.
    ``deterministic`` is sent with this rank's :class:`PeerInfo`.

    Raises RendezvousTimeout with the missing ranks if not all have connected by ``deadline`` (``time.monotonic()``);
    PlanMismatchError, on all ranks, if two processes have the same rank or ranks differ in size, version or order;
    PeerLostError if a rank's process ended before all had connected and was not restarted at once; LaunchError if
    rank 0 cannot listen at the store's port; CommunicationError if a rank cannot take part or the store is lost;
    UnsupportedError without the native library. Costs one store entry per rank.
    """
    joining = _Joining(store, prefix, own_peer_info(rank, size, deterministic), deadline)
    return joining.lead() if rank == 0 else joining.follow()


def part(
    exchange: Callable[[bytes], Sequence[bytes]],
    members: Sequence[int],
    rank: int,
    deadline: float,
    look: Callable[[], None] = lambda: None,
    deterministic: str = "",
    addresses: Sequence[str] = (),
    grace_s: float = GRACE_S,
) -> Bootstrap:
    """Connect ``members``, ranks of a group whose ``exchange`` returns the bytes of all its ranks, by rank.

    The first member listens at its ``addresses``, or, if all are on one host, at a UNIX socket. All ranks of the group
    call ``exchange`` once, also those that are not members. ``look`` is called often, and raises if a member has ended,
    at most ``grace_s`` later. Errors as :func:`join`, with ranks counted in ``members``; PlanMismatchError if the first
    one is on another host.
    """
    place = members.index(rank)
    joining = _Joining(Store(), "", own_peer_info(place, len(members), deterministic), deadline, look, grace_s)
    if place > 0:
        return joining.enter_part(exchange(b"")[members[0]].decode())
    try:
        end, published = joining.listen(addresses[:_MAX_PLACES])
    except CommunicationError:
        exchange(b"")
        raise
    return joining.meet(end, lambda: exchange(" ".join([*published.places, published.token]).encode()))


class _Joining:
    """The state of one rank until it has joined."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        mine: PeerInfo,
        deadline: float,
        look: Callable[[], None] = lambda: None,
        grace_s: float = GRACE_S,
    ) -> None:
        self._store, self._mine, self._deadline, self._look = store, mine, deadline, look
        self._rank, self._size = mine.rank, mine.world_size
        self._key = f"{prefix}/bootstrap"
        self._here = f"{prefix}/here"
        self._began = time.monotonic()
        #: At a port, no entry: the place is known, and the token is the job's.
        self._at_port = (
            Published([f"tcp:{store.host}:{store.port}"], sha256(prefix.encode()).hexdigest())
            if isinstance(store, JobPort)
            else None
        )
        self._in_part, self._grace_s = False, grace_s
        #: Per process of this run that was seen alive: the time until which it may be restarted.
        self._again_until: dict[str, float] = {}
        self._next_look = self._next_knock = 0.0
        self._note = "nobody has published the address of rank 0"
        #: The reason why this rank cannot connect to rank 0; on rank 0, the reasons of all ranks.
        self._trouble = ""
        self._troubles: dict[int, str] = {}

    def lead(self) -> Bootstrap:
        """Listen as rank 0, publish the address, and wait for the others."""
        self._challenge(self._published())
        end, published = self.listen(self._store.addresses() if self._size > 1 else [])
        elsewhere = isinstance(self._store, JobPort) and self._size > 1 and not is_own(self._store.host)

        def watch() -> None:
            self._look()
            if elsewhere:
                self._knock(published)
            self._challenge(self._published(), published)
            self._look_at_others()

        end._look = watch if self._size > 1 else self._look
        return self.meet(end, lambda: self._publish(published))

    def listen(self, addresses: Sequence[str]) -> tuple[Bootstrap, Published]:
        """Listen at a port for all ``addresses`` of this process, or without any at a UNIX socket."""
        reason = _Reason()
        token = secrets.token_hex(32) if self._at_port is None else self._at_port.token
        port = self._store.port if isinstance(self._store, JobPort) else 0
        tcp = f"{addresses[0]}:{port}".encode() if addresses else None
        handle = _library().blink_bootstrap_listen(tcp, token.encode(), self._size, c.byref(reason))
        if handle is None and self._at_port is not None:
            self._knock(self._at_port)
            raise LaunchError(
                f"rank 0: {reason.text.decode(errors='replace')}; set BLINK_STORE=tcp://HOST:PORT to the host of rank "
                "0 and a free port there (torch.distributed, another job or another rank 0 may use this one)"
            )
        if handle is None:
            raise CommunicationError(f"rank 0: {reason.text.decode(errors='replace')}")
        place = _library().blink_bootstrap_address(handle).decode()
        places = [f"tcp:{address}:{place.rpartition(':')[2]}" for address in addresses] or [place]
        info = msgspec.Raw(msgspec.msgpack.encode(self._mine))
        host = addresses[0] if addresses else None
        return Bootstrap(handle, 0, self._size, self._look, host), Published(places, token, info, time.monotonic())

    def _look_at_others(self) -> None:
        """Raise if a rank published its presence but ended before it could connect; costs one lookup per rank.

        Shortly before the deadline also raise if a present rank cannot connect to this one.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + max(_SLICE_MS / 1e3, 0.01 * self._size)
        for rank in range(1, self._size):
            presence = self._presence(rank)
            if presence is not None and (living := alive(presence.peer)) is not None:
                self._raise_if_ended(str(presence.peer), rank, presence.peer, living, presence.seen > self._began)
            if presence is not None:
                self._troubles[rank] = presence.trouble
        troubles = [f"rank {rank} {text}" for rank, text in self._troubles.items() if text]
        if troubles and now > self._deadline - _REPORT_S:
            raise CommunicationError(f"{'; '.join(troubles)}; is there a firewall, or do they share no network?")

    def _raise_if_ended(self, name: str, rank: int, peer: PeerInfo, living: bool | None, of_this_run: bool) -> None:
        """Raise PeerLostError if a process of this run ended and was not restarted; ignore those of earlier runs."""
        again_until = time.monotonic() + GRACE_S
        if living:
            self._again_until[name] = again_until
        elif of_this_run:
            self._again_until.setdefault(name, again_until)
        if time.monotonic() >= self._again_until.get(name, math.inf):
            raise PeerLostError(rank, "its process ended before all ranks had come", peer.pid)

    def follow(self) -> Bootstrap:
        """Connect as another rank to rank 0, or to its successor if that has ended."""
        pauses = Pauses(self._deadline)
        announced = False
        while True:
            published = self._published()
            if published is not None and (leader := published.leader) is not None:
                since = leader.host == self._mine.host and published.since > self._began
                self._raise_if_ended(published.token, 0, leader, alive(leader), since)
            if not announced:  # not earlier: a rank in the store has looked for rank 0 at least once
                announced = True
                self._tell_presence()
            if published is not None and (end := self._enter(published)) is not None:
                return end
            self._look()
            if not pauses.pause():
                raise self._timeout()

    def _enter(self, published: Published) -> Bootstrap | None:
        """Join this rank 0; None if it is not listening, or no longer."""
        leader, place = published.leader, published.places[0]
        if place.startswith("unix:") and leader and leader.host != self._mine.host:
            raise UnsupportedError(
                f"rank {self._rank} runs on {self._mine.hostname}, rank 0 on {leader.hostname}, and {self._store} "
                "serves one host; set BLINK_STORE=tcp://HOST:PORT with the host of rank 0 and a free port there"
            )
        host, trouble = None, ""
        if place.startswith("tcp:"):
            place, host, trouble = self._reached(published.places)
        if trouble:
            trouble = f"({self._mine}) cannot connect to rank 0{f' ({leader})' if leader else ''} at {trouble}"
        if trouble != self._trouble:
            self._trouble = trouble
            self._tell_presence(trouble)
        if trouble:
            self._note = f"it {trouble}; does rank 0 run, is there a firewall, or do they share no network?"
            if time.monotonic() >= self._again_until.get(published.token, math.inf) and leader is None:
                raise PeerLostError(0, "its process ended before all ranks had come")
            return None
        end = self._connected(place, published.token, host)
        if end is None:
            if self._in_part and os.strerror(errno.EAGAIN) not in self._note:  # else too many ranks connect at once
                self._look()
                # Rank 0 may have ended just now.
                if time.monotonic() < self._again_until.setdefault(published.token, time.monotonic() + self._grace_s):
                    return None
                raise PlanMismatchError(
                    f"rank {self._rank} ({self._mine}) does not find rank 0 on its host: {self._note}; if they are on "
                    "two hosts, give each host a different BLINK_HOSTID, else run both as one user"
                )
            return None
        try:
            return self.meet(end)
        except PeerLostError as error:
            if error.rank != 0 or self._in_part:
                raise
            self._again_until[published.token] = time.monotonic() + GRACE_S
            self._note = error.message
            return None

    def enter_part(self, addresses_and_token: str) -> Bootstrap:
        """Join the rank 0 of a part of a group, which listened before its address came, and is not restarted."""
        *places, token = addresses_and_token.split(" ")
        if not token:
            raise CommunicationError("rank 0 could not listen; its own error has the reason")
        self._in_part, self._at_port = True, Published(places, token)
        return self.follow()

    def _connected(self, place: str, token: str, host: str | None) -> Bootstrap | None:
        reason = _Reason()
        handle = _library().blink_bootstrap_connect(
            place.encode(), token.encode(), self._rank, self._size, c.byref(reason)
        )
        if handle is None:
            self._note = reason.text.decode(errors="replace")
            return None
        return Bootstrap(handle, self._rank, self._size, self._look, host)

    def _reached(self, places: Sequence[str]) -> tuple[str, str, str]:
        """The first "tcp:HOST:PORT" that accepts a connection, as a number, and its HOST; or the reasons of all."""
        troubles = []
        for place in places:
            host, _, port = place.removeprefix("tcp:").rpartition(":")
            left_s = max(0.05, min(REACH_S, self._deadline - time.monotonic()))
            try:
                with socket.create_connection((host, int(port)), left_s) as probe:
                    return f"tcp:{probe.getpeername()[0]}:{port}", host, ""
            except OSError as error:
                troubles.append(f"{host}:{port}: {error}")
        return "", "", ", ".join(troubles)

    def meet(self, end: Bootstrap, publish: Callable[[], object] = lambda: None) -> Bootstrap:
        """Exchange the peer info of all ranks, the first round; on a failure, tell the others and close ``end``."""
        with ExitStack() as undo:
            undo.push(end)
            publish()
            words, _ = end.all_gather(msgspec.msgpack.encode(self._mine), self._deadline)
            end.peers = decode_all(words)
            undo.pop_all()
        end._look = self._look
        return end

    def _challenge(self, other: Published | None, ours: Published | None = None) -> None:
        """Notify all ranks of both jobs if another rank 0 listens under the same key."""
        if other is None or other is self._at_port or (ours is not None and other.token == ours.token):
            return
        if other.leader is not None and other.leader.host == self._mine.host:
            self._knock(other)

    def _knock(self, other: Published) -> None:
        """Connect as a second rank 0; PlanMismatchError, also on the ranks of the first, if one listens there."""
        if time.monotonic() < self._next_knock:
            return
        self._next_knock = time.monotonic() + LOOK_S
        handle = _library().blink_bootstrap_connect(other.places[0].encode(), other.token.encode(), 0, self._size, None)
        if handle is None:
            return  # an earlier run's
        end = Bootstrap(handle, 0, self._size, lambda: None)
        try:
            end.all_gather(b"", time.monotonic() + GRACE_S)
        except PlanMismatchError:
            raise
        except CommunicationError:
            return  # it has another job, or has ended, or is this one
        finally:
            end.close()

    def _published(self) -> Published | None:
        if self._at_port is not None or self._size == 1:
            return self._at_port
        return _read(self._store, self._key, _PUBLISHED)

    def _publish(self, published: Published) -> None:
        if self._size > 1:
            self._store.set(self._key, msgspec.msgpack.encode(published))

    def _tell_presence(self, trouble: str = "") -> None:
        presence = Presence(self._mine, time.monotonic(), trouble)
        self._store.set(f"{self._here}/{self._rank}", msgspec.msgpack.encode(presence))

    def _presence(self, rank: int) -> Presence | None:
        with suppress(CommunicationError):  # another version is reported when all ranks have connected
            return _read(self._store, f"{self._here}/{rank}", _PRESENCE)
        return None

    def _timeout(self) -> RendezvousTimeout:
        """Error for a missing rank 0 after the deadline; the presence entries show the other missing ranks."""
        text = f"rank {self._rank} of {self._size} timed out waiting for rank 0: {self._note}"
        if self._at_port is not None:
            if isinstance(self._store, JobPort) and (here := loopback_of(self._store.host)):
                text += f"; {self._store.host} is {here} on this host: if rank 0 is on another, give an address of it"
            return RendezvousTimeout([0], [self._rank], text)
        self._tell_presence()
        present = {rank for rank in range(1, self._size) if self._is_here(rank)} | {self._rank}
        return RendezvousTimeout(set(range(self._size)) - present, present, text)

    def _is_here(self, rank: int) -> bool:
        presence = self._presence(rank)
        return presence is not None and (alive(presence.peer) is not False or presence.seen > self._began)


#: Created at import, because ranks may be threads: see :mod:`blinkccl.schedule.text`.
_PRESENCE, _PUBLISHED = msgspec.msgpack.Decoder(Presence), msgspec.msgpack.Decoder(Published)


def _read(store: Store, key: str, decoder: msgspec.msgpack.Decoder[_Kind]) -> _Kind | None:
    data = store.peek(key)
    try:
        return None if data is None else decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CommunicationError(
            f"key {key!r} of the store has no entry of Blink: {error}; give the job a store of its own in BLINK_STORE"
        ) from None


@lru_cache(maxsize=1)
def _library() -> c.CDLL:
    native_library.load()  # has the best message for a missing library
    path = native_library.find()
    assert path is not None
    return open_library(path, _HEADER.functions, "blink_abi_version")


_ends: weakref.WeakSet[Bootstrap] = weakref.WeakSet()


def _let_go() -> None:
    """Close a forked child's copies of connections: an open copy would hide the end of the rank from its peers."""
    for end in list(_ends):
        end.close()


os.register_at_fork(after_in_child=_let_go)
