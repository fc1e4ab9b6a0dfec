"""The Program for a call among ranks of several hosts, as a function of numbers that all ranks agree on.

The hosts are a topology: the one that the user states, or the ranks of a host around its memory, and each host's memory
joined to one network. Candidates are planned on it, proved and kept as all plans are (:mod:`blinkccl.runtime.plans`),
and the one with the least :meth:`Cost.seconds` is selected. That is Hockney's model (1994) of the Program itself: the
messages of its longest chain or of its busiest rank, and the bytes that the busiest interface carries.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise

from blinkccl.collectives.spec import Collective
from blinkccl.engines import native_library as native
from blinkccl.engines.host_plan import Area, HostPlan
from blinkccl.errors import TopologyError, UnsupportedError, UsageError
from blinkccl.runtime.deterministic import check_program
from blinkccl.runtime.plans import PlanCache, planned
from blinkccl.runtime.rails import rails_of
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Link, Topology, Vertex
from blinkccl.topology.spec import parse_spec

VARIABLE, MEASURE = "BLINK_TOPO", "measure"
KIB = 1024
#: Assumed rate of a rank's access to its host's shared memory, relative to the network.
MEMORY_RATIO = 8
#: Assumed rate of copies in memory, in bytes per second.
MEMORY_BYTES_PER_S = 8e9
#: Assumed part of a message's time for which its sender is busy, and its receiver too.
BUSY = 0.5
#: Assumed time of a message in shared memory, in seconds.
LOCAL_S = 1e-6
#: Assumed time that a chunk costs its ends beside its bytes, in messages: one that leaves at once, and one that is
#: offered, whose ends wait for each other twice.
AT_ONCE, OFFERED = 4, 16
#: Bytes of a chunk; the most are a segment of UCX's TCP (``worker.cpp``), which also has a header.
LEAST_CHUNK, MOST_CHUNK = 32 * KIB, 252 * KIB
#: Assumed size of a core's cache, in bytes. A chunk of each of a rank's queues fits; else copies take twice as long.
CACHE_BYTES = 1024 * KIB
#: Candidates beside ``optimal``: fewer messages one after another for more bytes.
_CANDIDATES = {
    "allreduce": ("one_shot", "one_hop", "double_binary_tree", "three_phase", "ring"),
    "broadcast": ("one_hop",),
    "reduce": ("one_hop",),
}
#: Algorithms that sum in the order of the ranks.
_IN_ORDER = ("one_shot", "one_hop")
#: Plans count as equally fast if their predictions differ by less than this factor. The one with the fewest messages is
#: then selected, as it leaves the most time to ranks that share cores.
SAME = 1.1


@dataclass(frozen=True)
class Place:
    """A job's topology, if it is stated; a group's vertices by rank, () if host h is server h; and this host's rails.

    ``interfaces``: the interface of each rail of this host. ``measure``: the topology is still to be measured.
    ``problem``: the statement cannot be read; the other ranks get this too when all have met.
    """

    topology: Topology | None = None
    vertices: tuple[int, ...] = ()
    interfaces: Mapping[int, str] = field(default_factory=dict)
    measure: bool = False
    problem: TopologyError | None = None

    @classmethod
    def stated(cls, topo: str | Topology | None, environ: Mapping[str, str] = os.environ) -> Place:
        """The topology ``topo``: a SPEC, or "measure"; None: that of BLINK_TOPO, or none. UsageError for a number."""
        spec = environ.get(VARIABLE) or None if topo is None else topo
        if spec is not None and not isinstance(spec, str | Topology):
            raise UsageError(f"topo: expected a SPEC, a Topo or a Topology, got {type(spec).__name__}")
        if spec == MEASURE:
            return cls(measure=True)
        try:
            return cls(parse_spec(spec) if isinstance(spec, str) else spec)
        except TopologyError as error:
            return cls(problem=error)

    def part(self, ranks: Sequence[int]) -> Place:
        """The place of a group of these ranks."""
        return replace(self, vertices=tuple(self.vertices[rank] for rank in ranks)) if self.vertices else NOWHERE


NOWHERE = Place()


@dataclass(frozen=True)
class Hosts:
    """``members[h]`` are the ranks of host h, rising; hosts are in the order of their first ranks.

    ``stated`` is the user's topology, if there is one: rank r is its vertex ``vertices[r]``.
    """

    members: tuple[tuple[int, ...], ...]
    stated: Topology | None = None
    vertices: tuple[int, ...] = ()

    @classmethod
    def of(cls, names: Sequence[Hashable]) -> Hosts:
        """Rank r is on the host called ``names[r]``."""
        ranks: dict[Hashable, list[int]] = {}
        for rank, name in enumerate(names):
            ranks.setdefault(name, []).append(rank)
        return cls(tuple(map(tuple, ranks.values())))

    def on(self, topology: Topology, names: Sequence[str] = (), vertices: Sequence[int] = ()) -> Hosts:
        """These hosts on a stated topology, at these vertices.

        Without vertices, host h is the server called ``names[h]`` if the topology has all these names, otherwise
        server h. TopologyError if the topology has another number of servers, or fewer vertices on a server than ranks
        are there.
        """
        if vertices:
            return replace(self, stated=topology, vertices=tuple(vertices))
        servers: dict[int, list[int]] = {}
        for vertex in topology.ranks:
            servers.setdefault(topology.vertex[vertex].server, []).append(vertex)
        label = {topology.vertex[row[0]].name.partition("/")[0]: server for server, row in servers.items()}
        hosts = [name.partition(".")[0] for name in names]
        order = [label[host] for host in hosts] if sorted(hosts) == sorted(label) else sorted(servers)
        need, have = [len(ranks) for ranks in self.members], [len(servers[server]) for server in order]
        if len(need) != len(have) or any(map(int.__gt__, need, have)):
            raise TopologyError(
                f"{topology.name}: expected a job of at most {_listed(have)} on its servers, got ranks on hosts as "
                f"{_listed(need)}; give the topology of this job's hosts, in the order of their ranks"
            )
        at: dict[int, int] = {}
        for ranks, server in zip(self.members, order, strict=True):
            at |= dict(zip(ranks, servers[server], strict=False))
        return replace(self, stated=topology, vertices=tuple(at[rank] for rank in range(self.size)))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The vertex of each rank."""
        return self.vertices or tuple(range(self.size))

    def rails(self, program: Program) -> tuple[int, ...]:
        """The rail of each queue: see :func:`~blinkccl.runtime.rails.rails_of`."""
        return () if self.stated is None else rails_of(program, self.stated)

    @cached_property
    def size(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.members))

    @cached_property
    def host_of(self) -> tuple[int, ...]:
        """The host of each rank."""
        return tuple(dict(sorted((rank, h) for h, ranks in enumerate(self.members) for rank in ranks)).values())

    @cached_property
    def topology(self) -> Topology:
        """The stated one; or vertex r is rank r, then the hosts' memories, and the network."""
        if self.stated is not None:
            return self.stated
        size, hosts = self.size, len(self.members)
        network = size + hosts
        vertices = [Vertex(rank, "cpu", host, f"rank {rank}") for rank, host in enumerate(self.host_of)]
        vertices += [Vertex(size + host, "switch", host, f"memory of host {host}") for host in range(hosts)]
        # A rank that is alone on its host shares no memory: its way is a network's all along.
        kinds = ["shm" if len(of) > 1 else "net" for of in self.members]
        pairs = [(rank, size + host, MEMORY_RATIO, kinds[host]) for rank, host in enumerate(self.host_of)]
        pairs += [(size + host, network, 1, "net") for host in range(hosts)]
        links = [
            Link(a, b, capacity, kind, float(capacity), "synthetic")
            for one, other, capacity, kind in pairs
            for a, b in ((one, other), (other, one))
        ]
        return Topology("hosts", 1.0, (*vertices, Vertex(network, "switch", 0, "network")), tuple(links))

    @cached_property
    def networks(self) -> dict[tuple[int, int], Fraction]:
        """The links of the network, by their ends, each with its rate relative to the fastest one between hosts."""
        ranks = {*self.topology.ranks}  # a rank reaches its host's interface faster than that sends
        every = [link for link in self.topology.links if link.kind == "net"]
        links = [link for link in every if not {link.src, link.dst} & ranks] or every
        fastest = max(link.capacity for link in links)
        return {(link.src, link.dst): Fraction(link.capacity) / fastest for link in links}


