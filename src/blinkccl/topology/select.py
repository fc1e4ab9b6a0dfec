"""Networks to plan on: a topology reduced to a job's ranks and to one choice of link kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd

from blinkccl.errors import TopologyError
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.connectivity import beside, between, parts, reachable
from blinkccl.topology.fabric import cables_of
from blinkccl.topology.memories import by_operation, staged
from blinkccl.topology.model import FAST_KINDS, LINK_KINDS, RANK_KINDS, Link, Topology, Vertex

#: Values of ``--links``.
LINK_CHOICES = ("fast", "pcie", "staged", "all")
#: Choices that leave out fast links.
PCIE_CHOICES = ("pcie", "staged")
PCIE_KINDS = ("pcie", "smp")


def network_for(
    topology: Topology, ranks: Sequence[int], links: str = "fast", *, relays: bool = False, stored: bool = True
) -> Topology:
    """The network to plan on; results are cached, as planners ask repeatedly.

    It contains the ``ranks`` (vertex ids), and the switches, NICs and hosts on paths between two of them. The unit is
    the greatest common divisor of all links *of the selected kinds* in the whole topology, so it does not depend on
    the allocation: on the NVLinks of a DGX-1V it is one lane, 25 GB/s.

    - ``"fast"``: within a server, NVLink, xGMI or shared memory if these join two of its ranks, else PCIe and the bus
      between sockets. Beside fast links that end in the processors (AC922), that bus is included, as it continues
      them. ``"pcie"``: only PCIe and that bus, without NVLink. ``"staged"``: the same through the hosts' memories
      (:func:`~blinkccl.topology.memories.staged`), which needs no peer access between GPUs. ``"all"``: everything; PCIe
      is staged if fast links join all ranks of its server. Every choice includes network links if the ranks span
      several servers.
    - ``relays``: GPUs outside ``ranks`` may forward data, including those of other servers joined by cables. They keep
      their kind; a planner treats every vertex outside ``ranks`` as unicast transit.
    - ``stored``: False keeps PCIe under ``"all"`` as the machine has it, for display.

    TopologyError if a rank is unknown, no GPU, or duplicate, or if ``links`` is unknown. TopologyError also if some
    rank cannot reach another; its message names the parts, and the options that would join them.
    """
    return _network(topology, tuple(ranks), links, relays, stored)


def joining_links(topology: Topology, ranks: Sequence[int], *, relays: bool = False) -> tuple[str, str]:
    """The first of :data:`LINK_CHOICES` that joins the ranks, and the reason if it is not ``"fast"``, else "".

    Links that need a P2P over PCIe which the GPUs do not have count as not joining them (:func:`peers_wanted`). GPUs
    that NVLink does not fully connect get PCIe alone, since ``libblink.so``'s kernels never use both.
    TopologyError if no choice joins them.
    """
    refused: list[TopologyError | str] = []
    for links in LINK_CHOICES:
        try:
            wanted = peers_wanted(topology, ranks, links, relays=relays)
        except TopologyError as error:
            refused.append(error)
            continue
        if wanted:
            refused.append(wanted)
            continue
        return links, f"{refused[0]}; using --links {links}, as libblink.so does" if refused else ""
    raise next(error for error in refused if isinstance(error, TopologyError))


def peers_wanted(topology: Topology, ranks: Sequence[int], links: str, *, relays: bool = False) -> str:
    """The sentence, without full stop, that ``links`` need a P2P over PCIe that ranks do not have; "" if they do not.

    TopologyError as in :func:`network_for`.
    """
    network = network_for(topology, ranks, links, relays=relays)
    through_memory = {v.server for v in network.vertices if v.kind == "memory"}
    on_pcie = {link.src for link in network.links if link.kind == "pcie"}
    homes = Counter(network.vertex[rank].server for rank in ranks)
    barred = [
        rank
        for rank in ranks
        if not (vertex := network.vertex[rank]).peers
        and rank in on_pcie
        and homes[vertex.server] > 1
        and vertex.server not in through_memory
    ]
    if not barred:
        return ""
    return (
        f"{topology.name}: --links {links} needs P2P over PCIe, which NVIDIA's driver does not grant to the GPUs "
        f"{ids_text(sorted(barred))} (GeForce)"
    )


def check_links(links: str) -> None:
    """Raise TopologyError for a value outside :data:`LINK_CHOICES`."""
    if links not in LINK_CHOICES:
        raise TopologyError(f"unknown links {links!r}; expected one of {', '.join(LINK_CHOICES)}")


def check_ranks(topology: Topology, ranks: Sequence[int]) -> None:
    """Refuse unknown, duplicate and transit vertices; the TopologyError names the first."""
    earlier: set[int] = set()
    for rank in ranks:
        vertex = topology.vertex.get(rank)
        if vertex is None:
            raise TopologyError(f"GPU {rank} is not in {topology.name}; it has {ids_text(topology.ranks)}")
        if vertex.kind not in RANK_KINDS:
            raise TopologyError(
                f"{rank} is not a GPU of {topology.name} but its {vertex.kind} "
                f"{vertex.label}; its GPUs are {ids_text(topology.ranks)}"
            )
        if rank in earlier:
            raise TopologyError(f"GPU {rank} is given twice in {','.join(map(str, ranks))}; give it once")
        earlier.add(rank)


def ids_text(ids: Iterable[int]) -> str:
    """Ids with runs abbreviated: ``0-3,5``."""
    runs: list[list[int]] = []
    for number in ids:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"


@lru_cache(maxsize=4096)
def _network(topology: Topology, ranks: tuple[int, ...], links: str, relays: bool, stored: bool) -> Topology:
    check_links(links)
    check_ranks(topology, ranks)
    network = _cut_down(topology, ranks, links, relays, stored)
    apart = parts(ranks, network.link)
    if len(apart) > 1:
        raise TopologyError(_why_apart(topology, ranks, links, relays, apart))
    return network


def _cut_down(topology: Topology, ranks: tuple[int, ...], links: str, relays: bool, stored: bool = False) -> Topology:
    rank_set = set(ranks)
    present = {v.id for v in topology.vertices if relays or v.id in rank_set or v.kind not in RANK_KINDS}
    candidates = [x for x in topology.links if x.src in present and x.dst in present]
    server = {v.id: v.server for v in topology.vertices}
    fast = _fast_links(topology)
    # With cables instead of a switch, GPUs of other servers may relay too.
    passing = topology.ranks if relays and cables_of(topology) else ranks
    joined = _joined_by_fast_links(candidates, fast, passing, server)
    allowed = _allowed(candidates, fast, joined.keys(), {server[r] for r in passing}, server, links)
    vertices: Sequence[Vertex] = topology.vertices
    if links == "staged" or (links == "all" and stored):
        where = {*server.values()} if links == "staged" else {s for s, whole in joined.items() if whole}
        vertices, allowed = staged(vertices, allowed, where)
    allowed = by_operation(vertices, allowed, relays)
    on_paths = between(ranks, beside((x.src, x.dst) for x in allowed))
    return _rebuilt(
        topology,
        [v for v in vertices if v.id in on_paths],
        [x for x in allowed if x.src in on_paths and x.dst in on_paths],
    )


def _allowed(
    candidates: list[Link],
    fast: frozenset[tuple[int, int]],
    fast_servers: Collection[int],
    servers: Collection[int],
    server: dict[int, int],
    links: str,
) -> list[Link]:
    """The candidates whose kind is used in their server under this choice; ``servers`` are those of the ranks."""

    def plans_on(link: Link) -> bool:
        if link.kind == "net":
            return len(servers) > 1
        homes = [s for s in (server[link.src], server[link.dst]) if s in servers]
        if links == "all":
            return bool(homes)
        if links == "fast" and (link.src, link.dst) in fast and any(s in fast_servers for s in homes):
            return True
        return link.kind in PCIE_KINDS and any(links != "fast" or s not in fast_servers for s in homes)

    return [x for x in candidates if plans_on(x)]


@lru_cache(maxsize=64)
def _fast_links(topology: Topology) -> frozenset[tuple[int, int]]:
    """Links of a fast kind, and the buses between sockets at which such links end."""
    fast = {(x.src, x.dst) for x in topology.links if x.kind in FAST_KINDS}
    ends = {v for pair in fast for v in pair}
    return frozenset(
        fast | {(x.src, x.dst) for x in topology.links if x.kind == "smp" and x.src in ends and x.dst in ends}
    )


def _joined_by_fast_links(
    candidates: list[Link], fast: frozenset[tuple[int, int]], ranks: tuple[int, ...], server: dict[int, int]
) -> dict[int, bool]:
    """Servers with a rank that fast links join to another, also through switches; True if they join all its ranks."""
    near = beside((x.src, x.dst) for x in candidates if (x.src, x.dst) in fast)
    joined: dict[int, bool] = {}
    done: set[int] = set()
    for rank in ranks:
        if rank not in done:
            members = reachable(rank, near) & set(ranks)
            done |= members
            if len(members) > 1:
                joined |= {server[r]: _all_of_server(server, r, ranks) <= members for r in members}
    return joined


def _all_of_server(server: dict[int, int], rank: int, ranks: tuple[int, ...]) -> set[int]:
    return {other for other in ranks if server[other] == server[rank]}


def _rebuilt(topology: Topology, vertices: list[Vertex], links: list[Link]) -> Topology:
    """The selected part, with capacities in the unit of its kinds (see :func:`network_for`)."""
    kinds = {x.kind for x in links}
    unit = gcd(*(c for x in topology.links if x.kind in kinds for c in (x.capacity, x.read_capacity or 0))) or 1
    exact = exact_unit(topology)
    scaled = tuple(replace(x, capacity=x.capacity // unit, gb_per_s=float(x.capacity * exact)) for x in links)
    return Topology(
        topology.name,
        float(exact_unit(topology) * unit),
        tuple(vertices),
        scaled,
        topology.notes,
    )


def _why_apart(
    topology: Topology, ranks: tuple[int, ...], links: str, relays: bool, apart: list[tuple[int, ...]]
) -> str:
    named = [f"{{{','.join(map(str, part))}}}" for part in apart]
    text = (
        f"{topology.name}: --links {links} leaves the GPUs {','.join(map(str, ranks))} in {len(apart)} "
        f"parts: {', '.join(named[:-1])} and {named[-1]}"
    )
    if links in PCIE_CHOICES and not any(x.kind in PCIE_KINDS for x in topology.links):
        text = f"{topology.name}: --links {links}, but this topology has no PCIe links"
    elif not cables_of(topology) and _one_way(topology, ranks, links, relays):
        text += " (some links lead only one way)"
    others = [other for other in ("fast", "all", "pcie") if other != links]  # "all" is never slower than "pcie"
    remedies = [f"--links {other}" for other in others if _joins(topology, ranks, other, relays)]
    if not relays and _joins(topology, ranks, links, True):
        remedies.append("--relays (other GPUs forward data)")
    if remedies:
        return f"{text}; {' or '.join(remedies)} would join them"
    if cables_of(topology):
        return f"{text}. No cable joins them; blink doctor names one that would"
    several = len({topology.vertex[r].server for r in ranks}) > 1
    present = {x.kind for x in topology.links}
    kinds = "" if several else f"; it has {', '.join(kind for kind in LINK_KINDS if kind in present) or 'no links'}"
    return f"{text}. No link of this topology joins them{kinds}; add PCIe or a network link between them"


def _one_way(topology: Topology, ranks: tuple[int, ...], links: str, relays: bool) -> bool:
    arcs = list(_cut_down(topology, ranks, links, relays).link)
    return len(parts(ranks, arcs + [(b, a) for a, b in arcs])) == 1


def _joins(topology: Topology, ranks: tuple[int, ...], links: str, relays: bool) -> bool:
    return len(parts(ranks, _cut_down(topology, ranks, links, relays).link)) == 1
