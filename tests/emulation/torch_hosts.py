"""Programs on ranks of several hosts."""

import contextlib
import os
import time
from hashlib import sha256

import numpy as np
import torch
import torch.distributed as dist
from torch_calls import background, coalescing, in_order, moved, objects, unequal_blocks
from torch_common import TIMEOUT, block, place, raises, start, wait_for

from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES, OPS
from blinkccl.collectives.oracle import make_inputs, make_scales, mismatch, oracle
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines import reference
from blinkccl.engines.buffers import filled
from blinkccl.engines.host_plan import Area
from blinkccl.errors import (
    BlinkError,
    CommunicationError,
    DeadlineError,
    PeerLostError,
    PlanMismatchError,
    UnsupportedError,
)
from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.hosts import selected
from blinkccl.runtime.spanning_group import SpanningGroup
from blinkccl.runtime.store import FileStore
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.spec import parse_spec
from blinkccl.torch_backend import stats
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from support.orders import evaluated, rough, same_bits


def ring_program(size: int, slots: int = 2) -> Program:
    topology = parse_spec(f"ring:{size}" if size > 2 else f"chain:{size}")
    return lower(ALGORITHMS["ring"].plan(Request(topology, Collective("allreduce", size), topology.ranks)), slots)


def over_hosts(rank: int, size: int) -> None:
    """Ranks that claim to be on several hosts: everything still works."""
    dist.destroy_process_group()
    os.environ["BLINK_HOSTID"] = f"host {rank // 2}"
    start(rank, size, "hosts")
    neighbours = [peer for peer in range(size) if peer // 2 == rank // 2]
    own = dist.new_group(neighbours, timeout=TIMEOUT, use_local_synchronization=True)
    before = stats().get("calls", 0)
    dist.all_reduce(torch.ones(3), group=own)
    assert stats()["calls"] > before, "the ranks of one host share memory"
    _part_over_hosts(rank, size)
    for part in (_moved_over_hosts, unequal_blocks, in_order, coalescing, objects, background):
        part(rank, size)
    before = stats()
    tensor = torch.full((700_001,), 1.0 + rank)
    dist.all_reduce(tensor)
    assert float(tensor[-1]) == sum(range(1, size + 1))
    if rank == 0:
        dist.send(torch.ones(3), size - 1, tag=4)
    elif rank == size - 1:
        assert dist.recv(torch.ones(3), tag=4) == 0
    counted = {name: number - before.get(name, 0) for name, number in stats().items()}
    assert counted["network_bytes"] > 0
    assert counted["sends"] + counted["receives"] == (rank in (0, size - 1))


def _part_over_hosts(rank: int, size: int) -> None:
    """A group with one rank of the first host and all others of the second, among calls of all ranks."""
    members = [0, *range(2, size)]
    part = dist.new_group(members, timeout=TIMEOUT)
    inputs = [np.random.default_rng(peer).integers(-8, 9, 40_001) for peer in range(size)]
    waiting = []
    for turn in range(3):
        for group, of in ((part, members), (None, range(size))):
            if rank in of:
                tensor = torch.from_numpy(inputs[rank] + turn)
                waiting.append((dist.all_reduce(tensor, group=group, async_op=True), tensor, of, turn))
    for work, tensor, of, turn in waiting:
        work.wait()
        assert np.array_equal(tensor.numpy(), sum(inputs[peer] + turn for peer in of))
    if rank in members:
        blocks = torch.zeros(len(members), 40_001, dtype=torch.int64)
        dist.all_gather_into_tensor(blocks, torch.from_numpy(inputs[rank]), group=part)
        assert np.array_equal(blocks.numpy(), np.stack([inputs[peer] for peer in members]))


#: The hosts by number of ranks: one rank on each, alternating, and of different sizes.
LAYOUTS = {3: "abc", 4: "abab", 5: "abbcc", 6: "abbbbb", 8: "aaabbbbb"}


def hierarchical(rank: int, size: int) -> None:
    """Every collective, type and operation on hosts of any size gives the defined result, with reproducible bits."""
    os.environ["BLINK_HOSTID"] = LAYOUTS[size][rank]
    with contextlib.closing(Communicator.create(FileStore(place("several")), rank, size, deadline_s=30)) as comm:
        group = comm.group
        assert isinstance(group, SpanningGroup)
        assert set(group.stats()) >= {"calls"}
        _as_defined(comm, rank, size)
        everybodys_data = [np.random.default_rng(peer).standard_normal(1_500_007, np.float32) for peer in range(size)]
        data = everybodys_data[rank]
        several = [comm.allreduce(data, np.empty_like(data)) for _ in range(2)]
        assert several[0].tobytes() == several[1].tobytes()
        assert rank != 0 or several[0].tobytes() == _reference(group, size, everybodys_data)
        everybodys = np.empty((size, 32), np.uint8)
        comm.allgather(np.frombuffer(sha256(several[0]).digest(), np.uint8).copy(), everybodys)
        assert (everybodys == everybodys[0]).all(), "not the same bits on all ranks"
        waiting = [comm.allreduce(data, np.empty_like(data), wait=False) for _ in range(3)]
        assert all(each.result(30).tobytes() == several[0].tobytes() for each in waiting)
        result = comm.run(ring_program(size), data, np.empty_like(data))
        assert result is not None
        assert np.allclose(result, sum(everybodys_data), atol=1e-3)
        part = comm.split(rank % 2, -rank)
        assert part is not None
        gathered = part.allgather(np.array([rank]))
        assert list(gathered) == [peer for peer in reversed(range(size)) if peer % 2 == rank % 2]
        part.close()
    os.environ.pop("BLINK_HOSTID")


def _reference(group: SpanningGroup, size: int, data: list[np.ndarray]) -> bytes:
    """The bits of the reference engine for the Program that serves an AllReduce of ``data``."""
    collective = Collective("allreduce", size)
    plan, chunk_bytes = selected(group.hosts, collective, data[0].nbytes, group.cost, Area(), False)
    call = CollectiveCall("allreduce", "float32", len(data[0]))
    return reference.run(plan.program, data, call, chunk_bytes=chunk_bytes)[0].tobytes()


def one_order(rank: int, size: int) -> None:
    """BLINK_DETERMINISTIC=order: sums of any length and kind have the bits of one order, also over hosts."""
    os.environ["BLINK_DETERMINISTIC"] = "order"
    group = dist.new_group(backend="blink", timeout=TIMEOUT)
    row, values = DTYPES["float16"], rough(DTYPES["float16"], size, 1009)
    wanted = evaluated("+".join(map(str, range(size))), dict(enumerate(values)), row, OPS["sum"])
    for count in (1, 8, 1000, 40_000, 200_000):
        contribution = torch.from_numpy(np.resize(values[rank], count * size))
        own = contribution[:count].clone()
        dist.all_reduce(own, group=group)
        assert same_bits(own.numpy(), np.resize(wanted, count))
        part = torch.empty(count, dtype=torch.float16)
        dist.reduce_scatter_tensor(part, contribution, group=group)
        assert same_bits(part.numpy(), np.resize(wanted, count * size)[rank * count :][:count])
        buckets = [contribution[:count].clone(), contribution[: count // 2].clone()]
        dist.all_reduce_coalesced(buckets, group=group)
        assert same_bits(buckets[1].numpy(), buckets[0].numpy()[: count // 2])
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (2,))
    with raises(UnsupportedError, "BLINK_DETERMINISTIC=order needs a dense tensor that blink serves"):
        dist.all_reduce(sparse, group=group)
    dist.destroy_process_group(group)
    os.environ["BLINK_HOSTID"] = LAYOUTS[size][rank]
    _one_order_over_hosts(rank, size)


def _one_order_over_hosts(rank: int, size: int) -> None:
    """The order of the ranks, on several hosts too and for every size."""
    order = "+".join(map(str, range(size)))
    with contextlib.closing(Communicator.create(FileStore(place("ordered")), rank, size, deadline_s=30)) as comm:
        assert isinstance(comm.group, SpanningGroup)
        assert comm.group.deterministic == "order"
        for dtype, op in (("bfloat16", "sum"), ("float32", "avg"), ("float16", "premul_sum")):
            values, row = rough(DTYPES[dtype], size, 1009), DTYPES[dtype]
            factors = {each: row.scalar(0.3 + each) for each in range(size)} if OPS[op].scales else None
            scale = None if factors is None else 0.3 + rank
            wanted = evaluated(order, dict(enumerate(values)), row, OPS[op], factors)
            for count in (1, 100, 200_000):
                send = np.resize(values[rank], count)
                assert same_bits(comm.allreduce(send, np.empty_like(send), op, scale=scale), np.resize(wanted, count))
                reduced = comm.reduce(send, np.empty_like(send), op, root=1, scale=scale)
                assert rank != 1 or same_bits(reduced, np.resize(wanted, count))
                part = comm.reduce_scatter(np.resize(values[rank], count * size), None, op, scale=scale)
                assert same_bits(part, np.resize(wanted, count * size)[rank * count :][:count])
    os.environ.pop("BLINK_HOSTID")


def failures_over_hosts(rank: int, size: int) -> None:
    """All ranks get the same report of an error on one host: the dead rank, the missing one, or the difference."""
    os.environ["BLINK_HOSTID"] = LAYOUTS[size][rank]
    lost = size - 2
    data = np.ones(1000, np.float32)

    def opened(name: str) -> Communicator:
        return Communicator.create(FileStore(place(name)), rank, size, deadline_s=20)

    if rank == lost:
        os.environ["BLINK_NIC_GBITS"] = "0"
    with raises(BlinkError, "BLINK_NIC_GBITS='0': expected a positive number", torchs=False):
        opened("no rate")
    os.environ.pop("BLINK_NIC_GBITS", None)
    with contextlib.closing(opened("late")) as comm:
        comm.allreduce(data)
        if rank == lost:
            assert wait_for(lambda: comm.group._monitor.cause is not None)
        else:
            with raises(DeadlineError, f"; rank {lost} had not come to it", torchs=False):
                comm.allreduce(data, deadline_s=1)
        with raises(CommunicationError, "", torchs=False):
            comm.allreduce(data)
    with contextlib.closing(opened("differs")) as comm, raises(PlanMismatchError, f"rank {lost} calls", torchs=False):
        comm.allreduce(data if rank == lost else np.ones(999, np.float32))
        comm.allreduce(data)
    with contextlib.closing(opened("aborts")) as comm:
        if rank == lost:
            comm.abort("enough")
        else:
            with raises(CommunicationError, "enough", torchs=False):
                comm.recv(data, lost)
    with contextlib.closing(opened("leaves")) as comm:
        comm.allreduce(data)
        if rank != lost:
            with raises(PeerLostError, f"rank {lost} was lost: it closed its communicator", torchs=False):
                comm.allreduce(data)
    comm = opened("ends")
    comm.allreduce(data)
    if rank == lost:
        os._exit(0)
    with raises(PeerLostError, f"rank {lost} (process ", torchs=False):
        for _ in range(1000):
            comm.allreduce(np.ones(300_000, np.float32))
    with raises(PeerLostError, f"rank {lost} (process ", torchs=False):
        comm.recv(data, (rank + 1) % size)
    comm.close()
    os._exit(0)


def dies_while_made(rank: int, size: int) -> None:
    """A rank that ends while the group over hosts forms is named, and no rank waits for the deadline."""
    os.environ["BLINK_HOSTID"] = LAYOUTS[size][rank]
    lost = size - 1
    if rank == lost:
        SpanningGroup._measured = lambda *_: os._exit(0)
    begun = time.monotonic()
    with raises(PeerLostError, f"rank {lost} (process ", torchs=False):
        Communicator.create(FileStore(place("dies")), rank, size, deadline_s=90)
    assert time.monotonic() - begun < 45


def _as_defined(comm: Communicator, rank: int, size: int) -> None:
    """In a merge every third type and operation; the others on another number of ranks, and for each collective."""
    pairs = [(dtype, op) for dtype in DTYPES for op in OPS if DTYPES[dtype].serves(OPS[op])]
    sizes = [("float32", "sum", count) for count in (0, 1, 2, 1021, 40_003, 300_001)]
    for number, (name, row) in enumerate(COLLECTIVES.items()):
        chosen = pairs if os.environ.get("BLINK_ALL_TESTS") else pairs[(number + size) % 3 :: 3]
        for dtype, op, count in [*((dtype, op, 37) for dtype, op in chosen), *sizes]:
            if op != "sum" and not row.reduces:
                continue
            if count > 2000 and not row.whole:
                count = 50_001
            roots = (0, size - 1) if row.parameters else (0,)
            for root in roots:
                call = CollectiveCall(name, dtype, count, op, root, (root + 1) % size)
                _one_as_defined(comm, call, rank, size)


def _one_as_defined(comm: Communicator, call: CollectiveCall, rank: int, size: int) -> None:
    collective = call.among(size)
    scales = make_scales(collective, call.dtype) if OPS[call.op].scales else None
    inputs = make_inputs(collective, call.elements, call.dtype, 1, call.op)
    expected = oracle(collective, inputs, call.op, scales)
    scale = None if scales is None else scales[rank]
    for in_place in (False, True)[: 1 if call.collective == "alltoall" else 2]:
        buffers = filled(collective, inputs, call.elements, call.dtype, in_place)
        send, recv = buffers.inputs[rank], buffers.outputs[rank]
        addresses = [None if each is None else each.ctypes.data for each in (send, recv)]
        comm.group.run(call, *addresses, scale)
        mismatched = mismatch([recv], [expected[rank]], max(1, call.elements))
        assert mismatched is None, f"{call}, in place {in_place}, rank {rank}: {mismatched}"


def _moved_over_hosts(rank: int, size: int) -> None:
    moved(rank, size, [block(peer, (5, 3), torch.float32) for peer in range(size)])
