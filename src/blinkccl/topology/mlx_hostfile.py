"""MLX's hostfile, as written by ``mlx.distributed_config``: Macs, and the cables between their ports.

::

    {"backend": "jaccl", "hosts": [
      {"ssh": "m1", "ips": ["10.0.0.1"], "rdma": [null, "rdma_en5"]},
      {"ssh": "m2", "ips": ["10.0.0.2"], "rdma": ["rdma_en4", null]}]}

A host's ``rdma`` has an entry per host: null without a cable, one port, or a list of ports. Of several cables between
two Macs, the first port of one leads to the first port of the other. The file has no rates: the default is
Thunderbolt 5's, unless stated (``hosts.json @ nic=40Gbps``). All other fields are ignored.
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

#: Limit against nonsense input; JACCL meshes are small.
MAX_HOSTS = 256


def looks_like(text: str) -> bool:
    """True if ``text`` looks like JSON with a hostfile's ``rdma`` lists."""
    return text.lstrip()[:1] in ("{", "[") and re.search(r'"rdma"\s*:\s*\[', text[:65536]) is not None


def parse(text: str, source: str, stated: Stated = NOTHING) -> Topology:
    """The topology of the Macs in a hostfile; TopologyError, with the host, for invalid or contradictory entries."""
    names, ports = _read(text, source)
    box = Assembly(source, "MLX's hostfile")
    rate = stated.rate(box, "nic", "a cable", THUNDERBOLT5, "Thunderbolt 5")
    mac = Assembly("mac", "declared")
    mac.add("gpu", f"{APPLE} GPU")
    servers = [CabledServer(name, mac.finish()) for name in names]
    cables = [Cable((a, port), (b, other), rate) for a, port, b, other in _joined(names, ports, source)]
    if not cables:
        raise TopologyError(f"{source}: no cable: every rdma entry is null, but Blink plans on Thunderbolt cables")
    return cabled(source, servers, cables).noted(*box.notes)


def _read(text: str, source: str) -> tuple[list[str], list[list[list[str]]]]:
    """Read the hosts' names, and for each host its ports by the host at the other end."""
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
            raise TopologyError(f"{where}: ssh must be a name of no other host, got {shortened(repr(name))}")
        names.append(name)
        ports.append(_row(host["rdma"], i, len(hosts), where))
    return names, ports


def _row(entries: list[Any], own: int, hosts: int, where: str) -> list[list[str]]:
    """A host's ports by the host at the other end; no port twice, none to the host itself."""
    if len(entries) != hosts:
        raise TopologyError(f"{where}: rdma has {len(entries)} entries for {hosts} hosts; expected one each")
    row = [[] if entry is None else entry if isinstance(entry, list) else [entry] for entry in entries]
    taken = [port for ports in row for port in ports]
    for port in taken:
        if not isinstance(port, str) or not re.fullmatch(r"[\w.-]{1,64}", port):
            raise TopologyError(f"{where}: {shortened(repr(port))} is no port; expected e.g. rdma_en5, or null")
        if taken.count(port) > 1:
            raise TopologyError(f"{where}: {port} leads to two hosts, but a port has one cable")
    if row[own]:
        raise TopologyError(f"{where}: {row[own][0]} leads to the host itself; expected null there")
    return row


def _joined(names: Sequence[str], ports: list[list[list[str]]], source: str) -> Iterator[tuple[int, str, int, str]]:
    """Each cable once, as (host, port, other host, its port)."""
    for a in range(len(names)):
        for b in range(a + 1, len(names)):
            near_ports, far_ports = ports[a][b], ports[b][a]
            if len(near_ports) != len(far_ports):
                mismatch = " and ".join(
                    f"{name} has {', '.join(listed) or 'no port'} for {other}"
                    for name, listed, other in ((names[a], near_ports, names[b]), (names[b], far_ports, names[a]))
                )
                raise TopologyError(f"{source}: {mismatch}; a cable has a port at both ends")
            for port, other in zip(near_ports, far_ports, strict=True):
                yield a, port, b, other
