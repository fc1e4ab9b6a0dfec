"""Runs a Program as the code that GPUs run, compiled for this CPU: a thread per rank, channel and part.

What is tested here is what runs there: the same generated text, the same headers, the same layout of connections; only
a block is one thread. So this engine is no way to be fast, but the proof that the code is right.
"""

from __future__ import annotations

import ctypes as c
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blinkccl.codegen.build import build
from blinkccl.codegen.channels import channel_loops
from blinkccl.codegen.device_files import host_library
from blinkccl.codegen.host_compiler import host_compiler
from blinkccl.codegen.layout import LINE_BYTES, Geometry, ProgramGroup
from blinkccl.codegen.text import INCLUDE, WIRES, Kernel, code, entry_name
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPE_CODES, OP_CODES
from blinkccl.engines.buffers import Arithmetic, check_roles, filled
from blinkccl.errors import DeadlineError, UnsupportedError, UsageError
from blinkccl.native import open_library
from blinkccl.native.headers import Functions, header
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES
from blinkccl.schedule.program import Program
from blinkccl.schedule.text import program_hash
from blinkccl.trees.forest.model import digest

Array = NDArray[Any]
#: Blocks give up by themselves at the deadline; this much later they are told to, which says less.
_GRACE_S = 2.0
_HEADER = header("call.h")


@_HEADER.layout("Connection")
class ConnectionEnd(c.Structure):
    """``blink::Connection``: one end of a connection."""


@_HEADER.layout("Status")
class LaunchStatus(c.Structure):
    """``blink::Status``: why a launch ended early."""


@_HEADER.layout("Call")
class LaunchCall(c.Structure):
    """``blink::Call``: the argument of a kernel."""


_FUNCTIONS: Functions = {
    "blink_launch": (c.c_int, [c.c_void_p, c.c_void_p, c.c_uint32, c.c_uint32, c.c_double]),
    "blink_device_abi": (c.c_uint32, []),
    "blink_device_version": (c.c_char_p, []),
}


@lru_cache(maxsize=1)
def load() -> c.CDLL:
    """The library that runs generated code here, without the GIL; UnsupportedError: it is not there, or unfit."""
    return open_library(host_library(), _FUNCTIONS, "blink_device_abi")


def launch(entry: int, calls: c.Array[LaunchCall], blocks: int, timeout_s: float) -> None:
    """Runs ``blocks`` blocks of every rank to their ends, a thread each; ``entry`` is the kernel's address.

    After ``timeout_s`` the calls' abort words are set. How blocks ended is in the calls' statuses.
    """
    if load().blink_launch(entry, c.addressof(calls), len(calls), blocks, timeout_s) < 0:
        raise UnsupportedError(
            f"the system refuses {len(calls) * blocks} threads, one per rank, channel and part; lower the plan to "
            "fewer channels, or raise the limit (ulimit -u)"
        )


@dataclass(frozen=True, slots=True)
class GeneratedOptions:
    """How :func:`run` launches: messages travel as "simple", "ll" or "ll128", and ``parts`` blocks share a channel.

    No slice is cut into pieces of less than ``piece_bytes``; 0: into as many as there are parts.
    """

    protocol: str = "simple"
    parts: int = 2
    piece_bytes: int = 0


