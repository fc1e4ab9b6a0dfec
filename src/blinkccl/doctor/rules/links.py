"""Links that are slower or narrower than their kind: PCIe, NVLink, the bus between sockets, one direction of
several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from blinkccl.doctor.evidence import Case, Device, Machine, NcclVersion, NvLinks, Processor, SocketBus
from blinkccl.doctor.finding import Finding, named, places
from blinkccl.doctor.rules.job import jobs
from blinkccl.report.text import gb_per_s_text
from blinkccl.topology.model import Topology

_KINDS = {"gpu": "GPU", "nic": "network card"}
#: NCCL's XML: AuthenticAMD by family as its attribute counts: Zen 3 and 4, Zen 5; and what 2.32 takes for each.
_AMD = {175: 24, 25: 24, 191: 32, 26: 32}
_ZEN5 = (191, 26)
_AMD_OLD_GB_PER_S, _FIXED_IN = 16, (2, 32)


def findings(case: Case) -> Iterator[Finding]:
    """All families of links."""
    yield from _pcie(case, "width")
    yield from _pcie(case, "gt_per_s")
    for machine in case.of(Machine):
        yield from _uplinks(machine)
        yield from _one_way(machine)
    yield from _nvlinks(case)
    yield from _socket_bus(case)


def _pcie(case: Case, what: str) -> Iterator[Finding]:
    """Devices whose ``what`` is below what they can, or below that of their like."""
    devices = [device for device in case.of(Device) if device.kind in _KINDS and getattr(device, what) is not None]
    low: dict[str, list[tuple[Device, float]]] = {}
    for device in devices:
        if what == "gt_per_s" and device.idle:
            continue  # turned down to save power, until there is traffic
        now, most = getattr(device, what), getattr(device, f"max_{what}")
        usual = _usual(device, devices, what)
        if usual is not None and now < usual:
            low.setdefault(device.kind, []).append((device, usual))
        elif most is not None and now < most and device.kind == "gpu":
            low.setdefault(device.kind, []).append((device, most))
    for kind, found in low.items():
        names = named(device.name for device, _ in found)
        narrow = what == "width"
        first, could = found[0]
        now = getattr(first, what)
        unit = "×{:g}" if narrow else "{:g} GT/s"
        alike = "" if getattr(first, f"max_{what}") else ", as others of its kind here have"
        yield Finding(
            "pcie-narrow" if narrow else "pcie-slow",
            "warning",
            f"PCIe of {names} runs at {unit.format(now)}, not {unit.format(could)}",
            f"{unit.format(could)}{alike}",
            unit.format(now),
            f"all that this {_KINDS[kind]} moves over PCIe takes {could / now:g} times as long; a riser, a slot "
            "shared with another card, dirty contacts or a BIOS setting",
            f"reseat {names} or move it to another slot; sudo lspci -vv | grep -E 'LnkCap:|LnkSta:' shows all links",
            places([device for device, _ in found]),
        )


def _usual(device: Device, devices: Sequence[Device], what: str) -> float | None:
    """What most devices of the same kind and model in the same source have; None where there is no most."""
    same = (device.place.source, device.kind, device.model)
    like = [getattr(one, what) for one in devices if (one.place.source, one.kind, one.model) == same]
    value, count = Counter(like).most_common(1)[0]
    return value if 2 * count > len(like) and count > 1 else None


def _uplinks(machine: Machine) -> Iterator[Finding]:
    """Bridges that are much slower than the GPU below them: mostly virtual ones, whose rate is none."""
    topology = machine.topology
    slow = []
    for gpu in topology.ranks:
        own = [x for x in topology.links if x.src == gpu and x.kind == "pcie"]
        for link in own:
            above = [
                x for x in topology.links if x.src == link.dst and x.kind == "pcie" and x.dst not in topology.ranks
            ]
            up = [x for x in above if 4 * x.gb_per_s < link.gb_per_s]
            if up and len(up) == len(above):
                slow.append((topology.vertex[gpu].label, up[0].gb_per_s, link.gb_per_s))
    if slow:
        _, rate, own_rate = slow[0]
        names = named(name for name, _, _ in slow)
        yield Finding(
            "pcie-uplink",
            "warning",
            f"the PCIe bridges above {names} are {gb_per_s_text(rate)}",
            f"{gb_per_s_text(own_rate)}, as the GPU's own link",
            gb_per_s_text(rate),
            "NCCL takes the slowest link of a path for its rate; virtual machines show bridges of 2.5 GT/s ×1 that do "
            "not exist, and then NCCL avoids the way",
            "give NCCL a corrected file: dump it with NCCL_TOPO_DUMP_FILE, set link_speed and link_width of these "
            "bridges to those of the GPU, and point NCCL_TOPO_FILE at it",
            places(machine),
        )


def _one_way(machine: Machine) -> Iterator[Finding]:
    """Links that one operation crosses at half the rate of the other, or less."""
    uneven = [x for x in machine.topology.links if x.read_capacity and not 0.5 < x.read_capacity / x.capacity < 2]
    if not uneven:
        return
    link = min(uneven, key=lambda x: min(x.capacity, x.read_capacity or x.capacity))
    unit = machine.topology.unit_gb_per_s
    write, read = link.capacity * unit, (link.read_capacity or 0) * unit
    slow, fast = ("writes", "reads") if write < read else ("reads", "writes")
    names = [machine.topology.vertex[v].label for v in (link.src, link.dst)]
    yield Finding(
        "one-way",
        "warning",
        f"{slow} between {names[0]} and {names[1]} are {max(write, read) / min(write, read):.0f} times slower than "
        f"{fast}",
        f"{gb_per_s_text(max(write, read))} by {fast}",
        f"{gb_per_s_text(min(write, read))} by {slow}",
        f"{len(uneven)} links differ by operation; a library that only {slow[:-1]}s gets the slow one",
        f"plans that use {fast}: blink plan allreduce --topo {machine.place.source} (queues are "
        f"{'pulled' if fast == 'reads' else 'pushed'} there); with NCCL NCCL_P2P_READ_ENABLE={int(fast == 'reads')}",
        places(machine),
    )


def _nvlinks(case: Case) -> Iterator[Finding]:
    """GPUs with fewer NVLinks up than others; not where other ends of a mesh may just not be shown."""
    by_source: dict[str, list[NvLinks]] = {}
    for links in case.of(NvLinks):
        by_source.setdefault(links.place.source, []).append(links)
    for source, found in by_source.items():
        most, fewest_down = max(x.up for x in found), min(x.down for x in found)
        told_down = [x for x in found if x.down > fewest_down]
        low = told_down or ([x for x in found if x.up < most] if _all_shown(case, source, found) else [])
        if not low or most == 0:
            continue
        names = named(x.gpu for x in low)
        worst = min(low, key=lambda x: x.up)
        yield Finding(
            "nvlink-down",
            "warning",
            f"{names}: NVLinks are down",
            f"{most} NVLinks, as the other GPUs have",
            f"{worst.up} on {worst.gpu}",
            "what crosses this GPU is slower by as much, and in a ring so is everybody"
            if told_down
            else "fewer NVLinks lead from it than from the others: a link is down, or a bridge is not seated",
            f"nvidia-smi nvlink -s -i {worst.gpu.removeprefix('GPU')}, then nvidia-smi nvlink -e for errors; reset "
            "the GPU, or reseat the bridge or the module",
            places(low),
        )


def _all_shown(case: Case, source: str, found: Sequence[NvLinks]) -> bool:
    """Whether all ends of NVLinks are in view: a switch, pairs, a full mesh, or a whole machine of eight."""
    machine = next((m for m in case.of(Machine) if m.place.source == source), None)
    if len(found) >= 8:
        return True
    if machine is None:
        return False
    return _neighbours(machine.topology) in ({1}, {0, 1}, {len(found) - 1})


def _neighbours(topology: Topology) -> set[int]:
    pairs = {(x.src, x.dst) for x in topology.links if x.kind == "nvlink"}
    return {len({b for a, b in pairs if a == gpu}) for gpu in topology.ranks}


def _socket_bus(case: Case) -> Iterator[Finding]:
    """The bus between sockets where NCCL's constant is not the machine's, and a job's data cross it."""
    versions = case.of(NcclVersion)
    if versions and versions[-1].version[:2] >= _FIXED_IN:
        return
    processor = next((p for p in case.of(Processor) if p.vendor == "AuthenticAMD" and p.sockets > 1), None)
    counted = next((bus for bus in case.of(SocketBus) if bus.counted), None)
    really, piece = _measured_bus(case)
    known = _AMD.get(processor.family) if processor is not None else None
    if really is None and processor is not None and processor.family in _ZEN5 and known is not None:
        really, piece = float(known), processor
    by_nccl = counted.gb_per_s if counted is not None else _AMD_OLD_GB_PER_S if processor is not None else None
    if really is None or by_nccl is None or piece is None or really < 1.5 * by_nccl:
        return
    across = [job for job in jobs(case) if job.expected is None or job.expected.kind in ("SYS", "PHB")]
    if not across and jobs(case):
        return
    yield Finding(
        "socket-bus",
        "warning",
        f"NCCL counts the bus between the sockets as {gb_per_s_text(by_nccl)}, and it is not",
        f"at least {gb_per_s_text(really)}",
        f"{gb_per_s_text(by_nccl)} in NCCL's search, so that it sets up fewer channels",
        "up to NCCL 2.30 this constant is the same for all of AMD's processors; their links are several times faster "
        "since Zen 3",
        "NCCL 2.32 or newer; before, a graph with more channels: NCCL_GRAPH_FILE",
        places(piece, *([counted] if counted is not None else [])),
    )


def _measured_bus(case: Case) -> tuple[float | None, SocketBus | Machine | Processor | None]:
    for bus in case.of(SocketBus):
        if not bus.counted:
            return bus.gb_per_s, bus
    for machine in case.of(Machine):
        rates = [x.gb_per_s for x in machine.topology.links if x.kind == "smp" and x.provenance == "measured"]
        if rates:
            return min(rates), machine
    return None, None
