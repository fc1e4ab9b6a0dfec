"""One grid with all ranks of a job: generated code on one GPU, where no kernel waits for another.

    gpu_grid.py SIZE                      # a few calls on each wire against the oracle, for compute-sanitizer

CUDA does not guarantee that two kernels run at once: tools serialize them, and queues may. The blocks of one grid that
fit on the GPU do run at once. So this divides the blocks of a grid among the ranks, each rank's with its call, and
repeats the call. The GPU's clock measures the rounds without the cost of a launch.
"""

from __future__ import annotations

import ctypes as c
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from cuda_driver import Cuda
from gpu_kernels import FRAME, THREADS, ConnectionEnd, LaunchCall, LaunchStatus, as_long_as_a_call
from numpy.typing import NDArray

from blinkccl.codegen.layout import Geometry, ProgramGroup
from blinkccl.codegen.text import WIRES, Kernel, cuda_text
from blinkccl.collectives.ops import DTYPE_CODES, OP_CODES, operation
from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.collectives.spec import Collective
from blinkccl.schedule.dealing import dealt
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.spec import parse_gpus, parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request

#: Timeout of a waiting block.
TIMEOUT_S = 10
SLOTS, SLOT_BYTES, LINE_BYTES = 4, 128 << 10, 32 << 10

TEXT = f"""\
#include "blink/block.h"
{FRAME}
namespace blink {{
struct Grid {{
  const Call* calls;  // of the ranks
  Word* times;        // of each block: when its rounds began after those to warm up, and when they ended
  Word rounds, warming;
  Word nothing;
  uint32_t blocks;    // of each rank
}};

template <class Wire, device::Text kText>
BLINK_INLINE void bench_block(const Call& call, uint32_t block) {{
  BENCH_SHARED(device::BlockMemory, memory);
  device::run<Wire, kText>(memory, call, block);
}}

// A round begins where the one before has ended for this block: nobody waits for all.
template <class Run>
BLINK_INLINE void bench_rounds(const Grid& grid, uint32_t block, Run run) {{
  Word* const times = grid.times + 2 * block;
  for (Word round = 0; round < grid.warming + grid.rounds; ++round) {{
    if (round == grid.warming && device::thread_index() == 0) times[0] = device::now_ns();
    run(grid.calls[block / grid.blocks], block % grid.blocks);
    device::barrier();
  }}
  if (device::thread_index() == 0) times[1] = device::now_ns();
}}
}}  // namespace blink

#define BENCH_GRID(name, Wire, text)                                                                   \\
  BLINK_INLINE void name##_body(const blink::Grid& grid, uint32_t block) {{                            \\
    blink::bench_rounds(grid, block, [](const blink::Call& call, uint32_t part) {{                     \\
      blink::bench_block<blink::Wire, text>(call, part);                                               \\
    }});                                                                                               \\
  }}                                                                                                   \\
  BENCH_KERNEL(name, blink::Grid, name##_body)
"""


class GridArgument(c.Structure):
    """``blink::Grid``."""

    _fields_ = as_long_as_a_call(
        *((name, c.c_uint64) for name in ("calls", "times", "rounds", "warming", "nothing")),
        ("blocks", c.c_uint32),
    )


def program_of(name: str, size: int, algorithm: str, **roles: int) -> Program:
    """A collective of ``size`` ranks on a switch, all its data in one channel."""
    topology = parse_spec("hgx-h100")
    request = Request(topology, Collective(name, size, **roles), parse_gpus(f"0-{size - 1}", topology))
    return dealt(lower(ALGORITHMS[algorithm].plan(request), slots=SLOTS), 1)


