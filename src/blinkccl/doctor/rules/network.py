"""Between hosts: which network NCCL took, how far the NICs are from the GPUs, and what goes through the host's
memory."""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.doctor.evidence import Case, Device, GpuDirect, Hop, Machine, Measured, Network, NicPath
from blinkccl.doctor.finding import Finding, named, places
from blinkccl.report.text import count

_ORDER = ("PIX", "PXB", "PHB", "NODE", "SYS")


def findings(case: Case) -> Iterator[Finding]:
    """Sockets, far NICs, no GPUDirect."""
    yield from _sockets(case)
    yield from _far(case)
    yield from _no_gpudirect(case)


def _sockets(case: Case) -> Iterator[Finding]:
    hops = [hop for hop in case.of(Hop) if hop.detail.startswith("NET/Socket")]
    used = [one for one in case.of(Network) if one.used == "Socket"]
    several = any(row.hosts > 1 for row in case.of(Measured))
    if not hops and not (used and several):
        return
    if not several and not any(hop.transport == "NET" for hop in case.of(Hop)):
        return
    cards = sorted({card for one in case.of(Network) for card in one.cards})
    nics = [device for device in case.of(Device) if device.kind == "nic"]
    has = ", ".join(cards) or (f"{len(nics)} network cards" if nics else "")
    yield Finding(
        "net-socket",
        "warning",
        "hosts talk over TCP sockets",
        f"InfiniBand or RoCE by {has}" if has else "InfiniBand or RoCE, where there are such cards",
        "NET/Socket: a few GB/s, and the processors copy every byte",
        f"NCCL knows {has} and does not use them" if has else "NCCL has found no InfiniBand or RoCE device",
        "ibv_devices in the same container must list the cards (--device /dev/infiniband, --ulimit memlock=-1); unset "
        "NCCL_IB_DISABLE, NCCL_NET and look at NCCL_IB_HCA",
        places(hops[:2], used[:1]),
    )


def _far(case: Case) -> Iterator[Finding]:
    """GPUs all of whose NICs are behind the other socket."""
    for source in dict.fromkeys(path.place.source for path in case.of(NicPath)):
        paths = [path for path in case.of(NicPath) if path.place.source == source]
        nearest: dict[str, str] = {}
        for path in paths:
            known = nearest.get(path.gpu, "SYS")
            nearest[path.gpu] = min(known, path.kind, key=_ORDER.index)
        socket = _sockets_of(case, source)
        near = [gpu for gpu, kind in nearest.items() if kind != "SYS"]
        served = {socket.get(gpu, gpu) for gpu in near}
        far = [gpu for gpu in nearest if gpu not in near and socket.get(gpu, gpu) not in served]
        nics = {path.nic for path in paths}
        if not far or not near:
            continue
        few = len(nics) == 1
        yield Finding(
            "nic-far",
            "note" if few else "warning",
            f"{named(far)} reach a network card only through the other socket",
            "a NIC on the GPU's own socket, or below its PCIe switch",
            f"{count(len(nics), 'network card')}, on the socket of {named(near)}",
            "what these GPUs send to other hosts crosses the bus between sockets, and GPUDirect RDMA is off on such a "
            "way",
            f"let jobs that span hosts have {named(near)} first"
            if few
            else "move half of the cards to slots of the other socket; until then let jobs that span hosts ask for "
            f"{named(near)}",
            places([path for path in paths if path.gpu in far][:2]),
        )


def _sockets_of(case: Case, source: str) -> dict[str, object]:
    """The socket of each GPU, as its NUMA node or the processor that its PCIe leads up to."""
    told = {d.name: d.numa for d in case.of(Device) if d.kind == "gpu" and d.place.source == source}
    if told and None not in told.values():
        return dict(told)
    machines = [machine for machine in case.of(Machine) if machine.place.source == source]
    return {m.topology.vertex[gpu].label: _host(m, gpu) for m in machines[:1] for gpu in m.topology.ranks}


def _host(machine: Machine, gpu: int) -> int | None:
    """The processor that a GPU's PCIe leads up to."""
    topology = machine.topology
    seen, layer = {gpu}, [gpu]
    while layer:
        vertex = layer.pop(0)
        if topology.vertex[vertex].kind == "host":
            return vertex
        for x in topology.links:
            if x.src == vertex and x.kind == "pcie" and x.dst not in seen and x.dst not in topology.ranks:
                seen.add(x.dst)
                layer.append(x.dst)
    return None


def _no_gpudirect(case: Case) -> Iterator[Finding]:
    close = [path for path in case.of(NicPath) if path.kind in ("PIX", "PXB")]
    plain = [hop for hop in case.of(Hop) if hop.detail.startswith("NET/IB") and "GDRDMA" not in hop.detail]
    direct = [hop for hop in case.of(Hop) if "GDRDMA" in hop.detail]
    refused = [one for one in case.of(GpuDirect) if not one.allowed]
    if not plain or direct or not (close or refused):
        return
    yield Finding(
        "no-gpudirect",
        "warning",
        "network cards reach the GPUs through the host's memory",
        f"GPUDirect RDMA: {close[0].nic} and {close[0].gpu} share a PCIe switch" if close else "GPUDirect RDMA",
        "NET/IB without GDRDMA",
        f"NCCL says: {refused[0].why}" if refused else "the kernel module for it is not loaded, or not visible here",
        "lsmod | grep nvidia_peermem (modprobe it), or a kernel with DMA-BUF; NCCL_NET_GDR_LEVEL=SYS forces it for a "
        "test",
        places(plain[:2], refused[:1], close[:1]),
    )
