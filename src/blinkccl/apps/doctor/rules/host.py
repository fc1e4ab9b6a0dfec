"""Resources of a process on this host: shared memory, processors, a driver. Ranks on CPUs need nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.apps.doctor.evidence import Case, Device, Host, MachineRead
from blinkccl.apps.doctor.finding import Finding, finding
from blinkccl.apps.doctor.rules.job import best_rows
from blinkccl.show.text import gb_per_s_text
from blinkccl.units import size_text

#: Results below this part of the physical limit are not noise.
LOW_OF_MEMORY = 0.15
#: Default size of /dev/shm in container runtimes.
_CONTAINER_SHM_BYTES = 64 << 20


def shared_memory(case: Case) -> Iterator[Finding]:
    """A failure to get shared memory, or a /dev/shm that is small or full."""
    failures = case.failures("shm")
    host = case.last(Host)
    if failures:
        severity, got = "error", failures[0].text[:120]
    elif host is not None and host.shm_bytes is not None and _little(host.shm_bytes, host.shm_free_bytes):
        severity, got = "warning", f"{size_text(host.shm_bytes)}, {size_text(host.shm_free_bytes or 0)} free"
    else:
        return
    yield finding(f"""
        {severity}: /dev/shm is too small, or full  [shared-memory]
        bound   some 10 MB for each pair of ranks of a host, and as much again for data loaders
        got     {got}
        cause   containers get 64 MiB by default; NCCL's SHM transport and PyTorch's data loaders use /dev/shm
        try     docker run --shm-size=8g (or --ipc=host); Kubernetes: an emptyDir with medium: Memory at /dev/shm; rm
                /dev/shm/nccl-* where no job runs
        """).at(failures[:2] or host)


def _little(size: int, free: int | None) -> bool:
    return size <= _CONTAINER_SHM_BYTES or (free is not None and free < min(_CONTAINER_SHM_BYTES, size // 4))


def processors(case: Case) -> Iterator[Finding]:
    """Fewer processors than ranks, or a quota below the visible processors."""
    host = case.last(Host)
    if host is None:
        return
    usable = min(host.cpus, host.quota) if host.quota is not None else host.cpus
    if host.ranks is not None and host.ranks > usable:
        yield finding(f"""
            warning: {host.ranks} ranks share {usable:g} processors  [too-few-processors]
            bound   a processor for each rank
            got     {usable:g} for {host.ranks}
            cause   waiting ranks take processor time from the ranks that they wait for
            try     start {int(usable)} ranks, or give the job {host.ranks} processors
            """).at(host)
    elif host.quota is not None and host.quota < 0.9 * host.cpus:
        yield finding(f"""
            warning: a control group grants {host.quota:g} of the {host.cpus} visible processors  [cpu-quota]
            bound   {host.cpus} processors
            got     {host.quota:g} processors' time
            cause   libraries start a thread per visible processor, and all threads stop when the quota is used up
            try     OMP_NUM_THREADS={max(1, int(host.quota))} per rank in all, or pin the container to processors
                    (--cpuset-cpus)
            """).at(host)


def no_driver(case: Case) -> Iterator[Finding]:
    """NVIDIA GPUs that the machine's topology lacks."""
    machines = case.of(MachineRead)
    gpus = [device for device in case.of(Device) if device.kind == "gpu"]
    if gpus and machines and not any(machine.gpus for machine in machines):
        yield finding(f"""
            error: {len(gpus)} NVIDIA GPUs are plugged in, and no driver answers  [no-driver]
            bound   {len(gpus)} GPUs
            got     none
            cause   the kernel module is not loaded, or the container was started without GPUs
            try     nvidia-smi; docker run --gpus all
            """).at(gpus[:2])


def memory_bound(case: Case) -> Iterator[Finding]:
    """Rates of ranks on CPUs compared with the limit of the host's memory."""
    for row in best_rows(case):
        if row.limit_gb_per_s is None:
            continue
        part = row.busbw_gb_per_s / row.limit_gb_per_s
        name = f"{row.collective} between {row.ranks} processes"
        severity = "note"
        why = "the call only reads and writes memory; a third to two thirds of the limit is attainable"
        if part < LOW_OF_MEMORY:
            severity, why = "warning", "other processes, too few processors, or memory of another NUMA node"
        yield finding(f"""
            {severity}: {name} gets {part:.0%} of the memory's limit  [memory-bound]
            bound   {gb_per_s_text(row.limit_gb_per_s)} busbw, by the rate at which memory is copied here
            got     {gb_per_s_text(row.busbw_gb_per_s)} busbw at {size_text(row.size_bytes)}
            cause   {why}
            try     blink bench allreduce -g 2 --peer gloo compares with other libraries; numactl --cpunodebind=0
                    --membind=0
            """).at(row)


RULES = (shared_memory, processors, no_driver, memory_bound)
