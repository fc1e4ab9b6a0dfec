"""The planning algorithms: functions from a :class:`Request` (topology, collective, ranks) to a Forest.

To add an algorithm, write one file in this folder with a function ``plan(request) -> Forest``, and add its row to
:data:`ALGORITHMS`. The conformance tests and the command line use this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module

from blinkccl.errors import UnsupportedError, UsageError, did_you_mean
from blinkccl.trees.algorithms.request import OBJECTIVES, Request
from blinkccl.trees.forest.model import Forest


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A row of the registry; ``module`` is imported on first use, so a list of algorithms imports none."""

    module: str
    about: str
    source: str
    objectives: tuple[str, ...] = ("shallow",)
    function: str = "plan"

    def plan(self, request: Request) -> Forest:
        """The forest for ``request``, or an UnsupportedError with the reason."""
        if request.objective not in self.objectives:
            raise UnsupportedError(
                f"--objective {request.objective} needs --algo optimal: the trees of other algorithms are fixed"
            )
        if request.max_trees is not None and len(self.objectives) == 1:
            raise UnsupportedError("--max-trees needs --algo optimal: the trees of other algorithms are fixed")
        plan: Callable[[Request], Forest] = getattr(import_module(self.module), self.function)
        if request.deterministic is None:
            return plan(request)
        order = import_module("blinkccl.trees.algorithms.order")
        in_one: Callable[[Request], Forest] = order.plan
        stated: Callable[[Forest], Forest] = order.stated
        best = self is ALGORITHMS["optimal"]
        return in_one(request) if best else stated(plan(replace(request, deterministic=None)))


#: The registry. ``auto`` is ``optimal`` as long as the size is unknown.
ALGORITHMS: dict[str, Algorithm] = {
    "optimal": Algorithm(
        "blinkccl.trees.algorithms.optimal",
        "the optimum of any collective on any topology; many unequal ranks: 1 % less",
        "Edmonds 1973; Tutte, Nash-Williams 1961; arXiv 2402.06787",
        OBJECTIVES,
    ),
    "blink": Algorithm(
        "blinkccl.trees.algorithms.blink",
        "multiplicative weights, then few trees by ILP",
        "Blink, MLSys 2020, §3.2–3.3",
    ),
    "one_hop": Algorithm(
        "blinkccl.trees.algorithms.stars",
        "one star per rank through a switch",
        "Blink, MLSys 2020, §3.5",
        function="one_hop",
    ),
    "ring": Algorithm(
        "blinkccl.trees.algorithms.ring", "NCCL 2.4's rings, PCIe fall-back included", "NCCL 2.4; Blink §2.1"
    ),
    "double_binary_tree": Algorithm(
        "blinkccl.trees.algorithms.double_binary_tree",
        "NCCL's two complementary trees",
        "Sanders, Speck, Träff 2009; NCCL 2.4",
    ),
    "one_shot": Algorithm(
        "blinkccl.trees.algorithms.stars",
        "every rank gets all data and reduces it itself",
        "small-message AllReduce, as in MSCCL++",
        function="one_shot",
    ),
    "internal_broadcast": Algorithm(
        "blinkccl.trees.algorithms.internal_broadcast",
        "groups, internal broadcast, cross-group forwarding",
        "the Blink poster, §3",
    ),
    "flat": Algorithm(
        "blinkccl.trees.algorithms.stars",
        "two-stage segmented reduction and broadcast",
        "multi-path UCX, flat intra-node AllReduce",
        function="flat",
    ),
    "three_stage": Algorithm(
        "blinkccl.trees.algorithms.three_stage",
        "socket leaders: reduce, exchange, broadcast",
        "multi-path UCX, hierarchical intra-node AllReduce",
    ),
    "three_phase": Algorithm(
        "blinkccl.trees.algorithms.three_phase",
        "several servers: local trees, one-hop trees among local roots, local trees",
        "Blink, MLSys 2020, §3.5, Fig 10",
    ),
    "hybrid": Algorithm(
        "blinkccl.trees.algorithms.hybrid",
        "NVLink trees and PCIe trees, the data split between them",
        "Blink, MLSys 2020, §3.4, Eq 8",
    ),
    "multi_path": Algorithm(
        "blinkccl.trees.algorithms.multi_path",
        "one message over all paths at once: directly, through the host's memory and through other GPUs",
        "multi-path UCX, multi-path copy; maximum flow",
    ),
}
#: Plans for proof, simulation and comparison, which only the reference engine runs. They are not tried for a job, nor
#: for ``auto``.
NOT_RUN: dict[str, Algorithm] = {
    "in_switch": Algorithm(
        "blinkccl.trees.algorithms.in_switch",
        "switches that reduce and multicast (SHARP); only the reference engine runs it",
        "Steiner trees; flows as in arXiv 2402.06787",
    ),
}
ALIASES = {"auto": "optimal"}


def algorithm(name: str) -> Algorithm:
    """The registry row of ``name`` or of the alias ``auto``; a UsageError lists all names."""
    try:
        return {**ALGORITHMS, **NOT_RUN}[ALIASES.get(name, name)]
    except KeyError:
        names = [*ALIASES, *ALGORITHMS, *NOT_RUN]
        near = did_you_mean(name, names)
        raise UsageError(f"unknown algorithm {name!r}{near}; expected one of {', '.join(names)}") from None
