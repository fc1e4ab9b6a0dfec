"""Programs over queues between hosts have the bits of the reference engine: every collective, type and operation.

Every rank is a thread with a segment of its own, or shares one with a neighbour, and reaches the others over UCX.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES, OPS
from blinkccl.collectives.oracle import make_inputs, make_scales
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines import reference
from blinkccl.engines.host import (
    Endpoint,
    NativeOp,
    statuses,
)
from blinkccl.engines.host_plan import HostPlan
from blinkccl.errors import CommunicationError, DeadlineError, PlanMismatchError, UnsupportedError
from blinkccl.runtime import ucx
from blinkccl.runtime.hosts import Cost, Hosts, selected
from support.between_hosts import AREA, connected, run_on

COST = Cost(1e-5, 1e9)

try:
    ucx.find()
except UnsupportedError as error:
    pytest.skip(str(error), allow_module_level=True)


def run(
    endpoints: Sequence[Endpoint], plan: HostPlan, call: CollectiveCall, chunk_bytes: int, in_place: bool
) -> tuple[list[Any], list[Any]]:
    """The outputs of all ranks, and those of the reference engine."""
    collective = plan.program.collective
    scales = make_scales(collective, call.dtype) if OPS[call.op].scales else None
    inputs = make_inputs(collective, call.elements, call.dtype, 1, call.op)
    expected = reference.run(plan.program, inputs, call, chunk_bytes=chunk_bytes, scales=scales)
    outputs = run_on(endpoints, plan, inputs, call, chunk_bytes=chunk_bytes, scales=scales, in_place=in_place)
    return outputs, expected


def same(outputs: Sequence[Any], expected: Sequence[Any], said: object) -> None:
    for rank, (output, wished) in enumerate(zip(outputs, expected, strict=True)):
        assert (output is None) == (wished is None)
        assert output is None or output.tobytes() == wished.tobytes(), f"{said}, rank {rank}"


@pytest.mark.parametrize("names", ["ab", "aab", "abab", "abc"])
def test_every_collective_has_the_bits_of_the_reference(names: str) -> None:
    hosts, size = Hosts.of(names), len(names)
    pairs = [(dtype, op) for dtype in DTYPES for op in OPS if DTYPES[dtype].serves(OPS[op])]
    with connected(hosts) as endpoints:
        for number, (name, row) in enumerate(COLLECTIVES.items()):
            collective = CollectiveCall(name, "float32", 1, "sum", size - 1, 0).among(size)
            every = os.environ.get("BLINK_ALL_TESTS")
            for place, (dtype, op) in enumerate(pairs[:: 1 if every else 5] if row.reduces else pairs[:1]):
                count = (37, 1021, 0, 5003, 1)[(number + place) % 5]
                call = CollectiveCall.of(collective, dtype, count, op)
                nbytes = count * DTYPES[dtype].itemsize * collective.total_blocks()
                plan, _ = selected(hosts, collective, nbytes, COST, AREA, False)
                for in_place in (False, True)[: 1 if name == "alltoall" else 2]:
                    same(*run(endpoints, plan, call, 4096, in_place), (call, in_place))


@pytest.mark.parametrize("names", ["ab", "aabb"])
def test_large_messages_go_straight_to_their_place(names: str) -> None:
    hosts, size = Hosts.of(names), len(names)
    with connected(hosts) as endpoints:
        for name in ("allreduce", "broadcast", "allgather", "reduce_scatter"):
            collective = CollectiveCall(name, "float32", 1, "sum", 0, 0).among(size)
            plan, _ = selected(hosts, collective, 1 << 28, COST, AREA, False)
            for in_place in (False, True):
                call = CollectiveCall.of(collective, "float32", 300_001, "sum")
                same(*run(endpoints, plan, call, 256 << 10, in_place), (call, in_place))
        assert all(endpoint.stats()["network_bytes"] for endpoint in endpoints) or names == "aabb"


def test_ranks_that_call_different_things_get_an_error() -> None:
    hosts = Hosts.of("ab")
    collective = Collective("allreduce", 2)
    plan, _ = selected(hosts, collective, 8, COST, AREA, False)
    data = np.ones((2, 20), np.float32)
    with connected(hosts) as endpoints:
        ops = [
            NativeOp(endpoint, plan, CollectiveCall.of(collective, "float32", 10 + rank, "sum"), 4096)
            for rank, endpoint in enumerate(endpoints)
        ]

        def one(rank: int) -> BaseException | None:
            try:
                ops[rank].run(data[rank].ctypes.data, data[rank].ctypes.data, 2_000_000)
            except CommunicationError as error:
                return error
            return None

        with ThreadPoolExecutor(2) as pool:
            errors = list(pool.map(one, range(2)))
        # One may hear of it by its lost peer, or not before its timeout: between hosts the monitor tells both.
        assert any(isinstance(error, PlanMismatchError) for error in errors), errors
        for op in ops:
            op.close()


def test_a_segment_shows_ranks_on_other_hosts_as_such() -> None:
    segments: list[tuple[int, int]] = []
    with connected(Hosts.of("aba"), segments):
        shown = [[(row.joined, row.remote) for row in statuses(*segment)] for segment in segments]
    assert shown == [[(1, 0), (0, 1), (1, 0)], [(0, 1), (1, 0), (0, 1)]]


def test_a_missing_peer_is_a_timeout() -> None:
    hosts = Hosts.of("ab")
    collective = Collective("allreduce", 2)
    plan, _ = selected(hosts, collective, 8, COST, AREA, False)
    word = np.ones(10, np.float32)
    with connected(hosts) as endpoints:
        op = NativeOp(endpoints[0], plan, CollectiveCall.of(collective, "float32", 10, "sum"), 4096)
        with pytest.raises(DeadlineError, match="from rank 1"):
            op.run(word.ctypes.data, word.ctypes.data, 300_000)
        op.close()
