"""All collectives of communicators whose ranks are processes, compared with the oracle: the same bits on all ranks."""

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest
from job import Ran, wait_for

import blinkccl
from blinkccl.collectives.ops import DTYPES, OPS, element_type
from blinkccl.collectives.oracle import make_inputs, make_scales, mismatch, oracle
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines.buffers import filled
from blinkccl.errors import UnsupportedError
from blinkccl.runtime.communicator import Communicator
from blinkccl.schedule.lower import lower
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request

#: Elements per block: none, one, odd, one cache line, one block of a small message and its neighbours, many chunks.
COUNTS = (0, 1, 3, 16, 1037, 1038, 1039, 5000, 70_001, 300_007)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_every_collective_on_random_sizes_types_and_places(ran: Ran, size: int) -> None:
    assert ran(size, random_calls, size, 35) == [35] * size


def random_calls(comm: Communicator, seed: int, calls: int) -> int:
    """Make the same calls on every rank; every rank compares its own results with the oracle."""
    random = Random(seed)
    for number in range(calls):
        call = _random_call(random, comm.size)
        wrong = call.run(comm, number)
        assert wrong is None, f"call {number}, {call}: {wrong}"
    comm.barrier()
    return calls


@dataclass
class _Case:
    """One call: its parameters, data, placement, and whether the caller waits."""

    collective: Collective
    count: int
    dtype: str
    op: str
    in_place: bool
    shared: list[bool]
    wait: bool

    def run(self, comm: Communicator, seed: int) -> str | None:
        inputs = make_inputs(self.collective, self.count, self.dtype, seed, self.op)
        scales = make_scales(self.collective, self.dtype) if OPS[self.op].scales else None
        expected = oracle(self.collective, inputs, self.op, scales)
        # In place as in nccl.h, if the collective supports it.
        in_place = self.in_place and self.collective.name not in ("alltoall", "sendrecv")
        zeros = blinkccl.empty if self.shared[comm.rank] else np.zeros
        buffers = filled(self.collective, inputs, self.count, self.dtype, in_place, zeros)
        send, recv = buffers.inputs[comm.rank], buffers.outputs[comm.rank]
        if send is None and recv is None:  # no input and output: the buffer only gives size and type
            recv = zeros(self.count, element_type(self.dtype).storage)
        original = None if send is None or in_place else send.copy()
        result = comm._call(
            (self.collective.name, self.op, self.collective.root or self.collective.src or 0, self.collective.dst or 0),
            send,
            recv,
            scale=None if scales is None else scales[comm.rank],
            wait=self.wait,
        )
        if not self.wait:
            result.result(30)
        if original is not None:
            assert send.tobytes() == original.tobytes(), "the input was written"
        if expected[comm.rank] is None:
            return None
        return mismatch([recv], [expected[comm.rank]], self.count)


def _random_call(random: Random, size: int) -> _Case:
    name = random.choice([name for name in COLLECTIVES if size > 1 or name != "sendrecv"])
    ends = dict(zip(("src", "dst"), random.sample(range(max(2, size)), 2), strict=True), root=random.randrange(size))
    collective = Collective(name, size, **{key: ends[key] for key in COLLECTIVES[name].parameters})
    while True:
        dtype, op = random.choice(list(DTYPES)), random.choice(list(OPS)) if collective.reduces else "sum"
        try:
            element_type(dtype).combine(OPS[op])
        except UnsupportedError:
            continue
        shared = [random.random() < 0.5 for _ in range(size)]
        return _Case(collective, random.choice(COUNTS), dtype, op, random.random() < 0.4, shared, random.random() < 0.7)


@pytest.mark.parametrize("shared", [False, True])
def test_results_that_round_have_the_same_bits_on_all_ranks(ran: Ran, shared: bool) -> None:
    sums = ran(4, rounded_sums, shared)
    assert sums[1:] == sums[:-1]


def rounded_sums(comm: Communicator, shared: bool) -> list[bytes]:
    rng = np.random.default_rng(comm.rank)
    results = []
    for dtype in ("float32", "float64", "float16", "bfloat16"):
        for count in (3, 1000, 20_000, 200_001):
            new = blinkccl.empty if shared else lambda n, t: np.empty(n, element_type(t).storage)
            array = new(count, dtype)
            array[...] = rng.standard_normal(count).astype(array.dtype)
            results.append(comm.allreduce(array).tobytes())
    return results


def test_several_in_flight_and_waited_for_ones_between(ran: Ran) -> None:
    assert all(ran(3, mixed_waits))


def mixed_waits(comm: Communicator) -> bool:
    for turn in range(20):
        arrays = [np.full(1 + 7000 * i, comm.rank + turn + i, np.int64) for i in range(6)]
        futures = [comm.allreduce(array, wait=False) for array in arrays[:4]]
        waited = comm.allreduce(arrays[4])
        last = comm.allreduce(arrays[5], wait=False)
        for i, array in enumerate([*(future.result(20) for future in futures), waited, last.result(20)]):
            assert (array == 3 + 3 * (turn + i)).all(), (turn, i)
    return True


def test_two_threads_of_a_rank_with_a_communicator_each(ran: Ran) -> None:
    """A program that overlaps two kinds of work: each communicator has its own order of calls."""
    assert all(ran(3, two_threads))