def run(
    program: Program,
    inputs: Sequence[Array | None],
    call: CollectiveCall,
    *,
    scales: Sequence[float] | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    in_place: bool = False,
    deadline_s: float = 60.0,
    options: GeneratedOptions | None = None,
) -> list[Array | None]:
    """Runs a collective once; see :class:`blinkccl.engines.registry.RunProgram`.

    The same bits as the reference engine for any data.

    Parameters
    ----------
    chunk_bytes
        The most in one part's message, rounded down to a multiple of 16, at least 16.

    Raises
    ------
    UnsupportedError
        Also if there is no compiler, or GPU blocks cannot run the program: see
        :func:`blinkccl.codegen.channels.channel_loops`.

    Notes
    -----
    Cost: a compilation where the program is new here (:func:`prepare` compiles many at once), a thread per rank,
    channel and part, and connections · parts · slots · three times ``chunk_bytes`` of memory.
    """
    chunk, ways = _chunk(chunk_bytes), options or GeneratedOptions()
    geometry = Geometry(
        ways.parts, _slots(program), _lines(chunk), _lines(max(2 * chunk, -(-chunk // 120) * LINE_BYTES))
    )
    return Session([program], geometry).run(
        program,
        inputs,
        call,
        scales=scales,
        chunk_bytes=chunk,
        in_place=in_place,
        deadline_s=deadline_s,
        protocol=ways.protocol,
        piece_bytes=ways.piece_bytes,
    )


def prepare(programs: Iterable[Program]) -> None:
    """Compiles those of ``programs`` that are new here, all in one go: a compiler takes longest to start.

    UnsupportedError, before any is compiled, where one has roles that this engine does not run.
    """
    programs = list(programs)
    for program in programs:
        check_roles(program)
    _compile((Kernel(_name(program), program, slots=_slots(program)), ProgramGroup([program])) for program in programs)


class Session:
    """Programs of the same ranks, in turns on the same connections, whose counters go on as they do on GPUs.

    ``parts`` are those of each program, as many as ``geometry`` has where nothing is said.
    """

    def __init__(self, programs: Sequence[Program], geometry: Geometry, parts: Sequence[int] = ()) -> None:
        self._group, self._geometry = ProgramGroup(programs), geometry
        self._parts = dict(zip(programs, parts or [geometry.parts] * len(programs), strict=True))
        self._names = {}
        for program in programs:
            check_roles(program)
            if len(programs) == 1 and geometry.slots == _slots(program):
                self._names[program] = _name(program)  # known from the last time
            else:
                channel_loops(program, geometry.slots)
                self._names[program] = _name_in(program, self._group)
        _compile((Kernel(name, each, slots=geometry.slots), self._group) for each, name in self._names.items())
        self._layout = self._group.layout(geometry)
        self._segments = [_aligned(size) for size in self._layout.segment_bytes]
        self._tables = [(ConnectionEnd * max(1, len(self._layout.connections)))() for _ in self._segments]
        for index, at in enumerate(self._layout.connections):
            source, target, home = (self._segments[each].ctypes.data for each in (at.src, at.dst, at.home))
            tail, head = (home, home) if at.home >= self._layout.ranks else (target, source)
            shared = (home + at.ring, home + at.lines, tail + at.tail, head + at.head)
            self._tables[at.src][index] = ConnectionEnd(*shared, source + at.src_position)
            self._tables[at.dst][index] = ConnectionEnd(*shared, target + at.dst_position)

    def run(
        self,
        program: Program,
        inputs: Sequence[Array | None],
        call: CollectiveCall,
        *,
        scales: Sequence[float] | None = None,
        chunk_bytes: int,
        in_place: bool = False,
        deadline_s: float = 60.0,
        protocol: str = "simple",
        piece_bytes: int = 0,
    ) -> list[Array | None]:
        """As :func:`run`, for one of the programs; UsageError if messages do not fit. A DeadlineError ends its use."""
        if protocol not in WIRES:
            raise UnsupportedError(f"protocol {protocol!r} is not one of {', '.join(WIRES)}")
        chunk = _chunk(chunk_bytes)
        if chunk > self._geometry.capacity_bytes(protocol):
            capacity = self._geometry.capacity_bytes(protocol)
            raise UsageError(f"chunk_bytes: a message of {protocol} carries at most {capacity} bytes, got {chunk}")
        if deadline_s <= 0:
            raise UsageError(f"deadline_s must be positive, got {deadline_s}")
        buffers = filled(program.collective, inputs, call.elements, call.dtype, in_place)
        values = Arithmetic.of(program.collective, call, scales)
        n = len(program.ranks)
        abort, status, calls = c.c_uint32(0), (LaunchStatus * n)(), (LaunchCall * n)()
        for rank, told in enumerate(calls):
            told.input, told.output = _address(buffers.inputs[rank]), _address(buffers.outputs[rank])
            told.abort, told.status = c.addressof(abort), c.addressof(status) + rank * c.sizeof(LaunchStatus)
            told.timeout_ns = int(deadline_s * 1e9)
            self._describe(told, rank, values)
            told.parts = self._parts[program]
            told.count, told.chunk_bytes, told.piece_bytes = call.elements, chunk, piece_bytes
        entry = _entry(self._names[program], protocol)
        launch(entry, calls, len(program.channels) * self._parts[program], deadline_s + _GRACE_S)
        late = [rank for rank in range(n) if status[rank].code]
        if late:
            raise DeadlineError(self._story(late[0], status[late[0]], deadline_s))
        return list(buffers.outputs)

    def _describe(self, call: LaunchCall, rank: int, values: Arithmetic) -> None:
        """Fills in what does not depend on sizes and buffers."""
        geometry = self._geometry
        call.connections = c.addressof(self._tables[rank])
        call.slot_bytes, call.line_bytes = geometry.slot_bytes, geometry.line_bytes
        call.slots, call.rank = geometry.slots, rank
        chosen = values.chosen
        call.dtype, call.op, call.average = DTYPE_CODES[values.dtype.name], OP_CODES[chosen.base], chosen.averages
        if values.factors is not None:
            bits = np.asarray(values.factors[rank], values.dtype.accumulator).tobytes()
            call.scale_kind, call.scale = _HEADER.constants["kScaleGiven"], int.from_bytes(bits, sys.byteorder)

    def _story(self, rank: int, status: LaunchStatus, deadline_s: float) -> str:
        at = self._layout.connections[status.connection]
        what = f"a free slot to rank {at.dst}" if status.sending else f"a message from rank {at.src}"
        return (
            f"rank {rank} waited longer than {deadline_s:g} s in channel {status.channel} for {what} (its number "
            f"{status.position}); is the program verified, or the deadline too short for this size?"
        )


#: Kernel name → the library that has it.
_libraries: dict[str, c.CDLL] = {}


def _compile(kernels: Iterable[tuple[Kernel, ProgramGroup]]) -> None:
    """Makes those kernels that are new, in one file."""
    new = {kernel.name: (kernel, group) for kernel, group in kernels if kernel.name not in _libraries}
    if not new:
        return
    text = "\n".join([INCLUDE, *(code(kernel, group) for kernel, group in new.values())])
    load()  # first, so that the loader finds it when the code asks for it
    library = c.CDLL(str(build(text, host_compiler())))
    _libraries.update(dict.fromkeys(new, library))


@lru_cache(maxsize=512)
def _name(program: Program) -> str:
    """The name of a program that has its connections for itself, if GPU blocks can run it with its channels' slots."""
    channel_loops(program, _slots(program))
    return _name_in(program, ProgramGroup([program]))


def _name_in(program: Program, group: ProgramGroup) -> str:
    """A name that says what the code depends on: all of the program but its slots, and its connections."""
    channels = tuple(replace(channel, slots=1) for channel in program.channels)
    connections = digest([str(index) for index in group.connections_of(program)])
    return f"p{program_hash(replace(program, channels=channels))}_{connections}"


def _entry(name: str, protocol: str) -> int:
    address = c.cast(getattr(_libraries[name], entry_name(name, protocol)), c.c_void_p).value
    assert address is not None
    return address


def _slots(program: Program) -> int:
    return max((channel.slots for channel in program.channels), default=1)


def _chunk(chunk_bytes: int) -> int:
    return max(16, chunk_bytes // 16 * 16)


def _lines(size: int) -> int:
    return -(-size // LINE_BYTES) * LINE_BYTES


def _aligned(size: int) -> Array:
    """Zeroed bytes that begin on a line."""
    memory = np.zeros(size + LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % LINE_BYTES
    return memory[start : start + size]


def _address(buffer: Array | None) -> int | None:
    return None if buffer is None else buffer.ctypes.data
