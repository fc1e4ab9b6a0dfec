"""Programs on the calls of a process group: collectives, messages, groups, timeouts, ends."""

import os
import pickle
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial, reduce
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_common import FLOATS, INTEGERS, TIMEOUT, block, messages_sent, raises, same, start

import blinkccl
from blinkccl.errors import (
    BlinkError,
    CommunicationError,
    DeadlineError,
    PlanMismatchError,
)
from blinkccl.runtime.host_group import HostGroup
from blinkccl.torch_backend import stats
from blinkccl.torch_backend.process_group import BlinkProcessGroup

# ---- collectives


def reductions(rank: int, size: int) -> None:
    """Every reduction on every type, in place, synchronous and asynchronous, and on parts of tensors."""
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
            moved(rank, size, [block(peer, shape, dtype) for peer in range(size)])
    eights = torch.full((9,), float(rank)).to(torch.float8_e5m2)
    dist.broadcast(eights, size - 1)
    same(eights.to(torch.float32), torch.full((9,), size - 1.0))


def moved(rank: int, size: int, blocks: list[Tensor]) -> None:
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
    """Call ``all_gather_into_tensor``, under its newer name if it has one."""
    return getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(output, tensor, **options)


def reduce_into(output: Tensor, tensor: Tensor, **options: Any) -> Any:
    """Call ``reduce_scatter_tensor``, under its newer name if it has one."""
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
    # Each rank may declare equal blocks or not.
    lengths = [2] * size if rank % 2 else None
    dist.all_to_all_single(equal.zero_(), sent, lengths, lengths)
    same(equal, expected)
    with raises(PlanMismatchError, "rank 0 sends 8 bytes to rank 1, which expects 12"):
        splits = [3 if rank == 1 and peer == 0 else 2 for peer in range(size)]
        dist.all_to_all_single(torch.zeros(sum(splits)), equal, splits, [2] * size)
    dist.all_to_all_single(equal.zero_(), sent, async_op=True).wait()
    same(equal, expected)
    dist.all_to_all_single(sent, sent)  # in place
    same(sent, expected)


def layouts(rank: int, size: int) -> None:
    """Tensors that are not contiguous, that require grad, and those of inference mode."""
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
    """Calls run in the order of issue, synchronous and asynchronous ones."""
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
    """A call with async_op returns before its peers' calls, so calls that they need first can follow."""
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
    """Futures complete without wait(), in order; chained functions may issue collectives and wait for them."""
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
    """The coalescing manager, with and without a device, synchronous and asynchronous."""
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
    dist.all_reduce(plain)  # runs although a manager has ended
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
        sources = [dist.recv(torch.zeros(2, 2).t(), tag=5) for _ in range(size - 1)]  # no other message matches
        assert sorted(sources) == list(range(1, size))
        assert dist.recv(torch.empty(0), src=1, tag=9) == 1
    else:
        dist.send(torch.ones(4), 0, tag=5)
        if rank == 1:
            dist.send(torch.empty(0), 0, tag=9)
    large, arrived = torch.full((300_000,), float(rank)), torch.zeros(300_000)
    batch = [dist.P2POp(dist.isend, large, following), dist.P2POp(dist.irecv, arrived, previous)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert float(arrived[-1]) == previous
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
    dist.all_reduce(after)  # the group stays usable
    assert float(after) == size


def objects(rank: int, size: int) -> None:
    """The collectives on Python objects."""
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "text": "x" * rank})
    assert [entry["rank"] for entry in everybody] == list(range(size))
    gathered: list[Any] | None = [None] * size if rank == size - 1 else None
    dist.gather_object(rank, gathered, size - 1)
    assert gathered in (None, list(range(size)))
    words = [f"from {rank}", rank]
    dist.broadcast_object_list(words, size - 1)
    assert words == [f"from {size - 1}", size - 1]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [[peer] for peer in range(size)] if rank == 0 else None, 0)
    assert mine == [[rank]]


# ---- groups


def groups(rank: int, size: int) -> None:
    """Groups of some ranks, of one rank, many of them, and new ones after the end of all."""
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
    """A backend for other devices in the same string, which is created at the first use."""
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
        if "cuda" in named and number == 1:  # the first backend that torch creates handles all devices
            world = dist.group.WORLD
            assert isinstance(world._get_backend(torch.device("cuda")), dist.ProcessGroupGloo)
            assert {device.type for device in world._device_types} == {"cpu", "cuda"}
            dist.barrier()  # Gloo fails a rank that connects while another closes its connections
        dist.destroy_process_group()
    start(rank, size, "nccl", "cpu:blink,cuda:nccl")
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    start(rank, size, "alone")
    with raises(BlinkError, "no backend for tensors on meta"):
        dist.all_reduce(torch.ones(2, device="meta"))


def timeouts(rank: int, size: int) -> None:
    """A rank that does not come: the others report it in time, and monitored_barrier names it."""
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
        cause = f"Rank {size - 1} failed to pass" if rank == 0 else "reached monitoredBarrier, but received errors"
        with raises(DeadlineError, cause):
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
    """All other ranks name a rank that dies in the middle of training, at once."""
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
    os._exit(0)  # without destroy_process_group, which needs the dead rank