class Grid:
    """Ranks of ``program`` in the memory of one GPU, ``parts`` blocks each per channel, and a kernel of one wire."""

    def __init__(self, cuda: Cuda, program: Program, protocol: str, parts: int, threads: int = THREADS) -> None:
        self._cuda, self.program, self.protocol, self._parts, self._threads = cuda, program, protocol, parts, threads
        group, geometry = ProgramGroup([program]), Geometry(parts, SLOTS, SLOT_BYTES, LINE_BYTES)
        self._geometry = geometry
        self._function = cuda.function(cuda.compiled(text_of(program, protocol)), f"bench_{protocol}")
        self._stream = cuda.stream()
        layout = group.layout(geometry)
        segments = [cuda.put(np.zeros(nbytes, np.uint8)) for nbytes in layout.segment_bytes]
        tables = [(ConnectionEnd * max(1, len(layout.connections)))() for _ in segments]
        for number, at in enumerate(layout.connections):
            home, source, target = segments[at.home], segments[at.src], segments[at.dst]
            shared = (home + at.ring, home + at.lines, target + at.tail, source + at.head)
            tables[at.src][number] = ConnectionEnd(*shared, source + at.src_position)
            tables[at.dst][number] = ConnectionEnd(*shared, target + at.dst_position)
        self._tables = [cuda.put(np.frombuffer(table, np.uint8)) for table in tables]
        n = len(program.ranks)
        self.blocks = len(program.channels) * parts
        self._status = cuda.put(np.zeros(n * c.sizeof(LaunchStatus), np.uint8))
        self._calls = cuda.empty(n * c.sizeof(LaunchCall))
        self._times = cuda.empty(16 * n * self.blocks)

    def run(
        self, inputs: Sequence[int | None], outputs: Sequence[int | None], count: int, dtype: str = "float32",
        rounds: int = 1, warming: int = 0,
    ) -> float:  # fmt: skip
        """Run the call on ``count`` elements ``rounds`` times; the addresses are the ranks'. Returns the seconds of one
        round of the slowest block."""
        calls = (LaunchCall * len(self._tables))()
        for rank, call in enumerate(calls):
            call.input, call.output, call.connections = inputs[rank], outputs[rank], self._tables[rank]
            call.status = self._status + rank * c.sizeof(LaunchStatus)
            call.timeout_ns = TIMEOUT_S * 10**9
            call.slots, call.parts, call.rank = SLOTS, self._parts, rank
            call.slot_bytes, call.line_bytes = self._geometry.slot_bytes, self._geometry.line_bytes
            call.dtype, call.op = DTYPE_CODES[dtype], OP_CODES[operation("sum").base]
            call.count, call.chunk_bytes = count, self._geometry.capacity_bytes(self.protocol) // 16 * 16
        self._cuda.write(self._calls, np.frombuffer(calls, np.uint8))
        grid = GridArgument(self._calls, self._times, rounds, warming, 0, self.blocks)
        blocks = self.blocks * len(calls)
        self._cuda.launch(self._function, blocks, self._threads, self._stream, [grid])
        self._cuda.synchronize(self._stream)
        times = self._cuda.get(self._times, 2 * blocks, np.uint64).reshape(-1, 2)
        return float((times[:, 1] - times[:, 0]).max()) * 1e-9 / rounds

    def gave_up(self) -> list[int]:
        """The ranks with a block that gave up."""
        n = len(self._tables)
        status = self._cuda.get(self._status, n * c.sizeof(LaunchStatus), np.uint8)
        return [rank for rank, one in enumerate((LaunchStatus * n).from_buffer_copy(status)) if one.code]


def text_of(program: Program, protocol: str) -> str:
    """The kernel ``bench_<protocol>``."""
    kernel = Kernel("bench", program, slots=SLOTS)
    return cuda_text([kernel], None, [TEXT, f"BENCH_GRID(bench_{protocol}, {WIRES[protocol]}, bench::run)"])


def grids(cuda: Cuda, programs: Sequence[Program], parts: int, threads: int = THREADS) -> list[Grid]:
    """A grid for each program and wire; the kernels are compiled in parallel."""
    todo = [(program, protocol) for program in programs for protocol in WIRES]
    with ThreadPoolExecutor(len(todo)) as pool:
        list(pool.map(lambda one: cuda.compiled(text_of(*one)), todo))
    return [Grid(cuda, program, protocol, parts, threads) for program, protocol in todo]


def wrong(cuda: Cuda, grid: Grid, counts: Sequence[int], dtype: str = "float32", rounds: int = 1) -> list[str]:
    """Faults in the collective's outputs, which are overwritten before each call of ``rounds`` rounds."""
    collective, faults = grid.program.collective, []
    for count in counts:
        inputs = make_inputs(collective, count, dtype, seed=count)
        expected = oracle(collective, inputs, "sum")
        sends = [None if one is None else cuda.put(one) for one in inputs]
        recvs = [None if one is None else cuda.put(np.full(one.nbytes, 0xA5, np.uint8)) for one in expected]
        grid.run(sends, recvs, count, dtype, rounds)
        outputs = [_read(cuda, at, one) for at, one in zip(recvs, expected, strict=True)]
        fault = mismatch(outputs, expected, count)
        late = grid.gave_up()
        if fault is not None or late:
            what = f"rank {late[0]} gave up" if late else fault
            faults.append(f"{collective.name} of {count} x {dtype} by {grid.protocol} on {len(inputs)} ranks: {what}")
        cuda.free(*(one for one in (*sends, *recvs) if one is not None))
    return faults


def _read(cuda: Cuda, address: int | None, like: NDArray[Any] | None) -> NDArray[Any] | None:
    if address is None or like is None:
        return None
    return cuda.get(address, like.nbytes, np.uint8).view(like.dtype)


def round_s(cuda: Cuda, grid: Grid, count: int, rounds: int) -> float:
    """Seconds of one call of ``count`` float32 elements, from ``rounds`` calls in a row after a tenth as many."""
    inputs = make_inputs(grid.program.collective, count, "float32", seed=0)
    expected = oracle(grid.program.collective, inputs, "sum")
    sends = [None if one is None else cuda.put(one) for one in inputs]
    recvs = [None if one is None else cuda.empty(one.nbytes) for one in expected]
    took = grid.run(sends, recvs, count, rounds=rounds, warming=1 + rounds // 10)
    cuda.free(*(one for one in (*sends, *recvs) if one is not None))
    return took


def conformance(
    cuda: Cuda, size: int, parts: int, threads: int = THREADS, counts: Sequence[int] = (1037,)
) -> list[str]:
    """Faults of an AllReduce and a broadcast on each wire, three rounds each on the same connections."""
    programs = [program_of("allreduce", size, "one_hop"), program_of("broadcast", size, "one_hop", root=size - 1)]
    return [fault for grid in grids(cuda, programs, parts, threads) for fault in wrong(cuda, grid, counts, rounds=3)]


def main() -> int:
    faults = conformance(Cuda(), int(sys.argv[1]), 2)
    print("\n".join(faults[:20]) if faults else "ok", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
