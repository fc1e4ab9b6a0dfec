"""Settings that somebody left behind: each switches off something that jobs are fast by."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from blinkccl.doctor.evidence import Case, Hop, Machine, Measured, Network
from blinkccl.doctor.finding import Finding, places
from blinkccl.doctor.rules.job import rates

Test = Callable[[str], bool]


def _number(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 12 else 1 << 40


#: Name → (when it harms, what it takes away). Libraries read them when a communicator is made.
HARMFUL: dict[str, tuple[Test, str]] = {
    "NCCL_P2P_DISABLE": (lambda v: v == "1", "P2P: GPUs exchange data through the host's memory"),
    "NCCL_P2P_LEVEL": (lambda v: v in ("LOC", "0"), "P2P: GPUs exchange data through the host's memory"),
    "NCCL_SHM_DISABLE": (lambda v: v == "1", "shared memory: ranks of a host talk over the network"),
    "NCCL_IB_DISABLE": (lambda v: v == "1", "InfiniBand and RoCE: hosts talk over TCP"),
    "NCCL_NVLS_ENABLE": (lambda v: v == "0", "reduction in the NVSwitch, a quarter of an H100 server's AllReduce"),
    "NCCL_NET_GDR_LEVEL": (lambda v: v in ("LOC", "0"), "GPUDirect RDMA: NICs reach GPUs through the host's memory"),
    "NCCL_MAX_NCHANNELS": (lambda v: _number(v) <= 2, "channels: so few cannot fill the links"),
    "NCCL_MAX_CTAS": (lambda v: _number(v) <= 2, "channels: so few cannot fill the links"),
    "NCCL_BUFFSIZE": (lambda v: _number(v) < 1 << 19, "buffers: so small, each step waits for the one before"),
    "NCCL_PROTO": (lambda v: v.upper() == "LL", "large messages: LL moves four bytes of data in eight"),
}
_BETWEEN_HOSTS = ("NCCL_IB_DISABLE", "NCCL_NET_GDR_LEVEL")


def findings(case: Case) -> Iterator[Finding]:
    """One for each harmful setting that was read."""
    could, got = rates(case)
    for name, (harms, what) in HARMFUL.items():
        setting = case.setting(name)
        if setting is None or not harms(setting.value):
            continue
        if name in _BETWEEN_HOSTS and not _several_hosts(case):
            continue
        if name == "NCCL_NVLS_ENABLE" and not _switched(case):
            continue
        yield Finding(
            "setting",
            "warning",
            f"{name}={setting.value} is set",
            f"{could}{what.partition(':')[0]}",
            f"{got}{name}={setting.value}",
            f"it takes away {what}",
            f"unset {name} (also in /etc/nccl.conf and ~/.nccl.conf), unless somebody knows why it is there",
            places(setting),
        )


def _several_hosts(case: Case) -> bool:
    return (
        any(row.hosts > 1 for row in case.of(Measured))
        or any(hop.transport == "NET" for hop in case.of(Hop))
        or any(network.cards for network in case.of(Network))
    )


def _switched(case: Case) -> bool:
    """Whether the GPUs hang on an NVSwitch, as far as anybody says."""
    machines = case.of(Machine)
    return not machines or any(
        x.kind == "nvlink" and m.topology.is_transit(x.dst) for m in machines for x in m.topology.links
    )
