"""Blink's traffic patterns (MLSys 2020, §2.2 and appendix A.1): costs of copies and in-flight reductions.

Each pattern is a Program on links of one V100 NVLink lane, timed by the kernel. Claims B6 to B9 are Blink's text on
them, on a p3.16xlarge. Its appendix has "around 18 GB/s" for chain reduce+forward, which contradicts Fig 7.

Three points are open in the text, and these are our choices:

- MIMO and MCA have five GPUs; MCA has chains of two GPUs, and the sum stays at the center, which adds its own data.
- If several streams meet, the throughput is the bytes over the busiest link divided by the time: a chain's size by its
  time, and all data that a fan-in's successor receives.
- The chunk is a good one (:func:`~blinkccl.cost.simulate.chunk_search.near_best`). Each link has one stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise

from blinkccl.collectives.spec import Block, Collective
from blinkccl.cost.simulate.calibration import Calibration
from blinkccl.cost.simulate.chunk_search import Trial, near_best
from blinkccl.cost.simulate.translate import Settings, frame
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.model import Topology
from blinkccl.topology.synthetic import LANE_GB_PER_S
from blinkccl.trees.forest.model import Cut, Forest, Path, Share, Tree, attained_rate
from blinkccl.units import algbw_gb_per_s

#: The calibration of the patterns.
CALIBRATION = "v100-copy-engine"
#: A stream per link: a fan-in's successor is reached by one, although each source has a tree of its own.
ONE_STREAM_PER_LINK = Settings(streams="reused")


Built = tuple[Topology, Program]


def measure(traffic: Built, size_bytes: int, costs: Calibration, settings: Settings = ONE_STREAM_PER_LINK) -> Trial:
    """A good chunk of a pattern and its throughput in GB/s: bytes over its busiest link by the time.

    ``size_bytes`` is the data of each source of the pattern.
    """
    network, program = traffic
    timed = near_best(frame(program, network, costs, settings), size_bytes * program.collective.total_blocks())
    carried = int(timed.translation.workload.link_bytes.max())
    return Trial(timed.chunk_bytes, algbw_gb_per_s(carried, timed.seconds) if timed.seconds else 0.0)


def _chain_forward(gpus: int) -> Built:
    along = _walk(range(gpus))
    return _built("broadcast", gpus, [_share(0, down=along)], root=0)


def _chain_reduce_forward(gpus: int) -> Built:
    """The last GPU only receives (A.1.1: "each GPU (except the last one) has its own data")."""
    last = gpus - 1
    return _built("reduce", gpus, [_share(last, up=_walk(range(gpus)))], root=last, without=(last,))


def _chain_reduce_broadcast(gpus: int) -> Built:
    along, back = _walk(range(gpus)), _walk(reversed(range(gpus)))
    return _built("allreduce", gpus, [_share(gpus - 1, up=along, down=back)])


def _mimo(_: int) -> Built:
    """GPUs 0 and 1 send to 2, which adds data of its own to each and sends the sums to 3 and 4."""
    shares = [_share(3, up=((0, 2), (2, 3)), block=3), _share(4, up=((1, 2), (2, 4)), block=4)]
    return _built("reduce_scatter", 5, shares, without=(3, 4))


def _mca(_: int) -> Built:
    """0 → 1 → 2 ← 3 ← 4, with a reduction on each hop."""
    return _built("reduce", 5, [_share(2, up=(*_walk((0, 1, 2)), *_walk((4, 3, 2))))], root=2)


def _fan_in_forward(degree: int) -> Built:
    center, successor = degree, degree + 1
    shares = [_share(i, down=_walk((i, center, successor)), block=i) for i in range(degree)]
    return _built("gather", degree + 2, shares, root=successor)


def _fan_in_reduce_forward(degree: int) -> Built:
    center, successor = degree, degree + 1
    inward = tuple((i, center) for i in range(degree))
    share = _share(successor, up=(*inward, (center, successor)))
    return _built("reduce", degree + 2, [share], root=successor, without=(successor,))


def _fan_out_forward(degree: int) -> Built:
    center, source = degree, degree + 1
    outward = tuple((center, i) for i in range(degree))
    return _built("broadcast", degree + 2, [_share(source, down=((source, center), *outward))], root=source)


def _walk(gpus: Iterable[int]) -> tuple[Path, ...]:
    return tuple(pairwise(gpus))


def _share(root: int, up: tuple[Path, ...] = (), down: tuple[Path, ...] = (), block: Block = None) -> Share:
    """A share of a whole block; its weight is set when the collective is known."""
    return Share(Fraction(1), 0, block, root, Tree(root, up) if up else None, Tree(root, down) if down else None)


def _built(name: str, gpus: int, shares: list[Share], root: int | None = None, without: tuple[int, ...] = ()) -> Built:
    """The program on one lane per pair that a share joins; GPUs in ``without`` have no data of their own.

    The collective is the nearest one: it is incomplete if ranks have no data, or not every block moves. So nothing is
    claimed about a bound, and these programs are for timing only.
    """
    collective = Collective(name, gpus, root=root)
    shares = [replace(share, weight=Fraction(1, collective.total_blocks())) for share in shares]
    box = Assembly(f"{gpus} GPUs", "synthetic")
    box.add_many("gpu", gpus, "GPU")
    pairs = {(min(edge), max(edge)): None for share in shares for tree in share.trees() for edge in tree.edges}
    for a, b in pairs:
        box.join(a, b, LANE_GB_PER_S, "nvlink")
    network = box.finish()
    rate = attained_rate(network, shares)
    no_claim = Cut((0,), rate, Fraction(1))
    program = lower(Forest(collective, network.ranks, "by hand", network, tuple(shares), rate, no_claim))
    roles = (replace(r, contributes=False, own_operand_index=0) if r.rank in without else r for r in program.roles)
    return network, replace(program, roles=tuple(roles))


_CHAINS, _DEGREES, _ONE = (3, 4, 5, 6, 7, 8), (1, 2, 3), (0,)

#: Builder of each pattern, and its breadths: GPUs of a chain, or degrees of a fan (a GPU of a DGX-1 has four
#: neighbours); 0 for patterns without one.
PATTERNS: dict[str, tuple[Callable[[int], Built], tuple[int, ...]]] = {
    "chain-forward": (_chain_forward, _CHAINS),  # Figs 23a, 24
    "chain-reduce-forward": (_chain_reduce_forward, _CHAINS),  # Figs 6, 7, 23b, 24
    "chain-reduce-broadcast": (_chain_reduce_broadcast, _CHAINS),  # Figs 23c, 24
    "mimo": (_mimo, _ONE),  # Fig 8a, c: two streams through one GPU, each reduced there
    "mca": (_mca, _ONE),  # Fig 8b, c: two reduce+forward chains into one GPU
    "fan-in-forward": (_fan_in_forward, _DEGREES),  # Figs 25a, 26
    "fan-in-reduce-forward": (_fan_in_reduce_forward, _DEGREES),  # Figs 25b, 26
    "fan-out-forward": (_fan_out_forward, _DEGREES),  # Figs 25c, 26
}


@cache
def pattern(name: str, breadth: int = 0) -> Built:
    """The pattern ``name`` of :data:`PATTERNS`."""
    return PATTERNS[name][0](breadth)
