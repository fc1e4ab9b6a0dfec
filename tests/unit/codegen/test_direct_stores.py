"""Direct stores: paths through memories are refused, and the accepted paths have the plan's rate."""

import re
from collections import defaultdict, deque
from fractions import Fraction
from itertools import pairwise

import pytest

from blinkccl.codegen.layout import ProgramGroup
from blinkccl.errors import BlinkError, UnsupportedError
from blinkccl.formats.cuda import write
from blinkccl.formats.registry import ANY
from blinkccl.schedule.lower import lower
from blinkccl.schedule.program import Program
from blinkccl.topology.assembly import Assembly
from blinkccl.topology.catalog import CATALOG
from blinkccl.topology.memories import memory_inside, store_fault, without_memory_links
from blinkccl.topology.model import Topology
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS, algorithm
from blinkccl.trees.forest.model import Forest
from support.planned import asked

#: Machine, GPUs, links, relays: jobs with and without paths through memories.
JOBS = [
    *((name, "0-3", links, False) for name in CATALOG for links in ("fast", "all")),
    ("mist", "0,1", "fast", False),
    ("mist", "0,1,2,3", "fast", False),
    ("cedar", "0,1,2,3", "fast", False),
    ("cedar", "0,1,2", "all", False),
    ("dgx-1v", "1,4,5,6", "fast", False),
    ("dgx-1v", "1,4,5,6", "fast", True),
    ("dgx-1v", "0,1,2,3", "all", False),
    ("dgx-2", "0,1,2", "all", False),
    ("pcie-8gpu", "0,1,4,5", "fast", False),
    ("pcie-4gpu-nvlink-pairs", "0,1,2,3", "all", False),
    ("mi250", "0,1,2,3", "fast", True),
]


def plan_of(name: str, job: tuple) -> tuple[Forest, Program]:
    spec, gpus, links, relays = job
    forest = algorithm(name).plan(asked(spec, "allreduce", gpus, links=links, relays=relays))
    return forest, lower(forest)


def route(machine: Topology, src: int, dst: int) -> tuple[int, ...]:
    """The hardware's route from one memory to another: over the fastest kind of links, in the fewest hops.

    Between GPUs NVLink or xGMI, directly or through a switch, else PCIe; between a GPU and a processor's memory the
    best link. Never through a GPU, and never through a processor that would have to store data from NVLink.
    """
    fast = {pair for pair, link in machine.link.items() if link.kind in ("nvlink", "xgmi", "c2c")}
    for switch in [None, *(v.id for v in machine.vertices if v.kind == "switch")]:
        path = (src, dst) if switch is None else (src, switch, dst)
        if all(pair in fast for pair in pairwise(path)):
            return path
    to_host = machine.vertex[src].kind == "host" or machine.vertex[dst].kind == "host"
    kinds = ("pcie", "smp", "nvlink", "c2c") if to_host else ("pcie", "smp")
    paths, queue = {src: (src,)}, deque([src])
    while queue:
        at = queue.popleft()
        for link in machine.links:
            gpu = machine.vertex[link.dst].kind == "gpu" and link.dst != dst
            if link.src == at and link.dst not in paths and link.kind in kinds and not gpu:
                paths[link.dst] = (*paths[at], link.dst)
                queue.append(link.dst)
    return paths[dst]


def emitted_loads(forest: Forest, program: Program) -> dict[tuple[int, int], Fraction]:
    """The load of each link of the machine if connections carry the shares' weights, in S per unit of time."""
    machine, group = parse_spec(forest.topology.name), ProgramGroup([program])
    segments = (*program.ranks, *group.memories)
    connection = group.connections_of(program)
    load: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for role in program.roles:
        for number in role.sends:
            src, dst, home = (segments[segment] for segment in group.ways[connection[number]])
            for leg in ((src, home), (home, dst)) if home != dst else ((src, dst),):
                for pair in pairwise(route(machine, *leg)):
                    load[pair] += forest.shares[role.share].weight * program.rate
    return load


@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job[0]}-{job[1]}-{job[2]}{'-relays' if job[3] else ''}")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_emitted_code_has_the_rate_of_its_plan(name, job):
    """Between GPUs and memories data takes the hardware's routes, which may differ from the plan's."""
    try:
        forest, program = plan_of(name, job)
    except BlinkError:
        return  # the algorithm does not serve these GPUs
    try:
        text = write(program, forest, None, ANY)[0].text
    except UnsupportedError:
        return
    assert "BLINK_ENTRY(" in text
    machine = parse_spec(job[0])
    for pair, amount in emitted_loads(forest, program).items():
        assert float(amount) * forest.topology.unit_gb_per_s <= machine.link[pair].gb_per_s * (1 + 1e-9), pair


