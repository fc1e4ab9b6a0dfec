"""Several ranks on one GPU, in one process: a thread makes each rank's group, one thread drives all streams.

They run the code that ``libblink.so`` runs under NCCL programs. NCCL is measured too, if it allows several ranks on a
GPU.
"""

from __future__ import annotations

import ctypes as c
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from cuda_driver import Cuda, CudaError
from gpu_conformance import new_key
from gpu_group import GpuGroup

from blinkccl.collectives.call import CollectiveCall

_FLOAT32, _SUM = 7, 0
_LEAST_NCCL = 23000


class Ranks(Protocol):
    """Ranks that sum float32, each on its stream."""

    def all_reduce(self, rank: int, send: int, recv: int, count: int, stream: int) -> None: ...

    def close(self) -> None: ...


class Ours:
    """Ranks of Blink."""

    def __init__(self, cuda: Cuda, size: int) -> None:
        key = new_key()

        def made(rank: int) -> GpuGroup:
            cuda.bind()
            return GpuGroup(key, rank, size, 0)

        with ThreadPoolExecutor(size) as pool:
            self.groups = list(pool.map(made, range(size)))

    def all_reduce(self, rank: int, send: int, recv: int, count: int, stream: int) -> None:
        self.groups[rank].run(CollectiveCall("allreduce", "float32", count), send, recv, stream)

    def close(self) -> None:
        with ThreadPoolExecutor(len(self.groups)) as pool:
            list(pool.map(lambda group: group.close(), self.groups))


class Nccl:
    """NCCL's ranks on one GPU.

    Raises
    ------
    CudaError
        If there is no NCCL, it is too old for that, or refuses.
    """

    def __init__(self, size: int) -> None:
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
        try:
            self._library = c.CDLL(os.environ.get("BLINK_NCCL_LIB") or "libnccl.so.2")
        except OSError as error:
            raise CudaError(f"no NCCL: {error}") from None
        version = c.c_int()
        self._call("ncclGetVersion", c.byref(version))
        if version.value < _LEAST_NCCL:
            raise CudaError(f"NCCL {version.value} puts one rank on a GPU; 2.30 and later several")

        class Id(c.Structure):
            _fields_ = [("internal", c.c_char * 128)]

        identity = Id()
        self._call("ncclGetUniqueId", c.byref(identity))
        self._comms = [c.c_void_p() for _ in range(size)]
        self._call("ncclGroupStart")
        for rank, comm in enumerate(self._comms):
            self._call("ncclCommInitRank", c.byref(comm), size, identity, rank)
        self._call("ncclGroupEnd")

    def all_reduce(self, rank: int, send: int, recv: int, count: int, stream: int) -> None:
        if rank == 0:
            self._call("ncclGroupStart")
        self._call(
            "ncclAllReduce", c.c_void_p(send), c.c_void_p(recv), c.c_size_t(count), _FLOAT32, _SUM, self._comms[rank],
            c.c_void_p(stream),
        )  # fmt: skip
        if rank == len(self._comms) - 1:
            self._call("ncclGroupEnd")

    def close(self) -> None:
        for comm in self._comms:
            self._library.ncclCommAbort(comm)

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result:
            raise CudaError(f"{name}: result {result}")


class Field:
    """A stream, an input and an output per rank, and events that join their work."""

    def __init__(self, cuda: Cuda, size: int, count: int, seed: int = 0) -> None:
        self.cuda, self.size, self.count = cuda, size, count
        self.streams = [cuda.stream() for _ in range(size)]
        numbers = np.random.default_rng(seed)
        self.values = [numbers.standard_normal(count).astype(np.float32) for _ in range(size)]
        self.inputs = [cuda.put(one) for one in self.values]
        self.outputs = [cuda.put(np.full(count, np.nan, np.float32)) for _ in range(size)]
        self._fork = cuda.event(timing=False)
        self._join = [cuda.event(timing=False) for _ in range(size)]
        self._timed = cuda.event(), cuda.event()

    def all_reduce(self, ranks: Ranks) -> None:
        """Run on all streams; the first one waits for all others, which begin after it."""
        first, *others = self.streams
        self.cuda.record(self._fork, first)
        for stream in others:
            self.cuda.wait(stream, self._fork)
        for rank, stream in enumerate(self.streams):
            ranks.all_reduce(rank, self.inputs[rank], self.outputs[rank], self.count, stream)
        for stream, event in zip(others, self._join[1:], strict=True):
            self.cuda.record(event, stream)
            self.cuda.wait(first, event)

    def graphs(self, ranks: Ranks) -> list[int]:
        """One AllReduce as a graph per rank, because branches of one graph need not run in parallel."""
        captured = []
        for rank, stream in enumerate(self.streams):
            self.cuda.begin_capture(stream)
            ranks.all_reduce(rank, self.inputs[rank], self.outputs[rank], self.count, stream)
            captured.append(self.cuda.end_capture(stream))
        return captured

    def seconds(self, work: Callable[[], None]) -> float:
        """Seconds of ``work``, by events around it."""
        before, after = self._timed
        self.cuda.record(before, self.streams[0])
        work()
        self.cuda.record(after, self.streams[0])
        return self.cuda.elapsed_s(before, after)

    def spoil(self) -> None:
        """Overwrite all outputs, so that elements that a replay does not write are visible."""
        for address, stream in zip(self.outputs, self.streams, strict=True):
            self.cuda.fill(address, 0xFF, 4 * self.count, stream)

    def results(self) -> list[bytes]:
        """Every rank's output, after all have it."""
        for stream in self.streams:
            self.cuda.synchronize(stream)
        return [self.cuda.get(address, self.count, np.float32).tobytes() for address in self.outputs]

    def right(self) -> bool:
        """True if all have the sum, within float32's error for any order."""
        expected = np.sum(np.array(self.values, np.float64), axis=0)
        outputs = (np.frombuffer(one, np.float32) for one in self.results())
        return all(bool(np.allclose(one, expected, rtol=1e-5, atol=1e-5)) for one in outputs)


