"""TCP connections between hosts: what is sent arrives, in order, whoever waits; what breaks is said."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.errors import CommunicationError, DeadlineError
from blinkccl.runtime.tcp_network import TcpNetwork, connect
from support.examples import examples

#: More than any two sockets' buffers hold.
MUCH = 16 << 20


@contextlib.contextmanager
def pair() -> Iterator[tuple[TcpNetwork, TcpNetwork]]:
    """Rank 0's end, and rank 1's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname(), 5)
        far, _ = listener.accept()
    ends = TcpNetwork({1: near}), TcpNetwork({0: far})
    with contextlib.ExitStack() as undo:
        for end in ends:
            undo.callback(end.close)
        yield ends


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def side_by_side(*works: Callable[[], object]) -> list[object]:
    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result(60) for future in [pool.submit(work) for work in works]]


@examples(25)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 15, 70_000, 3_000_000]), st.booleans()), max_size=6))
def test_all_messages_of_both_sides_arrive_in_order(plan: list[tuple[int, bool]]) -> None:
    """Both give all they have first: nobody waits for a connection that the other does not read."""

    def play(end: TcpNetwork, me: int) -> None:
        waiting, came = [], []
        kept = []
        for number, (nbytes, early) in enumerate(plan):
            out, into = np.full(nbytes, number * 2 + me, np.uint8), np.full(nbytes, 255, np.uint8)
            kept.append(out)
            moves = [
                lambda into=into, nbytes=nbytes, number=number: end.receive(address(into), nbytes, 1 - me, number),
                lambda out=out, nbytes=nbytes, number=number: end.send(address(out), nbytes, 1 - me, number),
            ]
            waiting += [move() for move in (moves if early else reversed(moves))]
            came.append(into)
        for pending in waiting:
            assert pending.wait(30) == 1 - me
        for number, into in enumerate(came):
            assert (into == number * 2 + 1 - me).all()

    with pair() as (a, b):
        side_by_side(lambda: play(a, 0), lambda: play(b, 1))


def test_a_message_of_another_call_is_an_error() -> None:
    data = np.zeros(8, np.uint8)
    for sent, tag, expected in ((8, 2, "sent 8 bytes of another call, expected 8"), (4, 1, "sent 4 bytes of another")):
        with pair() as (a, b):
            a.send(address(data), sent, 1, tag).wait(5)
            with pytest.raises(CommunicationError, match=f"rank 0 {expected}"):
                b.receive(address(data), 8, 0, 1).wait(5)


def test_a_peer_that_is_gone_is_named() -> None:
    data = np.zeros(MUCH, np.uint8)
    with pair() as (a, b):
        a.close()
        with pytest.raises(CommunicationError, match="rank 0 broke: rank 0 closed the connection"):
            b.receive(address(data), 1, 0, 1).wait(5)
        with pytest.raises(CommunicationError, match="the connection to rank 0 broke"):
            b.send(address(data), MUCH, 0, 1).wait(5)


def test_a_wait_has_a_deadline_in_either_direction() -> None:
    data = np.zeros(MUCH, np.uint8)
    with pair() as (a, b):
        with pytest.raises(DeadlineError, match=r"timed out after 0\.05 s, with 17 bytes of a message to come"):
            a.receive(address(data), 1, 1, 1).wait(0.05)
        with pytest.raises(DeadlineError, match="timed out"):
            b.send(address(data), MUCH, 0, 1).wait(0.05)


def test_abort_ends_a_wait_of_another_thread_and_all_that_follow() -> None:
    data = np.zeros(8, np.uint8)

    def wait(end: TcpNetwork) -> None:
        with pytest.raises(CommunicationError, match="the network was closed"):
            end.receive(address(data), 8, 1, 1).wait(30)

    with pair() as (a, _):
        began = time.monotonic()
        threading.Timer(0.1, a.abort).start()
        wait(a)
        with pytest.raises(CommunicationError, match="the network was closed"):
            a.send(address(data), 8, 1, 1)
        assert time.monotonic() - began < 10


class Meeting:
    """Gives everybody everybody's bytes, once."""

    def __init__(self, size: int) -> None:
        self._words: list[bytes] = [b""] * size
        self._barrier = threading.Barrier(size, timeout=30)

    def of(self, rank: int) -> Callable[[bytes], list[bytes]]:
        def exchange(mine: bytes) -> list[bytes]:
            self._words[rank] = mine
            self._barrier.wait()
            return list(self._words)

        return exchange


def strangers(place: tuple[str, int]) -> list[socket.socket]:
    """One that says nothing, one that goes at once, one with rubbish, and one that has a wrong token."""
    found = [socket.create_connection(place, 5) for _ in range(4)]
    found[1].close()
    found[2].sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
    found[3].sendall(bytes(16) + (0).to_bytes(4, "little"))
    return found


def test_ranks_connect_to_their_partners_whoever_else_does() -> None:
    meeting = Meeting(3)
    partners = {0: (1, 2), 1: (0,), 2: (0,)}
    others: list[socket.socket] = []

    def rank(me: int) -> TcpNetwork:
        def exchange(mine: bytes) -> list[bytes]:
            place = msgspec.msgpack.decode(mine)
            others.extend(strangers((place["address"], place["port"])))
            return meeting.of(me)(mine)

        return connect(me, partners[me], "127.0.0.1", time.monotonic() + 30, exchange)

    ends = side_by_side(*(lambda me=me: rank(me) for me in range(3)))
    data = np.arange(3, dtype=np.uint8)
    for me in (1, 2):
        ends[me].send(address(data) + me, 1, 0, 7).wait(5)
        into = np.zeros(1, np.uint8)
        ends[0].receive(address(into), 1, me, 7).wait(5)
        assert into[0] == me
    for each in (*ends, *others):
        each.close()


def test_a_partner_that_does_not_come_is_named() -> None:
    meeting = Meeting(2)

    def comes() -> None:
        with pytest.raises(DeadlineError, match="rank 0 of another host did not connect by the deadline"):
            connect(1, (0,), "127.0.0.1", time.monotonic() + 0.3, meeting.of(1))

    def stays_away() -> None:
        assert connect(0, (), "127.0.0.1", time.monotonic() + 0.3, meeting.of(0)) is not None

    side_by_side(comes, stays_away)


def test_a_port_that_nobody_listens_at_is_named() -> None:
    def exchange(mine: bytes) -> list[bytes]:
        gone = msgspec.msgpack.encode({**msgspec.msgpack.decode(mine), "port": 1})
        return [mine, gone]

    with pytest.raises(CommunicationError, match=r"rank 0 could not connect to rank 1 at 127\.0\.0\.1, port 1: "):
        connect(0, (1,), "127.0.0.1", time.monotonic() + 5, exchange)
    with pytest.raises(CommunicationError, match=r"rank 0 cannot listen at 192\.0\.2\.1"):
        connect(0, (1,), "192.0.2.1", time.monotonic() + 5, exchange)
