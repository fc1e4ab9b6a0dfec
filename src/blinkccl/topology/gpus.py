"""The architecture of a machine's GPUs, from their compute capability or their links."""

from __future__ import annotations

from fractions import Fraction

from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.model import Topology
from blinkccl.topology.spec import machine_named

#: Minimum compute capability of each architecture. As in NCCL, Ada (8.9) counts as Ampere, and the Blackwells of
#: workstations (12.x) as those of servers.
_CAPABILITIES = (("blackwell", 100), ("hopper", 90), ("ampere", 80), ("volta", 70))
#: The most GPUs of one host, those of a DGX-2; a machine with more, such as an NVL72, spans several hosts.
MOST_OF_A_HOST = 16


def guess_arch(topology: Topology) -> str:
    """The architecture of the machine's oldest GPU, by compute capability, or else inferred from its links.

    The NVLinks of one GPU decide: 6, 12 and 18 of 25 GB/s are a V100, an A100 and an H100, up to 4 of 20 GB/s a P100,
    more a B200. Without NVLink, as in a plan over PCIe, the machine of that name in the catalogue decides. Otherwise
    PCIe decides: generation 3 means volta, 4 ampere, 5 hopper.
    """
    known = [sm for gpu in topology.ranks if (sm := topology.vertex[gpu].sm) is not None]
    if known and len(known) == len(topology.ranks):
        return next((name for name, least in _CAPABILITIES if min(known) >= least), "pascal")
    unit = exact_unit(topology)
    lanes = [unit * x.capacity for x in topology.links if x.kind == "nvlink"]
    if not lanes:
        whole = machine_named(topology.name)
        if whole is not None and any(x.kind == "nvlink" for x in whole.links):
            return guess_arch(whole)
        pcie = max((unit * x.capacity for x in topology.links if x.kind == "pcie"), default=Fraction(0))
        return "volta" if pcie < 24 else "ampere" if pcie < 48 else "hopper"
    most = max(
        sum((unit * x.capacity for x in topology.links if x.src == gpu and x.kind == "nvlink"), Fraction(0))
        for gpu in topology.ranks
    )
    if most <= 80 and all(rate % 20 == 0 for rate in lanes) and any(rate % 25 for rate in lanes):
        return "pascal"
    upto = (("volta", 150), ("ampere", 300), ("hopper", 450))
    return next((name for name, gb_per_s in upto if most <= gb_per_s), "blackwell")
