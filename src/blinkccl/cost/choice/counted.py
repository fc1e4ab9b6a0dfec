"""NCCL's rates of the links that a program of ours crosses: both cost the same on the same links.

NVLinks are in the calibrations of :mod:`blinkccl.cost.choice.costs`. Here are PCIe and the bus between processors, of
which NCCL's numbers depend on the machine and on the paths (:mod:`blinkccl.cost.baselines.nccl_links`): a message from
GPU to GPU through an Intel processor takes more of PCIe than its bytes. What ends in a processor's memory is no such
message.

Where messages on a link differ, it is as slow for all as it is on average.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise

from blinkccl.cost.baselines.nccl_links import Arch, kind_of
from blinkccl.cost.choice.programs import CandidateProgram
from blinkccl.schedule.program import Program, Queue
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.model import Topology
from blinkccl.topology.select import PCIE_KINDS


def counted_gb_per_s(one: CandidateProgram, arch: Arch) -> dict[tuple[int, int], float]:
    """GB/s of data that the program's messages get of each link of PCIe and each bus that they cross."""
    network, unit = one.network, exact_unit(one.network)
    bytes_of, taken = defaultdict[tuple[int, int], Fraction](Fraction), defaultdict[tuple[int, int], Fraction](Fraction)
    for queue, part in _parts(one.program).items():
        share = _share(one, queue)
        for leg in queue.legs:
            for arc in pairwise(leg):
                bytes_of[arc] += part
                taken[arc] += part * (share if network.link[arc].kind == "pcie" else 1)
    rates = {}
    for arc, part in bytes_of.items():
        link = network.link[arc]
        if link.kind in PCIE_KINDS:
            counted = one.counted.gb_per_s(link.kind, link.capacity * unit, arch)
            rates[arc] = float(counted * part / taken[arc])
    return rates


def _parts(program: Program) -> Mapping[Queue, Fraction]:
    """The part of S that goes through each queue."""
    weight = {item.block: item.weight for item in program.collective.items()}
    parts = dict.fromkeys(program.queues, Fraction(0))
    for role in program.roles:
        part = program.slices[role.slice]
        for number in role.sends:
            parts[program.queues[number]] += (part.stop - part.start) * weight[part.block]
    return {queue: part for queue, part in parts.items() if part}


def _share(one: CandidateProgram, queue: Queue) -> Fraction:
    """The load of one GB/s of its messages on PCIe."""
    if queue.is_staged or not _through_processor(one.network, queue.path):
        return Fraction(1)
    return one.counted.share(kind_of(one.network, queue.path), queue.path[0])


def _through_processor(network: Topology, path: tuple[int, ...]) -> bool:
    return any(network.vertex[vertex].kind == "host" for vertex in path[1:-1])
