"""Claims, and the comparison of their numbers with a computation.

A claim is a sentence of a document with its numbers. ``compute`` computes our numbers on every call, from plans, the
simulator and calibrations; nothing here stores an answer. The verdict follows from both sets of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from blinkccl.cost.simulate.calibration import Calibration
from blinkccl.cost.simulate.calibration import calibration as named_calibration

#: The documents, by the letter of their claims.
DOCUMENTS = {
    "A": "Blink (MLSys 2020)",
    "B": "Blink, the poster",
    "C": "Multi-path GPU-to-GPU copies with UCX",
    "D": "NCCL ring vs tree",
    "E": "NCCL algorithms and how it achieves 900 GB/s",
}

REPRODUCED = "reproduced"
CLOSE = "close"
FITTED = "fitted"
BY_CONSTRUCTION = "by construction"
DIFFERS = "differs"
CONTRADICTED = "contradicted"
UNCHECKABLE = "cannot be checked"
#: From best to worst, in the order of tables.
VERDICTS = (REPRODUCED, CLOSE, FITTED, BY_CONSTRUCTION, DIFFERS, CONTRADICTED, UNCHECKABLE)
#: A number outside its tolerance but within this relative error is close.
CLOSE_WITHIN = 0.20


@dataclass(frozen=True, slots=True)
class Value:
    """One number of a claim and ours, in ``unit``; ``published``: None if the document gives no number.

    ``what`` names the quantity in a few words. ``tolerance`` is the relative error that still counts as reproduced, 0
    for numbers that must be equal. ``relation`` "=": ``computed`` must be the published number; "<=" and ">=": ours
    must not be above or below it ("up to", "at least"). ``basis``: the plan and the calibration.
    """

    what: str
    published: float | None
    computed: float
    unit: str = ""
    tolerance: float = 0.0
    relation: str = "="
    basis: str = ""

    @property
    def error(self) -> float | None:
        """Relative error of our number against the published one; None without the latter."""
        if self.published is None:
            return None
        if self.published == 0:
            return 0.0 if self.computed == 0 else float("inf")
        return self.computed / self.published - 1

    @property
    def verdict(self) -> str:
        """Verdict on this number alone."""
        error = self.error
        if error is None:
            return REPRODUCED
        if self.relation == "<=":
            error = max(0.0, error)
        elif self.relation == ">=":
            error = min(0.0, error)
        if abs(error) <= self.tolerance + 1e-9:
            return REPRODUCED
        return CLOSE if abs(error) <= CLOSE_WITHIN else DIFFERS


@dataclass(frozen=True)
class Context:
    """Calibrations of a computation by name. They can be replaced, so that a changed constant changes its rows."""

    calibrations: Mapping[str, Calibration] = field(default_factory=dict)

    def calibration(self, name: str) -> Calibration:
        """The calibration ``name``: the replaced one, or the package's."""
        return self.calibrations.get(name) or named_calibration(name)


Computation = Callable[[Context], tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of a document: ``text`` is its statement at ``where``, in our own words.

    ``id`` is the document's letter with a number ("B6"), ``document`` a key of :data:`DOCUMENTS`. ``compute`` gives our
    numbers with the published ones, none if nothing can be computed. ``why`` explains the outcome, or why nothing can
    be computed. ``wrong``: the document contradicts itself, arithmetic or a theorem here, as ``why`` explains; if our
    numbers differ, they are right. ``agrees`` is the verdict for an agreement that confirms nothing: :data:`FITTED` if
    our constants were chosen to meet these numbers, :data:`BY_CONSTRUCTION` if our model or package was made to do the
    same as the document.
    """

    id: str
    document: str
    where: str
    text: str
    compute: Computation
    why: str = ""
    wrong: bool = False
    agrees: str = ""


class Page:
    """The claims of a file, which are registered where they are defined."""

    def __init__(self, document: str) -> None:
        self.document = document
        self.claims: list[Claim] = []

    def claim(
        self, number: str, where: str, *, wrong: bool = False, agrees: str = ""
    ) -> Callable[[Computation], Computation]:
        """Register the computation of a claim; its docstring is the claim and, after an empty line, the explanation."""

        def register(compute: Computation) -> Computation:
            text, _, why = (compute.__doc__ or "").partition("\n\n")
            statement, explained = (" ".join(part.split()) for part in (text, why))
            self.claims.append(Claim(number, self.document, where, statement, compute, explained, wrong, agrees))
            return compute

        return register


@dataclass(frozen=True, slots=True)
class JudgedClaim:
    """A claim with our present numbers."""

    claim: Claim
    values: tuple[Value, ...]
    verdict: str


def judge(claim: Claim, context: Context | None = None) -> JudgedClaim:
    """Compute a claim's numbers and compare them.

    The verdict is the worst of its numbers. If the document is known to be wrong, differing numbers contradict it; if
    ours cannot differ, ``agrees`` is the verdict.
    """
    values = claim.compute(context or Context())
    worst = max((value.verdict for value in values), key=VERDICTS.index, default=UNCHECKABLE)
    if claim.wrong and worst != REPRODUCED:
        worst = CONTRADICTED
    if claim.agrees and worst in (REPRODUCED, CLOSE):
        worst = claim.agrees
    return JudgedClaim(claim, values, worst)
