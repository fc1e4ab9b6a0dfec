"""What all hand-made algorithms have in common: sound forests everywhere, and the same one each time."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product

import pytest
from planned import plan

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.errors import TopologyError, UnsupportedError

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


_PRINTED = """
from blinkccl.errors import UnsupportedError
from blinkccl.forest.document import dumps, to_document
from planned import plan
for algorithm in {algorithms!r}:
    for spec, gpus in (("dgx-1v", "0-3"), ("mist", None), ("cedar", None)):
        try:
            print(dumps(to_document(plan(algorithm, spec, gpus, "allreduce"))))
        except UnsupportedError as error:
            print(error)
"""


def test_another_hash_seed_gives_the_same_bytes() -> None:
    script = _PRINTED.format(algorithms=ALGORITHMS)
    printed = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            cwd=os.path.dirname(__file__),
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert printed[0].count('"schema_version"') >= 15
