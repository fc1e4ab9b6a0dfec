"""Harmful settings of NCCL, each of which disables something that makes jobs fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from blinkccl.apps.doctor.evidence import Case, ChannelHop, MachineRead, MeasuredCall, NetworkInUse, Setting
from blinkccl.apps.doctor.finding import Finding, finding
from blinkccl.apps.doctor.rules.job import rates
from blinkccl.apps.doctor.rules.servers import model_of
from blinkccl.topology.assembly import COMBINING_SM


def _number(text: str) -> int:
    return int(text) if text.isdigit() and len(text) < 12 else 1 << 40


def _always(case: Case) -> bool:
    return True


def _several_hosts(case: Case) -> bool:
    return (
        any(row.hosts > 1 for row in case.of(MeasuredCall))
        or any(hop.transport == "NET" for hop in case.of(ChannelHop))
        or any(network.cards for network in case.of(NetworkInUse))
    )


def _switched(case: Case) -> bool:
    """True if the GPUs are on an NVSwitch that may reduce, or neither machine nor GPUs are known."""
    machines, model = case.of(MachineRead), model_of(case)
    if not machines and model is not None:
        return model.lane_gb_per_s is not None and (model.sm or 0) >= COMBINING_SM
    return not machines or any(machine.switched for machine in machines)


def _reduces(case: Case) -> bool:
    """True if the GPUs are known to be on an NVSwitch that may reduce."""
    return bool(case.of(MachineRead) or model_of(case)) and _switched(case)


def _without_nvls(value: str) -> bool:
    """True if this NCCL_ALGO (``Tree``, ``^NVLS``, ``allreduce:ring;allgather:ring``) keeps AllReduce off NVLS."""
    parts = [part.rpartition(":") for part in value.lower().split(";")]
    return any(("nvls" in names) == names.startswith("^") for call, _, names in parts if call in ("", "allreduce"))


_IN_SWITCH = "reduction in the NVSwitch, a quarter of an H100 server's AllReduce"
_BY_SHM = "P2P: GPUs exchange data through the host's memory"
_BY_MEMORY = "GPUDirect RDMA: NICs reach GPUs through the host's memory"
_FEW = "channels: this number cannot fill the links"
#: Name, test of the value, test of the case, and the loss. Libraries read settings when a communicator is created.
HARMFUL: tuple[tuple[str, Callable[[str], bool], Callable[[Case], bool], str], ...] = (
    ("NCCL_P2P_DISABLE", lambda v: v == "1", _always, _BY_SHM),
    ("NCCL_P2P_LEVEL", lambda v: v in ("LOC", "0"), _always, _BY_SHM),
    ("NCCL_SHM_DISABLE", lambda v: v == "1", _always, "shared memory: ranks of a host talk over the network"),
    ("NCCL_IB_DISABLE", lambda v: v == "1", _several_hosts, "InfiniBand and RoCE: hosts talk over TCP"),
    ("NCCL_NVLS_ENABLE", lambda v: v == "0", _switched, _IN_SWITCH),
    ("NCCL_ALGO", _without_nvls, _reduces, _IN_SWITCH),
    ("NCCL_NET_GDR_LEVEL", lambda v: v in ("LOC", "0"), _several_hosts, _BY_MEMORY),
    ("NCCL_MAX_NCHANNELS", lambda v: _number(v) <= 2, _always, _FEW),
    ("NCCL_MAX_CTAS", lambda v: _number(v) <= 2, _always, _FEW),
    ("NCCL_BUFFSIZE", lambda v: _number(v) < 1 << 19, _always, "buffers: each step waits for the previous one"),
    ("NCCL_PROTO", lambda v: v.upper() == "LL", _always, "large messages: LL moves four bytes of data in eight"),
)  # fmt: skip


def setting(case: Case) -> Iterator[Finding]:
    """One finding for each harmful setting, by its last value."""
    could, got = rates(case)
    last = {one.name: one for one in case.of(Setting)}
    for name, harms, where, what in HARMFUL:
        if name in last and harms(last[name].value) and where(case):
            assignment = f"{name}={last[name].value}"
            yield finding(f"""
                warning: {assignment} is set  [setting]
                bound   {could}{what.partition(":")[0]}
                got     {got}{assignment}
                cause   it takes away {what}
                try     unset {name} (also in /etc/nccl.conf and ~/.nccl.conf), unless it is set for a known reason
                """).at(last[name])


RULES = (setting,)
