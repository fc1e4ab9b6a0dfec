"""Interleaved runs of several candidates on one host, which make their ratios reliable.

A block is one candidate, one size and one placement: warmup runs, then timed runs. In a round every candidate gets a
block while the others sleep; the order shifts from round to round. The probe for %bound runs in the same round. Ratios
are taken within a round, and the median of the rounds is reported (:func:`blinkccl.bench.rows.paired`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from blinkccl.bench.bound import Probe, least_traffic
from blinkccl.bench.candidate import RankTimes
from blinkccl.bench.pattern import TimedCall, commands
from blinkccl.bench.protocol import MAX_ITERATIONS, Command
from blinkccl.bench.rows import Series, SizeRow, SizeTiming, paired, timing
from blinkccl.bench.sizes import block_count, check_range
from blinkccl.collectives.ops import element_type, operation
from blinkccl.collectives.spec import Collective
from blinkccl.errors import CommunicationError, UnsupportedError

#: Least iterations of a slow peer.
LEAST_ITERATIONS = 3
#: Longest expected run of a peer, in seconds; beyond it, the peer is left out.
HOPELESS_S = 10.0
#: Most memory that all candidates together keep between blocks, to avoid allocating pages again.
KEEP_BYTES = 4 * 2**30


class Runs(Protocol):
    """Runners of commands: processes, or ranks of a launcher."""

    def run(self, commands: Sequence[Command], /) -> RankTimes: ...


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Settings: ``iterations`` timed runs per block after ``warmup`` runs, and ``rounds`` blocks per candidate.

    One more run per block is checked and not timed. The time of an iteration is that of its slowest rank, or
    ``with_barrier`` the ranks' mean and with the barrier before it: ranks that share cores wait for a core in the
    barrier with some libraries, and in the call with others. ``shared`` applies to blink's buffers only. The timeout of
    a block is ``deadline_s`` seconds (an integer). A peer's timed runs may take ``block_s``: a slow peer gets fewer
    iterations, at least :data:`LEAST_ITERATIONS`.
    """

    dtype: str = "float32"
    op: str = "sum"
    iterations: int = 20
    warmup: int = 1
    rounds: int = 5
    with_barrier: bool = False
    shared: bool = False
    deadline_s: int = 60
    block_s: float = 2.0

    def __post_init__(self) -> None:
        """Refuse invalid settings before anything starts."""
        operation(self.op)
        element_type(self.dtype)
        check_range("-n", self.iterations, 1, MAX_ITERATIONS)
        check_range("warmup", self.warmup, 0, MAX_ITERATIONS)
        check_range("--rounds", self.rounds, 1, MAX_ITERATIONS)


@dataclass(slots=True)
class Participant:
    """A candidate of the benchmark, a variant of peer ``name`` ("" for blink)."""

    name: str
    variant: str
    runs: Runs
    #: Blink's ranks, which may have tensors in shared memory.
    of_blink: bool = False
    #: Seconds of one run and its size, from the last measurement.
    last: tuple[float, int] | None = None
    #: The reason for its end, if it takes no further part.
    left: str | None = None
    #: The last size from which it was left out.
    spared: int | None = None

    @property
    def title(self) -> str:
        """Name and variant."""
        return f"{self.name} ({self.variant})" if self.variant else self.name


