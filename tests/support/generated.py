"""Engine ``generated``: the code of GPUs, compiled for this CPU, with a thread per rank, channel and part.

It tests the code that GPUs run: the same generated text, headers and layout of connections, except that a block is one
thread. The engine is slow; its purpose is to prove that the code is correct.
"""

import ctypes as c
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from gpu_kernels import CALL_HEADER, ConnectionEnd, LaunchCall, LaunchStatus
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
from blinkccl.native.headers import Functions
from blinkccl.schedule.chunking import DEFAULT_CHUNK_BYTES
from blinkccl.schedule.program import Program
from blinkccl.schedule.text import program_hash
from blinkccl.trees.forest.model import digest

Array = NDArray[Any]
#: Seconds after the blocks' own timeout until they are aborted, which gives a less precise error.
_GRACE_S = 2.0


_FUNCTIONS: Functions = {
    "blink_launch": (c.c_int, [c.c_void_p, c.c_void_p, c.c_uint32, c.c_uint32, c.c_double]),
    "blink_device_abi": (c.c_uint32, []),
    "blink_device_version": (c.c_char_p, []),
}


@lru_cache(maxsize=1)
def load() -> c.CDLL:
    """The library that runs generated code without the GIL; UnsupportedError if it is missing or does not fit."""
    return open_library(host_library(), _FUNCTIONS, "blink_device_abi")


def launch(entry: int, calls: c.Array[LaunchCall], blocks: int, timeout_s: float) -> None:
    """Run ``blocks`` blocks of every rank to their end, a thread each; ``entry`` is the kernel's address.

    After ``timeout_s`` the calls' abort words are set. The calls' statuses have the results of the blocks.
    """
    if load().blink_launch(entry, c.addressof(calls), len(calls), blocks, timeout_s) < 0:
        raise UnsupportedError(
            f"the system refuses {len(calls) * blocks} threads, one per rank, channel and part; use a plan with fewer "
            "channels, or raise the limit (ulimit -u)"
        )


@dataclass(frozen=True, slots=True)
class GeneratedOptions:
    """Options of :func:`run`: ``protocol`` is "simple", "ll" or "ll128", and ``parts`` blocks share a channel.

    A slice has a piece per part, but no piece of less than ``piece_bytes`` (0: no limit).
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
    """Run a collective once; see :class:`support.engines.RunProgram`.

    The result has the bits of the reference engine for any data.

    Parameters
    ----------
    chunk_bytes
        Most bytes in one part's message, rounded down to a multiple of 16, at least 16.

    Raises
    ------
    UnsupportedError
        Also without a compiler, or if GPU blocks cannot run the program: see
        :func:`blinkccl.codegen.channels.channel_loops`.

    Notes
    -----
    Cost: a compilation for a new program (:func:`prepare` compiles many at once), a thread per rank, channel and part,
    and 3 · connections · parts · slots · ``chunk_bytes`` of memory.
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
    """Compile all new ``programs`` in one file, because a compiler takes longest to start.

    UnsupportedError, before any compilation, if one has roles that this engine cannot run.
    """
    programs = list(programs)
    for program in programs:
        _check(program)
    _compile((Kernel(_name(program), program, slots=_slots(program)), ProgramGroup([program])) for program in programs)


def _check(program: Program) -> None:
    if program.relays:
        vertices = list(program.relays)
        raise UnsupportedError(f"generated code cannot run the program's roles at vertices {vertices} outside the job")
    check_roles(program)


