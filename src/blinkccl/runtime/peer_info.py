"""Peer info: what a rank tells the others about its process and its host before they share anything."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import msgspec

from blinkccl.errors import CommunicationError, PlanMismatchError
from blinkccl.runtime.process import PROC, lives, namespace, start_time

_HOST_ID = "BLINK_HOSTID"


class PeerInfo(msgspec.Struct, frozen=True):
    """A rank, its process, and its host's present boot; ``payload`` is the caller's.

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

    def __str__(self) -> str:
        return f"process {self.pid} on {self.hostname}"

    @property
    def host(self) -> tuple[str, int]:
        """Equal for processes that can share memory."""
        return self.boot_id, self.network


def own_peer_info(rank: int, world_size: int, payload: bytes = b"") -> PeerInfo:
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
    )


def decode(data: bytes) -> PeerInfo:
    """The peer info in ``data``, which is msgpack; CommunicationError if these bytes are none."""
    try:
        return msgspec.msgpack.decode(data, type=PeerInfo)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CommunicationError(f"not a rank's peer info: {error}; is another version of Blink in this job?") from None


def check_same_version(peers: Sequence[PeerInfo]) -> None:
    """Refuses ranks of different versions, with the same words on every rank: rank 0, and the first that differs."""
    for other in peers:
        if other.version != peers[0].version:
            raise PlanMismatchError(
                f"ranks disagree on version: rank 0 ({peers[0]}) has {peers[0].version}, rank {other.rank} ({other}) "
                f"has {other.version}; start all ranks of the job with the same"
            )


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
