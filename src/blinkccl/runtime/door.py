"""Who may come in at a handover? What ranks say there, and rank 0's judgement of it, without sockets.

One packet each way and one back: a rank sends its :class:`Hello`, rank 0 answers with an :class:`Answer`, and the
rank confirms what it got with :data:`GOT`. A rank that cannot wait any longer says :data:`LATE`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from secrets import compare_digest

import msgspec

#: The longest packet; an answer names at most 250 ranks.
MAX_PACKET_BYTES = 1 << 13
GOT = b"got"
LATE = b"late"


class Door(msgspec.Struct, frozen=True):
    """Where rank 0 listens and what a rank has to know; lies in the store, which only ranks of the job read."""

    name: str
    token: str
    pid: int


class Hello(msgspec.Struct, frozen=True):
    """What a rank says first; its heap's descriptor travels with it if ``heap``."""

    token: str
    rank: int
    heap: bool


class Answer(msgspec.Struct, frozen=True):
    """What rank 0 answers.

    ``what`` is "shared": the segment's descriptor travels with it, then those of the ranks with true in ``heaps``;
    "refused": this connection is not a rank's, for ``reason``; "missing": ``missing`` did not come in time; "lost":
    rank ``lost``, process ``pid``, is gone; "failed": the handover cannot be, for ``reason``.
    """

    what: str
    reason: str = ""
    heaps: tuple[bool, ...] = ()
    missing: tuple[int, ...] = ()
    present: tuple[int, ...] = ()
    lost: int = -1
    pid: int | None = None


@dataclass
class Doorkeeper:
    """Judges who comes: a rank of this job, of this user, once.

    Parameters
    ----------
    token
        The secret that the job's ranks have read in the store.
    uid
        This process's user.
    size
        How many ranks there are; rank 0 is inside.
    """

    token: str
    uid: int
    size: int
    inside: dict[int, int] = field(default_factory=dict)  # rank → its process's number

    def stranger(self, uid: int, pid: int) -> str | None:
        """Why a process may not even speak; None: it may."""
        return None if uid == self.uid else f"expected user {self.uid}, got user {uid} (process {pid})"

    def admit(self, packet: bytes, descriptors: int, pid: int) -> Hello | str:
        """The hello of a rank that may come in, which then counts as inside; or why it may not."""
        try:
            hello = msgspec.msgpack.decode(packet, type=Hello)
        except (msgspec.MsgspecError, UnicodeError):
            return f"process {pid} sent no hello"
        if not compare_digest(hello.token.encode(), self.token.encode()):
            return f"process {pid} does not know this job's token"
        if not 1 <= hello.rank < self.size:
            return f"process {pid} says it is rank {hello.rank}, expected 1 to {self.size - 1}"
        if descriptors != int(hello.heap):
            return f"rank {hello.rank} sent {descriptors} descriptors, expected {int(hello.heap)}"
        if hello.rank in self.inside:
            return f"rank {hello.rank} came twice: as process {self.inside[hello.rank]} and as process {pid}"
        self.inside[hello.rank] = pid
        return hello

    def missing(self) -> list[int]:
        """The ranks that have not come."""
        return [rank for rank in range(1, self.size) if rank not in self.inside]


def pack(message: msgspec.Struct) -> bytes:
    """``message`` as one packet."""
    return msgspec.msgpack.encode(message)
