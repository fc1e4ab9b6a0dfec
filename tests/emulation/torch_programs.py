"""Programs on backend "blink" that ranks run: functions of rank and size; the default group is there. By hand:

    echo NAME WORLD_SIZE | PYTHONPATH=tests python tests/emulation/torch_programs.py

The ranks of each line are forked from this process, which has imported torch once (support/forked_ranks.py).
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import re
import runpy
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial, reduce
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # once here, and not in every rank that trains
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import blinkccl
from blinkccl.algorithms.registry import ALGORITHMS, Request
from blinkccl.collectives.call import CollectiveCall
from blinkccl.collectives.ops import DTYPES, OPS
from blinkccl.collectives.oracle import make_inputs, make_scales, mismatch, oracle
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.engines.buffers import filled
from blinkccl.engines.torch_p2p import TorchP2P
from blinkccl.errors import (
    BlinkError,
    CommunicationError,
    DeadlineError,
    PeerLostError,
    PlanMismatchError,
    UsageError,
)
from blinkccl.runtime.communicator import Communicator
from blinkccl.runtime.heap import process_heap
from blinkccl.runtime.host_group import HostGroup
from blinkccl.runtime.spanning_group import SpanningGroup
from blinkccl.runtime.store import FileStore
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.spec import parse_spec
from blinkccl.torch_backend import hooks, stats
from blinkccl.torch_backend.process_group import BlinkProcessGroup
from support.forked_ranks import serve

TIMEOUT = timedelta(seconds=30)

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def block(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """What ``rank`` contributes: small integers, so that every order of a sum is exact."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype.is_complex:
        parts = torch.randint(-4, 5, (*shape, 2), generator=generator).to(torch.float32)
        return torch.view_as_complex(parts).to(dtype)
    low, high = (0, 2) if dtype == torch.bool else (1, 4)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def same(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == expected.dtype, (got.dtype, expected.dtype)
    assert torch.equal(got, expected), (got, expected)


# ---- collectives


def reductions(rank: int, size: int) -> None:
    """Every reduction on every type, in place, at once and in the background, and on parts of tensors."""
    kinds = dist.ReduceOp
    numbers = {kinds.SUM: torch.add, kinds.PRODUCT: torch.mul, kinds.MIN: torch.minimum, kinds.MAX: torch.maximum}
    bits = {kinds.BAND: torch.bitwise_and, kinds.BOR: torch.bitwise_or, kinds.BXOR: torch.bitwise_xor}
    for dtype in (*FLOATS, *INTEGERS):
        for op, combine in (numbers if dtype.is_floating_point else numbers | bits).items():
            for shape in ((), (1,), (5, 3), (1021,)):
                blocks = [block(peer, shape, dtype) for peer in range(size)]
                expected = reduce(combine, blocks)
                mine = blocks[rank].clone()
                dist.all_reduce(mine, op)
                same(mine, expected)
                mine = blocks[rank].clone()
                work = dist.all_reduce(mine, op, async_op=True)
                work.wait()
                same(mine, expected)
                mine = blocks[rank].clone()
                dist.reduce(mine, size - 1, op)
                same(mine, expected if rank == size - 1 else blocks[rank])


def other_reductions(rank: int, size: int) -> None:
    """Averages, scaled sums, truth values, complex and fp8 numbers, sparse tensors, lists of tensors."""
    mean = torch.full((7,), float(rank))
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    same(mean, torch.full((7,), sum(range(size)) / size))
    scaled = torch.full((7,), float(rank + 1))
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    same(scaled, torch.full((7,), sum(range(1, size + 1)) / 2))
    truth = torch.arange(3 * size) % size == rank
    dist.all_reduce(truth, dist.ReduceOp.MAX)
    same(truth, torch.ones(3 * size, dtype=torch.bool))
    numbers = block(rank, (4, 3), torch.complex64)
    dist.all_reduce(numbers)
    same(numbers, torch.stack([block(peer, (4, 3), torch.complex64) for peer in range(size)]).sum(0))
    eighths = torch.ones(33).to(torch.float8_e4m3fn)
    dist.all_reduce(eighths)
    same(eighths.to(torch.float32), torch.full((33,), float(size)))
    before = stats()
    sparse = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 1,))
    dist.all_reduce(sparse)
    same(sparse.to_dense(), torch.tensor([1.0] * size + [2.0 * size]))
    assert stats()["calls"] == before["calls"], "a sparse sum is gloo's business"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        several = [torch.full((length,), float(rank)) for length in (1, 0, 5)]
        dist.all_reduce_coalesced(several)
        future = dist.all_reduce_coalesced(several, async_op=True)
    assert [tensor.tolist() for tensor in future.wait()] == [[size * sum(range(size))] * n for n in (1, 0, 5)]


def movements(rank: int, size: int) -> None:
    """Every collective that moves data, on any type, in lists, in one tensor, in place, in pieces and empty."""
    for dtype in (torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64):
        for shape in ((5, 3), (1,), (0,), (4099,)):
            _moved(rank, size, [block(peer, shape, dtype) for peer in range(size)])
    eights = torch.full((9,), float(rank)).to(torch.float8_e5m2)
    dist.broadcast(eights, size - 1)
    same(eights.to(torch.float32), torch.full((9,), size - 1.0))


def _moved(rank: int, size: int, blocks: list[Tensor]) -> None:
    mine, everything = blocks[rank], torch.cat(blocks)
    for root in range(size):
        received = mine.clone()
        dist.broadcast(received, root)
        same(received, blocks[root])
        outputs = [torch.zeros_like(mine) for _ in range(size)] if rank == root else None
        dist.gather(mine, outputs, root)
        if outputs is not None:
            same(torch.cat(outputs), everything)
        received = torch.zeros_like(mine)
        dist.scatter(received, blocks if rank == root else None, root)
        same(received, mine)
    outputs = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(outputs, mine)
    same(torch.cat(outputs), everything)
    joined = torch.zeros_like(everything)
    dist.all_gather(list(joined.chunk(size)) if everything.numel() else [joined] * size, mine)
    same(joined, everything)
    joined = torch.zeros_like(everything)
    gather_into(joined, mine)
    same(joined, everything)
    if mine.numel():
        own_place = joined.zero_().chunk(size)[rank]
        own_place.copy_(mine)
        gather_into(joined, own_place)
        same(joined, everything)
    outputs = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_to_all(outputs, [mine] * size)
    same(torch.cat(outputs), everything)