class Replays(NamedTuple):
    """Result of the replays of one graph, on all ranks."""

    replays: int
    right: bool
    same_bits: bool


def replays(cuda: Cuda, size: int, nbytes: int, count: int) -> Replays:
    """An AllReduce as calls, then as graphs, with outputs overwritten before each replay."""
    ranks, field = Ours(cuda, size), Field(cuda, size, nbytes // 4)
    field.all_reduce(ranks)
    right = field.right()
    graphs = field.graphs(ranks)
    bits = []
    for _ in range(count):
        field.spoil()
        for graph, stream in zip(graphs, field.streams, strict=True):
            cuda.replay(graph, stream)
        bits += field.results()
    right = right and field.right()
    ranks.close()
    return Replays(count, right, len(dict.fromkeys(bits)) == 1)


def order(cuda: Cuda, size: int, rounds: int, count: int = 25_000, hold_bytes: int = 1 << 26) -> bool:
    """True if a graph, a call and a graph, each in its own streams, read the results of the previous one.

    Only the groups order them. The first is delayed, so work that does not wait for it comes too early.
    """
    ranks, every = Ours(cuda, size), range(size)
    source = cuda.put(np.ones(count, np.float32))
    scratch = cuda.empty(hold_bytes)
    at = [[cuda.empty(4 * count) for _ in range(4)] for _ in every]
    streams = [[cuda.stream() for _ in every] for _ in range(3)]

    def step(rank: int, number: int) -> None:
        ranks.all_reduce(rank, at[rank][number], at[rank][number + 1], count, streams[number][rank])

    def captured(rank: int, number: int) -> int:
        cuda.begin_capture(streams[number][rank])
        step(rank, number)
        return cuda.end_capture(streams[number][rank])

    graphs = {number: [captured(rank, number) for rank in every] for number in (0, 2)}
    ordered = True
    for _ in range(rounds):
        for rank in every:
            for address in at[rank]:
                cuda.fill(address, 0xFF, 4 * count, streams[0][rank])  # not a number
            cuda.synchronize(streams[0][rank])
        for rank, stream in enumerate(streams[0]):
            for _ in range(40):
                cuda.fill(scratch, 0, hold_bytes, stream)
            cuda.copy(at[rank][0], source, 4 * count, stream)
        for rank in every:
            cuda.replay(graphs[0][rank], streams[0][rank])
            step(rank, 1)
            cuda.replay(graphs[2][rank], streams[2][rank])
        for rank in every:
            for number in range(3):
                cuda.synchronize(streams[number][rank])
            values = [cuda.get(address, count, np.float32) for address in at[rank]]
            ordered = ordered and all(bool((one == size**number).all()) for number, one in enumerate(values))
    ranks.close()
    return ordered


def against_nccl(cuda: Cuda, size: int, sizes: Sequence[int], rounds: int) -> Iterator[dict[str, Any]]:
    """AllReduce, out of place, in turns with NCCL: medians, and the median of the rounds' ratios.

    Raises
    ------
    CudaError
        As :class:`Nccl`.
    """
    nccl, blink = Nccl(size), Ours(cuda, size)
    for nbytes in sizes:
        field = Field(cuda, size, nbytes // 4)
        calls = [partial(field.all_reduce, one) for one in (blink, nccl)]
        pairs = [tuple(map(field.seconds, calls)) for _ in range(rounds + 3)][3:]
        yield {
            "ranks": size,
            "bytes": nbytes,
            "right": field.right(),
            "ours_us": statistics.median(a for a, _ in pairs) * 1e6,
            "nccl_us": statistics.median(b for _, b in pairs) * 1e6,
            "times_as_fast": statistics.median(b / a for a, b in pairs),
        }
        cuda.free(*field.inputs, *field.outputs)
    blink.close()
    nccl.close()
