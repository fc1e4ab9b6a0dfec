"""Who is a rank? What it tells the others about itself before they share anything."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

import msgspec

from blinkccl.errors import CommunicationError
from blinkccl.runtime.process import PROC, lives, namespace, start_time

#: Of what ranks say to each other, in stores, at handover and in shared memory. Raise it with any of them.
PROTOCOL = 1


class Card(msgspec.Struct, frozen=True):
    """A rank, its process, and the host that this runs on.

    ``boot_id`` is the kernel's own name for its present run, ``network`` and ``processes`` are inodes of the
    process's namespaces: two processes with the first two equal can reach each other's abstract sockets, so they
    can share memory. With the third equal they know each other by number. ``payload`` is the caller's.
    """

    rank: int
    world_size: int
    hostname: str
    boot_id: str
    network: int
    processes: int
    pid: int
    start: int
    uid: int
    version: str
    protocol: int
    payload: bytes = b""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.hostname}"

    @property
    def host(self) -> tuple[str, int]:
        """Equal for processes that can share memory."""
        return self.boot_id, self.network


def own_card(rank: int, world_size: int, payload: bytes = b"") -> Card:
    """This process's card, as rank ``rank`` of ``world_size``."""
    return Card(
        rank,
        world_size,
        platform.node(),
        _boot_id(),
        namespace("net"),
        namespace("pid"),
        os.getpid(),
        start_time(os.getpid()),
        os.geteuid() if hasattr(os, "geteuid") else 0,
        package_version(),
        PROTOCOL,
        payload,
    )


def encode(card: Card) -> bytes:
    """``card`` as bytes; :func:`decode` reads them."""
    return msgspec.msgpack.encode(card)


def decode(data: bytes) -> Card:
    """The card that :func:`encode` wrote.

    Raises
    ------
    CommunicationError
        If these bytes are none.
    """
    try:
        return msgspec.msgpack.decode(data, type=Card)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CommunicationError(f"not a rank's card: {error}; does another version of Blink use this store?") from None


def same_host(cards: Sequence[Card]) -> bool:
    """Whether all these ranks can share memory: one kernel, one network namespace."""
    return len({card.host for card in cards}) <= 1


def alive(card: Card) -> bool | None:
    """Whether the process of ``card`` still runs; None where that cannot be seen from here."""
    if not card.processes or (card.boot_id, card.processes) != (_boot_id(), namespace("pid")):
        return None
    return lives(card.pid, card.start)


def package_version() -> str:
    """This package's version; "unknown" where it runs without having been installed."""
    try:
        return version("blink-ccl")
    except PackageNotFoundError:
        return "unknown"


def _boot_id() -> str:
    """The kernel's; elsewhere than on Linux the host's name has to do."""
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()
