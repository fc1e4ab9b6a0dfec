"""Timing of a plan on the reference engine, in this process, like nccl-tests, with every result checked.

Times include the engine's copy of the inputs in each run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from blinkccl.bench.candidate import RankTimes
from blinkccl.bench.pattern import fill, wrong_elements
from blinkccl.bench.protocol import Command, Flag
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import element_type, operation
from blinkccl.engines import reference
from blinkccl.engines.buffers import Array
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES
from blinkccl.schedule.lower import lower
from blinkccl.schedule.verifier import verify
from blinkccl.trees.forest.model import Forest


class PlannedRanks:
    """The ranks of a forest, lowered and verified, on the reference engine; ``deadline_s`` is a run's timeout."""

    def __init__(self, forest: Forest, chunk_bytes: int = DEFAULT_CHUNK_BYTES, deadline_s: float = 60.0) -> None:
        self.forest = forest
        self.chunk_bytes = chunk_bytes
        self._deadline_s = deadline_s
        self._program = lower(forest)
        verify(self._program, forest.topology)

    def run(self, commands: Sequence[Command]) -> RankTimes:
        """Run the ranks' commands. The times are of all ranks together, and every run is checked, not only one."""
        first = commands[0]
        call = CollectiveCall.of(self.forest.collective, first.dtype, first.count, first.op)
        inputs = list(map(_filled, commands))
        seconds, wrong = np.empty(first.warmup + first.iterations), 0
        for number in range(seconds.size):
            began = time.perf_counter()
            outputs = reference.run(
                self._program,
                inputs,
                call,
                scales=[command.scale for command in commands] if operation(first.op).scales else None,
                chunk_bytes=self.chunk_bytes,
                in_place=bool(first.flags & Flag.IN_PLACE),
                deadline_s=self._deadline_s,
            )
            seconds[number] = time.perf_counter() - began
            wrong += sum(map(_wrong, commands, outputs)) if first.flags & Flag.CHECK else 0
        return RankTimes(seconds[np.newaxis, first.warmup :], wrong)


def _filled(command: Command) -> Array | None:
    """A rank's input; None for a rank without input."""
    if not command.in_blocks:
        return None
    memory = np.empty(command.in_blocks * command.count * command.itemsize, np.uint8)
    fill(memory, command.fill, command.in_blocks, command.itemsize)
    return memory.view(element_type(command.dtype).storage)


def _wrong(command: Command, output: Array | None) -> int:
    """The number of wrong elements in a rank's output; all elements if the output is missing."""
    if output is None:
        return command.out_blocks * command.count
    return wrong_elements(output.view(np.uint8), command.expected, command.out_blocks, command.itemsize)
