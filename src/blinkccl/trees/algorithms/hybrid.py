"""NVLink trees and PCIe trees in parallel, with the data split between them (Blink, MLSys 2020, §3.4, Eq 8).

The driver uses NVLink for every pair of GPUs that has one, unless peer access is disabled. So the paper has two sets of
trees, and switching between them takes T_dpa. Both sets end at the same time if

    D_PCIe / BW_PCIe + T_dpa = (D − D_PCIe) / BW_NVL                                                    (Eq 8)

A forest has no sizes. :func:`plan` is therefore the split of large data, where T_dpa is negligible. :func:`plan_split`
plans any split, and :func:`hybrid_split` computes the split for a size and a T_dpa.

Difference from the paper: data over PCIe is stored in the hosts' memories and read from them (``--links staged``). This
needs no switching, but is slower than forwarding by PCIe switches. :mod:`blinkccl.cost.baselines.by_size` times the
paper's method. Without switching one set is enough: ``optimal`` with ``--links all`` packs one forest over both link
classes, with trees that may use both, and is never slower.
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
    """The exact bytes over each link class, which may be fractions, and the seconds until both have ended."""

    pcie_bytes: Fraction
    nvlink_bytes: Fraction
    seconds: Fraction

    @property
    def pcie_part(self) -> Fraction:
        """The part of the data over PCIe, as in :func:`plan_split`; 0 for no data."""
        total = self.pcie_bytes + self.nvlink_bytes
        return self.pcie_bytes / total if total else Fraction(0)


def hybrid_split(
    total_bytes: int | Fraction,
    pcie_gb_per_s: float | Fraction,
    nvlink_gb_per_s: float | Fraction,
    t_dpa_s: float | Fraction,
) -> LinkClassSplit:
    """The split of D bytes with the least max(T_dpa + D_PCIe / BW_PCIe, D_NVL / BW_NVL), the solution of Eq 8.

    ``t_dpa_s`` is the time to switch peer access off and on. The paper prints none; its Fig 21 implies about 0.31 ms
    per GPU, with PCIe at 5.5 GB/s. Bandwidths are the total rates of all trees of a class (:func:`rates`). The split
    and its time T are::

        D_PCIe = BW_PCIe (D − T_dpa BW_NVL) / (BW_PCIe + BW_NVL)
        T      = (D + T_dpa BW_PCIe) / (BW_PCIe + BW_NVL)

    Difference from the paper: for D ≤ T_dpa BW_NVL Eq 8 gives PCIe a negative part; this function returns 0 for it and
    T = D / BW_NVL. Floats are converted exactly; UsageError if one is out of range.
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
    """The rate of a link class from two calls (bytes, seconds); UsageError unless the second is larger and longer."""
    (few, soon), (many, late) = ((size, Fraction(seconds)) for size, seconds in (small, large))
    if not (0 <= few < many and 0 < soon < late):
        raise UsageError(
            f"a rate from {few} bytes in {float(soon):g} s and {many} bytes in {float(late):g} s: expected the second "
            "call to be larger and to take longer; measure sizes that are further apart"
        )
    return (many - few) / (late - soon) / GB


def rates(request: Request) -> tuple[Fraction, Fraction]:
    """(BW_PCIe, BW_NVL) in GB/s, the rates of the trees of each class alone."""
    pcie, nvlink = (class_plan(request, links) for links in ("staged", "fast"))
    return _gb_per_s(pcie), _gb_per_s(nvlink)


def plan(request: Request) -> Forest:
    """The split of Eq 8 for D → ∞, or T_dpa = 0: in proportion to the rates of the two classes.

    Its rate is the sum of both if the classes share no link. The errors are those of :func:`plan_split`.
    """
    pcie_gb_per_s, nvlink_gb_per_s = rates(request)
    return plan_split(request, pcie_gb_per_s / (pcie_gb_per_s + nvlink_gb_per_s))


def plan_split(request: Request, pcie_part: Fraction) -> Forest:
    """The forest that sends ``pcie_part`` (0 to 1) of the data over PCIe trees and the rest over NVLink trees.

    It uses the links of both classes, as ``--links all`` does. Its rate is that of the links, without T_dpa; its bound
    is that of ``optimal`` on all these links. UnsupportedError if the ranks are on several servers, if PCIe alone was
    requested, or if one of the classes does not join the ranks.

    Differences from the paper: each class has the trees of ``optimal``, so the rates in Eq 8 are exact, and every
    collective is supported. If NVLink ends in the processors (AC922), both classes may use the bus between sockets. Its
    load includes both, so the rate is then less than the sum.
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
    """The best forest on ``"fast"``, ``"pcie"`` or ``"staged"`` links, with the errors of :func:`plan_split`."""
    require_one_server(request, ALGORITHM)
    if request.links in PCIE_CHOICES:
        raise UnsupportedError(
            f"{ALGORITHM} sends over NVLink and PCIe, but --links {request.links} selects PCIe alone; leave "
            "--links out, or use --algo optimal"
        )
    name = "NVLink (or xGMI)" if links == "fast" else "PCIe"
    one = replace(request, links=links)
    try:
        network = one.network
    except TopologyError as error:
        raise UnsupportedError(f"{ALGORITHM} needs {name} between all ranks; use --algo optimal. {error}") from None
    if links == "fast" and not any(link.kind in FAST_KINDS for link in network.links):
        raise UnsupportedError(
            f"{ALGORITHM} needs {name} between the ranks as well as PCIe, but {request.topology.name} has none between "
            f"{','.join(map(str, request.ranks))}; use --algo optimal"
        )
    return optimal.plan(one)


def _gb_per_s(forest: Forest) -> Fraction:
    return forest.rate * exact_unit(forest.topology)
