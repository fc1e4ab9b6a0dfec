"""Measurements without another explanation, and contradictions between measurements and files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from blinkccl.apps.doctor.evidence import Case, Evidence, MachineRead, MeasuredCall, NcclVersion, RingGraph
from blinkccl.apps.doctor.finding import Finding, finding
from blinkccl.apps.doctor.rules.job import (
    GAP,
    LEAST_BYTES,
    LEAST_REAL_GB_PER_S,
    best_rows,
    jobs,
    machines_with_gpus,
    stated,
)
from blinkccl.show.text import count, gb_per_s_text
from blinkccl.topology.gpu_models import gpu_model
from blinkccl.topology.model import Topology
from blinkccl.units import size_text

#: A rate below this part of the rate expected of NCCL is not noise. Below :data:`SMALL_BYTES` the expectation rests on
#: NCCL's constants for latencies as much as on rates of links, so less is asked.
LOW, LOW_AND_SMALL, SMALL_BYTES = 0.7, 0.5, 128 << 20
#: Causes that do not slow down a run on one host.
SAY_NOTHING_OF_RATES = ("nic-far", "shared-memory", "cpu-quota", "no-gpudirect", "net-socket")
#: The last row is a collapse below this part of the best.
COLLAPSE = 0.5
#: Results this far above the bound are not measurement errors.
ABOVE = 1.1


def wrong_results(case: Case) -> Iterator[Finding]:
    """Measurements with wrong sums."""
    wrong = [row for row in case.of(MeasuredCall) if row.wrong]
    if wrong:
        first = wrong[0]
        model = gpu_model(first.gpu)
        memory = "amd-smi metric --ecc" if model is not None and model.amd else "nvidia-smi -q -d ECC"
        yield finding(f"""
            error: {count(len(wrong), "measurement")} with wrong results  [wrong-results]
            bound   0 wrong
            got     {first.wrong:g} wrong in {first.collective} of {first.size_bytes} bytes
            cause   data are damaged in transit, usually by P2P over PCIe with a translating IOMMU, or by hardware
            try     run it with NCCL_P2P_DISABLE=1: if the results are right, boot with iommu=pt and disable ACS; if
                    not, {memory} and the other GPUs one by one
            """).at(wrong[:2])


def contradictions(case: Case) -> Iterator[Finding]:
    """Different machines, measurements that do not fit the machine, and two versions of NCCL in one run."""
    machines = machines_with_gpus(case)
    for first, second in pairwise(machines):
        fault = _differ(first.topology, second.topology)
        if fault is not None:
            yield _contradiction(f"{first.place} and {second.place} describe different machines", fault, first, second)
    gpus = len(machines[-1].topology.ranks) if machines else 0
    for row in case.of(MeasuredCall):
        if machines and row.hosts == 1 and row.ranks > gpus and row.size_bytes >= LEAST_BYTES:
            what = f"{row.ranks} ranks on one host, {gpus} GPUs"
            yield _contradiction("the measurement is not of this machine", what, row, machines[-1])
            break
    for job in jobs(case):
        best, most = job.measured, job.bound
        if best is None or most is None or job.machine.inferred or job.machine.switched or not job.certain:
            continue
        real = min(x.gb_per_s for x in job.topology.links) >= LEAST_REAL_GB_PER_S
        if best.busbw_gb_per_s >= ABOVE * most.busbw_gb_per_s and real:
            rates = [gb_per_s_text(rate) for rate in (best.busbw_gb_per_s, most.busbw_gb_per_s)]
            what = f"{rates[0]} measured, at most {rates[1]} possible"
            yield _contradiction("the measurement is faster than these links allow", what, best, job.machine)
    versions = {one.version: one for one in case.of(NcclVersion)}
    if len(versions) > 1 and len({one.place.source for one in versions.values()}) == 1:
        listed = " and ".join(".".join(map(str, version)) for version in sorted(versions))
        yield _contradiction("ranks of one log run different versions of NCCL", listed, *versions.values())


def _differ(a: Topology, b: Topology) -> str | None:
    """The contradiction between two descriptions; None if they agree."""
    if len(a.ranks) != len(b.ranks):
        return f"{len(a.ranks)} GPUs and {len(b.ranks)} GPUs"
    lanes = [
        sorted(sum(x.gb_per_s for x in t.links if x.src == r and x.kind == "nvlink") for r in t.ranks) for t in (a, b)
    ]
    if lanes[0] != lanes[1]:
        return f"NVLinks of {sum(lanes[0]):g} and of {sum(lanes[1]):g} GB/s in all"
    return None


def _contradiction(title: str, what: str, *pieces: Evidence) -> Finding:
    return finding(f"""
        warning: {title}  [contradiction]
        bound   files of one machine and one run
        got     {what}
        cause   this diagnosis of the job uses the file that was given last
        try     give files of one machine only, or run blink doctor once per machine
        """).at(*pieces)


def falls_with_size(case: Case) -> Iterator[Finding]:
    """Large messages that are slower than smaller ones."""
    for job in jobs(case):
        best, last = job.measured, job.largest
        if best is not None and last is not None and last.busbw_gb_per_s < COLLAPSE * best.busbw_gb_per_s:
            high, low = gb_per_s_text(best.busbw_gb_per_s), gb_per_s_text(last.busbw_gb_per_s)
            yield finding(f"""
                warning: busbw falls from {high} to {low} as messages grow  [falls-with-size]
                bound   {high} at {size_text(best.size_bytes)}
                got     {low} at {size_text(last.size_bytes)}
                cause   large messages use another algorithm or path, another job uses the links, or host memory is on
                        the wrong NUMA node
                try     NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=TUNING names the algorithm by size; compare NCCL_ALGO=Ring
                        and Tree
                """).at(best, last)


def unexplained(case: Case, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Jobs slower than NCCL's expectation, if no other finding explains them."""
    if any(one.wrong and one.cause not in SAY_NOTHING_OF_RATES for one in findings):
        return
    known = jobs(case)
    for job in known:
        expected = job.graph.total_gb_per_s if job.graph is not None else job.modelled_gb_per_s
        if job.measured is not None and expected is not None:
            part = f"{GAP:.0%} of the bound, as its model does not cover this job"
            how = "its model on these links" if job.expected is not None else part
            yield from _low(job.name, job.measured, expected, job.graph or job.machine, how, job.bound_text)
    for row in [] if known else best_rows(case):
        graph = stated(case, row.ranks, row.hosts)
        if graph is not None:
            name = f"{row.collective} among {row.ranks} ranks"
            yield from _low(name, row, graph.total_gb_per_s, graph, "", "unknown: no file describes the machine")


