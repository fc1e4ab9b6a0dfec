"""The figures of document A, Blink (MLSys 2020), by number.

Fig 1 to 4, 6, 9 to 11, 23 and 25 are drawings of machines and ideas, or of data that is not published.
"""

from __future__ import annotations

from blinkccl.paper import figures_of_allocations, figures_of_switches, figures_of_traffic, figures_of_training
from blinkccl.paper.figures import Figure

#: Names have two digits, so that their order is that of the numbers.
FIGURES: tuple[Figure, ...] = tuple(
    sorted(
        (
            *figures_of_allocations.FIGURES,
            *figures_of_switches.FIGURES,
            *figures_of_traffic.FIGURES,
            *figures_of_training.FIGURES,
        ),
        key=lambda figure: figure.name,
    )
)
