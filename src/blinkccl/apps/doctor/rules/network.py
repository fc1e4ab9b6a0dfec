"""Traffic between hosts: the network in use, distances from NICs to GPUs, and detours through host memory."""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.apps.doctor.evidence import Case, ChannelHop, Device, MachineRead, MeasuredCall, NetworkInUse, NicPath
from blinkccl.apps.doctor.finding import Finding, finding, named
from blinkccl.show.text import count
from blinkccl.topology.connectivity import reachable
from blinkccl.topology.model import Topology

_ORDER = ("PIX", "PXB", "PHB", "NODE", "SYS")


def net_socket(case: Case) -> Iterator[Finding]:
    """Hosts that communicate over TCP."""
    hops = [hop for hop in case.of(ChannelHop) if hop.detail.startswith("NET/Socket")]
    used = [one for one in case.of(NetworkInUse) if one.used == "Socket"]
    several = any(row.hosts > 1 for row in case.of(MeasuredCall))
    if not hops and not (used and several):
        return
    cards = sorted({card for one in case.of(NetworkInUse) for card in one.cards})
    nics = [device for device in case.of(Device) if device.kind == "nic"]
    has = ", ".join(cards) or (f"{len(nics)} network cards" if nics else "")
    yield finding(f"""
        warning: hosts communicate over TCP sockets  [net-socket]
        bound   InfiniBand or RoCE{f" by {has}" if has else ", if there are such cards"}
        got     NET/Socket: a few GB/s, and the processors copy every byte
        cause   NCCL {f"knows {has} and does not use them" if has else "has found no InfiniBand or RoCE device"}
        try     ibv_devices in the same container must list the cards (--device /dev/infiniband, --ulimit memlock=-1);
                unset NCCL_IB_DISABLE, NCCL_NET and look at NCCL_IB_HCA
        """).at(hops[:2], used[:1])


def nic_far(case: Case) -> Iterator[Finding]:
    """GPUs whose NICs are all on the other socket."""
    for source in dict.fromkeys(path.place.source for path in case.of(NicPath)):
        paths = [path for path in case.of(NicPath) if path.place.source == source]
        nearest: dict[str, str] = {}
        for path in paths:
            nearest[path.gpu] = min(nearest.get(path.gpu, "SYS"), path.kind, key=_ORDER.index)
        socket = _sockets_of(case, source)
        near = [gpu for gpu, kind in nearest.items() if kind != "SYS"]
        served = {socket.get(gpu, gpu) for gpu in near}
        far = [gpu for gpu in nearest if gpu not in near and socket.get(gpu, gpu) not in served]
        if not far or not near:
            continue
        nics = len({path.nic for path in paths})
        severity, attempt = "note", f"let jobs that span hosts have {named(near)} first"
        if nics > 1 and not _one_host(case):
            severity, attempt = "warning", "move half of the cards to slots of the other socket; until then let jobs "
            attempt += f"that span hosts ask for {named(near)}"
        yield finding(f"""
            {severity}: {named(far)} reach a network card only through the other socket  [nic-far]
            bound   a NIC on the GPU's own socket, or below its PCIe switch
            got     {count(nics, "network card")}, on the socket of {named(near)}
            cause   traffic of these GPUs to other hosts crosses the bus between sockets, and GPUDirect RDMA is off
                    on such a path
            try     {attempt}
            """).at([path for path in paths if path.gpu in far][:2])


def _one_host(case: Case) -> bool:
    """True if the evidence is of a job on one host, which needs no network card."""
    rows = case.of(MeasuredCall)
    net = any(hop.transport == "NET" for hop in case.of(ChannelHop))
    return bool(rows) and not net and all(row.hosts == 1 for row in rows)


def _sockets_of(case: Case, source: str) -> dict[str, object]:
    """The socket of each GPU: its NUMA node, or else the processor above it in the PCIe tree."""
    nodes = {d.name: d.numa for d in case.of(Device) if d.kind == "gpu" and d.place.source == source}
    if nodes and None not in nodes.values():
        return dict(nodes)
    machines = [machine for machine in case.of(MachineRead) if machine.place.source == source]
    return {m.topology.vertex[gpu].label: _host(m.topology, gpu) for m in machines[:1] for gpu in m.topology.ranks}


def _host(topology: Topology, gpu: int) -> int | None:
    """The processor above a GPU in the PCIe tree."""
    up: dict[int, list[int]] = {}
    for link in topology.links:
        if link.kind == "pcie" and link.dst not in topology.ranks:
            up.setdefault(link.src, []).append(link.dst)
    return next((v for v in sorted(reachable(gpu, up)) if topology.vertex[v].kind == "host"), None)


def no_gpudirect(case: Case) -> Iterator[Finding]:
    """NICs near GPUs whose data pass through host memory."""
    close = [path for path in case.of(NicPath) if path.kind in ("PIX", "PXB")]
    plain = [hop for hop in case.of(ChannelHop) if hop.detail.startswith("NET/IB") and "GDRDMA" not in hop.detail]
    direct = [hop for hop in case.of(ChannelHop) if "GDRDMA" in hop.detail]
    refused = case.failures("gpudirect")
    if not plain or direct or not (close or refused):
        return
    near = f": {close[0].nic} and {close[0].gpu} share a PCIe switch" if close else ""
    why = f"NCCL says: {refused[0].text}" if refused else "the kernel module for it is not loaded, or not visible here"
    yield finding(f"""
        warning: network cards reach the GPUs through the host's memory  [no-gpudirect]
        bound   GPUDirect RDMA{near}
        got     NET/IB without GDRDMA
        cause   {why}
        try     lsmod | grep nvidia_peermem (modprobe it), or a kernel with DMA-BUF; NCCL_NET_GDR_LEVEL=SYS forces it
                for a test
        """).at(plain[:2], refused[:1], close[:1])


RULES = (net_socket, nic_far, no_gpudirect)
