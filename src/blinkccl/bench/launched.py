"""How is a benchmark run by ranks that torchrun, mpirun or srun started? Rank 0 leads, the others follow.

Commands and replies are those of :mod:`blinkccl.bench.protocol`, carried by the communicator that is measured:
rank 0 broadcasts everybody's commands and gathers the replies.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.bench.contender import Measured
from blinkccl.bench.perform import Library, Performer
from blinkccl.bench.protocol import COMMAND, REPLY, Command, Kind, Reply, Status, read_command, read_reply
from blinkccl.errors import CommunicationError, UnsupportedError

#: One of these is set in a process that a launcher started (:mod:`blinkccl.runtime.environment`).
_MARKS = (
    "BLINK_RANK",
    "BLINK_WORLD_SIZE",
    "RANK",
    "WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "SLURM_STEP_NODELIST",
)
#: Bytes of a reply's text that travel.
_TEXT = 1024
_LENGTH = struct.Struct("<Q")

Bytes = NDArray[np.uint8]


def launcher(environ: Mapping[str, str]) -> str | None:
    """Who started this process as a rank of several; None: nobody did.

    Raises
    ------
    LaunchError
        If the environment contradicts itself.
    """
    if not any(mark in environ for mark in _MARKS):
        return None
    from blinkccl.runtime.environment import launch

    found = launch(environ)
    return found.launcher if found.world_size > 1 else None


class Leader:
    """Rank 0: gives commands to all ranks, itself among them."""

    def __init__(self, communicator: Any, library: Library) -> None:
        self._communicator = communicator
        self._performer = Performer(library)
        self.pids: list[int] = _pids(communicator)

    def run(self, commands: Sequence[Command]) -> Measured:
        """As :meth:`blinkccl.bench.contender.Contender.run`."""
        frames = [command.pack() for command in commands]
        _broadcast(self._communicator, b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames))
        replies = _work(self._communicator, self._performer, frames[0])
        size = len(replies) // len(commands)
        rows, wrong = [], 0
        for rank in range(len(commands)):
            status, bad, seconds, text = _unpack(replies[rank * size : (rank + 1) * size].tobytes())
            if status is Status.UNSUPPORTED:
                raise UnsupportedError(f"rank {rank}: {text}")
            if status is Status.FAILED:
                raise CommunicationError(f"rank {rank}: {text}")
            rows.append(seconds)
            wrong += bad
        return Measured(np.stack(rows), wrong)

    def close(self) -> None:
        """Let the followers go."""
        frame = Command(Kind.QUIT).pack()
        _broadcast(self._communicator, (_LENGTH.pack(len(frame)) + frame) * self._communicator.size)


def follow(communicator: Any, library: Library) -> None:
    """Every other rank: do what rank 0 says until it says QUIT."""
    performer = Performer(library)
    _pids(communicator)
    while True:
        data, at = _broadcast(communicator), 0
        for _ in range(communicator.rank):
            at += _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
        length = _LENGTH.unpack_from(data, at)[0]
        frame = data[at + _LENGTH.size : at + _LENGTH.size + length]
        if read_command(frame[: COMMAND.size])[0].kind is Kind.QUIT:
            return
        _work(communicator, performer, frame)


def _pids(communicator: Any) -> list[int]:
    found = np.zeros(communicator.size, np.int64)
    communicator.allgather(np.array([os.getpid()], np.int64), found)
    return [int(pid) for pid in found]


def _broadcast(communicator: Any, data: bytes = b"") -> bytes:
    """Rank 0's ``data`` on every rank."""
    length = np.array([len(data)], np.int64)
    communicator.broadcast(length, root=0)
    buffer = np.frombuffer(data, np.uint8).copy() if communicator.rank == 0 else np.zeros(int(length[0]), np.uint8)
    communicator.broadcast(buffer, root=0)
    return buffer.tobytes()


def _work(communicator: Any, performer: Performer, frame: bytes) -> Bytes:
    """Perform, and gather the replies at rank 0, all of one size."""
    command, fill, expected = read_command(frame[: COMMAND.size])
    body = frame[COMMAND.size :]
    reply = performer.perform(command, body[:fill], body[fill : fill + expected])
    short = Reply(reply.status, reply.wrong, reply.seconds, reply.text.encode()[:_TEXT].decode(errors="ignore"))
    mine = np.zeros(REPLY.size + 8 * command.iterations + _TEXT, np.uint8)
    packed = np.frombuffer(short.pack(), np.uint8)
    mine[: packed.size] = packed
    everybody = np.zeros(mine.size * communicator.size, np.uint8) if communicator.rank == 0 else None
    communicator.gather(mine, everybody, root=0)
    return everybody if everybody is not None else mine


def _unpack(data: bytes) -> tuple[Status, int, NDArray[np.float64], str]:
    status, wrong, n, length = read_reply(data[: REPLY.size])
    body = data[REPLY.size :]
    text = body[8 * n : 8 * n + length].decode(errors="replace")
    return status, wrong, np.frombuffer(body[: 8 * n], np.float64), text
