"""Programs on layers above a process group: DDP, FSDP, DTensor, torch.compile, profiles."""

import contextlib
import gc
import os
import runpy
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch_common import TIMEOUT, place, raises, same

import blinkccl
from blinkccl.errors import (
    UsageError,
)
from blinkccl.runtime.heap import process_heap
from blinkccl.torch_backend import for_gloo, hooks, stats
from blinkccl.torch_backend.process_group import BlinkProcessGroup


class Small(nn.Module):
    """A model with buffers, and a layer that some steps skip."""

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
    """Return the losses of four steps of training on this rank's own data."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    values = []
    for step in range(1, 5):
        generator = torch.Generator().manual_seed(100 * step + rank)
        inputs, targets = torch.randn(8, 10, generator=generator), torch.randn(8, 5, generator=generator)
        loss = ((model(inputs, step % spare_every == 0) - targets) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def compare(size: int, train: Callable[[Any], list[float]], exact: bool = True) -> None:
    """Check for the same losses on blink and gloo; between two ranks to the last bit."""
    on_gloo, on_blink = (train(dist.new_group(backend=name, timeout=TIMEOUT)) for name in ("gloo", "blink"))
    if exact and size == 2:
        assert on_blink == on_gloo, (on_blink, on_gloo)
    torch.testing.assert_close(torch.tensor(on_blink), torch.tensor(on_gloo), rtol=1e-3, atol=1e-4)


def data_parallel(rank: int, size: int) -> None:
    """DDP: many buckets, buffers, unused parameters, sparse gradients, uneven inputs, torch's hooks and Blink's."""
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
    """DDP with its buckets in shared memory: the same losses, all gradients sent directly, and all memory freed."""
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
        optimizer, values = torch.optim.SGD(model.parameters(), 0.1), []
        for step in range(5):
            if step == 2:  # DDP has rebuilt its buckets, and these have moved
                settled = group.stats()
            generator = torch.Generator().manual_seed(100 * step + rank)
            inputs, targets = torch.randn(8, 10, generator=generator), torch.randn(8, 5, generator=generator)
            with model.no_sync() if step == 3 else contextlib.nullcontext():
                loss = ((model(inputs) - targets) ** 2).mean()
                loss.backward()
            if step != 3:
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 2 == 0)
            values.append(loss.item())
        by_steps = shared and not in_background and "find_unused_parameters" not in options
        assert not by_steps or threads.issuperset(threading.enumerate()), "nobody else was asked"
        return values, {name: count - settled[name] for name, count in group.stats().items()}

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
    """An identity whose backward pass fails."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor) -> Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Tensor:
        raise ArithmeticError("halted")


def broken_backward(rank: int, size: int) -> None:
    """Buckets that a failed backward pass left in flight complete before the group's next calls."""
    group = dist.new_group(backend="blink", timeout=TIMEOUT)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), process_group=group, bucket_cap_mb=1e-5
    )
    blinkccl.torch.shared_buckets(model, in_background=False)
    model(torch.ones(2, 3)).sum().backward()
    number = torch.tensor([float(rank)])
    work = dist.all_reduce(number, group=group, async_op=True)
    if rank == 0:
        time.sleep(0.1)  # the others' buckets stay in flight for a while
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
    """Return the model under FSDP2."""
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


def sharded_state(rank: int, size: int) -> None:
    """The state of FSDP's parameters in shards, gathered by rank 0: as on gloo."""
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    def gathered(name: str) -> dict[str, Tensor]:
        group = dist.new_group(backend=name, timeout=TIMEOUT)
        model = FullyShardedDataParallel(
            Small(), process_group=group, device_id=torch.device("cpu"), use_orig_params=True
        )
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            shards = model.state_dict()
            model.load_state_dict(shards)
        whole = {}
        for key, shard in shards.items():
            if type(shard) is not Tensor:  # plain tensors are buffers, which are not sharded
                whole[key] = torch.zeros(shard.size())
                shard.gather(0, whole[key] if rank == 0 else None)
        return whole

    on_gloo, on_blink = gathered("gloo"), gathered("blink")
    assert set(on_blink) >= {"first.weight", "first.bias", "norm.weight", "last.weight", "spare.bias"}
    assert rank or on_blink["first.weight"].all(), "a weight is never quite 0"
    for key, tensor in on_blink.items():
        same(tensor, on_gloo[key])


