"""One message over several paths: the paths, and the split of the message."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.spec import Collective
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.topology.catalog import CATALOG, machine
from blinkccl.trees.algorithms.multi_path import (
    FINEST,
    PathCost,
    direct_path,
    forest_of,
    inside_sockets,
    on_one_path,
    plan,
    portions,
    water_filling,
    ways,
)
from blinkccl.trees.algorithms.path_table import Part, Split
from reproduction.jobs import wrong_elements
from support.examples import examples
from support.planned import asked, assert_sound, planned


@pytest.mark.parametrize("spec", [name for name in CATALOG if len(machine(name).ranks) > 1])
@pytest.mark.parametrize("gpus", ["0,1", "0,2", None])
def test_every_message_reaches_the_bound_of_all_links(spec: str, gpus: str | None) -> None:
    """The independent checker sums the links' loads again, with GPUs outside the job as relays and without."""
    forest = planned("multi_path", asked(spec, "sendrecv", gpus))
    assert forest.optimal
    assert max(load for load in portions(forest).values()) <= 1


def test_the_paths_of_a_pair_with_spare_links() -> None:
    """Cedar has a direct path, paths through the two idle GPUs, and a path through the host."""
    paths = ways(plan(asked("cedar", "sendrecv", "0,1")))
    assert [(way.path, way.legs) for way in paths] == [((0, 1), 1), ((0, 2, 1), 2), ((0, 3, 1), 2), ((0, 4, 1), 2)]
    inside = ways(plan(asked("cedar", "sendrecv")))
    assert [way.path for way in inside] == [way.path for way in paths]
    assert [way.weight * 81 for way in paths] == [25, 25, 25, 6]


@pytest.mark.parametrize(
    ("spec", "gpus", "path"),
    [
        ("mist", "0,1", (0, 1)),
        ("mist", "0,2", (0, 4, 5, 2)),
        ("dgx-a100", "0,1", (0, 8, 1)),
        ("pcie-4gpu-nvlink-pairs", "0,3", (0, 4, 8, 9, 7, 3)),  # the flow goes by GPU 2
        ("dgx-1v", "0,7", (0, 8, 12, 13, 17, 7)),  # by PCIe, though two GPUs have NVLink to both
        ("ring:6", "0,2", (0, 1, 2)),
    ],
)
def test_the_direct_path(spec: str, gpus: str, path: tuple[int, ...]) -> None:
    assert direct_path(plan(asked(spec, "sendrecv", gpus))) == path


def test_links_pcie_uses_pcie_alone() -> None:
    for links in ("pcie", "staged"):
        forest = planned("multi_path", asked("cedar", "sendrecv", "0,1", links=links))
        assert {link.kind for link in forest.topology.links} == {"pcie"}


def test_only_messages_are_split() -> None:
    with pytest.raises(UnsupportedError, match="does not support allreduce"):
        plan(asked("mist"))


PATHS = ((0, 1), (0, 2, 1), (0, 3, 1), (0, 4, 1))


@given(
    st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any),
    st.lists(st.integers(1, 8), min_size=4, max_size=4),
)
@examples(20)
def test_any_split_is_a_sound_plan(weights: list[int], streams: list[int]) -> None:
    """Each split on the links of a flow is a feasible plan, at the rate of its fullest link."""
    flow = plan(asked("cedar", "sendrecv", "0,1"))
    rows = [(path, w, n) for path, w, n in zip(PATHS, weights, streams, strict=True) if w]
    parts = tuple(Part(path, Fraction(w, sum(weights)), n) for path, w, n in rows)
    forest = forest_of(flow, Split(parts=parts))
    assert_sound(forest)
    assert len(forest.shares) == sum(n for _, _, n in rows)
    assert len({share.slice for share in forest.shares}) == len(forest.shares)


def test_other_ranks_pass_a_message_on_as_vertices_of_its_tree() -> None:
    flow = plan(asked("cedar", "sendrecv"))
    (share,) = forest_of(flow, on_one_path((0, 2, 1))).shares
    assert share.broadcast is not None
    assert share.broadcast.edges == ((0, 2), (2, 1))


