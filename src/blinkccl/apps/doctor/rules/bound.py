"""The bound of a job by its links, the cut by name, and NCCL's share of it."""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.apps.doctor.evidence import Case, ChannelHop
from blinkccl.apps.doctor.finding import Finding, finding
from blinkccl.apps.doctor.rules.job import GAP, GAP_ON_NVLINK, Expected, MeasuredJob, ProvedBound, in_switch_busbw, jobs
from blinkccl.apps.doctor.rules.peers import near_each_other, switched_off
from blinkccl.show.text import gb_per_s_text, ids
from blinkccl.topology.stated import assumed
from blinkccl.units import size_text


def bound(case: Case) -> Iterator[Finding]:
    """The bound of each job, or the reason if the choice of GPUs or NCCL makes the job slow."""
    for job in jobs(case):
        most = job.bound
        if most is None:
            continue
        parts = job.islands()
        if job.split:
            yield _cut(job, parts)
        expected = _expected(job)
        away = _off_nvlink(case, job) if len(parts) == 1 else []
        gap = GAP_ON_NVLINK if len(parts) == 1 else GAP
        # Rings that NCCL printed have true rates, which say nothing beside a bound of an assumed bus.
        comparable = job.graph is None or not assumed(job.topology, most.kinds & {"smp"})
        if away:
            yield _leaves_nvlink(job, away)
        elif comparable and expected is not None and expected.busbw_gb_per_s < gap * most.busbw_gb_per_s:
            yield _little(job, expected, most)
        elif not job.split:
            yield _bound(job, most)


def _cut(job: MeasuredJob, parts: list[tuple[int, ...]]) -> Finding:
    shown = " | ".join(f"{{{ids(part)}}}" for part in parts)
    return finding(f"""
        {"note" if job.whole else "warning"}: NVLink does not join the GPUs of this job: {shown}  [cut]
        bound   {job.bound_text}
        got     {_got(job)}
        cause   between {shown} all data cross PCIe or the bus between sockets with any algorithm; up to
                {max(map(len, parts))} GPUs stay within NVLink
        try     {_plan(job)} shows their best plan{_pick(job, f"the best sets of {len(job.ranks)}")}
        """).at(job.machine, job.measured)


def _leaves_nvlink(job: MeasuredJob, away: list[ChannelHop]) -> Finding:
    pairs = ", ".join(dict.fromkeys(f"{job.ranks[hop.src]} → {job.ranks[hop.dst]}" for hop in away))
    return finding(f"""
        warning: NCCL's rings leave NVLink, which joins all GPUs of the job  [nccl-gap]
        bound   {job.bound_text}
        got     host memory between GPUs {pairs}; {_got(job)}
        cause   no ring of NVLinks joins these GPUs, and this version of NCCL does not relay data through them; trees
                do
        try     {_plan(job)}{_pick(job, "GPUs with a ring")}; newer versions of NCCL relay (NVB)
        """).at(away[:2], job.machine)


def _little(job: MeasuredJob, expected: Expected, most: ProvedBound) -> Finding:
    part = expected.busbw_gb_per_s / most.busbw_gb_per_s
    return finding(f"""
        warning: NCCL uses {part:.0%} of the links' limit for {job.name}  [nccl-gap]
        bound   {job.bound_text}
        got     {_got(job)}
        cause   NCCL finds {expected.how}; trees packed into the same links reach more
        try     {_plan(job)}{_run(job)}{_pick(job, "GPUs with a ring")}
        """).at(job.machine, job.measured)


def _bound(job: MeasuredJob, most: ProvedBound) -> Finding:
    why = f"from {'stated' if job.certain else 'assumed'} rates of links, of which programs reach about 80 %"
    row, modelled = job.measured, job.expected
    rate = row.busbw_gb_per_s if row is not None else modelled.busbw_gb_per_s if modelled is not None else 0.0
    if rate > most.busbw_gb_per_s:
        combined = in_switch_busbw(job.topology, job.ranks, job.collective)
        if combined is not None:
            why = "the bound holds for trees; in-network reduction in the NVSwitch (NVLS) can exceed it; with it the "
            why += f"links allow {gb_per_s_text(combined)} of busbw"
        elif row is not None and not job.certain:
            why = "the measurement shows that an assumed rate is too low, so the bound is higher"
    return finding(f"""
        note: the bound of {job.name}  [bound]
        bound   {job.bound_text}
        got     {_got(job)}
        cause   {why}
        try     the time of each algorithm: blink sim {job.collective}{job.spec} -b 4K
        """).at(job.machine, job.measured)


def _plan(job: MeasuredJob) -> str:
    """The command that plans the job; with all links if NVLink leaves its GPUs in parts, as there is no other plan."""
    return f"blink plan {job.collective}{job.spec}{' --links all' if job.split else ''}"


def _run(job: MeasuredJob) -> str:
    """The command that runs a program on such plans, which is for NVIDIA's GPUs."""
    return "" if any(x.kind == "xgmi" for x in job.topology.links) else ", and blink run -- with your program"


def _pick(job: MeasuredJob, what: str) -> str:
    """The command that selects other GPUs, if the machine has others."""
    return "" if job.whole else f"; blink pick -k {len(job.ranks)}{job.spec.partition(' --gpus')[0]} finds {what}"


def _got(job: MeasuredJob) -> str:
    row = job.measured
    if row is not None:
        return f"{gb_per_s_text(row.busbw_gb_per_s)} busbw measured at {size_text(row.size_bytes)} ({row.place})"
    if job.expected is not None:
        source = "RCCL's usual part" if job.expected.kind == "XGMI" else "NCCL's own model"
        return f"{gb_per_s_text(job.expected.busbw_gb_per_s)} busbw by {source} ({job.expected.how})"
    return "not measured"


def _expected(job: MeasuredJob) -> Expected | None:
    """The rings that NCCL prints, or else those of its model."""
    graph = job.graph
    if graph is None:
        return job.expected
    how = f"{graph.channels} × {graph.gb_per_s:g} GB/s over {graph.kind} ({graph.place})"
    return Expected(graph.total_gb_per_s, how, graph.kind)


def _off_nvlink(case: Case, job: MeasuredJob) -> list[ChannelHop]:
    """Hops of NCCL's rings through host memory, although NVLink joins all GPUs of the job."""
    shm = [hop for hop in case.of(ChannelHop) if hop.transport == "SHM" and max(hop.src, hop.dst) < len(job.ranks)]
    if switched_off(case) or not job.joined_somewhere or any(near_each_other(case, hop) for hop in shm):
        return []
    return shm


RULES = (bound,)
