"""Failures between hosts: a monitor names the ranks that others wait for, and hosts without a path between them are
named on all ranks, with the same text.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from blinkccl.errors import CommunicationError, RendezvousTimeout
from blinkccl.runtime.bootstrap import own_address_towards
from blinkccl.runtime.hierarchy import Hosts
from blinkccl.runtime.monitor import Monitor, RankPlace, Word, check_paths

ADDRESS = "127.0.0.1"
#: Two ranks, one, and one.
HOSTS = Hosts.of("aabc")


def checked(addresses: list[str], changed: Callable[[int, RankPlace], RankPlace] = lambda _, place: place) -> list[str]:
    """Return the error of each rank, a thread, if the others get the places that ``changed`` returns."""
    words_of: list[bytes] = [b""] * HOSTS.size
    met = threading.Barrier(HOSTS.size, timeout=10)

    def said(rank: int) -> str:
        def exchange(mine: bytes) -> list[bytes]:
            place = msgspec.msgpack.decode(mine)
            if "port" in place:
                mine = msgspec.msgpack.encode(changed(rank, msgspec.convert(place, RankPlace)))
            words_of[rank] = mine
            met.wait()
            words = list(words_of)
            met.wait()
            return words

        try:
            check_paths(HOSTS, rank, addresses[rank], 0.9, exchange)
        except CommunicationError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(HOSTS.size) as pool:
        return list(pool.map(said, range(HOSTS.size)))


@pytest.mark.parametrize("address", [ADDRESS, "::1"])
def test_hosts_that_reach_each_other_are_fine(address: str) -> None:
    if own_address_towards(address) != address:
        pytest.skip(f"this machine has no {address}")
    assert checked([address] * 4) == [""] * 4


def test_all_ranks_name_the_missing_paths() -> None:
    with socket.create_server((ADDRESS, 0)) as closed:
        port = closed.getsockname()[1]
    texts = checked(
        [ADDRESS] * 4, lambda rank, place: msgspec.structs.replace(place, port=port) if rank == 3 else place
    )
    assert texts[1:] == texts[:-1]
    for rank in (0, 2):
        assert f"rank {rank} ({ADDRESS} on " in texts[0]
    assert texts[0].count(f"cannot connect to rank 3 ({ADDRESS} on ") == 2
    assert "Connection refused" in texts[0]
    assert "GLOO_SOCKET_IFNAME" in texts[0]
    assert "rank 1 " not in texts[0], "not the first of its host"


def test_a_packet_that_vanishes_is_not_waited_for_to_the_deadline() -> None:
    with socket.create_server((ADDRESS, 0), backlog=0) as full:
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]  # more than it keeps: later ones get no answer
        for each in waiting:
            each.setblocking(False)
            each.connect_ex((ADDRESS, port))
        began = time.monotonic()
        texts = checked(
            [ADDRESS] * 4, lambda rank, place: msgspec.structs.replace(place, port=port) if rank == 3 else place
        )
        for each in waiting:
            each.close()
    assert time.monotonic() - began < 5
    assert texts[0].count(f"cannot connect to rank 3 ({ADDRESS} on ") == 2
    assert texts[0].count("no answer within 0.3 s") == 2


@pytest.mark.parametrize("address", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_the_hosts_own_is_named(address: str) -> None:
    texts = checked([ADDRESS, ADDRESS, ADDRESS, address])
    assert texts[1:] == texts[:-1]
    assert f"rank 3 ({address} on " in texts[0]
    assert "cannot listen there: " in texts[0]


class Meetings:
    """A bootstrap of three ranks with meetings under the test's control: rank 0 is real, the others send ``words``."""

    peers = (None,) * 3

    def __init__(self, *words: Word) -> None:
        self.words, self.held = words, threading.Event()

    def all_gather(self, mine: bytes, deadline: float) -> tuple[list[bytes], list[list[int]]]:
        self.held.wait(10)
        return [mine, *map(msgspec.msgpack.encode, self.words)], [[]] * 3

    def stay(self, look: object) -> None: ...
    def close(self) -> None: ...


@pytest.mark.parametrize(("held", "missing"), [(True, (1, 2)), (False, (2,))])
def test_an_agreement_names_the_missing_ranks_only(held: bool, missing: tuple[int, ...]) -> None:
    """Also without a meeting since: a rank that imports a large library may delay its monitor."""
    meetings = Meetings(Word(agreements=1), Word())
    monitor = Monitor(meetings, 0, lambda cause: None)
    if not held:
        meetings.held.set()
    with pytest.raises(RendezvousTimeout, match="rank 0 waited for them") as raised:
        monitor.agree(b"word", time.monotonic() + 0.5)
    assert raised.value.missing == missing
    meetings.words = (Word(leaves=True),) * 2
    meetings.held.set()
    monitor.close()
