"""Teams of fake ranks (``fake_ranks.py``)."""

from __future__ import annotations

import sys
from pathlib import Path

from blinkccl.bench.contender import Process, Team

SCRIPT = Path(__file__).with_name("fake_ranks.py")


def team(fault: str = "", size: int = 2, name: str = "fake", variant: str = "", library: str = "") -> Team:
    def processes(path: Path, room: Path) -> list[Process]:
        return [Process([sys.executable, str(SCRIPT), str(path), str(size), fault])]

    return Team(name, size, processes, variant, library)
