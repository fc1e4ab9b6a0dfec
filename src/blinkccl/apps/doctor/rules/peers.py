"""GPUs that cannot or should not access each other: P2P disabled, IOMMU, Access Control Services."""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.apps.doctor.evidence import (
    Acs,
    Case,
    ChannelHop,
    Iommu,
    MachineRead,
    MeasuredCall,
    PeerAccess,
    Setting,
    Started,
    SystemLink,
)
from blinkccl.apps.doctor.finding import Finding, finding
from blinkccl.apps.doctor.rules.job import best_rows, jobs, rates
from blinkccl.apps.doctor.rules.servers import gpu_name, model_of
from blinkccl.show.text import count, gb_per_s_text
from blinkccl.topology import nccl_constants as nccl
from blinkccl.topology.connectivity import parts
from blinkccl.topology.model import FAST_KINDS

#: Settings that disable P2P.
_OFF = {"NCCL_P2P_DISABLE": ("1",), "NCCL_P2P_LEVEL": ("LOC", "0")}
#: Values of NCCL_P2P_LEVEL that take P2P across a processor; the numbers are old forms.
_ACROSS = ("PHB", "NODE", "SYS", "3", "4", "5")
#: A part of the GPUs' PCIe that P2P across processors exceeds where it works well.
_LITTLE_OF_PCIE = 0.3


def switched_off(case: Case) -> bool:
    """True if a setting disables P2P."""
    return any(one.value in _OFF.get(one.name, ()) for one in case.of(Setting))


def near_each_other(case: Case, hop: ChannelHop) -> bool:
    """True if the GPUs of a hop share NVLink or a PCIe switch."""
    for job in jobs(case):
        if max(hop.src, hop.dst) < len(job.ranks):
            link, a, b = job.topology.link, job.ranks[hop.src], job.ranks[hop.dst]
            switches = [v.id for v in job.topology.vertices if v.kind == "switch"]
            if (a, b) in link or any((a, switch) in link and (b, switch) in link for switch in switches):
                return True
    return False


def _on_one_socket(case: Case, hop: ChannelHop) -> bool:
    """True if links other than a bus between sockets join the GPUs of a hop, or the machine is not known."""
    for job in jobs(case):
        if max(hop.src, hop.dst) < len(job.ranks):
            topology, ends = job.topology, {job.ranks[hop.src], job.ranks[hop.dst]}
            near = [(x.src, x.dst) for x in topology.links if x.kind not in ("smp", "net")]
            return any(ends <= {*group} for group in parts([v.id for v in topology.vertices], near))
    return True


def _broken(case: Case) -> list[PeerAccess]:
    return [one for one in case.of(PeerAccess) if one.nvlink and not one.allowed]


def nvlink_peer_broken(case: Case) -> Iterator[Finding]:
    """NVLinks that do not carry peer traffic."""
    broken = _broken(case)
    if not broken:
        return
    pairs = list(dict.fromkeys("–".join(sorted((one.a, one.b))) for one in broken))
    ends = pairs[0].replace("GPU", "").replace("–", "-")
    yield finding(f"""
        error: NVLink joins {", ".join(pairs[:4])}, and P2P over it does not work  [nvlink-peer-broken]
        bound   P2P over NVLink
        got     none: CUDA refuses it
        cause   hardware, or the fabric manager: links that are up and carry no peer traffic; NCCL ends with an error
                where its rings cross them
        try     nvidia-smi topo -p2p r, and a reset of both GPUs; until then blink plan allreduce --without {ends} plans
                around the pair, and NCCL_IGNORE_DISABLED_P2P=1 lets NCCL take another way
        """).at(broken)


def p2p_off(case: Case) -> Iterator[Finding]:
    """Data that pass through host memory although the GPUs could exchange them directly."""
    if switched_off(case) or _broken(case):
        return
    shm = [hop for hop in case.of(ChannelHop) if hop.transport == "SHM"]
    p2p = [hop for hop in case.of(ChannelHop) if hop.transport == "P2P"]
    refused = [one for one in case.of(PeerAccess) if not one.allowed]
    near = [hop for hop in shm if near_each_other(case, hop)]
    if not (refused and not _joined_by_nvlink(case)) and not near and not (shm and not p2p):
        return
    name, model = gpu_name(case), model_of(case)
    barred = model is not None and not model.peers and not any(_joined(case, hop) for hop in near)
    if barred:
        why = f"{name} has no P2P over PCIe: NVIDIA's driver grants none to GeForce cards"
        attempt = "no setting of NCCL gives P2P to them;"
    elif refused:
        why = "CUDA allows no P2P between them (virtual machines, some boards, a driver)"
        attempt = "nvidia-smi topo -p2p r says which pairs may;"
    elif near:
        why = "NVLink or one PCIe switch joins them, so something has disabled P2P"
        attempt = "nvidia-smi topo -p2p r says which pairs may; unset NCCL_P2P_LEVEL and NCCL_P2P_DISABLE;"
    else:
        why = "NCCL does not use P2P across a processor by default, as it is often slower than memory there"
        attempt = "no setting, as a bus between sockets joins these pairs;"
        if any(_on_one_socket(case, hop) for hop in shm):
            attempt = "nothing, unless nvidia-smi topo -p2p r allows these pairs and NCCL_P2P_LEVEL=PHB, which covers "
            attempt += "pairs on one socket, measures faster;"
    severity = "warning" if refused or near or barred else "note"
    could, got = rates(case)
    pairs = len({(min(h.src, h.dst), max(h.src, h.dst)) for h in near or shm})
    through = f"SHM between {count(pairs, 'pair')} of ranks" if shm else f"P2P refused for {len(refused)} pairs of GPUs"
    most = "host memory, as P2P is not possible" if barred else f"{could}P2P: each byte crosses PCIe once each way"
    yield finding(f"""
        {severity}: GPUs exchange data through the host's memory, not directly  [p2p-off]
        bound   {most}
        got     {got}{through}
        cause   {why}
        try     {attempt} NCCL_SHM_USE_CUDA_MEMCPY=1 copies large messages faster{_staged(case)}
        """).at((refused or near or shm)[:4])