def gather_into(output: Tensor, tensor: Tensor, **options: Any) -> Any:
    """``all_gather_into_tensor``, under its newer name where it has one."""
    return getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(output, tensor, **options)


def reduce_into(output: Tensor, tensor: Tensor, **options: Any) -> Any:
    """``reduce_scatter_tensor``, under its newer name where it has one."""
    return getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(output, tensor, **options)


def scattered_sums(rank: int, size: int) -> None:
    """ReduceScatter from lists and from one tensor, in place, averaged, of unequal parts."""
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        blocks = [block(peer, (size * 6, 5), dtype) for peer in range(size)]
        expected = torch.stack(blocks).sum(0).to(dtype).chunk(size)[rank]
        output = torch.zeros_like(expected)
        dist.reduce_scatter(output, list(blocks[rank].chunk(size)))
        same(output, expected)
        dist.reduce_scatter(output.zero_(), [part.clone() for part in blocks[rank].chunk(size)])
        same(output, expected)
        reduce_into(output.zero_(), blocks[rank])
        same(output, expected)
        tensor = blocks[rank].clone()
        reduce_into(tensor.chunk(size)[rank], tensor)
        same(tensor.chunk(size)[rank], expected)
    output = torch.zeros(3)
    reduce_into(output, torch.arange(3.0 * size), op=dist.ReduceOp.AVG)
    same(output, torch.arange(3.0 * rank, 3.0 * rank + 3))
    output = torch.zeros(rank + 1)
    dist.reduce_scatter(output, [torch.full((peer + 1,), float(peer)) for peer in range(size)])
    same(output, torch.full((rank + 1,), float(rank * size)))


def unequal_blocks(rank: int, size: int) -> None:
    """Blocks whose sizes only some ranks know."""
    outputs = [torch.zeros(peer) for peer in range(size)]
    dist.all_gather(outputs, torch.full((rank,), float(rank)))
    assert [output.tolist() for output in outputs] == [[float(peer)] * peer for peer in range(size)]
    for rows, by_messages in (
        ([[source + target for target in range(size)] for source in range(size)], False),  # nearly equal: padded
        ([[0] * size] * size, False),
        ([[3000 * (source == 1 and target == 0) + target for target in range(size)] for source in range(size)], True),
    ):
        before = messages_sent()
        expected = [rows[peer][rank] for peer in range(size)]
        sent = torch.cat([torch.full((rows[rank][peer], 2), 100.0 * rank + peer) for peer in range(size)])
        received = torch.zeros((sum(expected), 2))
        dist.all_to_all_single(received, sent, expected, rows[rank])
        assert received[:, 1].tolist() == [100.0 * peer + rank for peer in range(size) for _ in range(expected[peer])]
        assert (messages_sent() > before) == by_messages
    equal, sent = torch.zeros(2 * size), torch.arange(2.0 * size) + 1000 * rank
    expected = torch.tensor([1000.0 * peer + 2 * rank + k for peer in range(size) for k in range(2)])
    dist.all_to_all_single(equal, sent)
    same(equal, expected)
    # Whether a rank says that its blocks are equal is its own business.
    said = [2] * size if rank % 2 else None
    dist.all_to_all_single(equal.zero_(), sent, said, said)
    same(equal, expected)
    with raises(PlanMismatchError, "rank 0 sends 8 bytes to rank 1, which expects 12"):
        splits = [3 if rank == 1 and peer == 0 else 2 for peer in range(size)]
        dist.all_to_all_single(torch.zeros(sum(splits)), equal, splits, [2] * size)
    dist.all_to_all_single(equal.zero_(), sent, async_op=True).wait()
    same(equal, expected)
    dist.all_to_all_single(sent, sent)  # in place
    same(sent, expected)


def messages_sent() -> int:
    return stats().get("sends", 0) + stats().get("spanning_sends", 0)


def layouts(rank: int, size: int) -> None:
    """Tensors that do not lie in one piece, that require grad, and those of inference mode."""
    whole = torch.arange(60.0).view(6, 10)
    part = whole[:, ::3]
    dist.all_reduce(part)
    same(part, torch.arange(60.0).view(6, 10)[:, ::3] * size)
    same(whole[:, 1::3], torch.arange(60.0).view(6, 10)[:, 1::3])
    turned = torch.full((3, 4), float(rank)).t()
    dist.broadcast(turned, size - 1)
    same(turned, torch.full((4, 3), size - 1.0))
    outputs = list(torch.zeros(4, 3, size).unbind(2))
    dist.all_gather(outputs, torch.full((3, 4), float(rank)).t(), async_op=True).wait()
    assert [float(output.min()) for output in outputs] == [float(output.max()) for output in outputs]
    assert [float(output[0, 0]) for output in outputs] == [float(peer) for peer in range(size)]
    weight = nn.Parameter(torch.ones(2, 3).t())
    dist.all_reduce(weight.data)
    dist.broadcast(weight, 0)
    same(weight.data, torch.full((3, 2), float(size)))
    with torch.inference_mode():
        inferred = torch.ones(4, 6)[:, ::2]
        dist.all_reduce(inferred)
        dist.all_reduce(inferred, async_op=True).wait()
    dist.all_reduce(inferred)
    assert float(inferred[0, 0]) == size**3
    shared = blinkccl.empty((1000, 100), torch.float32).fill_(rank)
    dist.all_reduce(shared)
    same(shared, torch.full((1000, 100), float(sum(range(size)))))
    assert stats()["direct_read_bytes"] > 0, "shared tensors travel without a copy"


