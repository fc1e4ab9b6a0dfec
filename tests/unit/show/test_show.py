"""Exhibits of plans: the machine, the rings for comparison, and words."""

from dataclasses import replace

import pytest

from blinkccl.show.page import Pair, PlayerStage, exhibit_page
from blinkccl.show.show import MOST_TRANSFERS, drawn_on, of_plan, of_topology, shape_fault
from blinkccl.topology.spec import machine_named, parse_spec
from blinkccl.trees.forest.model import Tree
from support.planned import plan


def summary_of(shown):
    return dict(shown.summary)


def test_a_plan_is_summed_up_in_plain_words():
    shown = of_plan(plan("optimal", "dgx-1v", "1,4,5,6", "allreduce"), None, "p.json")
    words = summary_of(shown)
    assert shown.title == "AllReduce among 4 GPUs (1,4-6) of dgx-1v"
    assert words["How fast"].startswith("50 GB/s: a gigabyte takes 20 ms")
    assert words["Why not faster"].startswith("The slowest cut: 2 links between {1,5,6} and {4}, 50 GB/s each way")
    assert words["Against rings"] == (
        "6.667 GB/s algbw by the rule of NCCL 2.4, Blink's baseline of 2019 (no NVLink ring, so one over PCIe); "
        "this plan 50 GB/s: 7.5 times as fast, nominal rates."
    )
    assert words["Today's NCCL"].startswith(
        "26.22 GB/s algbw at 64M by nccl-2.30 (ring Simple over NVLink and a relay); "
    )
    assert "the time that the simulator predicts" in words["At a size"]
    assert shown.next[0] == "blink check p.json"
    assert any(isinstance(part, Pair) for part in shown.parts)


def test_a_plan_is_drawn_on_its_machine():
    forest = plan("optimal", "dgx-1v", "1,4,5,6", "allreduce")
    on = drawn_on(forest, machine_named("dgx-1v"))
    assert len(on.topology.ranks) == 8
    assert on.request.links == "fast"
    assert set(on.sockets.values()) == {12, 13}
    other = drawn_on(forest, parse_spec("dgx-1p"))
    assert other.topology is forest.topology


def test_transfers_are_limited_and_listed_by_share():
    shown = of_plan(plan("optimal", "dgx-1v", None, "allreduce"), None)
    moves = shown.data["moves"]
    assert 0 < len(moves) <= MOST_TRANSFERS
    assert {move[0] for move in moves} == set(range(len(shown.data["shares"])))
    (stage,) = (part for part in shown.parts if isinstance(part, PlayerStage))
    assert stage.plays
    for share, _, _, *links in moves:
        known = shown.data["shares"][share]
        assert set(links) <= {*known["up"], *known["down"]}


def test_a_large_plan_is_shown_in_part_with_a_remark():
    forest = plan("optimal", "16x dgx-a100 @ 200Gbps", None, "allgather")
    shown = of_plan(forest, None)
    (stage,) = (part for part in shown.parts if isinstance(part, PlayerStage))
    assert len(stage.shares) == len(shown.data["shares"]) < len(forest.shares)
    assert stage.more == f"{len(stage.shares)} of {len(forest.shares)} shares are drawn; the file has all."
    assert not stage.plays
    assert summary_of(shown)["At a size"].startswith("Not simulated here")


def test_an_invalid_plan_is_refused_if_it_cannot_be_drawn():
    forest = plan("optimal", "ring:4", None, "broadcast")
    assert shape_fault(forest) is None
    share = forest.shares[0]
    first, *others = share.broadcast.edges

    def with_edges(*edges):
        return replace(forest, shares=(replace(share, broadcast=Tree(share.root, edges)), *forest.shares[1:]))

    assert shape_fault(with_edges(*others)) == "shares[0].broadcast is not one tree with root 0"
    assert "is not one tree" in shape_fault(with_edges(first, *others, first))
    circle = ((0, 1), (1, 2), (2, 1))
    assert "is not one tree" in shape_fault(with_edges(*circle))
    assert shape_fault(with_edges((0, 2), *others)) == "a tree crosses 0 → 2, which is not in its topology"


@pytest.mark.parametrize(("spec", "name"), [("chain:3", "sendrecv"), ("star:4", "alltoall"), ("mist", "scatter")])
def test_every_collective_is_shown(spec, name):
    assert exhibit_page(of_plan(plan("optimal", spec, None, name), None))


def test_a_topology_from_a_file_has_no_commands_with_its_name():
    assert of_topology(parse_spec("dgx-2")).next
    renamed = parse_spec("ring:3")
    object.__setattr__(renamed, "name", "node7.txt")
    assert not of_topology(renamed).next
