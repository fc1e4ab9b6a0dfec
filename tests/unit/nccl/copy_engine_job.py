"""Runs programs on copy engines: all ranks in this process, each on a device of the CUDA double.

A process of its own per seed of the double, which reads its environment once. What to do comes as JSON on the command
line, what happened goes as JSON to the standard output.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.codegen.build import build
from blinkccl.codegen.channels import channel_loops
from blinkccl.codegen.host_compiler import copies_compiler
from blinkccl.codegen.layout import Geometry, Group
from blinkccl.codegen.text import COPIES, Kernel, cuda_text
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPE_CODES, OP_CODES, operation, scalars
from blinkccl.collectives.oracle import make_inputs, make_scales, mismatch
from blinkccl.collectives.oracle import oracle as oracle_of
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines.buffers import Array, filled
from blinkccl.errors import DeadlineError, UnsupportedError
from blinkccl.schedule.chunking import bind
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.testing.execution import difference
from blinkccl.topology.spec import parse_spec

#: What the fixture has built, and where images lie.
HARNESS, FOLD, JOURNAL = "COPY_ENGINE_HARNESS", "COPY_ENGINE_FOLD", "BLINK_DOUBLE_JOURNAL"
CHUNK_BYTES, SLOTS = 64, 2
PATIENCE_S = 60.0
ABORTED, TIMED_OUT = 1, 2
WAIT_VALUE, WAIT_EVENT, WRITE_VALUE = 1, 2, 3


class RankBuffers(c.Structure):
    _fields_ = [
        ("input", c.c_void_p),
        ("input_bytes", c.c_uint64),
        ("output", c.c_void_p),
        ("output_bytes", c.c_uint64),
        ("scale", c.c_uint64),
    ]


class Launch(c.Structure):
    _fields_ = [
        *((name, c.c_uint64) for name in ("count", "chunk_bytes", "timeout_ns")),
        *((name, c.c_uint32) for name in ("dtype", "op", "average", "scale_kind")),
        ("absent", c.c_int32),
        ("abort_after_ms", c.c_uint32),
        ("journal_from", c.c_int64),
        ("journal_to", c.c_int64),
        ("code", c.c_uint32),
        ("connection", c.c_uint32),
    ]


def planned(spec: str, ranks: Sequence[int] | None, algorithm: str, name: str) -> Program:
    topology = parse_spec(spec)
    chosen = tuple(ranks) if ranks else topology.ranks
    values = {"root": len(chosen) // 2, "src": 0, "dst": len(chosen) - 1}
    collective = Collective(name, len(chosen), **{key: values[key] for key in COLLECTIVES[name].parameters})
    return lower(ALGORITHMS[algorithm].plan(Request(topology, collective, chosen)), SLOTS)


def bundle_text(program: Program, entry: str) -> str:
    """What the planner would write for one program and copy engines alone."""
    geometry = Geometry(1, SLOTS, 1024, 1024, copy_slots=SLOTS, copy_slot_bytes=CHUNK_BYTES * 2)
    layout = Group([program]).layout(geometry)
    root = program.collective.root
    lines = [
        "blink-bundle 1",
        f"plan {'0' * 64}",
        f"ranks {len(program.ranks)}",
        "geometry parts 1 slots 2 slot_bytes 1024 line_bytes 1024 threads 32 "
        f"copy_slots {geometry.copy_slots} copy_slot_bytes {geometry.copy_slot_bytes}",
        *(f"segment {rank} {size}" for rank, size in enumerate(layout.segment_bytes)),
        *(
            f"connection {number} src {x.src} dst {x.dst} ring {x.ring} lines {x.lines} tail {x.tail} head {x.head} "
            f"src_position {x.src_position} dst_position {x.dst_position} copy_ring {x.copy_ring} "
            f"copy_tail {x.copy_tail} copy_head {x.copy_head}"
            for number, x in enumerate(layout.connections)
        ),
        "image 0 arch any file fold.so",
        "image 1 arch host file copies.so",
        f"program 0 collective {program.collective.name} root {-1 if root is None else root} "
        f"lanes {len(program.channels)} image 0,1 simple - ll - ll128 - copies {entry}",
        f"choice collective {program.collective.name} root any least 0 most 0 program -1 protocol - chunk 0 search 0 "
        "why nothing is chosen here",
    ]
    return "\n".join([*lines, ""])


@dataclass
class Outcome:
    code: int = 0
    connection: int = 0
    calls: tuple[str, ...] = ()


class GpuJob:
    """The ranks of one program.

    ``meeting`` is a directory where ranks in several processes meet, of which this is ``rank``; None: all are here.
    """

    def __init__(self, program: Program, trouble: int = 0, rank: int = -1, meeting: Path | None = None) -> None:
        kernel = Kernel("job", program, slots=SLOTS)
        channel_loops(program, SLOTS)
        self.program = program
        self.library = c.CDLL(os.environ[HARNESS])
        self.library.job_open.restype = c.c_void_p
        self.library.job_open.argtypes = [c.c_char_p, *3 * [c.c_int], c.c_char_p, c.c_int, c.c_char_p, c.c_int]
        self.library.job_connect.argtypes = [c.c_void_p, c.c_char_p, c.c_char_p, c.c_int]
        self.library.job_run.argtypes = [c.c_void_p, c.c_void_p, c.c_void_p, c.c_double]
        self.library.job_close_peers.argtypes = self.library.job_close.argtypes = [c.c_void_p]
        self.directory = tempfile.TemporaryDirectory()
        place = Path(self.directory.name)
        (place / "copies.so").write_bytes(build(cuda_text([kernel]), copies_compiler()).read_bytes())
        (place / "fold.so").write_bytes(Path(os.environ[FOLD]).read_bytes())
        (place / "bundle.txt").write_text(bundle_text(program, kernel.entry(COPIES)))
        why, addresses = c.create_string_buffer(512), c.create_string_buffer(1 << 16)
        before = journal_bytes()
        board = -1 if meeting is None else self._board(rank, meeting)
        self.handle = self.library.job_open(
            str(place).encode(), rank, board, trouble, addresses, len(addresses), why, len(why)
        )
        known = addresses.value
        if self.handle and meeting is not None:
            say(meeting / f"address{rank}", known.decode())
            known = "".join(hear(meeting / f"address{one}") for one in range(len(program.ranks))).encode()
        if not self.handle or not self.library.job_connect(self.handle, known, why, len(why)):
            raise UnsupportedError(why.value.decode())
        self.calls = journal(before, journal_bytes())
        self.last, self.rank = Outcome(), rank

    def _board(self, rank: int, meeting: Path) -> int:
        if rank == 0:
            made: int = self.library.job_page(len(self.program.ranks))
            say(meeting / "board", f"/proc/{os.getpid()}/fd/{made}")
            return made
        return os.open(hear(meeting / "board"), os.O_RDWR)

    def close_peers(self) -> None:
        self.library.job_close_peers(self.handle)

    def close(self) -> None:
        self.library.job_close(self.handle)
        self.directory.cleanup()

    def plant(self, kind: int, index: int = -1) -> None:
        self.library.job_plant(kind, index)

    def run(
        self,
        program: Program,
        inputs: Sequence[Array | None],
        call: CollectiveCall,
        *,
        scales: Sequence[float] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        in_place: bool = False,
        deadline_s: float = 0.0,
        absent: int = -1,
        abort_after_ms: int = 0,
    ) -> list[Array | None]:
        """As :class:`blinkccl.engines.registry.Run`; the deadline is that of the device, 0: there is none."""
        assert program == self.program
        buffers, row = filled(program.collective, inputs, call.elements, call.dtype, in_place)
        chosen = operation(call.op)
        row.combine(chosen)
        factors = scalars(chosen, row, scales, program.collective.world_size)
        here = range(len(program.ranks)) if self.rank < 0 else [self.rank]
        ranks = (RankBuffers * len(here))()
        for rank, own in zip(here, ranks, strict=True):
            for name, array in (("input", buffers.inputs[rank]), ("output", buffers.outputs[rank])):
                if array is not None:
                    setattr(own, name, array.ctypes.data)
                    setattr(own, f"{name}_bytes", array.nbytes)
            if factors is not None:
                own.scale = int.from_bytes(np.asarray(factors[rank], row.accumulator).tobytes(), sys.byteorder)
        launch = Launch(call.elements, chunk_bytes, int(deadline_s * 1e9), DTYPE_CODES[row.name], OP_CODES[chosen.base])
        launch.average = chosen.averages
        launch.scale_kind = int(factors is not None and program.collective.reduces)
        launch.absent, launch.abort_after_ms = absent, abort_after_ms
        late = self.library.job_run(self.handle, c.byref(ranks), c.byref(launch), PATIENCE_S)
        if late:
            raise DeadlineError(f"{late} ranks have not come to an end within {PATIENCE_S:g} s")
        self.last = Outcome(launch.code, launch.connection, journal(launch.journal_from, launch.journal_to))
        return list(buffers.outputs)


def say(path: Path, text: str) -> None:
    """For other processes, all at once."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


