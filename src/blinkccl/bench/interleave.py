"""Several candidates on one host, block by block, in turns and in rounds, so that their ratios mean something.

A block is one candidate, one size, one placement: some runs to warm up, then the timed ones. A round gives every
candidate its block, in an order that shifts from round to round, while all others sleep; and the probe that %bound is
made of runs in the same round. Ratios are taken within a round, and the median of the rounds is reported
(:func:`blinkccl.bench.rows.paired`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from blinkccl.bench.bound import Probe, least_traffic
from blinkccl.bench.candidate import RankTimes
from blinkccl.bench.pattern import TimedCall, commands
from blinkccl.bench.protocol import MAX_ITERATIONS, Command
from blinkccl.bench.rows import WITH_BARRIER, Series, SizeRow, SizeTiming, across_ranks, paired, timing
from blinkccl.bench.sizes import block_count, check_range
from blinkccl.collectives.ops import element_type, operation
from blinkccl.collectives.spec import Collective
from blinkccl.errors import CommunicationError, UnsupportedError

#: Iterations that a slow peer gets at least.
LEAST_ITERATIONS = 3
#: A peer for which one run is expected to take longer than this is left out from there on.
HOPELESS_S = 10.0
#: Memory that all candidates together may keep between blocks, so that pages need not be made anew.
KEEP_BYTES = 4 * 2**30


class Runs(Protocol):
    """Whatever runs commands: processes, ranks that a launcher started, or an engine in this process."""

    def run(self, commands: Sequence[Command], /) -> RankTimes: ...


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """How to measure: ``iterations`` timed runs per block after ``warmup`` runs, ``rounds`` blocks per candidate.

    The output of one more, untimed run per block is checked. ``across`` is a key of
    :data:`blinkccl.bench.rows.ACROSS_RANKS`; ``shared`` is for our buffers alone. A block may take ``deadline_s`` whole
    seconds, a peer's timed runs in it ``block_s``: a slow one gets fewer, at least :data:`LEAST_ITERATIONS`.
    """

    dtype: str = "float32"
    op: str = "sum"
    iterations: int = 20
    warmup: int = 1
    rounds: int = 5
    across: int = 3
    shared: bool = False
    deadline_s: int = 60
    block_s: float = 2.0

    def __post_init__(self) -> None:
        """Refuse what makes no sense, before anything starts."""
        operation(self.op)
        element_type(self.dtype)
        check_range("-n", self.iterations, 1, MAX_ITERATIONS)
        check_range("warmup", self.warmup, 0, MAX_ITERATIONS)
        check_range("--rounds", self.rounds, 1, MAX_ITERATIONS)


@dataclass(slots=True)
class Participant:
    """A candidate in the run: ``name`` is the peer that it is a variant of, "" for ourselves."""

    name: str
    variant: str
    runs: Runs
    #: Ranks of ours, which may have tensors in shared memory.
    ours: bool = False
    #: Seconds of one run and its size, when last measured.
    last: tuple[float, int] | None = None
    #: Why it takes no part any more.
    left: str | None = None
    #: The size that it was last left out of.
    spared: int | None = None

    @property
    def title(self) -> str:
        """Name and variant."""
        return f"{self.name} ({self.variant})" if self.variant else self.name


@dataclass(slots=True)
class Interleaved:
    """One collective, ourselves (the first participant) and peers, in turns; ``note`` is told why a peer leaves."""

    collective: Collective
    settings: BenchSettings
    participants: list[Participant]
    #: None where no bound can be had.
    probe: Probe | None = None
    note: Callable[[str], None] = lambda text: None
    tick: Callable[[], None] = field(default=lambda: None)
    #: Of each of our own candidates, after a size and placement was timed: its number, and the calls.
    record: Callable[[int, Participant, TimedCall], None] | None = None

    def places(self) -> tuple[bool, ...]:
        """Out of place, and in place where there is such a thing."""
        return (False,) if self.collective.name == "alltoall" else (False, True)

    def ticks(self, sizes: Sequence[int]) -> int:
        """How often ``tick`` will be called."""
        return len(sizes) * len(self.places()) * self.settings.rounds * len(self.participants)

    def rows(self, sizes: Sequence[int]) -> Iterator[SizeRow]:
        """Measure each size."""
        for size in sizes:
            count = block_count(self.collective, size, element_type(self.settings.dtype).itemsize)
            found = [self._place(count, in_place) for in_place in self.places()]
            yield self._row(count, found)

    def measure(self, work: TimedCall) -> tuple[list[Series | None], list[float] | None]:
        """All rounds of one size and placement: a series per participant, and the rounds' least seconds."""
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
        wanted = replace(work, shared=work.shared and (own or participant.ours))
        try:
            iterations = self.settings.iterations if own else self._affordable(participant, wanted)
            if not iterations:
                return
            measured = participant.runs.run(commands(replace(wanted, iterations=iterations)))
        except UnsupportedError:
            if own:
                raise
            return  # It may well do the next thing.
        except CommunicationError as error:
            if own:
                raise
            participant.left, series[at] = str(error), None
            self.note(f"goes on without {participant.title}: {error}")
            return
        values = across_ranks(measured.seconds, self.settings.across)
        kept = series[at] = series[at] or Series([])
        kept.rounds.append(values)
        kept.variant = measured.variant
        kept.wrong += measured.wrong
        participant.last = (kept.median_s(), max(1, work.size))

    def _affordable(self, participant: Participant, work: TimedCall) -> int:
        """How many iterations ``participant`` can do in the block's time; 0 if it is to be left out."""
        if participant.last is None:
            pilot = participant.runs.run(commands(replace(work, warmup=1, iterations=1, check=False)))
            participant.last = (float(pilot.seconds.max()), max(1, work.size))
        seconds, size = participant.last
        expected = seconds * max(1.0, work.size / size)
        if expected > min(HOPELESS_S, self.settings.deadline_s / (LEAST_ITERATIONS + work.warmup + 1)):
            if participant.spared != work.size:
                self.note(f"leaves {participant.title} out of {work.size} bytes: it took {seconds:.1f} s for {size}")
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
            settings.across == WITH_BARRIER,
        )
        found = self.measure(work)
        if self.record is not None:
            for at, participant in enumerate(self.participants):
                if (at == 0 or participant.ours) and participant.left is None:
                    self.record(at, participant, work)
        return found

    def _row(self, count: int, found: Sequence[tuple[list[Series | None], list[float] | None]]) -> SizeRow:
        size = count * self.collective.total_blocks() * element_type(self.settings.dtype).itemsize
        ours = []
        for series, floors in found:
            own = series[0]
            assert own is not None
            ours.append(timing(self.collective, size, own, floors))
        peers = []
        for name in dict.fromkeys(participant.name for participant in self.participants[1:]):
            out, into = [*(self._best(name, series, size) for series, _ in found), None][:2]
            peers.append((name, out, into))
        return SizeRow(size, count, ours[0], ours[1] if len(ours) > 1 else None, tuple(peers))

    def _best(self, name: str, series: Sequence[Series | None], size: int) -> SizeTiming | None:
        """The fastest variant of the peer ``name``, beside ourselves in the same rounds."""
        own = series[0]
        assert own is not None
        complete = [
            (participant, found)
            for participant, found in zip(self.participants, series, strict=True)
            if participant.name == name and found is not None and len(found.rounds) == len(own.rounds)
        ]
        if not complete:
            return None
        participant, found = min(complete, key=lambda pair: pair[1].median_s())
        theirs = timing(self.collective, size, found)
        return replace(
            theirs, variant=participant.variant or found.variant, ratio=paired(found.medians_s(), own.medians_s())
        )
