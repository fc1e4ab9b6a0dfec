"""The documents' claims: complete, computed on request, and changed only by their own inputs."""

import os
import pickle
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from math import isfinite
from pathlib import Path

import msgspec
import pytest

from blinkccl.cost.baselines.staged import HOST_COMBINE_GB_PER_S
from blinkccl.cost.simulate.calibration import Calibration, Number, calibration
from blinkccl.private_files import write_at_once
from blinkccl.show.models import NETWORKS
from blinkccl.trees.algorithms.hybrid import hybrid_split
from reproduction import ring_vs_tree
from reproduction.blink_graph import FIG_14, MACHINES, PCIE_LANES, fig_14_speedup, fig_14_speedups, rings
from reproduction.blink_protocols import NETWORKS_GBIT, PCIE_GB_PER_S, crossings, dgx_2_curves, eq_8_as_printed
from reproduction.blink_training import chosen_allocations, nccl_overheads, trained
from reproduction.claim import (
    BY_CONSTRUCTION,
    CLOSE,
    CONTRADICTED,
    DIFFERS,
    FITTED,
    REPRODUCED,
    UNCHECKABLE,
    Claim,
    Context,
    JudgedClaim,
    Value,
    judge,
)
from reproduction.jobs import COPY_ENGINES, SIZE_BYTES, connected_allocations
from reproduction.registry import CLAIMS
from reproduction.table import markdown_row
from support.examples import ALL_TESTS
from support.extras import needs
from support.timed import with_links

BY_ID = {claim.id: claim for claim in CLAIMS}
#: Ids by document, in order.
IDS = {
    "A": [*(f"B{i}" for i in range(1, 37)), *(f"E{i}" for i in (1, 3, 4, 5, 6, 8))],
    "B": [*(f"P{i}" for i in range(1, 7)), "E10"],
    "C": [f"U{i}" for i in range(1, 11)],
    "D": [*(f"R{i}" for i in range(1, 10)), "E12"],
    "E": [*(f"N{i}" for i in range(1, 11)), "E11"],
}
PAGE = (Path(__file__).parents[2] / "docs" / "claims.md").read_text(encoding="utf-8").splitlines()


@dataclass(frozen=True)
class Asking(Context):
    """A context that records the requested calibrations."""

    requested: set[str] = field(default_factory=set)

    def calibration(self, name: str) -> Calibration:
        self.requested.add(name)
        return super().calibration(name)


@cache
def computed(claim: str) -> tuple[tuple[Value, ...], str, set[str]]:
    """A row's values and verdict, and its calibrations; computed once for all workers of a session."""
    cached = Path(os.environ["BLINK_CACHE"], f"claim-{claim}")
    if cached.exists():
        return pickle.loads(cached.read_bytes())
    context = Asking()
    judged = judge(BY_ID[claim], context)
    write_at_once(cached, pickle.dumps((judged.values, judged.verdict, context.requested)))
    return judged.values, judged.verdict, context.requested


def row(claim: str) -> JudgedClaim:
    values, verdict, _ = computed(claim)
    return JudgedClaim(BY_ID[claim], values, verdict)


def moved_by(context: Context, claims: Iterable[str]) -> list[str]:
    """The claims with other numbers in this context. A row without a replaced calibration keeps its numbers."""
    asking = [claim for claim in claims if computed(claim)[2] & context.calibrations.keys()]
    return [claim for claim in asking if judge(BY_ID[claim], context).values != row(claim).values]


def test_every_claim_is_there_once_and_in_order() -> None:
    assert [(claim.document, claim.id) for claim in CLAIMS] == [(x, i) for x, ids in IDS.items() for i in ids]
    assert all(claim.where and claim.text.endswith(".") for claim in CLAIMS)


def test_what_the_texts_say_beside_the_numbers() -> None:
    assert [BY_ID[i].why[:3] for i in ("B16", "B18", "B36")] == ["E2:", "E7:", "E9:"]
    assert f"({HOST_COMBINE_GB_PER_S.value:g} GB/s for the sum)" in BY_ID["U5"].why
    for claim in CLAIMS:
        assert not re.search(r"/(work|tmp|home)|https?:", " ".join((claim.text, claim.why, claim.where)))


