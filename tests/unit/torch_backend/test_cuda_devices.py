"""Who serves which device: the string that a group is made with decides. CUDA and the engine are scripts."""

from __future__ import annotations

from importlib import import_module

import pytest

from blinkccl.errors import UnsupportedError
from support.extras import needs

pytestmark = needs("torch")
torch = pytest.importorskip("torch", reason="needs PyTorch")
dist = torch.distributed
scripted = import_module("scripted_cuda")
backend = import_module("blinkccl.torch_backend")
process_group = import_module("blinkccl.torch_backend.process_group")
cuda_group = import_module("blinkccl.torch_backend.cuda_group")

MAX = dist.ReduceOp.MAX  # a sum of what is really a CPU tensor would take the short way


class Device:
    """The one that ``tensor`` is told to be on."""

    kind = "cpu"


@pytest.fixture
def runtime():
    return scripted.ScriptedRuntime()


@pytest.fixture
def engine(runtime, monkeypatch):
    """What runs CUDA tensors; for those, :attr:`Device.kind` is "cuda" while they are passed."""
    made = scripted.ScriptedEngine(runtime)
    monkeypatch.setattr(process_group, "_kind", lambda _: Device.kind)
    group = cuda_group.CudaGroup(0, 1, lambda *_: made, runtime)
    monkeypatch.setattr(process_group, "_open_cuda", lambda *_: group)
    yield made
    Device.kind = "cpu"


@pytest.fixture
def started(engine):
    """Starts a world of one rank with this backend string."""
    backend.register()

    def start(name):
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
        return dist.group.WORLD

    yield start
    Device.kind = "cpu"
    if dist.is_initialized():
        dist.destroy_process_group()


def on(kind, call, *arguments, **keywords):
    Device.kind = kind
    try:
        return call(*arguments, **keywords)
    finally:
        Device.kind = "cpu"


#: Backend string → who serves CPU and CUDA tensors.
SERVED = {
    "blink": ("blink", "blink"),
    "cuda:blink": (None, "blink"),
    "cpu:blink": ("blink", None),
    "cpu:gloo,cuda:blink": ("gloo", "blink"),
    "cuda:blink,cpu:gloo": ("gloo", "blink"),
    "cpu:blink,cuda:blink": ("blink", "blink"),
    "cuda:blink,cpu:blink": ("blink", "blink"),
    "cpu:blink,cuda:gloo": ("blink", "gloo"),
}


@pytest.mark.parametrize("name", SERVED)
def test_the_string_decides(started, engine, name):
    cpu, cuda = SERVED[name]
    group = started(name)
    tensor = torch.ones(4)
    if cpu is None:
        with pytest.raises(UnsupportedError, match="has nobody for tensors on cpu"):
            dist.broadcast(tensor, 0)
    else:
        dist.broadcast(tensor, 0)
        dist.all_reduce(tensor)
        assert (cpu == "gloo") == isinstance(group._delegated._made.get("cpu"), dist.ProcessGroupGloo)
    assert engine.calls == []
    if cuda is None:
        with pytest.raises(UnsupportedError, match=r'made as "cpu:blink".*"cpu:blink,cuda:nccl"'):
            on("cuda", dist.all_reduce, tensor, MAX)
    elif cuda == "blink":
        on("cuda", dist.all_reduce, tensor, MAX)
        on("cuda", dist.broadcast, tensor, 0)
        assert [call[0].collective for call in engine.calls] == ["allreduce", "broadcast"]
        assert group.stats()["gpu_calls"] == 2
    else:
        assert group._other is not None
        assert not on("cuda", group._serves, tensor)


def test_objects_and_barriers_of_a_mixed_group_go_to_its_cpu_and_open_no_shared_memory(started, engine):
    group = started("cpu:gloo,cuda:blink")
    dist.all_reduce(torch.ones(4))
    found = [None]
    dist.all_gather_object(found, {"rank": 0})
    dist.barrier()
    assert found == [{"rank": 0}]
    assert engine.calls == []
    assert group._transport._transport is None
    assert [str(device) for device in group._device_types] == ["cpu", "cuda"]


def test_a_barrier_of_a_gpu_group_is_one_of_gpus(started, engine):
    group = started("cuda:blink")
    group.barrier().wait()
    options = dist.distributed_c10d.BarrierOptions()
    options.device = torch.device("cuda", 0)
    group.barrier(options).wait()
    assert [call[0].collective for call in engine.calls] == ["allreduce"] * 2


def test_messages_between_gpus_have_a_stream_per_peer_and_direction(started, engine):
    group = started("cuda:blink")
    for call, peer in ((group.send, 1), (group.recv, 1), (group.send, 2), (group.send, 1)):
        on("cuda", call, [torch.ones(3)], peer).wait()
    on("cuda", group.send, [torch.ones(0)], 1).wait()
    assert [(sends, nbytes, peer) for sends, _, nbytes, peer, _ in engine.calls] == [
        *((True, 12, 1), (False, 12, 1), (True, 12, 2), (True, 12, 1))
    ]
    streams = [call[-1] for call in engine.calls]
    assert len(set(streams)) == 3
    assert streams[0] == streams[3]
    with pytest.raises(UnsupportedError, match="name the source"):
        on("cuda", group.recv_anysource, [torch.ones(1)])


def test_messages_between_gpus_are_not_captured(started, engine, runtime):
    group = started("cuda:blink")
    on("cuda", group.send, [torch.ones(3)], 1).wait()
    runtime.captures = True
    with pytest.raises(UnsupportedError, match="which serve no graphs"):
        on("cuda", group.send, [torch.ones(3)], 1)
    assert len(engine.calls) == 1


def test_sparse_tensors_on_gpus_are_refused(started):
    group = started("blink")
    with pytest.raises(UnsupportedError, match="sparse tensors on cuda"):
        on("cuda", group.allreduce, [torch.eye(2).to_sparse()])


def test_coalescing_by_device(started, engine):
    group = started("blink")
    group._start_coalescing(torch.device("cuda", 0))
    for _ in range(2):
        on("cuda", group.broadcast, [torch.ones(2)])
    assert group._end_coalescing(torch.device("cuda", 0)).wait()
    assert len(engine.calls) == 2
