"""``blink tune`` on GPUs: times of libblink.so's programs and of NCCL, measured in turns.

A way is an algorithm and a protocol for libblink.so (BLINK_ALGO, BLINK_PROTOCOL), or NCCL alone. Each has a process
(:mod:`~blinkccl.bench.gpu_client`) with its own communicators, started on first use. A process that fails, hangs or
gives wrong results is removed, and no other with it. Before any timing, its report lists the collectives that
libblink.so really ran.

For each collective and size, predictions select the ways: those within :data:`CHANCE` of the fastest, at most
:data:`SEEDS`. They race (:class:`blinkccl.bench.tune.Race`) beside NCCL. The cell gets all times, each from the last
round of its way.

A job that uses the table divides a rank's blocks among the chosen programs. In a measurement, each program is alone in
its communicator, as if it were chosen everywhere.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from blinkccl.bench.tune import At, Race, collective_of, empty_cell
from blinkccl.collectives.spec import Collective
from blinkccl.cost.choice.costs import BUDGET, MOST_BYTES, architecture
from blinkccl.cost.choice.programs import Gpu, default_blocks
from blinkccl.cost.choice.timed import KernelPlan
from blinkccl.cost.simulate.translate import Settings
from blinkccl.errors import CommunicationError
from blinkccl.nccl.call_report import MAX_BYTES, read_call_report
from blinkccl.nccl.peer_info import GpuJob, GpuPeerInfo
from blinkccl.nccl.programs import DEFAULT, CandidatePrograms, candidates, key_of
from blinkccl.nccl.topology_of_job import JobPlacement, place
from blinkccl.runtime.peer_info import package_version
from blinkccl.trees.algorithms.path_table import machine_key
from blinkccl.trees.algorithms.tables import GPUS, NCCL, Cell, MeasuredTable, Time, Way

#: Most ways that predictions select, and their largest predicted time over that of the fastest.
SEEDS, CHANCE = 6, 3.0
#: Least and most calls of a way in a round (the most are those enqueued at once), and pairs in the final.
LEAST_CALLS, MOST_CALLS, PAIRS = 2, 50, 5
#: Timeouts of a process: to create communicators (with planning and compiling), for another answer, and to end.
OPEN_DEADLINE_S, DEADLINE_S, CLOSE_S = 400.0, 60.0, 10.0
#: Size of the call whose report names the library that ran it.
_PROBE_BYTES = 4096
_MOST_LINE = 1 << 16


def settings_of(way: Way) -> dict[str, str]:
    """Variables that make libblink.so run ``way``."""
    return {"BLINK_ALGO": way.algorithm, "BLINK_PROTOCOL": way.protocol, "BLINK_TUNED": "0"}


#: The environment of a way's process; the path is that of its report.
Environment = Callable[[Way, Path], dict[str, str]]


class TuningProcess:
    """A way's process; CommunicationError with the reason if it fails."""

    def __init__(self, ordinals: Sequence[int], environment: dict[str, str]) -> None:
        self._unread = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "blinkccl.bench.gpu_client", *map(str, ordinals)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches the parent only, which closes it.
        )

    def ask(self, deadline_s: float = DEADLINE_S, **question: Any) -> dict[str, Any]:
        """The answer to a question."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._line(time.monotonic() + deadline_s))
        if "failed" in answer:
            raise CommunicationError(answer["failed"])
        return answer

    def _line(self, ends: float) -> bytes:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, ends - time.monotonic())):
                    raise CommunicationError("its process did not answer before the timeout")
                data = os.read(pipe, _MOST_LINE)
                if not data:
                    with suppress(subprocess.TimeoutExpired):
                        self._process.wait(CLOSE_S)
                    raise CommunicationError(f"its process ended with exit code {self._process.returncode}")
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def close(self) -> None:
        """Let the process end, and kill it after :data:`CLOSE_S`."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_S)
        self._process.kill()
        self._process.wait()


