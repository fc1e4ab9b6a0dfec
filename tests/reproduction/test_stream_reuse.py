"""Two trees on one link: the cost of unfair sharing, and the gain by reused streams (Blink, MLSys 2020, §4.2.2)."""

import pytest

from blinkccl.cost.simulate.calibration import calibration
from blinkccl.cost.simulate.chunk_search import near_best
from blinkccl.cost.simulate.run import Simulation, simulate
from blinkccl.cost.simulate.translate import Settings, frame
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.catalog import connected_allocations
from blinkccl.topology.model import Topology
from support.planned import broadcast_by_hand
from support.timed import lowered

COSTS = calibration("v100-copy-engine")
MB = 10**6
CHUNK = 4 * MB
FAIR, UNFAIR = Settings(sharing="fair"), Settings(sharing="unfair")
UNFAIR_REUSED, FAIR_REUSED = Settings("unfair", "reused"), Settings("fair", "reused")


def figure_13(lanes: dict[tuple[int, int], int]) -> tuple[Program, Topology]:
    """GPU1 sends half of the data by 1 → 2 → 3 → 4, half by 1 → 2 → 4 → 3 (here 0 to 3)."""
    box = Assembly("Fig 13", "synthetic")
    box.add_many("gpu", 4, "GPU")
    for (src, dst), count in lanes.items():
        box.arc(src, dst, 25 * count, "nvlink")
    network = box.finish()
    return lower(broadcast_by_hand(network, ((0, 1), (1, 2), (2, 3)), ((0, 1), (1, 3), (3, 2)))), network


EQUAL = {(0, 1): 1, (1, 2): 1, (2, 3): 1, (1, 3): 1, (3, 2): 1}
#: The first tree's own links could fill the whole first hop, the second tree's only its half.
WIDE_AND_NARROW = {(0, 1): 2, (1, 2): 2, (2, 3): 2, (1, 3): 1, (3, 2): 1}


def timed(job: tuple[Program, Topology], settings: Settings, size_bytes: int = 200 * MB) -> Simulation:
    return simulate(*job, COSTS, size_bytes, chunk_bytes=CHUNK, settings=settings)


def tree_seconds(run: Simulation, share: int) -> float:
    """Time at which a tree's data is on all ranks."""
    roles = run.translation.bound.program.roles
    return max(run.outcome.actor_s[i] for i, role in enumerate(roles) if role.share == share)


def test_unfair_sharing_delays_the_second_tree() -> None:
    job = figure_13(EQUAL)
    fair, unfair, reused = (timed(job, settings) for settings in (FAIR, UNFAIR, UNFAIR_REUSED))
    assert tree_seconds(fair, 0) > 0.95 * tree_seconds(fair, 1)
    assert tree_seconds(unfair, 0) < 0.62 * tree_seconds(unfair, 1)
    assert tree_seconds(reused, 0) > 0.95 * tree_seconds(reused, 1)


def test_a_delayed_tree_is_free_if_only_its_link_limits() -> None:
    """A link that always has bytes to move ends at the same time in any order."""
    job = figure_13(EQUAL)
    assert timed(job, UNFAIR).seconds == pytest.approx(timed(job, FAIR).seconds, rel=0.05)


def test_a_delayed_tree_costs_time_where_it_is_the_slower_one() -> None:
    """While the first tree takes both lanes of the first hop, the links of the second are idle.

    Half of the data at two lanes, then half at one: 1.5 times the time of both at one lane each, minus the second
    tree's progress in the gaps between the first one's copies.
    """
    job = figure_13(WIDE_AND_NARROW)
    fair, unfair, reused = (timed(job, settings, 1000 * MB).seconds for settings in (FAIR, UNFAIR, UNFAIR_REUSED))
    assert 1.3 < unfair / fair < 1.5
    # One stream does not hide the cost of issuing a copy behind the other tree's copies.
    assert fair <= reused < 1.07 * fair
    assert reused == pytest.approx(timed(job, FAIR_REUSED, 1000 * MB).seconds)


def gaps(name: str, gpus: tuple[int, ...], algorithm_name: str, size_bytes: int = 500 * MB) -> dict[str, float]:
    """Times at each mode's own chunk, as multiples of the time with fair links and a stream per tree."""
    program, network = lowered(algorithm_name, "dgx-1v", name, gpus)
    modes = {"fair": FAIR, "unfair": UNFAIR, "reused": UNFAIR_REUSED, "fair reused": FAIR_REUSED}
    seconds = {}
    for label, settings in modes.items():
        seconds[label] = near_best(frame(program, network, COSTS, settings), size_bytes).seconds
    return {label: value / seconds["fair"] for label, value in seconds.items()}


def test_reuse_narrows_the_gap_of_an_allreduce() -> None:
    """A reused stream also keeps the fixed costs and the reductions of one tree from the time of the other's copies."""
    times = gaps("allreduce", (0, 2, 4, 6), "blink")
    assert times["unfair"] > 1.15
    assert 1.05 < times["reused"] < times["unfair"] - 0.08
    assert times["reused"] == pytest.approx(times["fair reused"], rel=0.03)


def test_reuse_does_nothing_for_trees_at_different_depths() -> None:
    """Blink reuses a stream only if trees use a link "at roughly the same position"."""
    times = gaps("allreduce", (0, 2, 3, 4), "blink")
    assert times["unfair"] > 1.1
    assert times["reused"] == pytest.approx(times["unfair"], rel=0.01)


def test_under_reuse_unfair_links_slow_no_broadcast() -> None:
    times = {gpus: gaps("broadcast", gpus, "optimal") for gpus in connected_allocations("dgx-1v")}
    assert len(times) == 46
    assert max(gap["unfair"] for gap in times.values()) > 1.2
    assert [gpus for gpus, gap in times.items() if gap["reused"] > 1.01 * gap["fair reused"]] == []


def test_trees_that_share_no_link_know_no_unfairness() -> None:
    times = gaps("broadcast", (0, 2, 3, 4, 7), "optimal")
    assert times == {"fair": 1.0, "unfair": 1.0, "reused": 1.0, "fair reused": 1.0}
