"""Collectives over several hosts, played on numbers: every plan for any hosts moves what the collective's items say."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.runtime import hierarchy
from blinkccl.runtime.hierarchy import Hosts, NetworkCost, Transfer
from support.examples import examples

ITEM = 8


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Hosts, Collective]:
    names = draw(st.lists(st.integers(0, 3), min_size=2, max_size=7).filter(lambda each: len(set(each)) > 1))
    size = len(names)
    name = draw(st.sampled_from(list(COLLECTIVES)))
    ends = draw(st.permutations(range(size)))
    values = {"root": ends[0], "src": ends[0], "dst": ends[1]}
    return Hosts.of(names), Collective(name, size, **{key: values[key] for key in COLLECTIVES[name].parameters})


def play(hosts: Hosts, collective: Collective, inputs: list, count: int, cost: NetworkCost) -> list:
    """What all ranks get; whatever is sent is received, once, as it was sent."""
    plans = [hierarchy.plan(hosts, collective, rank, count, ITEM, cost) for rank in range(hosts.size)]
    outputs = [
        np.zeros(blocks * count, np.int64) if (blocks := collective.output_blocks(rank)) else None
        for rank in range(hosts.size)
    ]
    chunk = plans[0].chunk
    assert {plan.chunk for plan in plans} == {chunk}
    for first in range(0, count, chunk):
        n = min(chunk, count - first)
        assert hierarchy.window_blocks(collective) * n * ITEM <= hierarchy.WINDOW_BYTES
        windows = [np.full(hierarchy.window_blocks(collective) * n, -77, np.int64) for _ in hosts.members]
        _give(hosts, collective, inputs, windows, first, n, count)
        for stage in range(len(plans[0].rounds[n])):
            _exchange(hosts, windows, [plan.rounds[n][stage] for plan in plans])
        for rank, plan in enumerate(plans):
            for place, block in plan.out:
                part = windows[hosts.host_of[rank]][place * n : (place + 1) * n]
                outputs[rank][block * count + first : block * count + first + n] = part
    return outputs


def _give(hosts, collective, inputs, windows, first, n, count) -> None:
    for h, members in enumerate(hosts.members):
        for item in collective.items():
            at = hierarchy.window_block(hosts, item.block) * n
            given = [
                inputs[rank][index * count + first : index * count + first + n]
                for rank, index in item.contributions
                if rank in members
            ]
            if given:
                windows[h][at : at + n] = sum(given)


def _exchange(hosts, windows, rounds) -> None:
    """All ranks' parts of one round."""
    sent = {}
    for rank, todo in enumerate(rounds):
        window = windows[hosts.host_of[rank]]
        for piece in todo.sends:
            assert piece.giver == rank
            assert (rank, piece.taker) not in sent, "a message's tag says its round: one per pair"
            assert piece.taker in hierarchy.partners(hosts, rank)
            sent[rank, piece.taker] = (piece, window[piece.start : piece.stop].copy())
    for rank, todo in enumerate(rounds):
        window = windows[hosts.host_of[rank]]
        for piece in todo.receives:
            same, data = sent.pop((piece.giver, rank))
            assert same == piece
            window[piece.start : piece.stop] = data
        if todo.fold is not None:
            for _, pieces in todo.fold.parts:
                assert [piece.start for piece in pieces] == [todo.fold.start, *(piece.stop for piece in pieces[:-1])]
                assert pieces[-1].stop == todo.fold.stop
                for piece in pieces:
                    same, data = sent.pop((piece.giver, rank))
                    assert same == piece
                    window[piece.start : piece.stop] += data
    assert not sent


@examples(150)
@given(
    jobs(),
    st.one_of(st.integers(1, 40), st.sampled_from([1000, 30_011, 100_003])),
    st.sampled_from([NetworkCost(1e-4, 5e7), NetworkCost(0.0, 1e6), NetworkCost(10.0, 1e9)]),
)
def test_every_plan_does_what_the_collective_means(
    job: tuple[Hosts, Collective], count: int, cost: NetworkCost
) -> None:
    hosts, collective = job
    if collective.name == "alltoall":
        count = min(count, 3000)
    inputs = make_inputs(collective, count, "int64")
    assert mismatch(play(hosts, collective, inputs, count, cost), oracle(collective, inputs), count) is None


