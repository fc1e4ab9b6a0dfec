"""Programs between hosts on random hosts and sizes: an interface carries the least that a collective needs."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.spec import Collective
from blinkccl.engines.host_plan import Area
from blinkccl.runtime.hosts import Cost, Hosts, selected
from blinkccl.schedule.order import order_faults
from blinkccl.schedule.program import Program

AREA = Area()
#: Of a network as fast as two hosts on one machine have it, and of a slow one.
COSTS = [Cost(1e-5, 1e9), Cost(2e-4, 5e7)]
NAMES = st.lists(st.sampled_from("abcd"), min_size=2, max_size=9).filter(lambda names: len(set(names)) > 1)


def crossing(program: Program, hosts: Hosts) -> dict[tuple[int, str], Fraction]:
    """Bytes between hosts per byte of a block, by host and direction, counted from the Program's queues."""
    bytes_of: dict[tuple[int, str], Fraction] = {}
    for role in program.roles:
        part = program.slices[role.slice].stop - program.slices[role.slice].start
        for queue in role.sends:
            ends = program.queues[queue].src, program.queues[queue].dst
            src, dst = (hosts.host_of[rank] for rank in ends)
            for end in ((src, "out"), (dst, "in")) if src != dst else ():
                bytes_of[end] = bytes_of.get(end, Fraction(0)) + part
    return bytes_of


@pytest.mark.parametrize("cost", COSTS, ids=["fast", "slow"])
@given(names=NAMES)
def test_a_large_allreduce_carries_the_least_over_every_interface(cost: Cost, names: list[str]) -> None:
    hosts = Hosts.of(names)
    plan, chunk = selected(hosts, Collective("allreduce", len(names)), 1 << 28, cost, AREA, False)
    most = max(crossing(plan.program, hosts).values())
    count = len(hosts.members)
    assert most <= Fraction(2 * (count - 1), count) * Fraction(11, 10), plan.program.ranks
    assert 1 <= chunk <= AREA.staging_bytes


@pytest.mark.parametrize(("name", "into", "out_of"), [("broadcast", "in", "out"), ("reduce", "out", "in")])
@given(names=NAMES, root=st.integers(0, 8))
def test_every_host_is_entered_once_and_the_roots_never(
    name: str, into: str, out_of: str, names: list[str], root: int
) -> None:
    hosts = Hosts.of(names)
    collective = Collective(name, len(names), root=root % len(names))
    plan, _ = selected(hosts, collective, 1 << 28, COSTS[1], AREA, False)
    carried = crossing(plan.program, hosts)
    source = hosts.host_of[root % len(names)]
    entered = {host: part for (host, way), part in carried.items() if way == into}
    assert entered == {host: 1 for host in range(len(hosts.members)) if host != source}
    assert max(part for (_, way), part in carried.items() if way == out_of) == 1


@given(names=NAMES)
def test_a_few_bytes_take_one_message_after_another_at_most_twice(names: list[str]) -> None:
    hosts = Hosts.of(names)
    few, _ = selected(hosts, Collective("allreduce", len(names)), 8, COSTS[0], AREA, False)
    assert max(role.offset for role in few.program.roles) <= 2 * (len(names) - 1)
    many, _ = selected(hosts, Collective("allreduce", len(names)), 1 << 28, COSTS[0], AREA, False)
    assert max(crossing(many.program, hosts).values()) <= max(crossing(few.program, hosts).values())


@given(names=NAMES, nbytes=st.sampled_from([8, 1 << 16, 1 << 26]))
def test_in_one_order_every_size_sums_by_rank(names: list[str], nbytes: int) -> None:
    hosts, size = Hosts.of(names), len(names)
    for name in ("allreduce", "reduce_scatter"):
        plan, _ = selected(hosts, Collective(name, size), nbytes, COSTS[0], AREA, True)
        assert not order_faults(plan.program, "+".join(map(str, range(size))))


def test_a_rank_is_busy_with_all_its_messages() -> None:
    """Rank 3 of 3 + 1 sends 3 messages and receives 3, each half of their time; ranks 0-2 have 4 such ends inside."""
    hosts = Hosts.of("aaab")
    star, _ = selected(hosts, Collective("allreduce", 4), 8, Cost(1e-6, 1e9), AREA, True)
    assert Cost(1e-3, 1e15).seconds(star.program, hosts, 8) == pytest.approx(3e-3 + 2e-6)


@pytest.mark.parametrize(("names", "most"), [("ab", 2), ("aabb", 4), ("aaab", 2), ("aaaabbbb", 4)])
def test_of_plans_as_fast_small_sizes_take_the_one_with_the_fewest_messages(names: str, most: int) -> None:
    hosts = Hosts.of(names)
    plan, _ = selected(hosts, Collective("allreduce", len(names)), 4096, COSTS[0], AREA, False)
    queues = [plan.program.queues[queue] for role in plan.program.roles for queue in role.sends]
    assert sum(hosts.host_of[queue.src] != hosts.host_of[queue.dst] for queue in queues) == most
