"""Peer info: what a rank tells the others about its process and its host before they share anything."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import msgspec

from blinkccl.errors import CommunicationError, PlanMismatchError
from blinkccl.runtime.process import PROC, lives, namespace, start_time

_HOST_ID = "BLINK_HOSTID"
_Kind = TypeVar("_Kind")


class PeerInfo(msgspec.Struct, frozen=True):
    """A rank, its process, and its host's present boot; ``payload`` is the caller's, ``deterministic`` what it wants.

    ``network`` and ``processes`` are inodes of namespaces: with equal ``boot_id`` and ``network`` two processes can
    share memory, with equal ``processes`` they know each other by number.
    """

    rank: int
    world_size: int
    hostname: str
    boot_id: str
    network: int
    processes: int
    pid: int
    start: int
    version: str
    payload: bytes = b""
    deterministic: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.hostname}"

    @property
    def host(self) -> tuple[str, int]:
        """Equal for processes that can share memory."""
        return self.boot_id, self.network


def own_peer_info(rank: int, world_size: int, payload: bytes = b"", deterministic: str = "") -> PeerInfo:
    """This process, as rank ``rank`` of ``world_size``."""
    return PeerInfo(
        rank,
        world_size,
        platform.node(),
        _boot_id(),
        namespace("net"),
        namespace("pid"),
        os.getpid(),
        start_time(os.getpid()),
        package_version(),
        payload,
        deterministic,
    )


def decode(data: bytes) -> PeerInfo:
    """The peer info in ``data``, which is msgpack; CommunicationError if these bytes are none."""
    return _decoded(data, PeerInfo)


def _decoded(data: bytes, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CommunicationError(f"not a rank's peer info: {error}; is another version of Blink in this job?") from None


class _Outline(msgspec.Struct, frozen=True):
    """What any version's peer info has, whatever else is in it."""

    hostname: str = "an unknown host"
    pid: int = 0
    version: str = "an unknown one"

    def __str__(self) -> str:
        return f"process {self.pid} on {self.hostname}"


def decode_all(words: Sequence[bytes]) -> tuple[PeerInfo, ...]:
    """Everybody's peer info, by rank.

    With the same words on every rank: PlanMismatchError, which names rank 0 and the first that differs, if ranks have
    different versions or only some promise an order, CommunicationError if a rank sent something else.
    """
    outlines = [_decoded(word, _Outline) for word in words]
    for rank, other in enumerate(outlines):
        if other.version != outlines[0].version:
            raise PlanMismatchError(
                f"ranks disagree on version: rank 0 ({outlines[0]}) has {outlines[0].version}, rank {rank} ({other}) "
                f"has {other.version}; install the same on all hosts"
            )
    peers = tuple(map(decode, words))
    for rank, peer in enumerate(peers):
        if (peer.rank, peer.world_size) != (rank, len(peers)):
            raise CommunicationError(
                f"rank {rank} of {len(peers)} ({peer}) calls itself rank {peer.rank} of {peer.world_size}"
            )
        if peer.deterministic != peers[0].deterministic:
            ours, theirs = (f"{each.deterministic or 'nothing'}" for each in (peers[0], peer))
            raise PlanMismatchError(
                f"ranks disagree on BLINK_DETERMINISTIC: rank 0 ({peers[0]}) has {ours}, rank {rank} ({peer}) has "
                f"{theirs}; give all ranks the same"
            )
    return peers


def same_host(peers: Sequence[PeerInfo]) -> bool:
    """Whether all these ranks can share memory: one kernel, one network namespace."""
    return len({peer.host for peer in peers}) <= 1


def alive(peer: PeerInfo) -> bool | None:
    """Whether the process of ``peer`` still runs; None where that cannot be seen from here."""
    if not peer.processes or (peer.boot_id, peer.processes) != (_boot_id(), namespace("pid")):
        return None
    return lives(peer.pid, peer.start)


def package_version() -> str:
    """This package's version; "unknown" where it runs without having been installed."""
    try:
        return version("blink-ccl")
    except PackageNotFoundError:
        return "unknown"


def loopback_of_hosts() -> str | None:
    """Where ranks meet that are told by BLINK_HOSTID to be on several hosts, and by no store where those are."""
    return "127.0.0.1" if os.environ.get(_HOST_ID) else None


def _boot_id() -> str:
    """BLINK_HOSTID, by which processes of one machine are taken to be on several; else the kernel's, or a name."""
    if given := os.environ.get(_HOST_ID):
        return given
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()
