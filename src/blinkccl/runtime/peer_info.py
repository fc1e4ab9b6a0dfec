"""Peer info: the description of its process and host that a rank sends to the others before they share memory."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import msgspec

from blinkccl.errors import CommunicationError, PlanMismatchError
from blinkccl.runtime.process import PROC, lives, namespace, start_time

#: The variable that places processes of one machine on different hosts.
HOST_ID = "BLINK_HOSTID"


class PeerInfo(msgspec.Struct, frozen=True):
    """A rank, its process, and its host's boot; ``deterministic`` is the rank's option.

    ``token`` is fresh for each group; rank 0's marks the group's memory. Other versions may lack fields.
    ``network`` and ``processes`` are inodes of namespaces. Two processes can share memory if ``boot_id`` and
    ``network`` are equal; they see each other's process numbers if ``processes`` is equal.
    """

    rank: int
    hostname: str = "an unknown host"
    pid: int = 0
    version: str = "an unknown one"
    world_size: int = 0
    boot_id: str = ""
    network: int = 0
    processes: int = 0
    start: int = 0
    token: bytes = b""
    deterministic: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.hostname}"

    @property
    def host(self) -> tuple[str, int]:
        """Equal for processes that can share memory."""
        return self.boot_id, self.network


def own_peer_info(rank: int, world_size: int, deterministic: str = "") -> PeerInfo:
    """Peer info of this process as rank ``rank`` of ``world_size``."""
    return PeerInfo(
        rank,
        platform.node(),
        os.getpid(),
        package_version(),
        world_size,
        _boot_id(),
        namespace("net"),
        namespace("pid"),
        start_time(os.getpid()),
        secrets.token_bytes(16),
        deterministic,
    )


def decode(data: bytes) -> PeerInfo:
    """Decode msgpack ``data``, of any version; CommunicationError if it is not a peer info."""
    try:
        return msgspec.msgpack.decode(data, type=PeerInfo)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CommunicationError(f"not a rank's peer info: {error}; is another version of Blink in this job?") from None


def decode_all(words: Sequence[bytes]) -> tuple[PeerInfo, ...]:
    """Decode the peer info of all ranks, by rank.

    The errors have the same text on every rank: PlanMismatchError, which names rank 0 and the first that differs, if
    ranks differ in version or in the promised order; CommunicationError if a rank sent something else.
    """
    peers = tuple(map(decode, words))
    for rank, peer in enumerate(peers):
        if peer.version != peers[0].version:
            raise PlanMismatchError(
                f"ranks disagree on version: rank 0 ({peers[0]}) has {peers[0].version}, rank {rank} ({peer}) has "
                f"{peer.version}; install the same on all hosts"
            )
    for rank, peer in enumerate(peers):
        if (peer.rank, peer.world_size) != (rank, len(peers)):
            raise CommunicationError(
                f"rank {rank} of {len(peers)} ({peer}) calls itself rank {peer.rank} of {peer.world_size}; give every "
                "process its own rank, and all the same number of ranks"
            )
        if peer.deterministic != peers[0].deterministic:
            first, differing = (f"{each.deterministic or 'nothing'}" for each in (peers[0], peer))
            raise PlanMismatchError(
                f"ranks disagree on BLINK_DETERMINISTIC: rank 0 ({peers[0]}) has {first}, rank {rank} ({peer}) has "
                f"{differing}; set the same value on all ranks"
            )
    return peers


def same_host(peers: Sequence[PeerInfo]) -> bool:
    """True if all these ranks can share memory: one kernel, one network namespace."""
    return len({peer.host for peer in peers}) <= 1


def alive(peer: PeerInfo) -> bool | None:
    """True if the process of ``peer`` is alive; None if it is not visible from this one."""
    if not peer.processes or (peer.boot_id, peer.processes) != (_boot_id(), namespace("pid")):
        return None
    return lives(peer.pid, peer.start)


def package_version() -> str:
    """This package's version; "unknown" if it runs without installation."""
    try:
        return version("blink-ccl")
    except PackageNotFoundError:
        return "unknown"


def _boot_id() -> str:
    """:data:`HOST_ID`; else the boot id, or the name."""
    if host_id := os.environ.get(HOST_ID):
        return host_id
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()
