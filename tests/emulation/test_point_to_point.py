"""Messages between two ranks: tags, sources, order, sizes, both directions at once, concurrent collectives."""

import random
from typing import Any

import numpy as np
import pytest
from job import PATIENT_S, Ran

from blinkccl.errors import UsageError
from blinkccl.runtime.communicator import Communicator

#: Bytes: none, few, a full ring and its neighbours, many rings.
SIZES = (0, 1, 100, 65_519, 65_520, 65_536, 65_537, 1_000_003)


def content(source: int, destination: int, number: int, size: int) -> Any:
    return np.random.default_rng([source, destination, number]).integers(0, 256, size, np.uint8)


def test_messages_of_all_sizes_in_any_order_of_tags(ran: Ran) -> None:
    """Rank 0 sends by rising tags, rank 1 receives in a random order; each tag has its own size."""
    assert ran(2, tags_out_of_order) == [None, True]


def tags_out_of_order(comm: Communicator) -> bool | None:
    if comm.rank == 0:
        futures = [comm.send(content(0, 1, tag, size), 1, tag, wait=False) for tag, size in enumerate(SIZES)]
        for future in futures:
            assert future.result(PATIENT_S) is None
        return None
    order = list(enumerate(SIZES))
    random.Random(3).shuffle(order)
    for tag, size in order:
        array = np.zeros(size, np.uint8)
        assert comm.recv(array, 0, tag) == 0
        assert (array == content(0, 1, tag, size)).all(), tag
    return True


def test_receives_posted_before_and_after_their_messages(ran: Ran) -> None:
    assert ran(3, exchanges, 7) == [120] * 3


def exchanges(comm: Communicator, seed: int) -> int:
    """Every rank sends every other the same number of messages of random sizes, all at once, mixed with receives."""
    plan = random.Random(seed)
    peers = [rank for rank in range(comm.size) if rank != comm.rank]
    messages = {
        (source, destination): [plan.choice(SIZES[:-1]) for _ in range(30)]
        for source in range(comm.size)
        for destination in range(comm.size)
        if source != destination
    }
    own = random.Random(seed + comm.rank)
    steps = [(peer, number, kind) for peer in peers for number in range(30) for kind in ("send", "receive")]
    # FIFO per peer and tag: numbers rise per peer and kind, otherwise in a random order.
    lanes = {(peer, kind): [s for s in steps if s[0] == peer and s[2] == kind] for peer in peers
             for kind in ("send", "receive")}  # fmt: skip
    futures = []
    while lanes:
        lane = own.choice(sorted(lanes))
        peer, number, kind = lanes[lane].pop(0)
        if not lanes[lane]:
            del lanes[lane]
        if kind == "send":
            array = content(comm.rank, peer, number, messages[comm.rank, peer][number])
            futures.append((comm.send(array, peer, tag=4, wait=False), None, array))
        else:
            array = np.zeros(messages[peer, comm.rank][number], np.uint8)
            expected = content(peer, comm.rank, number, array.size)
            futures.append((comm.recv(array, peer, tag=4, wait=False), expected, array))
    for future, expected, array in futures:
        future.result(PATIENT_S)
        assert expected is None or (array == expected).all()
    stats = comm.stats()
    assert stats["sends"] == stats["receives"] == 60
    return len(futures)


def test_from_any_source(ran: Ran) -> None:
    first, *others = ran(4, from_anybody)
    assert sorted(first) == sorted([1, 2, 3] * 20)
    assert others == [[], [], []]


def from_anybody(comm: Communicator) -> list[int]:
    """The reported source is the sender; messages with other tags wait."""
    if comm.rank:
        for number in range(20):
            comm.send(np.array([comm.rank, number]), 0, tag=number % 2)
        return []
    sources = []
    numbers: dict[tuple[int, int], list[int]] = {}
    for index in range(60):
        array = np.zeros(2, int)
        source = comm.recv(array, tag=index % 2)
        assert source == array[0]
        numbers.setdefault((source, index % 2), []).append(int(array[1]))
        sources.append(source)
    for (_, tag), received in numbers.items():
        assert received == list(range(tag, 20, 2)), "order of one source and tag"
    return sources


def test_both_directions_at_once_beside_collectives(ran: Ran) -> None:
    assert ran(2, both_ways) == [50, 50]


def both_ways(comm: Communicator) -> int:
    peer = 1 - comm.rank
    big = np.full(300_000, comm.rank, np.int32)
    for turn in range(50):
        got = np.empty_like(big)
        receipt = comm.recv(got, peer, wait=False)
        sent = comm.send(big, peer, wait=False)
        total = comm.allreduce(np.full(5000, turn))
        assert (total == 2 * turn).all()
        assert receipt.result(PATIENT_S) == peer
        sent.result(PATIENT_S)
        assert (got == peer).all()
    return 50


def test_too_small_a_buffer_is_the_receivers_error_alone(ran: Ran) -> None:
    ran(2, too_small)


def too_small(comm: Communicator) -> None:
    """For a receive that waits for the message, for a later one, and for a message that was set aside."""
    array = np.arange(200_000) % 251
    bytes_ = array.astype(np.uint8)
    for turn in range(3):
        if comm.rank == 0:
            comm.send(bytes_, 1, tag=2)
            comm.send(np.array([turn]), 1, tag=3)
        else:
            marker = np.zeros(1, int)
            if turn == 2:
                comm.recv(marker, 0, tag=3)  # overtakes the other, which is set aside
            with pytest.raises(UsageError, match="rank 1 has room for 5 bytes, but rank 0 sent 200000 with tag 2"):
                comm.recv(np.zeros(5, np.uint8), 0, tag=2)
            if turn != 2:
                comm.recv(marker, 0, tag=3)
            assert marker[0] == turn
    comm.barrier()


def test_a_larger_buffer_gets_only_the_sent_bytes(ran: Ran) -> None:
    assert ran(2, larger_buffer) == [None, [1, 1, 1, 9, 9]]


def larger_buffer(comm: Communicator) -> list[int] | None:
    if comm.rank == 0:
        comm.send(np.ones(3, np.uint8), 1)
        return None
    array = np.full(5, 9, np.uint8)
    comm.recv(array, 0)
    return [int(value) for value in array]


def test_messages_sent_before_leaving_arrive(ran: Ran) -> None:
    assert ran(2, sends_and_leaves) == [None, [0, 1, 2]]


def sends_and_leaves(comm: Communicator) -> list[int] | None:
    if comm.rank == 0:
        for number in range(3):
            comm.send(np.array([number]), 1)
        return None
    comm.recv(np.zeros(0), 0, tag=99, wait=False)  # a receive that waits for other messages
    values = []
    for _ in range(3):
        array = np.zeros(1, int)
        comm.recv(array, 0)
        values.append(int(array[0]))
    return values
