"""GPUs that may not, or should not, read and write each other: P2P off, IOMMU, Access Control Services."""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.doctor.evidence import Acs, Case, Hop, Iommu, Machine, Measured, PeerAccess, Setting, Started
from blinkccl.doctor.finding import Finding, places
from blinkccl.doctor.rules.job import jobs, rates
from blinkccl.report.text import count
from blinkccl.topology.model import FAST_KINDS

#: Settings by which somebody wanted no P2P.
_OFF = {"NCCL_P2P_DISABLE": ("1",), "NCCL_P2P_LEVEL": ("LOC", "0")}


def findings(case: Case) -> Iterator[Finding]:
    """P2P over NVLink and PCIe, then what stands in its way."""
    broken = [one for one in case.of(PeerAccess) if one.nvlink and not one.allowed]
    if broken:
        yield _broken_nvlink(broken)
    yield from _off(case, bool(broken))
    yield from _iommu(case)
    yield from _acs(case)


def switched_off(case: Case) -> Setting | None:
    """The setting that forbids P2P, if there is one."""
    return next((one for one in case.of(Setting) if one.value in _OFF.get(one.name, ())), None)


def _broken_nvlink(broken: list[PeerAccess]) -> Finding:
    pairs = list(dict.fromkeys("–".join(sorted((one.a, one.b))) for one in broken))
    ends = pairs[0].replace("GPU", "").replace("–", "-")
    return Finding(
        "nvlink-peer-broken",
        "error",
        f"NVLink joins {', '.join(pairs[:4])}, and P2P over it does not work",
        "P2P over NVLink",
        "none: CUDA refuses it",
        "hardware, or the fabric manager: links that are up and carry no peer traffic; NCCL ends with an error where "
        "its rings cross them",
        f"nvidia-smi topo -p2p r, and a reset of both GPUs; until then blink plan allreduce --without {ends} plans "
        "around the pair, and NCCL_IGNORE_DISABLED_P2P=1 lets NCCL take another way",
        places(broken),
    )


def _off(case: Case, already: bool) -> Iterator[Finding]:
    """Data that go through the host's memory though the GPUs could do without."""
    if switched_off(case) is not None or already:
        return
    shm = [hop for hop in case.of(Hop) if hop.transport == "SHM"]
    p2p = [hop for hop in case.of(Hop) if hop.transport == "P2P"]
    refused = [one for one in case.of(PeerAccess) if not one.allowed]
    near = [hop for hop in shm if near_each_other(case, hop)]
    if not (refused and not _gathered_only(case)) and not near and not (shm and not p2p):
        return
    evidence = refused or near or shm
    could, got = rates(case)
    consumer = any("GeForce" in row.gpu or "RTX" in row.gpu for row in case.of(Measured))
    pairs = {(min(h.src, h.dst), max(h.src, h.dst)) for h in near or shm}
    yield Finding(
        "p2p-off",
        "warning" if refused or near or consumer else "note",
        "GPUs exchange data through the host's memory, not directly",
        f"{could}P2P: each byte crosses PCIe once each way",
        got
        + (
            f"SHM between {count(len(pairs), 'pair')} of ranks"
            if shm
            else f"P2P refused for {len(refused)} pairs of GPUs"
        ),
        "CUDA allows no P2P between them (GeForce cards, virtual machines, some boards)"
        if refused or (consumer and not near)
        else "NCCL takes no P2P across a processor unless it is told so"
        if not near
        else "they are joined by NVLink or one PCIe switch, so something has switched P2P off",
        "nvidia-smi topo -p2p r says which pairs may; if they may, try NCCL_P2P_LEVEL=SYS; if not, "
        "NCCL_SHM_USE_CUDA_MEMCPY=1 copies large messages faster, and blink plan --links staged is the plan through "
        "memory",
        places(evidence[:4]),
    )


def _gathered_only(case: Case) -> bool:
    """Whether the refusals matter to nobody: GPUs that NVLink joins all."""
    found = jobs(case)
    return bool(found) and all(
        len(job.islands()) == 1 and job.topology.links and _fast(job.topology.links) for job in found
    )


def _fast(links: object) -> bool:
    return any(link.kind in FAST_KINDS for link in links)  # type: ignore[attr-defined]


def near_each_other(case: Case, hop: Hop) -> bool:
    """Whether the GPUs of a hop share NVLink or a PCIe switch."""
    for job in jobs(case):
        if max(hop.src, hop.dst) >= len(job.ranks):
            continue
        a, b = job.ranks[hop.src], job.ranks[hop.dst]
        beside = {v: {x.dst for x in job.topology.links if x.src == v} for v in (a, b)}
        common = [v for v in beside[a] & beside[b] if job.topology.vertex[v].kind == "switch"]
        if b in beside[a] or common:
            return True
    return False


def _has_gpus(case: Case) -> bool:
    counts = [sum(m.topology.vertex[r].kind == "gpu" for r in m.topology.ranks) for m in case.of(Machine)]
    return not counts or max(counts) > 1


def _iommu(case: Case) -> Iterator[Finding]:
    on = [one for one in case.of(Iommu) if one.state == "translating"]
    if not on or not _has_gpus(case):
        return
    harmed = [*(row for row in case.of(Measured) if row.wrong), *case.of(Started)]
    yield Finding(
        "iommu",
        "error" if harmed else "warning",
        "the IOMMU translates what GPUs write to each other",
        "iommu=pt or off: P2P goes straight",
        f"translating ({on[0].how})",
        "P2P over PCIe then gives wrong data, hangs or is slow, mostly without a message"
        + ("; results here are wrong or missing" if harmed else ""),
        "boot with iommu=pt (or switch it off in the BIOS: IOMMU, VT-d); until then NCCL_P2P_DISABLE=1",
        places(on, harmed[:2]),
    )


def _acs(case: Case) -> Iterator[Finding]:
    on = [one for one in case.of(Acs) if one.redirecting]
    if not on or not _has_gpus(case):
        return
    yield Finding(
        "acs",
        "warning",
        f"Access Control Services are on at {on[0].redirecting} of {on[0].bridges} PCIe bridges",
        "peer traffic turns round in the PCIe switch",
        "every transfer between GPUs goes up to the processor and down again",
        "ACS redirects requests between devices to the root; P2P gets slow, and with an IOMMU it may hang",
        "as root, for each bridge of lspci -vvv with ReqRedir+: setpci -s BRIDGE ECAP_ACS+0x6.w=0000 (until the next "
        "boot); for good disable ACS in the BIOS",
        places(on),
    )
