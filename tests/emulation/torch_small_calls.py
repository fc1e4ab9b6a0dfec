"""Programs on small calls with ``async_op``, which wake no thread, and on what tools and forked children see."""

import os
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as collectives
from torch.distributed.tensor.debug import CommDebugMode
from torch_calls import gather_into, reduce_into
from torch_common import TIMEOUT, raises, same, wait_for

from blinkccl.errors import DeadlineError, PeerLostError, PlanMismatchError
from blinkccl.torch_backend import stats

OPS = torch.ops._c10d_functional


def ones(size: int, count: int = 1024) -> tuple[Tensor, Tensor]:
    return torch.ones(count), torch.full((count,), float(size))


def small_calls(rank: int, size: int) -> None:
    """Each kind of call, awaited where it is made, beside ranks that come late: no wake, and no thread at all."""
    group = dist.new_group(timeout=TIMEOUT)
    name = group.group_name
    compiled = torch.compile(lambda tensor: collectives.all_reduce(tensor + 0, "sum", group) * 1, backend="aot_eager")
    compiled(ones(size)[0])
    dist.barrier()
    threads = set(threading.enumerate())
    before = group.stats()["thread_wakes"]
    for late in range(size):
        if rank == late:
            time.sleep(0.05)  # its peers wait for it in each way below
        tensor, summed = ones(size)
        dist.all_reduce(tensor, group=group, async_op=True).wait()
        same(tensor, summed)
        gathered = torch.zeros(size * 1024)
        gather_into(gathered, tensor * rank, group=group, async_op=True).wait()
        same(gathered, torch.cat([summed * peer for peer in range(size)]))
        turned = torch.ones(2, 3).t()
        dist.all_reduce(turned, group=group, async_op=True).wait()
        same(turned, torch.full((3, 2), float(size)))
        dist.barrier(group=group, async_op=True).wait()
        same(OPS.wait_tensor(OPS.all_reduce(ones(size)[0], "sum", name)), summed)
        same(OPS.wait_tensor(OPS.all_gather_into_tensor(torch.ones(3), size, name)), torch.ones(3 * size))
        same(collectives.wait_tensor(collectives.all_reduce(ones(size)[0], "max", group)), ones(size)[0])
        same(compiled(ones(size)[0]), summed)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert wait_for(work.is_completed), "a look is enough for progress"
        assert work.is_success()
        assert work.result() == [tensor]
        left = dist.all_reduce(tensor, group=group, async_op=True)
        dist.all_reduce(tensor, group=group)  # ends the call before it, too
        assert left.is_completed()
        same(tensor, torch.full((1024,), float(size**4)))
    assert group.stats()["thread_wakes"] == before
    assert threads.issuperset(threading.enumerate())
    assert stats()["thread_wakes"] >= before
    large = torch.ones(100_000)
    dist.all_reduce(large, group=group, async_op=True).wait()
    assert group.stats()["thread_wakes"] == before + 1, "a large call runs beside computations"
    dist.barrier()


def resident_kib() -> int:
    """Return the memory that this process's groups occupy."""
    mapped = Path("/proc/self/smaps").read_text(encoding="utf-8").split("memfd:blink-segment")[1:]
    return sum(int(re.search(r"Rss: +(\d+) kB", one)[1]) for one in mapped)  # type: ignore[index]


def groups_that_are_small(rank: int, size: int) -> None:
    """A group of small calls occupies some pages, and one with larger calls the memory of these in addition."""
    before = resident_kib()
    groups = [dist.new_group(timeout=TIMEOUT) for _ in range(5)]
    for group in groups:
        for _ in range(10):
            dist.all_reduce(torch.ones(1000), group=group)
    small = resident_kib() - before
    assert small < 5 * 200, small
    dist.all_reduce(torch.ones(100_000), group=groups[0])
    assert resident_kib() - before > small + 500