@pytest.mark.parametrize(
    ("path", "message"),
    [((0, 2), "expected from 0 to 1"), ((0, 5, 1), "cedar has no link 0 → 5"), ((0, 99, 1), "0 → 99")],
)
def test_a_split_for_other_links_is_refused(path: tuple[int, ...], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        forest_of(plan(asked("cedar", "sendrecv", "0,1")), on_one_path(path))


def test_ends_are_those_of_the_collective() -> None:
    request = asked("cedar", "sendrecv")
    back = replace(request, collective=Collective("sendrecv", 4, src=3, dst=0))
    assert ways(plan(back))[0].path == (3, 0)
    with pytest.raises(UnsupportedError, match="expected from 3 to 0"):
        forest_of(plan(back), on_one_path((0, 3)))


COSTS = st.lists(
    st.builds(PathCost, st.integers(0, 100).map(float), st.integers(1, 50).map(float)), min_size=1, max_size=5
)


def ends(size: int, costs: list[PathCost], parts: tuple[Fraction, ...]) -> Fraction:
    """The time at which the last path with data ends."""
    return max(
        Fraction(cost.start_s) + part * size / Fraction(cost.bytes_per_s)
        for cost, part in zip(costs, parts, strict=True)
        if part
    )


@given(st.integers(1, 10_000), COSTS)
@examples(100)
def test_water_filling_against_every_choice_of_paths(size: int, costs: list[PathCost]) -> None:
    """No other set of paths that end together is faster; each part is rounded by less than 1/FINEST."""
    best = min(
        (size + sum(Fraction(c.start_s) * Fraction(c.bytes_per_s) for c in some))
        / sum(Fraction(c.bytes_per_s) for c in some)
        for many in range(1, len(costs) + 1)
        for some in combinations(costs, many)
        if all(
            (size + sum(Fraction(c.start_s) * Fraction(c.bytes_per_s) for c in some))
            / sum(Fraction(c.bytes_per_s) for c in some)
            >= Fraction(c.start_s)
            for c in some
        )
    )
    parts = water_filling(size, costs)
    slack = Fraction(size * len(costs), FINEST) / min(Fraction(c.bytes_per_s) for c in costs)
    assert sum(parts) == 1
    assert min(parts) >= 0
    assert best <= ends(size, costs, parts) <= best + slack
    assert all(part == 0 for part, cost in zip(parts, costs, strict=True) if Fraction(cost.start_s) >= best)


def test_a_path_with_too_long_a_start_gets_no_data() -> None:
    costs = [PathCost(6e-6, 50e9), PathCost(18e-6, 50e9)]
    assert water_filling(64 << 10, costs) == (1, 0)
    assert water_filling(1 << 30, costs)[1] > Fraction(499, 1000)
    assert water_filling(0, costs) == (1, 0)
    for size, paths in ((-1, costs), (1, []), (1, [PathCost(0.0, 0.0)]), (1, [PathCost(-1.0, 1.0)])):
        with pytest.raises(UsageError):
            water_filling(size, paths)


@pytest.mark.parametrize(("spec", "host_part"), [("mist", Fraction(1, 2)), ("cedar", Fraction(12, 62))])
@pytest.mark.parametrize("algorithm", ["three_stage", "flat"])
def test_copies_inside_sockets_go_over_both_paths(spec: str, host_part: Fraction, algorithm: str) -> None:
    """GPUs of a socket use the direct path and the host, sockets the planned path, and the rate is not lower."""
    alone, forest = planned(algorithm, asked(spec)), inside_sockets(asked(spec), algorithm)
    assert_sound(forest)
    assert wrong_elements(forest, 1000) == 0
    assert forest.rate * forest.topology.unit_gb_per_s == alone.rate * alone.topology.unit_gb_per_s
    assert len(forest.shares) == 2 * len(alone.shares)
    for direct, staged in zip(forest.shares[::2], forest.shares[1::2], strict=True):
        assert staged.weight == host_part * (direct.weight + staged.weight)
        for one, other in zip(direct.trees(), staged.trees(), strict=True):
            for path, by_host in zip(one.edges, other.edges, strict=True):
                inside = path[0] // 2 == path[-1] // 2
                assert by_host == ((path[0], 4 + path[0] // 2, path[-1]) if inside else path)


def test_the_part_through_the_host_can_be_set() -> None:
    forest = inside_sockets(asked("cedar"), "flat", Fraction(1, 10))
    assert_sound(forest)
    assert forest.shares[1].weight == Fraction(1, 40)


@pytest.mark.parametrize(
    ("algorithm", "spec", "message"),
    [
        ("flat", "pcie-8gpu", "need two GPUs of a socket"),
        ("flat", "clique:4", "use --algo flat"),
        ("three_stage", "clique:4", "clique:4 has no host processors"),
    ],
)
def test_gpus_without_both_a_link_and_a_host_are_refused(algorithm: str, spec: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        inside_sockets(asked(spec), algorithm)


def test_copies_inside_sockets_of_several_servers() -> None:
    forest = inside_sockets(asked("2x mist @ 100Gbps"), "three_stage")
    assert_sound(forest)
    assert forest.algbw_gb_per_s == pytest.approx(12.5)
    assert len(forest.shares) == 8
