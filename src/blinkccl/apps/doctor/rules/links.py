"""Links that are slower or narrower than their kind: PCIe, NVLink, the bus between sockets, one direction of
several."""

from __future__ import annotations

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
#: AuthenticAMD's Zen 5, by family as NCCL's XML counts; what NCCL takes for it since 2.32, and for all before.
_ZEN5 = (191, 26)
_ZEN5_GB_PER_S, _AMD_OLD_GB_PER_S, _FIXED_IN = 32, 16, (2, 32)


def pcie_narrow(case: Case) -> Iterator[Finding]:
    """Fewer lanes than there could be."""
    devices = [device for device in case.of(Device) if device.kind in _KINDS and device.width is not None]
    return _pcie(devices, "pcie-narrow", "width", "×{:g}")


def pcie_slow(case: Case) -> Iterator[Finding]:
    """A lower generation; not where the link may be turned down to save power, until there is traffic."""
    devices = [device for device in case.of(Device) if device.kind in _KINDS and device.gt_per_s is not None]
    return _pcie(devices, "pcie-slow", "gt_per_s", "{:g} GT/s")


def _pcie(devices: Sequence[Device], cause: str, what: str, unit: str) -> Iterator[Finding]:
    """Devices whose ``what`` is below what they can, or below that of their like."""
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
    for kind, found in low.items():
        names = named(device.name for device, _ in found)
        first, could = found[0]
        now = getattr(first, what)
        alike = "" if getattr(first, f"max_{what}") else ", as others of its kind here have"
        yield finding(f"""
            warning: PCIe of {names} runs at {unit.format(now)}, not {unit.format(could)}  [{cause}]
            bound   {unit.format(could)}{alike}
            got     {unit.format(now)}
            cause   all that this {_KINDS[kind]} moves over PCIe takes {could / now:g} times as long; a riser, a slot
                    shared with another card, dirty contacts or a BIOS setting
            try     reseat {names} or move it to another slot; sudo lspci -vv | grep -E 'LnkCap:|LnkSta:' shows all
                    links
            """).at([device for device, _ in found])


def _usual(device: Device, devices: Sequence[Device], what: str) -> float | None:
    """What most devices of the same kind and model in the same source have; None where there is no most."""
    same = (device.place.source, device.kind, device.model)
    like = [getattr(one, what) for one in devices if (one.place.source, one.kind, one.model) == same]
    value, count = Counter(like).most_common(1)[0]
    return value if 2 * count > len(like) and count > 1 else None


def pcie_uplink(case: Case) -> Iterator[Finding]:
    """Bridges that are much slower than the GPU below them: mostly virtual ones, whose rate is none."""
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
            cause   NCCL takes the slowest link of a path for its rate; virtual machines show bridges of 2.5 GT/s ×1
                    that do not exist, and then NCCL avoids the way
            try     give NCCL a corrected file: dump it with NCCL_TOPO_DUMP_FILE, set link_speed and link_width of
                    these bridges to those of the GPU, and point NCCL_TOPO_FILE at it
            """).at(machine)


def one_way(case: Case) -> Iterator[Finding]:
    """Links that one operation crosses at half the rate of the other, or less."""
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
            cause   {len(uneven)} links differ by operation; a library that only {slow[:-1]}s gets the slow one
            try     plans that use {fast}: blink plan allreduce --topo {machine.place.source} (queues are {queues}
                    there); with NCCL NCCL_P2P_READ_ENABLE={int(fast == "reads")}
            """).at(machine)


def nvlink_down(case: Case) -> Iterator[Finding]:
    """GPUs with fewer NVLinks up than others; not where other ends of a mesh may just not be shown."""
    by_source: dict[str, list[NvLinks]] = {}
    for links in case.of(NvLinks):
        by_source.setdefault(links.place.source, []).append(links)
    for source, found in by_source.items():
        most, fewest_down = max(x.up for x in found), min(x.down for x in found)
        told_down = [x for x in found if x.down > fewest_down]
        low = told_down or ([x for x in found if x.up < most] if _all_shown(case, source, len(found)) else [])
        if not low or most == 0:
            continue
        worst = min(low, key=lambda x: x.up)
        why = "fewer NVLinks lead from it than from the others: a link is down, or a bridge is not seated"
        if told_down:
            why = "what crosses this GPU is slower by as much, and in a ring so is everybody"
        yield finding(f"""
            warning: {named(x.gpu for x in low)}: NVLinks are down  [nvlink-down]
            bound   {most} NVLinks, as the other GPUs have
            got     {worst.up} on {worst.gpu}
            cause   {why}
            try     nvidia-smi nvlink -s -i {worst.gpu.removeprefix("GPU")}, then nvidia-smi nvlink -e for errors; reset
                    the GPU, or reseat the bridge or the module
            """).at(low)


def _all_shown(case: Case, source: str, gpus: int) -> bool:
    """Whether all ends of NVLinks are in view: a switch, pairs, a full mesh, or a whole machine of eight."""
    topology = next((m.topology for m in case.of(MachineRead) if m.place.source == source), None)
    if gpus >= 8 or topology is None:
        return gpus >= 8
    near = beside((x.src, x.dst) for x in topology.links if x.kind == "nvlink")
    return {len({*near.get(gpu, ())}) for gpu in topology.ranks} in ({1}, {0, 1}, {gpus - 1})


def socket_bus(case: Case) -> Iterator[Finding]:
    """The bus between sockets where NCCL's constant is not the machine's, and a job's data cross it."""
    told = case.last(NcclVersion)
    if told is not None and told.version[:2] >= _FIXED_IN:
        return
    processor = next((p for p in case.of(Processor) if p.vendor == "AuthenticAMD" and p.sockets > 1), None)
    counted = next(iter(case.of(SocketBus)), None)
    if counted is not None:
        by_nccl = counted.gb_per_s
    elif processor is not None:
        by_nccl = _AMD_OLD_GB_PER_S
    else:
        return
    really, piece = _really(case, processor)
    if piece is None or really < 1.5 * by_nccl:
        return
    found = jobs(case)
    if found and not any(job.expected is None or job.expected.kind in ("SYS", "PHB") for job in found):
        return
    yield finding(f"""
        warning: NCCL counts the bus between the sockets as {gb_per_s_text(by_nccl)}, and it is not  [socket-bus]
        bound   at least {gb_per_s_text(really)}
        got     {gb_per_s_text(by_nccl)} in NCCL's search, so that it sets up fewer channels
        cause   up to NCCL 2.30 this constant is the same for all of AMD's processors; their links are several times
                faster since Zen 3
        try     NCCL 2.32 or newer; before, a graph with more channels: NCCL_GRAPH_FILE
        """).at(piece, counted)


def _really(case: Case, processor: Processor | None) -> tuple[float, Evidence | None]:
    """GB/s of the bus between sockets, and who says it: a measurement, else what Zen 5 has at least."""
    for machine in case.of(MachineRead):
        rates = [x.gb_per_s for x in machine.topology.links if x.kind == "smp" and x.provenance == "measured"]
        if rates:
            return min(rates), machine
    if processor is not None and processor.family in _ZEN5:
        return _ZEN5_GB_PER_S, processor
    return 0, None


RULES = (pcie_narrow, pcie_slow, pcie_uplink, one_way, nvlink_down, socket_bus)
