"""Blink's microbenchmarks (MLSys 2020, §2.2 and appendix A.1): published numbers, ours, with one set of constants."""

from __future__ import annotations

from functools import cache
from statistics import mean

import pytest

from blinkccl.errors import UsageError
from blinkccl.paper.traffic import CALIBRATION, PATTERNS, Pattern, measure, pattern, throughput_gb_per_s
from blinkccl.schedule.verifier import violations
from blinkccl.simulate.calibration import calibration
from blinkccl.simulate.run import simulate

MB = 10**6
WITHIN = 0.08
DEGREES = (1, 2, 3)
EVERY = [(name, breadth) for name, row in PATTERNS.items() for breadth in row.breadths]


@cache
def gb_per_s(name: str, breadth: int, megabytes: int) -> float:
    return throughput_gb_per_s(pattern(name, breadth), megabytes * MB)


@pytest.mark.parametrize(
    ("figure", "name", "breadth", "megabytes", "published"),
    [
        ("7", "chain-reduce-forward", 3, 1000, 21.0),
        ("7", "chain-reduce-forward", 8, 1000, 19.0),
        *(("8", name, 0, megabytes, 18.0) for name in ("mimo", "mca") for megabytes in (50, 100, 500, 1000)),
        ("24", "chain-forward", 3, 1000, 22.0),
        ("24", "chain-forward", 8, 1000, 20.0),
        ("24", "chain-reduce-broadcast", 3, 1000, 19.0),
        ("24", "chain-reduce-broadcast", 8, 1000, 16.0),
    ],
)
def test_numbers_of_the_text(figure: str, name: str, breadth: int, megabytes: int, published: float) -> None:
    assert gb_per_s(name, breadth, megabytes) == pytest.approx(published, rel=WITHIN), f"Fig {figure}"


#: §2.2: 18 GB/s is "around 15 % lower than maximum throughput on NVLink Gen2".
MAXIMUM = 18.0 / 0.85


@pytest.mark.parametrize("name", ["fan-in-forward", "fan-out-forward"])
@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("megabytes", [100, 500, 1000])
def test_fans_forward_near_the_maximum(name: str, degree: int, megabytes: int) -> None:
    assert gb_per_s(name, degree, megabytes) == pytest.approx(MAXIMUM, rel=WITHIN)


@pytest.mark.parametrize("megabytes", [100, 500, 1000])
def test_a_fan_in_that_reduces_is_a_little_slower(megabytes: int) -> None:
    forward = mean(gb_per_s("fan-in-forward", degree, megabytes) for degree in DEGREES)
    reduced = mean(gb_per_s("fan-in-reduce-forward", degree, megabytes) for degree in DEGREES)
    assert reduced == pytest.approx(forward - 1.5, rel=WITHIN)
    assert reduced < forward - 1.0


@pytest.mark.parametrize("name", ["chain-forward", "chain-reduce-forward", "chain-reduce-broadcast"])
@pytest.mark.parametrize("megabytes", [10, 1000])
def test_longer_chains_are_slower(name: str, megabytes: int) -> None:
    found = [gb_per_s(name, gpus, megabytes) for gpus in PATTERNS[name].breadths]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] + 0.5


@pytest.mark.parametrize(("name", "breadth"), EVERY)
def test_smaller_data_is_slower(name: str, breadth: int) -> None:
    found = [gb_per_s(name, breadth, megabytes) for megabytes in (1, 10, 100, 1000)]
    assert found == sorted(found)
    assert found[0] < 0.75 * found[-1]


@pytest.mark.parametrize(("name", "breadth"), EVERY)
def test_no_link_is_faster_than_its_calibration(name: str, breadth: int) -> None:
    traffic = pattern(name, breadth)
    assert {(link.kind, link.gb_per_s, link.capacity) for link in traffic.network.links} == {("nvlink", 25.0, 1)}
    assert gb_per_s(name, breadth, 1000) < calibration(CALIBRATION).link[0].gb_per_s.value


def bytes_over_links(traffic: Pattern, size_bytes: int) -> dict[tuple[int, int], float]:
    whole = size_bytes * traffic.program.collective.total_blocks()
    timed = simulate(traffic.program, traffic.network, calibration(CALIBRATION), whole, chunk_bytes=MB)
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


def adders(traffic: Pattern) -> dict[int, int]:
    """How many messages and data of its own each GPU's executions combine, where that is more than one."""
    counts = {role.rank: len(role.receives) + role.contributes for role in traffic.program.roles}
    return {rank: count for rank, count in sorted(counts.items()) if count > 1}


def test_who_reduces_what() -> None:
    assert adders(pattern("chain-forward", 4)) == {}
    assert adders(pattern("chain-reduce-forward", 4)) == {1: 2, 2: 2}
    assert adders(pattern("mimo")) == {2: 2}
    assert sum(role.rank == 2 for role in pattern("mimo").program.roles) == 2
    assert adders(pattern("mca")) == {1: 2, 2: 3, 3: 2}
    assert adders(pattern("fan-in-forward", 3)) == {}
    assert adders(pattern("fan-in-reduce-forward", 3)) == {3: 4}
    assert adders(pattern("fan-out-forward", 3)) == {}


@pytest.mark.parametrize(
    ("name", "breadth"),
    [("chain-forward", 4), ("chain-reduce-broadcast", 4), ("mca", 0), ("fan-out-forward", 3)],
)
def test_patterns_that_are_collectives_are_valid(name: str, breadth: int) -> None:
    traffic = pattern(name, breadth)
    assert violations(traffic.program, traffic.network) == []


def test_measuring_twice_gives_the_same() -> None:
    assert measure(pattern("mimo"), 10 * MB) == measure(pattern("mimo"), 10 * MB)


def test_nothing_moves_nothing() -> None:
    assert throughput_gb_per_s(pattern("chain-forward", 3), 0) == 0.0


@pytest.mark.parametrize(
    ("name", "breadth", "message"),
    [
        ("chain", 3, "unknown pattern 'chain'; expected one of chain-forward"),
        ("chain-forward", 9, "comes with 3, 4, 5, 6, 7 or 8 GPUs, got 9"),
        ("fan-in-forward", 4, "comes with 1, 2 or 3 sources, got 4"),
        ("mimo", 2, "comes with no breadth, got 2"),
    ],
)
def test_patterns_that_there_are_not(name: str, breadth: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pattern(name, breadth)
