"""Constants of NCCL's topology XML, for reading and writing it (facts of its format, v2.30).

NCCL rates some links by their rate in practice (an NVLink lane of a V100 as 20 GB/s). This package uses nominal
rates per direction instead, so that all sources of a topology give the same machine.
"""

from __future__ import annotations

from fractions import Fraction

from blinkccl.topology.gpu_models import gpu_model

#: NCCL's speed of a PCIe lane in 100 Mb/s, by transfer rate in GT/s; times width / 80 it gives GB/s.
PCI_SPEED = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}
#: The same by generation, 1 to 6.
PCI_SPEED_OF = dict(enumerate(PCI_SPEED.values(), 1))
PCI_DEFAULT_SPEED, PCI_DEFAULT_WIDTH = 60, 16
#: Bus id of an NVSwitch that a virtual machine hides; the second is its form in dumps.
HIDDEN_NVSWITCH = ("fffffff:ffff:ff", "fffffff:ff:ff.0")
#: Prefixes of ``class`` and ``tclass``.
CLASS_GPU, CLASS_NVSWITCH, CLASS_IBM_CPU, CLASS_NIC = "0x03", "0x068000", "0x068001", "0x02"
#: A network controller of no wired kind, in practice Wi-Fi.
CLASS_WIRELESS = "0x0280"


def pcie_gb_per_s(speed: int, width: int) -> Fraction:
    """GB/s per direction of a PCIe link: 12, 24, 48 for ×16 of generation 3, 4, 5."""
    return Fraction(speed * width, 80)


def nvlink_lane_gb_per_s(sm: int) -> int:
    """Nominal GB/s per direction of one NVLink of a GPU with compute capability ``sm`` (70 for 7.0)."""
    if sm < 70:
        return 20
    if sm == 86:
        return 14
    return 25 if sm < 100 else 50


def xgmi_gb_per_s(gcn: str) -> Fraction:
    """Nominal GB/s per direction of one xGMI link of a GPU called ``gcn`` ("gfx942"); that of MI200 if unknown."""
    model = gpu_model(gcn)
    return Fraction(50) if model is None or model.lane_gb_per_s is None else model.lane_gb_per_s


def smp_gb_per_s(arch: str, vendor: str, model: int) -> int:
    """GB/s between two processors, by NCCL's table."""
    if arch == "ppc64":
        return 32
    if arch == "arm64":
        return 6
    if vendor == "AuthenticAMD":
        return 16
    if vendor == "GenuineIntel":
        return next(gb_per_s for least, gb_per_s in ((0xCF, 40), (0x8F, 22), (0x55, 10), (0, 6)) if model >= least)
    return 10


#: For writing: processor attributes from which :func:`smp_gb_per_s` computes each rate.
PROCESSORS = {
    6: ("x86_64", "GenuineIntel", 6, 79),
    10: ("x86_64", "GenuineIntel", 6, 85),
    22: ("x86_64", "GenuineIntel", 6, 143),
    40: ("x86_64", "GenuineIntel", 6, 207),
    16: ("x86_64", "AuthenticAMD", 175, 1),
    32: ("ppc64", "IBM", 0, 0),
}
