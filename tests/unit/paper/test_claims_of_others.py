"""Documents B to E, claim by claim: every verdict computed anew, and each row moved by the constants that it uses."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from math import isfinite
from pathlib import Path

import msgspec
import pytest

from blinkccl.paper import multipath, notes, poster, ring_vs_tree
from blinkccl.paper.claim import (
    BY_CONSTRUCTION,
    CLOSE,
    CONTRADICTED,
    DIFFERS,
    DOCUMENTS,
    FITTED,
    REPRODUCED,
    UNCHECKABLE,
    Claim,
    Context,
    JudgedClaim,
    Value,
    judge,
)
from blinkccl.paper.table import markdown_row
from blinkccl.simulate.calibration import Calibration, Number, calibration

CLAIMS = (*poster.CLAIMS, *multipath.CLAIMS, *ring_vs_tree.CLAIMS, *notes.CLAIMS)
BY_ID = {claim.id: claim for claim in CLAIMS}

VERDICTS = {
    "P1": REPRODUCED,
    "P2": DIFFERS,
    "P3": CONTRADICTED,
    "P4": REPRODUCED,
    "P5": DIFFERS,
    "P6": REPRODUCED,
    "E10": CONTRADICTED,
    "U1": CLOSE,
    "U2": CLOSE,
    "U3": CONTRADICTED,
    "U4": REPRODUCED,
    "U5": DIFFERS,
    "U6": DIFFERS,
    "U7": REPRODUCED,
    "U8": CONTRADICTED,
    "U9": UNCHECKABLE,
    "R1": REPRODUCED,
    "R2": REPRODUCED,
    "R3": DIFFERS,
    "R4": REPRODUCED,
    "R5": CONTRADICTED,
    "R6": CONTRADICTED,
    "R7": CONTRADICTED,
    "R8": CONTRADICTED,
    "R9": CONTRADICTED,
    "E12": CONTRADICTED,
    "N1": REPRODUCED,
    "N2": REPRODUCED,
    "N3": CONTRADICTED,
    "N4": CONTRADICTED,
    "N5": CLOSE,
    "N6": CONTRADICTED,
    "N7": CONTRADICTED,
    "N8": CONTRADICTED,
    "N9": CONTRADICTED,
    "N10": REPRODUCED,
    "E11": CONTRADICTED,
}

#: Which rows a calibration's links move; all others must stay as they are.
MOVED = {
    "mist": {"U1", "U2", "U4", "U5", "U7"},
    "cedar": {"U1", "U2", "U4", "U6"},
    "h100": {"R3", "N3", "N5"},
    "p100-copy-engine": {"P5"},
    "nccl-2.4-p100": {"P5"},
    "nominal": set(),
    "v100-copy-engine": set(),
}


@cache
def row(claim: str) -> JudgedClaim:
    return judge(BY_ID[claim])


def value(claim: str, what: str) -> Value:
    found = [one for one in row(claim).values if what in one.what]
    assert len(found) == 1, [one.what for one in row(claim).values]
    return found[0]


def test_every_claim_is_there_once_and_in_its_document() -> None:
    counts = Counter(claim.id for claim in CLAIMS)
    wanted = [*(f"P{i}" for i in range(1, 7)), *(f"U{i}" for i in range(1, 10)), *(f"R{i}" for i in range(1, 10))]
    wanted += [*(f"N{i}" for i in range(1, 11)), "E10", "E11", "E12"]
    assert counts == Counter(wanted)
    letters = {"P": "B", "U": "C", "R": "D", "N": "E"}
    errors = {"E10": "B", "E11": "E", "E12": "D"}
    for claim in CLAIMS:
        assert claim.document == errors.get(claim.id, letters.get(claim.id[0]))
        assert claim.document in DOCUMENTS


@pytest.mark.parametrize(
    ("ours", "agrees", "wrong", "verdict"),
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
def test_agreement_that_confirms_nothing_is_called_so(ours: float, agrees: str, wrong: bool, verdict: str) -> None:
    claim = Claim("X1", "A", "§1", "It is 10.", lambda _: (Value("it", 10.0, ours),), wrong=wrong, agrees=agrees)
    assert judge(claim).verdict == verdict


@pytest.mark.parametrize("claim", VERDICTS)
def test_the_verdict_is(claim: str) -> None:
    assert row(claim).verdict == VERDICTS[claim]


@pytest.mark.parametrize("claim", VERDICTS)
def test_a_computed_row_names_its_numbers_and_inputs(claim: str) -> None:
    found = row(claim)
    assert bool(found.values) is (found.verdict != UNCHECKABLE)
    names = [one.what for one in found.values]
    assert len(set(names)) == len(names)
    for one in found.values:
        assert one.basis
        assert isfinite(one.ours)


@pytest.mark.parametrize("claim", [claim for claim in VERDICTS if VERDICTS[claim] != REPRODUCED])
def test_what_is_not_reproduced_is_explained(claim: str) -> None:
    assert len(BY_ID[claim].why) > 40


def test_where_a_document_is_wrong_some_number_of_its_own_is() -> None:
    for claim in CLAIMS:
        assert claim.wrong is (VERDICTS[claim.id] == CONTRADICTED)


def slower(found: Calibration) -> Calibration:
    """Links at three tenths of their rate: beyond any other limit."""
    links = tuple(
        msgspec.structs.replace(link, gb_per_s=Number(link.gb_per_s.value * 0.3, "test")) for link in found.link
    )
    return msgspec.structs.replace(found, link=links)


def numbers(found: JudgedClaim) -> list[tuple[str, float]]:
    return [(one.what, one.ours) for one in found.values]


@pytest.mark.parametrize("name", MOVED)
def test_a_changed_constant_moves_its_rows_and_no_others(name: str) -> None:
    context = Context({name: slower(calibration(name))})
    moved = {claim.id for claim in CLAIMS if numbers(judge(claim, context)) != numbers(row(claim.id))}
    assert moved == MOVED[name]


def test_computing_twice_gives_the_same_bits() -> None:
    for claim in CLAIMS:
        assert judge(claim) == row(claim.id)


def test_no_claim_names_a_path_or_a_host() -> None:
    for claim in CLAIMS:
        text = " ".join((claim.text, claim.why, claim.where))
        assert not re.search(r"/(work|tmp|home)|https?:", text)


# The numbers behind the verdicts, where the documents' own sizes allow to work them out by hand.


def test_p1_rings_and_trees_of_four() -> None:
    assert [one.ours for one in row("P1").values] == [2, 3, 3]


def test_p4_rates_beside_the_optimum() -> None:
    rates = [one.ours for one in row("P4").values if one.unit == "lanes"]
    assert rates == pytest.approx([2, 2, 1.5, 1.8, 2, 16 / 7, 16 / 7])


def test_p5_by_rates_is_at_most_one_and_a_half() -> None:
    rates = [one.ours for one in row("P5").values if one.what.endswith("by rates")]
    assert rates == pytest.approx([1.5, 0.8, 1.25, 9 / 7])


def test_u1_is_what_the_article_divides() -> None:
    assert value("U1", "54 over 45").ours == pytest.approx(1.2)
    assert [one.ours for one in row("U1").values if "theory" in one.what] == pytest.approx([80, 100 * 54 / 66])


def test_u3_a_quarter_through_the_host_caps_the_copy_at_100() -> None:
    caps = [one.ours for one in row("U3").values if one.unit == "GB/s"]
    assert caps == pytest.approx([100, 75 / 0.7])
    parts = [one.ours for one in row("U3").values if one.unit == "%"]
    assert parts == pytest.approx([40.12, 45.65, 15.25, 18.70], abs=0.005)


def test_u5_and_u6_put_the_host_ten_times_behind() -> None:
    mist, cedar = value("U5", "64 MB, over Open MPI").ours, value("U6", "over Open MPI").ours
    assert 10 < mist < cedar
    assert value("U6", "over hierarchical").ours == pytest.approx(2, rel=0.05)


def test_r3_fits_its_ends_and_predicts_between() -> None:
    ring = [one for one in row("R3").values if one.what.startswith("ring")]
    errors = [abs(one.error or 0) for one in ring]
    assert max(errors[0], errors[-1]) < 0.002
    assert max(errors) < 0.4


def test_r5_to_r8_by_hand() -> None:
    assert value("R5", "algbw").ours == pytest.approx(8 * 2**30 / 0.115 / 1e9)
    assert value("R5", "gain").ours / 100 + 1 == pytest.approx(482 / 140, rel=1e-3)
    assert value("R6", "8 NICs").ours == 60.25
    assert value("R6", "rings").ours == pytest.approx(257 * 1.875 / 8)
    assert value("R6", "line rate").ours == pytest.approx(100 * 257 / 8 / 50)
    assert [one.ours for one in row("R7").values] == [2, 3]
    assert [one.ours for one in row("R8").values] == pytest.approx([30, 1810 / 30, 8])


def test_e12_chunks_as_torch_cuts_them() -> None:
    assert ring_vs_tree.chunk_sizes(5, 4) == (2, 2, 1)
    assert ring_vs_tree.chunk_sizes(10, 4) == (3, 3, 3, 1)
    assert ring_vs_tree.chunk_sizes(16, 4) == (4, 4, 4, 4)
    assert ring_vs_tree.chunk_sizes(0, 4) == ()


def test_torch_cuts_the_same_chunks() -> None:
    torch = pytest.importorskip("torch")
    for elements in range(1, 40):
        for ranks in range(1, 9):
            pieces = torch.zeros(elements).chunk(ranks)
            assert ring_vs_tree.chunk_sizes(elements, ranks) == tuple(len(piece) for piece in pieces)


def test_a_false_trace_does_not_agree() -> None:
    steps = ring_vs_tree.traced(4)
    assert ring_vs_tree.agreeing(ring_vs_tree.TRACE, steps) == 12
    false = (("D03", "A01", "B12", "C13"), *ring_vs_tree.TRACE[1:])
    assert ring_vs_tree.agreeing(false, steps) == 11


def test_n7_n8_n9_by_hand() -> None:
    assert value("N7", "512 MB, algbw").ours == pytest.approx(35.83, abs=0.005)
    assert value("N8", "1979").ours == pytest.approx(6 * 70e9 * 8192 / 1979e12 * 1e3)
    assert value("N8", "140 GB").ours == pytest.approx(2 * 140e9 * 7 / 8 / 450e9 * 1e3)
    assert value("N8", "over compute").ours < 1
    assert [one.ours for one in row("N9").values] == [0.875, 1.5]


def test_n3_links_of_450_carry_a_busbw_of_450() -> None:
    assert value("N3", "the most that links carry").ours == 450
    rings = [one.ours for one in row("N3").values if "rings" in one.what]
    assert len(rings) == 2
    assert max(rings) < 450


def test_the_page_of_claims_is_what_is_computed() -> None:
    """``blink paper --markdown docs/claims.md`` writes it anew."""
    page = (Path(__file__).parents[3] / "docs" / "claims.md").read_text(encoding="utf-8").splitlines()
    assert [claim for claim in BY_ID if markdown_row(row(claim)) not in page] == []
