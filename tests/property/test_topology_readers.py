"""Random machines, printed by a tool's double, are read back unchanged."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.topology.formats import parse_topology
from blinkccl.topology.model import Topology
from blinkccl.topology.stated import parse_stated
from support import topology_dumps as dumps
from support.examples import examples

#: A printer per tool, and the rates to state beside its text; fast links have 50 GB/s.
TOOLS: dict[str, tuple[Callable[[dumps.Machine], str], str]] = {
    "rocm-smi": (dumps.rocm_smi, "pcie=gen4"),
    "amd-smi": (dumps.amd_smi, "pcie=gen4"),
    "nvidia-smi": (dumps.nvidia_smi, "nvlink=50GB/s, pcie=gen4, nic=100Gbps"),
}


@st.composite
def machines(draw: st.DrawFn) -> dumps.Machine:
    sockets = draw(st.integers(1, 2))
    gpus = sockets * draw(st.integers(1, 4))
    pairs = [(a, b) for a in range(gpus) for b in range(a + 1, gpus)]
    links = draw(st.dictionaries(st.sampled_from(pairs), st.integers(1, 3), max_size=8)) if pairs else {}
    nics = draw(st.lists(st.integers(0, gpus - 1), max_size=4, unique=True))
    return dumps.Machine(gpus, sockets, draw(st.integers(1, 2)), links, tuple(sorted(nics)))


def fast(topology: Topology) -> dict[tuple[int, int], float]:
    return {(x.src, x.dst): x.gb_per_s for x in topology.links if x.kind in ("nvlink", "xgmi") and x.src < x.dst}


@pytest.mark.parametrize("tool", TOOLS)
@given(machine=machines())
@examples(60)
def test_a_printed_machine_is_read_back(tool: str, machine: dumps.Machine) -> None:
    printed, stated = TOOLS[tool]
    topology = parse_topology(printed(machine).encode(), "x", stated=parse_stated(stated, "x"))
    assert len(topology.ranks) == machine.gpus
    assert fast(topology) == {pair: 50.0 * count for pair, count in machine.links.items()}
    assert {x.gb_per_s for x in topology.links if x.kind == "pcie"} == {24.0}
    if tool not in ("rocm-smi", "amd-smi"):
        behind = {
            v.label: sorted(x.src for x in topology.links if x.dst == v.id)
            for v in topology.vertices
            if v.kind == "nic"
        }
        together = [
            [x for x in range(machine.gpus) if machine.switch(x) == machine.switch(gpu)] for gpu in machine.nics
        ]
        assert behind == {f"mlx5_{nic}": gpus for nic, gpus in enumerate(together)}