def _listed(counts: Sequence[int]) -> str:
    return " + ".join(map(str, counts))


@dataclass(frozen=True, slots=True)
class Cost:
    """Measured time of a message between hosts, in seconds, and rate of the fastest link there, in bytes per second."""

    message_s: float
    bytes_per_s: float

    @property
    def bytes_at_once(self) -> int:
        """The size up to which messages leave at once, without a round trip; their receiver copies them.

        Where the network is slow a copy is cheap, and the round trip is long.
        """
        return MOST_CHUNK if self.bytes_per_s < MEMORY_BYTES_PER_S / MEMORY_RATIO else 0

    def seconds(self, program: Program, hosts: Hosts, nbytes: int) -> float:
        """The predicted seconds for S = ``nbytes``."""
        weights = _weights(program, hosts)
        return self._messages_s(weights) + self._bytes_s(weights, nbytes)

    def by_messages(self, program: Program, hosts: Hosts, nbytes: int) -> bool:
        """True if the messages take longer than the bytes."""
        weights = _weights(program, hosts)
        return self._messages_s(weights) > self._bytes_s(weights, nbytes)

    def _messages_s(self, weights: _Weights) -> float:
        """The longest chain, or the busiest rank."""
        across, inside = (max(chain, BUSY * ends) for chain, ends in zip(weights.chain, weights.ends, strict=True))
        return across * self.message_s + inside * LOCAL_S

    def _bytes_s(self, weights: _Weights, nbytes: int) -> float:
        return float(weights.load + weights.work / MEMORY_RATIO) * nbytes / self.bytes_per_s

    def chunk_bytes(self, program: Program, hosts: Hosts, nbytes: int) -> int:
        """The chunk for which filling the pipeline and sending cost the same: √(S · rate · latency / chain).

        It is at most what the cache has for each queue of a rank.
        """
        weights = _weights(program, hosts)
        a_message = self.bytes_per_s * self.message_s * (AT_ONCE if self.bytes_at_once else OFFERED)
        best = int((float(weights.load) * nbytes * a_message / max(1, weights.chain[0])) ** 0.5)
        most = min(MOST_CHUNK, CACHE_BYTES // max(1, _queues(program)))
        return max(LEAST_CHUNK, min(most, best) // (4 * KIB) * 4 * KIB)


def busiest_part(program: Program, hosts: Hosts) -> float:
    """The part of S that the busiest link between hosts carries, relative to its rate (:attr:`Hosts.networks`)."""
    return float(_weights(program, hosts).load)


@lru_cache(maxsize=1024)
def _queues(program: Program) -> int:
    """The most queues of a rank."""
    ends = Counter(rank for queue in program.queues for rank in (queue.src, queue.dst))
    return max(ends.values(), default=0)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Numbers of a Program's messages, as pairs (between hosts, inside them), and parts of S.

    ``chain``: messages of the longest chain of a chunk. ``ends``: messages that the busiest rank sends or receives.
    ``total``: messages of all ranks. ``load``: bytes over the busiest link, relative to its rate. ``work``: bytes that
    the busiest rank reduces.
    """

    chain: tuple[int, int]
    ends: tuple[int, int]
    total: tuple[int, int]
    load: Fraction
    work: Fraction


@lru_cache(maxsize=1024)
def _weights(program: Program, hosts: Hosts) -> _Weights:
    """Count the messages and bytes of a Program among these hosts."""
    home, queues, items = hosts.host_of, program.queues, program.collective.total_blocks()
    inside = [home[queue.src] == home[queue.dst] for queue in queues]
    load: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    work: dict[int, Fraction] = defaultdict(Fraction)
    ends: tuple[Counter[int], Counter[int]] = Counter(), Counter()
    for role in program.roles:
        part = (program.slices[role.slice].stop - program.slices[role.slice].start) / items
        work[role.rank] += part * max(0, role.operands - 1)
        for queue in role.sends:
            ends[inside[queue]].update((role.rank, queues[queue].dst))
            for link in pairwise(queues[queue].path):
                if link in hosts.networks:
                    load[link] += part / hosts.networks[link]
    return _Weights(
        _longest_chain(program, inside),
        (max(ends[False].values(), default=0), max(ends[True].values(), default=0)),
        (ends[False].total() // 2, ends[True].total() // 2),
        max(load.values(), default=Fraction(0)),
        max(work.values(), default=Fraction(0)),
    )


def _longest_chain(program: Program, inside: Sequence[bool]) -> tuple[int, int]:
    """Messages of the longest chain, by those between hosts first; ``inside[q]``: queue q stays inside a host."""
    senders: dict[int, list[int]] = defaultdict(list)
    for number, role in enumerate(program.roles):
        for queue in role.sends:
            senders[queue].append(number)
    last: dict[int, tuple[int, int]] = {}
    for number, role in sorted(enumerate(program.roles), key=lambda one: (one[1].offset, one[0])):
        begin = max((last[one] for queue in role.receives for one in senders[queue] if one in last), default=(0, 0))
        step = max(((int(not inside[queue]), int(inside[queue])) for queue in role.sends), default=(0, 0))
        last[number] = begin[0] + step[0], begin[1] + step[1]
    return max(last.values(), default=(0, 0))


#: Part of a message's bytes, and its hops: each a rail and the rank there.
Route = tuple[Fraction, tuple[tuple[int, int], ...]]


def routes(hosts: Hosts, src: int, dst: int) -> tuple[Route, ...]:
    """The routes of large messages between ranks of two hosts, from their plan; () if only the direct one is left.

    This is document C's path table. A host's ranks share its rails, so a route's hops are those between hosts.
    """
    collective = Collective("sendrecv", hosts.size, src=src, dst=dst)
    try:
        program = planned(hosts.topology, collective, hosts.ranks, "optimal", PlanCache())
    except UnsupportedError:
        return ()
    rails, home = hosts.rails(program) or (0,) * len(program.queues), hosts.host_of
    roles = {(role.slice, role.rank): role for role in program.roles}
    shares: dict[tuple[tuple[int, int], ...], Fraction] = defaultdict(Fraction)
    for number, part in enumerate(program.slices):
        rank, hops = src, []
        while rank != dst:
            (queue,) = roles[number, rank].sends
            rank = program.queues[queue].dst
            if home[rank] != home[program.queues[queue].src]:
                hops.append((rails[queue], dst if home[rank] == home[dst] else rank))
        shares[tuple(hops)] += part.stop - part.start
    if [*map(len, shares)] == [1]:
        return ()
    return tuple((share, hops) for hops, share in shares.items() if len(hops) <= native.MOST_HOPS)


def selected(
    hosts: Hosts, collective: Collective, nbytes: int, cost: Cost, area: Area, in_one_order: bool
) -> tuple[HostPlan, int]:
    """The plan for S = ``nbytes`` and its chunk in bytes; ``in_one_order`` selects among plans that sum by rank."""
    plans = _plans(hosts, collective, area, in_one_order)
    seconds = {plan: cost.seconds(plan.program, hosts, nbytes) for plan in plans}
    best = min(plans, key=seconds.__getitem__)
    if cost.by_messages(best.program, hosts, nbytes):
        similar = [plan for plan in plans if seconds[plan] <= SAME * seconds[best]]
        best = min(similar, key=lambda plan: (_weights(plan.program, hosts).total, seconds[plan]))
    return best, cost.chunk_bytes(best.program, hosts, nbytes)


@lru_cache(maxsize=256)
def _plans(hosts: Hosts, collective: Collective, area: Area, in_one_order: bool) -> tuple[HostPlan, ...]:
    cache, topology = PlanCache(), hosts.topology
    plans, reasons = [], []
    ordered = in_one_order and collective.reduces
    for name in _IN_ORDER if ordered else (*_CANDIDATES.get(collective.name, ()), "optimal"):
        try:
            program = planned(topology, collective, hosts.ranks, name, cache)
            if ordered:
                check_program(program)
            plans.append(HostPlan(program, area, hosts.rails(program)))
        except UnsupportedError as error:
            reasons.append(error)
    if not plans:
        raise reasons[-1]
    return tuple(plans)