@dataclass(slots=True)
class Interleaved:
    """One collective, run in turns by blink (the first participant) and peers; ``note`` gets the reason of an end."""

    collective: Collective
    settings: BenchSettings
    participants: list[Participant]
    #: The memory probe; None without a bound.
    probe: Probe | None = None
    note: Callable[[str], None] = lambda text: None
    tick: Callable[[], None] = field(default=lambda: None)

    def places(self) -> tuple[bool, ...]:
        """The placements: out of place (False) and, except for alltoall, in place (True)."""
        return (False,) if self.collective.name == "alltoall" else (False, True)

    def ticks(self, sizes: Sequence[int]) -> int:
        """The number of calls of ``tick``."""
        return len(sizes) * len(self.places()) * self.settings.rounds * len(self.participants)

    def rows(self, sizes: Sequence[int]) -> Iterator[SizeRow]:
        """Measure each size."""
        for size in sizes:
            count = block_count(self.collective, size, element_type(self.settings.dtype).itemsize)
            measured = [self._place(count, in_place) for in_place in self.places()]
            yield self._row(count, measured)

    def measure(self, work: TimedCall) -> tuple[list[Series | None], list[float] | None]:
        """Run all rounds of one size and placement; a series per participant, and each round's bound in seconds."""
        series: list[Series | None] = [None] * len(self.participants)
        floors: list[float] = []
        traffic = least_traffic(self.collective, work.count * element_type(work.dtype).itemsize, work.in_place)
        work = replace(work, keep=sum(work.buffer_bytes) * len(self.participants) <= KEEP_BYTES)
        for number in range(self.settings.rounds):
            for turn in range(len(self.participants)):
                at = (turn + number) % len(self.participants)
                self._block(at, work, series)
                self.tick()
            if self.probe is not None:
                floors.append(traffic / self.probe.rate(sum(work.buffer_bytes)))
        return series, floors or None

    def _block(self, at: int, work: TimedCall, series: list[Series | None]) -> None:
        participant, own = self.participants[at], at == 0
        if participant.left is not None:
            return
        call = replace(work, shared=work.shared and (own or participant.of_blink))
        try:
            iterations = self.settings.iterations if own else self._affordable(participant, call)
            if not iterations:
                return
            measured = participant.runs.run(commands(replace(call, iterations=iterations)))
        except UnsupportedError:
            if own:
                raise
            return  # The peer may support the next size.
        except CommunicationError as error:
            if own:
                raise
            participant.left, series[at] = str(error), None
            self.note(f"continuing without {participant.title}: {error}")
            return
        seconds = measured.seconds
        values = seconds.mean(0) if self.settings.with_barrier else seconds.max(0)
        collected = series[at] = series[at] or Series([])
        collected.rounds.append(values)
        collected.variant = measured.variant
        collected.wrong += measured.wrong
        participant.last = (collected.median_s(), max(1, work.size))

    def _affordable(self, participant: Participant, work: TimedCall) -> int:
        """The iterations of ``participant`` that fit into the time of a block; 0 to leave it out."""
        if participant.last is None:
            pilot = participant.runs.run(commands(replace(work, warmup=1, iterations=1, check=False)))
            participant.last = (float(pilot.seconds.max()), max(1, work.size))
        seconds, size = participant.last
        expected = seconds * max(1.0, work.size / size)
        if expected > min(HOPELESS_S, self.settings.deadline_s / (LEAST_ITERATIONS + work.warmup + 1)):
            if participant.spared != work.size:
                self.note(f"leaving {participant.title} out at {work.size} bytes: {size} bytes took {seconds:.1f} s")
            participant.spared = work.size
            return 0
        return max(LEAST_ITERATIONS, min(self.settings.iterations, int(self.settings.block_s / max(expected, 1e-9))))

    def _place(self, count: int, in_place: bool) -> tuple[list[Series | None], list[float] | None]:
        settings = self.settings
        work = TimedCall(
            self.collective,
            count,
            settings.dtype,
            settings.op,
            in_place,
            settings.shared,
            True,
            False,
            settings.warmup,
            settings.iterations,
            settings.deadline_s,
            settings.with_barrier,
        )
        return self.measure(work)

    def _row(self, count: int, measured: Sequence[tuple[list[Series | None], list[float] | None]]) -> SizeRow:
        size = count * self.collective.total_blocks() * element_type(self.settings.dtype).itemsize
        own_timings = []
        for series, floors in measured:
            own = series[0]
            assert own is not None
            own_timings.append(timing(self.collective, size, own, floors))
        peers = []
        for name in dict.fromkeys(participant.name for participant in self.participants[1:]):
            out, into = [*(self._best(name, series, size) for series, _ in measured), None][:2]
            peers.append((name, out, into))
        return SizeRow(size, count, own_timings[0], own_timings[1] if len(own_timings) > 1 else None, tuple(peers))

    def _best(self, name: str, series: Sequence[Series | None], size: int) -> SizeTiming | None:
        """The fastest variant of the peer ``name``, with its ratio to blink in the same rounds."""
        own = series[0]
        assert own is not None
        complete = [
            (participant, one)
            for participant, one in zip(self.participants, series, strict=True)
            if participant.name == name and one is not None and len(one.rounds) == len(own.rounds)
        ]
        if not complete:
            return None
        participant, best = min(complete, key=lambda pair: pair[1].median_s())
        peer = timing(self.collective, size, best)
        return replace(
            peer, variant=participant.variant or best.variant, ratio=paired(best.medians_s(), own.medians_s())
        )
