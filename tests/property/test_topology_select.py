"""Properties of the links to plan on, for any machine, allocation and choice of links."""

import random
from fractions import Fraction

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.errors import TopologyError
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.model import Topology
from blinkccl.topology.select import LINK_CHOICES, network_for
from blinkccl.topology.spec import parse_spec
from support.examples import examples
from support.planned import renumbered

SPECS = (
    "dgx-1p",
    "dgx-1v",
    "dgx-2",
    "dgx-a100",
    "hgx-h100",
    "mist",
    "cedar",
    "mi250",
    "pcie-8gpu",
    "pcie-8gpu-nvlink-pairs",
    "2x dgx-1v @ 40Gbps",
    "3x dgx-a100",
    "2x mist @ 100Gbps",
    "star:6",
    "random:8:seed=1",
    "random:7:seed=2:directed",
    "oneway:5",
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[Topology, tuple[int, ...], str, bool]:
    topology = parse_spec(draw(st.sampled_from(SPECS)))
    ranks = draw(st.lists(st.sampled_from(topology.ranks), min_size=2, max_size=9, unique=True))
    return topology, tuple(ranks), draw(st.sampled_from(LINK_CHOICES)), draw(st.booleans())


Request = tuple[Topology, tuple[int, ...], str, bool]


def network_or_none(topology: Topology, ranks: tuple[int, ...], links: str, relays: bool) -> Topology | None:
    try:
        return network_for(topology, ranks, links, relays=relays)
    except TopologyError:
        return None


def origin(network: Topology, vertex: int) -> int:
    """The machine's vertex of which a network's vertex is the whole or a part."""
    whole = network.vertex[vertex].part_of
    return vertex if whole is None else whole


@examples(300)
@given(requests())
def test_the_network_is_a_connected_part_of_the_topology(request: Request) -> None:
    topology, ranks, links, relays = request
    network = network_or_none(*request)
    if network is None:
        return
    unit = exact_unit(network)
    for x in network.links:
        whole = topology.link[origin(network, x.src), origin(network, x.dst)]
        assert x.capacity * unit == whole.capacity * exact_unit(topology)
        assert (x.kind, x.gb_per_s, x.provenance) == (whole.kind, whole.gb_per_s, whole.provenance)
    for v in topology.vertices:
        if v.id in network.vertex and network.vertex[v.id] != v:
            assert links in ("staged", "all")
            assert (v.kind, network.vertex[v.id].kind) in (("host", "memory"), ("switch", "switch"))
    selected = set(network.vertex)
    assert set(ranks) <= selected
    if not relays:
        assert {v for v in selected if v in topology.ranks} == set(ranks)
    graph = nx.DiGraph([(x.src, x.dst) for x in network.links])
    component = next(c for c in nx.strongly_connected_components(graph) if ranks[0] in c)
    assert set(ranks) <= component
    assert network_for(network, ranks, links, relays=relays).link.keys() == network.link.keys()


@examples(60)
@given(requests(), st.randoms(use_true_random=False))
def test_relabelling_vertices_changes_only_their_ids(request: Request, dice: random.Random) -> None:
    topology, ranks, links, relays = request
    ids = [v.id for v in topology.vertices]
    shuffled = ids[:]
    dice.shuffle(shuffled)
    new = dict(zip(ids, shuffled, strict=True))
    moved = renumbered(topology, new)
    network = network_or_none(*request)
    other = network_or_none(moved, tuple(new[r] for r in ranks), links, relays)
    assert (network is None) == (other is None)
    if network is not None and other is not None:
        assert Fraction(repr(network.unit_gb_per_s)) == Fraction(repr(other.unit_gb_per_s))
        assert _rows(network, new) == _rows(other, {v: v for v in shuffled})


def _rows(network: Topology, new: dict[int, int]) -> set[tuple[tuple[int, bool], tuple[int, bool], int]]:
    """Links by the machine's vertices at their ends, with a flag for parts of vertices, and capacities."""
    at = {v.id: (new[origin(network, v.id)], v.part_of is None) for v in network.vertices}
    return {(at[a], at[b], x.capacity) for (a, b), x in network.link.items()}