@pytest.mark.parametrize("claim", BY_ID)
def test_the_page_has_what_is_computed(claim: str) -> None:
    """``make claims`` rewrites the page: every number, to four digits, with its basis, and the verdict."""
    judged = row(claim)
    assert markdown_row(judged) in PAGE
    assert judged.claim.wrong is (judged.verdict == CONTRADICTED)
    assert judged.verdict == REPRODUCED or len(judged.claim.why) > 40
    names = [one.what for one in judged.values]
    assert len(set(names)) == len(names)
    assert all(one.basis and isfinite(one.computed) for one in judged.values)
    assert any(one.published is not None for one in judged.values) is (judged.verdict != UNCHECKABLE)


@pytest.mark.parametrize(
    ("number", "agrees", "wrong", "verdict"),
    [
        (10.0, "", False, REPRODUCED),
        (11.0, "", False, CLOSE),
        (10.0, FITTED, False, FITTED),
        (11.0, FITTED, False, FITTED),
        (10.0, BY_CONSTRUCTION, False, BY_CONSTRUCTION),
        (20.0, FITTED, False, DIFFERS),
        (20.0, "", True, CONTRADICTED),
    ],
)
def test_agreement_that_confirms_nothing_is_called_so(number: float, agrees: str, wrong: bool, verdict: str) -> None:
    claim = Claim("X1", "A", "§1", "It is 10.", lambda _: (Value("it", 10.0, number),), wrong=wrong, agrees=agrees)
    assert judge(claim).verdict == verdict


def test_computing_twice_gives_the_same_bits() -> None:
    for claim in ("B22", "B27", "B34", "P5", *IDS["C"], "R1", "R5", "N3", "N6"):
        assert judge(BY_ID[claim]) == row(claim)


# The parts of rows.


@pytest.mark.parametrize(("machine", "collective"), list(product(MACHINES, FIG_14)))
def test_where_nccl_has_no_ring_fig_14_counts_half_a_lane(machine: str, collective: str) -> None:
    assert len(fig_14_speedups(machine, collective)) == len(connected_allocations(machine))
    alone = [gpus for gpus in connected_allocations(machine) if not rings(machine, gpus)]
    assert alone
    for gpus in alone:
        factor = Fraction(2 * (len(gpus) - 1), len(gpus)) if collective == "allreduce" else Fraction(1)
        optimum = Fraction(fig_14_speedup(machine, collective, gpus)) * PCIE_LANES / factor
        assert float(optimum) >= 1 - 1e-9, "a connected allocation has a tree of one lane at least"


def test_fig_18s_allocations_are_one_of_each_speed_up() -> None:
    chosen = chosen_allocations()
    keys = [(len(gpus), fig_14_speedup("dgx-1v", "allreduce", gpus)) for gpus in chosen]
    assert set(chosen) <= set(connected_allocations("dgx-1v"))
    assert Counter(keys).most_common(1)[0][1] == 1
    assert {key[0] for key in keys} == set(range(3, 9))


def test_eq_8_as_printed_is_the_split_for_much_data() -> None:
    wait_s, nvlink = Fraction(248, 100_000), Fraction(132)
    much, little = SIZE_BYTES, 1_000_000
    assert (
        eq_8_as_printed(much, PCIE_GB_PER_S, nvlink, wait_s)
        == hybrid_split(much, PCIE_GB_PER_S, nvlink, wait_s).pcie_bytes
    )
    assert eq_8_as_printed(little, PCIE_GB_PER_S, nvlink, wait_s) < 0


def test_a_faster_network_makes_nobody_slower() -> None:
    rates = crossings(Context())
    assert [network * 8 for network, _, _ in rates] == list(NETWORKS_GBIT)
    for before, after in pairwise(rates):
        assert after[1] >= 0.999 * before[1]
        assert after[2] >= 0.999 * before[2]
    assert all(blink <= network for network, blink, _ in rates)


def test_both_baselines_are_the_same_where_both_take_rings() -> None:
    _, default, written = dgx_2_curves(Context(), (8 << 10, 16 << 10, 1 << 20))
    assert default[0] < written[0]
    assert default[1:] == written[1:]


