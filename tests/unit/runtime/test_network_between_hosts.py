"""What carries bytes between hosts: which library, at what rate, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from blinkccl.errors import LaunchError, UnsupportedError
from blinkccl.runtime import network
from blinkccl.runtime.hierarchy import Hosts
from blinkccl.runtime.network import interface_bytes_per_s
from blinkccl.runtime.store import FileStore, own_addresses
from support.extras import needs


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "fast"])
def test_a_rate_that_is_no_positive_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("BLINK_NIC_GBITS", text)
    with pytest.raises(LaunchError, match=f"BLINK_NIC_GBITS='{text}': expected a positive number"):
        interface_bytes_per_s("127.0.0.1")


@pytest.mark.parametrize(
    ("speed", "gbits"),
    [("25000\n", 25.0), ("-1\n", network.DEFAULT_GBITS), ("0\n", network.DEFAULT_GBITS), (None, 10.0)],
)
def test_the_rate_is_that_of_the_interface(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, speed: str | None, gbits: float
) -> None:
    monkeypatch.delenv("BLINK_NIC_GBITS", raising=False)
    monkeypatch.setattr(network, "_INTERFACES", tmp_path)
    loopback = next(name for name, address in own_addresses().items() if address == "127.0.0.1")
    if speed is not None:
        (tmp_path / loopback).mkdir()
        (tmp_path / loopback / "speed").write_text(speed)
    assert interface_bytes_per_s("127.0.0.1") == gbits * 1e9 / 8
    monkeypatch.setenv("BLINK_NIC_GBITS", "0.4")
    assert interface_bytes_per_s("127.0.0.1") == 5e7


def opened(tmp_path: Path, others: list[str]) -> None:
    store = FileStore(tmp_path / "store")
    network.opener(
        store, 0, Hosts.of(range(1 + len(others))), 1.0, lambda mine: [mine, *(word.encode() for word in others)]
    )


def test_what_one_rank_lacks_is_said_on_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(network, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="need torch"):
        opened(tmp_path, ["gloo"])
    monkeypatch.setenv("BLINK_NETWORK", "mpi")
    with pytest.raises(UnsupportedError, match="BLINK_NETWORK=mpi needs mpi4py"):
        opened(tmp_path, ["mpi 1"])
    monkeypatch.setattr(network, "_wanted", lambda: ("mpi4py", ""))
    monkeypatch.setattr(network, "_mpi_rank", lambda: 0)
    with pytest.raises(UnsupportedError, match="rank 1: no mpi4py there"):
        opened(tmp_path, ["!no mpi4py there"])
    with pytest.raises(UnsupportedError, match=r"ranks disagree on the network .* rank 0 takes mpi4py, rank 1 gloo"):
        opened(tmp_path, ["gloo"])
    with pytest.raises(UnsupportedError, match="no ranks of one MPI job"):
        opened(tmp_path, ["mpi4py 0"])


def test_collectives_go_over_tcp_and_messages_over_a_library_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLINK_NETWORK", raising=False)
    there = {"torch", "mpi4py"}
    monkeypatch.setattr(network, "find_spec", lambda name: name if name in there else None)
    assert network._wanted() == ("tcp+gloo", "")
    there.remove("torch")
    assert network._wanted() == ("tcp+mpi4py", "")
    monkeypatch.setenv("BLINK_NETWORK", "tcp")
    assert network._wanted() == ("tcp+mpi4py", "")
    there.clear()
    assert "need torch" in network._wanted()[1]


@needs("torch")
@pytest.mark.parametrize("name", ["nonsense", "nccl", "blink"])
def test_a_network_that_torch_lacks_is_named_on_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setenv("BLINK_NETWORK", name)
    with pytest.raises(UnsupportedError, match=f"BLINK_NETWORK={name}: .*; take one of gloo.*, or mpi, with mpi4py"):
        opened(tmp_path, ["gloo"])
    problem = network._wanted()[1]
    monkeypatch.delenv("BLINK_NETWORK")
    with pytest.raises(UnsupportedError, match=f"rank 1: BLINK_NETWORK={name}: "):
        opened(tmp_path, [problem])


@needs("torch")
def test_a_plugin_of_torch_is_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as distributed

    plugin = distributed.Backend._BackendPlugin(lambda *given: given, False)
    plugins = {**distributed.Backend._plugins, "RELAY": plugin}
    monkeypatch.setattr(distributed.Backend, "_plugins", plugins)
    monkeypatch.setenv("BLINK_NETWORK", "Relay")
    assert network._wanted() == ("relay", "")
    assert network.torch_backend("relay", "store", 1, 3, "timeout", [0, 1, 2], "x") == ("store", 1, 3, "timeout")


@needs("torch")
def test_a_backend_that_torch_lacks_is_named() -> None:
    from datetime import timedelta

    with pytest.raises(UnsupportedError, match="cannot make a backend 'nonsense' beside itself"):
        network.torch_backend("nonsense", None, 0, 1, timedelta(seconds=1), [0], "x")
