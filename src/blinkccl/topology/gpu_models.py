"""Facts that a GPU's product name implies: compute capability, rates of its links, P2P over PCIe.

Sources: NVIDIA's and AMD's data sheets, and NVIDIA's list of compute capabilities. GeForce cards with the name RTX have
no P2P over PCIe, by NVIDIA's answers in its forums.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A product: ``sm`` is its compute capability times ten, None for AMD's.

    ``lane_gb_per_s``: GB/s per direction of one NVLink or xGMI link, None without such links. ``pcie``: generation.
    ``peers``: False if its driver grants no P2P over PCIe. ``dies``: GPUs per module.
    """

    sm: int | None
    lane_gb_per_s: Fraction | None
    pcie: int
    peers: bool = True
    dies: int = 1

    @property
    def amd(self) -> bool:
        return self.sm is None


def _nvidia(sm: int, lane: int | None, pcie: int, peers: bool = True) -> GpuModel:
    return GpuModel(sm, None if lane is None else Fraction(lane), pcie, peers)


#: Patterns of names; the first that matches decides.
_MODELS: tuple[tuple[str, GpuModel], ...] = (
    (r"GB10\b", _nvidia(121, None, 5)),
    (r"G?B300", _nvidia(103, 50, 5)),
    (r"G?B[12]00", _nvidia(100, 50, 5)),
    (r"RTX PRO \d{4}", _nvidia(120, None, 5)),
    (r"GeForce RTX 50", _nvidia(120, None, 5, peers=False)),
    (r"H200 NVL|H100 NVL|H[128]00|H20\b|GH200", _nvidia(90, 25, 5)),
    (r"GeForce RTX 40", _nvidia(89, None, 4, peers=False)),
    (r"\bL(?:4|20|40S?|2)\b|RTX \d{4} Ada", _nvidia(89, None, 4)),
    (r"GeForce RTX 30", _nvidia(86, 14, 4, peers=False)),
    (r"\bA(?:2|10G?|16|40)\b|RTX A\d{4}", _nvidia(86, 14, 4)),
    (r"\bA[138]00\b|\bA30\b", _nvidia(80, 25, 4)),
    (r"GeForce RTX 20", _nvidia(75, 25, 3, peers=False)),
    (r"Tesla T4\b|\bT4\b|Quadro RTX|TITAN RTX", _nvidia(75, 25, 3)),
    (r"V100|TITAN V\b|Quadro GV100", _nvidia(70, 25, 3)),
    (r"P100", _nvidia(60, 20, 3)),
    (r"MI35[05]X?|gfx950", GpuModel(None, Fraction("76.8"), 5)),
    (r"MI3(?:00|08|25)[AX]?|gfx94[012]", GpuModel(None, Fraction(64), 5)),
    (r"MI2[15]0X?|gfx90a", GpuModel(None, Fraction(50), 4, dies=2)),
)
_COMPILED = tuple((re.compile(pattern), model) for pattern, model in _MODELS)
#: Lines with a GPU's number and name: ``nvidia-smi -L``, PyTorch's and vLLM's collect_env; nvidia-smi's table; rocm-smi
#: and amd-smi, which give numbers on other lines.
_LINES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\s*GPU (\d{1,4}): ((?:NVIDIA|Tesla|Quadro|GeForce|AMD|TITAN)[^(|]*?)\s*(?:\(UUID.*)?",
        r"\|\s+(\d{1,4})\s+((?:NVIDIA|Tesla|Quadro|GeForce|TITAN)[\w .()-]*?)\s+(?:On|Off|N/A|\|).*",
        r"()\s*(?:GPU\[\d+\]\s*:\s*Card [Ss]eries|MARKET_NAME|GPU models and configuration):\s*(\S.*?)\s*",
    )
)


@lru_cache(maxsize=256)
def gpu_model(name: str) -> GpuModel | None:
    """The facts of a product name, such as "NVIDIA B200" or "AMD Instinct MI300X"; None for an unknown one."""
    return next((model for pattern, model in _COMPILED if pattern.search(name)), None)


def names_in(lines: Sequence[str]) -> tuple[str, ...]:
    """The distinct product names that tools print in these lines, in their order; unknown products are left out."""
    matches = (match for line in lines for pattern in _LINES if (match := pattern.fullmatch(line)) is not None)
    return tuple(dict.fromkeys(match[2] for match in matches if gpu_model(match[2]) is not None))
