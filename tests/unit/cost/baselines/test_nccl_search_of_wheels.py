"""The model of NCCL's search beside NCCL's own code, called inside its wheels (benchmarks/nccl_channels.py)."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nccl_channels
import pytest
from nccl_wheel import FETCH_S, WHEELS, Graph

from blinkccl.cost.baselines.nccl_search import search
from support.nccl_wheels import wheel, wheel_cache

SCRIPT = Path(nccl_channels.__file__)
MACHINES = "dgx-1v,dgx-a100,hgx-h100,pcie-4gpu-nvlink-pairs"
PAIRS_ON_AMD = "pcie-8gpu-nvlink-pairs"
COMPARE_S = 280
ACROSS = "2x hgx-h100"


def _compare(library: Path, *arguments: str) -> None:
    command = [sys.executable, str(SCRIPT), "--library", str(library), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPARE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all alike" in done.stdout


def test_some_sets_beside_a_wheel_that_is_here() -> None:
    installed = [Path(entry, "nvidia", "nccl", "lib", "libnccl.so.2") for entry in sys.path]
    cached = [wheel_cache() / version / "libnccl.so.2" for version in reversed(WHEELS)]
    library = next((path for path in (*cached, *installed) if path.exists()), None)
    if library is None:
        pytest.skip("no NCCL here: python benchmarks/nccl_channels.py fetches it")
    _compare(library, "--machines", f"{MACHINES},{ACROSS}", "--sets", "4")


@pytest.mark.slow
@pytest.mark.timeout(FETCH_S + 2 * COMPARE_S)
@pytest.mark.parametrize("version", WHEELS)
def test_all_sets_beside_every_wheel(version: str) -> None:
    library = wheel(version)
    _compare(library, "--machines", f"{MACHINES},{PAIRS_ON_AMD}")
    _compare(library, "--machines", ACROSS, "--sets", "20")


def test_newer_versions_count_more_between_processors_of_amd() -> None:
    """Two GPUs behind two processors get 15 of 16 GB/s on NCCL's ladder, later versions 24; other jobs are equal."""
    apart = next(job for job in nccl_channels.jobs(PAIRS_ON_AMD, None) if job.gpus == (0, 7))
    channels = [apart.expected(version) for version in ((2, 27), (2, 30), (2, 32), (2, 99))]
    assert [one.count * one.gb_per_s_per_channel for one in channels] == [15, 15, 24, 24]
    for name in ("dgx-1v", "dgx-a100", "pcie-8gpu"):
        job = next(job for job in nccl_channels.jobs(name, None) if job.gpus == (0, 2, 5, 7))
        assert job.expected((2, 32)) == job.expected((2, 30))


def _as_found(job: nccl_channels.Job) -> tuple[Graph, Graph]:
    """The model's channels in NCCL's form."""
    rings = search(job.one, job.gpus)
    assert rings.tree is not None
    own = (rings.count, rings.gb_per_s_per_channel, 0.0, rings.kind, "", rings.same, False, rings.rings)
    orders = tuple(order for (order,) in rings.tree.orders)
    tree = (rings.count, rings.tree.gb_per_s_per_channel, 0.0, rings.tree.kind, "", rings.same, False, orders)
    return Graph(*own), Graph(*tree)


def test_every_difference_is_reported() -> None:
    job = next(job for job in nccl_channels.jobs("dgx-1v", None) if job.gpus == (1, 4, 5, 6))
    rings, chains = _as_found(job)
    differences = list(nccl_channels.differences(job, rings, chains))
    assert differences == []
    for other in (replace(rings, count=3), replace(rings, gb_per_s=10.0), replace(rings, kind="SYS")):
        (sentence,) = nccl_channels.differences(job, other, chains)
        assert sentence.startswith("rings: NCCL ")
        assert sentence.endswith("model 2 20 NVB")
    assert list(nccl_channels.differences(job, replace(rings, same=True), chains)) != []
    (sentence,) = nccl_channels.differences(job, rings, replace(chains, count=1))
    assert sentence.startswith("chains: NCCL 1 ")
    often = replace(rings, orders=rings.orders * 9)
    assert any("do not fit" in sentence for sentence in nccl_channels.differences(job, often, chains))
