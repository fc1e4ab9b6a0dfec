"""Numbers that nothing else explains, and numbers and files that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from blinkccl.doctor.evidence import Case, Graph, Machine, Measured, NcclVersion, NvLinks
from blinkccl.doctor.finding import Finding, places
from blinkccl.doctor.rules.bound import GAP
from blinkccl.doctor.rules.job import LEAST_BYTES, Job, best_rows, jobs, stated
from blinkccl.report.text import gb_per_s_text
from blinkccl.topology.model import Topology

#: Less than this part of what NCCL itself expects is no noise.
LOW = 0.7
#: Causes for which a run on one host is not slower.
SAY_NOTHING_OF_RATES = ("nic-far", "shared-memory", "cpu-quota", "no-gpudirect", "net-socket")
#: What the last row may keep of the best.
COLLAPSE = 0.5
#: Above the bound by this much is no measurement's error.
ABOVE = 1.1
#: A slower link in a topology is mostly a virtual bridge's.
LEAST_REAL_GB_PER_S = 1


def findings(case: Case) -> Iterator[Finding]:
    """Wrong results, contradictions, rates that fall with the size."""
    wrong = [row for row in case.of(Measured) if row.wrong]
    if wrong:
        yield Finding(
            "wrong-results",
            "error",
            f"{len(wrong)} measurements have wrong results",
            "0 wrong",
            f"{wrong[0].wrong:g} wrong in {wrong[0].collective} of {wrong[0].size_bytes} bytes",
            "data are damaged on their way; mostly P2P over PCIe with an IOMMU that translates, or hardware",
            "the same with NCCL_P2P_DISABLE=1: if it is right then, boot with iommu=pt and switch ACS off; if not, "
            "nvidia-smi -q -d ECC and the other GPUs one by one",
            places(wrong[:2]),
        )
    yield from _contradictions(case)
    for job in jobs(case):
        best, last = job.measured, job.largest
        if best is not None and last is not None and last.busbw_gb_per_s < COLLAPSE * best.busbw_gb_per_s:
            yield Finding(
                "falls-with-size",
                "warning",
                f"busbw falls from {gb_per_s_text(best.busbw_gb_per_s)} to {gb_per_s_text(last.busbw_gb_per_s)} as "
                "messages grow",
                f"{gb_per_s_text(best.busbw_gb_per_s)} at {best.size_bytes >> 20} MiB",
                f"{gb_per_s_text(last.busbw_gb_per_s)} at {last.size_bytes >> 20} MiB",
                "large messages take another algorithm or way, or somebody else uses the links; memory of the host "
                "that is on the wrong node does this too",
                "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING names the algorithm by size; compare NCCL_ALGO=Ring and Tree",
                places(best, last),
            )


def unexplained(case: Case, found: Sequence[Finding]) -> Iterator[Finding]:
    """Jobs that are slower than NCCL itself expects, where no other finding says why."""
    if any(finding.wrong and finding.cause not in SAY_NOTHING_OF_RATES for finding in found):
        return
    found_jobs = jobs(case)
    for job in found_jobs:
        graph = stated(case, job.measured)
        expected = graph.total_gb_per_s if graph is not None else _modelled(job)
        if job.measured is not None and expected is not None and job.measured.busbw_gb_per_s < LOW * expected:
            yield _low(job.name, job.measured, expected, graph or job.machine, job.bound_text)
    for row in [] if found_jobs else best_rows(case):
        graph = stated(case, row)
        if graph is not None and row.busbw_gb_per_s < LOW * graph.total_gb_per_s:
            name = f"{row.collective} among {row.ranks} ranks"
            yield _low(name, row, graph.total_gb_per_s, graph, "not known: no file says what the machine is")


def _modelled(job: Job) -> float | None:
    """By NCCL's model; where that takes too long, what NCCL reaches of the bound at least."""
    if job.expected is not None:
        return job.expected.busbw_gb_per_s
    return None if job.bound is None or job.assumed else GAP * job.bound.busbw_gb_per_s


