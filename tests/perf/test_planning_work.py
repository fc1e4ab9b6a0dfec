"""The work of planning, counted in calls, which are equal on every machine. Times are in benchmarks/."""

import cProfile
import pstats
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import planning
import pytest

from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.ring import rings

#: Benchmark line → most maximum flows, solver runs, and Python calls; about half are used.
LIMITS = {
    "plan allreduce, dgx-1v, 8 GPUs": (140, 4, 140_000),
    "plan broadcast, dgx-1v, 8 GPUs": (110, 0, 60_000),
    "plan allgather, dgx-1v, 8 GPUs": (220, 2, 200_000),
    "plan broadcast by blink, dgx-1v, 8 GPUs": (40, 6, 1_400_000),
    "certificate allgather, 16x dgx-a100 (128 GPUs)": (260, 0, 1_800_000),
    "plan allgather, 2x dgx-a100 (16 GPUs)": (40, 2, 170_000),
}


def calls(run: Callable[[], object]) -> Counter[tuple[str, str]]:
    """(file, function) → number of its calls."""
    profile = cProfile.Profile()
    profile.enable()
    run()
    profile.disable()
    counted: Counter[tuple[str, str]] = Counter()
    for (file, _, name), value in pstats.Stats(profile).stats.items():
        counted[Path(file).name, name] += value[1]
    return counted


def _work(run: Callable[[], object]) -> tuple[int, int, int]:
    """(maximum flows, solver instances, Python calls) of one run."""
    counted = calls(run)
    return counted["maxflow.py", "max_flow"], counted["solver.py", "_new_highs"], counted.total()


def test_every_in_process_benchmark_has_a_limit():
    assert [line.name for line in planning.LINES if not line.name.startswith("process")] == [*LIMITS]


@pytest.mark.parametrize("name", LIMITS)
def test_work(name):
    [line] = [line for line in planning.LINES if line.name == name]
    if not name.startswith("certificate"):
        line.run()  # Imports its modules.
    planning.clear_caches()
    first = _work(line.run)
    assert all(used <= limit for used, limit in zip(first, LIMITS[name], strict=True)), first
    planning.clear_caches()
    again = _work(line.run)
    assert again[:2] == first[:2]
    # A few calls may differ, since the number of comparisons of a dictionary's keys depends on addresses.
    assert again[2] == pytest.approx(first[2], rel=0.05), "a cache outlived clear_caches: benchmarks would measure it"


def test_links_and_rings_take_little_work():
    """The limits are Python calls for the links of 128 GPUs, and for the rings of a DGX-1V; about half are used."""
    topology = parse_spec("16x dgx-a100")
    planning.clear_caches()
    assert calls(lambda: network_for(topology, topology.ranks)).total() < 100_000
    network = network_for(parse_spec("dgx-1v"), range(8))
    assert calls(lambda: rings(network, tuple(range(8)))).total() < 10_000
