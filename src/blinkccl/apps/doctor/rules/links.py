"""Links below the rate or width of their kind: PCIe, NVLink, the bus between sockets, one of two directions."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from blinkccl.apps.doctor.evidence import (
    Case,
    Device,
    Evidence,
    MachineRead,
    NcclVersion,
    NvLinks,
    Processor,
    SocketBus,
)
from blinkccl.apps.doctor.finding import Finding, finding, named
from blinkccl.apps.doctor.rules.job import jobs
from blinkccl.show.text import gb_per_s_text
from blinkccl.topology.connectivity import beside

_KINDS = {"gpu": "GPU", "nic": "network card"}
#: Families of AuthenticAMD's Zen 5 in NCCL's XML; NCCL's rate for it since 2.32, and for all AMD processors before.
_ZEN5 = (191, 26)
_ZEN5_GB_PER_S, _AMD_OLD_GB_PER_S, _FIXED_IN = 32, 16, (2, 32)


def pcie_narrow(case: Case) -> Iterator[Finding]:
    """Devices with fewer lanes than possible."""
    devices = [device for device in case.of(Device) if device.kind in _KINDS and device.width is not None]
    return _pcie(devices, "pcie-narrow", "width", "×{:g}")


def pcie_slow(case: Case) -> Iterator[Finding]:
    """Devices of a lower generation than possible, without idle links, which may be turned down to save power."""
    devices = [device for device in case.of(Device) if device.kind in _KINDS and device.gt_per_s is not None]
    return _pcie(devices, "pcie-slow", "gt_per_s", "{:g} GT/s")


def _pcie(devices: Sequence[Device], cause: str, what: str, unit: str) -> Iterator[Finding]:
    """Devices whose ``what`` is below their own maximum or below the usual value of their kind."""
    low: dict[str, list[tuple[Device, float]]] = {}
    for device in devices:
        if what == "gt_per_s" and device.idle:
            continue
        now, most = getattr(device, what), getattr(device, f"max_{what}")
        usual = _usual(device, devices, what)
        if usual is not None and now < usual:
            low.setdefault(device.kind, []).append((device, usual))
        elif most is not None and now < most and device.kind == "gpu":
            low.setdefault(device.kind, []).append((device, most))
    for kind, slow in low.items():
        names = named(device.name for device, _ in slow)
        first, could = slow[0]
        now = getattr(first, what)
        comparison = "" if getattr(first, f"max_{what}") else ", as similar devices here have"
        yield finding(f"""
            warning: PCIe of {names} runs at {unit.format(now)}, not {unit.format(could)}  [{cause}]
            bound   {unit.format(could)}{comparison}
            got     {unit.format(now)}
            cause   PCIe transfers of this {_KINDS[kind]} take {could / now:g} times as long; check for a riser, a slot
                    shared with another card, dirty contacts or a BIOS setting
            try     reseat {names} or move it to another slot; sudo lspci -vv | grep -E 'LnkCap:|LnkSta:' shows all
                    links
            """).at([device for device, _ in slow])


def _usual(device: Device, devices: Sequence[Device], what: str) -> float | None:
    """The value of most devices of the same kind and model in the same source; None without a majority."""
    same = (device.place.source, device.kind, device.model)
    like = [getattr(one, what) for one in devices if (one.place.source, one.kind, one.model) == same]
    value, count = Counter(like).most_common(1)[0]
    return value if 2 * count > len(like) and count > 1 else None


def pcie_uplink(case: Case) -> Iterator[Finding]:
    """Bridges much slower than the GPU below them; most are virtual, with a rate that has no meaning."""
    for machine in case.of(MachineRead):
        topology = machine.topology
        pcie = [x for x in topology.links if x.kind == "pcie" and x.dst not in topology.ranks]
        slow = []
        for link in pcie:
            above = [x.gb_per_s for x in pcie if x.src == link.dst]
            if link.src in topology.ranks and above and 4 * max(above) < link.gb_per_s:
                slow.append((link.src, above[0], link.gb_per_s))
        if not slow:
            continue
        _, rate, own = min(slow)
        names = named(topology.vertex[gpu].label for gpu, _, _ in sorted(slow))
        yield finding(f"""
            warning: the PCIe bridges above {names} are {gb_per_s_text(rate)}  [pcie-uplink]
            bound   {gb_per_s_text(own)}, as the GPU's own link
            got     {gb_per_s_text(rate)}
            cause   NCCL rates a path by its slowest link; virtual machines show bridges of 2.5 GT/s ×1
                    that do not exist, and then NCCL avoids the path
            try     give NCCL a corrected file: dump it with NCCL_TOPO_DUMP_FILE, set link_speed and link_width of
                    these bridges to those of the GPU, and point NCCL_TOPO_FILE at it
            """).at(machine)


def one_way(case: Case) -> Iterator[Finding]:
    """Links with at least twice the rate for one of the two operations, reads and writes."""
    for machine in case.of(MachineRead):
        links = [(x, x.read_capacity) for x in machine.topology.links if x.read_capacity]
        uneven = [(x, read) for x, read in links if not 0.5 < read / x.capacity < 2]
        if not uneven:
            continue
        link, reading = min(uneven, key=lambda pair: min(pair[0].capacity, pair[1]))
        (low, slow), (high, fast) = sorted([(link.capacity, "writes"), (reading, "reads")])
        unit = machine.topology.unit_gb_per_s
        ends = " and ".join(machine.topology.vertex[v].label for v in (link.src, link.dst))
        queues = "pulled" if fast == "reads" else "pushed"
        yield finding(f"""
            warning: {slow} between {ends} are {high / low:.0f} times slower than {fast}  [one-way]
            bound   {gb_per_s_text(high * unit)} by {fast}
            got     {gb_per_s_text(low * unit)} by {slow}
            cause   {len(uneven)} links differ by operation; a library that only {slow[:-1]}s gets the slow rate
            try     plans that use {fast}: blink plan allreduce --topo {shlex.quote(machine.place.source)} (queues are
                    {queues} there); with NCCL NCCL_P2P_READ_ENABLE={int(fast == "reads")}
            """).at(machine)


def nvlink_down(case: Case) -> Iterator[Finding]:
    """GPUs with fewer NVLinks up than others; omitted if the input may not show all ends of a mesh."""
    by_source: dict[str, list[NvLinks]] = {}
    for links in case.of(NvLinks):
        by_source.setdefault(links.place.source, []).append(links)
    for source, group in by_source.items():
        most, fewest_down = max(x.up for x in group), min(x.down for x in group)
        down = [x for x in group if x.down > fewest_down]
        low = down or ([x for x in group if x.up < most] if _all_shown(case, source, len(group)) else [])
        if not low or most == 0:
            continue
        worst = min(low, key=lambda x: x.up)
        why = "it has fewer NVLinks than the others: a link is down, or a bridge is not seated"
        if down:
            why = "traffic through this GPU is slower by the same factor, and a ring slows down every GPU"
        host = worst.gpu.rpartition("/")[0]
        where = f" on host {host} of this file" if host else ""
        yield finding(f"""
            warning: {named(x.gpu for x in low)}: NVLinks are down  [nvlink-down]
            bound   {most} NVLinks, as the other GPUs have
            got     {worst.up} on {worst.gpu}
            cause   {why}
            try     nvidia-smi nvlink -s -i {worst.gpu.rpartition("GPU")[2]}{where}, then nvidia-smi nvlink -e for
                    errors; reset the GPU, or reseat the bridge or the module
            """).at(low)


def _all_shown(case: Case, source: str, gpus: int) -> bool:
    """True if all ends of NVLinks are visible: a switch, pairs, a full mesh, or a whole machine of eight."""
    topology = next((m.topology for m in case.of(MachineRead) if m.place.source == source), None)
    if gpus >= 8 or topology is None:
        return gpus >= 8
    near = beside((x.src, x.dst) for x in topology.links if x.kind == "nvlink")
    return {len({*near.get(gpu, ())}) for gpu in topology.ranks} in ({1}, {0, 1}, {gpus - 1})


def socket_bus(case: Case) -> Iterator[Finding]:
    """A bus between sockets that NCCL's constant underestimates, if a job's data cross it."""
    log_version = case.last(NcclVersion)
    if log_version is not None and log_version.version[:2] >= _FIXED_IN:
        return
    processor = next((p for p in case.of(Processor) if p.vendor == "AuthenticAMD" and p.sockets > 1), None)
    counted = next(iter(case.of(SocketBus)), None)
    if counted is not None:
        by_nccl = counted.gb_per_s
    elif processor is not None:
        by_nccl = _AMD_OLD_GB_PER_S
    else:
        return
    actual, piece = _really(case, processor)
    if piece is None or actual < 1.5 * by_nccl:
        return
    known = jobs(case)
    if known and not any(job.expected is None or job.expected.kind in ("SYS", "PHB") for job in known):
        return
    yield finding(f"""
        warning: NCCL assumes {gb_per_s_text(by_nccl)} for the bus between the sockets, which is faster  [socket-bus]
        bound   at least {gb_per_s_text(actual)}
        got     {gb_per_s_text(by_nccl)} in NCCL's search, so NCCL sets up fewer channels
        cause   up to NCCL 2.30 this constant is the same for all of AMD's processors; their links are several times
                faster since Zen 3
        try     NCCL 2.32 or newer; before, a graph with more channels: NCCL_GRAPH_FILE
        """).at(piece, counted)


def _really(case: Case, processor: Processor | None) -> tuple[float, Evidence | None]:
    """GB/s of the bus between sockets, and the evidence: a measurement, else the least rate of Zen 5."""
    for machine in case.of(MachineRead):
        rates = [x.gb_per_s for x in machine.topology.links if x.kind == "smp" and x.provenance == "measured"]
        if rates:
            return min(rates), machine
    if processor is not None and processor.family in _ZEN5:
        return _ZEN5_GB_PER_S, processor
    return 0, None


RULES = (pcie_narrow, pcie_slow, pcie_uplink, one_way, nvlink_down, socket_bus)
