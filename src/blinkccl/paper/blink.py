"""All claims of document A, Blink (MLSys 2020).

B1 to B36 are its claims; E1, E3 to E6 and E8 what it prints that cannot be right. Errors that spoil a claim are in that
claim's row: E2 in B16, E7 in B18, E9 in B36.
"""

from __future__ import annotations

from blinkccl.collectives.ops import OPS
from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.engines.registry import ENGINES
from blinkccl.paper import (
    blink_errors,
    blink_graph,
    blink_microbenchmarks,
    blink_protocols,
    blink_simulated,
    blink_training,
)
from blinkccl.paper.claim import BY_CONSTRUCTION, Claim, Context, Value

#: What NCCL 2.4 has.
NCCL_REDUCTIONS = ("sum", "prod", "max", "min")
NCCL_COLLECTIVES = ("allreduce", "broadcast", "reduce", "allgather", "reduce_scatter")


def _features(_: Context) -> tuple[Value, ...]:
    basis = "registries of this package"
    return (
        Value("NCCL's reduction functions", 4, sum(name in OPS for name in NCCL_REDUCTIONS), basis=basis),
        Value("NCCL's collectives", 5, sum(name in COLLECTIVES for name in NCCL_COLLECTIVES), basis=basis),
        Value("engines that run generated CUDA code", 1, int("generated" in ENGINES), basis=basis),
    )


_OWN = (
    Claim(
        "B3",
        "A",
        "§1, Fig 3",
        "Among 40,000 multi-GPU jobs 3, 5, 6 or 7 GPUs on one server are common.",
        None,
        "The trace of that cluster was not published.",
    ),
    Claim(
        "B35",
        "A",
        "§1, §2.3, §4.1",
        "Blink probes links at run time, generates CUDA code for NCCL's collectives and reductions, and is preloaded "
        "under NCCL's API by LD_PRELOAD, without changes to programs.",
        _features,
        "This package was made to do the same, so that it does proves nothing of Blink. Links are probed by "
        "topology/probe.py; NCCL's API is libblink.so, which is preloaded. Both and the generated code are tested on "
        "CPUs, against a double of CUDA's driver; on a GPU they have not run yet.",
        agrees=BY_CONSTRUCTION,
    ),
)


def _number(claim: Claim) -> tuple[str, int]:
    return claim.id[0], int(claim.id[1:])


#: By letter and number.
CLAIMS: tuple[Claim, ...] = tuple(
    sorted(
        (
            *_OWN,
            *blink_graph.CLAIMS,
            *blink_errors.CLAIMS,
            *blink_microbenchmarks.CLAIMS,
            *blink_protocols.CLAIMS,
            *blink_simulated.CLAIMS,
            *blink_training.CLAIMS,
        ),
        key=_number,
    )
)