def _low(name: str, row: Measured, expected: float, by: Graph | Machine, bound: str) -> Finding:
    said = "the channels that it printed" if isinstance(by, Graph) else "its model on these links"
    return Finding(
        "measured-low",
        "warning",
        f"{name} gets {row.busbw_gb_per_s / expected:.0%} of what NCCL expects",
        f"{gb_per_s_text(expected)} busbw by {said}; the bound: {bound}",
        f"{gb_per_s_text(row.busbw_gb_per_s)} busbw at {row.size_bytes >> 20} MiB ({row.place})",
        "nothing that was read explains it: a link that runs slower than it says, another job on the same links, "
        "clocks that are held down, or processes on the wrong NUMA node",
        "blink doctor on the machine itself, or blink topo --gather there; nvidia-smi -q -d PERFORMANCE,CLOCK; "
        "NCCL_DEBUG=INFO with the same run",
        places(row, by),
    )


def _contradictions(case: Case) -> Iterator[Finding]:
    machines = [m for m in case.of(Machine) if any(m.topology.vertex[r].kind == "gpu" for r in m.topology.ranks)]
    for first, second in pairwise(machines):
        fault = _differ(first.topology, second.topology)
        if fault is not None:
            yield _contradiction(f"{first.place} and {second.place} describe different machines", fault, first, second)
    for row in case.of(Measured):
        if (
            machines
            and row.hosts == 1
            and row.ranks > len(machines[-1].topology.ranks)
            and row.size_bytes >= LEAST_BYTES
        ):
            what = f"{row.ranks} ranks on one host, {len(machines[-1].topology.ranks)} GPUs"
            yield _contradiction("the measurement is not of this machine", what, row, machines[-1])
            break
    for job in jobs(case):
        best, bound = job.measured, job.bound
        if best is None or bound is None or job.machine.inferred or best.busbw_gb_per_s < ABOVE * bound.busbw_gb_per_s:
            continue
        if any(x.kind == "nvlink" and job.topology.is_transit(x.dst) for x in job.topology.links):
            continue  # the switch may reduce
        if min(x.gb_per_s for x in job.topology.links) < LEAST_REAL_GB_PER_S:
            continue  # links that do not exist
        if job.assumed:
            continue
        what = f"{gb_per_s_text(best.busbw_gb_per_s)} measured, at most {gb_per_s_text(bound.busbw_gb_per_s)} possible"
        yield _contradiction("the measurement is faster than these links allow", what, best, job.machine)
    versions = {one.version: one for one in case.of(NcclVersion)}
    sources = {one.place.source for one in versions.values()}
    if len(versions) > 1 and len(sources) == 1:
        named = " and ".join(".".join(map(str, version)) for version in sorted(versions))
        yield _contradiction("ranks of one log run different versions of NCCL", named, *versions.values())


def _differ(a: Topology, b: Topology) -> str | None:
    """How two descriptions contradict each other; None where they do not."""
    if len(a.ranks) != len(b.ranks):
        return f"{len(a.ranks)} GPUs and {len(b.ranks)} GPUs"
    lanes = [
        sorted(sum(x.gb_per_s for x in t.links if x.src == r and x.kind == "nvlink") for r in t.ranks) for t in (a, b)
    ]
    if lanes[0] != lanes[1]:
        return f"NVLinks of {sum(lanes[0]):g} and of {sum(lanes[1]):g} GB/s in all"
    return None


def _contradiction(title: str, what: str, *pieces: Machine | Measured | NcclVersion | NvLinks) -> Finding:
    return Finding(
        "contradiction",
        "warning",
        title,
        "files of one machine and one run",
        what,
        "what is said here of the job rests on the file that was given last",
        "give files of one machine only, or each to a blink doctor of its own",
        places(*pieces),
    )