def in_order(rank: int, size: int) -> None:
    """Calls run in the order of issue, whatever is at once and what in the background."""
    works, tensors = [], []
    for number in range(60):
        tensors.append(torch.full((1 + 997 * (number % 7),), float(number)))
        if number % 3:
            works.append(dist.all_reduce(tensors[-1], async_op=True))
        else:
            dist.all_reduce(tensors[-1])
    for work in works:
        assert work.wait()
        assert work.is_completed()
        assert work.is_success()
    assert [float(tensor[-1]) for tensor in tensors] == [float(number * size) for number in range(60)]
    dist.barrier()
    assert dist.barrier(async_op=True).wait()


def background(rank: int, size: int) -> None:
    """A call with async_op returns before its peers have come: what they first want of us can follow."""
    tensor, token = torch.ones(10), torch.zeros(1)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        dist.send(token + 5, 1)
        work.wait()
    else:
        if rank == 1:
            dist.recv(token, 0)
            assert float(token) == 5
        dist.all_reduce(tensor)
    same(tensor, torch.full((10,), float(size)))
    groups = [dist.new_group(timeout=TIMEOUT) for _ in range(2)]
    tensors = [torch.ones(10), torch.ones(10)]
    order = (0, 1) if rank % 2 else (1, 0)
    works = [dist.all_reduce(tensors[index], group=groups[index], async_op=True) for index in order]
    for work in works:
        work.wait()
    same(torch.cat(tensors), torch.full((20,), float(size)))


def futures(rank: int, size: int) -> None:
    """Futures complete without wait(), in order; what is chained to one may issue collectives and wait for them."""
    seen: list[int] = []

    def noted(number: int) -> Callable[[Any], Tensor]:
        return lambda future: (seen.append(number), future.value()[0] + 1)[1]

    chained = []
    for number in range(8):
        future = dist.all_reduce(torch.full((3,), float(number)), async_op=True).get_future()
        chained.append(future.then(noted(number)))
    end = time.monotonic() + 10
    while not all(future.done() for future in chained):
        assert time.monotonic() < end, "a future does not complete by itself"
    assert [float(future.value()[0]) for future in chained] == [number * size + 1.0 for number in range(8)]
    assert seen == list(range(8))

    def nested(future: Any) -> Tensor:
        deeper = dist.all_reduce(future.value()[0], async_op=True).get_future()
        return deeper.then(lambda last: nested(last) if float(last.value()[0][0]) < size**4 else last.value()[0]).wait()

    outer = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(nested)
    assert float(outer.wait()[0]) == size**4
    at_once = dist.group.WORLD.allreduce([torch.ones(2)], dist.AllreduceOptions())
    assert at_once.wait(timedelta(seconds=1))
    assert at_once.is_success()
    assert at_once.exception() is None
    assert float(at_once.get_future().wait()[0][0]) == size
    assert at_once.result()[0].tolist() == [size, size]
    later = dist.all_reduce(torch.ones(2), async_op=True)
    assert later.result()[0].tolist() == [size, size]
    assert later.wait(timedelta(seconds=1))


def coalesced(options: dict[str, Any], call: Callable[..., Any], *lists: list[Tensor]) -> None:
    with dist._coalescing_manager(**options) as manager:
        for tensors in zip(*lists, strict=True):
            call(*tensors)
    if options["async_ops"]:
        manager.wait()


def coalescing(rank: int, size: int) -> None:
    """The coalescing manager, with and without a device, at once and in the background."""
    for device in (None, torch.device("cpu")):
        for async_ops in (False, True):
            together = partial(coalesced, {"device": device, "async_ops": async_ops})
            sums = [torch.full((length,), float(rank)) for length in (1, 100, 3)]
            together(dist.all_reduce, sums)
            inputs = [torch.full((length,), float(rank)) for length in (2, 5)]
            gathered = [torch.zeros(size * 2), torch.zeros(size * 5)]
            together(gather_into, gathered, inputs)
            parts = [torch.zeros(2), torch.zeros(5)]
            together(reduce_into, parts, gathered)
            assert [float(tensor[-1]) for tensor in sums] == [float(sum(range(size)))] * 3
            assert [float(part[0]) for part in parts] == [float(rank * size)] * 2
    plain = torch.ones(3)
    dist.all_reduce(plain)  # not swallowed by a manager that has ended
    assert float(plain[0]) == size


# ---- messages


def messages(rank: int, size: int) -> None:
    """Tags, order, any source, batches, lists of objects, messages of no bytes, and one that is too long."""
    following, previous = (rank + 1) % size, (rank - 1) % size
    sent = [dist.isend(torch.full((3,), 10.0 * rank + tag), following, tag=tag) for tag in (1, 2, 1)]
    got = [torch.zeros(3), torch.zeros(3), torch.zeros(3)]
    received = [dist.irecv(got[index], previous, tag=tag) for index, tag in enumerate((2, 1, 1))]
    for work in (*received, *sent):
        work.wait()
        assert work.is_completed()
    assert [float(tensor[0]) - 10 * previous for tensor in got] == [2, 1, 1]
    if rank == 0:
        sources = [dist.recv(torch.zeros(2, 2).t(), tag=5) for _ in range(size - 1)]  # no other message fits
        assert sorted(sources) == list(range(1, size))
        assert dist.recv(torch.empty(0), src=1, tag=9) == 1
    else:
        dist.send(torch.ones(4), 0, tag=5)
        if rank == 1:
            dist.send(torch.empty(0), 0, tag=9)
    large, there = torch.full((300_000,), float(rank)), torch.zeros(300_000)
    batch = [dist.P2POp(dist.isend, large, following), dist.P2POp(dist.irecv, there, previous)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert float(there[-1]) == previous
    if rank == 0:
        dist.send_object_list([{"a": 1}, "b"], 1)
    elif rank == 1:
        objects: list[Any] = [None, None]
        dist.recv_object_list(objects, 0)
        assert objects == [{"a": 1}, "b"]
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(5), 1)
    elif rank == 1:
        with raises(BlinkError, "room for 8 bytes"):
            dist.recv(torch.zeros(2), 0)
    after = torch.ones(1)
    dist.all_reduce(after)  # and the group lives on
    assert float(after) == size


