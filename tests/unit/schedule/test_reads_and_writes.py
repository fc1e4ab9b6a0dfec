"""Links with different rates for reads and writes, where the plan selects push or pull."""

from dataclasses import replace

import pytest

from blinkccl.proof.check import check_plan
from blinkccl.schedule.lower import lower
from blinkccl.schedule.verifier import violations
from blinkccl.topology.json_format import parse, to_document, write
from blinkccl.topology.memories import by_operation, staged
from blinkccl.topology.model import Link, Topology, Vertex
from blinkccl.topology.select import network_for
from blinkccl.topology.spec import parse_spec
from blinkccl.trees.forest.document import to_document as plan_document
from support.planned import plan


def switched(written: int, read: int) -> Topology:
    """Two GPUs behind each of two PCIe switches of a processor; the rates are those of links from GPUs."""
    kinds = {0: "gpu", 1: "gpu", 2: "gpu", 3: "gpu", 4: "switch", 5: "switch", 6: "host"}
    pairs = [(0, 4), (1, 4), (2, 5), (3, 5), (4, 6), (5, 6)]
    links = []
    for a, b in pairs:
        links += [
            Link(a, b, written, "pcie", float(written), "declared", read if a < 4 else None),
            Link(b, a, 60, "pcie", 60.0, "declared"),
        ]
    return Topology("by hand", 1.0, tuple(Vertex(v, kind) for v, kind in kinds.items()), tuple(links))


@pytest.mark.parametrize(("written", "read", "by"), [(3, 52, "read"), (50, 13, "write"), (20, 20, "")])
def test_links_are_written_or_read_as_is_faster(written: int, read: int, by: str) -> None:
    """A path through forwarding vertices is written or read as a whole, and the plan's rate is the rate of that."""
    machine = switched(written, read)
    network = network_for(machine, (0, 1, 2, 3))
    assert {link.by for link in network.links} == {by}
    assert all(link.read_capacity is None for link in network.links)
    from_gpus = {link.gb_per_s for link in network.links if link.src < 4}
    assert from_gpus == {float(max(written, read))}
    forest = plan("optimal", machine, None, "broadcast")
    program = lower(forest)
    assert all(queue.home == queue.path[0 if by == "read" else -1] for queue in program.queues)
    assert not violations(program, forest.topology)
    assert check_plan(plan_document(forest), to_document(machine)).optimal
    wrong = [replace(queue, home=queue.path[-1 if by == "read" else 0]) for queue in program.queues]
    faults = violations(replace(program, queues=tuple(wrong)), forest.topology)
    crossed = f"carries {'write' if by == 'read' else 'read'}s, but the plan counts its capacity for {by}s"
    assert any(crossed in text for text in faults) if by else not faults


def test_a_direct_link_between_gpus_is_read_if_that_is_faster() -> None:
    """A GPU is never a memory inside a path, for any kind of links."""
    ends = [Vertex(0, "gpu"), Vertex(1, "gpu")]
    links = [Link(a, b, 20, "nvlink", 20.0, "declared", 50) for a, b in ((0, 1), (1, 0))]
    assert {(link.by, link.capacity) for link in by_operation(ends, links, relays=False)} == {("read", 50)}


def test_pcie_is_staged_once_and_on_the_requested_servers_only() -> None:
    machine = parse_spec("dgx-1v")
    vertices, links = staged(machine.vertices, machine.links, {0})
    assert len(vertices) > len(machine.vertices)
    assert staged(vertices, links, {0}) == (vertices, links)
    assert staged(machine.vertices, machine.links, {1}) == (list(machine.vertices), list(machine.links))


def test_a_plan_cannot_count_on_reads_that_are_slower() -> None:
    """The checker uses the capacity that a link of the machine has for the plan's operation."""
    machine = switched(3, 52)
    document = plan_document(plan("optimal", machine, None, "broadcast"))
    for link in document["topology"]["links"]:
        link["by"] = "write"
    faults = check_plan(document, to_document(machine)).violations
    assert any("link 0 → 4 has 52.0 GB/s in the plan, 3.0 GB/s in the topology given beside it" in x for x in faults)


def test_relays_have_the_lower_rate_of_both_operations() -> None:
    network = network_for(switched(3, 52), (0, 1, 2), relays=True)
    assert {(link.by, link.gb_per_s) for link in network.links if link.src < 4} == {("", 3.0)}


def test_links_to_a_memory_are_written_and_links_from_it_are_read() -> None:
    machine = parse_spec("dgx-a100")
    links = [replace(x, read_capacity=2 * x.capacity) if x.kind == "pcie" else x for x in machine.links]
    network = network_for(replace(machine, links=tuple(links)), (0, 1), "staged")
    memory = next(v.id for v in network.vertices if v.kind == "memory")
    for link in network.links:
        into = link.dst == memory or (link.dst, memory) in network.link
        assert link.by == ("write" if into else "read")
        assert link.gb_per_s == (24.0 if into else 48.0)
    assert not violations(lower(plan("optimal", network, None, "allreduce", links="staged")), network)


def test_topologies_with_both_rates_are_written_and_read_back() -> None:
    machine = switched(3, 52)
    assert parse(write(machine)) == machine
    assert parse(write(network_for(machine, (0, 1)))) == network_for(machine, (0, 1))
