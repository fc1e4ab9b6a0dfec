"""Ranks on the driver's double: cases by name, through torch.distributed. Forked, as support/forked_ranks.py says; or

    cuda_double_rank.py CASE RANK SIZE DIRECTORY

is one rank, in a process that ends as a program's does.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from cuda_double import DoubleRuntime

import blinkccl.torch_backend
from blinkccl.errors import UnsupportedError
from blinkccl.torch_backend import cuda_group, process_group
from support.forked_ranks import serve

#: Of this process, once it is a rank.
RANK, SIZE = 0, 0
runtime: DoubleRuntime
OP = dist.ReduceOp
opened: list[cuda_group.CudaGroup] = []


def _open_cuda(store, rank, size):
    opened.append(cuda_group.CudaGroup(rank, size, cuda_group.opener(store, rank, size, runtime), runtime))
    return opened[-1]


def data(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers, so that sums in any order are exact; never 0, so that products tell."""
    numbers = (torch.arange(count) * (rank + 3)) % 5 + 1
    return numbers.to(dtype)


def everybodys(count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [data(rank, count, dtype) for rank in range(SIZE)]


def same(found: torch.Tensor, expected: torch.Tensor, what: str = "") -> None:
    runtime.finish(runtime.user_stream)
    assert torch.equal(found, expected), f"{what}: {found.flatten()[:8]} is not {expected.flatten()[:8]}"


def reduced(tensors: list[torch.Tensor], op: str) -> torch.Tensor:
    stack = torch.stack(tensors)
    wide = stack.double() if stack.dtype.is_floating_point else stack.long()
    results = {
        "SUM": lambda: wide.sum(0),
        "PRODUCT": lambda: wide.prod(0),
        "MIN": lambda: wide.amin(0),
        "MAX": lambda: wide.amax(0),
        "AVG": lambda: wide.sum(0) / SIZE,
    }
    return results[op]().to(stack.dtype)


def collectives(count: int, asynchronous: bool) -> None:
    """Every collective of torch's, against what it should give."""

    def run(call, *arguments):
        work = call(*arguments, async_op=asynchronous)
        if asynchronous:
            assert work.wait()

    def check(call, output, expected, *arguments):
        """Calls with the output, a tensor or one per rank, and these arguments."""
        run(call, output, *arguments)
        same(torch.cat(output) if isinstance(output, list) else output, expected, call.__name__)

    def zeros(elements):
        return runtime.tensor(torch.zeros(elements))

    def own():
        return runtime.tensor(data(RANK, count))

    mine, all_ = own(), everybodys(count)
    whole, total = torch.cat(all_), reduced(all_, "SUM")
    for root in range(SIZE):
        check(dist.broadcast, own(), all_[root], root)
        check(dist.reduce, own(), total if root == RANK else all_[RANK], root)
        parts = [zeros(count) for _ in range(SIZE)] if root == RANK else None
        run(dist.gather, mine, parts, root)
        if parts:
            same(torch.cat(parts), whole, "gather")
        sources = [runtime.tensor(one + 1) for one in all_]
        check(dist.scatter, zeros(count), all_[RANK] + 1, sources if root == RANK else None, root)
    check(dist.all_reduce, own(), total)
    check(dist.all_gather, [zeros(count) for _ in range(SIZE)], whole, mine)
    lists = [[zeros(count)] for _ in range(SIZE)]
    run(dist.all_gather_coalesced, lists, [mine])
    same(torch.cat([of_rank[0] for of_rank in lists]), whole, "all_gather_coalesced")
    check(dist.all_gather_into_tensor, zeros(SIZE * count), whole, mine)
    blocks = runtime.tensor(data(RANK, SIZE * count))
    sums = reduced(everybodys(SIZE * count), "SUM").chunk(SIZE)
    check(dist.reduce_scatter_tensor, zeros(count), sums[RANK], blocks)
    parts = [runtime.tensor(block) for block in blocks.chunk(SIZE)]
    check(dist.reduce_scatter, zeros(count), sums[RANK], parts)
    mixed = torch.cat([data(rank, SIZE * count).chunk(SIZE)[RANK] for rank in range(SIZE)])
    check(dist.all_to_all_single, zeros(SIZE * count), mixed, blocks)
    check(dist.all_to_all, [zeros(count) for _ in range(SIZE)], mixed, parts)
    dist.barrier()


def every_collective() -> None:
    for count, asynchronous in itertools.product((1, 1037, 40_000), (False, True)):
        collectives(count, asynchronous)
    stats = blinkccl.torch_backend.stats()
    assert stats["gpu_alltoall"] == 12, stats


def operations() -> None:
    floats = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    whole = (torch.int8, torch.uint8, torch.int32, torch.int64)
    for dtype, op in itertools.product((*floats, *whole), ("SUM", "PRODUCT", "MIN", "MAX", "AVG")):
        if op == "AVG" and dtype in whole:
            continue
        tensor = runtime.tensor(data(RANK, 777, dtype))
        dist.all_reduce(tensor, getattr(OP, op))
        same(tensor, reduced(everybodys(777, dtype), op), f"{dtype} {op}")
    for dtype in floats:
        tensor = runtime.tensor(data(RANK, 777, dtype))
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
        same(tensor, reduced([one * 0.5 for one in everybodys(777, dtype)], "SUM"), f"{dtype} premul")
    tensor = runtime.tensor(torch.arange(40) % (RANK + 2) == 0)
    dist.all_reduce(tensor)
    same(tensor, torch.stack([torch.arange(40) % (rank + 2) == 0 for rank in range(SIZE)]).any(0), "bool")
    tensor = runtime.tensor(torch.complex(data(RANK, 50), data(RANK + 1, 50)))
    dist.all_reduce(tensor)
    total = sum(torch.complex(data(rank, 50), data(rank + 1, 50)) for rank in range(SIZE))
    same(tensor, total, "complex")
    tensor = runtime.tensor(data(RANK, 600).view(20, 30)).t()
    dist.all_reduce(tensor)
    same(tensor, reduced(everybodys(600), "SUM").view(20, 30).t(), "strided")
    for dtype, op in ((torch.int16, "SUM"), (torch.int32, "BXOR")):
        try:
            dist.all_reduce(runtime.tensor(data(RANK, 8, dtype)), getattr(OP, op))
        except UnsupportedError:
            continue
        raise AssertionError(f"{dtype} {op} was served")


def one_order() -> None:
    """The sums of a tile have the same bits wherever it lies in tensors of whatever size, on all ranks."""
    tile = torch.randn(97, generator=torch.Generator().manual_seed(RANK)) * 1e3
    first = runtime.tensor(tile.clone())
    dist.all_reduce(first)
    runtime.finish(runtime.user_stream)
    wanted = runtime.tensor(first.clone())
    dist.broadcast(wanted, 0)
    same(first, wanted, "ranks")
    for times in (20, 700):
        whole = runtime.tensor(tile.repeat(times))
        part = runtime.tensor(torch.zeros(97 * times))
        dist.reduce_scatter_tensor(part, runtime.tensor(tile.repeat(times * SIZE)))
        dist.all_reduce(whole)
        same(whole, wanted.repeat(times), f"all_reduce of {times} tiles")
        same(part, wanted.repeat(times), f"reduce_scatter of {times} tiles")


def messages() -> None:
    """Both ways at once, more than all slots hold, in whatever order ranks make their calls."""
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for count, dtype in ((300_000, torch.float32), (1, torch.int16), (5, torch.bool), (0, torch.float32)):
        both = [(data(RANK, count).to(dtype), torch.zeros(count, dtype=dtype)) for _ in range(2)]
        (up, from_before), (down, from_after) = [tuple(map(runtime.tensor, pair)) for pair in both]
        works = [dist.isend(up, after), dist.isend(down, before)]
        works += [dist.irecv(from_after, after), dist.irecv(from_before, before)]
        for work in works:
            work.wait()
        same(from_before, data(before, count).to(dtype), f"from {before}, {count} x {dtype}")
        same(from_after, data(after, count).to(dtype), f"from {after}, {count} x {dtype}")
    grid = runtime.tensor(data(RANK, 600).view(20, 30)).t()
    sent = dist.isend(grid, after)
    taken = runtime.tensor(torch.zeros(20, 30)).t()
    dist.recv(taken, before)  # the host of this double waits for it, to copy it
    sent.wait()
    same(taken, data(before, 600).view(20, 30).t(), "strided")
    grid, taken = runtime.tensor(data(RANK, 40_000)), runtime.tensor(torch.zeros(40_000))
    batch = [dist.P2POp(dist.irecv, taken, before), dist.P2POp(dist.isend, grid, after)]
    total = runtime.tensor(data(RANK, 1000))
    pending = dist.all_reduce(total, async_op=True)
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    pending.wait()
    same(taken, data(before, 40_000), "batch")
    same(total, reduced(everybodys(1000), "SUM"), "beside a collective")
    for turn in range(6):  # in order, and seen by the current stream
        tensor = runtime.tensor(torch.zeros(3000, dtype=torch.uint8))
        if RANK == 0:
            runtime.delay_on(runtime.user_stream, 0.01)
            runtime.fill_on(runtime.user_stream, tensor, 7 + turn)
            dist.send(tensor, 1)
            runtime.fill_on(runtime.user_stream, tensor, 99)
        elif RANK == 1:
            dist.recv(tensor, 0)
            same(runtime.copied_on(runtime.user_stream, tensor), torch.full((3000,), 7 + turn, dtype=torch.uint8))
    stats = blinkccl.torch_backend.stats()
    assert stats["gpu_send"] >= 7, stats
    try:
        dist.recv(runtime.tensor(torch.zeros(3)))
    except UnsupportedError:
        return
    raise AssertionError("a message from anybody was received")


def coalesced() -> None:
    tensors = [runtime.tensor(data(RANK, count)) for count in (10, 500, 3)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    for tensor in tensors:
        same(tensor, reduced(everybodys(tensor.numel()), "SUM"), "coalesced")
    future = dist.all_reduce(tensors[0], async_op=True).get_future()
    same(future.wait()[0], reduced(everybodys(10), "SUM") * SIZE, "future")


def stream_order() -> None:
    """What the current stream did before a call is seen by it, and what it does after wait() sees the result."""
    other = runtime.new_stream(None)
    for turn in range(12):
        tensor = runtime.tensor(torch.zeros(3000, dtype=torch.uint8))
        stream = other if turn % 3 == 2 else runtime.user_stream
        with runtime.on(stream):
            runtime.delay_on(stream, 0.01)
            runtime.fill_on(stream, tensor, RANK + 1 + turn)
            work = dist.all_reduce(tensor, async_op=turn % 2 == 0)
            if work is not None:
                work.wait()
            seen = runtime.copied_on(stream, tensor)
            runtime.fill_on(stream, tensor, 99)
        runtime.finish(stream)
        expected = sum(range(1, SIZE + 1)) + SIZE * turn
        assert seen.eq(expected).all(), (turn, seen[:8], expected)
        assert tensor.eq(99).all()
    assert len(runtime.kept_for) == 6


def graphs() -> None:
    tensor = runtime.tensor(data(RANK, 1000))
    dist.all_reduce(tensor)
    source = data(RANK, 1000)
    stream = runtime.user_stream
    runtime.finish(stream)
    kept = runtime.tensor(source)
    runtime.capture(stream)
    runtime.copy_bytes(tensor.data_ptr(), kept.data_ptr(), kept.nbytes, runtime.handle(stream))
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, OP.MAX, async_op=True)
    work.wait()
    graph = runtime.captured(stream)
    found = []
    for _ in range(5):
        runtime.replay(graph, stream)
        runtime.finish(stream)
        found.append(tensor.clone())
    for one in found:
        same(one, reduced(everybodys(1000), "SUM"), "replay")


def subgroups() -> None:
    half = dist.new_group(list(range(0, SIZE, 2)))
    if RANK % 2 == 0:
        tensor = runtime.tensor(data(RANK, 100))
        dist.all_reduce(tensor, group=half)
        same(tensor, reduced(everybodys(100)[::2], "SUM"), "half")
    alone = [dist.new_group([rank]) for rank in range(SIZE)][RANK]
    tensor = runtime.tensor(torch.zeros(7))
    dist.all_gather_into_tensor(tensor, runtime.tensor(data(RANK, 7)), group=alone)
    same(tensor, data(RANK, 7), "alone")
    tensor = runtime.tensor(data(RANK, 100))
    dist.all_reduce(tensor)
    same(tensor, reduced(everybodys(100), "SUM"), "all")


def missing_rank() -> None:
    """One rank makes a call too late: the others' timeout has aborted the group, on all ranks, and all hear of it."""
    tensor = runtime.tensor(torch.ones(10))
    dist.all_reduce(tensor)
    runtime.finish(runtime.user_stream)
    late = RANK == SIZE - 1
    if late:
        time.sleep(4)
    options = dist.distributed_c10d.AllreduceOptions()
    options.timeout, options.asyncOp = timedelta(seconds=100 if late else 1), True
    said, work = "", None
    try:
        # All that the late rank needs for its first call may lie there already; for a second one it does not.
        for _ in range(2 if late else 1):
            work = dist.group.WORLD.allreduce([tensor], options)
            work.wait(timedelta(seconds=60))
    except dist.DistBackendError as error:
        said = str(error)
    assert "not ended on the GPU within 1 s" in said or "gave up" in said, said
    if work is not None:  # a late rank may hear of it in the call itself
        assert work.is_completed()
        assert not work.is_success()
    try:
        dist.all_reduce(tensor)
    except dist.DistBackendError:
        return
    raise AssertionError("a group that has failed takes calls")


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        every_collective,
        operations,
        one_order,
        messages,
        coalesced,
        stream_order,
        graphs,
        subgroups,
        missing_rank,
    )
}


def run(case: str, rank: int, size: int, place: Path) -> None:
    global RANK, SIZE, runtime
    RANK, SIZE, runtime = rank, size, DoubleRuntime(rank)
    process_group._kind = lambda tensor: "cuda"
    process_group._open_cuda = _open_cuda
    store = dist.FileStore(str(place / "store"), size)
    dist.init_process_group("cuda:blink", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=100))
    CASES[case]()
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:]:
        run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        serve(run, limit_s=240)