def objects(rank: int, size: int) -> None:
    """The collectives on Python objects."""
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "text": "x" * rank})
    assert [entry["rank"] for entry in everybody] == list(range(size))
    gathered: list[Any] | None = [None] * size if rank == size - 1 else None
    dist.gather_object(rank, gathered, size - 1)
    assert gathered in (None, list(range(size)))
    told = [f"from {rank}", rank]
    dist.broadcast_object_list(told, size - 1)
    assert told == [f"from {size - 1}", size - 1]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [[peer] for peer in range(size)] if rank == 0 else None, 0)
    assert mine == [[rank]]


# ---- groups


def groups(rank: int, size: int) -> None:
    """Groups of some ranks, of one rank, many of them, made anew after the end of all."""
    pair = dist.new_group([0, size - 1], timeout=TIMEOUT)
    if rank in (0, size - 1):
        tensor = torch.full((4,), float(rank))
        dist.all_reduce(tensor, group=pair)
        assert float(tensor[0]) == size - 1
        dist.broadcast(tensor.fill_(rank), size - 1, group=pair)
        assert float(tensor[0]) == size - 1
        dist.destroy_process_group(pair)
    alone = [dist.new_group([peer], timeout=TIMEOUT) for peer in range(size)][rank]
    tensor = torch.full((4,), 3.0)
    dist.all_reduce(tensor, group=alone)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(2.0), group=alone)
    output = torch.zeros(4)
    reduce_into(output, tensor, group=alone)
    dist.all_to_all_single(tensor, output, group=alone)
    assert tensor.tolist() == [6.0] * 4
    alone.monitored_barrier()
    assert dist.get_backend(alone) == "blink"
    many = [dist.new_group(timeout=TIMEOUT) for _ in range(12)]
    for group in reversed(many):
        dist.barrier(group=group)
    world = dist.group.WORLD
    assert isinstance(world, BlinkProcessGroup)
    assert isinstance(world._transport, HostGroup)
    calls = stats()["calls"]
    dist.destroy_process_group()
    assert stats()["calls"] == calls, "counters outlive their groups"
    start(rank, size, "again")
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert float(tensor[0]) == size


def mixed_devices(rank: int, size: int) -> None:
    """A backend for other devices in the same string; made when it is first needed."""
    dist.destroy_process_group()
    for number, named in enumerate(("cpu:blink", "cpu:blink,cuda:gloo", "cuda:gloo,cpu:blink")):
        start(rank, size, f"mixed{number}", named)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert float(tensor[0]) == size
        dist.barrier()
        everybody: list[Any] = [None] * size
        dist.all_gather_object(everybody, rank)
        assert stats()["calls"] > 0
        if "cuda" in named and number == 1:  # the order in which torch makes them decides whom it takes whole
            world = dist.group.WORLD
            assert isinstance(world._get_backend(torch.device("cuda")), dist.ProcessGroupGloo)
            assert {device.type for device in world._device_types} == {"cpu", "cuda"}
            dist.barrier()  # Gloo: a rank that closes its connections while another still makes them fails that one
        dist.destroy_process_group()
    start(rank, size, "nccl", "cpu:blink,cuda:nccl")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    start(rank, size, "alone")
    with raises(BlinkError, "nobody for tensors on meta"):
        dist.all_reduce(torch.ones(2, device="meta"))


def timeouts(rank: int, size: int) -> None:
    """A rank that does not come: the others say so in time, and monitored_barrier names it."""
    group = dist.new_group(timeout=TIMEOUT)
    if rank == 0:
        with raises(DeadlineError, "Rank 1 failed to pass monitoredBarrier in 300 ms"):
            group.monitored_barrier(timedelta(seconds=0.3))
        with raises(DeadlineError, f"Ranks {', '.join(map(str, range(1, size)))} failed to pass"):
            group.monitored_barrier(timedelta(seconds=0.3), wait_all_ranks=True)
        with raises(DeadlineError, "Rank 0 timed out in monitoredBarrier after 0 ms"):
            group.monitored_barrier(timedelta(0))
    dist.barrier()
    without_last = dist.new_group(timeout=TIMEOUT)
    if rank < size - 1:
        told = f"Rank {size - 1} failed to pass" if rank == 0 else "reached monitoredBarrier, but received errors"
        with raises(DeadlineError, told):
            without_last.monitored_barrier(timedelta(seconds=0.3))
    dist.barrier()
    again = dist.new_group(timeout=TIMEOUT)
    again.monitored_barrier(timedelta(seconds=10))
    again.monitored_barrier()
    short = dist.new_group(timeout=timedelta(seconds=0.5))
    if rank == 0:
        begun = time.monotonic()
        with raises(DeadlineError, "Timed out"):
            dist.all_reduce(torch.ones(3), group=short)
        assert 0.4 < time.monotonic() - begun < 10
    dist.barrier()
    lonely = dist.new_group(timeout=timedelta(seconds=0.5))
    if rank == 0:
        with raises(DeadlineError, "recv"):
            dist.recv(torch.zeros(3), 1, group=lonely)
        work = dist.all_reduce(torch.ones(3), group=lonely, async_op=True)
        with raises(DeadlineError, "waited 0.05 s for all_reduce"):
            work.wait(timedelta(seconds=0.05))
        with raises(RuntimeError, "Timed out"):
            work.get_future().wait()
        assert isinstance(work.exception(), DeadlineError)
        assert isinstance(pickle.loads(pickle.dumps(work.exception())), DeadlineError)
    dist.barrier()


