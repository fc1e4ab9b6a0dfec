"""Teams of fake ranks (``fake_ranks.py``)."""

from __future__ import annotations

import sys
from pathlib import Path

from blinkccl.bench.candidate import CandidateLaunch, Process

SCRIPT = Path(__file__).with_name("fake_ranks.py")


def launch(fault: str = "", size: int = 2, name: str = "fake", variant: str = "", library: str = "") -> CandidateLaunch:
    def processes(path: Path, room: Path) -> list[Process]:
        return [Process([sys.executable, str(SCRIPT), str(path), str(size), fault])]

    return CandidateLaunch(name, size, processes, variant, library)
