"""NCCL's channels: they equal those of its own search on the same machines, and fit the links.

Expected channels come from NCCL 2.30's own search (src/graph/search.cc) with these machines as topology files; the
DGX-1 has Broadwell processors.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from itertools import combinations, pairwise

import pytest

from blinkccl.cost.baselines.nccl_links import ARCHS
from blinkccl.cost.baselines.nccl_search import Channels, search
from blinkccl.cost.baselines.nccl_system import see
from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.catalog import CATALOG, connected_allocations, machine
from blinkccl.topology.fabric import by_rule, compose
from blinkccl.topology.gpus import guess_arch
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import load
from blinkccl.trees.algorithms.cycles import max_disjoint_cycles


def _on(spec: str, gpus: Sequence[int] | None = None) -> Channels:
    """The channels of a job, after :func:`_check`."""
    topology = load(spec)[0]
    channels = search(topology, topology.ranks if gpus is None else gpus)
    _check(topology, channels)
    return channels


def _busbw(channels: Channels) -> float:
    """GB/s of all rings together."""
    return channels.count * (
        channels.gb_per_s_per_channel if channels.servers <= 2 else channels.net_gb_per_s_per_channel
    )


def _summary(channels: Channels) -> tuple[int, float, str, bool]:
    return channels.count, channels.gb_per_s_per_channel, channels.kind, channels.same


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("dgx-1v", {3: {40, 20}, 4: {80, 60, 40, 20}, 5: {40, 20}, 6: {80, 40}, 7: {80}, 8: {120}}),
        ("dgx-1p", {3: {36, 18}, 4: {54, 36, 18}, 5: {36, 18}, 6: {54, 36}, 7: {54}, 8: {72}}),
    ],
)
def test_busbw_on_all_connected_allocations_of_a_dgx_1(name: str, allowed: dict[int, set[int]]) -> None:
    """The rates are exactly those of NCCL's search, with 7 P100s the best of them; all rings fit."""
    values: dict[int, set[float]] = {}
    for gpus in connected_allocations(name):
        channels = search(machine(name), gpus)
        values.setdefault(len(gpus), set()).add(_busbw(channels))
        _check(machine(name), channels)
    assert values == allowed


def test_how_often_each_kind_of_ring_is_found() -> None:
    """All sets of 3 to 8 GPUs of a DGX-1V, also those in parts, which alone have 6 GB/s."""
    topology = machine("dgx-1v")
    counts = Counter(
        (len(gpus), _busbw(search(topology, gpus))) for n in (3, 4, 8) for gpus in combinations(range(8), n)
    )
    assert counts == {
        (3, 6): 24, (3, 20): 20, (3, 40): 12,
        (4, 6): 14, (4, 20): 36, (4, 40): 16, (4, 60): 2, (4, 80): 2,
        (8, 120): 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "gpus", "expected", "chains"),
    [
        ("dgx-1v", (0, 1, 2, 3, 4, 5, 6, 7), (6, 20, "NVL", False), (20, "NVL")),
        ("dgx-1v", (0, 1, 3), (2, 20, "NVL", False), (20, "NVL")),
        ("dgx-1v", (1, 4, 5, 6), (2, 20, "NVB", False), (20, "NVL")),
        ("dgx-1v", (1, 2, 5, 6), (3, 20, "NVB", False), (20, "NVL")),
        ("dgx-1v", (2, 3, 4, 5, 7), (2, 10, "NVB", True), (20, "NVL")),
        ("dgx-1v", (1, 4, 5, 6, 7), (2, 20, "NVB", False), (40, "NVL")),
        ("dgx-1v", (1, 2, 4, 5, 6, 7), (2, 20, "NVL", False), (40, "NVL")),
        # Two pairs on NVLink with PCIe between them have two rings of half the speed instead of one.
        ("dgx-1v", (2, 3, 4, 5), (2, 3, "SYS", True), (6, "SYS")),
        ("dgx-1v", (0, 5), (1, 6, "SYS", True), (6, "SYS")),
        ("dgx-1p", (0, 1, 2, 3), (6, 9, "NVL", False), (9, "NVL")),
        ("dgx-1p", (0, 1, 3), (2, 18, "NVL", False), (18, "NVL")),
        ("dgx-2", None, (6, 20, "NVL", True), (20, "NVL")),
        ("dgx-a100", None, (12, 20, "NVL", True), (20, "NVL")),
        ("dgx-a100", (2, 5), (12, 20, "NVL", True), (40, "NVL")),
        # 12 chains of 30 GB/s would fit, but NCCL's search reaches its limit of steps first.
        ("dgx-a100", (0, 1, 2), (12, 20, "NVL", True), (20, "NVL")),
        ("hgx-h100", None, (12, 30, "NVL", True), (30, "NVL")),
        ("hgx-h100", (1, 2, 3), (12, 30, "NVL", True), (40, "NVL")),
        ("hgx-h100", (0, 1, 2, 3), (12, 30, "NVL", True), (30, "NVL")),
        ("cedar", None, (6, 20, "NVL", False), (20, "NVL")),
        ("cedar", (1, 2, 3), (4, 20, "NVL", False), (20, "NVL")),
        ("mist", None, (2, 15, "SYS", True), (30, "SYS")),
        ("mist", (2, 3), (4, 15, "NVL", True), (30, "NVL")),
        ("pcie-8gpu", None, (1, 10, "SYS", True), (10, "SYS")),
        ("pcie-8gpu", (4, 5, 6), (1, 10, "PHB", True), (10, "PHB")),
        ("pcie-8gpu", (6, 7), (1, 12, "PIX", True), (12, "PIX")),
        ("pcie-4gpu-nvlink-pairs", None, (4, 4, "SYS", True), (4, "SYS")),
        ("pcie-8gpu-nvlink-pairs", (4, 5, 6, 7), (2, 12, "PHB", True), (20, "PHB")),
    ],
)
def test_channels_of_nccls_own_search(
    spec: str, gpus: tuple[int, ...] | None, expected: tuple[int, float, str, bool], chains: tuple[float, str]
) -> None:
    channels = _on(spec, gpus)
    assert _summary(channels) == expected
    assert channels.tree is not None
    assert (channels.tree.gb_per_s_per_channel, channels.tree.kind) == chains