@pytest.mark.parametrize("sizes", [(3, 5), (4, 4), (1, 7), (2, 3, 4), (1, 1, 1, 1)])
def test_every_rank_has_its_share_and_no_interface_more_than_the_bound(sizes: tuple[int, ...]) -> None:
    hosts = Hosts.of([h for h, size in enumerate(sizes) for _ in range(size)])
    count, h = 1 << 20, len(sizes)
    out, carried, per_host = Counter(), Counter(), Counter()
    plans = [
        hierarchy.plan(hosts, Collective("allreduce", hosts.size), rank, count, 4, NetworkCost(1e-4, 5e7))
        for rank in range(hosts.size)
    ]
    chunk = plans[0].chunk
    for rank, plan in enumerate(plans):
        for one in plan.rounds[chunk]:
            for piece in one.sends:
                out[rank] += piece.stop - piece.start
                per_host["out", hosts.host_of[rank]] += piece.stop - piece.start
                per_host["in", hosts.host_of[piece.taker]] += piece.stop - piece.start
                carried[rank, piece.taker] += 1
    assert max(per_host.values()) <= 2 * (h - 1) / h * chunk + 2 * h
    for members in hosts.members:
        shares = [out[rank] for rank in members]
        assert max(shares) - min(shares) <= 2 * h, shares
    for a in range(h):
        for b in range(a):
            joined = {frozenset(pair) for pair in carried if {hosts.host_of[rank] for rank in pair} == {a, b}}
            assert len(joined) <= sizes[a] + sizes[b] - 1


def test_few_bytes_go_by_one_rank_and_one_round() -> None:
    hosts = Hosts.of("aaabbbcc")
    plans = [
        hierarchy.plan(hosts, Collective("allreduce", 8), rank, 64, 4, NetworkCost(1e-4, 1e8)) for rank in range(8)
    ]
    assert [[len(one.sends) for one in plan.rounds[64]] for plan in plans] == [[2], [0], [0], [2], [0], [0], [2], [0]]


@examples(60)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(1, 150_000), st.sampled_from([1, 4, 8, 16]))
@example([1, 1], 4 * 32767, 4)
@example([1, 1], 4 * 32767 + 1, 4)
def test_what_goes_by_first_ranks_concerns_no_others(sizes: list[int], count: int, itemsize: int) -> None:
    hosts = Hosts.of([h for h, size in enumerate(sizes) for _ in range(size)])
    plans = [
        hierarchy.plan(hosts, Collective("allreduce", hosts.size), rank, count, itemsize, NetworkCost(1e-4, 1e8))
        for rank in range(hosts.size)
    ]
    assert len({(plan.by_first, plan.chunk) for plan in plans}) == 1
    assert plans[0].by_first == (count * itemsize <= hierarchy.FIRST_CHUNKS * (hierarchy.SHARED_FROM - itemsize))
    if not plans[0].by_first:
        return
    assert -(-count // plans[0].chunk) <= hierarchy.FIRST_CHUNKS
    firsts = {members[0] for members in hosts.members}
    for rank, plan in enumerate(plans):
        for rounds in plan.rounds.values():
            pieces = [piece for one in rounds for piece in (*one.sends, *one.receives)]
            assert {end for piece in pieces for end in (piece.giver, piece.taker)} <= firsts
            assert rank in firsts or not (pieces or any(one.fold for one in rounds))


def test_hosts_are_in_the_order_of_their_first_ranks() -> None:
    hosts = Hosts.of(["x", "a", "x", "b", "a"])
    assert hosts.members == ((0, 2), (1, 4), (3,))
    assert hosts.host_of == (0, 1, 0, 2, 1)
    assert [hosts.position(rank) for rank in range(5)] == [0, 2, 1, 4, 3]
    whole = Transfer(0, 1, 0, 1 << 20)
    assert [(p.giver, p.taker) for p in hierarchy.pieces(hosts, whole, 1)] == [(0, 1), (2, 4)]
