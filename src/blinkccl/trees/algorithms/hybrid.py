"""NVLink trees and PCIe trees side by side, the data split between them (Blink, MLSys 2020, §3.4, Eq 8).

The driver takes NVLink for every pair of GPUs that has one, unless peer access is disabled: so the paper has two sets
of trees, and switching costs T_dpa. Both sets end together when

    D_PCIe / BW_PCIe + T_dpa = (D − D_PCIe) / BW_NVL                                                    (Eq 8)

A forest knows no sizes. :func:`plan` is therefore the split of large data, where T_dpa does not count;
:func:`plan_split` takes any split, and :func:`hybrid_split` finds the one for a size and a T_dpa.

Where we differ: what goes over PCIe is stored in the hosts' memories and fetched there (``--links staged``), which
needs no switching, and is slower where PCIe switches would have forwarded. The paper's way is timed by
:mod:`blinkccl.cost.baselines.by_size`. Nothing then asks for two sets: ``optimal`` with ``--links all`` packs one
forest over both link classes, in which a tree may use both, and is never slower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from blinkccl.errors import TopologyError, UnsupportedError, UsageError
from blinkccl.topology.assembly import exact_unit
from blinkccl.topology.model import FAST_KINDS
from blinkccl.topology.select import PCIE_CHOICES
from blinkccl.trees.algorithms import optimal
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.shapes import require_one_server
from blinkccl.trees.forest.model import Forest, attained_rate
from blinkccl.units import GB

ALGORITHM = "hybrid"


@dataclass(frozen=True, slots=True)
class LinkClassSplit:
    """How many bytes go over each link class, and how long both take together; exact, so bytes may be parts of one."""

    pcie_bytes: Fraction
    nvlink_bytes: Fraction
    seconds: Fraction

    @property
    def pcie_part(self) -> Fraction:
        """What :func:`plan_split` takes; 0 for no data."""
        total = self.pcie_bytes + self.nvlink_bytes
        return self.pcie_bytes / total if total else Fraction(0)


def hybrid_split(
    total_bytes: int | Fraction,
    pcie_gb_per_s: float | Fraction,
    nvlink_gb_per_s: float | Fraction,
    t_dpa_s: float | Fraction,
) -> LinkClassSplit:
    """The split of D bytes for which max(T_dpa + D_PCIe / BW_PCIe, D_NVL / BW_NVL) is least: Eq 8, solved.

        D_PCIe = BW_PCIe (D − T_dpa BW_NVL) / (BW_PCIe + BW_NVL)
        T      = (D + T_dpa BW_PCIe) / (BW_PCIe + BW_NVL)

    ``t_dpa_s`` is the time of switching peer access off and on: the paper prints none; its Fig 21 implies about 0.31 ms
    per GPU, with PCIe at 5.5 GB/s. Bandwidths are what all trees of a class reach together (:func:`rates`). Where we
    differ: for D ≤ T_dpa BW_NVL Eq 8 gives PCIe a negative part; here it is 0 and T = D / BW_NVL. A float is taken as
    the fraction that it is; UsageError if one is out of its range.
    """
    total, wait = Fraction(total_bytes), Fraction(t_dpa_s)
    pcie, nvlink = Fraction(pcie_gb_per_s) * GB, Fraction(nvlink_gb_per_s) * GB
    if total < 0 or wait < 0 or pcie <= 0 or nvlink <= 0:
        raise UsageError(
            f"hybrid_split of {total_bytes} bytes over PCIe at {pcie_gb_per_s} GB/s and NVLink at {nvlink_gb_per_s} "
            f"GB/s with {t_dpa_s} s to switch: bytes and seconds must not be negative, rates must be positive"
        )
    over_pcie = max(Fraction(0), pcie * (total - wait * nvlink) / (pcie + nvlink))
    over_nvlink = total - over_pcie
    return LinkClassSplit(over_pcie, over_nvlink, over_nvlink / nvlink)


def measured_gb_per_s(small: tuple[int, float], large: tuple[int, float]) -> Fraction:
    """The rate of a link class by two calls of so many bytes and seconds; UsageError where they say nothing of it."""
    (few, soon), (many, late) = ((size, Fraction(seconds)) for size, seconds in (small, large))
    if not (0 <= few < many and 0 < soon < late):
        raise UsageError(
            f"{few} bytes in {float(soon):g} s and {many} bytes in {float(late):g} s say nothing of a rate; measure "
            "sizes that are further apart"
        )
    return (many - few) / (late - soon) / GB


def rates(request: Request) -> tuple[Fraction, Fraction]:
    """(BW_PCIe, BW_NVL) in GB/s: what the trees of each class reach by themselves."""
    pcie, nvlink = (class_plan(request, links) for links in ("staged", "fast"))
    return _gb_per_s(pcie), _gb_per_s(nvlink)


def plan(request: Request) -> Forest:
    """The split of Eq 8 for D → ∞, or T_dpa = 0: in proportion to the rates of the two classes.

    Its rate is the sum of the two where the classes share no link. Raises as :func:`plan_split`.
    """
    pcie_gb_per_s, nvlink_gb_per_s = rates(request)
    return plan_split(request, pcie_gb_per_s / (pcie_gb_per_s + nvlink_gb_per_s))


def plan_split(request: Request, pcie_part: Fraction) -> Forest:
    """The forest that sends ``pcie_part`` (0 to 1) of the data over PCIe trees and the rest over NVLink trees.

    It lies on the links of both classes, as ``--links all`` has them. Its rate is that of links alone, without T_dpa;
    its bound is that of ``optimal`` on all of these links. UnsupportedError if the ranks are on several servers, PCIe
    alone was asked for, or one of the classes does not join the ranks.

    Where we differ: the trees of each class are those of ``optimal``, so the rates in Eq 8 are exact; and every
    collective is served. On machines whose NVLink ends in the processors (AC922) both classes may want the bus between
    sockets; its load counts both, and the rate is then less than the sum.
    """
    if not 0 <= pcie_part <= 1:
        raise UsageError(f"hybrid: the part for PCIe must be between 0 and 1, got {pcie_part}")
    both = replace(request, links="all")
    parts = {"fast": 1 - pcie_part, "staged": pcie_part}
    halves = [(part, class_plan(request, links).shares) for links, part in parts.items()]
    weighted = [(share, share.weight * part) for part, shares in halves if part for share in shares]
    shares = tuple(replace(share, weight=weight, slice=number) for number, (share, weight) in enumerate(weighted))
    rate = attained_rate(both.network, shares)
    certificate = optimal.plan(both).certificate
    return Forest(request.collective, request.ranks, ALGORITHM, both.network, shares, rate, certificate)


def class_plan(request: Request, links: str) -> Forest:
    """The best forest on ``"fast"``, ``"pcie"`` or ``"staged"`` links; refuses what :func:`plan_split` refuses."""
    require_one_server(request, ALGORITHM)
    if request.links in PCIE_CHOICES:
        raise UnsupportedError(
            f"{ALGORITHM} sends over NVLink and PCIe, but --links {request.links} asks for PCIe alone; leave "
            "--links out, or use --algo optimal"
        )
    name = "NVLink (or xGMI, C2C)" if links == "fast" else "PCIe"
    one = replace(request, links=links)
    try:
        network = one.network
    except TopologyError as error:
        raise UnsupportedError(f"{ALGORITHM} needs {name} between all ranks; use --algo optimal. {error}") from None
    if links == "fast" and not any(link.kind in FAST_KINDS for link in network.links):
        raise UnsupportedError(
            f"{ALGORITHM} needs {name} between the ranks beside PCIe, and {request.topology.name} has none between "
            f"{','.join(map(str, request.ranks))}; use --algo optimal"
        )
    return optimal.plan(one)


def _gb_per_s(forest: Forest) -> Fraction:
    return forest.rate * exact_unit(forest.topology)
