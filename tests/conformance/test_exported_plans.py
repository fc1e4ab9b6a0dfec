"""Every algorithm × collective for MSCCL++: an exported file is read back, proved, and equals the oracle.

The reader (:mod:`blinkccl.formats.foreign`) shares no code with the exports, and uses only the file.
"""

import re
from fractions import Fraction
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blinkccl.api import export
from blinkccl.collectives.oracle import make_inputs, mismatch, oracle
from blinkccl.collectives.spec import Collective
from blinkccl.errors import UnsupportedError, UsageError
from blinkccl.formats.foreign import execute, mscclpp
from blinkccl.formats.foreign.verify import SERVED, ForeignAudit
from blinkccl.formats.registry import ANY, Choices, format_of
from blinkccl.schedule.lower import lower
from blinkccl.topology.spec import parse_gpus, parse_spec
from blinkccl.trees.algorithms.registry import ALGORITHMS
from blinkccl.trees.forest.model import Forest, Share, Tree
from support.examples import ALL_TESTS, examples
from support.foreign_files import audited, run
from support.forests import random_collective, random_forest
from support.planned import asked, by_hand, plan_or_reason, planned

#: Machines: no ring, a switch, host memory, a ring, full mesh, no symmetry, two servers.
JOBS = {
    "dgx-1v": "1,4,5,6",
    "dgx-a100": "0,3,5,6",
    "mist": None,
    "ring:5": None,
    "clique:4": None,
    "random:5:seed=3": None,
    "2x dgx-1v @ 40Gbps": "0,1,2+1,2",
}


def stored_in_host(forest: Forest) -> bool:
    """True if a path inside a server leads into a processor's memory and out again, as no channel of MSCCL++ does."""
    vertex, link = forest.topology.vertex, forest.topology.link
    return any(
        vertex[at].kind == "memory" or (vertex[at].kind == "host" and link[before, at].kind == "nvlink")
        for share in forest.shares
        for tree in share.trees()
        for path in tree.edges
        for before, at in pairwise(path[:-1])
    )


def exported(forest: Forest, choices: Choices = ANY) -> str:
    return export.exported(lower(forest), forest, "mscclpp", choices)[0].text


def proved(text: str, forest: Forest) -> ForeignAudit:
    """The audit of a file, which must have no faults and equal the oracle in two orders of execution."""
    audit = audited(text)
    assert audit.faults == ()
    assert audit.plan.collective == forest.collective
    inputs = make_inputs(forest.collective, audit.plan.chunks, "int32")
    for seed in (None, 1):
        outputs = run(audit.plan, inputs, seed=seed)
        assert mismatch(outputs, oracle(forest.collective, inputs), audit.plan.chunks) is None
    return audit


@pytest.mark.parametrize("collective", SERVED)
@pytest.mark.parametrize("spec", JOBS)
def test_every_plan_is_read_back_and_equals_the_oracle(spec: str, collective: str) -> None:
    wrote = refused = 0
    for number, algorithm in enumerate(ALGORITHMS):
        forest = plan_or_reason(algorithm, asked(spec, collective, JOBS[spec], root=2))
        if isinstance(forest, str):
            continue
        for in_place in (False, True) if ALL_TESTS else (bool(number % 2) and collective != "alltoall",):
            if in_place and collective == "alltoall":
                continue
            if stored_in_host(forest):
                with pytest.raises(UnsupportedError, match="continues beyond the memory of CPU"):
                    exported(forest, Choices(in_place))
                refused += 1
                continue
            audit = proved(exported(forest, Choices(in_place)), forest)
            assert audit.plan.in_place == in_place
            wrote += 1
    assert bool(wrote) == (spec != "mist")  # An AC922 joins its GPUs only through memories.
    assert bool(refused) == (spec in ("dgx-1v", "dgx-a100", "mist"))  # The first two by hybrid.


@given(seed=st.integers(0, 2**32), collective=st.sampled_from(SERVED), in_place=st.booleans())
@examples(60)
def test_random_plans_are_read_back_and_equal_the_oracle(seed: int, collective: str, in_place: bool) -> None:
    random = Random(seed)
    forest = random_forest(random, random_collective(random, random.randint(2, 6), collective))
    if in_place and collective == "alltoall":
        in_place = False
    proved(exported(forest, Choices(in_place)), forest)


@pytest.mark.parametrize("spec", ["dgx-1v", "dgx-a100", "mi250", "2x dgx-a100"])
def test_plans_of_whole_machines_fit(spec: str) -> None:
    for collective in ("allreduce", "allgather", "broadcast"):
        forest = planned("optimal", asked(spec, collective))
        assert audited(exported(forest)).ok


def test_the_same_plan_gives_the_same_text() -> None:
    forest = planned("optimal", asked("random:5:seed=3"))
    assert exported(forest) == exported(forest)