class Ways:
    """The processes of one job's GPUs, by CUDA's ordinals; ``lost`` lists ways that cannot run, with reasons."""

    def __init__(
        self, ordinals: Sequence[int], names: Sequence[str], environment: Environment, directory: Path
    ) -> None:
        self._ordinals, self._names = tuple(ordinals), tuple(names)
        self._environment, self._directory = environment, directory
        self.lost: list[str] = []
        self._processes: dict[Way, TuningProcess] = {}
        self._serves: dict[Way, frozenset[str]] = {}
        self._loaded: dict[Way, tuple[str, int]] = {}

    def __enter__(self) -> Ways:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.close()

    def job(self) -> GpuJob:
        """GPUs, driver and NCCL, from a process with NCCL alone; CommunicationError if NCCL fails."""
        way = Way(NCCL)
        environment = self._environment(way, self._directory / "report")
        self._processes[way] = TuningProcess(self._ordinals, environment)
        opened = self._processes[way].ask(OPEN_DEADLINE_S, do="open")
        self._serves[way] = frozenset(self._names)
        settings = {"topo": environment.get("BLINK_TOPO", ""), "nccl_topo_file": environment.get("NCCL_TOPO_FILE", "")}
        about = {"driver_version": opened["driver"], "nccl_version": opened["nccl"], "settings": settings}
        about |= {"boot_id": "", "pid": 0, "blink_version": package_version()}
        return GpuJob(
            tuple(
                GpuPeerInfo(rank=rank, arch=f"sm_{gpu['major']}{gpu['minor']}", **gpu, **about)
                for rank, gpu in enumerate(opened["gpus"])
            )
        )

    def seconds(self, way: Way, name: str, size_bytes: int, calls: int) -> float | None:
        """Mean seconds of a call over ``calls`` calls; None if this way does not run it, or gives wrong results."""
        try:
            if way not in self._serves:
                self._serves[way] = frozenset()
                self._serves[way] = self._start(way)
            if name not in self._serves[way]:
                return None
            process = self._processes[way]
            if self._loaded.get(way) != (name, size_bytes):
                wrong = process.ask(do="load", name=name, size_bytes=size_bytes)["wrong"]
                if wrong:
                    raise CommunicationError(f"{name} of {size_bytes} bytes: {wrong}")
                self._loaded[way] = name, size_bytes
            return float(process.ask(do="time", calls=calls)["seconds"])
        except CommunicationError as error:
            self.lost.append(f"{way.name}: {error}")
            self._serves[way] = frozenset()
            self._processes.pop(way).close()
            return None

    def _start(self, way: Way) -> frozenset[str]:
        """Create communicators; the collectives that libblink.so runs on them in this way."""
        report = self._directory / f"report-{way.algorithm}-{way.protocol}"
        process = self._processes[way] = TuningProcess(self._ordinals, self._environment(way, report))
        process.ask(OPEN_DEADLINE_S, do="open")
        for name in self._names:
            process.ask(do="load", name=name, size_bytes=_PROBE_BYTES)
        process.ask(do="close")  # Communicators write their report at their end.
        content = report.read_bytes()[:MAX_BYTES] if report.exists() else b""
        rows = [row for group in read_call_report(content).groups for row in group.rows]
        served = {row.collective for row in rows if (row.state, row.protocol) == ("blink", way.protocol)}
        why = {row.collective: row.why for row in rows}
        self.lost += [
            f"{way.name}: libblink.so did not run {name}: {why.get(name) or why.get('') or 'its report has no reason'}"
            for name in self._names
            if name not in served
        ]
        if served:
            process.ask(OPEN_DEADLINE_S, do="open")
        return frozenset(served)


@dataclass(frozen=True)
class Seeds:
    """Predictions for a job's ways."""

    planned: CandidatePrograms
    gpu: Gpu

    @classmethod
    def of(cls, where: JobPlacement, job: GpuJob) -> Seeds:
        blocks = default_blocks(min(peer.multiprocessors for peer in job.peers))
        gpu = Gpu(architecture(job.capability), job.capability, blocks, where.counted)
        return cls(candidates(where, DEFAULT, blocks, {}), gpu)

    def ways(self, collective: Collective, size_bytes: int) -> list[Way]:
        """The ways that may be the fastest, in order of predicted time."""
        predicted = []
        for one in self.planned.by_key.get(key_of(collective), []):
            plan = KernelPlan(one, self.gpu, Settings(budget=BUDGET))
            for protocol in plan.own_protocols:
                if size_bytes <= MOST_BYTES[protocol]:
                    predicted.append((plan.timing(protocol, size_bytes).seconds, Way(one.algorithm, protocol)))
        predicted.sort()
        return [way for seconds, way in predicted if seconds <= CHANCE * predicted[0][0]][:SEEDS]


def job_table(job: GpuJob) -> tuple[MeasuredTable, JobPlacement]:
    """An empty table for a job's machine, and the placement of its ranks; errors as in :func:`place`."""
    where, peer = place(job), job.peers[0]
    cuda, nccl = peer.driver_version, job.nccl_version
    by = (
        f"{peer.name}, driver of CUDA {cuda // 1000}.{cuda % 1000 // 10}, NCCL {nccl[0]}.{nccl[1]}, "
        f"Blink {package_version()}"
    )
    machine, name = machine_key(where.topology), where.topology.name
    return MeasuredTable(machine, name, GPUS, by, gpu=peer.name, nccl=peer.nccl_version), where


class GpuTuner:
    """The tuner of a job's GPUs; CommunicationError if NCCL alone fails on them, else errors as in :func:`place`."""

    def __init__(self, ways: Ways) -> None:
        self._ways, self._job = ways, ways.job()
        self.table, self._where = job_table(self._job)
        self.ranks, self.lost = self._where.ranks, ways.lost

    @cached_property
    def _seeds(self) -> Seeds:
        return Seeds.of(self._where, self._job)

    def knows(self, cell: Cell) -> bool:
        """False for a cell with times of NCCL alone: a compiler may have been installed since."""
        return any(time.protocol for time in cell.times)

    def cell(self, name: str, at: At, budget_s: float) -> Cell:
        """Measure the cell of one row of :func:`blinkccl.bench.tune.ranges`."""
        collective = collective_of(name, len(self.ranks))
        empty = empty_cell(collective, self.ranks, at)
        size = empty.size_bytes
        times = fastest(
            self._seeds.ways(collective, size), lambda way, calls: self._ways.seconds(way, name, size, calls), budget_s
        )
        return msgspec.structs.replace(empty, times=times)

    def confirmed(self, cell: Cell) -> Cell:
        """The cell itself: measurements on GPUs need no confirmation."""
        return cell


def fastest(ways: Sequence[Way], timer: Callable[[Way, int], float | None], budget_s: float) -> tuple[Time, ...]:
    """The times of ``ways`` and of NCCL, the fastest first.

    Takes about ``budget_s`` seconds, plus the time to start processes and to load data.
    """
    race = Race(Way(NCCL), timer, MOST_CALLS, PAIRS)
    race.run(ways, budget_s)
    times = (Time.of((way,), *taken) for way, taken in race.times.items())
    return tuple(sorted(times, key=lambda one: one.seconds))