def hear(path: Path) -> str:
    """What another process says, once it has."""
    until = time.monotonic() + PATIENCE_S
    while not path.is_file():
        if time.monotonic() > until:
            raise DeadlineError(f"nobody has written {path.name} for {PATIENCE_S:g} s")
        time.sleep(0.01)
    return path.read_text()


def journal_bytes() -> int:
    path = Path(os.environ.get(JOURNAL, ""))
    return path.stat().st_size if path.is_file() else 0


def journal(start: int, stop: int) -> tuple[str, ...]:
    """The functions that were called between two sizes of the journal."""
    if stop <= start:
        return ()
    text = Path(os.environ[JOURNAL]).read_bytes()[start:stop].decode()
    return tuple(line.split()[0] for line in text.splitlines())


def oracle(cases: Sequence[dict[str, Any]]) -> list[str | None]:
    """For every case the first difference from the oracle; None: there is none."""
    found: list[str | None] = []
    for case in cases:
        try:
            program = planned(case["spec"], case["ranks"], case["algorithm"], case["collective"])
        except UnsupportedError:
            continue  # this algorithm does not serve it
        job = GpuJob(program)
        for one in case["calls"]:
            told = difference(job.run, job.program, chunk_bytes=CHUNK_BYTES, **one)
            found.append(None if told is None else f"{case} {one}: {told}")
            if job.last.code:
                found.append(f"{case} {one}: ended with status {job.last.code}")
        job.close()
    return found


