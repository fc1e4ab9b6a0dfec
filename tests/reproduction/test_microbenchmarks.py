"""Shapes of Blink's traffic patterns (MLSys 2020, §2.2 and appendix A.1). Their published numbers are B6 to B9."""

from functools import cache

import pytest

from blinkccl.cost.simulate.calibration import calibration
from blinkccl.cost.simulate.run import simulate
from blinkccl.schedule.verifier import violations
from reproduction.traffic import CALIBRATION, PATTERNS, Built, measure, pattern

MB = 10**6
EVERY = [(name, breadth) for name, (_, breadths) in PATTERNS.items() for breadth in breadths]


@cache
def gb_per_s(name: str, breadth: int, megabytes: int) -> float:
    return measure(pattern(name, breadth), megabytes * MB, calibration(CALIBRATION)).gb_per_s


@pytest.mark.parametrize("name", ["chain-forward", "chain-reduce-forward", "chain-reduce-broadcast"])
@pytest.mark.parametrize("megabytes", [10, 1000])
def test_longer_chains_are_slower(name: str, megabytes: int) -> None:
    rates = [gb_per_s(name, gpus, megabytes) for gpus in PATTERNS[name][1]]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[-1] + 0.5


@pytest.mark.parametrize(("name", "breadth"), EVERY)
def test_smaller_data_is_slower(name: str, breadth: int) -> None:
    rates = [gb_per_s(name, breadth, megabytes) for megabytes in (1, 10, 100, 1000)]
    assert rates == sorted(rates)
    assert rates[0] < 0.75 * rates[-1]


@pytest.mark.parametrize(("name", "breadth"), EVERY)
def test_no_link_is_faster_than_its_calibration(name: str, breadth: int) -> None:
    network, _ = pattern(name, breadth)
    assert {(link.kind, link.gb_per_s, link.capacity) for link in network.links} == {("nvlink", 25.0, 1)}
    assert gb_per_s(name, breadth, 1000) < calibration(CALIBRATION).link[0].gb_per_s.value


def bytes_over_links(traffic: Built, size_bytes: int) -> dict[tuple[int, int], float]:
    network, program = traffic
    whole = size_bytes * program.collective.total_blocks()
    timed = simulate(program, network, calibration(CALIBRATION), whole, chunk_bytes=MB)
    translation = timed.translation
    return dict(zip(translation.links, translation.workload.link_bytes.tolist(), strict=True))


def test_what_crosses_which_link() -> None:
    size = 8 * MB
    chain = {(0, 1): size, (1, 2): size, (2, 3): size}
    assert bytes_over_links(pattern("chain-forward", 4), size) == chain
    assert bytes_over_links(pattern("chain-reduce-forward", 4), size) == chain
    back = {(b, a): size for a, b in chain}
    assert bytes_over_links(pattern("chain-reduce-broadcast", 4), size) == chain | back
    assert bytes_over_links(pattern("mimo"), size) == dict.fromkeys([(0, 2), (1, 2), (2, 3), (2, 4)], size)
    assert bytes_over_links(pattern("mca"), size) == dict.fromkeys([(0, 1), (1, 2), (3, 2), (4, 3)], size)
    inward = dict.fromkeys([(0, 2), (1, 2)], size)
    assert bytes_over_links(pattern("fan-in-forward", 2), size) == inward | {(2, 3): 2 * size}
    assert bytes_over_links(pattern("fan-in-reduce-forward", 2), size) == inward | {(2, 3): size}
    assert bytes_over_links(pattern("fan-out-forward", 2), size) == dict.fromkeys([(3, 2), (2, 0), (2, 1)], size)


def adders(traffic: Built) -> dict[int, int]:
    """Number of messages and own data that each GPU's executions reduce, if it is more than one."""
    counts = {role.rank: len(role.receives) + role.contributes for role in traffic[1].roles}
    return {rank: count for rank, count in sorted(counts.items()) if count > 1}


def test_who_reduces_what() -> None:
    assert adders(pattern("chain-forward", 4)) == {}
    assert adders(pattern("chain-reduce-forward", 4)) == {1: 2, 2: 2}
    assert adders(pattern("mimo")) == {2: 2}
    assert sum(role.rank == 2 for role in pattern("mimo")[1].roles) == 2
    assert adders(pattern("mca")) == {1: 2, 2: 3, 3: 2}
    assert adders(pattern("fan-in-forward", 3)) == {}
    assert adders(pattern("fan-in-reduce-forward", 3)) == {3: 4}
    assert adders(pattern("fan-out-forward", 3)) == {}


@pytest.mark.parametrize(
    ("name", "breadth"),
    [("chain-forward", 4), ("chain-reduce-broadcast", 4), ("mca", 0), ("fan-out-forward", 3)],
)
def test_patterns_that_are_collectives_are_valid(name: str, breadth: int) -> None:
    network, program = pattern(name, breadth)
    assert violations(program, network) == []


def test_nothing_moves_nothing() -> None:
    assert gb_per_s("chain-forward", 3, 0) == 0.0
