"""MLX's hostfile, as ``mlx.distributed_config`` writes it: Macs, and which port of each leads to which other.

::

    {"backend": "jaccl", "hosts": [
      {"ssh": "m1", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en5"]},
      {"ssh": "m2", "ips": ["10.0.0.2"], "rdma": ["rdma_en4", null]}]}

A host's ``rdma`` has an entry per host: null where no cable leads there, a port, or several of them; of several cables
between two Macs the first leads to the other's first. The file does not say what a cable carries: Thunderbolt 5's rate,
or as stated (``hosts.json @ nic=40Gbps``). What else is in it is not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from blinkccl.errors import TopologyError
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.catalog import APPLE, THUNDERBOLT5
from blinkccl.topology.fabric import Cable, CabledServer, cabled
from blinkccl.topology.limits import shortened
from blinkccl.topology.model import Topology
from blinkccl.topology.stated import NOTHING, Stated

#: JACCL meshes are small; a file of thousands is none.
MAX_HOSTS = 256


def looks_like(text: str) -> bool:
    """Whether ``text`` is JSON with the words of a hostfile."""
    return text.lstrip()[:1] in ("{", "[") and re.search(r'"rdma"\s*:\s*\[', text[:65536]) is not None


def parse(text: str, source: str, stated: Stated = NOTHING) -> Topology:
    """The topology of the Macs in a hostfile; TopologyError, with the host, for what is none or contradicts itself."""
    names, ports = _read(text, source)
    box = Assembly(source, "MLX's hostfile")
    rate = stated.rate(box, "nic", "a cable", THUNDERBOLT5, "Thunderbolt 5")
    mac = Assembly("mac", "declared")
    mac.add("gpu", f"{APPLE} GPU")
    servers = [CabledServer(name, mac.finish()) for name in names]
    cables = [Cable((a, port), (b, other), rate) for a, port, b, other in _joined(names, ports, source)]
    if not cables:
        raise TopologyError(f"{source}: no cable: every rdma entry is null; blink plans on Thunderbolt cables here")
    return cabled(source, servers, cables).noted(*box.notes)


def _read(text: str, source: str) -> tuple[list[str], list[list[list[str]]]]:
    """The hosts' names, and per host and other host its ports that lead there."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TopologyError(f"{source}: no JSON: {shortened(str(error))}") from None
    hosts = document.get("hosts") if isinstance(document, dict) else document
    if not isinstance(hosts, list) or not 2 <= len(hosts) <= MAX_HOSTS:
        raise TopologyError(f'{source}: expected "hosts", a list of 2 to {MAX_HOSTS} hosts')
    names, ports = [], []
    for i, host in enumerate(hosts):
        where = f"{source}: hosts[{i}]"
        if not isinstance(host, dict) or not isinstance(host.get("rdma"), list):
            raise TopologyError(f'{where}: expected {{"ssh": NAME, "rdma": [PORT or null, …]}}')
        name = host.get("ssh", f"host{i}")
        if not isinstance(name, str) or not name or name in names:
            raise TopologyError(f"{where}: ssh is a name of its own, got {shortened(repr(name))}")
        names.append(name)
        ports.append(_row(host["rdma"], i, len(hosts), where))
    return names, ports


def _row(entries: list[Any], own: int, hosts: int, where: str) -> list[list[str]]:
    """A host's ports by the host that they lead to; none twice, and none to itself."""
    if len(entries) != hosts:
        raise TopologyError(f"{where}: rdma has {len(entries)} entries for {hosts} hosts; expected one each")
    row = [[] if entry is None else entry if isinstance(entry, list) else [entry] for entry in entries]
    taken = [port for ports in row for port in ports]
    for port in taken:
        if not isinstance(port, str) or not re.fullmatch(r"[\w.-]{1,64}", port):
            raise TopologyError(f"{where}: {shortened(repr(port))} is no port; expected e.g. rdma_en5, or null")
        if taken.count(port) > 1:
            raise TopologyError(f"{where}: {port} leads to two hosts, and a port has one cable")
    if row[own]:
        raise TopologyError(f"{where}: {row[own][0]} leads to the host itself; expected null there")
    return row


def _joined(names: Sequence[str], ports: list[list[list[str]]], source: str) -> Iterator[tuple[int, str, int, str]]:
    """Each cable once, as (host, port, other host, its port)."""
    for a in range(len(names)):
        for b in range(a + 1, len(names)):
            here, there = ports[a][b], ports[b][a]
            if len(here) != len(there):
                said = " and ".join(
                    f"{name} has {', '.join(found) or 'no port'} for {other}"
                    for name, found, other in ((names[a], here, names[b]), (names[b], there, names[a]))
                )
                raise TopologyError(f"{source}: {said}; a cable has a port at both ends")
            for port, other in zip(here, there, strict=True):
                yield a, port, b, other