def two_threads(comm: Communicator) -> bool:
    parts = [comm.split(0), comm.split(0)]
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(random_calls, parts, range(2), [25] * 2, timeout=40))
    for part in parts:
        part.close()
    return done == [25] * 2


def test_two_threads_that_take_turns_on_one_communicator(ran: Ran) -> None:
    """Only the order of calls matters, not the calling thread."""
    assert all(ran(2, turns_on_one))


def turns_on_one(comm: Communicator) -> bool:
    turns = [threading.Semaphore(1), threading.Semaphore(0)]
    sums: list[int] = []

    def work(own: int) -> None:
        for _ in range(50):
            turns[own].acquire(timeout=20)
            sums.append(int(comm.allreduce(np.array([len(sums)]))[0]))
            turns[1 - own].release()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2), timeout=40))
    return sums == [2 * i for i in range(100)]


def test_parts_work_side_by_side(ran: Ran) -> None:
    assert ran(5, split_twice) == [(2, 3, "even", 10), (1, 2, "odd", 10), (1, 3, "even", 10), (0, 2, "odd", 10), None]


def split_twice(comm: Communicator) -> tuple[int, int, str, int] | None:
    """Ranks 0, 2, … in reverse order, 1, 3, … in reverse order, 4 only in parts of the even ones' first half."""
    half = comm.split(comm.rank % 2, key=-comm.rank)
    last = comm.split(None if comm.rank == 4 else comm.rank % 2)
    total = 0
    for i in range(30):
        array = np.full(1 + i * 4000, half.rank)
        total = int(half.allreduce(array)[0])
    assert total == sum(range(half.size))
    assert (last is None) == (comm.rank == 4)
    place = None
    if last is not None:
        assert last.size == 2
        last.barrier()
        place = half.rank, half.size, ("even", "odd")[comm.rank % 2], int(comm.size * 2)
        last.close()
    half.close()
    comm.barrier()
    return place


def test_more_calls_under_way_than_are_kept_prepared(ran: Ran) -> None:
    """The oldest prepared calls are freed, but not those that still wait for their turn."""
    assert ran(2, calls_of_many_sizes, 1300) == [1300] * 2


def calls_of_many_sizes(comm: Communicator, calls: int) -> int:
    if comm.rank == 1:
        time.sleep(0.3)  # meanwhile rank 0 queues all of them
    futures = [comm.allreduce(np.full(1 + n, n, np.int32), wait=False) for n in range(calls)]
    return sum(bool((future.result(30) == 2 * n).all()) for n, future in enumerate(futures))


def test_any_program_runs_unchanged(ran: Ran) -> None:
    assert ran(4, runs_programs) == [True] * 4


def runs_programs(comm: Communicator) -> bool:
    topology = parse_spec("ring:4")
    for name in ("allreduce", "allgather", "reduce_scatter", "broadcast"):
        root = {"root": 2} if name == "broadcast" else {}
        collective = Collective(name, comm.size, **root)
        for planner in ("ring", "optimal"):
            program = lower(algorithm(planner).plan(Request(topology, collective, topology.ranks)))
            inputs = make_inputs(collective, 50_021, "float32", 3)
            send, expected = inputs[comm.rank], oracle(collective, inputs)[comm.rank]
            recv = np.zeros_like(expected)
            assert comm.run(program, send, recv, chunk_bytes=4096) is recv
            assert recv.tobytes() == expected.tobytes(), (name, planner)
    return True


def test_ranks_may_be_threads_of_one_process(ran: Ran) -> None:
    assert ran(1, threads_as_ranks) == [[3, 3, 3]]


def threads_as_ranks(comm: Communicator) -> list[int]:
    """Also beside a group whose ranks are processes."""

    def work(rank: int) -> int:
        with_store = Communicator.create(comm.store, rank, 3, prefix="threads", deadline_s=20)
        random_calls(with_store, 5, 20)
        sent = with_store.send(np.full(3, rank), (rank + 1) % 3, wait=False)
        got = np.zeros(3, int)
        assert with_store.recv(got) == (rank - 1) % 3 == got[0]
        sent.result(20)
        with_store.barrier()
        with_store.close()
        return with_store.size

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(work, range(3), timeout=40))


def test_arrays_live_as_long_as_calls_on_them(ran: Ran) -> None:
    assert ran(2, drops_its_arrays) == [(True, False), None]


def drops_its_arrays(comm: Communicator) -> tuple[bool, bool] | None:
    """Return whether arrays that only running calls refer to exist during the calls, and whether afterwards."""
    send, recv, message, room = (np.ones(70_000) for _ in range(4))
    if comm.rank == 1:
        wait_for(comm.store, "go")  # until then no call of rank 0 can end
        comm.allreduce(send, recv)
        comm.recv(room, 0, tag=1)
        comm.send(message, 0, tag=2)
        return None
    watched = [weakref.ref(array) for array in (send, recv, message, room)]
    futures = [
        comm.allreduce(send, recv, wait=False),
        comm.send(message, 1, tag=1, wait=False),
        comm.recv(room, 1, tag=2, wait=False),
    ]
    del send, recv, message, room
    gc.collect()
    during = all(array() is not None for array in watched)
    comm.store.set("go", b"")
    for future in futures:
        future.result(20)
    del future, futures
    gc.collect()
    return during, any(array() is not None for array in watched)
