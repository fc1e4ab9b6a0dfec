"""Plans on cables reach their theoretical rate and compute right results, on common and on random cablings."""

from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.cost.baselines.nccl import ring_baseline
from blinkccl.engines import reference
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.lower import lower
from blinkccl.schedule.verifier import verify
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.cables_file import parse
from blinkccl.topology.fabric import cables_of
from blinkccl.topology.model import Topology
from blinkccl.trees.algorithms import ring
from support.examples import examples
from support.execution import difference
from support.planned import asked, planned
from support.random_cables import random_cabling

#: GB/s per direction of a Thunderbolt cable, and of a Spark's PCIe links, which both ports share.
CABLE, SPARK = Fraction(10), Fraction(24)


def best(topology: str | Topology, collective: str, gpus: str | None = None, root: int = 0) -> Fraction:
    """Algbw of the optimal plan in GB/s, with its proof checked."""
    forest = planned("optimal", asked(topology, collective, gpus, root, objective="exact"))
    assert forest.optimal
    return forest.rate * exact_unit(forest.topology)


@pytest.mark.parametrize("n", range(2, 9))
def test_rings_reach_their_rate(n: int) -> None:
    """Full-duplex cables carry both directions: twice a ring's rate N/2(N−1), but two machines have one cable."""
    spec, ways = f"{n}x mac-studio @ cables=ring", 1 if n == 2 else 2
    assert best(spec, "allreduce") == ways * CABLE * n / (2 * (n - 1))
    assert best(spec, "allgather") == best(spec, "reduce_scatter") == ways * CABLE * n / (n - 1)
    assert best(spec, "broadcast") == best(spec, "reduce", root=-1) == ways * CABLE


@pytest.mark.parametrize("n", range(2, 9))
def test_rings_of_sparks_are_as_fast_as_a_switch(n: int) -> None:
    """A host sends 24 GB/s over all cables together, so a ring in one direction is as fast as a switch."""
    spec = f"{n}x dgx-spark @ cables=ring"
    assert best(spec, "allreduce") == best(f"{n}x dgx-spark", "allreduce") == SPARK * n / (2 * (n - 1))
    assert best(spec, "allgather") == best(spec, "reduce_scatter") == SPARK * n / (n - 1)
    assert best(spec, "broadcast") == best(spec, "reduce") == SPARK


def test_a_second_cable_between_two_sparks_adds_no_rate() -> None:
    for name in ("allreduce", "allgather", "broadcast", "alltoall"):
        assert best("2x dgx-spark @ cables=ring*2", name) == best("2x dgx-spark @ cables=ring", name)
    assert best("2x mac-studio @ cables=ring*2", "allreduce") == 2 * best("2x mac-studio @ cables=ring", "allreduce")


@pytest.mark.parametrize("n", range(3, 7))
def test_lines_and_stars_reach_their_rate(n: int) -> None:
    """Every cable is a cut. A Spark in the middle sends the data of both stages through the same 24 GB/s."""
    for spec in (f"{n}x mac-studio @ cables=line", f"{n}x mac-studio @ cables=star"):
        assert best(spec, "allreduce") == best(spec, "broadcast") == CABLE
        assert best(spec, "allgather") == best(spec, "reduce_scatter") == CABLE * n / (n - 1)
    assert best(f"{n}x dgx-spark @ cables=line", "allreduce") == SPARK / 2


@pytest.mark.parametrize("n", range(3, 7))
def test_meshes_reach_their_rate(n: int) -> None:
    """There are N(N−1)/2 cables, and a tree uses N−1 of them."""
    spec = f"{n}x mac-studio @ cables=mesh"
    assert best(spec, "allreduce") == CABLE * n / 2
    assert best(spec, "allgather") == CABLE * n
    assert best(spec, "alltoall") == CABLE * n
    assert best(spec, "broadcast") == CABLE * (n - 1)


@pytest.mark.parametrize(("rows", "columns", "degree"), [(2, 2, 2), (2, 3, 3), (2, 4, 3), (3, 3, 4)])
def test_tori_reach_their_rate(rows: int, columns: int, degree: int) -> None:
    n, spec = rows * columns, f"{rows * columns}x mac-studio @ cables=torus:{rows}x{columns}"
    assert best(spec, "allreduce") == CABLE * Fraction(n * degree, 2) / (n - 1)
    assert best(spec, "allgather") == degree * CABLE * n / (n - 1)
    assert best(spec, "broadcast") == degree * CABLE