@pytest.mark.parametrize(
    ("name", "job", "why"),
    [
        ("one_hop", ("dgx-1v", "1,4,5,6", "fast", True), r"1 → 0 → 4 leads through GPU0, which is outside the job"),
    ],
)
def test_a_path_that_no_store_takes_is_refused(name, job, why):
    forest, program = plan_of(name, job)
    with pytest.raises(UnsupportedError, match=rf"^queue \d+, from GPU \d to GPU \d: its path .*{why}") as refused:
        write(program, forest, None, ANY)
    assert "plan with --links fast, without --relays, or" in str(refused.value)


def test_a_relay_with_a_role_is_refused():
    forest, program = plan_of("blink", ("dgx-1v", "0,7", "fast", True))
    with pytest.raises(UnsupportedError, match=r"^data is forwarded at GPU1, GPU2, GPU3, GPU4, GPU5, GPU6, where no"):
        write(program, forest, None, ANY)


def test_gpus_with_nvlink_do_not_store_over_pcie():
    """Only a plan by hand could do so; Blink's own plans stage data in the host's memory between these GPUs."""
    fault = store_fault(network_for(parse_spec("dgx-1v"), (0, 1), "all", stored=False), (0, 8, 1))
    assert fault is not None
    assert re.search(r"uses PCIe, but stores from GPU 0 to GPU 1 use", fault)


@pytest.mark.parametrize(
    "job",
    [
        ("cedar", "0,1,2,3", "fast", False),
        ("cedar", "0,1,2,3", "all", False),
        ("mist", "0,1", "fast", False),
        ("mist", "0,1,2,3", "fast", False),
        ("dgx-1v", "1,4,5,6", "fast", False),
        ("dgx-1v", "0,1,2,3", "all", False),
        ("dgx-2", "0,1,2", "fast", False),
        ("pcie-8gpu", "0,4", "fast", False),
        ("pcie-4gpu-nvlink-pairs", "0,1,2,3", "all", False),
    ],
    ids=lambda job: job[0],
)
def test_paths_over_switches_and_processors_memories_are_written(job):
    forest, program = plan_of("optimal", job)
    assert "BLINK_ENTRY(" in write(program, forest, None, ANY)[0].text


def built(kinds: tuple[str, ...], links: tuple[str, ...]) -> Topology:
    box = Assembly("by hand", "declared")
    vertices = [box.add(kind) for kind in kinds]
    for (a, b), kind in zip(pairwise(vertices), links, strict=True):
        box.join(a, b, 10, kind)
    return box.finish()


@pytest.mark.parametrize(
    ("kinds", "links", "memory"),
    [
        (("gpu", "gpu"), ("nvlink",), None),
        (("gpu", "switch", "gpu"), ("nvlink", "nvlink"), None),
        (("gpu", "switch", "switch", "gpu"), ("pcie", "pcie", "pcie"), None),
        (("gpu", "host", "gpu"), ("pcie", "pcie"), None),
        (("gpu", "host", "host", "gpu"), ("pcie", "smp", "pcie"), None),
        (("gpu", "nic", "switch", "nic", "gpu"), ("net", "net", "net", "net"), None),
        (("gpu", "host", "gpu"), ("nvlink", "nvlink"), 1),
        (("gpu", "host", "gpu"), ("c2c", "pcie"), 1),
        (("gpu", "host", "host", "gpu"), ("pcie", "smp", "nvlink"), 2),
        (("gpu", "gpu", "gpu"), ("nvlink", "nvlink"), 1),
        (("gpu", "switch", "gpu", "gpu"), ("nvlink", "nvlink", "nvlink"), 2),
        (("cpu", "cpu", "cpu"), ("shm", "shm"), 1),
    ],
)
def test_which_vertices_forward_packets_and_which_are_memories(kinds, links, memory):
    topology = built(kinds, links)
    assert memory_inside(topology, range(len(kinds))) == memory
    into_memory = {links[i] for i in range(len(links)) if "host" in kinds[i : i + 2]} - {"pcie", "smp", "net"}
    left = {link.kind for link in without_memory_links(topology).links}
    assert left == set(links) - into_memory
