"""A machine's links in NCCL's constants: their rates, and the load of a path on each.

NCCL 2.30 (src/graph/topo.cc, topo.h, paths.cc, search.cc) counts the rate that a link reaches in practice instead of
its nominal rate. Data from GPU to GPU over PCIe through an Intel processor loads that PCIe by a fifth more, because the
processor splits packets. NCCL's model and the model of the library's own kernels (:mod:`blinkccl.cost.choice.costs`)
both use these constants, so the same links cost the same for both.

Paths have kinds, near to far (:data:`KINDS`). NVL is over NVLink or an NVSwitch, NVB over NVLink through another GPU of
the job, C2C over a Grace processor. PIX and PXB are over one and over several PCIe switches, PHB is through a
processor, SYS between processors. PXN leads to a network card over NVLink through the GPU beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from blinkccl.errors import UnsupportedError
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.model import Topology
from blinkccl.topology.nccl_constants import PROCESSORS
from blinkccl.topology.spec import machine_named

#: Kinds of path in NCCL's order. P2C exists only on Grace servers with network cards and is not modelled.
KINDS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
LOC, NVL, NVB, C2C, PIX, PXB, _P2C, PXN, PHB, SYS = range(len(KINDS))

#: GB/s that NCCL counts between Broadwell processors. The catalogue gives all Xeons the 10 GB/s of the later ones.
BROADWELL_GB_PER_S = 6
#: Machines of the catalogue whose processors are Broadwells (NVIDIA DGX-1 User Guide).
BROADWELLS = ("dgx-1p", "dgx-1v")
#: GB/s between AMD's processors. NCCL up to 2.30 counts the first for all of them. From 2.32 on it counts that for the
#: older ones alone, and the others for families 25 (Zen 3 and 4) and 26 (Zen 5). The source of 2.32 was not public at
#: the time of writing, so the numbers are those that its wheel 2.32.3 prints for each family. A topology does not name
#: the family, so family 25 is assumed.
AMD_GB_PER_S, AMD_BY_FAMILY, BY_FAMILY_FROM = 16, {25: 24, 26: 32}, (2, 32)
#: Machines of the catalogue whose processors are AMD's of family 23 (NVIDIA DGX A100 User Guide).
OLDER_AMD = ("dgx-a100",)
#: The default version of NCCL.
VERSION = (2, 30)


@dataclass(frozen=True, slots=True)
class Arch:
    """A GPU architecture: compute capability, GB/s of an NVLink as NCCL counts it, and nominal (topo.h)."""

    sm: int
    lane_gb_per_s: Fraction
    nominal_gb_per_s: Fraction


#: Architectures by the names that :mod:`blinkccl.cost.baselines.nccl_model` uses too.
ARCHS = {
    "pascal": Arch(60, Fraction(18), Fraction(20)),
    "volta": Arch(70, Fraction(20), Fraction(25)),
    "ampere": Arch(80, Fraction(20), Fraction(25)),
    "hopper": Arch(90, Fraction("20.6"), Fraction(25)),
    "blackwell": Arch(100, Fraction("40.1"), Fraction(50)),
}


def arch_named(name: str) -> Arch:
    """The row of :data:`ARCHS`; UnsupportedError for an unknown name."""
    if name not in ARCHS:
        raise UnsupportedError(f"unknown GPU architecture {name!r}; expected one of {', '.join(ARCHS)}")
    return ARCHS[name]


#: The load on PCIe of a GB/s from GPU to GPU through an Intel processor.
INTEL_SHARE = Fraction(6, 5)


@dataclass(frozen=True)
class CountedLinks:
    """The links of a whole machine in the constants of a version of NCCL."""

    machine: Topology
    version: tuple[int, int] = VERSION

    def gb_per_s(self, kind: str, nominal: Fraction, arch: Arch) -> Fraction:
        """The GB/s that NCCL counts for a link of ``nominal`` GB/s between GPUs of ``arch``."""
        if kind == "nvlink":
            return nominal / arch.nominal_gb_per_s * arch.lane_gb_per_s
        if kind == "smp" and self._names(BROADWELLS):
            return Fraction(BROADWELL_GB_PER_S)
        if kind == "smp" and nominal == AMD_GB_PER_S:
            older = self.version < BY_FAMILY_FROM or self._names(OLDER_AMD)
            return Fraction(AMD_GB_PER_S if older else AMD_BY_FAMILY[25])
        return nominal

    def share(self, kind: int, vertex: int) -> Fraction:
        """The load of one GB/s on the PCIe links of a path of this kind, in the server of ``vertex``."""
        intel = kind == PHB and self._knows_processors(vertex) and self.vendor(vertex) == "GenuineIntel"
        return INTEL_SHARE if intel else Fraction(1)

    def vendor(self, vertex: int) -> str:
        """``AuthenticAMD`` or ``IBM``, inferred from the bus between the server's processors; else ``GenuineIntel``."""
        server = self.machine.vertex[vertex].server
        rate = int(self._smp.get(server, 10))
        return PROCESSORS.get(AMD_GB_PER_S if rate == AMD_BY_FAMILY[25] else rate, PROCESSORS[10])[1]

    def _knows_processors(self, vertex: int) -> bool:
        """True if the bus or the machine's name identifies the vendor of a server's processors."""
        return self.machine.vertex[vertex].server in self._smp or self._named is not None

    @cached_property
    def _named(self) -> Topology | None:
        """The catalogue's machine of that name, since the topology of a plan has the plan's links alone."""
        return machine_named(self.machine.name)

    @cached_property
    def _smp(self) -> dict[int, Fraction]:
        """The slowest bus between processors by server, from the topology or else from the machine of that name."""
        named = {} if self._named is None else _buses(self._named)
        return named | _buses(self.machine)

    def _names(self, machines: Sequence[str]) -> bool:
        return any(word in machines for word in self.machine.name.split())


def _buses(machine: Topology) -> dict[int, Fraction]:
    """GB/s of the slowest bus between processors by server, which identifies their vendor."""
    unit, slowest = exact_unit(machine), dict[int, Fraction]()
    for x in machine.links:
        if x.kind == "smp":
            server = machine.vertex[x.src].server
            slowest[server] = min(slowest.get(server, x.capacity * unit), x.capacity * unit)
    return slowest


def step_kind(topology: Topology, src: int, dst: int) -> int:
    """The kind of a path with this link alone."""
    kind = topology.link[src, dst].kind
    if kind != "pcie":
        return {"nvlink": NVL, "c2c": C2C}.get(kind, SYS)
    ends = {topology.vertex[src].kind, topology.vertex[dst].kind}
    return PHB if "host" in ends else PXB if ends == {"switch"} else PIX


def kind_of(topology: Topology, path: Sequence[int]) -> int:
    """The kind of a path from GPU to GPU."""
    return max(step_kind(topology, src, dst) for src, dst in pairwise(path))
