"""The same ring over the same PCIe has the same cost for Blink and NCCL, because one function counts both links."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from blinkccl.api.plan import load, plan_of
from blinkccl.collectives.spec import Collective
from blinkccl.cost.baselines.nccl_links import ARCHS, INTEL_SHARE, PHB, CountedLinks
from blinkccl.cost.choice.costs import PROLOGUE_US, counted_gb_per_s, timing
from blinkccl.cost.choice.programs import compiled, gpu_of, largest
from blinkccl.errors import TopologyError
from blinkccl.nccl.nccl_predictor import NcclPredictor
from blinkccl.nccl.programs import candidates
from blinkccl.nccl.topology_of_job import JobPlacement
from blinkccl.topology.catalog import CATALOG
from blinkccl.topology.select import PCIE_KINDS, network_for
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import algorithm
from blinkccl.trees.algorithms.request import Request

SIZE_BYTES = 4 << 30
#: Sets of GPUs by index: on one switch, on several, on both sockets, all.
SETS = ((0, 1), (0, -1), (0, 1, 2), (0, 1, 2, 3), (0, 2, 4, 6), (1, 4, 6), tuple(range(8)))


def jobs() -> list[tuple[str, tuple[int, ...]]]:
    """Sets of GPUs that only PCIe joins, on all machines of the catalogue with NVIDIA's GPUs."""
    unique = {}
    for name in CATALOG:
        topology = parse_spec(name)
        kinds = {link.kind for link in topology.links}
        for places in SETS:
            if "xgmi" in kinds or len(topology.ranks) <= max(places):
                continue
            gpus = tuple(topology.ranks[place] for place in places)
            try:
                used = {link.kind for link in network_for(topology, gpus).links}
            except TopologyError:
                continue
            if used and used <= set(PCIE_KINDS):
                unique[name, gpus] = None
    return list(unique)


def ring_and_nccl(name: str, gpus: tuple[int, ...], nccl: tuple[int, int]) -> tuple[float, float]:
    """Seconds of Blink's ring with Simple, and of NCCL."""
    topology, collective = parse_spec(name), Collective("allreduce", len(gpus))
    place, gpu = JobPlacement(topology, gpus, nccl=nccl), gpu_of(topology)
    (ring,) = candidates(place, ("ring",), gpu.blocks, {}).by_key["allreduce", -1]
    parts, predictor = ring.parts(gpu.blocks), NcclPredictor(place, gpu.capability)
    assert predictor.caveat == ""
    capacity = largest(parts).capacity_bytes("simple")
    blink = timing(ring, "simple", SIZE_BYTES, gpu.capability, parts, capacity)
    prediction = predictor.at(collective, SIZE_BYTES)
    assert prediction.words == "NCCL ring Simple"
    return blink.seconds, prediction.seconds


@pytest.mark.parametrize(("name", "gpus"), jobs())
@pytest.mark.parametrize("nccl", [(2, 30), (2, 32)])
def test_the_rings_of_blink_and_nccl_are_equally_fast(name: str, gpus: tuple[int, ...], nccl: tuple[int, int]) -> None:
    ours_s, theirs_s = ring_and_nccl(name, gpus, nccl)
    assert ours_s == pytest.approx(theirs_s, rel=0.002)


def test_the_jobs_have_every_kind_of_path() -> None:
    assert {name for name, _ in jobs()} >= {"pcie-8gpu", "pcie-8gpu-nvlink-pairs", "pcie-4gpu-nvlink-pairs", "dgx-1v"}
    assert sum(name == "pcie-8gpu" for name, _ in jobs()) == len(SETS)


def test_messages_into_a_processors_memory_load_links_by_their_bytes() -> None:
    """Through the processor a link has 10 of 12 GB/s; two copies through its memory have the full rate."""
    topology = parse_spec("pcie-8gpu")
    arch, gpu, collective = ARCHS["volta"], gpu_of(topology), Collective("broadcast", 2, root=0)
    for links, gb_per_s in (("pcie", 10.0), ("staged", 12.0)):
        forest = algorithm("optimal").plan(Request(topology, collective, (0, 2), links))
        one = compiled("optimal", forest, gpu.blocks, gpu.counted)
        rates = counted_gb_per_s(one, arch)
        assert {arc for queue in one.program.queues for arc in pairwise(queue.path)} == rates.keys()
        assert set(rates.values()) == {gb_per_s}


def test_a_call_of_blink_has_a_prologue_beside_nccls_costs() -> None:
    """LL's AllReduce of one element on two GPUs of one switch takes NCCL's base and steps, and the prologue."""
    topology = parse_spec("pcie-8gpu")
    gpu, place = gpu_of(topology), JobPlacement(topology, (0, 1))
    one = next(x for x in candidates(place, ("one_shot",), gpu.blocks, {}).by_key["allreduce", -1])
    timed = timing(one, "ll", 8, gpu.capability, 1, largest(1).capacity_bytes("ll"))
    assert timed.seconds * 1e6 == pytest.approx(6.8 + 1.0 + PROLOGUE_US, abs=0.05)


@pytest.mark.parametrize(
    ("name", "gpus"), [("dgx-a100", (0, 2)), ("dgx-a100", (0, 1)), ("dgx-1v", (0, 2)), ("dgx-1p", (0, 1))]
)
def test_a_plan_read_from_its_file_takes_as_long(name: str, gpus: tuple[int, int], tmp_path: Path) -> None:
    """A plan's topology has its own links only, which may not identify the vendor of the processors."""
    request = Request(parse_spec(name), Collective("allreduce", 2), gpus, "pcie")
    plan = plan_of(request, "optimal")
    plan.save(tmp_path / "plan.json")
    read = load(tmp_path / "plan.json")
    assert len(read.forest.topology.links) < len(request.topology.links)
    assert read.simulate("64M").seconds == plan.simulate("64M").seconds


def test_an_unknown_processor_adds_no_fifth() -> None:
    topology = parse_spec("dgx-1v")
    whole = CountedLinks(topology)
    alone = replace(topology, links=tuple(x for x in topology.links if x.kind != "smp"))
    assert whole.share(PHB, 0) == CountedLinks(alone).share(PHB, 0) == INTEL_SHARE
    assert CountedLinks(replace(alone, name="mine")).share(PHB, 0) == 1
    assert CountedLinks(replace(topology, name="mine")).share(PHB, 0) == INTEL_SHARE