def _check(topology: Topology, channels: Channels) -> None:
    """Rings pass all ranks, on NCCL's path between neighbours inside a server, and fit the links together."""
    ranks = set(channels.rings[0])
    servers = see(topology, sorted(ranks), channels.arch)
    server_of = {gpu: server for server in servers for gpu in server.gpus}
    used: Counter[tuple[int, int]] = Counter()
    for ring in channels.rings:
        assert set(ring) == ranks
        assert len(ring) == len(ranks)
        for rank, onward in zip(ring, (*ring[1:], ring[0]), strict=True):
            if len(servers) == 1 or (server_of[rank] is server_of[onward] and onward != ring[0]):
                hop = server_of[rank].hops[rank, onward].path
                assert all(arc in topology.link for arc in pairwise(hop))
                assert all(topology.is_transit(v) or v in ranks for v in hop)
                used.update(pairwise(hop))
    capacity = {arc: gb_per_s for server in servers for arc, gb_per_s in server.capacity.items()}
    for arc, times in used.items():
        assert times * Fraction(str(channels.gb_per_s_per_channel)) <= capacity.get(arc, Fraction(1000)), arc


def test_rings_over_nvlink_are_as_many_as_disjoint_cycles() -> None:
    """Rings of 20 GB/s, one per lane, equal an independent packing; only rings through other GPUs may be more."""
    for gpus in connected_allocations("dgx-1v"):
        channels = search(machine("dgx-1v"), gpus)
        network = network_for(machine("dgx-1v"), gpus, "fast")
        cycles = max_disjoint_cycles({(x.src, x.dst): x.capacity for x in network.links}, gpus)
        lanes = sum(times for _, times in cycles)
        if channels.kind == "NVL" and channels.gb_per_s_per_channel == 20:
            assert channels.count == lanes
        else:
            assert channels.kind == "NVB"
            assert lanes * 20 < _busbw(channels)


def test_a_ring_through_another_gpu_takes_both_links() -> None:
    """1-5-6 is a chain of links of two lanes: a ring returns through 5 and fills a lane in each direction."""
    channels = _on("dgx-1v", (1, 5, 6))
    assert _summary(channels) == (2, 20, "NVB", True)
    assert see(machine("dgx-1v"), (1, 5, 6), "volta")[0].hops[6, 1].path == (6, 5, 1)


def test_the_vendor_of_processors_follows_from_their_bus() -> None:
    assert _on("2x dgx-1v @ 40Gbps", (0, 5, 8, 13)).vendor == _on("pcie-8gpu").vendor == "GenuineIntel"
    assert _on("pcie-4gpu-nvlink-pairs").vendor == "AuthenticAMD"


