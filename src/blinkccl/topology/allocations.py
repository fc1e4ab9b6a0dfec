"""The allocations that the papers count: connected sets of GPUs, one of each isomorphism class."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, permutations

from blinkccl.errors import TopologyError
from blinkccl.topology.catalog import machine
from blinkccl.topology.select import network_for

#: Width of the link between two GPUs of an allocation, by positions.
Widths = dict[tuple[int, int], int]


@lru_cache(maxsize=8)
def connected_allocations(name: str, smallest: int = 3) -> tuple[tuple[int, ...], ...]:
    """One allocation of each class of NVLink-connected GPU sets of a machine, by size and then by ids.

    46 for ``dgx-1v`` and 14 for ``dgx-1p`` with 3 to 8 GPUs (Blink, MLSys 2020, §5.2).
    """
    topology = machine(name)
    found: list[tuple[int, ...]] = []
    forms: dict[tuple[tuple[int, ...], ...], list[Widths]] = {}
    for size in range(smallest, len(topology.ranks) + 1):
        for gpus in combinations(topology.ranks, size):
            try:
                network = network_for(topology, gpus, "fast")
            except TopologyError:
                continue
            if any(link.kind != "nvlink" for link in network.links):
                continue
            widths = {(gpus.index(x.src), gpus.index(x.dst)): x.capacity for x in network.links}
            form = _invariant(size, widths)
            if not any(_isomorphic(size, widths, other) for other in forms.get(form, [])):
                forms.setdefault(form, []).append(widths)
                found.append(gpus)
    return tuple(found)


def _invariant(size: int, widths: Widths) -> tuple[tuple[int, ...], ...]:
    """The sorted widths at every vertex: equal for isomorphic graphs."""
    return tuple(sorted(tuple(sorted(w for (u, _), w in widths.items() if u == v)) for v in range(size)))


def _isomorphic(size: int, one: Widths, other: Widths) -> bool:
    return any(
        all(other.get((order[u], order[v])) == w for (u, v), w in one.items()) for order in permutations(range(size))
    )
