"""What a process of this host may use: shared memory, processors, a driver. All there is to see for ranks on CPUs."""

from __future__ import annotations

from collections.abc import Iterator

from blinkccl.doctor.evidence import Case, Device, Failure, Host, Machine
from blinkccl.doctor.finding import Finding, places
from blinkccl.doctor.rules.job import best_rows
from blinkccl.report.text import gb_per_s_text
from blinkccl.units import size_text

#: Less than this part of the physical limit is no noise.
LOW_OF_MEMORY = 0.15
#: What container runtimes give where nobody asks for more.
_CONTAINER_SHM_BYTES = 64 << 20


def findings(case: Case) -> Iterator[Finding]:
    """Shared memory, processors, driver."""
    yield from _shared_memory(case)
    for host in case.of(Host)[-1:]:
        yield from _processors(host)
    yield from _driver(case)
    yield from _against_memory(case)


def _shared_memory(case: Case) -> Iterator[Finding]:
    failures = [one for one in case.of(Failure) if one.kind == "shm"]
    hosts = case.of(Host)
    host = hosts[-1] if hosts else None
    small = host is not None and host.shm_bytes is not None and host.shm_bytes <= _CONTAINER_SHM_BYTES
    full = (
        host is not None
        and host.shm_bytes is not None
        and host.shm_free_bytes is not None
        and host.shm_free_bytes < min(_CONTAINER_SHM_BYTES, host.shm_bytes // 4)
    )
    if not (failures or small or full):
        return
    if failures or host is None:
        got = failures[0].text[:120]
    else:
        got = f"{size_text(host.shm_bytes or 0)}, {size_text(host.shm_free_bytes or 0)} free"
    yield Finding(
        "shared-memory",
        "error" if failures else "warning",
        "/dev/shm is too small, or full",
        "some 10 MB for each pair of ranks of a host, and as much again for data loaders",
        got,
        "containers get 64 MiB unless somebody asks for more; NCCL's SHM transport and PyTorch's data loaders live "
        "there",
        "docker run --shm-size=8g (or --ipc=host); Kubernetes: an emptyDir with medium: Memory at /dev/shm; rm "
        "/dev/shm/nccl-* where no job runs",
        places(failures[:2], [host] if host is not None and not failures else []),
    )


def _processors(host: Host) -> Iterator[Finding]:
    usable = min(host.cpus, host.quota) if host.quota is not None else host.cpus
    if host.ranks is not None and host.ranks > usable:
        yield Finding(
            "too-few-processors",
            "warning",
            f"{host.ranks} ranks share {usable:g} processors",
            "a processor for each rank",
            f"{usable:g} for {host.ranks}",
            "ranks that wait take the processor from those that they wait for",
            f"start {int(usable)} ranks, or give the job {host.ranks} processors",
            places(host),
        )
    elif host.quota is not None and host.quota < 0.9 * host.cpus:
        yield Finding(
            "cpu-quota",
            "warning",
            f"a control group grants {host.quota:g} of the {host.cpus} processors that are seen here",
            f"{host.cpus} processors",
            f"{host.quota:g} processors' time",
            "libraries start a thread for each processor that they see, and all of them stop when the quota is used up",
            f"OMP_NUM_THREADS={max(1, int(host.quota))} per rank in all, or pin the container to processors "
            "(--cpuset-cpus)",
            places(host),
        )


def _against_memory(case: Case) -> Iterator[Finding]:
    """Ranks on processors against what the host's memory allows."""
    for row in best_rows(case):
        if row.limit_gb_per_s is None:
            continue
        low = row.busbw_gb_per_s < LOW_OF_MEMORY * row.limit_gb_per_s
        yield Finding(
            "memory-bound",
            "warning" if low else "note",
            f"{row.collective} between {row.ranks} processes gets {row.busbw_gb_per_s / row.limit_gb_per_s:.0%} of "
            "what memory allows",
            f"{gb_per_s_text(row.limit_gb_per_s)} busbw, by the rate at which memory is copied here",
            f"{gb_per_s_text(row.busbw_gb_per_s)} busbw at {row.size_bytes >> 20} MiB",
            "other processes, too few processors, or memory of another NUMA node"
            if low
            else "reading and writing memory is all that it does; a third to two thirds is what there is to get",
            "blink bench allreduce -g 2 --peer gloo compares with other libraries; numactl --cpunodebind=0 --membind=0",
            places(row),
        )


def _driver(case: Case) -> Iterator[Finding]:
    machines = case.of(Machine)
    gpus = [device for device in case.of(Device) if device.kind == "gpu"]
    if gpus and machines and not any(m.topology.vertex[r].kind == "gpu" for m in machines for r in m.topology.ranks):
        yield Finding(
            "no-driver",
            "error",
            f"{len(gpus)} NVIDIA GPUs are plugged in, and no driver answers",
            f"{len(gpus)} GPUs",
            "none",
            "the kernel module is not loaded, or the container was started without GPUs",
            "nvidia-smi; docker run --gpus all",
            places(gpus[:2]),
        )