def planted(case: dict[str, Any], faults: Sequence[Sequence[int]]) -> list[bool]:
    """For every fault whether anything was wrong with it."""
    found = []
    program = planned(case["spec"], case["ranks"], case["algorithm"], case["collective"])
    for kind, index in faults:
        job = GpuJob(program)
        assert difference(job.run, program, chunk_bytes=CHUNK_BYTES, **case["calls"][0]) is None
        job.plant(kind, index)
        wrong = False
        for one in case["calls"]:
            # What is lost may be waited for: then the deadline ends it.
            told = difference(job.run, program, chunk_bytes=CHUNK_BYTES, deadline_s=2.0, **one)
            wrong = wrong or told is not None or job.last.code != 0
            if job.last.code:
                break
        job.plant(0)
        job.close()
        found.append(wrong)
    return found


def streams(case: dict[str, Any]) -> dict[str, Any]:
    """How many streams are made, how many there would be without reuse, and what is called during launches."""
    program = planned(case["spec"], case["ranks"], case["algorithm"], case["collective"])
    job = GpuJob(program)
    difference(job.run, program, chunk_bytes=CHUNK_BYTES, **case["calls"][0])
    made = job.calls.count("cuStreamCreate") - len(program.ranks)  # each engine has one for itself
    calls = sorted(set(job.last.calls))
    job.close()
    level: dict[int, int] = {}
    sender = {queue: number for number, role in enumerate(program.roles) for queue in role.sends}
    for number in sorted(range(len(program.roles)), key=lambda one: program.roles[one].offset):
        level[number] = max((level[sender[queue]] + 1 for queue in program.roles[number].receives), default=0)
    kinds = [
        (role.rank, level[number], *((True, program.queues[queue].dst) if sending else (False, end)))
        for number, role in enumerate(program.roles)
        for sending, queue, end in (
            [(True, queue, 0) for queue in role.sends]
            or [(False, 0, program.queues[role.receives[0]].src if role.receives else -1)]
        )
    ]
    return {"made": made, "positions": len(set(kinds)), "per_tree": len(kinds), "calls": calls}


