"""The transport of a group, from the hosts that its ranks report when they meet in torch's store."""

from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest

from blinkccl.engines import native_library
from blinkccl.errors import RendezvousTimeout, UnsupportedError
from blinkccl.runtime.host_group import HostGroup
from support.extras import needs

pytestmark = needs("torch")
dist = pytest.importorskip("torch.distributed", reason="needs PyTorch")
process_group = import_module("blinkccl.torch_backend.process_group")
try:
    native_library.load()
except UnsupportedError as reason:
    pytest.skip(str(reason), allow_module_level=True)


def test_ranks_of_one_host_share_memory():
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(lambda rank: process_group.open_transport(store, rank, 2, 20.0), range(2)))
    assert [type(group) for group in groups] == [HostGroup] * 2
    for group in groups:
        group.close()


def test_ranks_that_do_not_come_are_named():
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(process_group.open_transport, store, rank, 4, 1.0) for rank in (0, 2)]
        errors = [each.exception() for each in waiting]
    assert [type(error) for error in errors] == [RendezvousTimeout] * 2
    assert {error.missing for error in errors} == {(1, 3)}
