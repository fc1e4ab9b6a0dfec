"""Settings of MPI peers that make a win over them a win: every one, and who says that it helps.

Variants of one peer run side by side; at every size the fastest of them stands for the peer.

========  =========================================  =================================================================
peer      setting                                    why
========  =========================================  =================================================================
openmpi   btl_vader_single_copy_mechanism none (4),  cross-memory attach copies in the kernel: without it, AllReduce of
          smsc ^cma,knem,xpmem (5)                   1 MiB took 61 µs instead of 101 (measured here, 2 ranks, 4.1.4)
openmpi   mpi_yield_when_idle 1                      Open MPI's FAQ on oversubscribed nodes: ranks that wait must let
                                                     the others run
impi      I_MPI_FABRICS=shm                          Intel's developer reference: no network is needed in one host
impi      I_MPI_THREAD_YIELD=2                       Intel's developer reference; with more ranks than cores 4 KiB take
                                                     milliseconds without it (measured here)
impi      I_MPI_THREAD_YIELD=3                       the same page; better than 2 where others use the cores as well
oneccl    CCL_ATL_TRANSPORT=mpi, I_MPI_FABRICS=shm   oneCCL's guide: transport over MPI's shared memory
oneccl    CCL_WORKER_OFFLOAD=0                       oneCCL's guide: no progress thread beside the caller's, which
                                                     two ranks on two cores have no core for (12 ms for 4 bytes here)
oneccl    CCL_YIELD=sched_yield                      oneCCL's guide: for more threads than cores
mpich     none                                       4 and 5 have no setting that helped here
========  =========================================  =================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Variant:
    """Options of a launcher and its environment; ``crowded``: only with more ranks than cores (None: always)."""

    name: str
    options: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    crowded: bool | None = None


_NO_SINGLE_COPY = ("--mca", "btl_vader_single_copy_mechanism", "none", "--mca", "smsc", "^cma,knem,xpmem")
_YIELD = ("--mca", "mpi_yield_when_idle", "1")
_CCL = {"CCL_ATL_TRANSPORT": "mpi", "I_MPI_FABRICS": "shm", "CCL_WORKER_OFFLOAD": "0"}

VARIANTS: dict[str, tuple[Variant, ...]] = {
    "openmpi": (
        Variant("default", crowded=False),
        Variant("no single copy", _NO_SINGLE_COPY, crowded=False),
        Variant("yield", _YIELD, crowded=True),
        Variant("yield, no single copy", (*_YIELD, *_NO_SINGLE_COPY), crowded=True),
    ),
    "mpich": (Variant("default"),),
    "oneccl": (
        Variant("no worker", environment=_CCL, crowded=False),
        Variant(
            "no worker, yield",
            environment={**_CCL, "CCL_YIELD": "sched_yield", "I_MPI_THREAD_YIELD": "2"},
            crowded=True,
        ),
    ),
    "impi": (
        Variant("shm", environment={"I_MPI_FABRICS": "shm"}, crowded=False),
        Variant("shm, yield", environment={"I_MPI_FABRICS": "shm", "I_MPI_THREAD_YIELD": "2"}, crowded=True),
        Variant("shm, sleep", environment={"I_MPI_FABRICS": "shm", "I_MPI_THREAD_YIELD": "3"}, crowded=True),
    ),
}


def variants(peer: str, world_size: int, cores: int) -> tuple[Variant, ...]:
    """The variants of ``peer`` worth running with ``world_size`` ranks on ``cores`` cores."""
    crowded = world_size > cores
    return tuple(row for row in VARIANTS[peer] if row.crowded in (None, crowded))