def test_uneven_cables_reach_their_rate() -> None:
    """A ring of four Macs with one cable of half the rate: 35 GB/s of cables for the three edges of a tree."""
    text = "machine mac-studio: a b c d\na:tb0 b:tb1\nb:tb0 c:tb1\nc:tb0 d:tb1\nd:tb0 a:tb1 40Gbps\n"
    assert best(parse(text, "x"), "allreduce") == Fraction(35, 3)
    assert best(parse(text, "x"), "broadcast") == 15


def test_rails_are_as_fast_as_a_switch() -> None:
    """Two DGX A100 without a switch: a server sends over 8 cables of 25 GB/s, as through a switch."""
    for name in ("allreduce", "allgather", "reduce_scatter"):
        assert best("2x dgx-a100 @ cables=ring*8", name) == best("2x dgx-a100", name)


def test_messages_through_other_hosts_reach_their_rate() -> None:
    """Opposite corners of a ring use both directions at once. A Spark is limited by its host's rate."""
    mac, spark = "4x mac-studio @ cables=ring", "4x dgx-spark @ cables=ring"
    request = asked(mac, "sendrecv", "0,2", relays=True)
    assert planned("optimal", request).rate * exact_unit(request.network) == 2 * CABLE
    request = asked(spark, "sendrecv", "0,2", relays=True)
    assert planned("optimal", request).rate * exact_unit(request.network) == SPARK


# The rate of NCCL's ring, and machines for which NCCL has none.


@pytest.mark.parametrize("n", range(2, 9))
def test_nccl_s_ring_uses_one_direction(n: int) -> None:
    for kind, rate in (("mac-studio", CABLE), ("dgx-spark", SPARK)):
        request = asked(f"{n}x {kind} @ cables=ring", "allreduce")
        baseline = ring_baseline(request)
        assert baseline.gb_per_s == pytest.approx(float(rate * n / (2 * (n - 1))))
        assert baseline.cables
        forest = planned("ring", request)
        order = [share.root for share in forest.shares]
        assert order == list(request.ranks)
        hops = [path for share in forest.shares for tree in (share.reduce, share.broadcast) for path in tree.edges]
        assert all(path[-1] == order[(order.index(path[0]) + 1) % n] for path in hops)


def test_no_ring_where_a_rank_has_no_cable_to_the_next() -> None:
    for spec, gpus, pair in (("4x mac-studio @ cables=ring", "0,2,1,3", "0 to 2"), ("4x mac-studio @ cables=line", None,
                                                                                  "3 to 0")):  # fmt: skip
        request = asked(spec, "allreduce", gpus)
        reason = f"NCCL's ring follows the order of the ranks, but no cable leads from {pair}"
        with pytest.raises(UnsupportedError, match=reason):
            ring.plan(request)
        assert ring_baseline(request).reason == reason


def test_several_gpus_per_server_are_no_ring_of_cables() -> None:
    request = asked("2x dgx-a100 @ cables=ring*8", "allreduce")
    assert ring_baseline(request).reason == "NCCL 2.4's rule finds no ring over NVLink and these cables"


@examples(60)
@given(st.integers(0, 10**6), st.sampled_from(sorted(COLLECTIVES)))
def test_random_cablings_are_planned_at_the_bound_and_computed(seed: int, collective: str) -> None:
    topology = random_cabling(seed)
    forest = planned("optimal", asked(topology, collective, root=seed % len(topology.ranks)))
    assert forest.rate == forest.bound
    program = lower(forest)
    verify(program, forest.topology)
    for count in (1, 37):
        assert difference(reference.run, program, count=count) is None
    cable = {frozenset((x.src, x.dst)) for x in cables_of(topology)}
    for tree in [tree for share in forest.shares for tree in (share.reduce, share.broadcast) if tree is not None]:
        for path in tree.edges:  # the machine behind each cable stores the data
            assert sum(frozenset(pair) in cable for pair in pairwise(path)) == 1