def a_rank_dies(rank: int, size: int) -> None:
    """A rank whose process ends in the middle of training is named on all others, at once."""
    dist.barrier()
    model = DistributedDataParallel(nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    by_steps = DistributedDataParallel(nn.Linear(4, 4), process_group=dist.new_group(backend="blink", timeout=TIMEOUT))
    blinkccl.torch.shared_buckets(by_steps, in_background=False)
    by_steps(torch.ones(2, 4)).sum().backward()
    if rank == size - 1:
        os._exit(0)
    begun = time.monotonic()
    with raises(RuntimeError, "lost"):
        for _ in range(3):
            by_steps(torch.ones(2, 4)).sum().backward()
    with raises(RuntimeError, "lost"):
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
    with raises(CommunicationError, ""):
        dist.all_reduce(torch.ones(3))
    assert time.monotonic() - begun < TIMEOUT.total_seconds() / 2
    os._exit(0)  # no destroy_process_group: there is nobody to agree with


# ---- what is built on top


class Small(nn.Module):
    """A model with buffers, and a layer that not every step uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(10, 200)
        self.norm = nn.BatchNorm1d(200)
        self.last = nn.Linear(200, 5)
        self.spare = nn.Linear(200, 5)

    def forward(self, inputs: Tensor, spared: bool = False) -> Tensor:
        hidden = self.norm(torch.relu(self.first(inputs)))
        return self.last(hidden) if spared else self.last(hidden) + self.spare(hidden)


def losses(model: nn.Module, rank: int, spare_every: int = 9) -> list[float]:
    """Four steps of training on this rank's own data."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for step in range(1, 5):
        generator = torch.Generator().manual_seed(100 * step + rank)
        inputs, targets = torch.randn(8, 10, generator=generator), torch.randn(8, 5, generator=generator)
        loss = ((model(inputs, step % spare_every == 0) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def compare(size: int, train: Callable[[Any], list[float]], exact: bool = True) -> None:
    """The same losses on blink and on gloo; between two ranks to the last bit."""
    on_gloo, on_blink = (train(dist.new_group(backend=name, timeout=TIMEOUT)) for name in ("gloo", "blink"))
    if exact and size == 2:
        assert on_blink == on_gloo, (on_blink, on_gloo)
    torch.testing.assert_close(torch.tensor(on_blink), torch.tensor(on_gloo), rtol=1e-3, atol=1e-4)


def data_parallel(rank: int, size: int) -> None:
    """DDP: many buckets, buffers, unused parameters, sparse gradients, uneven inputs, torch's hooks and ours."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def plain(group: Any) -> list[float]:
        buckets = {"bucket_cap_mb": 0.005, "find_unused_parameters": True}
        return losses(DistributedDataParallel(Small(), process_group=group, **buckets), rank, spare_every=2)

    def hooked(hook: Any, state: Callable[[Any], Any] = lambda group: group) -> Callable[[Any], list[float]]:
        def train(group: Any) -> list[float]:
            model = DistributedDataParallel(Small(), process_group=group)
            model.register_comm_hook(state(group), hook)
            return losses(model, rank)

        return train

    before = stats()["calls"]
    compare(size, plain)
    assert stats()["calls"] - before > 20
    compare(size, hooked(default_hooks.fp16_compress_hook))
    power = partial(powerSGD_hook.PowerSGDState, start_powerSGD_iter=2)
    compare(size, hooked(powerSGD_hook.powerSGD_hook, power))
    reference = torch.tensor(losses(DistributedDataParallel(Small()), rank))
    beside = hooks.group(timeout=TIMEOUT)
    for hook, tolerance in ((hooks.average, 1e-4), (hooks.average_in_bfloat16, 5e-2)):
        model = DistributedDataParallel(Small(), process_group=dist.new_group(backend="gloo", timeout=TIMEOUT))
        model.register_comm_hook(beside, hook)
        torch.testing.assert_close(torch.tensor(losses(model, rank)), reference, rtol=tolerance, atol=tolerance)
    model = DistributedDataParallel(nn.EmbeddingBag(20, 3, mode="sum", sparse=True))
    model(torch.arange(rank, rank + 10).view(2, 5)).sum().backward()
    assert float(model.module.weight.grad.to_dense()[size].sum()) == 3.0
    model = DistributedDataParallel(nn.Linear(3, 3))
    with model.join():
        for _ in range(rank + 1):
            model(torch.ones(2, 3)).sum().backward()


def shared_buckets(rank: int, size: int) -> None:
    """DDP with its buckets in shared memory: the same losses, all gradients go directly, and nothing is left."""
    heap = process_heap()
    before = heap.used

    def counted(shared: bool, in_background: bool = False, **options: Any) -> tuple[list[float], dict[str, int]]:
        torch.manual_seed(1)
        hidden = [nn.Sequential(nn.Linear(192, 192), nn.ReLU()) for _ in range(3)]
        group = dist.new_group(backend="blink", timeout=TIMEOUT)
        model = DistributedDataParallel(
            nn.Sequential(nn.Linear(10, 192), *hidden, nn.Linear(192, 5)), process_group=group, **options
        )
        if shared:
            blinkccl.torch.shared_buckets(model, in_background=in_background)
        threads = set(threading.enumerate())
        optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
        for step in range(5):
            if step == 2:  # DDP has made its buckets anew, and these have moved
                settled = group.stats()
            generator = torch.Generator().manual_seed(100 * step + rank)
            inputs, targets = torch.randn(8, 10, generator=generator), torch.randn(8, 5, generator=generator)
            with model.no_sync() if step == 3 else contextlib.nullcontext():
                loss = ((model(inputs) - targets) ** 2).mean()
                loss.backward()
            if step != 3:
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 2 == 0)
            found.append(loss.item())
        by_steps = shared and not in_background and "find_unused_parameters" not in options
        assert not by_steps or threads.issuperset(threading.enumerate()), "nobody else was asked"
        return found, {name: count - settled[name] for name, count in group.stats().items()}

    plain, by_plain = counted(False, bucket_cap_mb=0.2)
    views = {"gradient_as_bucket_view": True}
    for options in ({"in_background": True}, views, {"find_unused_parameters": True}, {"static_graph": True}, {}):
        shared, by_shared = counted(True, bucket_cap_mb=0.2, **options)
        assert (shared == plain) or size & (size - 1), (shared, plain)
        torch.testing.assert_close(torch.tensor(shared), torch.tensor(plain), rtol=1e-4, atol=1e-4)
        assert by_plain["direct_read_bytes"] + by_plain["direct_write_bytes"] == 0 < by_plain["staged_bytes"]
        assert by_shared["direct_read_bytes"] + by_shared["direct_write_bytes"] == by_plain["staged_bytes"]
        assert by_shared["staged_bytes"] == 0
    gc.collect()
    assert heap.used == before, "buckets go with their models"
    model = DistributedDataParallel(nn.EmbeddingBag(20, 3, mode="sum", sparse=True))
    blinkccl.torch.shared_buckets(model)  # sparse gradients have no bucket to share
    model(torch.arange(rank, rank + 10).view(2, 5)).sum().backward()
    assert float(model.module.weight.grad.to_dense()[size].sum()) == 3.0
    model = DistributedDataParallel(nn.Linear(3, 3))
    blinkccl.torch.shared_buckets(model)
    with model.join():
        for _ in range(rank + 1):
            model(torch.ones(2, 3)).sum().backward()
    with raises(UsageError, "takes a DistributedDataParallel or FSDP2 model, got Linear", torchs=False):
        blinkccl.torch.shared_buckets(nn.Linear(3, 3))
    broken_backward(rank, size)
    on_gloo = dist.new_group(backend="gloo", timeout=TIMEOUT)
    model = DistributedDataParallel(Small(), process_group=on_gloo)
    with raises(UsageError, "not of backend blink", torchs=False):
        blinkccl.torch.shared_buckets(model)
    blinkccl.torch.shared_buckets(model, blinkccl.torch.group(timeout=TIMEOUT))
    reference = torch.tensor(losses(DistributedDataParallel(Small()), rank))
    torch.testing.assert_close(torch.tensor(losses(model, rank)), reference, rtol=1e-4, atol=1e-4)


class Halting(torch.autograd.Function):
    """Passes a tensor on; its backward pass fails."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Tensor:
        raise ArithmeticError("halted")


def broken_backward(rank: int, size: int) -> None:
    """Buckets that a failed backward pass left under way come before what the group is asked for next."""
    group = dist.new_group(backend="blink", timeout=TIMEOUT)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), process_group=group, bucket_cap_mb=1e-5
    )
    blinkccl.torch.shared_buckets(model, in_background=False)
    model(torch.ones(2, 3)).sum().backward()
    number = torch.tensor([float(rank)])
    work = dist.all_reduce(number, group=group, async_op=True)
    if rank == 0:
        time.sleep(0.1)  # the others' buckets are under way for a while
    hidden = model(torch.ones(2, 3))
    weight = model.module[1].weight
    handle = weight.register_hook(lambda gradient: Halting.backward(None, gradient))
    with pytest.raises(ArithmeticError, match="halted"):
        hidden.sum().backward()
    handle.remove()
    second = torch.tensor([float(rank)])
    dist.all_reduce(second, group=group)
    work.wait()
    same(number, second)
    same(second, torch.tensor([size * (size - 1) / 2]))


def fully_sharded(mesh: DeviceMesh) -> Small:
    """FSDP2's."""
    from torch.distributed.fsdp import fully_shard

    model = Small()
    for part in (model.first, model.last, model):
        fully_shard(part, mesh=mesh)
    return model


def sharded(rank: int, size: int) -> None:
    """FSDP, FSDP2 with and without a mesh of two dimensions, and the zero-redundancy optimizer."""
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def first(group: Any) -> list[float]:
        return losses(FullyShardedDataParallel(Small(), process_group=group, device_id=torch.device("cpu")), rank)

    def second(group: Any) -> list[float]:
        return losses(fully_sharded(DeviceMesh.from_group(group, "cpu")), rank)

    compare(size, first)
    compare(size, second)
    if size % 2 == 0:
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("copies", "shards"))
        losses(fully_sharded(mesh), rank)
    model = DistributedDataParallel(Small())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    model(torch.ones(8, 10)).sum().backward()
    optimizer.step()


