"""``blink export --to nccl-graph``: the rings of a plan for NCCL are read back; other plans are refused."""

from fractions import Fraction
from itertools import pairwise

import pytest

from blinkccl.api.export import exported
from blinkccl.collectives.spec import COLLECTIVES, Collective
from blinkccl.cost.baselines.nccl_graph import channels_of, rings_of
from blinkccl.cost.baselines.nccl_server import NcclServer
from blinkccl.errors import UnsupportedError
from blinkccl.schedule.lower import lower
from blinkccl.topology import nccl_graph
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.algorithms.given_channels import forest_of
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.algorithms.request import Request
from blinkccl.trees.algorithms.ring import SERVED
from blinkccl.trees.forest.model import Forest


def plan(spec: str, ranks: tuple[int, ...], name: str = "allreduce", algorithm: str = "ring") -> Forest:
    root = 0 if "root" in COLLECTIVES[name].parameters else None
    return ALGORITHMS[algorithm].plan(Request(parse_spec(spec), Collective(name, len(ranks), root), ranks))


JOBS = [
    ("dgx-1v", tuple(range(8))),
    ("dgx-1v", (0, 1, 2)),
    ("dgx-1v", (0, 1, 2, 3)),
    ("dgx-1p", (0, 1, 2, 3)),
    ("hgx-h100", tuple(range(8))),
    ("pcie-8gpu", (0, 2, 5)),
]


@pytest.mark.parametrize(("spec", "ranks"), JOBS)
def test_a_written_graph_is_read_back_as_the_same_plan(spec, ranks) -> None:
    forest, machine = plan(spec, ranks), parse_spec(spec)
    (file,) = exported(lower(forest), forest, "nccl-graph", machine=machine)
    again = forest_of(nccl_graph.parse(file.text, file.name), machine)
    assert rings_of(again) == rings_of(forest)
    assert (again.shares, again.rate) == (forest.shares, forest.rate)
    assert exported(lower(forest), forest, "nccl-graph", machine=machine) == (file,)


@pytest.mark.parametrize("name", SERVED)
def test_every_collective_of_rings_has_the_same_channels(name) -> None:
    assert rings_of(plan("dgx-1v", (0, 1, 2, 3), name)) == rings_of(plan("dgx-1v", (0, 1, 2, 3)))


@pytest.mark.parametrize(("spec", "ranks"), JOBS)
def test_channels_fill_a_link_as_nccl_counts_it_and_overload_none(spec, ranks) -> None:
    nccl = NcclServer.of(parse_spec(spec), ranks)
    channels = channels_of(rings_of(plan(spec, ranks)), nccl.server, nccl.channels)
    load: dict[tuple[int, int], float] = {}
    for ring in channels.rings:
        for pair in pairwise((*ring, ring[0])):
            for arc, part in nccl.server.hops[pair].load:
                load[arc] = load.get(arc, 0.0) + float(part) * channels.gb_per_s_per_channel
    assert max(load[arc] / float(nccl.server.capacity[arc]) for arc in load) == pytest.approx(1)
    assert channels.count <= nccl_graph.MOST_CHANNELS
    fits = channels.gb_per_s_per_channel <= nccl.channels.gb_per_s_per_channel
    assert fits or 2 * channels.count > nccl_graph.MOST_CHANNELS


def test_the_command_takes_the_machine(blink, tmp_path) -> None:
    path = tmp_path / "rings.json"
    assert blink("plan", "allgather", "--topo", "hgx-h100", "--algo", "ring", "-o", path).code == 0
    ended = blink("export", path, "--to", "nccl-graph", "--topo", "hgx-h100")
    assert (ended.code, ended.err) == (0, "")
    assert "Its own search finds 12 x 30 = 360 GB/s over NVL, on which data moves at up to 370.8." in ended.out
    assert blink("plan", "allgather", "--topo", "hgx-h100", "-o", path).code == 0
    blink("export", path, "--to", "nccl-graph").assert_refused("plan with --algo ring")


def test_trees_are_refused_with_a_remedy() -> None:
    forest = plan("dgx-1v", (1, 4, 5, 6), algorithm="optimal")
    with pytest.raises(UnsupportedError, match=r"is no ring through all GPUs.*--algo ring"):
        exported(lower(forest), forest, "nccl-graph")


def test_several_servers_and_high_indices_are_refused() -> None:
    forest = plan("2x dgx-1v @ 40Gbps", tuple(range(16)))
    with pytest.raises(UnsupportedError, match=r"on 2$|network card"):
        exported(lower(forest), forest, "nccl-graph")
    forest = plan("dgx-2", tuple(range(8, 12)))
    with pytest.raises(UnsupportedError, match="hexadecimal"):
        exported(lower(forest), forest, "nccl-graph")


def test_comments_say_the_bound_and_both_sides_of_the_model() -> None:
    forest = plan("dgx-1v", tuple(range(8)))
    (file,) = exported(lower(forest), forest, "nccl-graph")
    assert "export NCCL_GRAPH_FILE=nccl-graph.xml" in file.text
    assert "Nominal: 150 GB/s. No set of rings on the plan's links has more than 150" in file.text
    assert "6 x 20 = 120 GB/s over NVL" in file.text
    assert forest.rate * Fraction(14, 8) == 6
    assert "on these links alone" in file.text
    (whole,) = exported(lower(forest), forest, "nccl-graph", machine=parse_spec("dgx-1v"))
    assert "on these links alone" not in whole.text


def test_a_plan_over_pcie_is_refused_where_nccl_goes_through_a_gpu() -> None:
    """NCCL 2.4 fell back to PCIe here; later versions use NVLink through another GPU, over three times as fast."""
    forest = plan("dgx-1v", (1, 4, 5, 6))
    with pytest.raises(UnsupportedError, match="through another GPU of the job"):
        exported(lower(forest), forest, "nccl-graph", machine=parse_spec("dgx-1v"))
    (file,) = exported(lower(forest), forest, "nccl-graph")
    assert "1 x 6 = 6 GB/s over SYS" in file.text


def test_rings_as_fast_as_nccls_own_are_not_advised_against() -> None:
    forest = plan("dgx-1v", (0, 1, 2, 3))
    (file,) = exported(lower(forest), forest, "nccl-graph", machine=parse_spec("dgx-1v"))
    assert "do not use this file" not in file.text
