"""Every choice of links × machine × collective gives an answer or a usage error in all planning verbs, and no crash.

``make test`` runs every pair of the three, each with ``sim`` or with ``explain``, and shown with or without its
machine; ``BLINK_ALL_TESTS=1`` runs the product.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from blinkccl.collectives.spec import COLLECTIVES
from blinkccl.topology.catalog import CATALOG
from blinkccl.topology.select import LINK_CHOICES
from support.examples import ALL_TESTS

#: Small sets of each machine's GPUs: connected by NVLink, in parts, under one switch and under two. One GPU is refused.
SETS = {
    "dgx-1p": ("0,1", "0,1,6"),
    "dgx-1v": ("1,4,6", "0,1,4"),
    "dgx-2": ("0,3", "0,1,9"),
    "dgx-a100": ("0,1", "0,3,6"),
    "hgx-h100": ("0,5", "1,2,7"),
    "hgx-h200": ("0,7",),
    "dgx-b200": ("2,5",),
    "gb200-nvl72": ("0,4", "1,5,70"),
    "dgx-b300": ("1,6",),
    "gb200-tray": ("0,1", "0,2,3"),
    "gb300-tray": ("0-3",),
    "gb300-nvl72": ("3,41",),
    "gh200": ("0",),
    "hgx-h20": ("2,3",),
    "hgx-h800": ("0,4,5",),
    "mi300x": ("0,4,7",),
    "mi325x": ("1,2",),
    "mi355x": ("0,5",),
    "mist": ("0,1", "0-3"),
    "cedar": ("0,1,3",),
    "mi250": ("0,1", "0,3,9"),
    "pcie-8gpu": ("0,1", "0,3,6"),
    "pcie-4gpu-nvlink-pairs": ("0,1", "0,2", "0-3"),
    "pcie-8gpu-nvlink-pairs": ("0,1,5", "0-3"),
    "l40s-8": ("0,1", "0,5"),
    "rtx-pro-6000-8": ("2,3", "1,4"),
    "dgx-spark": ("0",),
    "mac-studio": ("0",),
    "3x dgx-spark @ cables=ring": ("0-2",),
    "3x mac-studio @ cables=ring": ("0-2",),
    "2x dgx-1v @ 40Gbps": ("0,1+3,4", "1,4+6"),
    "2x pcie-8gpu @ 100Gbps": ("0,5+1",),
}
#: Values of --links; None is the default.
CHOICES = (None, *LINK_CHOICES)
WHOLE = ("dgx-1v", "pcie-8gpu", "mist", "pcie-8gpu-nvlink-pairs")
_REFUSED = 2


def jobs(machine: str) -> Iterator[tuple[str, str, str | None, tuple[str, ...]]]:
    """The jobs of a machine: GPUs, collective, links, and the verbs that time them."""
    row = list(SETS).index(machine)
    for column, collective in enumerate(COLLECTIVES):
        at = row + column
        if not ALL_TESTS:
            verb = ("sim", "explain")[(row * len(COLLECTIVES) + column) // len(CHOICES) % 2]
            yield SETS[machine][at % len(SETS[machine])], collective, CHOICES[at % len(CHOICES)], (verb,)
            continue
        for gpus in SETS[machine]:
            yield from ((gpus, collective, links, ("sim", "explain")) for links in CHOICES)


def test_every_machine_of_the_catalog_is_here() -> None:
    assert CATALOG.keys() <= SETS.keys()


@pytest.mark.parametrize("machine", SETS)
def test_small_sets(blink, tmp_path: Path, machine: str) -> None:
    for gpus, collective, links, verbs in jobs(machine):
        tried(blink, tmp_path, [collective, "--topo", machine, "--gpus", gpus], links, verbs)


@pytest.mark.parametrize("machine", CATALOG if ALL_TESTS else WHOLE)
def test_whole_machines(blink, tmp_path: Path, machine: str) -> None:
    row = list(CATALOG).index(machine)
    for column, collective in enumerate(("allreduce", "broadcast", "sendrecv") if ALL_TESTS else ("allreduce",)):
        for links in CHOICES if ALL_TESTS else CHOICES[(row + column) % 2 :: 2]:
            tried(blink, tmp_path, [collective, "--topo", machine], links, ("explain",))


def tried(blink, folder: Path, job: list[str], links: str | None, verbs: tuple[str, ...]) -> None:
    """Plan, time, check and show a job; all verbs refuse it, or none."""
    chosen = job + ([] if links is None else ["--links", links])
    plan = folder / "plan.json"
    planned = answered(blink, "plan", *chosen, "-o", plan)
    codes = {answered(blink, verb, *chosen, "--size", "1M").code for verb in verbs}
    assert codes == {planned.code}, (chosen, planned.err)
    if planned.code == 0:
        for machine in ([], ["--topo", job[2]]):
            assert answered(blink, "check", plan, *machine).code == 0, chosen
            if ALL_TESTS or bool(machine) == ("sim" in verbs):
                assert answered(blink, "show", plan, *machine).code == 0, chosen
        if "sim" in verbs:
            assert answered(blink, "sim", plan, "--size", "1M", "--json").code == 0, chosen


def answered(blink, *typed: str | Path):
    """Run a command, which must end with an answer or with a sentence on the usage error."""
    ended = blink(*typed)
    assert ended.code in (0, _REFUSED), (typed, ended.err)
    assert ended.code == 0 or (ended.out == "" and ended.err.startswith("blink: error: ")), (typed, ended.err)
    return ended
