"""The server and the channels as NCCL's own log lines describe them: people paste logs more often than topologies."""

from __future__ import annotations

import re
from collections.abc import Iterator

from blinkccl.apps.doctor.evidence import (
    Case,
    ChannelCounts,
    ChannelHop,
    Evidence,
    MachineRead,
    MeasuredCall,
    RingGraph,
    Setting,
    Started,
    SystemLink,
)
from blinkccl.apps.doctor.finding import Finding, finding
from blinkccl.apps.doctor.rules.job import LEAST_REAL_GB_PER_S, RING_PATTERN, jobs
from blinkccl.apps.doctor.rules.servers import alike, gpu_name, model_of, server_of
from blinkccl.cost.baselines.nccl_links import arch_named
from blinkccl.show.text import count, gb_per_s_text
from blinkccl.topology import nccl_constants as nccl
from blinkccl.topology.assembly import COMBINING_SM
from blinkccl.topology.gpus import guess_arch
from blinkccl.topology.model import FAST_KINDS, Topology

#: Kinds of path in NCCL's words that stay on NVLink or xGMI.
_ON_NVLINK = ("LOC", "NVL", "NVB", "C2C", "XGMI")
#: Fewer GPUs of a server get no NVLS channels.
_LEAST_NVLS = 3
#: The least part of an xGMI link's rate that RCCL counts: 36 of 50 GB/s on MI200, 48 of 64 on MI300.
_RCCL_COUNTS = 0.7
#: NCCL's counted rates differ from these by rounding.
_LESS = 0.95


def uplinks(case: Case) -> Iterator[Finding]:
    """PCIe links above GPUs that are far below the others of the tree, or any real link; most are virtual bridges."""
    links = [link for link in case.of(SystemLink) if link.kind == "PCI" and link.gpus]
    usual = max((link.gb_per_s for link in links), default=0.0)
    slow = [link for link in links if 4 * link.gb_per_s < usual or link.gb_per_s < LEAST_REAL_GB_PER_S]
    if slow:
        could = f"{gb_per_s_text(usual)}, as other PCIe links of this tree have"
        if usual < LEAST_REAL_GB_PER_S:
            could = f"more than {LEAST_REAL_GB_PER_S} GB/s on any slot of a GPU"
        yield finding(f"""
            warning: NCCL counts {gb_per_s_text(slow[0].gb_per_s)} for the PCIe above {_gpus_below(slow)}  [pcie-uplink]
            bound   {could}
            got     {", ".join(f"{link.above} - {link.node} {link.gb_per_s:g} GB/s" for link in slow[:4])}
            cause   NCCL rates a path by its slowest link; virtual machines show bridges of 2.5 GT/s ×1
                    that do not exist, and then NCCL avoids the path
            try     give NCCL a corrected file: dump it with NCCL_TOPO_DUMP_FILE, set link_speed and link_width of
                    these bridges to those of the GPU, and point NCCL_TOPO_FILE at it
            """).at(slow[:4])


def _gpus_below(links: list[SystemLink]) -> str:
    return count(sum(link.gpus for link in links), "GPU")


def slow_rings(case: Case) -> Iterator[Finding]:
    """Rings that NCCL rates below any real link."""
    graph = _rings(case)
    if graph is None or graph.gb_per_s >= LEAST_REAL_GB_PER_S:
        return
    yield finding(f"""
        warning: NCCL counts {gb_per_s_text(graph.gb_per_s)} for a channel of its rings  [ring-slow]
        bound   more than {LEAST_REAL_GB_PER_S} GB/s on any link of this century
        got     {graph.channels} × {graph.gb_per_s:g} GB/s over {graph.kind}
        cause   NCCL rates a ring by its slowest link; one of them shows as 2.5 GT/s ×1, mostly the bridge of a virtual
                machine, or NCCL does not see the NVLinks
        try     dump what NCCL sees with NCCL_TOPO_DUMP_FILE=seen.xml and give seen.xml to blink doctor; your cloud's
                NCCL_TOPO_FILE has the real rates
        """).at(graph)