class Session:
    """Programs of the same ranks, run in turns on the same connections; their counters continue, like on GPUs.

    ``parts`` has the number of parts of each program; by default that of ``geometry``.
    """

    def __init__(self, programs: Sequence[Program], geometry: Geometry, parts: Sequence[int] = ()) -> None:
        self._group, self._geometry = ProgramGroup(programs), geometry
        self._parts = dict(zip(programs, parts or [geometry.parts] * len(programs), strict=True))
        self._names = {}
        for program in programs:
            _check(program)
            if len(programs) == 1 and geometry.slots == _slots(program):
                self._names[program] = _name(program)  # Cached.
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
        """Run one of the programs, like :func:`run`.

        UsageError if messages do not fit. After a DeadlineError the session cannot be used again.
        """
        if protocol not in WIRES:
            raise UnsupportedError(f"protocol {protocol!r} is not one of {', '.join(WIRES)}")
        chunk = _chunk(chunk_bytes)
        if chunk > self._geometry.capacity_bytes(protocol):
            capacity = self._geometry.capacity_bytes(protocol)
            raise UsageError(f"chunk_bytes: expected at most {capacity} bytes for protocol {protocol}, got {chunk}")
        if deadline_s <= 0:
            raise UsageError(f"deadline_s must be positive, got {deadline_s}")
        buffers = filled(program.collective, inputs, call.elements, call.dtype, in_place)
        values = Arithmetic.of(program.collective, call, scales)
        n = len(program.ranks)
        abort, status, calls = c.c_uint32(0), (LaunchStatus * n)(), (LaunchCall * n)()
        for rank, argument in enumerate(calls):
            argument.input, argument.output = _address(buffers.inputs[rank]), _address(buffers.outputs[rank])
            argument.abort, argument.status = c.addressof(abort), c.addressof(status) + rank * c.sizeof(LaunchStatus)
            argument.timeout_ns = int(deadline_s * 1e9)
            self._describe(argument, rank, values)
            argument.parts = self._parts[program]
            argument.count, argument.chunk_bytes, argument.piece_bytes = call.elements, chunk, piece_bytes
        entry = _entry(self._names[program], protocol)
        launch(entry, calls, len(program.channels) * self._parts[program], deadline_s + _GRACE_S)
        late = [rank for rank in range(n) if status[rank].code]
        if late:
            raise DeadlineError(self._story(late[0], status[late[0]], deadline_s))
        return list(buffers.outputs)

    def _describe(self, call: LaunchCall, rank: int, values: Arithmetic) -> None:
        """Set the fields that do not depend on sizes and buffers."""
        geometry = self._geometry
        call.connections = c.addressof(self._tables[rank])
        call.slot_bytes, call.line_bytes = geometry.slot_bytes, geometry.line_bytes
        call.slots, call.rank = geometry.slots, rank
        chosen = values.chosen
        call.dtype, call.op, call.average = DTYPE_CODES[values.dtype.name], OP_CODES[chosen.base], chosen.averages
        if values.factors is not None:
            bits = np.asarray(values.factors[rank], values.dtype.accumulator).tobytes()
            call.scale_kind, call.scale = CALL_HEADER.constants["kScaleGiven"], int.from_bytes(bits, sys.byteorder)

    def _story(self, rank: int, status: LaunchStatus, deadline_s: float) -> str:
        at = self._layout.connections[status.connection]
        awaited = f"a free slot to rank {at.dst}" if status.sending else f"a message from rank {at.src}"
        return (
            f"rank {rank} waited longer than {deadline_s:g} s in channel {status.channel} for {awaited} (its number "
            f"{status.position}): verify the program, or give more time for this size"
        )


#: Kernel name → its library.
_libraries: dict[str, c.CDLL] = {}


def _compile(kernels: Iterable[tuple[Kernel, ProgramGroup]]) -> None:
    """Compile the new kernels, in one file."""
    new = {kernel.name: (kernel, group) for kernel, group in kernels if kernel.name not in _libraries}
    if not new:
        return
    text = "\n".join([INCLUDE, *(code(kernel, group) for kernel, group in new.values())])
    load()  # Loaded first, because the compiled code needs its symbols.
    library = c.CDLL(str(build(text, host_compiler())))
    _libraries.update(dict.fromkeys(new, library))


@lru_cache(maxsize=512)
def _name(program: Program) -> str:
    """The kernel name of a program with connections of its own; errors if GPU blocks cannot run it."""
    channel_loops(program, _slots(program))
    return _name_in(program, ProgramGroup([program]))


def _name_in(program: Program, group: ProgramGroup) -> str:
    """A name from everything that the code depends on: the program except its slots, and its connections."""
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
    """Zeroed bytes, aligned to a cache line."""
    memory = np.zeros(size + LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % LINE_BYTES
    return memory[start : start + size]


def _address(buffer: Array | None) -> int | None:
    return None if buffer is None else buffer.ctypes.data
