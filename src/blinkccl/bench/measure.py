"""A plan run for real in this process, timed as nccl-tests does, every result checked.

Times include the copy of the inputs that an engine makes for each run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blinkccl.bench.protocol import MAX_ITERATIONS
from blinkccl.bench.rows import SizeRow, SizeTiming
from blinkccl.bench.sizes import MAX_BYTES, block_count
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DType, element_type, operation
from blinkccl.collectives.oracle import make_inputs, make_scales, oracle, wrong_elements
from blinkccl.collectives.spec import Collective
from blinkccl.engines.registry import Array, engine
from blinkccl.errors import UsageError
from blinkccl.forest.model import Forest
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.schedule.verifier import verify
from blinkccl.units import algbw_gb_per_s, bus_factor


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """How to measure.

    Parameters
    ----------
    iterations, warmup
        Runs that are timed, and runs before them that are not.
    dtype, op
        Names in :mod:`blinkccl.collectives.ops`.
    check
        Compare every run's outputs with the oracle's, bit for bit.
    deadline_s
        Seconds that one run may take.
    """

    iterations: int = 20
    warmup: int = 1
    dtype: str = "float32"
    op: str = "sum"
    check: bool = True
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    engine: str = "reference"
    deadline_s: float = 60.0


class Bench:
    """A forest, lowered and verified, ready to be measured."""

    def __init__(self, forest: Forest, settings: PlanSettings) -> None:
        _check(settings)
        self.forest = forest
        self.settings = settings
        self.dtype: DType = element_type(settings.dtype)
        self.program: Program = lower(forest)
        verify(self.program, forest.topology)

    @property
    def collective(self) -> Collective:
        """What is run."""
        return self.forest.collective

    def check_sizes(self, sizes: Sequence[int]) -> None:
        """Refuse sizes that this machine has no memory for."""
        for size in sizes:
            count = block_count(self.collective, size, self.dtype.itemsize)
            check_memory(self.collective, count * self.dtype.itemsize)

    def rows(
        self, sizes: Sequence[int], progress: Callable[[int, int], None] = lambda done, total: None
    ) -> Iterator[SizeRow]:
        """Measure each size, out of place and in place.

        Parameters
        ----------
        sizes
            Bytes, as nccl-tests counts S.
        progress
            Called as ``progress(done, total)``, in runs.
        """
        places = (False,) if self.collective.name == "alltoall" else (False, True)
        runs = self.settings.iterations + self.settings.warmup
        total, done = len(sizes) * len(places) * runs, 0

        def tick() -> None:
            nonlocal done
            done += 1
            progress(done, total)

        for size in sizes:
            count = block_count(self.collective, size, self.dtype.itemsize)
            inputs = make_inputs(self.collective, count, self.dtype.name, seed=size, op=self.settings.op)
            expected = self._expected(inputs) if self.settings.check else None
            timings = [self._measure(count, inputs, expected, in_place, tick) for in_place in places]
            yield SizeRow(
                count * self.collective.total_blocks() * self.dtype.itemsize,
                count,
                timings[0],
                timings[1] if len(timings) > 1 else None,
            )

    def _scales(self) -> list[float] | None:
        scaled = operation(self.settings.op).scales
        return make_scales(self.collective, self.dtype.name) if scaled else None

    def _expected(self, inputs: Sequence[Array | None]) -> Sequence[Array | None]:
        return oracle(self.collective, inputs, self.settings.op, self._scales())

    def _measure(
        self,
        count: int,
        inputs: Sequence[Array | None],
        expected: Sequence[Array | None] | None,
        in_place: bool,
        tick: Callable[[], None],
    ) -> SizeTiming:
        settings, scales = self.settings, self._scales()
        run = engine(settings.engine).run
        call = CollectiveCall.of(self.collective, self.dtype.name, count, settings.op)
        seconds, wrong = 0.0, 0
        for number in range(-settings.warmup, settings.iterations):
            began = time.perf_counter()
            outputs = run(
                self.program,
                inputs,
                call,
                scales=scales,
                chunk_bytes=settings.chunk_bytes,
                in_place=in_place,
                deadline_s=settings.deadline_s,
            )
            seconds += time.perf_counter() - began if number >= 0 else 0.0
            wrong += wrong_elements(outputs, expected) if expected is not None else 0
            tick()
        return self._timing(count, seconds / settings.iterations, wrong if expected is not None else None)

    def _timing(self, count: int, seconds: float, wrong: int | None) -> SizeTiming:
        collective = self.collective
        algbw = algbw_gb_per_s(count * collective.total_blocks() * self.dtype.itemsize, seconds)
        factor = bus_factor(collective.name, collective.world_size)
        return SizeTiming(seconds, algbw, algbw * float(factor), wrong)


def _check(settings: PlanSettings) -> None:
    engine(settings.engine)
    operation(settings.op)
    check_range("-n", settings.iterations, 1, MAX_ITERATIONS)
    check_range("-w", settings.warmup, 0, MAX_ITERATIONS)
    check_range("--chunk", settings.chunk_bytes, 1, MAX_BYTES)
    if not 0 < settings.deadline_s < float("inf"):
        raise UsageError(f"--timeout must be a positive number of seconds, got {settings.deadline_s}")


def check_range(option: str, value: int, least: int, most: int) -> None:
    """Refuse a number that is out of range."""
    if value < least:
        raise UsageError(f"{option} must be at least {least}, got {value}")
    if value > most:
        raise UsageError(f"{option} must be at most {most:,}, got {value}")


def check_memory(collective: Collective, block_bytes: int, copies: int = 2) -> None:
    """Refuse what cannot fit before the machine swaps.

    Parameters
    ----------
    copies
        How often every rank's buffers are needed; 2 with inputs kept aside and expected outputs.
    """
    blocks = sum(
        collective.input_blocks(rank) + collective.output_blocks(rank) for rank in range(collective.world_size)
    )
    needed, there = copies * blocks * block_bytes, _memory_bytes()
    if there is not None and needed > there:
        raise UsageError(
            f"{collective.name} of {block_bytes} bytes a block needs about "
            f"{needed / 1e9:.1f} GB of memory for {collective.world_size} ranks; this "
            f"machine has {there / 1e9:.1f} GB: lower -e, or take fewer GPUs"
        )


def _memory_bytes() -> int | None:
    """Physical memory; None where the system does not say."""
    names: Any = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names or "SC_PAGE_SIZE" not in names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
