"""What the links allow, the cut by name, and what NCCL makes of it."""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.doctor.evidence import Case, Graph, Hop
from blinkccl.doctor.finding import Finding, places
from blinkccl.doctor.rules.job import Expected, Job, in_switch_busbw, jobs, stated
from blinkccl.doctor.rules.peers import near_each_other, switched_off
from blinkccl.report.text import gb_per_s_text, ids

#: NCCL's model counts what links reach in practice, some 80 % of nominal on NVLink; below these parts of the bound
#: its channels, and not that, are what is slow.
GAP_ON_NVLINK, GAP = 0.7 * 0.8, 0.5


def findings(case: Case) -> Iterator[Finding]:
    """For each job its bound; and where it is the job or NCCL that makes it slow."""
    for job in jobs(case):
        bound = job.bound
        if bound is None:
            continue
        got = _got(job)
        evidence = places(job.machine, *([job.measured] if job.measured is not None else []))
        parts = job.islands()
        split = job.split
        if split:
            yield _islands(job, parts, got)
        graph = stated(case, job.measured, len(job.ranks))
        expected = job.expected if graph is None else _of(graph)
        gap = GAP_ON_NVLINK if len(parts) == 1 else GAP
        away = _off_nvlink(case, job) if len(parts) == 1 else []
        if away:
            yield _leaves_nvlink(job, away, got)
        elif expected is not None and expected.busbw_gb_per_s < gap * bound.busbw_gb_per_s:
            yield Finding(
                "nccl-gap",
                "warning",
                f"NCCL uses {expected.busbw_gb_per_s / bound.busbw_gb_per_s:.0%} of what the links allow for "
                f"{job.name}",
                job.bound_text,
                got,
                f"NCCL finds {expected.how}; trees packed into the same links reach more",
                f"blink plan {job.collective}{job.spec}, and blink run -- with your program; blink pick -k "
                f"{len(job.ranks)}{job.spec.partition(' --gpus')[0]} finds GPUs with a ring",
                evidence,
            )
        elif not split:
            yield Finding(
                "bound",
                "note",
                f"what {job.name} can reach",
                job.bound_text,
                got,
                _of_trees(job)
                if job.measured is not None and job.measured.busbw_gb_per_s > bound.busbw_gb_per_s and not job.assumed
                else "by the rates of links as they are stated, of which programs reach some 80 %",
                f"blink sim {job.collective}{job.spec} --sweep shows the time of every algorithm",
                evidence,
            )


def _of_trees(job: Job) -> str:
    """Why the bound is no bound for what was measured."""
    combined = in_switch_busbw(job.topology, job.ranks, job.collective)
    most = "" if combined is None else f"; with it the links allow {gb_per_s_text(combined)} of busbw"
    return f"the bound is that of trees; the NVSwitch reduces too (NVLS), which passes it{most}"


def _of(graph: Graph) -> Expected:
    how = f"{graph.channels} × {graph.gb_per_s:g} GB/s over {graph.kind} ({graph.place})"
    return Expected(graph.total_gb_per_s, how, graph.kind)


def _off_nvlink(case: Case, job: Job) -> list[Hop]:
    """Hops of NCCL's rings through the host's memory, though NVLinks join all GPUs of the job."""
    shm = [hop for hop in case.of(Hop) if hop.transport == "SHM" and max(hop.src, hop.dst) < len(job.ranks)]
    if switched_off(case) is not None or not job.joined_somewhere or any(near_each_other(case, hop) for hop in shm):
        return []
    return shm


def _leaves_nvlink(job: Job, away: list[Hop], got: str) -> Finding:
    pairs = ", ".join(dict.fromkeys(f"{job.ranks[hop.src]} → {job.ranks[hop.dst]}" for hop in away))
    return Finding(
        "nccl-gap",
        "warning",
        "NCCL's rings leave NVLink, which joins all GPUs of the job",
        job.bound_text,
        f"host memory between the GPUs {pairs}; {got}",
        "there is no ring of NVLinks through these GPUs, and this version of NCCL does not pass data on through them; "
        "trees do",
        f"blink plan {job.collective}{job.spec}; blink pick -k {len(job.ranks)}{job.spec.partition(' --gpus')[0]} "
        "finds GPUs with a ring; newer versions of NCCL relay (NVB)",
        places(away[:2], job.machine),
    )


def _islands(job: Job, parts: list[tuple[int, ...]], got: str) -> Finding:
    shown = " | ".join(f"{{{ids(part)}}}" for part in parts)
    most = max(len(part) for part in parts)
    pick = f"blink pick -k {len(job.ranks)}{job.spec.partition(' --gpus')[0]}"
    return Finding(
        "cut",
        "note" if job.whole else "warning",
        f"NVLink does not join the GPUs of this job: {shown}",
        job.bound_text,
        got,
        f"between {shown} all data cross PCIe or the bus between sockets, whatever the algorithm; up to {most} GPUs "
        "stay within NVLink",
        f"{pick} shows the best sets of {len(job.ranks)}; blink plan {job.collective}{job.spec} what these can do",
        places(job.machine, *([job.measured] if job.measured is not None else [])),
    )


def _got(job: Job) -> str:
    row = job.measured
    if row is not None:
        return f"{gb_per_s_text(row.busbw_gb_per_s)} busbw measured at {row.size_bytes >> 20} MiB ({row.place})"
    if job.expected is not None:
        return f"{gb_per_s_text(job.expected.busbw_gb_per_s)} busbw by NCCL's own model ({job.expected.how})"
    return "not measured"