def _staged(case: Case) -> str:
    """The command that plans the job through memory; "" if its machine has no PCIe links."""
    job, what = next(iter(jobs(case)), None), "the plan through memory: blink plan"
    if job is None:
        return f"; with nvidia-smi topo -m in FILE, {what} allreduce --topo FILE --links staged"
    if all(x.kind != "pcie" for x in job.topology.links):
        return ""
    return f"; {what} {job.collective}{job.spec} --links staged"


def p2p_forced(case: Case) -> Iterator[Finding]:
    """A setting that takes P2P across processors, on GPUs without NVLink: often slower than host memory."""
    levels = [one for one in case.of(Setting) if one.name == "NCCL_P2P_LEVEL"]
    hops = [hop for hop in case.of(ChannelHop) if hop.transport == "P2P"]
    if not levels or levels[-1].value not in _ACROSS or not hops or _has_nvlink(case):
        return
    assignment = f"NCCL_P2P_LEVEL={levels[-1].value}"
    could, got = rates(case)
    best = max((row.busbw_gb_per_s for row in best_rows(case)), default=None)
    got = got or (f"{gb_per_s_text(best)} busbw measured; " if best is not None else "")
    model = model_of(case)
    pcie = float(nccl.pcie_gb_per_s(nccl.PCI_SPEED_OF[4 if model is None else model.pcie], nccl.PCI_DEFAULT_WIDTH))
    slow = best is not None and best < _LITTLE_OF_PCIE * pcie
    yield finding(f"""
        {"warning" if slow else "note"}: {assignment} sends data between GPUs across processors  [p2p-forced]
        bound   {could}NCCL's default: host memory where a processor lies between two GPUs
        got     {got}{assignment}
        cause   writes of one GPU to another through a processor are slow on many servers: eight L20 got 1.8 GB/s so,
                and 12.5 by default (NVIDIA/nccl issue 1817)
        try     unset NCCL_P2P_LEVEL and measure again; keep it only if it is faster here
        """).at(levels[-1], hops[:2])


def _has_nvlink(case: Case) -> bool:
    """True if NVLink or xGMI joins GPUs, by the machine, by NCCL's tree, or by the GPUs' name."""
    machines = [job.machine.topology for job in jobs(case)] or [one.topology for one in case.of(MachineRead)]
    if machines:
        return any(x.kind in FAST_KINDS for x in machines[-1].links)
    model = model_of(case)
    printed = any(link.kind in ("NVL", "XGMI") for link in case.of(SystemLink))
    return printed or (model is not None and model.lane_gb_per_s is not None)


def _joined(case: Case, hop: ChannelHop) -> bool:
    """True if NVLink joins the GPUs of a hop directly."""
    for job in jobs(case):
        if max(hop.src, hop.dst) < len(job.ranks):
            link = job.topology.link.get((job.ranks[hop.src], job.ranks[hop.dst]))
            return link is not None and link.kind in FAST_KINDS
    return False


def _joined_by_nvlink(case: Case) -> bool:
    """True if NVLink joins all GPUs, so that refused P2P has no effect."""
    known = jobs(case)
    return bool(known) and all(job.joined_somewhere and len(job.islands()) == 1 for job in known)


def iommu(case: Case) -> Iterator[Finding]:
    """An IOMMU that translates addresses between GPUs."""
    on = [one for one in case.of(Iommu) if one.state == "translating"]
    if not on or not _several_gpus(case):
        return
    harmed = [*(row for row in case.of(MeasuredCall) if row.wrong), *case.of(Started)]
    here = "; results here are wrong or missing" if harmed else ""
    yield finding(f"""
        {"error" if harmed else "warning"}: the IOMMU translates writes between GPUs  [iommu]
        bound   iommu=pt or off: P2P without translation
        got     translating ({on[0].how})
        cause   P2P over PCIe then gives wrong data, hangs or is slow, mostly without a message{here}
        try     boot with iommu=pt (or switch it off in the BIOS: IOMMU, VT-d); until then NCCL_P2P_DISABLE=1
        """).at(on, harmed[:2])


def acs(case: Case) -> Iterator[Finding]:
    """Bridges that send peer traffic up to the root."""
    on = [one for one in case.of(Acs) if one.redirecting]
    if not on or not _several_gpus(case):
        return
    yield finding(f"""
        warning: Access Control Services are on at {on[0].redirecting} of {on[0].bridges} PCIe bridges  [acs]
        bound   peer traffic stays within the PCIe switch
        got     every transfer between GPUs goes up to the processor and down again
        cause   ACS redirects requests between devices to the root; P2P gets slow, and with an IOMMU it may hang
        try     as root, for each bridge of lspci -vvv with ReqRedir+: setpci -s BRIDGE ECAP_ACS+0x6.w=0000 (until the
                next boot); for good disable ACS in the BIOS
        """).at(on)


def _several_gpus(case: Case) -> bool:
    """True if some machine has several GPUs, or no machine was read."""
    return max((machine.gpus for machine in case.of(MachineRead)), default=2) > 1


RULES = (nvlink_peer_broken, p2p_off, p2p_forced, iommu, acs)
