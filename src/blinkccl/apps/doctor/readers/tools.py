"""Output of system tools within a log: ``nvidia-smi -L`` and ``nvlink -s``, ``lspci -vvv``, a kernel's command line,
and variables of NCCL as ``env`` and collect_env list them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from blinkccl.apps.doctor.evidence import Acs, Evidence, GpuName, Iommu, Location, NvLinks, Setting
from blinkccl.apps.doctor.readers import Listener
from blinkccl.topology.gpu_models import names_in

_GPU = re.compile(r"^\s*GPU (\d{1,3}): ")
_LINK = re.compile(r"^\s*Link (\d{1,2}): (?:<?([Ii]nactive)>?|[\d.,]+ GB/s)")
_ACS = re.compile(r"ACSCtl:.*?ReqRedir([+-])")
_VARIABLE = re.compile(r"\s*(NCCL_\w+)=(\S+)\s*")
_FLAGS = re.compile(r"\b(?:intel_iommu|amd_iommu|iommu)=[\w,]+")


@dataclass
class Tools(Listener):
    """Reader of tools' output. NVLinks are returned when the next GPU begins, bridges at the end."""

    title = "output of system tools"
    nvlinks: NvLinks | None = None
    acs: Acs | None = None

    def hear(self, line: str, place: Location) -> Iterator[Evidence]:
        gpu, link, acs = _GPU.match(line), _LINK.match(line), _ACS.search(line)
        if gpu is not None:
            yield from self._gpu_ends()
            self.nvlinks = NvLinks(place, f"GPU{gpu[1]}", 0, 0)
            yield from (GpuName(place, name) for name in names_in([line]))
        elif link is not None and (known := self.nvlinks) is not None:
            down = link[2] is not None
            self.nvlinks = NvLinks(known.place, known.gpu, known.up + (not down), known.down + down)
        elif acs is not None:
            before = self.acs or Acs(place, 0, 0)
            self.acs = Acs(before.place, before.redirecting + (acs[1] == "+"), before.bridges + 1)
        elif (variable := _VARIABLE.fullmatch(line)) is not None:
            yield Setting(place, variable[1], variable[2])
        elif "BOOT_IMAGE=" in line and (state := iommu_of(line)):
            yield Iommu(place, state, "the kernel's command line")

    def _gpu_ends(self) -> Iterator[Evidence]:
        if self.nvlinks is not None and self.nvlinks.up + self.nvlinks.down:
            yield self.nvlinks

    def end(self) -> Iterator[Evidence]:
        yield from self._gpu_ends()
        if self.acs is not None:
            yield self.acs


def iommu_of(command_line: str) -> str:
    """The IOMMU state in a kernel's command line: "off", "passthrough", "translating", or "" if not stated."""
    flags = _FLAGS.findall(command_line)
    if any(flag.endswith("iommu=off") for flag in flags):
        return "off"
    if "iommu=pt" in flags:
        return "passthrough"
    return "translating" if any(flag.endswith("=on") for flag in flags) else ""
