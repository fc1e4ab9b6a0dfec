"""Conversion of a job from the topology's numbers of GPUs, root, source and destination to ranks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from operator import index

from blinkccl.collectives.spec import COLLECTIVES, SPELLINGS, Collective
from blinkccl.errors import TopologyError, UsageError
from blinkccl.topology.model import Topology
from blinkccl.topology.select import LINK_CHOICES, check_ranks, joining_links, peers_wanted
from blinkccl.topology.spec import parse_gpus
from blinkccl.trees.algorithms.request import Request

_LOG = logging.getLogger(__name__)
#: root, src and dst, as vertex ids of the topology.
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
    """The request to plan among ``ranks``; ``ways`` are links and relays.

    ``name``, ``ends`` and ``dashes`` are those of :func:`collective_of`, ``warn`` that of :func:`links_for`.
    """
    collective = collective_of(name, ranks, ends, dashes)
    return Request(topology, collective, ranks, links_for(topology, ranks, ways, warn), ways[1])


def links_for(
    topology: Topology, ranks: Sequence[int], ways: tuple[str | None, bool], warn: Callable[[str], None]
) -> str:
    """The chosen links, or the first that connect the ranks.

    Calls ``warn`` if these are not the fast ones, or if the chosen links need a P2P that the GPUs do not have.
    """
    links, relays = ways
    if len(ranks) < 2:
        return links or LINK_CHOICES[0]
    if links is not None:
        _warn_of_peers(topology, ranks, links, relays, warn)
        return links
    links, why = joining_links(topology, ranks, relays=relays)
    if why:
        warn(why)
    return links


def _warn_of_peers(
    topology: Topology, ranks: Sequence[int], links: str, relays: bool, warn: Callable[[str], None]
) -> None:
    """Say that the user's links assume a P2P that the GPUs' product does not have."""
    try:
        wanted = peers_wanted(topology, ranks, links, relays=relays)
    except TopologyError:
        return  # The planner reports it.
    if wanted:
        warn(f"{wanted}; the plan assumes it")


def collective_of(
    name: str,
    ranks: Sequence[int],
    ends: Ends = (None, None, None),
    dashes: str = "",
) -> Collective:
    """The collective, with ``ends`` (vertex ids) converted to ranks.

    The default of root and src is the first rank, of dst the last, so that src and dst differ. ``dashes`` is the
    prefix of their names in messages.
    """
    name = SPELLINGS.get(name, name)
    root, src, dst = ends
    parameters = COLLECTIVES[name].parameters if name in COLLECTIVES else ()
    if "src" in parameters:
        src, dst = _two_ends(ranks, src, dst)
    end_ranks: dict[str, int | None] = {}
    for key, vertex in {"root": root, "src": src, "dst": dst}.items():
        if vertex is None:
            end_ranks[key] = 0 if key in parameters else None
        elif name in COLLECTIVES and key not in parameters:
            raise UsageError(f"{name} has no {key}: leave {dashes}{key} {vertex} out")
        elif vertex not in ranks:
            known = ", ".join(map(str, ranks))
            raise UsageError(f"{dashes}{key} {vertex} is not among the GPUs of the job: expected one of {known}")
        else:
            end_ranks[key] = ranks.index(vertex)
    return Collective(name, len(ranks), **end_ranks)


def _two_ends(ranks: Sequence[int], src: int | None, dst: int | None) -> tuple[int, int]:
    """The vertex ids of sendrecv's sender and receiver."""
    if len(ranks) < 2:
        raise UsageError("sendrecv among fewer than two ranks moves nothing: give at least two GPUs")
    if src is not None and src == dst:
        raise UsageError(f"src {src} and dst {dst}: expected two different ranks for sendrecv")
    sender = next(rank for rank in ranks if rank != dst) if src is None else src
    receiver = next(rank for rank in reversed(ranks) if rank != sender) if dst is None else dst
    return sender, receiver


def gpus_of(gpus: str | Iterable[int] | None, topology: Topology) -> tuple[int, ...]:
    """The ranks of a job: numbers in their order, or text for :func:`~blinkccl.topology.spec.parse_gpus`."""
    if gpus is None or isinstance(gpus, str):
        return parse_gpus(gpus, topology, "gpus")
    if isinstance(gpus, AbstractSet):
        raise UsageError("gpus is a set, which has no order: give a list, in the order of the ranks")
    try:
        ranks = tuple(index(gpu) for gpu in gpus)
    except TypeError:
        raise UsageError(f'gpus {gpus!r}: expected a list of numbers, or text like "1,4-6"') from None
    if not ranks:
        raise TopologyError("gpus is empty; leave it out for all GPUs")
    check_ranks(topology, ranks)
    return ranks