def shared_shards(rank: int, size: int) -> None:
    """FSDP2 with its flat tensors in shared memory: the same losses, nothing staged, and memory is used again."""
    from torch.distributed.fsdp import fully_shard

    def counted(shared: bool) -> tuple[list[float], dict[str, int], int]:
        torch.manual_seed(1)
        group = dist.new_group(backend="blink", timeout=TIMEOUT)
        layers = [nn.Sequential(nn.Linear(192, 192), nn.ReLU()) for _ in range(3)]
        model = nn.Sequential(nn.Linear(10, 192), *layers, nn.Linear(192, 5))
        for part in (*layers, model):
            fully_shard(part, mesh=DeviceMesh.from_group(group, "cpu"))
        if shared:
            blinkccl.torch.shared_buckets(model)
        optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
        for step in range(6):
            if step == 2:
                settled, used = group.stats(), process_heap().used
            generator = torch.Generator().manual_seed(100 * step + rank)
            inputs, targets = torch.randn(8, 10, generator=generator), torch.randn(8, 5, generator=generator)
            loss = ((model(inputs) - targets) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        counts = {name: count - settled[name] for name, count in group.stats().items()}
        return found, counts, process_heap().used - used

    plain, by_plain, _ = counted(False)
    shared, by_shared, grown = counted(True)
    assert shared == plain
    assert by_plain["direct_read_bytes"] + by_plain["direct_write_bytes"] == by_plain["crossed_bytes"]
    assert by_shared["direct_read_bytes"] + by_shared["direct_write_bytes"] > 0 == by_shared["staged_bytes"]
    assert by_shared["message_bytes"] == by_plain["message_bytes"]
    assert grown == 0, "what one step has dropped the next one takes"


def functional(rank: int, size: int) -> None:
    """DTensor and functional collectives, as they are and compiled."""
    from torch.distributed import _functional_collectives as collectives
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(4.0 * size * 3).view(4 * size, 3)
    shard = distribute_tensor(whole, mesh, [Shard(0)])
    same(shard.to_local(), whole.chunk(size)[rank])
    same(shard.redistribute(mesh, [Replicate()]).to_local(), whole)
    same(shard.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    same((shard.t() @ shard).full_tensor(), whole.t() @ whole)

    def step(tensor: Tensor) -> tuple[Tensor, ...]:
        total = collectives.all_reduce(tensor, "sum", mesh)
        everything = collectives.all_gather_tensor(total + rank, 0, mesh)
        part = collectives.reduce_scatter_tensor(everything, "avg", 0, mesh)
        several = collectives.all_reduce_coalesced([tensor, part], "max", mesh)
        turned = collectives.all_to_all_single(everything, None, None, mesh)
        return total, everything, part, several[0], several[1], turned

    tensor = torch.arange(6.0) + rank
    eager = [result.clone() for result in step(tensor)]
    same(eager[0], torch.arange(6.0) * size + sum(range(size)))
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(tensor)
    for got, expected in zip(compiled, eager, strict=True):
        same(got, expected)


def compiled(rank: int, size: int) -> None:
    """torch.compile around DDP and inside it, FSDP2, whole steps with our hook, and collectives at once and later."""
    compiled = partial(torch.compile, backend="eager")

    def around(group: Any) -> list[float]:
        return losses(compiled(DistributedDataParallel(Small(), process_group=group)), rank)

    def inside(group: Any) -> list[float]:
        return losses(DistributedDataParallel(compiled(Small()), process_group=group), rank)

    def sharded(group: Any) -> list[float]:
        return losses(compiled(fully_sharded(DeviceMesh.from_group(group, "cpu"))), rank)

    for train in (around, inside, sharded):
        compare(size, train)
        torch.compiler.reset()

    model = DistributedDataParallel(nn.Linear(3, 1))
    model.register_comm_hook(hooks.group(timeout=TIMEOUT), hooks.average)

    @compiled
    def step(inputs: Tensor) -> Tensor:
        loss = model(inputs).sum()
        loss.backward()
        return loss

    for _ in range(3):
        step(torch.full((2, 3), float(rank)))
    same(model.module.weight.grad, torch.full((1, 3), 3.0 * sum(range(size)) / size * 2))

    @compiled
    def sums(tensor: Tensor) -> Tensor:
        at_once, later = tensor + 1, tensor + 2
        dist.all_reduce(at_once)
        work = dist.all_reduce(later, async_op=True)
        work.wait()
        dist.broadcast(at_once, 0)
        return at_once * later

    same(sums(torch.ones(5)), torch.full((5,), 6.0 * size * size))


def profiled(rank: int, size: int) -> None:
    """A profile holds our calls, with shapes."""
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(torch.ones(3, 5))
        dist.all_gather([torch.ones(7) for _ in range(size)], torch.ones(7), async_op=True).wait()
    events = {event.name: event.input_shapes for event in profile.events() if event.name.startswith("blink:")}
    assert events == {"blink:all_reduce": [[3, 5]], "blink:all_gather": [[7]]}, events


def over_send_and_recv(rank: int, size: int) -> None:
    """The ring's Program over gloo: any layout, any size, a group of some ranks, and a rank that dies."""
    group = dist.new_group(backend="gloo", timeout=TIMEOUT)
    ring = TorchP2P(ring_program(size), group)
    for count in (0, 1, size + 1, 1003):
        for given in (torch.arange(2.0 * count) + rank, torch.arange(2.0 * count).view(count, 2).t() + rank):
            mine, strides = given.clone(memory_format=torch.preserve_format), given.stride()
            ring.run(CollectiveCall("allreduce", "float32", 2 * count), mine, mine, chunk_bytes=64)
            same(mine, size * (given - rank) + sum(range(size)))
            assert mine.stride() == strides
    call, numbers = CollectiveCall("allreduce", "float32", 10), torch.ones(10)
    with raises(UsageError, f"rank {rank}'s input has 10 elements, expected 1 block(s) of 11", torchs=False):
        ring.run(call._replace(elements=11), numbers, numbers)
    with raises(PlanMismatchError, f"the program of rank(s) {size - 1} is not that of rank 0", torchs=False):
        TorchP2P(ring_program(size, slots=2 if rank < size - 1 else 3), group)
    ring.run(call, numbers, numbers)
    same(numbers, torch.full((10,), float(size)))
    pair = dist.new_group([0, size - 1], backend="gloo", timeout=TIMEOUT)
    if rank in (0, size - 1):
        TorchP2P(ring_program(2), pair).run(call, numbers, numbers)
        same(numbers, torch.full((10,), 2.0 * size))
    dist.barrier()
    if rank == size - 1:
        os._exit(0)
    with raises(CommunicationError, "waited", torchs=False):
        ring.run(call, numbers, numbers, deadline_s=3)
    with raises(CommunicationError, "this execution failed before", torchs=False):
        ring.run(call, numbers, numbers)
    os._exit(0)


def ring_program(size: int, slots: int = 2) -> Program:
    topology = parse_spec(f"ring:{size}" if size > 2 else f"chain:{size}")
    return lower(ALGORITHMS["ring"].plan(Request(topology, Collective("allreduce", size), topology.ranks)), slots)


def over_hosts(rank: int, size: int) -> None:
    """Ranks that say they are on several hosts: everything still runs."""
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
    assert counted["spanning_allreduce"] > 0
    assert counted.get("spanning_sends", 0) + counted.get("spanning_receives", 0) == (rank in (0, size - 1))


def _part_over_hosts(rank: int, size: int) -> None:
    """A group with one rank of the first host and all others of the second, in the midst of calls of all."""
    members = [0, *range(2, size)]
    part = dist.new_group(members, timeout=TIMEOUT)
    given = [np.random.default_rng(peer).integers(-8, 9, 40_001) for peer in range(size)]
    waiting = []
    for turn in range(3):
        for group, of in ((part, members), (None, range(size))):
            if rank in of:
                tensor = torch.from_numpy(given[rank] + turn)
                waiting.append((dist.all_reduce(tensor, group=group, async_op=True), tensor, of, turn))
    for work, tensor, of, turn in waiting:
        work.wait()
        assert np.array_equal(tensor.numpy(), sum(given[peer] + turn for peer in of))
    if rank in members:
        blocks = torch.zeros(len(members), 40_001, dtype=torch.int64)
        dist.all_gather_into_tensor(blocks, torch.from_numpy(given[rank]), group=part)
        assert np.array_equal(blocks.numpy(), np.stack([given[peer] for peer in members]))


#: The hosts of so many ranks: one rank on each, in turns, and of different sizes.
LAYOUTS = {3: "abc", 4: "abab", 5: "abbcc", 6: "abbbbb", 8: "aaabbbbb"}


def hierarchical(rank: int, size: int) -> None:
    """Every collective, type and operation on hosts of any size, as they are defined; the same bits again and again."""
    os.environ["BLINK_HOSTID"] = LAYOUTS[size][rank]
    with contextlib.closing(Communicator.create(FileStore(_place / "several"), rank, size, deadline_s=30)) as comm:
        group = comm.group
        assert isinstance(group, SpanningGroup)
        assert set(group.stats()) >= {"calls"}
        _as_defined(comm, rank, size)
        rng = np.random.default_rng(rank)
        data = rng.standard_normal(1_500_007, np.float32)
        several = [comm.allreduce(data, np.empty_like(data)) for _ in range(2)]
        assert several[0].tobytes() == several[1].tobytes()
        everybodys = np.empty((size, 32), np.uint8)
        comm.allgather(np.frombuffer(sha256(several[0]).digest(), np.uint8).copy(), everybodys)
        assert (everybodys == everybodys[0]).all(), "not the same bits on all ranks"
        waiting = [comm.allreduce(data, np.empty_like(data), wait=False) for _ in range(3)]
        assert all(each.result(30).tobytes() == several[0].tobytes() for each in waiting)
        part = comm.split(rank % 2, -rank)
        assert part is not None
        found = part.allgather(np.array([rank]))
        assert list(found) == [peer for peer in reversed(range(size)) if peer % 2 == rank % 2]
        part.close()
    os.environ.pop("BLINK_HOSTID")
    if len(set(LAYOUTS[size])) == size:  # one rank per host: the bits of one host
        with contextlib.closing(Communicator.create(FileStore(_place / "one"), rank, size, deadline_s=30)) as comm:
            assert comm.allreduce(data, np.empty_like(data)).tobytes() == several[0].tobytes()


def failures_over_hosts(rank: int, size: int) -> None:
    """What goes wrong on one host is told on all, the same everywhere: who ended, who did not come, who differs."""
    os.environ["BLINK_HOSTID"] = LAYOUTS[size][rank]
    lost = size - 2
    data = np.ones(1000, np.float32)

    def opened(name: str) -> Communicator:
        return Communicator.create(FileStore(_place / name), rank, size, deadline_s=20)

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
    """A rank that ends while the group over hosts is made is named, and nobody waits for the deadline."""
    os.environ["BLINK_HOSTID"] = LAYOUTS[size][rank]
    lost = size - 1
    if rank == lost:
        SpanningGroup._measured = lambda *_: os._exit(0)
    begun = time.monotonic()
    with raises(PeerLostError, f"rank {lost} (process ", torchs=False):
        Communicator.create(FileStore(_place / "dies"), rank, size, deadline_s=90)
    assert time.monotonic() - begun < 45


def wait_for(happened: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not happened() and time.monotonic() < end:
        time.sleep(0.01)
    return happened()


def _as_defined(comm: Communicator, rank: int, size: int) -> None:
    """In a merge every third type and operation; the others on another number of ranks, and of each collective."""
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
        buffers, _ = filled(collective, inputs, call.elements, call.dtype, in_place)
        send, recv = buffers.inputs[rank], buffers.outputs[rank]
        addresses = [None if each is None else each.ctypes.data for each in (send, recv)]
        comm.group.run(call, *addresses, scale)
        said = mismatch([recv], [expected[rank]], max(1, call.elements))
        assert said is None, f"{call}, in place {in_place}, rank {rank}: {said}"


def _moved_over_hosts(rank: int, size: int) -> None:
    _moved(rank, size, [block(peer, (5, 3), torch.float32) for peer in range(size)])


# ---- examples/train.py


def train_example(rank: int, size: int) -> None:
    """With the arguments EXAMPLE; what rank 0 prints goes to the file EXAMPLE_OUT."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    example = Path(__file__).parents[2] / "examples" / "train.py"
    sys.argv = [str(example), *os.environ["EXAMPLE"].split(",")]
    with Path(os.environ["EXAMPLE_OUT"] if rank == 0 else os.devnull).open("w") as out, contextlib.redirect_stdout(out):
        runpy.run_path(str(example), run_name="__main__")


# ---- the machinery


@contextlib.contextmanager
def raises(kind: type[Exception], text: str, torchs: bool = True) -> Iterator[None]:
    """The block must raise ``kind``, and the message must hold ``text``; it is a RuntimeError for torch's sake."""
    with pytest.raises(kind, match=re.escape(text)) as raised:
        yield
    assert isinstance(raised.value, RuntimeError) or not torchs, raised.type.__mro__


_place = Path()


def start(rank: int, size: int, name: str, backend: str = "blink") -> None:
    """Makes the default group."""
    method = f"file://{_place / name}"
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=size, timeout=TIMEOUT)


def _rank(name: str, rank: int, size: int, place: Path) -> None:
    global _place
    _place = place
    torch.set_num_threads(1)
    if name != "train_example":  # it makes its group itself
        start(rank, size, "first")
    globals()[name](rank, size)
    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve(_rank, limit_s=100)