def _low(
    name: str, row: MeasuredCall, expected: float, by: RingGraph | MachineRead, how: str, most: str
) -> Iterator[Finding]:
    if row.busbw_gb_per_s >= (LOW if row.size_bytes >= SMALL_BYTES else LOW_AND_SMALL) * expected:
        return
    model = gpu_model(row.gpu)
    amd = model is not None and model.amd
    clocks = "amd-smi metric --clock --throttle" if amd else "nvidia-smi -q -d PERFORMANCE,CLOCK"
    source = "the channels that it printed" if isinstance(by, RingGraph) else how
    yield finding(f"""
        warning: {name} gets {row.busbw_gb_per_s / expected:.0%} of NCCL's expectation  [measured-low]
        bound   {gb_per_s_text(expected)} busbw by {source}; the bound: {most}
        got     {gb_per_s_text(row.busbw_gb_per_s)} busbw at {size_text(row.size_bytes)} ({row.place})
        cause   not in the evidence; possible are a link below its stated rate, another job on the same links,
                throttled clocks, or processes on the wrong NUMA node
        try     blink doctor on the machine itself, or blink topo --gather there; {clocks}; NCCL_DEBUG=INFO with the
                same run
        """).at(row, by)


RULES = (wrong_results, contradictions, falls_with_size)
