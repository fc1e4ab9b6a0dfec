"""The figures of documents C, D and E. B's are drawings of its protocol, and bars without numbers."""

from __future__ import annotations

from blinkccl.paper import figures_of_multipath, figures_of_nccl
from blinkccl.paper.figures import Figure

FIGURES: tuple[Figure, ...] = (*figures_of_multipath.FIGURES, *figures_of_nccl.FIGURES)
