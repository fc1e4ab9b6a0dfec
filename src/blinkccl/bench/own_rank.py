"""A rank of ours, measured: the communicator on the host engine."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray

from blinkccl.bench.peers.registry import version_of
from blinkccl.bench.perform import Bytes, private_memory, typed
from blinkccl.bench.protocol import Command
from blinkccl.collectives.ops import element_type
from blinkccl.errors import UnsupportedError
from blinkccl.runtime.communicator import Communicator, init
from blinkccl.runtime.heap import empty


class OwnLibrary:
    """A communicator, and the loop in C that times it."""

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.rank: int = communicator.rank
        self.size: int = communicator.size
        self.title = f"blink-ccl {version_of('blink-ccl')}"

    @classmethod
    def join(cls, deadline_s: float) -> Self:
        """Join the job that the environment names (:mod:`blinkccl.runtime.environment`).

        Parameters
        ----------
        deadline_s
            For every wait.
        """
        return cls(init(deadline_s=deadline_s))

    def close(self) -> None:
        """Leave the job."""
        self.communicator.close()

    def allocate(self, size: int, shared: bool) -> Bytes:
        """Private memory like every peer's, or a shared tensor."""
        if not shared:
            return private_memory(size)
        memory: Bytes = empty(size, np.uint8)
        return memory

    def time(
        self, command: Command, send: Bytes | None, recv: Bytes | None, warmup: int, iterations: int
    ) -> NDArray[np.float64]:
        """As :class:`blinkccl.bench.perform.Library` says."""
        if command.op == "premul_sum":
            raise UnsupportedError("the timed loop has no premul_sum; -o sum does the same work but for one product")
        storage = element_type(command.dtype).storage
        if send is None and recv is None:  # A rank that only looks on says by a buffer what it looks on at.
            recv = private_memory(max(1, command.count * command.itemsize))[: command.count * command.itemsize]
        lone = command.collective == "sendrecv"
        return self.communicator.time(
            command.collective,
            typed(send, storage),
            typed(recv, storage),
            op=command.op,
            root=command.src if lone else command.root,
            dst=command.dst,
            warmup=warmup,
            iterations=iterations,
        )
