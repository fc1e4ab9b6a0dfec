"""The timeline of a benchmark's ranks.

After the timed runs of a size and placement, the ranks record :data:`CALLS` more calls, which the table does not count.
Blocks of recorded calls follow each other on the time axis, without the seconds of other runs between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from blinkccl.bench.algorithms import Job
from blinkccl.bench.interleave import Participant, Runs
from blinkccl.bench.pattern import TimedCall, commands
from blinkccl.bench.protocol import Command, Kind
from blinkccl.engines.recording import Recording, add_recording
from blinkccl.trace_events import TraceEvents
from blinkccl.units import size_text

#: Recorded calls of a size and placement, and most events of a rank.
CALLS = 4
EVENTS = 65_536
#: Gap after a block of calls, as a part of its length.
_GAP = 0.05


@dataclass(frozen=True, slots=True)
class _Block:
    """Recordings of one participant, size and placement, by rank."""

    name: str
    recordings: Sequence[Recording]


@dataclass(slots=True)
class BenchTimeline:
    """The timeline of ``job``; ``ranks`` are set before the first :meth:`take`."""

    job: Job
    ranks: Runs | None = None
    _blocks: list[_Block] = field(default_factory=list)

    def take(self, at: int, participant: Participant, work: TimedCall) -> None:
        """Run the calls of participant number ``at``, and keep the recordings of its ranks."""
        assert self.ranks is not None
        size = work.collective.world_size
        with TemporaryDirectory(prefix="blink-timeline-") as directory:
            self.ranks.run([_command(EVENTS)] * size)
            participant.runs.run(commands(replace(work, warmup=0, iterations=CALLS, check=False)))
            self.ranks.run([_command(0, directory)] * size)
            recordings = [_read(Path(directory, str(rank))) for rank in range(size)]
        place = "in place" if work.in_place else "out of place"
        name = f"{self.job.names[at]}, {size_text(work.size)}, {place}"
        self._blocks.append(_Block(name, recordings))

    def events(self) -> TraceEvents:
        """The events of all blocks."""
        events = TraceEvents()
        blocks = events.process("blink bench")
        row = events.thread(blocks, "blocks", "blocks of calls")
        size = self.job.collective.world_size
        processes = [events.process(f"measured: rank {rank}") for rank in range(size)]
        cursor = 0
        for block in self._blocks:
            times = [recording.rows() for recording in block.recordings]
            began = min(int(rows["begin_ns"].min()) for rows in times if len(rows))
            length = max(int(rows["end_ns"].max()) for rows in times if len(rows)) - began
            for process, recording in zip(processes, block.recordings, strict=True):
                add_recording(events, recording, process, began - cursor)
            events.span(blocks, row, block.name, "block", cursor, cursor + length)
            cursor += length + round(_GAP * length) + 1
        return events


def _command(events: int, directory: str = "") -> Command:
    text = directory.encode()
    return Command(Kind.RECORD, itemsize=1, in_blocks=1, period=len(text), count=events, fill=text)


def _read(path: Path) -> Recording:
    return msgspec.msgpack.decode(path.read_bytes(), type=Recording)