def nvlink_unused(case: Case) -> Iterator[Finding]:
    """Rings over PCIe although NVLink or xGMI joins all GPUs of the server."""
    graph, server = _rings(case), _server(case)
    if graph is None or server is None or graph.kind in _ON_NVLINK or not alike(server.topology):
        return
    amd = any(x.kind == "xgmi" for x in server.topology.links)
    link, library = ("xGMI", "RCCL") if amd else ("NVLink", "NCCL")
    rate = sum(x.gb_per_s for x in server.topology.links if x.src == server.topology.ranks[0] and x.kind in FAST_KINDS)
    why = (
        "RCCL does not see the xGMI links: a version older than the GPU or the kernel's driver, or a container without "
        "all of /dev/kfd and /dev/dri"
        if amd
        else "NCCL does not see the NVLinks: the fabric manager (for racks also IMEX) does not run, or GPUs have "
        "not registered with it"
    )
    attempt = (
        "rocm-smi --showtopo must show XGMI between all; a newer RCCL; NCCL_TOPO_DUMP_FILE=seen.xml with the same run, "
        "whose <gpu> need <xgmi> tags"
        if amd
        else "nvidia-smi -q | grep -A 2 Fabric must say Completed and Success; systemctl status nvidia-fabricmanager; "
        "nvidia-smi topo -m must show NV#"
    )
    yield finding(f"""
        warning: {library}'s rings take {graph.kind}, although {link} joins all GPUs  [nvlink-unused]
        bound   {gb_per_s_text(rate)} of {link} per GPU of {server.topology.name}
        got     {graph.channels} × {graph.gb_per_s:g} GB/s over {graph.kind}
        cause   {why}
        try     {attempt}
        """).at(graph, server)


