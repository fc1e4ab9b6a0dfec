"""Backends by device: the string of a group decides, and blink serves only CPU tensors."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from blinkccl.errors import UnsupportedError
from support.extras import needs

pytestmark = needs("torch")
torch = pytest.importorskip("torch", reason="needs PyTorch")
dist = torch.distributed
process_group = import_module("blinkccl.torch_backend.process_group")

ALONE = r'serves only CPU tensors, not those on cuda: make the group with "cpu:blink,cuda:nccl".* with blink run'


@pytest.fixture
def started() -> Iterator[Callable[[str], Any]]:
    """Start a world of one rank with this backend string."""
    import_module("blinkccl.torch_backend").register()

    def start(name: str) -> Any:
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
        return dist.group.WORLD

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["blink", "cpu:blink", "cpu:blink,cuda:gloo"])
def test_the_string_decides(started: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    group = started(name)
    tensor = torch.ones(4)
    dist.broadcast(tensor, 0)
    dist.all_reduce(tensor)
    dist.barrier()
    assert not group._delegated._made
    assert [device.type for device in group._device_types] == ["cpu", "cuda"][: 1 + ("cuda" in name)]
    monkeypatch.setattr(process_group, "_kind", lambda _: "cuda")
    if "cuda" not in name:
        with pytest.raises(UnsupportedError, match=r'made as "cpu:blink".*"cpu:blink,cuda:nccl"'):
            dist.broadcast(tensor, 0)
    assert not group._serves(tensor)


@pytest.mark.parametrize("name", ["cuda:blink", "cpu:gloo,cuda:blink", "cuda:blink,cpu:gloo", "cuda:blink,cpu:blink"])
def test_a_group_for_cuda_tensors_is_refused_in_one_line(started: Callable[[str], Any], name: str) -> None:
    with pytest.raises(UnsupportedError, match=ALONE) as refused:
        started(name)
    assert isinstance(refused.value, dist.DistBackendError)
    assert "\n" not in str(refused.value)


def test_cuda_tensors_of_a_group_for_both_are_refused(
    started: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = started("cpu:blink,cuda:blink")
    dist.all_reduce(torch.ones(4))
    dist.barrier()
    monkeypatch.setattr(process_group, "_kind", lambda _: "cuda")
    for call in (lambda: dist.broadcast(torch.ones(4), 0), lambda: group.allreduce([torch.eye(2).to_sparse()])):
        with pytest.raises(UnsupportedError, match=ALONE):
            call()
