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


def test_a_group_over_hosts_shares_no_memory_and_says_so_once(monkeypatch, caplog):
    hosts = ["a", "b", "a"]
    monkeypatch.setattr(transport, "SpanningTransport", lambda store, rank, hosts, *_: hosts)
    monkeypatch.setattr(transport, "own_peer_info", lambda rank, size: SimpleNamespace(host=(hosts[rank], 1)))
    transport._say_once.cache_clear()

    def opened(rank, store):
        return transport.open_transport(store, rank, 3, [], 20.0)

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            store = dist.HashStore()
            with ThreadPoolExecutor(3) as pool:
                found = list(pool.map(opened, range(3), [store] * 3))
            assert [found[0].index(host) for host in found[0]] == [0, 1, 0]
            assert found == [found[0]] * 3
    assert [record.message for record in caplog.records if "spans hosts" in record.message] == [
        "a process group spans hosts: backend blink runs such groups over gloo's send and receive"
    ]


def test_a_rank_that_does_not_come_is_named():
    store = dist.HashStore()
    store.set("blink/host/2", "there")
    with pytest.raises(RendezvousTimeout) as failed:
        transport.open_transport(store, 0, 4, [], 0.1)
    assert (failed.value.missing, failed.value.present) == ((1, 3), (0, 2))
