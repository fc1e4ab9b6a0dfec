"""How do file descriptors travel? In packets on an abstract Unix socket, from processes that the kernel names.

Sources: unix(7), on abstract names, SO_PEERCRED and SCM_RIGHTS (at most 253 descriptors a packet).
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from array import array
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from blinkccl.errors import CommunicationError
from blinkccl.runtime.door import MAX_PACKET_BYTES

_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_Kind = TypeVar("_Kind")


@dataclass
class Descriptors:
    """File descriptors that all ranks share. They are the caller's, all close on exec.

    ``heap_fds`` has an entry per rank, None where that rank has no heap; one's own is the one that was given.
    """

    segment_fd: int
    heap_fds: list[int | None]
    rank: int
    _closed: bool = field(default=False, repr=False)

    def close(self) -> None:
        """Closes all but one's own heap's; may be called twice."""
        if not self._closed:
            self._closed = True
            close_all([self.segment_fd, *(fd for rank, fd in enumerate(self.heap_fds) if rank != self.rank)])


def packet_socket() -> socket.socket:
    """A socket on which a packet comes whole with its descriptors, or not at all."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Number, user and group of the process at the other end, as the kernel knows them."""
    pid, uid, gid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid


def receive(connection: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """One packet with at most ``most`` descriptors, which close on exec; b"" where the other end hung up.

    Raises
    ------
    CommunicationError
        If more came than fits, or this process may not open as many; nothing is left open.
    """
    fds = array("i")
    # Not socket.recv_fds: it forgets its flags, and descriptors would outlive an exec.
    packet, ancillary, flags, _ = connection.recvmsg(
        MAX_PACKET_BYTES, socket.CMSG_LEN(most * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    descriptors = list(fds)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(descriptors)
        raise CommunicationError(
            f"a packet came cut off, with {len(descriptors)} of at most {most} descriptors; is the limit on open files "
            "(ulimit -n) too low?"
        )
    if not all(stat.S_ISREG(os.fstat(fd).st_mode) for fd in descriptors):
        close_all(descriptors)
        raise CommunicationError("a descriptor came that is no memory")
    return packet, descriptors


def decoded(packet: bytes, kind: type[_Kind]) -> _Kind:
    """What rank 0 packed; CommunicationError if these bytes are no ``kind``."""
    try:
        return msgspec.msgpack.decode(packet, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise CommunicationError(f"rank 0 sent what is no {kind.__name__}: {error}") from None


def close_all(descriptors: Iterable[int | None]) -> None:
    """Closes those that are there."""
    for fd in descriptors:
        if fd is not None:
            with suppress(OSError):
                os.close(fd)