def test_weights_are_rounded_only_on_request() -> None:
    forest = planned("optimal", asked("random:5:seed=3"))
    exact = max(share.weight.denominator for share in forest.shares)
    assert proved(exported(forest), forest).plan.chunks % exact == 0
    file = export.exported(lower(forest), forest, "mscclpp", Choices(chunks=2))[0]
    assert proved(file.text, forest).plan.chunks == 2
    rates = re.fullmatch(r"2 chunks per block: ([0-9.]+) of ([0-9.]+) GB/s", file.note)
    assert rates is not None
    assert Fraction(rates[1]) < Fraction(rates[2])
    with pytest.raises(UsageError, match="--chunks 0: expected at least 1"):
        exported(forest, Choices(chunks=0))


@pytest.mark.parametrize(
    ("limit", "least", "message"),
    [
        ("MOST_CHANNELS", 2, "a thread block holds 2 memory channels, got 3"),
        ("MOST_OPERATIONS", 6, "a thread block holds 6 operations, got "),
        ("MOST_BUFFERS", 2, "a thread block holds 2 remote memory buffers, got 3"),
    ],
)
def test_a_limit_is_named_with_options_that_fit(
    limit: str, least: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mscclpp, limit, least)
    with pytest.raises(UnsupportedError) as refused:
        exported(planned("one_hop", asked("clique:4", "allreduce")))
    assert message in refused.value.reason
    assert re.search(
        r"; (these fit: --(algo \w+|objective [\w-]+) \(|none of the tried alternatives fits: )", refused.value.reason
    )


def test_a_plan_that_cannot_be_proved_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "MOST_MOVED", 10)
    with pytest.raises(UnsupportedError, match=r"the MSCCL\+\+ plan cannot be proved: .* too many to check; "):
        exported(planned("ring", asked("ring:4")))


def test_too_many_chunks_are_refused_with_a_rounding_that_fits() -> None:
    topology = parse_spec("ring:3")
    tree = Tree(0, ((0, 1), (0, 2)))
    weights = [Fraction(1, 100_003), Fraction(100_002, 100_003)]
    shares = [Share(weight, number, None, 0, None, tree) for number, weight in enumerate(weights)]
    forest = by_hand(Collective("broadcast", 3, root=0), topology, shares)
    with pytest.raises(UnsupportedError) as refused:
        exported(forest)
    assert "MSCCL++ allows 65536 chunks per buffer, got 100003" in refused.value.reason
    assert "these fit: --chunks 64 (25 of 25 GB/s)" in refused.value.reason
    assert proved(exported(forest, Choices(chunks=64)), forest).plan.chunks == 64


def test_plans_beyond_the_format_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"MSCCL\+\+ plans do not support gather, only allreduce"):
        exported(planned("optimal", asked("ring:4", "gather")))
    with pytest.raises(UnsupportedError, match=r"through vertices \[2, 5\] outside the job"):
        exported(planned("optimal", asked("chain:7", "broadcast", "0,3,6", relays=True)))
    with pytest.raises(UnsupportedError, match="leave --in-place out"):
        exported(planned("optimal", asked("ring:4", "alltoall")), Choices(True))
    with pytest.raises(UsageError, match=r"CUDA C\+\+ supports neither --in-place nor --chunks"):
        format_of("cuda").check(Choices(True))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("spec", "gpus"), [("dgx-h100", None), ("dgx-h100", "1,4,6"), ("gb200-nvl72", "0-16")])
def test_in_network_reduction_is_read_back_and_equals_the_oracle(spec: str, gpus: str | None, in_place: bool) -> None:
    machine = parse_spec(spec)
    ranks = parse_gpus(gpus, machine)
    (file,) = export.packed(machine, ranks, "mscclpp", Choices(in_place))
    audit = audited(file.text)
    assert (audit.faults, audit.assumes, audit.plan.in_place) == ((), "", in_place)
    assert audit.plan.sized is not None
    for plan in (audit.plan, audit.plan.sized(audit.plan.judged_bytes[-1])):
        inputs = make_inputs(plan.collective, plan.chunks, "int32")
        assert mismatch(run(plan, inputs, seed=1), oracle(plan.collective, inputs), plan.chunks) is None


def test_machines_without_in_network_reduction_are_refused() -> None:
    def refused(spec: str, choices: Choices = ANY) -> str:
        machine = parse_spec(spec)
        with pytest.raises((UnsupportedError, UsageError)) as error:
            export.packed(machine, machine.ranks, "mscclpp", choices)
        return str(error.value)

    assert "dgx-a100 has no switch with in-network reduction that joins GPUs 0, 1" in refused("dgx-a100")
    assert "a thread block holds 16 memory channels, got 71: choose at most 17 GPUs" in refused("gb200-nvl72")
    assert "no switch with in-network reduction" in refused("2x dgx-h100")
    assert "--chunks 4 needs a plan" in refused("dgx-h100", Choices(chunks=4))
