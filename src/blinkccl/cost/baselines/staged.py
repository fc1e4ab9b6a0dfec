"""Baselines without pipelining: transfers that stop in host memory, or after each step of a script.

The papers compare with both; neither is NCCL or Blink:

- ``mpi-host-staged``: AllReduce of MPI libraries that reduce data of GPUs on the processor (the multi-path UCX article
  on Open MPI + UCX, Spectrum MPI and MVAPICH2): copy down, reduce, copy up. A formula.
- ``plain-ring``: one ring whose script waits for a send and a receive in each step ("NCCL ring vs tree"). A timed plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import fsum

import msgspec

from blinkccl.cost.baselines.candidate import ChunkedPlan, Conditions, Formula, Prepared, planned
from blinkccl.cost.simulate.calibration import Calibration, EngineCosts, LinkClass, Number, link_cost
from blinkccl.errors import TopologyError, UnsupportedError
from blinkccl.topology.model import RANK_KINDS, Link, Topology
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import (
    by_server,
    chain_down,
    chain_up,
    cyclic,
    forest_on,
    require_collective,
    transit_paths,
)
from blinkccl.trees.forest.model import Forest, Path, Share
from blinkccl.units import GB

#: A copy between a GPU and memory from malloc by one process: the driver copies once more, into locked memory.
PAGEABLE_GB_PER_S = Number(5.5, "5 to 6 GB/s on servers with V100s: pull request 98 of dask-cuda")
#: The rate at which one core reads data that another wrote.
HOST_COPY_GB_PER_S = Number(10.0, "measured: 10 to 16 GB/s on a Xeon host (benchmarks/README.md)")
#: The rate at which one core adds a float32 message to another. No rates of MPI on Mist or Cedar are published.
HOST_COMBINE_GB_PER_S = Number(8.0, "assumed: a third of the 24 GB/s at which a core moves its own memory there")

#: One step of the script: a batch of a send and a receive, the wait for it, and the kernel that reduces or copies.
HOST_STEP_US = Number(1.0, "assumed: a hand-over between two processes of a host, ours takes 0.3 to 1 us")
PLAIN_STEP_US = Number(60.3, "fitted: NCCL ring vs tree, 4 KB: 1.81 ms, and the code's 2 * 15 steps")
#: The maximum rate of a step to the next rank on another server.
PLAIN_NET_GB_PER_S = Number(20.0, "fitted: NCCL ring vs tree, 8 GB: 30 steps of 512 MiB in 806 ms")


def prepare_host_staged(request: Request, conditions: Conditions) -> Prepared:
    """AllReduce in host memory: all ranks copy down, their processes reduce, all copy up.

    As in Open MPI's component coll/cuda, each process exchanges 2(N−1)/N·S through shared memory and reduces (N−1)/N·S,
    like a ring. The rates of Mist and Cedar are not published, so these are others. Two costs are left out: page faults
    of the buffer that each call allocates, and the memory of a socket that four processes share.
    """
    require_collective(request, "mpi-host-staged", ("allreduce",), "use another algorithm")
    if len(by_server(request.topology, request.ranks)) > 1:
        raise UnsupportedError("mpi-host-staged is a model of one server, but the ranks are on several")
    ways = [_way_to_host(request.topology, rank) for rank in request.ranks]
    used: dict[tuple[int, int], int] = {}
    for way in ways:
        for pair in pairwise(way):
            used[pair] = used.get(pair, 0) + 1
    slowest = 1 / (PAGEABLE_GB_PER_S.value * GB)
    for pair, ranks in used.items():
        for direction in (pair, pair[::-1]):
            slowest = max(slowest, ranks / _rate(conditions.calibration, request.topology.link[direction]))
    n = len(request.ranks)
    fixed_s = 2 * _before_first_byte_s(request.topology, conditions.calibration, ways)
    fixed_s += 2 * (n - 1) * HOST_STEP_US.value * 1e-6
    shared, combined = 2 * (n - 1) / n / HOST_COPY_GB_PER_S.value, (n - 1) / n / HOST_COMBINE_GB_PER_S.value
    s_per_byte = 2 * slowest + (shared + combined) / GB
    how = f"copies at {1 / slowest / GB:.3g} GB/s, processors reduce at an assumed {HOST_COMBINE_GB_PER_S.value:g} GB/s"
    return Formula("mpi-host-staged", request, lambda size_bytes: (fixed_s + size_bytes * s_per_byte, how))


def _before_first_byte_s(topology: Topology, calibration: Calibration, ways: Sequence[Path]) -> float:
    """Maximum seconds of a copy to the host before its first byte."""
    latency_s = [fsum(link_cost(calibration, topology.link[pair]).latency_s for pair in pairwise(way)) for way in ways]
    return calibration.engine.issue_us.value * 1e-6 + max(latency_s)


def _way_to_host(topology: Topology, rank: int) -> Path:
    """The shortest path of two-way links from a GPU to a host, not through other GPUs or a NIC."""
    onward: dict[int, list[int]] = {}
    for src, dst in sorted(topology.link):
        if topology.vertex[dst].kind not in (*RANK_KINDS, "nic") and (dst, src) in topology.link:
            onward.setdefault(src, []).append(dst)
    ways: list[Path] = [(rank,)]
    visited = {rank}
    for way in ways:
        if topology.vertex[way[-1]].kind == "host":
            return way
        for vertex in onward.get(way[-1], ()):
            if vertex not in visited:
                visited.add(vertex)
                ways.append((*way, vertex))
    raise UnsupportedError(
        f"mpi-host-staged needs a path to host memory, but no links join GPU {rank} of {topology.name} to a host"
    )


def _rate(calibration: Calibration, link: Link) -> float:
    """Bytes per second of a link; a link without a class in the calibration excludes this baseline alone."""
    try:
        return link_cost(calibration, link).rate
    except TopologyError as error:
        raise UnsupportedError(str(error)) from None


def prepare_plain_ring(request: Request, conditions: Conditions) -> Prepared:
    """One ring in the order of the ranks: a chunk of S/N per step, each after the end of the previous step.

    AllReduce takes 2(N−1) steps of :data:`PLAIN_STEP_US` + S/N at the slowest hop's rate ("NCCL ring vs tree", its
    ``ring_allreduce``). In the plan, share r goes up the chain that ends at rank r and down the chain that starts
    there. Each hop thus carries one chunk in every step.

    The job's calibration gives the rates, limited between servers to :data:`PLAIN_NET_GB_PER_S`. Both constants are
    fitted to the first and the last row of that document's table; only the rows between are predictions.
    """
    require_collective(request, "plain-ring", ("allreduce",), "use --algo ring")
    forest = plain_ring(request)
    own = replace(conditions, calibration=step_by_step(conditions.calibration, forest.topology))
    base = planned("plain-ring", forest, own)
    detail = f"{2 * len(request.ranks) - 2} steps of {PLAIN_STEP_US.value:g} µs, one channel"
    return ChunkedPlan(base.name, forest, base.program, own, detail)


def plain_ring(request: Request) -> Forest:
    """The one ring in the order of the ranks; raises as :func:`prepare_plain_ring`."""
    ranks = request.ranks
    network = request.network
    paths = transit_paths(network, ranks)
    for u, v in zip(ranks, (*ranks[1:], ranks[0]), strict=True):
        if (u, v) not in paths:
            raise UnsupportedError(
                f"plain-ring needs a hop from {u} to {v}, but no link or switch of {network.name} joins them; "
                "give the GPUs in another order, or --links all"
            )
    shares = []
    for i, rank in enumerate(ranks):
        down = cyclic(ranks, rank)
        shares.append(
            Share(
                Fraction(1, len(ranks)),
                i,
                None,
                rank,
                chain_up(paths, (*down[1:], rank)),
                chain_down(paths, down),
            )
        )
    return forest_on(request, "plain-ring", network, shares)


def step_by_step(calibration: Calibration, network: Topology) -> Calibration:
    """``calibration`` for a script that waits for each step: transfers have a start-up time, and sends a lower rate."""
    rates = sorted({link.gb_per_s for link in network.links if link.kind == "net"}, reverse=True)
    fastest = {link.gb_per_s: link_cost(calibration, link).rate / GB for link in network.links if link.kind == "net"}
    contained = Number(0.0, "contained in the step")
    net = [
        LinkClass(
            "net",
            gb_per_s,
            Number(min(fastest[gb_per_s], PLAIN_NET_GB_PER_S.value), PLAIN_NET_GB_PER_S.source),
            contained,
        )
        for gb_per_s in rates
    ]
    others = [msgspec.structs.replace(row, latency_us=contained) for row in calibration.link if row.kind != "net"]
    # One send at a time, so that a step begins at the end of the previous one.
    engine = EngineCosts(issue_us=PLAIN_STEP_US, copy_engines=Number(1.0, "the script waits for each send"))
    name = f"{calibration.name}, step by step"
    return msgspec.structs.replace(calibration, name=name, engine=engine, link=(*net, *others))