def no_nvls(case: Case) -> Iterator[Finding]:
    """No channel with in-network reduction on GPUs whose switch reduces."""
    counts, server = case.last(ChannelCounts), _server(case)
    off = any(one.name == "NCCL_NVLS_ENABLE" and one.value == "0" for one in case.of(Setting))
    if counts is None or counts.nvls or not counts.rings or off:
        return
    model = model_of(case)
    able = server is not None and any(vertex.combines for vertex in server.topology.vertices)
    able = able and server is not None and _placed(case, server)
    ranks = max((row.ranks // row.hosts for row in case.of(MeasuredCall)), default=_LEAST_NVLS)
    if not able or ranks < _LEAST_NVLS or (model is not None and (model.sm or 0) < COMBINING_SM):
        return
    yield finding(f"""
        warning: NCCL has no NVLS channels, although the NVSwitch of {gpu_name(case) or "these GPUs"} reduces  [no-nvls]
        bound   reduction in the NVSwitch: a quarter to a third more AllReduce than rings
        got     {counts.rings} channels, none of them NVLS
        cause   the fabric manager has not set up multicast, a GPU or a container is not registered with it, or
                virtualization hides it
        try     nvidia-smi -q | grep -A 2 Fabric must say Completed and Success; restart nvidia-fabricmanager, then the
                job; NCCL_DEBUG_SUBSYS=INIT,NVLS says why NCCL leaves it out
        """).at(counts, server)


def _placed(case: Case, server: MachineRead) -> bool:
    """False if the GPUs may be on direct links instead of the switch of the larger server that their name implies."""
    part = " a part of " in server.inferred
    switched = any(vertex.kind == "switch" and vertex.name == "NVSwitch" for vertex in server.topology.vertices)
    return not part or not switched or any(link.node.startswith("NVS/") for link in case.of(SystemLink))


def narrow_links(case: Case) -> Iterator[Finding]:
    """NVLinks or xGMI links of the tree that are fewer, or slower, than those of the server."""
    server = _server(case)
    links = [link for link in case.of(SystemLink) if link.kind in ("NVL", "XGMI") and link.above.startswith("GPU/")]
    if server is None or not links or not alike(server.topology) or not _placed(case, server):
        return
    total: dict[str, float] = {}
    for link in links:
        total[link.above] = total.get(link.above, 0.0) + link.gb_per_s
    shown = {link.node for link in case.of(SystemLink) if link.node.startswith("GPU/")}
    expected = counted_gb_per_s(server.topology, len(shown | set(total)))
    low = {gpu: rate for gpu, rate in total.items() if rate < _LESS * expected}
    if not low:
        return
    worst = min(low, key=lambda gpu: low[gpu])
    amd = any(x.kind == "xgmi" for x in server.topology.links)
    kind, attempt = ("xGMI", "amd-smi xgmi") if amd else ("NVLink", "nvidia-smi nvlink -s, then nvidia-smi nvlink -e")
    yield finding(f"""
        warning: NCCL counts {gb_per_s_text(low[worst])} of {kind} for {count(len(low), "GPU")}  [nvlink-down]
        bound   {gb_per_s_text(expected)}, as NCCL counts the links of {server.topology.name}
        got     {gb_per_s_text(low[worst])} at {worst}
        cause   links are down, or run at the rate of an older generation; a ring slows down every GPU
        try     {attempt} for errors; reset the GPU, or reseat the module
        """).at([link for link in links if link.above in low][:3], server)


def counted_gb_per_s(topology: Topology, gpus: int) -> float:
    """GB/s of the NVLinks of one of ``gpus`` GPUs in NCCL's constants, or of its xGMI links in RCCL's.

    In a mesh only links to GPUs of the job count.
    """
    first = topology.ranks[0]
    links = [x for x in topology.links if x.src == first and x.kind in FAST_KINDS]
    peers = len(topology.ranks) - 1 if topology.is_transit(links[0].dst) else min(gpus, len(topology.ranks)) - 1
    rate = sum(x.gb_per_s for x in links) * peers / (len(topology.ranks) - 1)
    if links[0].kind == "xgmi":
        return rate * _RCCL_COUNTS
    arch = arch_named(guess_arch(topology))
    return float(rate * float(arch.lane_gb_per_s / arch.nominal_gb_per_s))


def slow_pcie(case: Case) -> Iterator[Finding]:
    """GPUs whose PCIe NCCL counts below their product's; a note where NVLink carries the data of the job."""
    model = model_of(case)
    links = [link for link in case.of(SystemLink) if link.kind == "PCI" and link.node.startswith("GPU/")]
    if model is None or not links:
        return
    most = float(nccl.pcie_gb_per_s(nccl.PCI_SPEED_OF[model.pcie], nccl.PCI_DEFAULT_WIDTH))
    slow = [link for link in links if most >= 2 * link.gb_per_s >= 2 * LEAST_REAL_GB_PER_S]
    if not slow:
        return
    fast = any(link.kind in ("NVL", "XGMI") for link in case.of(SystemLink))
    net = any(hop.transport == "NET" for hop in case.of(ChannelHop))
    yield finding(f"""
        {"note" if fast and not net else "warning"}: PCIe of {count(len(slow), "GPU")} counts
                {gb_per_s_text(slow[0].gb_per_s)}, and {gpu_name(case)} can {gb_per_s_text(most)}  [pcie-slow]
        bound   {gb_per_s_text(most)}: generation {model.pcie} ×16
        got     {gb_per_s_text(slow[0].gb_per_s)} at {slow[0].node}
        cause   an older slot or processor, fewer lanes (a riser, a shared slot), or a virtual machine without rates
        try     sudo lspci -vv | grep -E 'LnkCap:|LnkSta:' on the host shows all links
        """).at(slow[:3])


def graph_file(case: Case) -> Iterator[Finding]:
    """A graph file with GPUs that the job does not have, which ends NCCL's start."""
    for failure in case.failures("warning"):
        device = re.search(r"XML Import Channel : (?:dev|rank) (\S+) not found", failure.text)
        if device is None:
            continue
        files = [one for one in case.of(Setting) if one.name == "NCCL_GRAPH_FILE"]
        name = files[-1].value if files else "the graph file"
        yield finding(f"""
            error: {name} has channels over GPU {device[1]}, which this job does not have  [graph-file]
            bound   a graph of the GPUs of the job
            got     {failure.text}
            cause   NCCL_GRAPH_FILE holds for one set of GPUs; a job of fewer GPUs, or with CUDA_VISIBLE_DEVICES, cannot
                    use it, and NCCL does not start
            try     unset NCCL_GRAPH_FILE for this job (a cloud's image may set it in /etc/nccl.conf); NCCL_TOPO_FILE
                    may stay
            """).at(failure, files[-1:])
        return


def _rings(case: Case) -> RingGraph | None:
    """The last rings that NCCL printed."""
    return next((g for g in reversed(case.of(RingGraph)) if g.pattern == RING_PATTERN and g.gb_per_s > 0), None)


def _server(case: Case) -> MachineRead | None:
    """The machine of the case: the one that was read, or the one that the name and number of GPUs in a host imply."""
    known = [job.machine for job in jobs(case)]
    if known:
        return known[-1]
    name, graph = gpu_name(case), case.last(RingGraph)
    sizes: list[tuple[Evidence, int]] = [(row, row.ranks // row.hosts) for row in case.of(MeasuredCall)]
    sizes += [(one, one.ranks) for one in case.of(Started)]
    sizes += [] if graph is None or graph.ranks is None else [(graph, graph.ranks)]
    return server_of(sizes[0][0].place, name, sizes[0][1]) if sizes and name else None


RULES = (uplinks, slow_rings, nvlink_unused, no_nvls, narrow_links, slow_pcie, graph_file)
