"""Which transport a group gets: from what its ranks say in the store about where they are."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import SimpleNamespace

import pytest

from blinkccl.errors import RendezvousTimeout

dist = pytest.importorskip("torch.distributed", reason="needs PyTorch")
transport = import_module("blinkccl.torch_backend.transport")


@pytest.fixture
def made(monkeypatch):
    """What each rank's transport would have been made of."""
    one = import_module("blinkccl.runtime.host_group")
    monkeypatch.setattr(one, "HostGroup", lambda store, rank, size, **_: ("one host", rank, size))
    spanning = import_module("blinkccl.torch_backend.transport")
    monkeypatch.setattr(spanning, "SpanningTransport", lambda store, rank, hosts, *_: ("hosts", rank, hosts))
    transport._say_once.cache_clear()


def opened(monkeypatch, hosts):
    """What the ranks on these hosts get, each in a thread of its own."""
    monkeypatch.setattr(transport, "own_peer_info", lambda rank, size: SimpleNamespace(host=(hosts[rank], 1)))
    store, size = dist.HashStore(), len(hosts)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: transport.open_transport(store, rank, size, [], 20.0), range(size)))


@pytest.mark.usefixtures("made")
def test_ranks_of_one_host_share_memory(monkeypatch):
    assert opened(monkeypatch, ["a", "a", "a"]) == [("one host", rank, 3) for rank in range(3)]


@pytest.mark.usefixtures("made")
def test_a_group_over_hosts_does_not_and_says_so_once(monkeypatch, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            [first, second, third] = opened(monkeypatch, ["a", "b", "a"])
    assert first[0] == "hosts"
    assert first[2] == second[2] == third[2]
    assert [first[2].index(host) for host in first[2]] == [0, 1, 0]
    assert [record.message for record in caplog.records if "spans hosts" in record.message] == [
        "a process group spans hosts: backend blink runs such groups over gloo's send and receive"
    ]


def test_a_rank_that_does_not_come_is_named():
    store = dist.HashStore()
    store.set("blink/host/2", "there")
    with pytest.raises(RendezvousTimeout) as failed:
        transport.open_transport(store, 0, 4, [], 0.1)
    assert (failed.value.missing, failed.value.present) == ((1, 3), (0, 2))
