"""The bootstrap of a group: its ranks find each other, gather words and descriptors, and hear of each other's failures.

``native/include/blink/bootstrap.h`` has the contract and ``native/bootstrap/`` does it: rank 0 is the coordinator,
every other rank has one connection to it, and a rank that dies hangs up. Here rank 0 publishes in a store where it
listens and a token that nobody guesses, the others read it, and what the library says becomes our errors.

A store may hold what earlier runs left. Nothing of it is taken for today's: nobody listens at their addresses.
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
from typing import TypeVar

import msgspec

from blinkccl.engines import native_library
from blinkccl.errors import (
    CommunicationError,
    DeadlineError,
    PeerLostError,
    PlanMismatchError,
    RendezvousTimeout,
    UnsupportedError,
)
from blinkccl.native import open_library
from blinkccl.native.headers import header
from blinkccl.runtime.peer_info import PeerInfo, alive, decode, decode_all, loopback_of_hosts, own_peer_info
from blinkccl.runtime.store import Pauses, Store, is_local, own_addresses

_HEADER = header("bootstrap.h")
_STATUS = _HEADER.numbers("blink_bootstrap_status", "BLINK_BOOTSTRAP_")
_OK, _AGAIN, _TIMEOUT = _STATUS["ok"], _STATUS["again"], _STATUS["timeout"]
_LOST, _MISMATCH, _FAILED = _STATUS["lost"], _STATUS["mismatch"], _STATUS["failed"]
_TEXT_BYTES = _HEADER.constants["BLINK_BOOTSTRAP_TEXT"] - 1
#: Descriptors that all ranks of a group share in one round, at most.
MAX_DESCRIPTORS = _HEADER.constants["BLINK_BOOTSTRAP_DESCRIPTORS"]
_MAX_RANKS = _HEADER.constants["BLINK_BOOTSTRAP_RANKS"]
#: A rank whose process has ended before all had come may be started again so many seconds later.
GRACE_S = 1.0
#: How long a connection to rank 0 may take; who cannot reach it is told so long before the deadline.
REACH_S = 2.0
_TOLD_S = 0.5
#: So often the interpreter gets a chance to handle signals, and ranks look whether others still live.
_SLICE_MS = 100
_Kind = TypeVar("_Kind")


@_HEADER.layout("blink_bootstrap_reason")
class _Reason(c.Structure):
    """Why a group cannot be."""


class Published(msgspec.Struct, frozen=True):
    """What rank 0 leaves in the store, which only ranks of the job read."""

    address: str
    token: str
    info: msgspec.Raw  # PeerInfo, perhaps of another version
    since: float  # time.monotonic(), which a host's processes share

    @property
    def leader(self) -> PeerInfo | None:
        """Rank 0; None where it is of another version, which shows when all have met."""
        with suppress(CommunicationError):
            return decode(self.info)
        return None


class Presence(msgspec.Struct, frozen=True):
    """That a rank came, and when it was last there (``time.monotonic()``); to say who is missing without rank 0."""

    peer: PeerInfo
    seen: float
    trouble: str = ""  # why it does not reach rank 0


class Bootstrap:
    """One rank's end of a bootstrap whose first round is over; made by :func:`join`.

    In a ``with`` whose body raises, all other ranks hear why, and this one raises the first cause of any rank.
    """

    def __init__(self, handle: int, rank: int, size: int, look: Callable[[], None]) -> None:
        self.peers: tuple[PeerInfo, ...] = ()
        self._handle: int | None = handle
        self._rank, self._size = rank, size
        self._look = look
        self._over = False  # all have been told
        self._failing = "could not join the group"
        _ends.add(self)

    def all_gather(
        self, mine: bytes, deadline: float, descriptors: Sequence[int] = ()
    ) -> tuple[list[bytes], list[list[int]]]:
        """Everybody's bytes (at most 64 KiB) and descriptors, by rank; all ranks call it.

        ``descriptors`` stay the caller's; what is returned is the caller's too, one's own as duplicates, closed on
        exec. Errors are those of :func:`join`; the ``deadline`` is for all ranks to call it.
        """
        files = (c.c_int * max(1, len(descriptors)))(*descriptors)
        library, left_s = _library(), max(0.0, deadline - time.monotonic())
        status = library.blink_bootstrap_all_gather(self._handle, mine, len(mine), files, len(descriptors), 0.0, left_s)
        while status == _AGAIN:
            self._look()
            status = library.blink_bootstrap_step(self._handle, _SLICE_MS)
        if status != _OK:
            self._over = True
            raise self._cause()
        return [self._bytes(rank) for rank in range(self._size)], [self._files(rank) for rank in range(self._size)]

    def stay(self, look: Callable[[], None]) -> None:
        """The group is made, and its ranks stay connected: ``look`` is what is called from now on."""
        self._look, self._failing = look, "ended the group"

    def fail(self, error: BaseException) -> BaseException:
        """Tells the others that this rank cannot go on; returns the first cause, which may be another's."""
        if self._over or self._handle is None or isinstance(error, DeadlineError):
            return error  # deadlines are everybody's own
        self._over = True
        reason = _Reason(_FAILED, self._rank, os.getpid(), f"{type(error).__name__}: {error}".encode()[:_TEXT_BYTES])
        if isinstance(error, PlanMismatchError):
            reason = _Reason(_MISMATCH, self._rank, os.getpid(), str(error).encode()[:_TEXT_BYTES])
        elif isinstance(error, PeerLostError):
            reason = _Reason(_LOST, error.rank, error.pid or 0, error.message.encode()[:_TEXT_BYTES])
        _library().blink_bootstrap_fail(self._handle, c.byref(reason))
        if reason.rank == self._rank or not isinstance(error, CommunicationError):
            return error
        return self._cause()

    def close(self) -> None:
        """Leaves in order, if nothing went wrong; may be called twice, also in a forked child."""
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
        said = reason.text.decode(errors="replace")
        if reason.status == _TIMEOUT:
            late = set(missing[:count])
            return RendezvousTimeout(
                late, set(range(self._size)) - late, f"{said}; start them, or look at their output"
            )
        if reason.status == _LOST:
            # Of another PID namespace the socket does not say it, but the rank has.
            known = self.peers[reason.rank].pid if 0 <= reason.rank < len(self.peers) else None
            return PeerLostError(reason.rank, said, reason.pid or known)
        if reason.status == _MISMATCH:
            return PlanMismatchError(said)
        return CommunicationError(f"rank {reason.rank} (process {reason.pid}) {self._failing}: {said}")