def checkpoints(rank: int, size: int) -> None:
    """torch's distributed checkpoints, at once and in the background: every rank's own shards come back."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    model = fully_sharded(init_device_mesh("cpu", (size,)))
    state = get_model_state_dict(model)
    saved = {name: tensor.clone() for name, tensor in state.items()}
    dcp.save(state, checkpoint_id=place("at once"))
    dcp.async_save(state, checkpoint_id=place("later")).result()
    for name in ("at once", "later"):
        for parameter in model.parameters():
            with torch.no_grad():
                parameter.zero_()
        loaded = get_model_state_dict(model)
        dcp.load(loaded, checkpoint_id=place(name))
        set_model_state_dict(model, loaded)
        for key, tensor in get_model_state_dict(model).items():
            same(_local(tensor), _local(saved[key]))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def in_place_of_gloo(rank: int, size: int) -> None:
    """BLINK_FOR=gloo: groups that are gloo's by name are blink's, with gloo beside it, and no others."""
    before = stats()["calls"]
    with for_gloo.serving():
        group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        part = dist.new_group([0, size - 1], backend="gloo")
        mixed = dist.new_group(backend="cpu:gloo,cuda:fake")
        word = dist.new_group(backend="blink")
    plain = dist.new_group(backend="gloo")
    assert [dist.get_backend(each) for each in (group, word, plain)] == ["gloo", "blink", "gloo"]
    DistributedDataParallel(Small(), process_group=group)
    assert [isinstance(each, BlinkProcessGroup) for each in (group, word, mixed, plain)] == [True, True, False, False]
    assert (part is dist.GroupMember.NON_GROUP_MEMBER) == (rank not in (0, size - 1))
    tensor = torch.full((3,), rank + 1.0)
    dist.all_reduce(tensor, group=group)
    same(tensor, torch.full((3,), size * (size + 1) / 2))
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (size,), check_invariants=True)
    dist.all_reduce(sparse, group=group)  # by the gloo beside blink
    same(sparse.to_dense(), torch.ones(size))
    dist.monitored_barrier(group)  # torch accepts only gloo's name
    dist.destroy_process_group(group)
    assert stats()["calls"] > before


def shared_shards(rank: int, size: int) -> None:
    """FSDP2 with its flat tensors in shared memory: the same losses, no staging, and memory is reused.

    Four ranks have two copies of every shard.
    """
    from torch.distributed.fsdp import fully_shard

    def counted(shared: bool) -> tuple[list[float], dict[str, int], int]:
        torch.manual_seed(1)
        mesh = init_device_mesh("cpu", (size,))
        if size == 4:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
        layers = [nn.Sequential(nn.Linear(192, 192), nn.ReLU()) for _ in range(3)]
        model = nn.Sequential(nn.Linear(10, 192), *layers, nn.Linear(192, 5))
        for part in (*layers, model):
            fully_shard(part, mesh=mesh)
        if shared:
            blinkccl.torch.shared_buckets(model)
        optimizer, values = torch.optim.SGD(model.parameters(), 0.1), []
        for step in range(6):
            if step == 2:
                settled, used = stats(), process_heap().used
            generator = torch.Generator().manual_seed(100 * step + rank)
            inputs, targets = torch.randn(8, 10, generator=generator), torch.randn(8, 5, generator=generator)
            loss = ((model(inputs) - targets) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        counts = {name: count - settled.get(name, 0) for name, count in stats().items()}
        return values, counts, process_heap().used - used

    plain, by_plain, _ = counted(False)
    shared, by_shared, grown = counted(True)
    assert shared == plain
    assert by_plain["direct_read_bytes"] + by_plain["direct_write_bytes"] == by_plain["crossed_bytes"]
    assert by_shared["direct_read_bytes"] + by_shared["direct_write_bytes"] > 0 == by_shared["staged_bytes"]
    assert by_shared["message_bytes"] == by_plain["message_bytes"]
    assert grown == 0, "what one step has dropped the next one takes"


def functional(rank: int, size: int) -> None:
    """DTensor and functional collectives, eager and compiled."""
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
    """torch.compile around DDP and inside it, FSDP2, whole steps with Blink's hook, and both kinds of collectives."""
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
    """A profile contains Blink's calls, with shapes."""
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(torch.ones(3, 5))
        dist.all_gather([torch.ones(7) for _ in range(size)], torch.ones(7), async_op=True).wait()
    events = {event.name: event.input_shapes for event in profile.events() if event.name.startswith("blink:")}
    assert events == {"blink:all_reduce": [[3, 5]], "blink:all_gather": [[7]]}, events


def train_example(rank: int, size: int) -> None:
    """Run the example with the arguments EXAMPLE; rank 0's output goes to the file EXAMPLE_OUT."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1"}
    example = Path(__file__).parents[2] / "examples" / "train.py"
    sys.argv = [str(example), *os.environ["EXAMPLE"].split(",")]
    with Path(os.environ["EXAMPLE_OUT"] if rank == 0 else os.devnull).open("w") as out, contextlib.redirect_stdout(out):
        runpy.run_path(str(example), run_name="__main__")
