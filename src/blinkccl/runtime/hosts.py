"""The Program for a call among ranks of several hosts, as a function of numbers that all ranks agree on.

The hosts are a topology: the ranks of a host around its memory, and each host's memory joined to one network.
Candidates are planned on it, proved and kept as all plans are (:mod:`blinkccl.runtime.plans`), and the one with the
least :meth:`Cost.seconds` is selected. That is Hockney's model (1994) of the Program itself: the messages of its
longest chain, and the bytes that the busiest interface carries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from blinkccl.collectives.spec import Collective
from blinkccl.engines.host_plan import Area, HostPlan
from blinkccl.errors import UnsupportedError
from blinkccl.runtime.deterministic import check_program
from blinkccl.runtime.plans import PlanCache, laid_out, planned
from blinkccl.schedule.program import Program
from blinkccl.topology.model import Link, Topology, Vertex

KIB = 1024
#: Assumed rate of a rank's access to its host's shared memory, relative to the network.
MEMORY_RATIO = 8
#: Assumed part of a message's latency for which its sender and its receiver are busy.
BUSY = Fraction(1, 4)
#: Assumed time of a message in shared memory, in seconds.
LOCAL_S = 1e-6
#: Assumed time that a chunk costs its ends beside its bytes, in messages: an offer, its answer and a wait.
HANDSHAKE = 4
LEAST_CHUNK, MOST_CHUNK = 32 * KIB, 1024 * KIB
#: Candidates beside ``optimal``: fewer messages one after another for more bytes.
_CANDIDATES = {
    "allreduce": ("one_shot", "one_hop", "three_phase", "ring"),
    "broadcast": ("one_hop",),
    "reduce": ("one_hop",),
}
#: Algorithms that sum in the order of the ranks.
_IN_ORDER = ("one_shot", "one_hop")
_NO_MESSAGES = (Fraction(0), Fraction(0))


@dataclass(frozen=True)
class Hosts:
    """``members[h]`` are the ranks of host h, rising; hosts are in the order of their first ranks."""

    members: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, names: Sequence[Hashable]) -> Hosts:
        """Rank r is on the host called ``names[r]``."""
        ranks: dict[Hashable, list[int]] = {}
        for rank, name in enumerate(names):
            ranks.setdefault(name, []).append(rank)
        return cls(tuple(map(tuple, ranks.values())))

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
        """Vertex r is rank r; then the hosts' memories, and the network. The unit is the rate of one interface."""
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


@dataclass(frozen=True, slots=True)
class Cost:
    """Measured time of a message between hosts, in seconds, and rate of an interface, in bytes per second."""

    message_s: float
    bytes_per_s: float

    def seconds(self, program: Program, hosts: Hosts, nbytes: int) -> float:
        """The predicted seconds for S = ``nbytes``."""
        chain, load, work = _weights(program, hosts)
        latency_s = float(chain[0]) * self.message_s + float(chain[1]) * LOCAL_S
        return latency_s + float(load + work / MEMORY_RATIO) * nbytes / self.bytes_per_s

    def chunk_bytes(self, program: Program, hosts: Hosts, nbytes: int) -> int:
        """The chunk for which filling the pipeline and sending cost the same: √(S · rate · latency / chain)."""
        chain, load, _ = _weights(program, hosts)
        a_message = self.bytes_per_s * self.message_s * HANDSHAKE
        best = int((float(load) * nbytes * a_message / max(1.0, float(chain[0]))) ** 0.5)
        return max(LEAST_CHUNK, min(MOST_CHUNK, best // (4 * KIB) * 4 * KIB))


@lru_cache(maxsize=1024)
def _weights(program: Program, hosts: Hosts) -> tuple[tuple[Fraction, Fraction], Fraction, Fraction]:
    """Messages between hosts and inside them on a chunk's longest chain; then two parts of S.

    The parts are the bytes of the busiest interface, and the bytes that the busiest rank reduces.
    """
    senders: dict[int, list[int]] = defaultdict(list)
    for number, role in enumerate(program.roles):
        for queue in role.sends:
            senders[queue].append(number)
    load: dict[tuple[int, str], Fraction] = defaultdict(Fraction)
    work: dict[int, Fraction] = defaultdict(Fraction)
    last: dict[int, tuple[Fraction, Fraction]] = {}
    items = program.collective.total_blocks()
    longest = _NO_MESSAGES
    for number, role in sorted(enumerate(program.roles), key=lambda one: (one[1].offset, one[0])):
        own = hosts.host_of[role.rank]
        incoming = [last.get(sender, _NO_MESSAGES) for queue in role.receives for sender in senders[queue]]
        across = sum(hosts.host_of[program.queues[queue].src] != own for queue in role.receives)
        begin = max(incoming, default=_NO_MESSAGES)
        begin = begin[0] + max(0, across - 1) * BUSY, begin[1]
        part = (program.slices[role.slice].stop - program.slices[role.slice].start) / items
        work[role.rank] += part * max(0, role.operands - 1)
        steps = [Fraction(0), Fraction(0)]
        for queue in role.sends:
            other = hosts.host_of[program.queues[queue].dst]
            if other == own:
                steps[1] = Fraction(1)
                continue
            load[own, "out"] += part
            load[other, "in"] += part
            steps[0] += BUSY if steps[0] else 1
        last[number] = begin[0] + steps[0], begin[1] + steps[1]
        longest = max(longest, last[number])
    return longest, max(load.values(), default=Fraction(0)), max(work.values(), default=Fraction(0))


def selected(
    hosts: Hosts, collective: Collective, nbytes: int, cost: Cost, area: Area, in_one_order: bool
) -> tuple[HostPlan, int]:
    """The plan for S = ``nbytes`` and its chunk in bytes; ``in_one_order`` selects among plans that sum by rank."""
    plans = _plans(hosts, collective, area, in_one_order)
    best = min(plans, key=lambda plan: cost.seconds(plan.program, hosts, nbytes))
    return best, cost.chunk_bytes(best.program, hosts, nbytes)


@lru_cache(maxsize=256)
def _plans(hosts: Hosts, collective: Collective, area: Area, in_one_order: bool) -> tuple[HostPlan, ...]:
    cache, topology = PlanCache(), hosts.topology
    plans, reasons = [], []
    ordered = in_one_order and collective.reduces
    for name in _IN_ORDER if ordered else (*_CANDIDATES.get(collective.name, ()), "optimal"):
        try:
            program = planned(topology, collective, topology.ranks, name, cache)
            if ordered:
                check_program(program)
            plans.append(laid_out(program, False, area))
        except UnsupportedError as error:
            reasons.append(error)
    if not plans:
        raise reasons[-1]
    return tuple(plans)