def join(
    store: Store,
    prefix: str,
    rank: int,
    size: int,
    payload: bytes,
    deadline: float,
    look: Callable[[], None] = lambda: None,
    deterministic: str = "",
) -> Bootstrap:
    """Meets the other ranks: once all ``size`` have come, each knows all of them as ``peers``.

    ``store`` may hold what earlier groups left; ``prefix`` tells groups apart that are made at the same time.
    ``payload`` and ``deterministic`` travel with this rank's :class:`PeerInfo`; ``look``, called often, raises where a
    rank cannot come.

    RendezvousTimeout, with who is missing, if not all have come at ``deadline`` (``time.monotonic()``);
    PlanMismatchError, on all ranks, if two processes claim one rank or ranks disagree on size, version or order;
    PeerLostError if a rank's process ended before all had come and was not started again at once; CommunicationError if
    a rank cannot take part or the store is lost; UnsupportedError without the native library. Cost: a value of the
    store per rank.
    """
    mine = own_peer_info(rank, size, payload, deterministic)
    joining = _Joining(store, prefix, mine, deadline, look)
    return joining.lead() if rank == 0 else joining.follow()


class _Joining:
    """One rank's way into a group."""

    def __init__(self, store: Store, prefix: str, mine: PeerInfo, deadline: float, look: Callable[[], None]) -> None:
        self._store, self._mine, self._deadline, self._look = store, mine, deadline, look
        self._rank, self._size = mine.rank, mine.world_size
        self._key = f"{prefix}/bootstrap"
        self._here = f"{prefix}/here"
        self._began = time.monotonic()
        #: Of this run's processes that were seen: until when they may be started again.
        self._again_until: dict[str, float] = {}
        self._next_look = 0.0
        self._note = "nobody has published where rank 0 listens"
        #: Why this rank does not reach rank 0, and on rank 0, of ranks that came, why they do not.
        self._trouble = ""
        self._troubles: dict[int, str] = {}

    def lead(self) -> Bootstrap:
        """Rank 0: listens, publishes where, and waits for the others."""
        try:
            end = self._lead()
        except CommunicationError as error:
            self._store.give_up(error, self._size)
            raise
        self._store.all_came()
        return end

    def _lead(self) -> Bootstrap:
        self._challenge(self._published())
        token = secrets.token_hex(32)
        reason = _Reason()
        host = (self._store.host() or loopback_of_hosts()) if self._size > 1 else None
        tcp = None if host is None else f"{own_address_towards(host)}:0".encode()
        handle = _library().blink_bootstrap_listen(tcp, token.encode(), self._size, c.byref(reason))
        if handle is None:
            raise CommunicationError(f"rank 0: {reason.text.decode(errors='replace')}")
        address = _library().blink_bootstrap_address(handle).decode()
        ours = Published(address, token, msgspec.Raw(msgspec.msgpack.encode(self._mine)), time.monotonic())

        def watch() -> None:
            self._look()
            self._store.check_callers()
            self._challenge(self._published(), ours)
            self._look_at_others()

        end = Bootstrap(handle, 0, self._size, watch if self._size > 1 else self._look)
        with ExitStack() as undo:
            undo.push(end)
            if self._size > 1:
                self._store.set(self._key, msgspec.msgpack.encode(ours))
            self._meet(end)
            undo.pop_all()
        return end

    def _look_at_others(self) -> None:
        """Raises where a rank showed that it is here, and ended before it could connect; costs a look per rank.

        Shortly before the deadline also where one is here and does not reach this rank.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + max(_SLICE_MS / 1e3, 0.01 * self._size)
        for rank in range(1, self._size):
            found = self._presence(rank)
            if found is not None and (living := alive(found.peer)) is not None:
                self._raise_if_ended(str(found.peer), rank, found.peer, living, found.seen > self._began)
            if found is not None:
                self._troubles[rank] = found.trouble
        troubles = [f"rank {rank} {text}" for rank, text in self._troubles.items() if text]
        if troubles and now > self._deadline - _TOLD_S:
            raise CommunicationError(f"{'; '.join(troubles)}; is there a firewall, or are they in no common network?")

    def _raise_if_ended(self, name: str, rank: int, peer: PeerInfo, living: bool | None, of_this_run: bool) -> None:
        """PeerLostError if a process of this run has ended and is not started again; an earlier run's is nobody's."""
        again_until = time.monotonic() + GRACE_S
        if living:
            self._again_until[name] = again_until
        elif of_this_run:
            self._again_until.setdefault(name, again_until)
        if time.monotonic() >= self._again_until.get(name, math.inf):
            raise PeerLostError(rank, "its process ended before all ranks had come", peer.pid)

    def follow(self) -> Bootstrap:
        """Any other rank: goes where rank 0 says it listens, and to the next one where that has ended."""
        pauses = Pauses(self._deadline)
        told = False
        while True:
            published = self._published()
            if published is not None and (leader := published.leader) is not None:
                since = leader.host == self._mine.host and published.since > self._began
                self._raise_if_ended(published.token, 0, leader, alive(leader), since)
            if not told:  # only now: whoever sees us here knows that we have seen rank 0 if it was there
                told = True
                self._tell_presence()
            if published is not None and (end := self._enter(published)) is not None:
                return end
            self._look()
            if not pauses.pause():
                raise self._timeout()

    def _enter(self, published: Published) -> Bootstrap | None:
        """Joins this rank 0; None where it is not there, or not any more."""
        leader, (unix, _, tcp) = published.leader, published.address.partition(" ")
        near = leader.host == self._mine.host if leader else not tcp
        if leader and not near and not tcp:
            raise UnsupportedError(
                f"rank {self._rank} runs on {self._mine.hostname}, rank 0 on {leader.hostname}, and {self._store} "
                "serves one host; set BLINK_STORE=tcp://HOST:PORT with the host of rank 0 and a free port there"
            )
        trouble = "" if near else self._unreached(tcp)
        if trouble:
            trouble = f"({self._mine}) does not reach rank 0 ({leader or 'of another version'}) at {tcp[4:]}: {trouble}"
        if trouble != self._trouble:
            self._trouble = trouble
            self._tell_presence(trouble)
        if trouble:
            self._note = f"it {trouble}; is there a firewall, or are they in no common network?"
            return None
        end = self._connected(unix if near else tcp, published.token)
        if end is None:
            crowded = os.strerror(errno.EAGAIN) in self._note  # it listens, and too many knock
            if leader is not None and tcp and not crowded and not self._unreached(tcp):
                self._refuse_one_host(leader, tcp, published.token)
            return None
        try:
            with ExitStack() as undo:
                undo.push(end)
                self._meet(end)
                undo.pop_all()
            return end
        except PeerLostError as error:
            if error.rank != 0:
                raise
            self._again_until[published.token] = time.monotonic() + GRACE_S
            self._note = error.message
            return None

    def _connected(self, place: str, token: str) -> Bootstrap | None:
        reason = _Reason()
        handle = _library().blink_bootstrap_connect(
            place.encode(), token.encode(), self._rank, self._size, c.byref(reason)
        )
        if handle is None:
            self._note = reason.text.decode(errors="replace")
            return None
        return Bootstrap(handle, self._rank, self._size, self._look)

    def _unreached(self, place: str) -> str:
        """Why nobody can be connected to at "tcp:HOST:PORT"; "": somebody is there."""
        host, _, port = place.removeprefix("tcp:").rpartition(":")
        left_s = max(0.05, min(REACH_S, self._deadline - time.monotonic()))
        try:
            socket.create_connection((host.strip("[]"), int(port)), left_s).close()
        except OSError as error:
            return str(error)
        return ""

    def _refuse_one_host(self, leader: PeerInfo, tcp: str, token: str) -> None:
        """PlanMismatchError, on all ranks: rank 0 says that it is on this host, and only the network leads to it."""
        end = self._connected(tcp, token)
        if end is None:
            return
        with end:
            raise PlanMismatchError(
                f"rank 0 ({leader}) and rank {self._rank} ({self._mine}) take themselves to be on one host (boot "
                f"{leader.boot_id}), where rank {self._rank} does not find rank 0: {self._note}; if they are on two, "
                "give each host a name of its own in BLINK_HOSTID, else run both as one user"
            )

    def _meet(self, end: Bootstrap) -> None:
        words, _ = end.all_gather(msgspec.msgpack.encode(self._mine), self._deadline)
        end.peers = decode_all(words)
        end._look = self._look

    def _challenge(self, other: Published | None, ours: Published | None = None) -> None:
        """If another rank 0 listens in our place, all ranks of both hear of it."""
        if other is None or (ours is not None and other.token == ours.token):
            return
        if other.leader is None or other.leader.host != self._mine.host:
            return
        handle = _library().blink_bootstrap_connect(
            other.address.partition(" ")[0].encode(), other.token.encode(), 0, self._size, None
        )
        if handle is None:
            return  # an earlier run's
        end = Bootstrap(handle, 0, self._size, lambda: None)
        try:
            end.all_gather(b"", time.monotonic() + GRACE_S)
        except PlanMismatchError:
            raise
        except CommunicationError:
            return  # it has no time for us, or has ended
        finally:
            end.close()

    def _published(self) -> Published | None:
        return None if self._size == 1 else _read(self._store, self._key, _PUBLISHED)

    def _tell_presence(self, trouble: str = "") -> None:
        presence = Presence(self._mine, time.monotonic(), trouble)
        self._store.set(f"{self._here}/{self._rank}", msgspec.msgpack.encode(presence))

    def _presence(self, rank: int) -> Presence | None:
        with suppress(CommunicationError):  # another version's is left to the meeting
            return _read(self._store, f"{self._here}/{rank}", _PRESENCE)
        return None

    def _timeout(self) -> RendezvousTimeout:
        """The deadline has passed without a rank 0: those that came tell who else did not."""
        self._tell_presence()
        present = {rank for rank in range(1, self._size) if self._is_here(rank)} | {self._rank}
        text = f"rank {self._rank} of {self._size} waited for rank 0 past the deadline: {self._note}"
        return RendezvousTimeout(set(range(self._size)) - present, present, text)

    def _is_here(self, rank: int) -> bool:
        found = self._presence(rank)
        return found is not None and (alive(found.peer) is not False or found.seen > self._began)


def own_address_towards(host: str) -> str:
    """This host's address on the way to ``host``; its name where that cannot be found out.

    Where ``host`` is this one by a name that leads to a loopback here (127.0.1.1 in many hosts' files), the address
    that leads elsewhere.
    """
    found = _source_address(host)
    if found is None or is_local(host) or not is_local(found):
        return found or socket.gethostname()
    elsewhere = _source_address("192.0.2.1")  # nobody's, so by the default route
    others = [address for address in (elsewhere, *own_addresses().values()) if address and not is_local(address)]
    return next(iter(others), found)


def _source_address(host: str) -> str | None:
    """The address that packets to ``host`` come from; of IPv4 where it has both."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing
            return str(probe.getsockname()[0])
    return None


#: Made with the module, as ranks may be threads: see :mod:`blinkccl.schedule.text`.
_PRESENCE, _PUBLISHED = msgspec.msgpack.Decoder(Presence), msgspec.msgpack.Decoder(Published)


def _read(store: Store, key: str, decoder: msgspec.msgpack.Decoder[_Kind]) -> _Kind | None:
    data = store.peek(key)
    try:
        return None if data is None else decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CommunicationError(
            f"key {key!r} of the store holds nothing of ours: {error}; give the job a store of its own in BLINK_STORE"
        ) from None


@lru_cache(maxsize=1)
def _library() -> c.CDLL:
    native_library.load()  # says best what is missing
    path = native_library.find()
    assert path is not None
    return open_library(path, _HEADER.functions, "blink_abi_version")


_ends: weakref.WeakSet[Bootstrap] = weakref.WeakSet()


def _let_go() -> None:
    """A forked child keeps no copies of connections, whose end tells that the rank has ended."""
    for end in list(_ends):
        end.close()


os.register_at_fork(after_in_child=_let_go)
