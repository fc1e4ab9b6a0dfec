"""Lines of the system's tools in between: ``nvidia-smi nvlink -s``, ``lspci -vvv``, a kernel's command line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from blinkccl.doctor.evidence import Acs, Iommu, NvLinks, Piece, Place

_GPU = re.compile(r"^\s*GPU (\d{1,3}): ")
_LINK = re.compile(r"^\s*Link (\d{1,2}): (?:<?([Ii]nactive)>?|[\d.,]+ GB/s)")
_ACS = re.compile(r"ACSCtl:.*?ReqRedir([+-])")
_FLAGS = re.compile(r"\b(?:intel_iommu|amd_iommu|iommu)=[\w,]+")


class Tools:
    """A listener of lines."""

    title = "output of system tools"

    def __init__(self, notes: list[str]) -> None:
        self.gpu: tuple[str, Place] | None = None
        self.links = [0, 0]
        self.bridges = [0, 0]
        self.first_acs: Place | None = None

    def hear(self, line: str, place: Place) -> Iterator[Piece]:
        """The pieces of one line."""
        gpu, link, acs = _GPU.match(line), _LINK.match(line), _ACS.search(line)
        if gpu is not None:
            yield from self._gpu_ends()
            self.gpu = (f"GPU{gpu[1]}", place)
        elif link is not None and self.gpu is not None:
            self.links[link[2] is not None] += 1
        elif acs is not None:
            self.first_acs = self.first_acs or place
            self.bridges[acs[1] == "+"] += 1
        elif "BOOT_IMAGE=" in line and (state := iommu_of(line)):
            yield Iommu(place, state, "the kernel's command line")

    def _gpu_ends(self) -> Iterator[Piece]:
        if self.gpu is not None and any(self.links):
            yield NvLinks(self.gpu[1], self.gpu[0], *self.links)
        self.links = [0, 0]

    def end(self) -> Iterator[Piece]:
        yield from self._gpu_ends()
        if self.first_acs is not None:
            yield Acs(self.first_acs, self.bridges[1], sum(self.bridges))


def iommu_of(command_line: str) -> str:
    """What a kernel's command line says of the IOMMU: "off", "passthrough", "translating", or "" where nothing."""
    flags = _FLAGS.findall(command_line)
    if any(flag.endswith("iommu=off") for flag in flags):
        return "off"
    if "iommu=pt" in flags:
        return "passthrough"
    return "translating" if any(flag.endswith("=on") for flag in flags) else ""