@pytest.mark.parametrize(
    ("spec", "gpus", "rings", "chains"),
    [
        ("2x dgx-a100", range(8), (8, 24, 24, "NVL", "PIX"), (30, 24)),
        ("2x dgx-a100", range(7), (7, 24, 24, "NVL", "PXN"), (30, 24)),
        ("2x dgx-a100", (0, 2, 4, 6), (4, 24, 24, "NVL", "PXN"), (48, 24)),
        ("2x dgx-a100", range(6), (6, 24, 24, "NVL", "PIX"), (48, 24)),
        ("2x hgx-h100", range(8), (8, 48, 48, "NVL", "PIX"), (48, 48)),
        ("2x hgx-h100", range(7), (7, 48, 48, "NVL", "PXN"), (48, 48)),
        ("2x hgx-h100", range(4), (8, 24, 24, "NVL", "PXN"), (48, 24)),
        ("2x hgx-h100", range(2), (4, 24, 24, "NVL", "PXN"), (48, 24)),
        ("2x dgx-1v @ 40Gbps", range(8), (1, 5, 5, "NVL", "PHB"), (10, 5)),
        ("2x dgx-1p @ 100Gbps", range(8), (1, 10, 10, "NVL", "PHB"), (18, 10)),
        ("2x cedar @ 100Gbps", range(4), (1, 10, 10, "NVL", "PHB"), (20, 10)),
        ("2x pcie-8gpu @ 40Gbps", range(8), (1, 5, 5, "SYS", "SYS"), (6, 5)),
        ("2x pcie-8gpu @ 100Gbps", range(3), (1, 10, 10, "PHB", "PHB"), (6, 6)),
        ("2x pcie-8gpu-nvlink-pairs @ 100Gbps", range(8), (1, 12, 12, "SYS", "SYS"), (12, 12)),
    ],
)
def test_channels_across_servers(
    spec: str, gpus: range | tuple[int, ...], rings: tuple[object, ...], chains: tuple[float, float]
) -> None:
    per_server = len(load(spec)[0].ranks) // 2
    channels = _on(spec, [*gpus, *(per_server + gpu for gpu in gpus)])
    assert (
        channels.count,
        channels.gb_per_s_per_channel,
        channels.net_gb_per_s_per_channel,
        channels.kind,
        channels.net_kind,
    ) == rings
    assert channels.tree is not None
    assert (channels.tree.gb_per_s_per_channel, channels.tree.net_gb_per_s_per_channel) == chains
    assert channels.servers == 2


def test_crossing_rings_keep_to_their_rail() -> None:
    """8 cards of H100s: each ring leaves by its neighbour's card and enters the next server by the same card."""
    channels = _on("4x hgx-h100")
    entered: Counter[int] = Counter()
    for ring in channels.rings:
        ends = [(ring[i] % 8, ring[i + 7] % 8) for i in range(0, 32, 8)]
        assert [out for _, out in ends] == [into for into, _ in (*ends[1:], ends[0])]
        entered.update(into for into, _ in ends)
    assert entered == dict.fromkeys(range(8), 4)


def test_servers_that_differ_take_the_slower_ones_speed() -> None:
    """3 GPUs of one DGX-1V and 5 of the other, as in Blink (MLSys 2020, Fig 22a)."""
    channels = _on("2x dgx-1v @ 40Gbps", (0, 1, 2, 8, 9, 10, 11, 12))
    assert (channels.count, _busbw(channels)) == (1, 5)
    assert channels.tree is not None
    assert [sorted(order) for order in channels.tree.orders[0]] == [[0, 1, 2], [8, 9, 10, 11, 12]]


def test_one_gpu_per_server() -> None:
    channels = _on("4x hgx-h100", (0, 8, 16, 24))
    assert (channels.servers, channels.kind) == (4, "LOC")
    assert _busbw(channels) == 48


def test_one_nvlink_domain_is_one_server() -> None:
    """Two Grace Hoppers on one NVSwitch do not use their network."""
    channels = _on(str(files("blinkccl.topology").joinpath("fixtures", "two-grace-hopper.nccl.xml")))
    assert (channels.servers, channels.net_kind) == (1, "")
    assert _summary(channels) == (12, 30, "NVL", True)


def test_many_gpus_without_a_switch_get_their_own_order() -> None:
    assert sorted(_on("clique:12").rings) == [tuple(range(12)), tuple(reversed(range(12)))]


def test_links_one_way() -> None:
    assert list(_on("oneway:6").rings) == [(0, 1, 2, 3, 4, 5)]


def test_the_last_resort_of_nccl() -> None:
    """PCIe of generation 1 with one lane: slower than any speed that NCCL tries."""
    box = Assembly("slow", "declared")
    gpus = box.add_many("gpu", 3, "GPU")
    box.join_all(gpus, box.add("host", "CPU"), Fraction(1, 4), "pcie")
    channels = search(box.finish(), gpus)
    assert (channels.count, _busbw(channels)) == (1, 0.1)
    assert channels.rings[0] == (0, 1, 2)


