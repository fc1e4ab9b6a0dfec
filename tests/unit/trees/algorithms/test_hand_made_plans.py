"""Common properties of all hand-made algorithms: sound forests on every machine, or a refusal with the reason."""

from itertools import product

import pytest

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import TopologyError, UnsupportedError
from support.planned import plan

ALGORITHMS = ("ring", "double_binary_tree", "one_hop", "one_shot", "internal_broadcast", "flat", "three_stage")
SPECS = (
    ("dgx-1v", "1,4,5,6"),
    ("dgx-1p", "7,3,1,0,2"),
    ("mist", None),
    ("star:4", None),
    ("mi250", "0-5"),
    ("random:7:seed=5", None),
    ("random:6:seed=3:directed", None),
    ("pcie-4gpu-nvlink-pairs", None),
    ("2x dgx-a100 @ 100Gbps", "0-2+3,4"),
    ("2x dgx-1v @ 40Gbps", "0,1,2+0,3,4"),
)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(("spec", "gpus"), SPECS)
def test_sound_or_refused_with_a_reason(algorithm: str, spec: str, gpus: str | None) -> None:
    refusals = []
    for collective, links in product(COLLECTIVES, ("fast", "pcie", "all")):
        try:
            plan(algorithm, spec, gpus, collective, links=links, root=1)
        except (UnsupportedError, TopologyError) as error:
            refusals.append(error)
    for error in refusals:
        reason = str(error)
        assert reason.startswith(algorithm) or "--links" in reason or "add PCIe" in reason


#: Algorithm → a machine for it, and the collectives that it supports.
SERVED = {
    "ring": ("dgx-1v", "0-3", "broadcast, reduce, allreduce, allgather, reduce_scatter"),
    "double_binary_tree": ("dgx-2", None, "allreduce, broadcast, reduce"),
    "one_shot": ("cedar", None, "allreduce"),
    "flat": ("cedar", None, "allreduce"),
    "internal_broadcast": ("dgx-1p", None, "broadcast, gather, allgather, allreduce"),
    "three_stage": ("mist", None, "allreduce"),
    "three_phase": ("2x dgx-a100", "0,1+0", "allreduce"),
}


@pytest.mark.parametrize("algorithm", SERVED)
def test_other_collectives_are_refused_by_name(algorithm: str) -> None:
    spec, gpus, served = SERVED[algorithm]
    for collective in COLLECTIVES:
        if collective in served.split(", "):
            plan(algorithm, spec, gpus, collective, root=1)
        else:
            with pytest.raises(
                UnsupportedError, match=f"{algorithm} does not support {collective}, only {served}; use"
            ):
                plan(algorithm, spec, gpus, collective)
