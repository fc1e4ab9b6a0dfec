"""A job as somebody named it: GPUs and ends by the numbers of the topology, turned into ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from operator import index

from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.errors import TopologyError, UsageError
from blinkccl.topology.model import Topology
from blinkccl.topology.select import LINK_CHOICES, check_ranks, joining_links
from blinkccl.topology.spec import parse_gpus
from blinkccl.trees.algorithms.request import Request

_LOG = logging.getLogger(__name__)
#: root, src and dst, as the topology numbers them.
Ends = tuple[int | None, int | None, int | None]


def request(
    topology: Topology,
    ranks: tuple[int, ...],
    name: str,
    ends: Ends,
    ways: tuple[str | None, bool] = (None, False),
    dashes: str = "",
    warn: Callable[[str], None] = _LOG.warning,
) -> Request:
    """What to plan among ``ranks``; ``ways`` are links and relays, the rest as for :func:`collective_of`.

    ``warn`` is for :func:`links_for`.
    """
    collective = collective_of(name, ranks, ends, dashes)
    return Request(topology, collective, ranks, links_for(topology, ranks, ways, warn), ways[1])


def links_for(
    topology: Topology, ranks: Sequence[int], ways: tuple[str | None, bool], warn: Callable[[str], None]
) -> str:
    """The links that were chosen, or that join the ranks; ``warn`` hears where the latter are not the fast ones."""
    links, relays = ways
    if links is not None:
        return links
    if len(ranks) < 2:
        return LINK_CHOICES[0]
    links, why = joining_links(topology, ranks, relays=relays)
    if why:
        warn(why)
    return links


def collective_of(
    name: str,
    ranks: Sequence[int],
    ends: Ends = (None, None, None),
    dashes: str = "",
) -> Collective:
    """The collective, with the ends that were named as vertex ids turned into ranks.

    Ends not given are the first rank, for ``dst`` the last; of sendrecv, that is not the other end. ``dashes`` are what
    stands before an end's name in messages.
    """
    root, src, dst = ends
    wanted = COLLECTIVES[name].parameters if name in COLLECTIVES else ()
    if "src" in wanted:
        src, dst = _two_ends(ranks, src, dst)
    found: dict[str, int | None] = {}
    for key, vertex in {"root": root, "src": src, "dst": dst}.items():
        if vertex is None:
            found[key] = 0 if key in wanted else None
        elif name in COLLECTIVES and key not in wanted:
            raise UsageError(f"{name} has no {key}: leave {dashes}{key} {vertex} out")
        elif vertex not in ranks:
            known = ", ".join(map(str, ranks))
            raise UsageError(f"{dashes}{key} {vertex} is not among the GPUs of the job: expected one of {known}")
        else:
            found[key] = ranks.index(vertex)
    return Collective(name, len(ranks), **found)


def _two_ends(ranks: Sequence[int], src: int | None, dst: int | None) -> tuple[int, int]:
    """Both ends of sendrecv."""
    if len(ranks) < 2:
        raise UsageError("sendrecv among fewer than two ranks moves nothing: give at least two GPUs")
    if src is not None and src == dst:
        raise UsageError(f"src {src} dst {dst}: sendrecv needs two different ranks")
    sender = next(rank for rank in ranks if rank != dst) if src is None else src
    receiver = next(rank for rank in reversed(ranks) if rank != sender) if dst is None else dst
    return sender, receiver


def gpus_of(gpus: str | Iterable[int] | None, topology: Topology) -> tuple[int, ...]:
    """The ranks of a job: numbers in their order, or text as :func:`~blinkccl.topology.spec.parse_gpus` takes it."""
    if gpus is None or isinstance(gpus, str):
        return parse_gpus(gpus, topology, "gpus")
    if isinstance(gpus, AbstractSet):
        raise UsageError("gpus is a set, which has no order, and ranks have one: give a list")
    try:
        ranks = tuple(index(gpu) for gpu in gpus)
    except TypeError:
        raise UsageError(f'gpus {gpus!r}: expected a list of numbers, or text like "1,4-6"') from None
    if not ranks:
        raise TopologyError("gpus is empty; leave it out for all GPUs")
    check_ranks(topology, ranks)
    return ranks