def messages(case: dict[str, Any], count: int) -> dict[str, int]:
    """How many counters a launch moves, and how many messages it has with even chunks and with chunks of one size."""
    program = planned(case["spec"], case["ranks"], case["algorithm"], case["collective"])
    job = GpuJob(program)
    assert difference(job.run, program, chunk_bytes=CHUNK_BYTES, count=count, dtype="float32") is None
    counted = job.last.calls.count("cuStreamWriteValue64_v2")
    job.close()
    even, plain = (bind(program, count, 4, CHUNK_BYTES, even_chunks=even).extents for even in (True, False))
    of_even, of_plain = (
        sum(cut[role.slice].chunks * len(role.sends) for role in program.roles) for cut in (even, plain)
    )
    return {"counted": counted, "even": of_even, "plain": of_plain}


def ending(case: dict[str, Any], **how: Any) -> dict[str, Any]:
    """How a collective ends in which one rank does not take part."""
    program = planned(case["spec"], case["ranks"], case["algorithm"], case["collective"])
    job = GpuJob(program)
    one = dict(case["calls"][0])
    assert difference(job.run, program, chunk_bytes=CHUNK_BYTES, **one) is None
    deadline_s = how.pop("deadline_s", PATIENCE_S)
    difference(partial(job.run, **how), program, chunk_bytes=CHUNK_BYTES, deadline_s=deadline_s, **one)
    outcome = {"code": job.last.code, "src": program.queues[job.last.connection].src}
    job.close()
    return outcome


def refusal(case: dict[str, Any], trouble: int) -> str:
    """Why copy engines cannot be had here."""
    try:
        GpuJob(planned(case["spec"], case["ranks"], case["algorithm"], case["collective"]), trouble)
    except UnsupportedError as error:
        return str(error)
    return ""


def one_rank(case: dict[str, Any], rank: int, meeting: str) -> list[str | None]:
    """As ``oracle``, for a rank whose peers are in other processes."""
    program = planned(case["spec"], case["ranks"], case["algorithm"], case["collective"])
    job = GpuJob(program, rank=rank, meeting=Path(meeting))
    found: list[str | None] = []
    for one in case["calls"]:
        op = one.get("op", "sum")
        inputs = make_inputs(program.collective, one["count"], one["dtype"], 0, op)
        scales = make_scales(program.collective, one["dtype"]) if operation(op).scales else None
        expected = oracle_of(program.collective, inputs, op, scales)
        call = CollectiveCall.of(program.collective, one["dtype"], one["count"], op)
        rest = {key: value for key, value in one.items() if key not in ("count", "dtype", "op")}
        outputs = job.run(program, inputs, call, scales=scales, **rest)
        told = mismatch([outputs[rank]], [expected[rank]], max(1, one["count"]))
        found.append(told if job.last.code == 0 else f"ended with status {job.last.code}")

    def everybody(word: str) -> None:
        say(Path(meeting) / f"{word}{rank}", "")
        for other in range(len(program.ranks)):
            hear(Path(meeting) / f"{word}{other}")

    # Nobody closes what it still writes to, and nobody frees what others have open.
    everybody("done")
    job.close_peers()
    everybody("closed")
    job.close()
    return found


TASKS = {
    "one_rank": one_rank,
    "oracle": oracle,
    "planted": planted,
    "streams": streams,
    "messages": messages,
    "ending": ending,
    "refusal": refusal,
}

if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    result = TASKS[task.pop("task")](**task)
    print(json.dumps(result))
