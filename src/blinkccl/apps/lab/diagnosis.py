"""The link that a call waits for, by the data that the kernel could not deliver.

The kernel counts the bytes of every connection that its peer has not confirmed. All sites receive while they wait, so
only a link holds them back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address
from itertools import pairwise
from pathlib import Path as File

from blinkccl.apps.lab.layout import Layout, Path
from blinkccl.apps.lab.namespaces import Namespaces
from blinkccl.schedule.program import Program


def held_back(layout: Layout, program: Program, namespaces: Namespaces) -> dict[Path, int]:
    """Bytes by the path over which they are on their way, for a program among sites."""
    ways = {}
    for queue in program.queues:
        ways[queue.path[0], layout.receivers[queue.path]] = queue.path
        if sender := layout.senders.get(queue.path):
            ways[queue.path[-1], sender] = queue.path[::-1]
    held: Counter[Path] = Counter()
    for vertex in program.ranks:
        with namespaces.inside(vertex):
            table = File("/proc/thread-self/net/tcp").read_text()
        for peer, waiting in connections(table):
            if waiting and (vertex, peer) in ways:
                held[ways[vertex, peer]] += waiting
    return dict(held)


def connections(table: str) -> list[tuple[str, int]]:
    """The peer's address and the unconfirmed bytes of each connection in the text of /proc/net/tcp."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return [(str(IPv4Address(bytes.fromhex(row[2][:8])[::-1])), int(row[4][:8], 16)) for row in rows]


def blocked(held: Mapping[Path, int]) -> list[Path]:
    """The paths that hold back most.

    If a link is only slow, senders behind it also hold back a few bytes from time to time. So paths with less than half
    of the largest amount are dropped.
    """
    most = max(held.values(), default=0)
    return [path for path, waiting in held.items() if 2 * waiting >= most]


def common_links(paths: Iterable[Path]) -> list[tuple[int, int]]:
    """The links common to all of these paths, or else the links of any; in the direction of the data."""
    links = [dict.fromkeys(pairwise(path)) for path in paths]
    shared = list(dict.fromkeys(link for path in links for link in path))
    common = [link for link in shared if all(link in path for path in links)]
    return common or shared


def sentence(held: Mapping[Path, int], waits: Mapping[int, Exception]) -> str:
    """A hint for people; "" if nothing is held back. ``waits``: by vertex, the wait of its site."""
    paths = [path for path in blocked(held) if path[-1] in waits]
    if not paths:
        return ""
    named = " or ".join(f"{a} → {b}" for a, b in common_links(paths))
    return f"nothing, or too little, comes over link {named}: {waits[paths[0][-1]]}"