def small_calls_left(rank: int, size: int) -> None:
    """Calls whose results nobody awaits yet, of several groups and threads, hold up no other rank."""
    first, second = (dist.new_group(timeout=TIMEOUT) for _ in range(2))
    tensor, summed = ones(size)
    if rank == 0:  # each rank waits in another group first
        work = dist.all_reduce(tensor, group=first, async_op=True)
        dist.barrier(group=second)
        work.wait()
    else:
        dist.all_reduce(tensor, group=first)
        dist.barrier(group=second)
    same(tensor, summed)
    lists = [[torch.full((5,), float(rank)) for _ in range(4)] for _ in range(2)]
    works = [dist.all_reduce(each, group=first, async_op=True) for each in lists[0]]  # none awaited before the next
    token = torch.zeros(1)
    dist.send(token, 1 - rank) if rank == 0 else dist.recv(token, 1 - rank)
    works += [dist.all_reduce(each, group=second, async_op=True) for each in lists[1]]
    for work in reversed(works):
        work.wait()
    assert [each.tolist() for each in (*lists[0], *lists[1])] == [[float(sum(range(size)))] * 5] * 8
    future = dist.all_reduce(tensor, group=first, async_op=True).get_future()
    assert wait_for(future.done), "a future completes by itself"
    results: list[Tensor] = []

    def in_thread() -> None:
        for _ in range(50):
            mine = torch.ones(7)
            dist.all_reduce(mine, group=second, async_op=True).wait()
            results.append(mine)

    threads = [threading.Thread(target=in_thread) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 150
    same(torch.stack(results), torch.full((150, 7), float(size)))
    dist.all_reduce(tensor, group=first, async_op=True)  # dropped: the end of the group completes it


def small_calls_fail(rank: int, size: int) -> None:
    """Errors arrive where a call is awaited: another call of the peer, a timeout, a lost peer."""
    group = dist.new_group(timeout=TIMEOUT)
    dist.barrier()
    work = dist.all_reduce(torch.ones(3 + rank), group=group, async_op=True)
    with raises(PlanMismatchError, "rank 1 calls allreduce of 4"):
        work.wait()
    assert isinstance(work.exception(), PlanMismatchError)
    again = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    with raises(PlanMismatchError, "the group had ended already"):
        again.wait()
    short = dist.new_group(timeout=timedelta(seconds=0.5))
    if rank == 0:
        begun = time.monotonic()
        work = dist.all_reduce(torch.ones(3), group=short, async_op=True)
        assert time.monotonic() - begun < 0.4, "the call waits for no rank"
        with raises(DeadlineError, "waited 0.05 s for all_reduce"):
            work.wait(timedelta(seconds=0.05))
        with raises(DeadlineError, "all_reduce: Timed out"):
            work.wait()
    dist.barrier()
    last = dist.new_group(timeout=TIMEOUT)
    if rank == size - 1:
        os._exit(0)
    work = dist.all_reduce(torch.ones(3), group=last, async_op=True)
    with raises(PeerLostError, "rank 1 was lost"):
        work.wait()
    os._exit(0)  # without destroy_process_group, which needs the lost rank


def calls(rank: int, size: int, group: Any) -> dict[str, Callable[[], Any]]:
    """Each call of ``group``, by torch's operator."""
    tensor, parts, whole = torch.ones(4), [torch.ones(4) for _ in range(size)], torch.ones(4 * size)
    return {
        "allreduce_": lambda: dist.all_reduce(tensor, group=group),
        "allreduce_coalesced_": lambda: dist.all_reduce_coalesced([tensor], group=group),
        "reduce_": lambda: dist.reduce(tensor, 0, group=group),
        "broadcast_": lambda: dist.broadcast(tensor, 0, group=group),
        "allgather_": lambda: dist.all_gather(parts, tensor, group=group),
        "_allgather_base_": lambda: gather_into(whole, tensor, group=group),
        "reduce_scatter_": lambda: dist.reduce_scatter(tensor, parts, group=group),
        "_reduce_scatter_base_": lambda: reduce_into(tensor, whole, group=group),
        "gather_": lambda: dist.gather(tensor, parts if rank == 0 else None, 0, group=group),
        "scatter_": lambda: dist.scatter(tensor, parts if rank == 0 else None, 0, group=group),
        "alltoall_base_": lambda: dist.all_to_all_single(whole, whole, group=group),
        "barrier": lambda: dist.barrier(group=group),
        "send" if rank == 0 else "recv_": lambda: (
            dist.send(tensor, 1, group=group) if rank == 0 else dist.recv(tensor, 0, group=group)
        ),
    }


def watched(rank: int, size: int) -> None:
    """Tools above torch's dispatcher see the same calls as on gloo, and these have the same results."""

    class Noted(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.namespace == "c10d":
                seen.append(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

    group, gloo = dist.new_group(timeout=TIMEOUT), dist.new_group(backend="gloo", timeout=TIMEOUT)
    for name, call in calls(rank, size, group).items():
        seen: list[str] = []
        with Noted():
            call()
        assert seen == [name], (seen, name)
        with torch.profiler.profile() as profile:
            call()
        events = [event.name.removeprefix("c10d::") for event in profile.events() if event.name.startswith("c10d::")]
        assert events == [name], (events, name)
    numbers = torch.arange(2.0 * size) + 100 * rank
    with Noted():
        dist.all_to_all_single(numbers, numbers, group=group)  # in place
    same(numbers, torch.tensor([100.0 * peer + 2 * rank + k for peer in range(size) for k in range(2)]))
    counts = []
    for one in (group, gloo):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), process_group=one)
        with CommDebugMode() as mode:
            model(torch.ones(1, 4)).sum().backward()
            dist.all_reduce(torch.ones(3), group=one)
            collectives.wait_tensor(collectives.all_reduce(torch.ones(3), "sum", one))
        counts.append(dict(mode.get_comm_counts()))
    assert counts[0] == counts[1] != {}, counts


def forked(rank: int, size: int) -> None:
    """A forked child destroys its copy of a group, makes one of its own, and disturbs no rank."""
    dist.all_reduce(torch.ones(3))
    left = dist.all_reduce(torch.ones(3), async_op=True)
    if (pid := os.fork()) == 0:
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group("blink", store=dist.HashStore(), rank=0, world_size=1)
        alone = torch.ones(3)
        dist.all_reduce(alone)
        work = dist.all_reduce(alone, async_op=True)
        os._exit(0 if work.wait() and alone.tolist() == [1, 1, 1] and stats()["calls"] < 100 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    left.wait()
    tensor, summed = ones(size)
    dist.all_reduce(tensor)
    same(tensor, summed)
    with pytest.raises(ValueError, match="expected"):
        gather_into(torch.ones(3), torch.ones(3))
