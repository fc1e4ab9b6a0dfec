"""Document A's claims: all there, computed when asked, and moved by what they depend on and by nothing else."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise, product
from pathlib import Path

import msgspec
import pytest

from blinkccl.algorithms.hybrid import hybrid_split
from blinkccl.paper import blink, blink_graph
from blinkccl.paper.blink_graph import FIG_14, MACHINES, PCIE_LANES, fig_14_speedup, fig_14_speedups, rings
from blinkccl.paper.blink_protocols import NETWORKS_GBIT, PCIE_GB_PER_S, crossings, dgx_2_speedups, eq_8_as_printed
from blinkccl.paper.blink_training import chosen_allocations, nccl_overheads, trained
from blinkccl.paper.claim import (
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
from blinkccl.paper.jobs import COPY_ENGINES, SIZE_BYTES, connected_allocations
from blinkccl.paper.models import NETWORKS
from blinkccl.paper.table import markdown_row
from blinkccl.simulate import native_kernel
from blinkccl.simulate.calibration import Calibration, Number, calibration

IDS = [*(f"B{i}" for i in range(1, 37)), *(f"E{i}" for i in (1, 3, 4, 5, 6, 8))]
NOT_REPRODUCED = {
    UNCHECKABLE: "B3",
    CLOSE: "B5",
    FITTED: "B6 B7 B8 B9",
    BY_CONSTRUCTION: "B17 B22 B35",
    DIFFERS: "B12 B26 B29 B30 B31 B32 B33",
    CONTRADICTED: "B13 B16 B18 B36 E1 E3 E4 E5 E6 E8",
}
VERDICTS = dict.fromkeys(IDS, REPRODUCED) | {i: v for v, ids in NOT_REPRODUCED.items() for i in ids.split()}


@pytest.fixture(scope="module")
def rows() -> dict[str, JudgedClaim]:
    return {claim.id: judge(claim) for claim in blink.CLAIMS}


def value(row: JudgedClaim, what: str) -> Value:
    (found,) = [one for one in row.values if one.what == what]
    return found


def test_every_claim_is_there_once_and_in_order() -> None:
    assert [claim.id for claim in blink.CLAIMS] == IDS
    assert {claim.document for claim in blink.CLAIMS} == {"A"}
    assert all(claim.where and claim.text.endswith(".") for claim in blink.CLAIMS)


def test_errors_without_a_row_are_named_where_they_matter() -> None:
    why = {claim.id: claim.why for claim in blink.CLAIMS}
    assert [why[i][:3] for i in ("B16", "B18", "B36")] == ["E2:", "E7:", "E9:"]


@pytest.mark.parametrize("name", IDS)
def test_verdicts_are_those_that_are_known(rows: dict[str, JudgedClaim], name: str) -> None:
    row = rows[name]
    assert row.verdict == VERDICTS[name], [(one.what, one.published, one.ours, one.verdict) for one in row.values]


def test_whatever_is_not_reproduced_has_a_reason(rows: dict[str, JudgedClaim]) -> None:
    assert [row.claim.id for row in rows.values() if row.verdict != REPRODUCED and not row.claim.why] == []


def test_every_number_says_what_it_was_computed_with(rows: dict[str, JudgedClaim]) -> None:
    computed = [row for row in rows.values() if row.claim.compute is not None]
    assert len(computed) == len(IDS) - 1
    assert [row.claim.id for row in computed if not row.values] == []
    assert [(row.claim.id, one.what) for row in computed for one in row.values if not one.basis] == []


def test_numbers_compared_with_nothing_make_no_verdict(rows: dict[str, JudgedClaim]) -> None:
    compared = [row.claim.id for row in rows.values() if any(one.published is not None for one in row.values)]
    assert compared == [name for name in IDS if name != "B3"]


def test_two_runs_give_the_same_numbers(rows: dict[str, JudgedClaim]) -> None:
    again = {name: judge(rows[name].claim) for name in ("B22", "B27", "B28", "B34")}
    assert [name for name, row in again.items() if row.values != rows[name].values] == []


def test_hybrid_transfers_gain_less_with_more_gpus(rows: dict[str, JudgedClaim]) -> None:
    gains = {n: value(rows["B31"], f"gain for {n} GPUs").ours for n in (3, 4, 7, 8)}
    assert min(gains[3], gains[4]) > gains[7] > gains[8] > 0


# The parts that rows are made of.


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
    found = crossings(Context())
    assert [one.network_gb_per_s * 8 for one in found] == list(NETWORKS_GBIT)
    for before, after in pairwise(found):
        assert after.blink_gb_per_s >= 0.999 * before.blink_gb_per_s
        assert after.nccl_gb_per_s >= 0.999 * before.nccl_gb_per_s
    assert all(one.blink_gb_per_s <= one.network_gb_per_s for one in found)


def test_both_baselines_are_the_same_where_both_take_rings() -> None:
    ratios = dgx_2_speedups(Context(), ("nccl-2.4", "nccl-2.4-as-written"), (8 << 10, 16 << 10, 1 << 20))
    default, written = ratios.values()
    assert default[0] > written[0]
    assert default[1:] == written[1:]


def test_communication_beside_the_backward_pass_is_faster() -> None:
    found = list(nccl_overheads(Context()))
    assert len(found) == 46 * len(NETWORKS)
    assert all(late >= beside for _, beside, late in found)
    one, *_ = trained(Context(), [(0, 1, 4)])
    assert one.late.ours.total_s >= one.overlapped.ours.total_s


# What moves.


def with_links(costs: Calibration, factor: float, *kinds: str) -> Calibration:
    """Every link of these kinds at another rate."""
    links = (
        msgspec.structs.replace(link, gb_per_s=Number(factor * link.gb_per_s.value, "a test"))
        if link.kind in kinds
        else link
        for link in costs.link
    )
    return msgspec.structs.replace(costs, link=tuple(links))


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


@pytest.mark.skipif(not native_kernel.available(), reason="this installation has no native library")
@pytest.mark.parametrize(
    "change", [pytest.param(name, marks=[pytest.mark.slow] if number else []) for number, name in enumerate(CHANGES)]
)
def test_a_changed_constant_moves_the_rows_that_use_it(rows: dict[str, JudgedClaim], change: str) -> None:
    replaced, expected = CHANGES[change]
    context = Context({costs.name: costs for costs in replaced})
    moved = [name for name, row in rows.items() if judge(row.claim, context).values != row.values]
    assert moved == expected.split()


GRAPHS: list[Claim] = [*blink_graph.CLAIMS, *(claim for claim in blink.ERRORS if claim.id not in ("E5", "E6"))]


def test_rows_of_graphs_need_no_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Context, name: str) -> Calibration:
        raise AssertionError(f"asked for the calibration {name}")

    monkeypatch.setattr(Context, "calibration", refused)
    assert len(GRAPHS) == 16
    for claim in GRAPHS:
        assert judge(claim).values
    with pytest.raises(AssertionError, match="v100-copy-engine"):
        judge(next(claim for claim in blink.CLAIMS if claim.id == "B6"))


def test_the_page_of_claims_is_what_is_computed(rows: dict[str, JudgedClaim]) -> None:
    """``blink paper --markdown docs/claims.md`` writes it anew."""
    page = (Path(__file__).parents[3] / "docs" / "claims.md").read_text(encoding="utf-8").splitlines()
    assert [row.claim.id for row in rows.values() if markdown_row(row) not in page] == []