@pytest.mark.parametrize("spec", ["2x dgx-1v @ 0.8Gbps", "2x hgx-h100 @ 0.8Gbps"])
def test_the_last_resort_across_servers(spec: str) -> None:
    """A network of 0.1 GB/s, with a card for all GPUs of a server and with one for each."""
    channels = _on(spec)
    assert (channels.count, _busbw(channels)) == (1, 0.1)


@pytest.mark.parametrize("name", [name for name in CATALOG if not name.startswith("m") or name == "mist"])
def test_the_architecture_follows_from_the_links(name: str) -> None:
    expected = {"dgx-1p": "pascal", "dgx-a100": "ampere", "hgx-h100": "hopper", "hgx-h200": "hopper",
                "dgx-b200": "blackwell", "gb200-nvl72": "blackwell", "dgx-spark": "ampere",
                "dgx-b300": "blackwell", "gb200-tray": "blackwell", "gb300-tray": "blackwell",
                "gb300-nvl72": "blackwell", "gh200": "hopper", "hgx-h20": "hopper", "hgx-h800": "hopper",
                "l40s-8": "ampere", "rtx-pro-6000-8": "blackwell",
                "pcie-4gpu-nvlink-pairs": "ampere", "pcie-8gpu-nvlink-pairs": "ampere"}  # fmt: skip
    assert guess_arch(machine(name)) == expected.get(name, "volta")


def test_more_nvlink_than_hoppers_is_a_blackwell() -> None:
    box = Assembly("b200", "declared")
    gpus = box.add_many("gpu", 8, "GPU")
    box.join_all(gpus, box.add("switch", "NVSwitch"), 900, "nvlink")
    topology = box.finish()
    assert guess_arch(topology) == "blackwell"
    channels = search(topology, gpus)
    assert _busbw(channels) <= ARCHS["blackwell"].lane_gb_per_s * 18
    assert _busbw(channels) > 0.9 * float(ARCHS["blackwell"].lane_gb_per_s * 18)


def test_the_same_job_has_the_same_channels() -> None:
    for name, gpus in (("dgx-1v", (0, 1, 2, 4, 5, 6, 7)), ("mist", (0, 1, 2, 3))):
        again = replace(machine(name), name=machine(name).name)
        assert search(again, gpus) == search(machine(name), tuple(reversed(gpus)))


def test_jobs_without_channels_are_refused() -> None:
    dgx = machine("dgx-1v")
    with pytest.raises(UnsupportedError, match="at least two GPUs"):
        search(dgx, (3,))
    with pytest.raises(UnsupportedError, match="xGMI"):
        search(machine("mi250"), (0, 1))
    with pytest.raises(UnsupportedError, match="but 0/Apple M3 Ultra of 2x mac-studio @ cables=ring is Apple's"):
        search(by_rule("ring", machine("mac-studio"), 2, None, ""), (0, 1))
    with pytest.raises(UnsupportedError, match="unknown GPU architecture 'turing'; expected one of pascal"):
        search(dgx, (0, 1), arch="turing")
    with pytest.raises(TopologyError, match="given twice"):
        search(dgx, (0, 0))


def test_gpus_that_nothing_joins() -> None:
    box = Assembly("two islands", "declared")
    gpus = box.add_many("gpu", 4, "GPU")
    box.join(0, 1, 25, "nvlink")
    box.join(2, 3, 25, "nvlink")
    with pytest.raises(UnsupportedError, match="no link, switch or processor joins GPUs 1 and 2"):
        search(box.finish(), gpus)


def test_servers_without_a_network() -> None:
    box = Assembly("apart", "declared")
    for server in (0, 1):
        a, b = box.add("gpu", "GPU", server), box.add("gpu", "GPU", server)
        box.join(a, b, 25, "nvlink")
    with pytest.raises(UnsupportedError, match="no network card is joined to the job's GPUs of server 0"):
        search(box.finish(), (0, 1, 2, 3))


def test_cards_without_a_switch_between_them() -> None:
    lone = compose(machine("hgx-h100"), 2)
    network = max(v.id for v in lone.vertices)
    cut = replace(lone, vertices=tuple(v for v in lone.vertices if v.id != network),
                  links=tuple(x for x in lone.links if network not in (x.src, x.dst)))  # fmt: skip
    with pytest.raises(UnsupportedError, match="no network joins"):
        search(cut, cut.ranks)