def test_communication_beside_the_backward_pass_is_faster() -> None:
    steps = list(nccl_overheads(Context()))
    assert len(steps) == 46 * len(NETWORKS)
    assert all(late.overhead_percent >= beside.overhead_percent for _, _, (beside, late) in steps)
    one, *_ = trained(Context(), [(0, 1, 4)])
    assert one.late.blink.total_s >= one.overlapped.blink.total_s


# Changes of numbers.


def with_issue(costs: Calibration, issue_us: float) -> Calibration:
    return msgspec.structs.replace(
        costs, engine=msgspec.structs.replace(costs.engine, issue_us=Number(issue_us, "a test"))
    )


CHANGES = {
    "NVLink of V100 copies": (
        [with_links(calibration("v100-copy-engine"), 0.7, "nvlink")],
        "B6 B7 B8 B9 B17 B21 B22 B25 B26 B28 B29 B31 B32 B33 B34 E5 E6",
    ),
    "NCCL's PCIe on V100s": (
        [with_links(calibration("nccl-2.4-v100"), 0.7, "pcie", "smp")],
        "B5 B25 B28 B32 B34",
    ),
    "issuing copies on P100s and on a DGX-2": (
        [with_issue(calibration(COPY_ENGINES[name]), 40.0) for name in ("dgx-1p", "dgx-2")],
        "B27 B30",
    ),
}


@pytest.mark.parametrize(
    "change", [pytest.param(name, marks=[pytest.mark.slow] if number else []) for number, name in enumerate(CHANGES)]
)
def test_a_changed_constant_moves_the_rows_that_use_it(change: str) -> None:
    replaced, expected = CHANGES[change]
    context = Context({costs.name: costs for costs in replaced})
    claims = [name for name in IDS["A"] if ALL_TESTS or name not in LONG]
    assert moved_by(context, claims) == [name for name in expected.split() if name in claims]


#: Rows that take seconds; `make test` does not recompute them.
LONG = ("B5", "B28", "B30", "B32")
#: Rows of the other documents that the links of a calibration change.
MOVED = {
    "mist": {"U1", "U2", "U4", "U5", "U7", "U10"},
    "cedar": {"U1", "U2", "U4", "U6"},
    "h100": {"R3", "N3", "N5"},
    "p100-copy-engine": {"P5"},
    "nccl-2.4-p100": {"P5"},
    "nominal": set(),
    "v100-copy-engine": set(),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_changed_calibration_moves_its_rows_and_no_others(name: str) -> None:
    """Links at three tenths of their rate, which is below every other limit."""
    context = Context({name: with_links(calibration(name), 0.3)})
    assert set(moved_by(context, [claim.id for claim in CLAIMS if claim.document != "A"])) == MOVED[name]


GRAPHS = ["B2", "B4", "B10", "B11", "B12", "B13", "B14", "B15", "B16", "B23", "B24", "B36", "E1", "E3", "E4", "E8"]


def test_rows_of_graphs_need_no_calibration() -> None:
    assert {claim for claim in GRAPHS if computed(claim)[2]} == set()
    assert computed("B6")[2] == {"v100-copy-engine"}


# The code that the documents print.


def test_e12_chunks_as_torch_cuts_them() -> None:
    assert ring_vs_tree.chunk_sizes(5, 4) == (2, 2, 1)
    assert ring_vs_tree.chunk_sizes(10, 4) == (3, 3, 3, 1)
    assert ring_vs_tree.chunk_sizes(16, 4) == (4, 4, 4, 4)
    assert ring_vs_tree.chunk_sizes(0, 4) == ()


@needs("torch")
def test_torch_cuts_the_same_chunks() -> None:
    import torch

    for elements in range(1, 40):
        for ranks in range(1, 9):
            pieces = torch.zeros(elements).chunk(ranks)
            assert ring_vs_tree.chunk_sizes(elements, ranks) == tuple(len(piece) for piece in pieces)


def test_a_false_trace_does_not_agree() -> None:
    steps = ring_vs_tree.traced(4)
    assert ring_vs_tree.agreeing(ring_vs_tree.TRACE, steps) == 12
    false = (("D03", "A01", "B12", "C13"), *ring_vs_tree.TRACE[1:])
    assert ring_vs_tree.agreeing(false, steps) == 11
